"""Reports of runs whose figures can be worked out by hand."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from made_runs import MS, record_of, samples_of, write_run

from embbench.analysis.percentiles import Percentile
from embbench.analysis.verdicts import Comparison, Question, judge
from embbench.findings import Finding
from embbench.report import FORMATS, Report, matrix_csv, summarise, to_json, to_markdown
from embbench.report.units import CellName, amount, ms, share
from embbench.results.rundir import Run, RunWriter, load_run

OPEN, CLOSED = "b15-isl80-float-rate10", "b64-isl80-float-closed1"
WRONG = "dimension depends on input length: 2048 for 2 tokens, 81920 for 80"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Latencies of 1 to 10 ms, the double of it, four of 3 ms, and a wrong payload.

    Linear percentiles of 1 to 10: p50 5.5, p90 9.1, p99 9.91. Every send is 0.5 ms late, which the
    service time does not count. With n = 10, p50 is closed (needs 6), p90 (36) and p99 (368) not.
    """
    ten = [float(k) for k in range(1, 11)]
    trials = {
        ("bare", OPEN): [samples_of(ten, lag_ms=0.5)],
        ("shm", OPEN): [samples_of([2 * k for k in ten], lag_ms=0.5, failed=1)],
        ("bare", CLOSED): [samples_of([3.0] * 4)],
        ("shm", CLOSED): [samples_of([77_777.7] * 4)],
    }
    finding = Finding("dimension", "fail", WRONG, "ask for pooling", "shm", CLOSED)
    worker = {"role": "worker", "argv": ["python", "-m", "worker", "a b"], "env": {"KEY": "***"}}
    return write_run(
        tmp_path,
        trials,
        [finding],
        argv=["embbench", "sweep", "--config", "a b.yaml"],
        host={"hostname": "box", "cores": 2, "boot_id": "1234", "load_average": 12.2055},
        gpu=[{"name": "NVIDIA H200", "driver": "570.1", "uuid": "GPU-1"}],
        versions={"python": "3.11", "embbench": "0.1.0", "numpy": "2.0"},
        git={"commit": "abcdef0123456789", "dirty": True},
        launches=[
            {"target": "shm", "model": "m", "processes": [worker]},
            {"target": "shm", "model": "m", "processes": [worker | {"argv": ["later"]}]},
        ],
        config={"trials": 1, "placement": "exclusive", "seed": 1, "model": "m"},
    )


def tables(markdown: str) -> dict[str, list[list[str]]]:
    """Table rows by the heading or summary line before them, without the rule line."""
    found: dict[str, list[list[str]]] = {}
    heading = ""
    for line in markdown.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("<summary>"):
            heading = line.removeprefix("<summary>").removesuffix("</summary>")
        elif line.startswith("|") and not re.fullmatch(r"[|: -]+", line):
            found.setdefault(heading, []).append([c.strip() for c in line.strip("|").split("|")])
    return found


def test_matrices_are_what_arithmetic_says(run: Run) -> None:
    found = tables(to_markdown(summarise(run)))
    head = ["batch", "load", "time", "n", "failed", "answer", "bare (floor)", "shm"]
    response = ["15", "open, 10/s", "response", "10", "0", "190.5 kB float"]
    service = ["15", "open, 10/s", "service", "10", "0", "190.5 kB float"]
    closed = ["64", "closed, 1 client", "service", "4", "0", "812.8 kB float"]
    closed += ["3.00† (max 3.00)", "INVALID (1)"]
    assert found["p50, ms"] == [
        head,
        [*response, "5.50", "11.0 ×2.00 (1 failed)"],
        [*service, "5.00", "10.5 ×2.10 (1 failed)"],
        closed,
    ]
    assert found["p90, ms"] == [
        head,
        [*response, "9.10† (max 10.0)", "18.2† ×2.00 (max 20.0, 1 failed)"],
        [*service, "8.60† (max 9.50)", "17.7† ×2.06 (max 19.5, 1 failed)"],
        closed,
    ]
    assert found["p99, ms"] == [
        head,
        [*response, "9.91† (max 10.0)", "19.8† ×2.00 (max 20.0, 1 failed)"],
        [*service, "9.41† (max 9.50)", "19.3† ×2.05 (max 19.5, 1 failed)"],
        closed,
    ]


def test_bytes_are_those_of_the_wire(run: Run) -> None:
    # 12,700 bytes a vector
    assert tables(to_markdown(summarise(run)))["Response body, mean"] == [
        ["batch", "load", "bare", "shm"],
        ["15", "open, 10/s", *["190.5 kB (12.7 kB a vector)"] * 2],
        ["64", "closed, 1 client", *["812.8 kB (12.7 kB a vector)"] * 2],
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_an_invalid_cell_prints_its_reason_and_no_latency(run: Run, name: str) -> None:
    text = FORMATS[name](summarise(run))
    assert "77777" not in text.replace(",", "")
    assert WRONG in text
    assert "99999" not in text.replace(",", "")  # nor does warm-up show anywhere


def test_the_reason_stands_in_one_sentence_below_the_matrices(run: Run) -> None:
    text = to_markdown(summarise(run))
    assert f"1. shm, {CLOSED}: {WRONG}; ask for pooling." in text.splitlines()
    assert "3 of 4 cells VALID, 1 INVALID; 1 of 29 measured requests failed." in text


def test_the_header_says_what_was_measured_where_and_how(run: Run) -> None:
    text = to_markdown(summarise(run))
    rows = dict(row for row in tables(text)["embbench: bare, shm"] if row != ["", ""])
    assert rows == {
        "measured": "/v1/embeddings, model m, ISL 80, encoding float, dimension 1024",
        "trials": "1 a cell, each from a fresh start, in balanced order, exclusive, seed 1",
        "host": "box, cores 2, load average 12.2",
        "GPU": "NVIDIA H200, driver 570.1",
        "versions": "python 3.11, embbench 0.1.0, commit abcdef012345 with changes",
    }
    assert "```\nembbench sweep --config 'a b.yaml'\n```" in text


def test_all_facts_and_processes_stand_behind_a_line(run: Run) -> None:
    text = to_markdown(summarise(run))
    assert tables(text)["Host, versions and processes in full"][1:] == [
        ["host", "hostname", "box"],
        ["host", "cores", "2"],
        ["host", "boot_id", "1234"],
        ["host", "load_average", "12.2"],
        ["versions", "python", "3.11"],
        ["versions", "embbench", "0.1.0"],
        ["versions", "numpy", "2.0"],
        ["git", "commit", "abcdef0123456789"],
        ["git", "dirty", "yes"],
        ["GPU", "name", "NVIDIA H200"],
        ["GPU", "driver", "570.1"],
        ["GPU", "uuid", "GPU-1"],
    ]
    assert "later" not in text
    assert "- shm, worker: KEY='\\*\\*\\*' python -m worker 'a b'" in text.splitlines()


def test_both_times_of_the_open_loop_are_named(run: Run) -> None:
    text = to_markdown(summarise(run))
    assert "response time counts from the intended start" in text
    assert "× is the ratio to bare." in text
    assert "p50 needs 6, p90 needs 36, p99 needs 368" in text


def test_every_cell_is_told_in_full(run: Run) -> None:
    text = to_markdown(summarise(run))
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| b")]
    full = {(row[0], row[1], row[2]): row[3:] for row in rows if row[0].startswith("b")}
    # n = 10: the binomial ranks of p50 are 2 and 9, of p90 7 and none, of p99 9 and none
    assert full[OPEN, "bare", "response"] == [
        *("VALID", "1/1", "10", "0", "1.00"),
        *("5.50 [2.00 to 9.00]", "9.10 [7.00 to …]", "9.91 [9.00 to …]"),
        *("10.0", "–", "10/s", "10/s", "1", "0.500", "100 %"),
    ]
    shm = full[OPEN, "shm", "response"]
    assert shm[:5] == ["VALID", "1/1", "10", "1 (1 HTTP 503)", "2.00"]
    # with the failure as an 11th, infinite value: p50 is the sixth, p90 the tenth
    assert shm[9] == "p50 12.0, p90 20.0, p99 ∞"
    assert full[CLOSED, "shm", "service"][:4] == ["INVALID", "1/1", "4", "0"]
    assert full[CLOSED, "shm", "service"][4:9] == ["–"] * 5


def test_a_cell_without_a_success_is_invalid_and_names_the_errors(tmp_path: Path) -> None:
    run = write_run(tmp_path, {("bare", OPEN): [samples_of([], failed=20)]})
    text = to_markdown(summarise(run))
    assert "none of 20 requests succeeded (20 HTTP 503)" in text
    assert tables(text)["p50, ms"][1][-1] == "INVALID (1)"
    assert "0.00" not in text


def test_what_was_not_driven_is_not_zero(tmp_path: Path) -> None:
    trials = {("bare", OPEN): [samples_of([5.0] * 8)], ("shm", OPEN): []}
    run = write_run(tmp_path, trials, status="interrupted", config={"trials": 2})
    text = to_markdown(summarise(run))
    assert tables(text)["p50, ms"][1][-2:] == ["5.00 (1 of 2 trials)", "–"]
    assert "1 of 2 cells VALID, 1 not run" in text
    assert "This run is interrupted" in text
    assert [row["p50_ms"] for row in rows_of(FORMATS["csv"](summarise(run)))] == ["5.0"] * 2 + [
        ""
    ] * 2


def test_several_trials_meet_in_their_geometric_mean(tmp_path: Path) -> None:
    trials = {("bare", CLOSED): [samples_of([2.0] * 200), samples_of([8.0] * 200)]}
    report = summarise(write_run(tmp_path, trials))
    row = tables(to_markdown(report))["p99, ms"][1]
    # sqrt(2 * 8), and 400 requests close a p99
    assert row == ["64", "closed, 1 client", "400", "0", "812.8 kB float", "4.00"]
    assert "| 4.00 (2.00 and 8.00) |" in to_markdown(report)


def test_isl_and_encoding_are_columns_where_they_vary(tmp_path: Path) -> None:
    cells = ["b1-isl80-float-closed1", "b1-isl16-base64-closed1"]
    run = write_run(tmp_path, {("bare", cell): [samples_of([1.0] * 9)] for cell in cells})
    found = tables(to_markdown(summarise(run)))["p50, ms"]
    assert found[0][:4] == ["batch", "load", "ISL", "encoding"]
    assert [row[2:4] for row in found[1:]] == [["80", "float"], ["16", "base64"]]
    assert [row[6] for row in found[1:]] == ["12.7 kB", "12.7 kB"]


def test_the_worst_trial_is_told_of_load_and_checks(tmp_path: Path) -> None:
    samples = samples_of([1.0] * 9)
    writer = RunWriter(write_run(tmp_path, {}).folder, {})
    meta = {"schema_version": 1, "kind": "run", "targets": ["bare"], "cells": [OPEN]}
    writer.update(**meta, floor="bare")
    for index, (share_, lag_ns, in_flight) in enumerate([(1.0, MS, 2), (0.5, 9 * MS, 7)]):
        more = {"verified_share": share_, "send_lag_p99_ns": lag_ns, "in_flight_max": in_flight}
        writer.add_trial(record_of("bare", OPEN, index, samples, **more), samples)
    row = tables(to_markdown(summarise(load_run(writer.folder))))["Every cell"][1]
    assert row[-3:] == ["7", "9.00", "50 %"]


def test_a_target_whose_answers_are_larger_says_so_in_its_cell(tmp_path: Path) -> None:
    # the bare server prints a vector in 21.7 kB, the others in 12.7 kB
    samples = samples_of([1.0] * 9)
    writer = RunWriter(write_run(tmp_path, {}).folder, {})
    names = ["bare", "baseline", "shm"]
    meta = {"schema_version": 1, "kind": "run", "targets": names, "cells": [CLOSED]}
    writer.update(**meta, floor="bare")
    for name in names:
        more = {"response_bytes": 64 * 21_700.0} if name == "bare" else {}
        writer.add_trial(record_of(name, CLOSED, 0, samples, **more), samples)
    row = tables(to_markdown(summarise(load_run(writer.folder))))["p50, ms"][1]
    assert row[4:] == ["812.8 kB float", "1.00 (1.39 MB)", "1.00 ×1.00", "1.00 ×1.00"]


def test_overhead_is_told_in_milliseconds_and_percent(tmp_path: Path) -> None:
    trials = {
        ("bare", CLOSED): [samples_of([10.0] * 9), samples_of([20.0] * 9), samples_of([40.0] * 9)],
        ("shm", CLOSED): [samples_of([11.0] * 9), samples_of([22.0] * 9), samples_of([44.0] * 9)],
        ("odd", CLOSED): [samples_of([9.0] * 9)] * 2,
    }
    found = tables(to_markdown(summarise(write_run(tmp_path, trials))))["Overhead over bare"]
    assert found[0] == ["batch", "load", "of", "shm", "odd"]
    shm, odd = found[1][3:]
    assert shm.startswith("+2.00 ms, +10.0 % [")  # 22 against 20, the geometric means
    assert odd == "-11.0 ms, -55.0 %"  # 9 against 20; two trials give no interval


def test_a_rate_sweep_names_its_knee(tmp_path: Path) -> None:
    # an M/M/1 queue of 100/s answers in 1 / (100 - rate) s: power is greatest at half its capacity
    cells = {f"b1-isl80-float-rate{rate}-poisson": rate for rate in (80, 20, 50, 65, 35)}
    trials = {
        ("bare", cell): [samples_of([1000 / (100 - rate)] * 400, gap_ms=1000 / rate)]
        for cell, rate in cells.items()
    }
    text = to_markdown(summarise(write_run(tmp_path, trials)))
    row = tables(text)["Load curves"][1]
    assert row[:2] == ["batch 1, ISL 80, float, poisson", "bare"]
    assert row[2] == "20/s 12.5 → 35/s 15.4 → 50/s 20.0 → 65/s 28.6 → 80/s 50.0"
    assert row[3:5] == ["p99", "50/s"]


def test_two_rates_make_no_curve(tmp_path: Path) -> None:
    cells = [f"b1-isl80-float-rate{rate}" for rate in (10, 20)]
    run = write_run(tmp_path, {("bare", cell): [samples_of([1.0] * 9)] for cell in cells})
    assert "Load curves" not in to_markdown(summarise(run))


def test_findings_are_grouped_the_worst_first(tmp_path: Path) -> None:
    notes = [Finding("drift", "info", "no drift", target="bare")]
    many = [
        Finding("norm", "warn", f"norm 0.9 in item {i}", "check it", "bare", cell, 0, i)
        for cell in (OPEN, CLOSED)
        for i in range(3)
    ]
    bad = [Finding("count", "fail", "1 of 15 vectors", target="bare", cell=OPEN)]
    cells = {("bare", OPEN): [samples_of([1.0])], ("bare", CLOSED): [samples_of([1.0])]}
    text = to_markdown(summarise(write_run(tmp_path, cells, [*notes, *many, *bad])))
    assert [line for line in text.splitlines() if line.startswith("- ")] == [
        f"- FAIL count, bare, {OPEN}: 1 of 15 vectors.",
        f"- warning norm, bare, {OPEN} and in 1 more: [6 times; the first:] "
        "norm 0.9 in item 0. check it.",
        "- note drift, bare: no drift.",
    ]


# --- parity, agreement, verdicts


def test_parity_shows_what_differs_and_folds_the_rest(run: Run) -> None:
    parity = [
        {"setting": "dtype", "values": {"bare": "bf16", "shm": "float32"}},
        {"setting": "pooling", "values": {"bare": "last", "shm": "last"}},
        {"setting": "caching", "values": {"bare": False}},
    ]
    meta = {**run.meta, "parity": parity}
    text = to_markdown(summarise(Run(run.folder, meta, run.trials, run.findings)))
    rows = tables(text)["Parity of the targets"]
    assert rows[1:] == [["dtype", "≠", "bf16", "float32"], ["caching", "≠", "False", "–"]]
    assert tables(text)["The same on all targets: 1"][1:] == [["pooling", "=", "last", "last"]]


def test_agreement_names_pairs_that_do_not_do_the_same_work(run: Run) -> None:
    same = {"base": "bare", "candidate": "shm", "texts": 8, "cosine_min": 0.9999999}
    same |= {"norm_difference_max": 1.5e-7, "usage_difference": 0, "same_work": True, "what": ""}
    other = {**same, "usage_difference": None, "same_work": False, "what": "cosine 0.1"}
    meta = {**run.meta, "agreement": [same, other]}
    text = to_markdown(summarise(Run(run.folder, meta, run.trials, run.findings)))
    assert tables(text)["Agreement of the answers"][1:] == [
        ["bare", "shm", "the same work", "8", "1.000000", "1.5e-07", "0"],
        ["bare", "shm", "cosine 0.1", "8", "1.000000", "1.5e-07", "–"],
    ]


def side(median_ms: float, seed: int, closed: bool = True) -> Percentile:
    """A median over ten rounds that differ by about 0.1 %."""
    trials = median_ms * MS * np.exp(np.random.default_rng(seed).normal(0, 1e-3, 10))
    value = float(np.exp(np.log(trials).mean()))
    return Percentile(50.0, value, None, None, closed, 500, tuple(trials), tuple(range(10)))


def comparisons() -> tuple[Comparison, ...]:
    questions = [
        Question(side(10, 1), side(12, 2), paired=True, key=("bare", "shm", OPEN)),
        Question(side(10, 3), side(10, 4), paired=True, key=("bare", "shm", CLOSED)),
        Question(side(10, 5), side(10, 6, closed=False), True, key=("bare", "shm", CLOSED)),
    ]
    return judge(questions)


def test_verdicts_are_counted_and_the_differences_shown(run: Run) -> None:
    text = to_markdown(summarise(run, comparisons()))
    assert (
        "3 comparisons as one family: 1 slower, 1 no measurable difference, 1 no verdict." in text
    )
    loud, *_ = text[text.index("### Verdicts") :].split("<details>")
    rows = tables(loud)["Verdicts"][1:]
    assert [row[:5] for row in rows] == [["15", "open, 10/s", "shm against bare", "p50", "slower"]]
    assert rows[0][5].startswith("×1.20 [1.2")
    assert "All 3 comparisons" in text


# --- data formats


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_a_row_for_each_cell_and_time(run: Run) -> None:
    rows = rows_of(FORMATS["csv"](summarise(run)))
    assert [(r["target"], r["cell"], r["time"], r["state"]) for r in rows] == [
        ("bare", OPEN, "response", "VALID"),
        ("bare", OPEN, "service", "VALID"),
        ("shm", OPEN, "response", "VALID"),
        ("shm", OPEN, "service", "VALID"),
        ("bare", CLOSED, "response", "VALID"),
        ("shm", CLOSED, "response", "INVALID"),
    ]
    assert [r["p99_ms"] for r in rows] == ["9.91", "9.41", "19.82", "19.32", "3.0", ""]
    assert [r["failed"] for r in rows] == ["0", "0", "1", "1", "0", "0"]
    assert rows[2]["p50_ratio"] == "2.0"
    assert rows[0]["p99_closed"] == "False"
    assert rows[0]["response_bytes"] == "190500.0"
    assert rows[-1]["reason"].startswith(WRONG)


def test_a_matrix_csv_has_targets_across(run: Run) -> None:
    assert matrix_csv(summarise(run), "p50") == (
        "batch,isl,encoding,load,time,bare,shm\n"
        "15,80,float,rate10,response,5.50,11.0\n"
        "15,80,float,rate10,service,5.00,10.5\n"
        "64,80,float,closed1,response,3.00,INVALID\n"
    )


def test_json_holds_every_figure_and_null_for_what_is_missing(run: Run) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    data = json.loads(to_json(summarise(run, comparisons())), parse_constant=refuse)
    assert data["schema_version"] == 1
    cells = {(cell["target"], cell["cell"]): cell for cell in data["cells"]}
    assert len(cells) == 4
    bare = cells["bare", OPEN]
    assert bare["figures"]["response"]["p90"]["value_ns"] == pytest.approx(9.1e6)
    assert bare["figures"]["response"]["p90"]["high_ns"] is None
    assert cells["shm", OPEN]["figures"]["service"]["p50"]["ratio"] == pytest.approx(2.1)
    assert cells["shm", OPEN]["times"]["response"]["adjusted"][2]["value_ns"] == "inf"
    assert cells["shm", CLOSED]["figures"] == {}
    assert cells["shm", CLOSED]["reason"].startswith(WRONG)
    assert data["comparisons"][0]["verdict"] == "slower"
    assert data["findings"][0]["what"] == WRONG


# --- units


@pytest.mark.parametrize(
    ("value_ns", "text"),
    [
        (None, "–"),
        (float("inf"), "∞"),
        (12_345.0, "0.0123"),
        (123_456.0, "0.123"),
        (1_234_567.0, "1.23"),
        (12_345_678.0, "12.3"),
        (7_491_990_000.0, "7492.0"),
    ],
)
def test_milliseconds_keep_three_digits_and_one_decimal(value_ns: float, text: str) -> None:
    assert ms(value_ns) == text


def test_amounts_and_shares() -> None:
    assert [amount(v) for v in (None, 0, 999, 1234, 21_700, 22_200_000, 3.1e9)] == [
        *("–", "0 B", "999 B", "1.23 kB", "21.7 kB", "22.2 MB", "3.10 GB")
    ]
    assert [share(v) for v in (1.0, 0.9999, 0.5, 0.001, 0.0)] == [
        *("100 %", ">99.9 %", "50 %", "0.1 %", "0 %")
    ]


@pytest.mark.parametrize(
    ("load", "label"),
    [
        ("rate10", "open, 10/s"),
        ("rate0.5-poisson", "open, 0.5/s, poisson"),
        ("rate1e+06-trace-cap8", "open, 1e+06/s, trace, ≤ 8 in flight"),
        ("closed1", "closed, 1 client"),
        ("closed8-think0.5s", "closed, 8 clients, think 0.5s"),
        ("rate-limited", "open, rate-limited"),
    ],
)
def test_loads_are_told_in_words(load: str, label: str) -> None:
    name = CellName.of(f"b15-isl80-base64-{load}")
    assert (name.batch, name.isl, name.encoding) == (15, 80, "base64")
    assert name.load_label == label
    assert name.open_loop == label.startswith("open")
    rates = {"rate10": 10.0, "rate0.5-poisson": 0.5, "rate1e+06-trace-cap8": 1e6}
    assert name.rate_rps == rates.get(load)


# --- the published matrices, typed from the pull requests' tables

RESULTS = Path(__file__).parents[2] / "results"

SECOND = {
    "p50": """
        15 28.3 26.9 32.0 27.6 25.7
        64 46.3 57.4 65.0 54.6 50.2
        128 81.5 87.6 93.4 78.1 75.8
        256 144.0 161.4 154.0 151.2 142.4
        512 261.6 313.9 293.8 285.0 269.4
        1024 542.4 631.7 604.0 589.2 573.0""",
    "p90": """
        15 30.6 28.2 34.4 29.4 26.9
        64 51.7 82.3 81.5 68.4 65.1
        128 88.1 100.5 95.7 80.3 89.6
        256 176.3 164.8 193.1 156.4 175.1
        512 265.8 618.5 670.4 616.2 597.2
        1024 674.2 977.1 1029.6 962.5 955.8""",
    "p99": """
        15 32.6 36.3 36.2 31.2 29.4
        64 56.2 284.0 392.4 76.1 203.5
        128 91.2 375.1 164.8 154.1 150.4
        256 187.8 463.2 532.1 455.0 449.2
        512 271.0 661.3 694.6 632.4 608.7
        1024 737.0 1001.5 1056.7 958.3 959.0""",
}
FIRST = """
        15 124.25 86.94 85.49 85.31
        64 469.54 306.57 290.69 294.72
        128 934.16 584.31 573.98 566.64
        256 1860.85 1182.62 1128.59 1126.00
        512 3684.53 2364.84 2301.73 2200.67
        1024 7491.99 4694.72 4615.99 4447.78"""


def published(name: str) -> Report:
    return summarise(load_run(RESULTS / name))


@pytest.mark.parametrize("statistic", SECOND)
def test_the_second_published_benchmark_comes_out_digit_for_digit(statistic: str) -> None:
    report = published("published-gb200-2")
    printed = [line.split() for line in SECOND[statistic].strip().splitlines()]
    rows = tables(to_markdown(report))[f"{statistic}, ms"]
    assert rows[0][4:] == ["bare vLLM (floor)", "baseline", "opt-2", "SHM", "opt-2 + SHM"]
    for row, (batch, *values) in zip(rows[1:], printed, strict=True):
        assert [row[0], *(cell.split()[0].strip("†") for cell in row[4:])] == [batch, *values]
        floor = float(values[0])
        ratios = [f"×{float(value) / floor:.2f}" for value in values[1:]]
        assert [cell.split()[1] for cell in row[5:]] == ratios
    csv_rows = list(csv.reader(io.StringIO(matrix_csv(report, statistic))))[1:]
    assert [[row[0], *row[5:]] for row in csv_rows] == printed


def test_the_first_published_benchmark_comes_out_digit_for_digit() -> None:
    report = published("published-gb200-1")
    printed = [line.split() for line in FIRST.strip().splitlines()]
    rows = tables(to_markdown(report))["mean, ms"][1:]
    assert [[row[0], *(cell.split()[0] for cell in row[4:])] for row in rows] == printed
    assert [row[2] for row in rows] == ["200", "100", "40", "40", "25", "25"]
    assert [row[4].split()[1:] for row in rows[2:]] == [["(n", "20)"]] * 2 + [["(n", "10)"]] * 2


def test_published_percentiles_that_n_cannot_carry_are_marked() -> None:
    # p99 needs 368 requests, p90 36, p50 6; the runs had 200, 100, 40, 40, 25 and 25
    found = tables(to_markdown(published("published-gb200-2")))
    marked = {s: ["†" in row[4] for row in found[f"{s}, ms"][1:]] for s in ("p50", "p90", "p99")}
    assert marked == {
        "p50": [False] * 6,
        "p90": [False] * 4 + [True] * 2,
        "p99": [True] * 6,
    }


def test_published_runs_say_that_they_carry_no_verdict() -> None:
    for name in ("published-gb200-1", "published-gb200-2"):
        text = to_markdown(published(name))
        assert "no samples and no trials" in text
        assert "VALID" not in text
        assert "opt-2 + SHM is SHM under a second name" in text
    over = [row for row in tables(text)["Overhead over bare vLLM"] if row[0] == "15"]
    assert over[0][2:4] == ["p50", "-1.40 ms, -4.9 %"]  # 26.9 - 28.3, of 28.3
    # at batch 1024, p50, for opt-2: 1 - (604.0 - 542.4) / (631.7 - 542.4) = 0.31
    gap = [row for row in tables(text)["Gap closed"] if row[0] == "1024"]
    assert gap[0] == ["1024", "closed, 1 client", "p50", "31 %", "48 %", "66 %"]

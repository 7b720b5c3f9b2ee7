"""The text of `compare`, of runs whose answer is known: 10 % slower, equal, and not alike."""

import csv
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from made_runs import samples_of, write_run

from embbench.analysis.gates import Gate, evaluate, parse_rules
from embbench.findings import Finding
from embbench.report.compare_runs import Compared, compare_between, compare_within
from embbench.report.comparison import COMPARISON_FORMATS
from embbench.results.rundir import Run, load_run
from embbench.results.samples import Samples

SLOW, SAME = "b15-isl80-float-rate10", "b64-isl80-float-closed1"
RESULTS = Path(__file__).parents[2] / "results"
NO_GATE = Gate((), ())


def eight_trials(median_ms: float, seed: int) -> list[Samples]:
    """Eight starts that differ by about 0.2 %, each of 60 requests spread by 5 %."""
    random = np.random.default_rng(seed)
    return [
        samples_of(list(median_ms * start * random.normal(1, 0.05, 60)))
        for start in random.normal(1, 0.002, 8)
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """shm is 10 % slower than bare in one cell, equal in the other; odd is INVALID in the first."""
    trials = {
        ("bare", SLOW): eight_trials(20, 1),
        ("shm", SLOW): eight_trials(22, 2),
        ("odd", SLOW): eight_trials(1, 3),
        ("bare", SAME): eight_trials(50, 4),
        ("shm", SAME): eight_trials(50, 5),
        ("odd", SAME): eight_trials(50, 6),
    }
    finding = Finding("count", "fail", "1 of 15 vectors", target="odd", cell=SLOW)
    return write_run(tmp_path_factory.mktemp("runs"), trials, [finding])


def text_of(runs: Sequence[Run], compared: Compared, gate: Gate = NO_GATE, fmt: str = "md") -> str:
    return COMPARISON_FORMATS[fmt](runs, compared, gate)


def verdicts(compared: Compared) -> dict[tuple[object, ...], str | None]:
    return {(*found.key, found.p): found.verdict for found in compared.comparisons}


def test_the_slower_target_is_called_slower_and_nothing_else_is(run: Run) -> None:
    compared = compare_within(run)
    found = verdicts(compared)
    assert found["bare", "shm", SLOW, 50.0] == "slower"
    assert found["bare", "shm", SAME, 50.0] == "no measurable difference"
    assert found["bare", "odd", SLOW, 50.0] == "not comparable"
    assert not [key for key, verdict in found.items() if verdict == "faster"]
    text = text_of([run], compared)
    shown = text.split("<details>")[0]
    assert re.search(
        r"shm against bare \| p50 \| slower \| ×1\.10 \[1\.(09|10) to 1\.1[01]\]", shown
    )
    assert "odd is INVALID: 1 of 15 vectors" in text


def test_a_gate_names_what_broke_it_and_what_is_not_decided(run: Run) -> None:
    compared = compare_within(run)
    gate = evaluate(parse_rules("p50 slower, p99 slower in odd"), compared.comparisons)
    text = text_of([run], compared, gate)
    broken = rf"- BROKEN 'p50 slower': shm against bare, {SLOW}, p50, ratio 1\.(09|10)\d$"
    assert re.search(broken, text, re.MULTILINE)
    assert "not decided:" in text
    undecided = json.loads(text_of([run], compared, gate, "json"))["gate"]["undecided"]
    assert {"key": ["bare", "odd", SLOW], "p": 99.0} in undecided


def test_two_runs_of_other_hosts_are_refused_unless_allowed(run: Run, tmp_path: Path) -> None:
    def on(host: str, seed: int) -> Run:
        trials = {("bare", SAME): eight_trials(50, seed)}
        return write_run(tmp_path / host, trials, host={"hostname": host, "cpu": "c", "cores": 2})

    here, there = on("here", 7), on("there", 8)
    refused = compare_between(here, there)
    assert set(verdicts(refused).values()) == {"not comparable"}
    assert "here against there" in text_of([here, there], refused)
    allowed = compare_between(here, there, allow=["host"])
    text = text_of([here, there], allowed)
    assert text.startswith("NOT LIKE FOR LIKE, allowed by hand: host: here against there")
    assert verdicts(allowed)["bare", "bare (new)", SAME, 50.0] == "no measurable difference"


def test_data_formats_hold_every_comparison(run: Run) -> None:
    compared = compare_within(run)
    rows = list(csv.DictReader(io.StringIO(text_of([run], compared, fmt="csv"))))
    data = json.loads(text_of([run], compared, fmt="json"))
    assert len(rows) == len(data["comparisons"]) == len(compared.comparisons) > 0
    slower = [row for row in rows if row["verdict"] == "slower"]
    assert slower[0]["candidate"] == "shm"
    assert {row["cell"] for row in slower} == {SLOW}
    assert float(slower[0]["candidate_ms"]) == pytest.approx(22, rel=0.02)
    assert text_of([run], compared, fmt="html").startswith("<!doctype html>")


def test_published_matrices_get_no_verdict() -> None:
    run = load_run(RESULTS / "published-gb200-2")
    compared = compare_within(run)
    assert set(verdicts(compared).values()) == {None}
    assert "percentiles only: no samples and no trials" in text_of([run], compared)

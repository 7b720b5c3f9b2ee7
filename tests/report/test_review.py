"""Comparisons between and within runs, and the review: on runs whose truth is made up here."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embbench.errors import ConfigError
from embbench.findings import Finding
from embbench.report import to_markdown
from embbench.report.compare_runs import compare_between, compare_within
from embbench.report.review import review
from embbench.results.rundir import Run, RunWriter, TrialRecord, load_run
from embbench.results.samples import MEASURED, RECORD, Samples

CLOSED = "b15-isl80-float-closed1"
MS = 1_000_000


def make_run(
    root: Path,
    medians_ms: dict[str, float],
    *,
    rounds: int = 8,
    requests: int = 120,
    seed: int = 1,
    cell: str = CLOSED,
    load: dict[str, Any] | None = None,
    findings: tuple[Finding, ...] = (),
    **meta: Any,
) -> Run:
    """A run of log-normal latencies around each target's median; rounds move all by 3 %."""
    names = list(medians_ms)
    about = {
        "targets": names,
        "cells": [cell],
        "floor": names[0],
        "baseline": names[1] if len(names) > 1 else None,
        "host": {"hostname": "here", "cpu": "made up", "cores": 2},
        "config": {"seed": 1, "trials": rounds},
        **meta,
    }
    writer = RunWriter.create(root, "made", about, datetime.now(UTC))
    random = np.random.default_rng(seed)
    shifts = np.exp(random.normal(0, 0.03, rounds))
    for index in range(rounds):
        for name, median_ms in medians_ms.items():
            times = median_ms * MS * shifts[index] * np.exp(random.normal(0, 0.05, requests))
            rows = np.zeros(requests, RECORD)
            rows["seq"] = np.arange(requests)
            rows["phase"] = MEASURED
            rows["error"] = -1
            rows["end_ns"] = np.cumsum(times.astype(np.int64)) + 10**9
            rows["start_ns"] = rows["end_ns"] - times.astype(np.int64)
            rows["intended_start_ns"] = rows["start_ns"]
            rows["request_bytes"], rows["response_bytes"] = 6000, 190_000
            writer.add_trial(record(name, index, cell, load, requests), Samples(rows))
    writer.add_findings(findings)
    return load_run(writer.folder)


def record(
    target: str, index: int, cell: str, load: dict[str, Any] | None, requests: int
) -> TrialRecord:
    return TrialRecord(
        target=target,
        cell=cell,
        index=index,
        launch=index,
        batch=15,
        isl=80,
        encoding="float",
        load=load or {"concurrency": 1, "think_time_s": 0.0},
        requests=requests,
        started_at="2026-01-02T03:04:05+00:00",
        origin_ns=0,
        wall_s=1.0,
        asked_rps=None,
        achieved_rps=10.0,
        in_flight_max=1,
        send_lag_p50_ns=0,
        send_lag_p99_ns=0,
        send_lag_max_ns=0,
        request_bytes=6000.0,
        response_bytes=190_000.0,
        dimension=1024,
        verified_share=1.0,
    )


def verdicts(comparisons: Any) -> dict[tuple[str, str], str | None]:
    return {(one.key[1], f"p{one.p:g}"): one.verdict for one in comparisons}


def test_within_a_run_all_stand_against_the_floor_and_the_rest_against_the_baseline(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path, {"bare": 10, "baseline": 12, "shm": 12})
    found = compare_within(run).comparisons
    assert {one.key[:2] for one in found} == {
        ("bare", "baseline"),
        ("bare", "shm"),
        ("baseline", "shm"),
    }
    told = {(one.key[0], one.key[1]): one.verdict for one in found if one.p == 50}
    assert told["bare", "baseline"] == told["bare", "shm"] == "slower"
    assert told["baseline", "shm"] == "no measurable difference"


def test_one_pair_can_be_asked_for(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"bare": 10, "baseline": 12, "shm": 12})
    found = compare_within(run, base="shm", candidate="bare").comparisons
    assert {one.key[:2] for one in found} == {("shm", "bare")}
    assert verdicts(found)["bare", "p50"] == "faster"
    with pytest.raises(ConfigError, match="no target 'bear'"):
        compare_within(run, base="bear")


def test_an_invalid_cell_is_compared_with_nothing(tmp_path: Path) -> None:
    broken = Finding("count", "fail", "1 of 15 vectors", target="shm", cell=CLOSED)
    run = make_run(tmp_path, {"bare": 10, "shm": 1}, findings=(broken,))
    (answer,) = {(one.verdict, one.reason) for one in compare_within(run).comparisons}
    assert answer[0] == "not comparable"
    assert answer[1].startswith("shm is INVALID: 1 of 15 vectors")


def test_targets_that_do_not_do_the_same_work_are_not_compared(tmp_path: Path) -> None:
    pair = {
        "base": "bare", "candidate": "shm", "same_work": False, "what": "cosine 0.1, asked 0.999",
        "texts": 8, "cosine_min": 0.1, "norm_difference_max": 0.0, "usage_difference": 0,
    }  # fmt: skip
    run = make_run(tmp_path, {"bare": 10, "shm": 5}, agreement=[pair])
    assert {(one.verdict, one.reason) for one in compare_within(run).comparisons} == {
        ("not comparable", "cosine 0.1, asked 0.999")
    }


def test_two_runs_of_the_same_server_do_not_differ(tmp_path: Path) -> None:
    old = make_run(tmp_path, {"bare": 10, "dynamo": 12}, seed=1)
    new = make_run(tmp_path, {"bare": 10, "dynamo": 12}, seed=2)
    found = compare_between(old, new)
    assert {one.verdict for one in found.comparisons} == {"no measurable difference"}
    assert found.first_line == ""


def test_a_slower_server_is_seen_through_a_machine_that_became_slower(tmp_path: Path) -> None:
    old = make_run(tmp_path, {"bare": 10, "dynamo": 12}, seed=1)
    new = make_run(tmp_path, {"bare": 13, "dynamo": 12 * 1.3 * 1.25}, seed=2)
    told = verdicts(compare_between(old, new).comparisons)
    assert told["dynamo (new)", "p50"] == "slower"


def test_another_host_is_refused_and_allowed_by_hand(tmp_path: Path) -> None:
    old = make_run(tmp_path, {"bare": 10})
    new = make_run(
        tmp_path, {"bare": 10}, seed=2, host={"hostname": "there", "cpu": "made up", "cores": 2}
    )
    refused = compare_between(old, new)
    assert {one.verdict for one in refused.comparisons} == {"not comparable"}
    assert "host: here against there" in refused.comparisons[0].reason
    let = compare_between(old, new, allow=["host"])
    assert {one.verdict for one in let.comparisons} == {"no measurable difference"}
    assert let.first_line.startswith("NOT LIKE FOR LIKE, allowed by hand: host: here against there")
    with pytest.raises(ConfigError, match="--allow hots: no such fact; did you mean 'host'"):
        compare_between(old, new, allow=["hots"])


def test_runs_with_nothing_in_common_are_named(tmp_path: Path) -> None:
    old, new = make_run(tmp_path, {"bare": 10}), make_run(tmp_path, {"vllm": 10})
    with pytest.raises(ConfigError, match="no target in common: bare against vllm"):
        compare_between(old, new)
    found = compare_between(old, new, targets={"bare": "vllm"}).comparisons
    assert {one.key[:2] for one in found} == {("bare", "vllm")}


def test_an_aa_pair_sets_the_least_difference(tmp_path: Path) -> None:
    # the floor under a second name came out 8 % slower: 5 % can be nothing here
    run = make_run(
        tmp_path, {"bare": 10, "shm": 10.5, "bare-aa": 10.8}, same_as={"bare-aa": "bare"}
    )
    found = compare_within(run)
    assert found.min_effect[50.0] == pytest.approx(0.08, abs=0.02)
    assert verdicts(found.comparisons)["shm", "p50"] == "no measurable difference"
    quiet = make_run(
        tmp_path, {"bare": 10, "shm": 10.5, "bare-aa": 10}, same_as={"bare-aa": "bare"}
    )
    assert verdicts(compare_within(quiet).comparisons)["shm", "p50"] == "slower"


def test_the_review_says_where_a_rate_sweep_bends(tmp_path: Path) -> None:
    folder = make_rate_sweep(tmp_path, [(10, 10), (20, 10.5), (40, 15), (60, 90)])
    report = review(load_run(folder))
    (knee,) = [f for f in report.findings if f.check == "knee"]
    # answers a second over response time: 1, 1.9, 2.67, 0.67: the greatest at 40
    assert "bends at 40 requests/s" in knee.what
    assert "bends at 40 requests/s" in to_markdown(report)


def make_rate_sweep(root: Path, points: list[tuple[float, float]]) -> Path:
    cells = [f"b15-isl80-float-rate{rate:g}" for rate, _ in points]
    about: dict[str, Any] = {
        "targets": ["s"],
        "cells": cells,
        "floor": "s",
        "baseline": None,
        "host": {},
    }
    writer = RunWriter.create(root, "rates", about, datetime.now(UTC))
    for cell, (rate, response_ms) in zip(cells, points, strict=True):
        random = np.random.default_rng(5)
        rows = np.zeros(200, RECORD)
        rows["seq"], rows["phase"], rows["error"] = np.arange(200), MEASURED, -1
        rows["start_ns"] = rows["intended_start_ns"] = (np.arange(200) * 1e9 / rate).astype(int)
        rows["end_ns"] = rows["start_ns"] + (
            response_ms * MS * np.exp(random.normal(0, 0.02, 200))
        ).astype(int)
        load = {"rate_rps": rate, "arrival": "constant"}
        writer.add_trial(record("s", 0, cell, load, 200), Samples(rows))
    return writer.folder

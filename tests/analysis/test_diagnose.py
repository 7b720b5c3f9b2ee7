"""Each finding both ways: it is made where its cause is, and not made of noise without a cause."""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embbench.analysis.diagnose import (
    FALSE_ALARM,
    odd_trials,
    start_spread,
    tail_against_floor,
    trial_findings,
)
from embbench.analysis.percentiles import Percentile
from embbench.config.plan import ClosedLoop, OpenLoop
from embbench.findings import Finding
from embbench.results.samples import MEASURED, RECORD, WARMUP, Samples

HERE: dict[str, Any] = {"target": "shm", "cell": "b15", "trial": 2}


def samples(latencies_ms: np.ndarray, *, gap_ms: float = 100.0, warmup: int = 4) -> Samples:
    """One trial: requests ``gap_ms`` apart; warm-up rows of 9 s come first."""
    times = np.concatenate([np.full(warmup, 9000.0), latencies_ms])
    rows = np.zeros(len(times), RECORD)
    rows["phase"] = np.where(np.arange(len(times)) < warmup, WARMUP, MEASURED)
    rows["intended_start_ns"] = 10**12 + np.arange(len(times)) * round(gap_ms * 1e6)
    rows["start_ns"] = rows["intended_start_ns"] + 50_000
    rows["end_ns"] = rows["intended_start_ns"] + np.rint(times * 1e6).astype(np.int64)
    rows["error"] = -1
    return Samples(rows)


def noise(seed: int, n: int = 300, sd: float = 0.15) -> np.ndarray:
    return np.asarray(20 * np.exp(sd * np.random.default_rng(seed).standard_normal(n)))


def found(latencies_ms: np.ndarray, load: Any = None, gap_ms: float = 100.0) -> list[Finding]:
    return trial_findings(
        samples(latencies_ms, gap_ms=gap_ms), load or OpenLoop(1000 / gap_ms), **HERE
    )


def test_findings_know_their_place_and_say_what_to_do() -> None:
    (one,) = found(np.concatenate([noise(0, 30) * 3, noise(1, 270)]))
    assert (one.target, one.cell, one.trial) == ("shm", "b15", 2)
    assert one.severity == "warn"
    assert one.do


@pytest.mark.parametrize(("slow", "factor"), [(3, 5.0), (6, 3.0), (12, 2.0), (60, 1.5), (140, 1.4)])
def test_warm_up_that_was_not_over_is_found_with_its_length(slow: int, factor: float) -> None:
    times = noise(slow)
    times[:slow] *= factor
    (one,) = found(times)
    assert one.check == "warm-up not over"
    said = int(one.what.split("first ")[1].split()[0])
    assert 0.5 * slow <= said <= 1.7 * slow
    assert "raise the cell's warm-up" in one.do


def test_a_slow_request_or_two_at_first_are_not_a_warm_up() -> None:
    times = noise(7)
    times[:2] *= 10
    assert found(times) == []


@pytest.mark.parametrize(
    ("factor", "check"), [(0.6, "falling latencies"), (1.5, "rising latencies")]
)
def test_drift_is_found_with_its_direction(factor: float, check: str) -> None:
    (one,) = found(noise(3) * np.geomspace(1, factor, 300), ClosedLoop(1))
    assert one.check == check
    said = float(one.what.split("by ")[1].split(" ")[0])
    assert said == pytest.approx(100 * (factor**0.8 - 1), abs=10)


def test_two_humps_are_found_with_their_places() -> None:
    rng = np.random.default_rng(4)
    times = noise(4, sd=0.06) * np.where(rng.random(300) < 0.3, 1.8, 1.0)
    (one,) = found(times)
    assert one.check == "two humps"
    at = [float(word) for word in one.what.replace(";", "").split() if word[0].isdigit()]
    assert at[0] == pytest.approx(20, rel=0.06)
    assert at[1] == pytest.approx(36, rel=0.06)
    assert "% of the requests are in the slow one" in one.what


def test_a_rate_above_capacity_is_found_with_the_capacity() -> None:
    # a serial server of 125 ms a request, asked every 100 ms: it keeps up with 8 of 10 a second
    service = noise(5, sd=0.05) * 125 / 20
    free = 0.0
    times = np.empty(300)
    for i, busy in enumerate(service):
        free = max(free, 100.0 * i) + busy
        times[i] = free - 100.0 * i
    (one,) = found(times)
    assert one.check == "queue grew"
    capacity = float(one.what.split("it answers ")[1].split()[0])
    assert capacity == pytest.approx(8, rel=0.03)
    assert "10/s is above capacity" in one.what


def test_a_queue_that_keeps_up_is_no_finding() -> None:
    service = noise(6, sd=0.3) * 80 / 20  # 80 % busy: queues come and go
    free = 0.0
    times = np.empty(300)
    for i, busy in enumerate(service):
        free = max(free, 100.0 * i) + busy
        times[i] = free - 100.0 * i
    assert [f.check for f in found(times) if f.check == "queue grew"] == []


def test_few_requests_have_no_course() -> None:
    assert found(np.geomspace(1, 100, 39)) == []


@pytest.mark.parametrize(
    "shape", ["log-normal", "heavy tail", "autocorrelated", "starts 3 % apart"]
)
@pytest.mark.parametrize("n", [60, 300])
def test_noise_without_a_cause_is_silent_at_the_stated_rate(shape: str, n: int) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "bench"))
    try:
        from noise import SHAPES  # type: ignore[import-not-found,unused-ignore]
    finally:
        sys.path.pop(0)
    count = 150
    logs = SHAPES[shape](np.random.default_rng(n), (count, 1, 1, n))[:, 0, 0]
    alarms: dict[str, int] = {}
    for course in 20 * np.exp(logs):
        for one in found(course):
            alarms[one.check] = alarms.get(one.check, 0) + 1
    # four checks of 150 trials: 4 alarms of one check are six times the rate, under one in 5,000
    assert max(alarms.values(), default=0) <= 3, alarms
    assert FALSE_ALARM * count < 3


def cell(values: np.ndarray, p: float = 50, *, closed: bool = True) -> Percentile:
    return Percentile(
        p,
        math.exp(np.log(values).mean()),
        None,
        None,
        closed,
        4000,
        tuple(values),
        (*range(len(values)),),
    )


def test_one_trial_out_of_line_is_found() -> None:
    rng = np.random.default_rng(8)
    values = 2e7 * np.exp(0.02 * rng.standard_normal(8))
    assert odd_trials(cell(values), target="a", cell="c") == []
    values[5] *= 1.4
    (one,) = odd_trials(cell(values), target="a", cell="c")
    assert (one.check, one.trial) == ("odd trial", 5)
    said = float(one.what.split("p50 ")[1].split("%")[0])
    assert said == pytest.approx(40, abs=6)
    assert odd_trials(cell(values[:4]), target="a", cell="c") == []
    same = np.full(8, 2e7)
    assert odd_trials(cell(same), target="a", cell="c") == []


def test_trials_of_equal_servers_are_in_line_at_the_stated_rate() -> None:
    rng = np.random.default_rng(9)
    alarms = sum(
        bool(odd_trials(cell(2e7 * np.exp(0.1 * rng.standard_normal(8))), target="a", cell="c"))
        for _ in range(1000)
    )
    assert 1 <= alarms <= 22  # 10 expected at 1 %


def test_a_tail_longer_than_the_floors_is_found_and_tested() -> None:
    rng = np.random.default_rng(10)

    def pair(tail: float, count: int = 8) -> tuple[Percentile, Percentile]:
        median = 2e7 * np.exp(0.1 * rng.standard_normal(count))
        return cell(median), cell(median * tail * np.exp(0.05 * rng.standard_normal(count)), 99)

    where: dict[str, Any] = {"paired": True, "target": "a", "cell": "c"}
    (one,) = tail_against_floor(pair(1.3), pair(2.0), **where)
    assert (one.check, one.severity) == ("long tail", "warn")
    assert "p99 is 2 times p50, the floor's 1.3 times" in one.what
    assert tail_against_floor(pair(1.3), pair(1.35), **where) == []
    assert tail_against_floor(pair(2.0), pair(1.3), **where) == []
    (look,) = tail_against_floor(pair(1.3, 2), pair(4.0, 2), **where)
    assert look.severity == "info"
    assert "to be sure" in look.what
    assert tail_against_floor(pair(1.3, 2), pair(2.0, 2), **where) == []
    opened = (cell(np.full(8, 2e7)), cell(np.full(8, 9e7), 99, closed=False))
    assert tail_against_floor(pair(1.3), opened, **where) == []
    alarms = sum(bool(tail_against_floor(pair(1.5), pair(1.5), **where)) for _ in range(300))
    assert alarms <= 3


def test_restless_starts_are_told_from_noisy_requests() -> None:
    rng = np.random.default_rng(11)
    values = 2e7 * np.exp(0.16 * rng.standard_normal(8))
    (one,) = start_spread(cell(values), [0.02] * 8, target="a", cell="c")
    assert one.severity == "info"
    assert "more trials" in one.do
    assert start_spread(cell(values), [0.15] * 8, target="a", cell="c") == []
    quiet = 2e7 * np.exp(0.01 * rng.standard_normal(8))
    assert start_spread(cell(quiet), [0.002] * 8, target="a", cell="c") == []

"""The story's figures: by hand on published numbers, and covered at their rate in simulation."""

import math

import numpy as np
import pytest

from embbench.analysis.overhead import gap_closed, overhead
from embbench.analysis.percentiles import Percentile, cell_percentile, percentile

MS = 1_000_000


def published(ms: float) -> Percentile:
    return Percentile(50, ms * MS, None, None, closed=False, n=200)


def measured(logs: np.ndarray, *, closed: bool = True) -> Percentile:
    rounds = tuple(range(len(logs)))
    return Percentile(
        50, math.exp(logs.mean()), None, None, closed, 3200, tuple(np.exp(logs)), rounds
    )


def test_the_storys_figures_by_hand() -> None:
    floor, baseline, candidate = published(63), published(124.25), published(86.94)
    over = overhead(floor, baseline, paired=True)
    assert over is not None
    assert over.ratio == pytest.approx(124.25 / 63)
    assert over.overhead_ns == pytest.approx(61.25 * MS)
    assert over.low is None
    closed = gap_closed(floor, baseline, candidate, paired=True)
    assert closed.value == pytest.approx(1 - (86.94 - 63) / (124.25 - 63))
    assert (closed.low, closed.high) == (None, None)
    assert "no trials" in closed.reason


def test_no_gap_is_no_share_of_it() -> None:
    # the published second benchmark at batch 15: the baseline is the faster one
    found = gap_closed(published(28.3), published(26.9), published(32.0), paired=True)
    assert found.value is None
    assert "undefined" in found.reason
    absent = Percentile(50, None, None, None, closed=False, n=0)
    assert overhead(absent, published(1), paired=True) is None
    assert gap_closed(absent, published(1), published(1), paired=True).value is None


def test_a_gap_within_noise_is_undefined() -> None:
    rng = np.random.default_rng(1)
    floor, baseline, candidate = (measured(17 + 0.05 * rng.normal(size=8)) for _ in range(3))
    if (floor.value_ns or 0) > (baseline.value_ns or 0):
        floor, baseline = baseline, floor
    found = gap_closed(floor, baseline, candidate, paired=True)
    assert found.value is None
    assert "do not differ measurably" in found.reason
    few = [measured(17 + shift + 0.01 * rng.normal(size=3)) for shift in (0.0, 1.0, 0.5)]
    assert "too few trials" in gap_closed(*few, paired=True).reason
    open_ones = [measured(17 + shift + np.zeros(8), closed=False) for shift in (0.0, 1.0, 0.5)]
    assert "too few requests" in gap_closed(*open_ones, paired=True).reason


@pytest.mark.parametrize(("paired", "count"), [(True, 8), (True, 16), (False, 8)])
def test_the_interval_covers_the_true_share(paired: bool, count: int) -> None:
    rng = np.random.default_rng(count)
    truth = 1 - (1.15 - 1) / (1.4 - 1)
    hits = defined = 0
    for _ in range(600):
        machine = 0.2 * rng.normal(size=count) if paired else np.zeros(count)
        noise = 0.04 * rng.normal(size=(3, count))
        sides = [measured(17 + math.log(f) + machine + e) for f, e in zip((1, 1.4, 1.15), noise)]  # noqa: B905
        found = gap_closed(sides[0], sides[1], sides[2], paired=paired)
        if found.value is not None and found.low is not None and found.high is not None:
            defined += 1
            hits += found.low <= truth <= found.high
    assert defined > 550
    assert 0.92 <= hits / defined <= 0.985


def test_the_ratio_of_overhead_is_that_of_the_table() -> None:
    rng = np.random.default_rng(2)
    sides = [
        cell_percentile(
            [percentile(rng.integers(f * 10**7, f * 11 * 10**6, 50), 50) for _ in range(8)]
        )
        for f in (1, 2)
    ]
    found = overhead(sides[0], sides[1], paired=True)
    assert found is not None
    assert found.ratio == pytest.approx((sides[1].value_ns or 0) / (sides[0].value_ns or 1))
    assert (found.low or 0) < found.ratio < (found.high or 0)

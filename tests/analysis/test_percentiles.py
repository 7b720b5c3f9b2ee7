"""Percentiles against numpy, scipy and worked examples; intervals against the binomial."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, quantile_test

from embbench.analysis.percentiles import (
    cell_percentile,
    interval_ranks,
    linear,
    percentile,
    requests_in_each_trial,
    requests_to_close,
)

MS = 1_000_000
latencies = st.lists(st.integers(1, 10**13), min_size=1, max_size=300)


def ms(*values: float) -> np.ndarray:
    return np.array([round(v * MS) for v in values], np.int64)


@given(latencies, st.floats(0.1, 99.9))
def test_the_value_is_numpys_linear_rule(values: list[int], p: float) -> None:
    found = percentile(np.array(values), p).value_ns
    assert found == pytest.approx(float(np.percentile(values, p)), rel=1e-12)


@given(latencies, st.lists(st.floats(0.1, 99.9), min_size=2, max_size=6))
def test_percentiles_stay_in_order_and_inside_the_sample(
    values: list[int], ps: list[float]
) -> None:
    found = [percentile(np.array(values), p) for p in sorted(ps)]
    path = [float(min(values)), *(f.value_ns or 0.0 for f in found), float(max(values))]
    assert path == sorted(path)
    for one in found:
        assert one.n == len(values)
        ends = [e for e in (one.low_ns, one.value_ns, one.high_ns) if e is not None]
        assert one.closed == (len(ends) == 3)
        assert ends == sorted(ends) or not one.closed


def test_small_samples_have_percentiles_but_cannot_carry_a_p99() -> None:
    ten = ms(*range(1, 11))
    assert percentile(ten, 90).value_ns == pytest.approx(9.1 * MS)
    assert percentile(ten, 99).value_ns == pytest.approx(9.91 * MS)
    assert not percentile(ten, 99).closed
    assert percentile(ten, 99).high_ns is None
    hundred = ms(*range(1, 101))
    found = [percentile(hundred, p) for p in (50, 90, 99)]
    assert [f.value_ns for f in found] == pytest.approx([50.5 * MS, 90.1 * MS, 99.01 * MS])
    assert [f.closed for f in found] == [True, True, False]


def test_nothing_is_absent_and_never_zero() -> None:
    found = percentile(ms(), 99)
    assert (found.value_ns, found.low_ns, found.high_ns) == (None, None, None)
    assert (found.closed, found.n) == (False, 0)


@pytest.mark.parametrize(("p", "least"), [(50, 6), (90, 36), (99, 368), (99.9, 3688), (1, 368)])
def test_a_percentile_closes_where_the_binomial_says(p: float, least: int) -> None:
    assert requests_to_close(p) == least
    rng = np.random.default_rng(1)
    for n, closed in ((least - 1, False), (least, True)):
        assert percentile(rng.integers(1, 10**9, n), p).closed == closed
    # the chance that all of n values miss the far side of the percentile
    far = max(p, 100 - p) / 100
    assert far**least <= 0.025 < far ** (least - 1)


@given(st.integers(1, 3000), st.sampled_from([1.0, 25.0, 50.0, 90.0, 99.0]))
def test_the_interval_covers_by_the_binomial_and_is_the_tightest(n: int, p: float) -> None:
    low, high = interval_ranks(n, p)
    below = binom(n, p / 100)
    assert below.cdf(low - 1) <= 0.025 + 1e-12
    assert below.sf(high - 1) <= 0.025 + 1e-12
    assert below.cdf(low) > 0.025 - 1e-12
    assert below.sf(high - 2) > 0.025 - 1e-12


@pytest.mark.parametrize(("n", "p"), [(400, 99), (100, 50), (250, 90), (5000, 99)])
def test_the_interval_is_that_of_scipy(n: int, p: float) -> None:
    values = np.sort(np.random.default_rng(n).permutation(100 * n)[:n])
    theirs: Any = quantile_test(values, p=p / 100).confidence_interval(confidence_level=0.95)
    ours = percentile(values, p)
    assert (ours.low_ns, ours.high_ns) == (theirs.low, theirs.high)


def test_the_interval_covers_the_truth_at_its_rate() -> None:
    rng = np.random.default_rng(7)
    truth = -math.log(0.1) * MS
    sides = [percentile((rng.exponential(MS, 200)).astype(np.int64), 90) for _ in range(2000)]
    hits = sum((s.low_ns or 0) <= truth <= (s.high_ns or 0) for s in sides)
    assert 0.945 <= hits / 2000 <= 0.985  # at least 95 %, a little more since ranks are whole


def test_failures_count_as_infinitely_slow() -> None:
    served = ms(*([100.0] * 60))
    assert percentile(served, 50).value_ns == 100 * MS
    adjusted = [percentile(served, p, failures=40) for p in (50, 90)]
    adjusted.append(percentile(ms(), 50, failures=3))
    assert [a.value_ns for a in adjusted] == [100 * MS, math.inf, math.inf]
    assert [a.n for a in adjusted] == [100, 100, 3]
    # the linear rule would mix the last success with the first failure
    assert linear(ms(1, 2, 3), 75, failures=1) == math.inf
    assert linear(ms(1, 2, 3), 60, failures=1) == pytest.approx(2.8 * MS)


def test_a_cell_is_the_geometric_mean_of_its_trials() -> None:
    trials = [percentile(np.full(200, v * MS), 50) for v in (10, 40)]
    cell = cell_percentile(trials, rounds=(3, 5))
    assert cell.value_ns == pytest.approx(20 * MS)
    assert list(cell.trials_ns) == [10 * MS, 40 * MS]
    assert cell.rounds == (3, 5)
    assert cell.n == 400
    # Student's quantile with one degree of freedom is tan(0.475 pi); the spread of the logs is ln 2
    half = math.tan(0.475 * math.pi) * math.log(2)
    assert cell.low_ns == pytest.approx(20 * MS * math.exp(-half))
    assert cell.high_ns == pytest.approx(20 * MS * math.exp(half))


def test_one_trial_keeps_its_exact_percentile() -> None:
    one = percentile(ms(*range(1, 51)), 90)
    assert cell_percentile([one]) == one


def test_a_trial_without_a_success_is_left_out_of_its_cell() -> None:
    good, none = percentile(np.full(50, 5 * MS), 50), percentile(ms(), 50)
    cell = cell_percentile([none, good], rounds=(0, 1))
    assert cell.value_ns == pytest.approx(5 * MS)
    assert (cell.n, cell.rounds) == (50, (1,))
    nothing = cell_percentile([none, none])
    assert (nothing.value_ns, nothing.closed, nothing.n) == (None, False, 0)


@pytest.mark.parametrize(
    ("trials", "each", "closed"), [(4, 100, True), (3, 100, False), (10, 40, False), (1, 368, True)]
)
def test_a_cell_carries_a_p99_by_its_total_if_no_trial_is_tiny(
    trials: int, each: int, closed: bool
) -> None:
    rng = np.random.default_rng(2)
    cell = cell_percentile([percentile(rng.integers(1, 10**9, each), 99) for _ in range(trials)])
    assert cell.closed == closed
    assert requests_in_each_trial(99) == 100


@pytest.mark.parametrize("p", [0, 100, -1])
def test_the_ends_are_no_percentiles(p: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 100"):
        percentile(ms(1, 2, 3), p)

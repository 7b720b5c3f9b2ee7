"""The tests and intervals against scipy, against arithmetic, and against their own promise."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import false_discovery_control, permutation_test, ttest_ind, ttest_rel

from embbench.analysis.exact_tests import (
    ALPHA,
    PAIRS,
    beyond_p,
    contrast,
    enough_trials,
    false_discovery,
    interval,
    permutation_p,
    sign_flip_p,
)


def sides(base: int, candidate: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(3, 0.1, base), rng.normal(3.1, 0.2, candidate)


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_welchs_t(seed: int) -> None:
    base, candidate = sides(5, 7, seed)
    found = contrast(base, candidate, paired=False)
    theirs: Any = ttest_ind(candidate, base, equal_var=False)
    assert found.analysis == "groups"
    assert float(beyond_p(found, 0.0)) == pytest.approx(theirs.pvalue)
    ends = theirs.confidence_interval(0.95)
    assert [float(e) for e in interval(found, 0.95)] == pytest.approx([ends.low, ends.high])


@pytest.mark.parametrize("seed", range(5))
def test_pairs_are_students_t_of_the_differences(seed: int) -> None:
    base, candidate = sides(PAIRS, PAIRS, seed)
    found = contrast(base, candidate, paired=True)
    theirs: Any = ttest_rel(candidate, base)
    assert found.analysis == "paired"
    assert float(beyond_p(found, 0.0)) == pytest.approx(theirs.pvalue)
    ends = theirs.confidence_interval(0.95)
    assert [float(e) for e in interval(found, 0.95)] == pytest.approx([ends.low, ends.high])


def test_the_p_value_and_the_interval_never_contradict_each_other() -> None:
    rng = np.random.default_rng(3)
    base, candidate = rng.normal(0, 0.1, (500, 8)), rng.normal(0.15, 0.1, (500, 8))
    for paired in (True, False):
        found = contrast(base, candidate, paired=paired)
        for level in (0.01, 0.05):
            low, high = interval(found, 1 - level)
            clear = (low > 0.02) | (high < -0.02)
            assert (clear == (beyond_p(found, 0.02) <= level)).all()
            assert 0 < clear.sum() < 500


@pytest.mark.parametrize(("base", "candidate"), [(5, 5), (4, 6), (3, 9)])
def test_the_permutation_test_is_scipys_exact_one(base: int, candidate: int) -> None:
    def distance(x: Any, y: Any, axis: int) -> Any:
        return np.abs(np.mean(x, axis=axis) - np.mean(y, axis=axis))

    scipys: Any = permutation_test
    for seed in range(3):
        a, b = sides(base, candidate, seed)
        theirs = scipys((b, a), distance, n_resamples=1000, alternative="greater")
        assert float(permutation_p(a, b)) == pytest.approx(theirs.pvalue)


def test_clean_separation_is_the_least_p_that_trials_allow() -> None:
    low, high = np.arange(5.0), np.arange(5.0) + 10
    assert float(permutation_p(low, high)) == pytest.approx(2 / 252)
    assert float(sign_flip_p(np.arange(1.0, 9))) == pytest.approx(2 / 256)
    assert float(sign_flip_p(np.zeros(8))) == 1.0
    assert float(permutation_p(low, low)) == 1.0


def test_many_trials_are_sampled_and_agree_with_student() -> None:
    rng = np.random.default_rng(5)
    gaps = rng.normal(0.4, 1, (40, 24))
    theirs: Any = ttest_rel(gaps, np.zeros_like(gaps), axis=1)
    assert np.abs(sign_flip_p(gaps) - theirs.pvalue).max() < 0.03
    a, b = rng.normal(0, 1, (40, 15)), rng.normal(0.5, 1, (40, 15))
    groups: Any = ttest_ind(b, a, axis=1)
    assert np.abs(permutation_p(a, b) - groups.pvalue).max() < 0.03
    assert float(permutation_p(np.zeros(15), np.ones(15))) > 0  # a sampled p is never 0


@pytest.mark.parametrize(
    ("base", "candidate", "paired", "enough"),
    [
        (1, 1, False, False),
        (4, 4, False, False),
        (5, 5, False, True),
        (4, 5, False, False),
        (4, 6, False, True),
        (2, 12, False, False),
        (2, 13, False, False),
        (3, 9, False, True),
        (2, 40, False, False),
        (1, 300, False, False),
        (5, 5, True, True),
        (8, 8, True, True),
    ],
)
def test_enough_trials_are_those_that_can_reach_one_percent(
    base: int, candidate: int, paired: bool, enough: bool
) -> None:
    assert enough_trials(base, candidate, paired=paired) == enough
    assert enough <= (2 / math.comb(base + candidate, base) <= ALPHA)


def test_eight_rounds_are_the_fewest_for_pairs() -> None:
    assert 2 / 2**PAIRS <= ALPHA < 2 / 2 ** (PAIRS - 1)
    base, candidate = sides(PAIRS - 1, PAIRS - 1)
    assert contrast(base, candidate, paired=True).analysis == "groups"


def test_what_the_machine_does_to_a_whole_round_cancels_in_pairs() -> None:
    rng = np.random.default_rng(4)
    rounds = np.cumsum(rng.normal(0, 0.3, 8))
    base, candidate = rounds + rng.normal(0, 0.01, 8), rounds + 0.1 + rng.normal(0, 0.01, 8)
    assert float(beyond_p(contrast(base, candidate, paired=True), 0.02)) < 1e-4
    assert float(beyond_p(contrast(base, candidate, paired=False), 0.02)) > 0.5


def test_trials_that_agree_to_the_last_digit_are_no_division_by_zero() -> None:
    same, more = np.zeros(8), np.full(8, 0.1)
    for paired in (True, False):
        assert float(beyond_p(contrast(same, same, paired=paired), 0.02)) == 1.0
        assert float(beyond_p(contrast(same, more, paired=paired), 0.02)) == 0.0


@pytest.mark.parametrize("shape", ["normal", "heavy", "two states", "skewed"])
def test_the_exact_tests_keep_their_promise_whatever_the_shape(shape: str) -> None:
    rng = np.random.default_rng(11)
    size = (4000, 2, 8)
    draw = {
        "normal": lambda: rng.normal(size=size),
        "heavy": lambda: rng.standard_t(1, size),
        "two states": lambda: rng.integers(0, 2, size) + rng.normal(0, 1e-3, size),
        "skewed": lambda: rng.exponential(size=size) ** 3,
    }[shape]()
    base, candidate = draw[:, 0], draw[:, 1]
    for p_values in (
        sign_flip_p(candidate - base),
        permutation_p(base[:, :5], candidate[:, :5]),
    ):
        # 4,000 at 1 %: a share over 1.5 % happens less than once in a thousand
        assert float((p_values <= ALPHA).mean()) <= 0.015


def test_the_correction_is_benjamini_and_hochbergs() -> None:
    p_values = np.array([0.001, 0.009, 0.04, 0.5, 0.012])
    assert false_discovery(p_values) == pytest.approx(
        false_discovery_control(p_values, method="bh")
    )
    by_hand = [0.001 * 5, 0.012 * 5 / 3, 0.04 * 5 / 4, 0.5, 0.012 * 5 / 3]
    assert false_discovery(p_values) == pytest.approx(by_hand)
    assert len(false_discovery(np.array([]))) == 0

"""What a plan promises, held against what `compare` then does."""

import math

import numpy as np
import pytest

from embbench.analysis.percentiles import Percentile, cell_percentile, percentile, requests_needed
from embbench.analysis.power import (
    minimum_detectable_effect,
    outlook,
    trial_sd,
    trials_that_fit,
)
from embbench.analysis.verdicts import MIN_EFFECT, Question, judge


def measured(logs: np.ndarray) -> Percentile:
    rounds = tuple(range(len(logs)))
    return Percentile(50, math.exp(logs.mean()), None, None, True, 400, tuple(np.exp(logs)), rounds)


@pytest.mark.parametrize(("trials", "sd"), [(8, 0.03), (12, 0.08), (6, 0.02)])
def test_the_promised_effect_is_called_in_eight_of_ten(trials: int, sd: float) -> None:
    rng = np.random.default_rng(trials)
    effect = minimum_detectable_effect(trials, math.expm1(sd))
    assert effect is not None
    called = 0
    for _ in range(400):
        base, slow = 17 + sd * rng.normal(size=(2, trials))
        pair = Question(measured(base), measured(slow + math.log1p(effect)), paired=True)
        called += judge([pair])[0].verdict == "slower"
    assert 0.7 <= called / 400 <= 0.9


def test_more_trials_see_less_and_more_comparisons_see_more() -> None:
    by_trials = [minimum_detectable_effect(n) for n in (5, 8, 16, 32)]
    assert None not in by_trials
    assert by_trials == sorted(by_trials, key=lambda e: -(e or 0))
    assert (by_trials[-1] or 0) > MIN_EFFECT
    assert (minimum_detectable_effect(8, comparisons=50) or 0) > (by_trials[1] or 0)
    assert minimum_detectable_effect(4) is None


@pytest.mark.parametrize(("p", "trials"), [(50, 1), (90, 3), (99, 1), (99, 3), (99, 8)])
def test_the_requests_that_are_asked_for_close_the_percentile(p: float, trials: int) -> None:
    rng = np.random.default_rng(0)
    for less in (0, 1):
        each = requests_needed(p, trials) - less
        cell = cell_percentile([percentile(rng.integers(1, 10**9, each), p) for _ in range(trials)])
        assert cell.closed == (less == 0)


def test_the_outlook_names_what_will_be_open_and_what_it_takes() -> None:
    found = outlook(8, 50)
    assert list(found.closed) == [50, 90]
    assert list(found.open) == [(99, 100)]
    assert found.detectable == minimum_detectable_effect(8)
    assert list(outlook(1, 200).open) == [(99, 368)]
    assert outlook(3, 200).detectable is None


def test_the_spread_of_an_earlier_run_is_found_again() -> None:
    rng = np.random.default_rng(3)
    cells = [measured(17 + shift + 0.05 * rng.normal(size=10)) for shift in range(30)]
    assert trial_sd(cells) == pytest.approx(math.expm1(0.05), rel=0.15)
    assert trial_sd([measured(np.array([17.0]))]) is None


@pytest.mark.parametrize(("round_s", "trials"), [(10, 8), (30, 5), (50, 3), (100, 1), (1000, 1)])
def test_as_many_trials_as_fit_into_the_time(round_s: float, trials: int) -> None:
    assert trials_that_fit(round_s, 170) == trials

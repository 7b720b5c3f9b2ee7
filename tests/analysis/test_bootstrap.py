"""Resampled percentiles against plain resampling, and against what blocks are for."""

import math

import numpy as np
import pytest

from embbench.analysis.bootstrap import hierarchical_interval, trial_draws, within_trial_sd


def log_normal(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.rint(20e6 * np.exp(0.2 * rng.standard_normal(n))).astype(np.int64)


@pytest.mark.parametrize("n", [60, 400, 20_000])
def test_draws_of_independent_requests_are_those_of_the_plain_bootstrap(n: int) -> None:
    rng = np.random.default_rng(n)
    values = log_normal(rng, n)
    draws = trial_draws(values, (50, 90))
    plain = np.log([np.percentile(rng.choice(values, n), (50, 90)) for _ in range(400)]).T
    assert draws.shape == (2, 400)
    assert draws.mean(axis=1) == pytest.approx(plain.mean(axis=1), abs=0.15 / math.sqrt(n))
    assert draws.std(axis=1) == pytest.approx(plain.std(axis=1), rel=0.35)


def test_neighbours_that_resemble_each_other_widen_the_draws() -> None:
    rng = np.random.default_rng(1)
    slow = np.repeat(rng.standard_normal(40), 10)  # ten neighbours share a shift
    values = np.rint(20e6 * np.exp(0.2 * slow)).astype(np.int64)
    blocks = within_trial_sd(trial_draws(values, (50,))[0])
    shuffled = within_trial_sd(trial_draws(rng.permutation(values), (50,))[0])
    assert blocks > 2 * shuffled


def test_draws_are_repeatable_and_stay_inside_the_trial() -> None:
    values = log_normal(np.random.default_rng(2), 100)
    draws = trial_draws(values, (1, 50, 99), seed=3)
    assert (draws == trial_draws(values, (1, 50, 99), seed=3)).all()
    assert draws.min() >= math.log(values.min())
    assert draws.max() <= math.log(values.max()) + 1e-12
    assert (np.diff(draws, axis=0) >= 0).all()
    assert (trial_draws(np.full(7, 5), (50,)) == math.log(5)).all()
    with pytest.raises(ValueError, match="without a success"):
        trial_draws(np.array([], np.int64))


def test_the_hierarchical_interval_sees_starts_and_rounds() -> None:
    rng = np.random.default_rng(4)
    machine = 0.3 * rng.standard_normal(12)

    def side(factor: float) -> list[np.ndarray]:
        shifts = machine + math.log(factor)
        return [
            trial_draws(np.rint(log_normal(rng, 200) * np.exp(s)).astype(np.int64), (50,))[0]
            for s in shifts
        ]

    base, slow = side(1.0), side(1.2)
    low, high = hierarchical_interval(base, slow, paired=True)
    assert 1.1 < low < 1.2 < high < 1.3
    wide = hierarchical_interval(base, slow, paired=False)
    assert wide[1] / wide[0] > 1.2 * high / low

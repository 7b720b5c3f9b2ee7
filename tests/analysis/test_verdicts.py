"""Verdicts: what each one needs, on simulated cells whose truth is known."""

import math
from dataclasses import replace

import numpy as np
import pytest

from embbench.analysis.percentiles import Percentile, cell_percentile, percentile
from embbench.analysis.verdicts import (
    MIN_EFFECT,
    Comparison,
    Question,
    compare_cells,
    detectable_log,
    judge,
    min_effects,
    noise_floor,
    relative_to,
)


def trials(
    rng: np.random.Generator,
    count: int,
    factor: float = 1.0,
    *,
    requests: int = 400,
    start_sd: float = 0.02,
    machine: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Log-normal latencies around 20 ms times ``factor``; each trial has a shift of its own."""
    shifts = start_sd * rng.standard_normal(count) + (0 if machine is None else machine)
    noise = 0.1 * rng.standard_normal((count, requests))
    return list(np.rint(20e6 * factor * np.exp(shifts[:, None] + noise)).astype(np.int64))


def cell(sides: list[np.ndarray], p: float = 50) -> Percentile:
    return cell_percentile([percentile(t, p) for t in sides])


def known(value: float | None) -> float:
    assert value is not None
    return value


def verdicts(found: tuple[Comparison, ...]) -> list[str | None]:
    return [f.verdict for f in found]


@pytest.mark.parametrize(("count", "paired"), [(5, False), (8, False), (8, True), (12, True)])
def test_a_large_difference_is_called_by_its_direction(count: int, paired: bool) -> None:
    rng = np.random.default_rng(count)
    base, slow = trials(rng, count), trials(rng, count, 1.3)
    found = compare_cells(base, slow, paired=paired)
    assert verdicts(found) == ["slower"] * 3
    for one in found:
        low, ratio, high = known(one.low), known(one.ratio), known(one.high)
        assert low < 1.3 < high
        assert low < ratio < high
        assert one.analysis == ("paired" if paired else "groups")
    back = compare_cells(slow, base, paired=paired)
    assert verdicts(back) == ["faster"] * 3
    assert [1 / known(b.ratio) for b in back] == pytest.approx([f.ratio for f in found])


def test_the_same_target_twice_makes_no_measurable_difference_and_says_what_would() -> None:
    rng = np.random.default_rng(1)
    for one in compare_cells(trials(rng, 8), trials(rng, 8), paired=True):
        assert one.verdict == "no measurable difference"
        assert MIN_EFFECT < known(one.detectable) < 0.2
        assert f"{100 * known(one.detectable):.2g} %" in one.reason


@pytest.mark.parametrize(("base", "candidate"), [(1, 1), (3, 3), (4, 4), (2, 9)])
def test_too_few_trials_have_a_ratio_but_no_verdict_however_large_it_is(
    base: int, candidate: int
) -> None:
    rng = np.random.default_rng(2)
    for one in compare_cells(trials(rng, base), trials(rng, candidate, 3.0), [50, 90]):
        assert one.verdict == "too few trials"
        assert one.ratio == pytest.approx(3, rel=0.2)
        assert (one.low is None) == (min(base, candidate) < 2)
        assert f"{base} against {candidate}" in one.reason


def test_a_percentile_that_the_sample_cannot_carry_has_no_verdict() -> None:
    rng = np.random.default_rng(3)
    found = compare_cells(
        trials(rng, 8, requests=40), trials(rng, 8, 2.0, requests=40), paired=True
    )
    assert verdicts(found) == ["slower", "slower", None]
    assert found[2].reason == "320 requests in 8 trials cannot carry a p99; 100 in each can"


def test_percentiles_without_samples_have_a_ratio_and_no_verdict() -> None:
    published = Percentile(50, 28.3e6, None, None, closed=False, n=200)
    (found,) = judge([Question(published, replace(published, value_ns=26.9e6), paired=False)])
    assert found.verdict is None
    assert found.ratio == pytest.approx(26.9 / 28.3)
    assert "no samples and no trials" in found.reason


def test_what_may_not_be_compared_is_not() -> None:
    rng = np.random.default_rng(4)
    base, slow = cell(trials(rng, 8)), cell(trials(rng, 8, 2.0))
    (refused,) = judge([Question(base, slow, paired=True, refused="other GPU")])
    assert (refused.verdict, refused.reason, refused.ratio) == ("not comparable", "other GPU", None)
    nothing = cell_percentile([percentile(np.array([], np.int64), 50)])
    (absent,) = judge([Question(base, nothing, paired=True)])
    assert absent.verdict == "not comparable"
    assert absent.reason == "the candidate has no successful request"


def test_a_sure_but_tiny_difference_is_not_worth_a_word() -> None:
    rng = np.random.default_rng(5)
    base = trials(rng, 12, start_sd=0, requests=4000)
    slow = trials(rng, 12, 1.015, start_sd=0, requests=4000)
    (found,) = compare_cells(base, slow, [50], paired=True)
    assert known(found.low) > 1
    assert found.verdict == "no measurable difference"
    (strict,) = compare_cells(base, slow, [50], paired=True, min_effect=0.002)
    assert strict.verdict == "slower"


def test_students_t_alone_is_not_enough() -> None:
    # seven rounds agree, the eighth does not: t is sure of it, the exact test cannot be
    gaps = np.array([0.1, 0.1, 0.11, 0.09, 0.1, 0.1, 0.1, -0.001])

    def side(logs: np.ndarray) -> Percentile:
        values, rounds = tuple(np.exp(17 + logs)), tuple(range(len(logs)))
        return Percentile(50, math.exp(17 + logs.mean()), None, None, True, 800, values, rounds)

    (found,) = judge([Question(side(0 * gaps), side(gaps), paired=True)])
    assert known(found.p_value) < 0.01 < known(found.exact_p)
    assert found.exact_p == pytest.approx(4 / 256)
    assert found.verdict == "no measurable difference"
    assert "leans to slower" in found.reason


def test_drift_of_the_machine_is_no_verdict_and_hides_none() -> None:
    rng = np.random.default_rng(6)
    machine = np.linspace(0, 0.6, 8)
    base = trials(rng, 8, machine=machine, start_sd=0.01)
    same = trials(rng, 8, machine=machine + 0.6 / 16, start_sd=0.01)
    slow = trials(rng, 8, 1.12, machine=machine, start_sd=0.01)
    assert (
        verdicts(compare_cells(base, same, paired=True, min_effect=0.04))
        == ["no measurable difference"] * 3
    )
    assert verdicts(compare_cells(base, slow, paired=True)) == ["slower"] * 3
    assert verdicts(compare_cells(base, slow)) == ["no measurable difference"] * 3


def test_many_comparisons_ask_more_of_each() -> None:
    rng = np.random.default_rng(7)
    quiet = [Question(cell(trials(rng, 8)), cell(trials(rng, 8)), paired=True) for _ in range(60)]
    base = trials(rng, 8, start_sd=0.03)
    edge = Question(cell(base), cell(trials(rng, 8, 1.09, start_sd=0.03)), paired=True)
    (alone,) = judge([edge])
    among = judge([*quiet, edge])[-1]
    assert known(among.p_value) > known(alone.p_value)
    assert known(among.detectable) > known(alone.detectable)
    assert (among.ratio, among.low, among.exact_p) == (alone.ratio, alone.low, alone.exact_p)


def test_pairs_are_matched_by_round_not_by_position() -> None:
    rng = np.random.default_rng(8)
    machine = np.cumsum(rng.normal(0, 0.3, 10))
    a = [percentile(t, 50) for t in trials(rng, 10, machine=machine, start_sd=0.005)]
    b = [percentile(t, 50) for t in trials(rng, 10, 1.1, machine=machine, start_sd=0.005)]
    kept = [9, 8, 0, 1, 2, 3, 4, 5]
    base = cell_percentile([a[i] for i in kept], rounds=kept)
    candidate = cell_percentile(b, rounds=range(10))
    (found,) = judge([Question(base, candidate, paired=True)])
    assert (found.verdict, found.analysis, found.trials) == ("slower", "paired", (8, 8))


def test_two_runs_are_compared_through_the_floor_that_both_hold() -> None:
    rng = np.random.default_rng(9)
    before, after = np.zeros(8), np.full(8, 0.4)  # the machine became half as fast in between
    floor = [cell(trials(rng, 8, machine=m)) for m in (before, after)]
    side = [cell(trials(rng, 8, 1.5, machine=m)) for m in (before, after)]
    (raw,) = judge([Question(side[0], side[1], paired=False)])
    assert raw.verdict == "slower"
    related = [relative_to(s, f) for s, f in zip(side, floor, strict=True)]
    assert related[0].value_ns == pytest.approx(1.5, rel=0.05)
    (found,) = judge([Question(related[0], related[1], paired=False)])
    assert found.verdict == "no measurable difference"
    lost = relative_to(side[0], replace(floor[0], rounds=tuple(range(20, 28))))
    assert (lost.value_ns, lost.closed) == (None, False)


def test_two_runs_without_a_common_floor_must_differ_by_more_than_a_machine_does() -> None:
    rng = np.random.default_rng(12)
    quiet = [cell(trials(rng, 8, f, start_sd=0.005)) for f in (1.0, 1.04, 1.1)]
    moved, slow = (Question(quiet[0], q, paired=False, apart=True) for q in quiet[1:])
    assert verdicts(judge([replace(moved, apart=False)])) == ["slower"]
    (found,) = judge([moved])
    assert (found.verdict, found.min_effect) == ("no measurable difference", 0.05)
    assert verdicts(judge([slow])) == ["slower"]
    restless = [cell(trials(rng, 8, f, start_sd=0.05)) for f in (1.0, 1.2)]
    (unsure,) = judge([Question(restless[0], restless[1], paired=False, apart=True)])
    assert unsure.verdict == "no measurable difference"
    assert 0.1 < unsure.min_effect < 0.25  # three standard deviations of a trial


def test_the_noise_floor_is_the_largest_difference_between_equals() -> None:
    def at(p: float, value: float, *, closed: bool = True) -> Percentile:
        return Percentile(p, value, None, None, closed, 400, (value,), (0,))

    pairs = [
        Question(at(50, 100), at(50, 103), paired=True),
        Question(at(50, 108), at(50, 100), paired=True),
        Question(at(99, 100), at(99, 270, closed=False), paired=True),
    ]
    floor = noise_floor(pairs)
    assert floor == {50: pytest.approx(0.08), 99: pytest.approx(1.7)}
    effects = min_effects(floor)
    assert effects == {50: pytest.approx(0.08), 90: MIN_EFFECT, 99: pytest.approx(1.7)}
    carried = Question(at(99, 100), at(99, 104), paired=True)
    assert noise_floor([*pairs, carried])[99] == pytest.approx(0.04)


def test_what_is_detectable_is_called_in_eight_of_ten() -> None:
    rng = np.random.default_rng(10)
    sd, rounds = 0.03, 10
    effect = detectable_log(sd * math.sqrt(2 / rounds), rounds - 1, math.log1p(MIN_EFFECT))
    called = 0
    for _ in range(400):
        logs = sd * rng.standard_normal((2, rounds)) + np.array([[0.0], [effect]])
        side = [
            Percentile(
                50, math.exp(x.mean()), None, None, True, 400, tuple(np.exp(x)), (*range(10),)
            )
            for x in logs + 17
        ]
        called += judge([Question(side[0], side[1], paired=True)])[0].verdict == "slower"
    assert 0.72 <= called / 400 <= 0.88

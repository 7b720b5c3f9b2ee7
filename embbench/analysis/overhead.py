"""Overhead: how far a target is from the floor, and how much of the way a candidate closes.

In: cell percentiles of a floor, a baseline and a candidate. Out: the figures of the story: ratio to
the floor, overhead in ms and %, and ``gap closed = 1 - (candidate - floor) / (baseline - floor)``.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embbench.analysis.exact_tests import ALPHA, PAIRS, beyond_p, contrast, enough_trials, interval
from embbench.analysis.percentiles import CONFIDENCE, Percentile


@dataclass(frozen=True, slots=True)
class Overhead:
    """A target over the floor in one percentile; the 95 % interval is of the ratio.

    Overhead in percent is 100 * (ratio - 1). Intervals are None with fewer than two trials a side.
    """

    ratio: float
    low: float | None
    high: float | None
    overhead_ns: float


@dataclass(frozen=True, slots=True)
class GapClosed:
    """The share of the baseline's overhead that the candidate takes away: 1 all, 0 none of it.

    ``value`` is None when it is undefined, and ``reason`` says why. The interval is Fieller's (J.
    Royal Stat. Soc. B 16, 1954); it is None when there are too few trials to give one.
    """

    value: float | None
    low: float | None
    high: float | None
    reason: str = ""


def overhead(floor: Percentile, target: Percentile, *, paired: bool) -> Overhead | None:
    """How far ``target`` is above ``floor``; None where either is absent or infinite."""
    if not floor.value_ns or not target.value_ns:
        return None
    if not (math.isfinite(floor.value_ns) and math.isfinite(target.value_ns)):
        return None
    ratio, above = target.value_ns / floor.value_ns, target.value_ns - floor.value_ns
    if min(len(floor.trials_ns), len(target.trials_ns)) < 2:
        return Overhead(ratio, None, None, above)
    logs, together = _logs((floor, target), paired)
    low, high = interval(contrast(logs[0], logs[1], paired=together), CONFIDENCE)
    return Overhead(ratio, math.exp(float(low)), math.exp(float(high)), above)


def gap_closed(
    floor: Percentile, baseline: Percentile, candidate: Percentile, *, paired: bool
) -> GapClosed:
    """What share of the gap between floor and baseline the candidate closes.

    Undefined unless the baseline is measurably slower than the floor: the gap would be noise.
    Without trials (published percentiles) the value is plain arithmetic, and says so.
    """
    sides = (floor, baseline, candidate)
    values = [side.value_ns for side in sides]
    if any(v is None or not math.isfinite(v) for v in values):
        return GapClosed(None, None, None, "a percentile is absent")
    f, b, c = (float(v or 0) for v in values)
    if b <= f:
        return GapClosed(None, None, None, "undefined: the baseline is not slower than the floor")
    value = 1 - (c - f) / (b - f)
    if not all(side.trials_ns for side in sides):
        return GapClosed(value, None, None, "no trials: may be noise altogether")
    if not all(side.closed for side in sides):
        return GapClosed(None, None, None, f"too few requests to carry a p{floor.p:g}")
    logs, together = _logs(sides, paired)
    counts = [len(side) for side in logs]
    if not enough_trials(counts[0], counts[1], paired=together):
        why = "too few trials to tell the baseline from the floor"
        return GapClosed(None, None, None, f"undefined: {why}")
    found = contrast(logs[0], logs[1], paired=together)
    if float(beyond_p(found, 0.0)) > ALPHA or float(found.exact) > ALPHA:
        why = "undefined: baseline and floor do not differ measurably"
        return GapClosed(None, None, None, why)
    ends = _fieller(np.array([f, b, c]), logs, together)
    return GapClosed(value, *ends) if ends else GapClosed(value, None, None, "no finite interval")


def _logs(sides: tuple[Percentile, ...], paired: bool) -> tuple[list[NDArray[np.float64]], bool]:
    """Each side's logarithms; of the common rounds, in their order, where these are enough."""
    by_round = [dict(zip(s.rounds, s.trials_ns, strict=True)) for s in sides]
    common = sorted(set.intersection(*(set(rounds) for rounds in by_round)))
    if paired and len(common) >= PAIRS:
        return [np.log([rounds[i] for i in common]) for rounds in by_round], True
    return [np.log(side.trials_ns) for side in sides], False


def _fieller(
    values: NDArray[np.float64], logs: list[NDArray[np.float64]], paired: bool
) -> tuple[float, float] | None:
    """The shares x for which (baseline - candidate) - x (baseline - floor) may be 0 on average."""
    from scipy.special import stdtrit

    counts = [len(side) for side in logs]
    if paired:
        spread = np.cov(np.array(logs)) / counts[0]
    else:
        spread = np.diag([side.var(ddof=1) / len(side) for side in logs])
    spread = spread * np.outer(values, values)  # from logarithms to nanoseconds
    above, below = np.array([0.0, 1.0, -1.0]), np.array([-1.0, 1.0, 0.0])
    t2 = float(stdtrit(min(counts) - 1, (1 + CONFIDENCE) / 2)) ** 2
    # x^2 a - 2 x b + c <= 0
    a = float((below @ values) ** 2 - t2 * below @ spread @ below)
    b = float((below @ values) * (above @ values) - t2 * above @ spread @ below)
    c = float((above @ values) ** 2 - t2 * above @ spread @ above)
    inside = b * b - a * c
    if a <= 0 or inside < 0:
        return None
    root = math.sqrt(inside)
    return (b - root) / a, (b + root) / a

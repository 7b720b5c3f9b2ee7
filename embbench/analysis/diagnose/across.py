"""Findings of several trials: one out of line, a tail longer than the floor's, restless starts.

In: cell percentiles, with each trial's own. Out: findings of the cell.
"""

import math
from collections.abc import Sequence

import numpy as np

from embbench.analysis.exact_tests import ALPHA, PAIRS, beyond_p, contrast, enough_trials
from embbench.analysis.percentiles import Percentile
from embbench.findings import Finding, Severity

ODD_SIZE = 1.1
TAIL_SIZE, TAIL_UNTESTED = 1.2, 2.0
RESTLESS = 0.05


def odd_trials(median: Percentile, *, target: str, cell: str) -> list[Finding]:
    """Is one trial out of line with the others? Grubbs' test (Technometrics 11, 1969) at 1 %.

    In: the cell's p50. At least 5 trials; at most one finding, on the trial farthest off.
    """
    from scipy.special import stdtr

    logs = np.log(np.maximum(median.trials_ns, 1.0))
    count = len(logs)
    if count < 5:
        return []
    odd = int(np.argmax(np.abs(logs - logs.mean())))
    others = np.delete(logs, odd)
    away = float(logs[odd] - others.mean())
    if abs(away) < math.log(ODD_SIZE):
        return []
    # leaving the trial out and asking how far off a new one may be is Grubbs' test in other words
    spread = float(others.std(ddof=1)) * math.sqrt(1 + 1 / (count - 1))
    p = 2 * count * float(stdtr(count - 2, -abs(away) / spread)) if spread > 0 else 0.0
    if p > ALPHA:
        return []
    number = median.rounds[odd]
    what = (
        f"trial {number} is out of line: p50 {math.expm1(away):+.0%} against the other "
        f"{count - 1} trials"
    )
    do = (
        "look at its log and at what else ran then; it stays in the figures, "
        "which the others' agreement does not excuse"
    )
    return [Finding("odd trial", "warn", what, do, target=target, cell=cell, trial=number)]


def tail_against_floor(
    floor: tuple[Percentile, Percentile],
    target_percentiles: tuple[Percentile, Percentile],
    *,
    paired: bool,
    target: str,
    cell: str,
) -> list[Finding]:
    """Is the tail (p99 / p50) longer than the floor's? In: p50 and p99 of both.

    A warning where the trials show it at 1 %, beyond 20 %; else a remark if it is twice as long,
    which says that it was not tested.
    """
    sides = (*floor, *target_percentiles)
    if not all(s.value_ns and s.closed and math.isfinite(s.value_ns) for s in sides):
        return []
    floor_tail, own_tail = (_tail(*pair) for pair in (floor, target_percentiles))
    common = sorted(floor_tail.keys() & own_tail.keys()) if paired else []
    together = len(common) >= PAIRS
    if together:
        logs = [np.log([tail[i] for i in common]) for tail in (floor_tail, own_tail)]
    else:
        logs = [np.log(list(tail.values())) for tail in (floor_tail, own_tail)]
    apart = math.exp(float(logs[1].mean() - logs[0].mean()))
    if apart < TAIL_SIZE:
        return []
    sure = False
    if enough_trials(len(logs[0]), len(logs[1]), paired=together):
        seen = contrast(logs[0], logs[1], paired=together)
        sure = float(beyond_p(seen, math.log(TAIL_SIZE))) <= ALPHA and float(seen.exact) <= ALPHA
    if not sure and apart < TAIL_UNTESTED:
        return []
    ratios = [math.exp(float(side.mean())) for side in logs]
    what = f"long tail: p99 is {ratios[1]:.2g} times p50, the floor's {ratios[0]:.2g} times"
    if not sure:
        what += " (too few trials, or too uneven, to be sure)"
    do = "look for queues, collectors and copies on the way that the floor does not have"
    severity: Severity = "warn" if sure else "info"
    return [Finding("long tail", severity, what, do, target=target, cell=cell)]


def start_spread(
    percentile: Percentile, within_sd: Sequence[float], *, target: str, cell: str
) -> list[Finding]:
    """Do starts differ by more than their requests explain? Says which kind of effort would help.

    ``within_sd`` is each trial's `bootstrap.within_trial_sd`, as a share. An F-like ratio of the
    variance between trials to that within; a remark when it is over 4 and starts are 5 % apart.
    """
    logs = np.log(np.maximum(percentile.trials_ns, 1.0))
    if len(logs) < 3:
        return []
    between = float(logs.std(ddof=1))
    within = math.sqrt(float(np.mean(np.square(within_sd))))
    if between < RESTLESS or between < 2 * within:
        return []
    what = (
        f"starts differ by {100 * math.expm1(between):.0f} % (one standard deviation of p"
        f"{percentile.p:g}), requests within a start explain {100 * within:.1g} %"
    )
    do = "more trials will tell more, more requests will not; a quieter machine most"
    return [Finding("restless starts", "info", what, do, target=target, cell=cell)]


def _tail(median: Percentile, high: Percentile) -> dict[int, float]:
    """p99 / p50 of each trial, by round."""
    medians = dict(zip(median.rounds, median.trials_ns, strict=True))
    return {
        number: value / medians[number]
        for number, value in zip(high.rounds, high.trials_ns, strict=True)
        if number in medians
    }

"""Power: what a plan will be able to see, said before anything is launched.

In: trials, requests and comparisons of a plan, and how much a trial's percentile moves from start
to start (from an earlier run, or `TRIAL_SD`). Out: the smallest difference that will be called, the
percentiles that will be closed, and how many trials fit into a time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embbench.analysis.exact_tests import ALPHA, PAIRS, enough_trials
from embbench.analysis.percentiles import PERCENTILES, Percentile, requests_needed
from embbench.analysis.verdicts import MIN_EFFECT, detectable_log

TRIAL_SD = 0.03
"""The standard deviation of a trial's percentile, as a share, where nothing is known yet.

A guess for a quiet machine of its own. Shared machines were measured at 0.16 and more.
"""

TRIALS = (PAIRS, 5, 3, 1)
"""Numbers of trials worth planning: exact in pairs; the fewest that allow a verdict; the fewest
that show their spread; one look."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a plan will be able to say; ``detectable`` is None where no verdict will be possible.

    ``detectable`` is the smallest true slowdown, as a share, that is called in 8 of 10 runs.
    ``closed`` are the percentiles that can carry a verdict, ``open`` those that cannot, each with
    the requests a trial that it would take.
    """

    trials: int
    detectable: float | None
    closed: tuple[float, ...]
    open: tuple[tuple[float, int], ...]


def outlook(
    trials: int,
    requests: int,
    *,
    comparisons: int = 1,
    trial_sd: float = TRIAL_SD,
    min_effect: float = MIN_EFFECT,
    ps: Sequence[float] = PERCENTILES,
) -> Outlook:
    """What ``trials`` rounds of ``requests`` each will be able to say."""
    needed = {p: requests_needed(p, trials) for p in ps}
    return Outlook(
        trials,
        minimum_detectable_effect(trials, trial_sd, comparisons=comparisons, min_effect=min_effect),
        tuple(p for p in ps if requests >= needed[p]),
        tuple((p, needed[p]) for p in ps if requests < needed[p]),
    )


def minimum_detectable_effect(
    trials: int,
    trial_sd: float = TRIAL_SD,
    *,
    comparisons: int = 1,
    min_effect: float = MIN_EFFECT,
) -> float | None:
    """The smallest true slowdown, as a share, that is called in 8 of 10 runs.

    None where the trials are too few for any verdict. It is for a difference that stands alone
    among ``comparisons``; if many cells move together, less is enough.
    """
    if not enough_trials(trials, trials, paired=True):
        return None
    freedom = trials - 1 if trials >= PAIRS else 2 * (trials - 1)
    spread = math.log1p(trial_sd) * math.sqrt(2 / trials)
    level = ALPHA / max(1, comparisons)
    return math.expm1(detectable_log(spread, freedom, math.log1p(min_effect), level))


def trial_sd(cells: Sequence[Percentile]) -> float | None:
    """How much trials of one cell moved in an earlier run, as a share; None without two trials.

    The root of the mean variance of the logarithms over the cells.
    """
    spreads = [np.var(np.log(c.trials_ns), ddof=1) for c in cells if len(c.trials_ns) > 1]
    return math.expm1(math.sqrt(float(np.mean(spreads)))) if spreads else None


def trials_that_fit(round_s: float, budget_s: float) -> int:
    """The default number of trials: the most of `TRIALS` whose rounds fit into ``budget_s``."""
    return next((count for count in TRIALS if count * round_s <= budget_s), 1)

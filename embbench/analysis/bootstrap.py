"""Bootstrap: intervals of a ratio from resampled trials, and from resampled blocks within them.

In: the latencies of each trial in the order in which they were sent. Out: a second opinion beside
the interval that `compare` judges by. The hierarchical bootstrap draws whole trials with
replacement (Davison & Hinkley, Bootstrap Methods and their Application, 1997, section 3.8) and,
within each, blocks of neighbouring requests, which are not independent (Kuensch, Annals of
Statistics 17, 1989).

It does not decide: with few trials its intervals are off by the number of trials, and it counts the
noise within a trial twice, once in the block and once in the trial. docs/statistics.md has figures.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embbench.analysis.percentiles import CONFIDENCE, PERCENTILES

Floats = NDArray[np.float64]

DRAWS = 400
_GRID = 1024


def trial_draws(
    latencies_ns: NDArray[np.int64],
    ps: Sequence[float] = PERCENTILES,
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> Floats:
    """Logarithms of each percentile (len(ps), draws) of one trial, its blocks drawn anew.

    ``latencies_ns`` are in the order of time; blocks are sqrt(n) long. Above 1,024 requests values
    are interpolated between 1,024 of the trial's own, so time and memory stay flat.
    """
    n = len(latencies_ns)
    if n == 0:
        raise ValueError("a trial without a success has no percentile to resample")
    ordered = np.sort(latencies_ns)
    grid = ordered[np.unique(np.linspace(0, n - 1, min(n, _GRID)).round().astype(np.int64))]
    blocks = np.array_split(latencies_ns, math.ceil(n / math.sqrt(n)))
    below = np.array([np.searchsorted(np.sort(b), grid, side="right") for b in blocks], np.float32)
    random = np.random.default_rng(seed)
    times = random.multinomial(len(blocks), [1 / len(blocks)] * len(blocks), size=draws)
    counts = (times.astype(np.float32) @ below).astype(np.float64)
    logs = np.empty((len(ps), draws))
    for row, p in enumerate(ps):
        rank = 1 + (counts[:, -1] - 1) * p / 100
        at = (counts < rank[:, None]).sum(axis=1)
        before = np.maximum(at - 1, 0)
        lower = np.take_along_axis(counts, before[:, None], 1)[:, 0]
        upper = np.take_along_axis(counts, at[:, None], 1)[:, 0]
        share = np.where(at > 0, (rank - lower) / np.maximum(upper - lower, 1), 1.0)
        logs[row] = np.log(grid[before] + np.minimum(share, 1.0) * (grid[at] - grid[before]))
    return logs


def within_trial_sd(draws: Floats) -> float:
    """How much a trial's percentile moves by its own requests alone, as a share."""
    return math.expm1(float(draws.std(ddof=1)))


def hierarchical_interval(
    base: Sequence[Floats],
    candidate: Sequence[Floats],
    *,
    paired: bool,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> tuple[float, float]:
    """The percentile interval of the ratio of geometric means, from each trial's draws (draws,).

    With ``paired``, trial i of both sides is of one round, and rounds are drawn whole.
    """
    random = np.random.default_rng(seed)
    draws = 4 * min(len(d) for d in (*base, *candidate))
    chosen = random.integers(len(base), size=(draws, len(base)))
    other = chosen if paired else random.integers(len(candidate), size=(draws, len(candidate)))
    means = []
    for side, trials in ((base, chosen), (candidate, other)):
        table = np.array(side)
        means.append(table[trials, random.integers(table.shape[1], size=trials.shape)].mean(axis=1))
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(means[1] - means[0], [tail, 100 - tail])
    return math.exp(low), math.exp(high)

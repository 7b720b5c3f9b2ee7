"""Stats: what one cell's requests say, as exact percentiles with intervals.

In: the latencies of each trial, as they were read. Out: a `Percentile` for one trial or for a cell
of several trials. Nothing is rounded, bucketed or pooled, and what the sample cannot carry is None.

A percentile of one trial is numpy's linear rule over its successes. Its interval is made of two of
the sample's own values and holds for every continuous distribution (Conover, Practical
Nonparametric Statistics, 3rd ed., 1999, section 3.2; David & Nagaraja, Order Statistics, 3rd ed.,
2003, section 7.1; Hahn & Meeker, Statistical Intervals, 1991, section 5.2). For high percentiles
of small samples no value of the sample is high enough to be its upper end: the interval is open.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

PERCENTILES = (50.0, 90.0, 99.0)
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Percentile:
    """One percentile of one trial, or of a cell of several trials.

    ``value_ns`` is None when nothing succeeded. ``low_ns`` and ``high_ns`` are the ends of the
    interval, None where the sample has no such value (an open interval can lie above the value).
    ``closed`` says that the sample can carry this percentile; if not, print it with a mark and the
    maximum, and draw no conclusion. ``n`` counts the successes. ``trials_ns`` holds each trial's
    own exact percentile, in the order of ``rounds``, the numbers of the rounds they were driven in.
    """

    p: float
    value_ns: float | None
    low_ns: float | None
    high_ns: float | None
    closed: bool
    n: int
    trials_ns: tuple[float, ...] = ()
    rounds: tuple[int, ...] = ()


def linear(ordered: NDArray[np.int64], p: float, failures: int = 0) -> float | None:
    """The ``p``-th percentile of sorted values, by numpy's linear rule; None of nothing.

    ``failures`` more values count as infinitely large.
    """
    n = len(ordered) + failures
    if n == 0:
        return None
    position = (n - 1) * p / 100
    below = math.floor(position)
    share = position - below
    if below >= len(ordered) or (share > 0 and below + 1 >= len(ordered)):
        return math.inf
    low = int(ordered[below])
    # from the nearer end, as numpy does, so that the result is monotonic and never leaves the pair
    if share == 0:
        return float(low)
    high = int(ordered[below + 1])
    return low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share)


@lru_cache(maxsize=4096)
def interval_ranks(n: int, p: float, confidence: float = CONFIDENCE) -> tuple[int, int]:
    """Ranks (from 1) of the two sorted values that bracket the ``p``-th percentile.

    The true percentile lies between them with at least ``confidence``, each side missing at most
    half of the rest. 0 and n + 1 stand for "below" and "above all values": the end is open.
    """
    from scipy.stats import binom

    tail = (1 - confidence) / 2
    return int(binom.ppf(tail, n, p / 100)), int(binom.ppf(1 - tail, n, p / 100)) + 1


@lru_cache(maxsize=64)
def requests_to_close(p: float, confidence: float = CONFIDENCE) -> int:
    """The fewest successes that can carry the ``p``-th percentile: 368 for p99 at 95 %.

    The upper end of the interval is inside the sample when p^n is at most half of what
    ``confidence`` leaves; for percentiles below the median the same holds of the lower end.
    """
    far = max(p, 100 - p) / 100
    return math.ceil(math.log((1 - confidence) / 2) / math.log(far))


def requests_in_each_trial(p: float) -> int:
    """The fewest successes with which a trial has a ``p``-th percentile that is not its maximum."""
    return math.ceil(100 / min(p, 100 - p))


def requests_needed(p: float, trials: int) -> int:
    """The fewest successes a trial with which ``trials`` of them carry the ``p``-th percentile."""
    alone = requests_to_close(p)
    return alone if trials == 1 else max(math.ceil(alone / trials), requests_in_each_trial(p))


def percentile(
    values_ns: NDArray[np.int64],
    p: float,
    *,
    failures: int = 0,
    confidence: float = CONFIDENCE,
    ordered: bool = False,
) -> Percentile:
    """One trial's ``p``-th percentile (0 < p < 100) with its distribution-free interval.

    ``failures`` requests are counted as infinitely slow: an infinite ``value_ns`` says that so many
    failed that this percentile has no finite answer. ``ordered`` says that the values are sorted.
    """
    if not 0 < p < 100:
        raise ValueError(f"a percentile lies between 0 and 100, not at {p:g}")
    values = values_ns if ordered else np.sort(values_ns)
    n = len(values) + failures
    value = linear(values, p, failures)
    if value is None:
        return Percentile(p, None, None, None, closed=False, n=0)
    low_rank, high_rank = interval_ranks(n, p, confidence)

    def end(rank: int) -> float | None:
        if not 1 <= rank <= n:
            return None
        return float(values[rank - 1]) if rank <= len(values) else math.inf

    low, high = end(low_rank), end(high_rank)
    closed = low is not None and high is not None
    return Percentile(p, value, low, high, closed, n, (value,), (0,))


def cell_percentile(
    trials: Sequence[Percentile],
    *,
    rounds: Sequence[int] | None = None,
    confidence: float = CONFIDENCE,
) -> Percentile:
    """What several trials of a cell say together about one percentile.

    The value is the geometric mean of the trials' own percentiles: the trial is the unit, because
    requests of one start resemble each other more than those of another. So the ratio of two cells
    is the ratio that `compare` judges. The interval is Student's, on the logarithms, over the
    trials; one trial keeps its own interval, which knows nothing of the next start. Trials without
    a success are left out. The cell is closed when all its successes together would close one
    sample, and each trial alone has a percentile that is not its maximum.
    """
    numbers = range(len(trials)) if rounds is None else rounds
    known = [
        (t.value_ns, t.n, r) for t, r in zip(trials, numbers, strict=True) if t.value_ns is not None
    ]
    if not trials:
        raise ValueError("a cell has at least one trial")
    p = trials[0].p
    if not known:
        return Percentile(p, None, None, None, closed=False, n=0)
    values, counts, kept = zip(*known, strict=True)
    n = sum(counts)
    if len(trials) == 1:
        only = trials[0]
        return Percentile(
            p, *(only.value_ns, only.low_ns, only.high_ns), only.closed, n, values, kept
        )
    closed = n >= requests_to_close(p, confidence) and min(counts) >= requests_in_each_trial(p)
    if not all(math.isfinite(v) for v in values):
        return Percentile(p, math.inf, None, None, closed, n, values, kept)
    value, low, high = geometric_mean(values, confidence)
    return Percentile(p, value, low, high, closed, n, values, kept)


def geometric_mean(
    values: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float | None, float | None]:
    """The geometric mean and Student's interval on the logarithms; no interval of one value."""
    from scipy.special import stdtrit

    logs = np.log(np.maximum(values, 1.0))  # a latency of 0 ns cannot be; its logarithm neither
    centre = float(logs.mean())
    if len(logs) < 2:
        return math.exp(centre), None, None
    half = float(
        stdtrit(len(logs) - 1, (1 + confidence) / 2) * logs.std(ddof=1) / math.sqrt(len(logs))
    )
    return math.exp(centre), math.exp(centre - half), math.exp(centre + half)

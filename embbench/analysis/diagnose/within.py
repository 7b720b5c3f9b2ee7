"""Findings of one trial: what its requests say when they are looked at in the order of time.

In: the `Samples` of one trial and its load. Out: findings about warm-up, drift, humps and queues.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from embbench.config.plan import ClosedLoop, OpenLoop
from embbench.findings import Finding
from embbench.results.samples import Samples

Floats = NDArray[np.float64]

LEAST = 40
"""Fewer successes than this are too few to tell a course from chance."""

LEVEL = 0.001
BLOCKS = 10
WARMUP_SIZE, DRIFT_SIZE, QUEUE_SIZE, HUMP_SIZE = 1.2, 1.1, 1.5, 1.2
RISING, FALLING = "rising latencies", "falling latencies"
HUMP_SHARE = 0.1
VALLEY = 0.5


def trial_findings(
    samples: Samples,
    load: OpenLoop | ClosedLoop,
    *,
    target: str,
    cell: str,
    trial: int,
) -> list[Finding]:
    """All findings of one trial; warm-up rows and failures are left out."""
    good = samples.measured.ok
    if len(good) < LEAST:
        return []
    course = _course(good)
    found: list[Finding | None] = []
    queue = queue_grew(course, load) if isinstance(load, OpenLoop) else None
    if queue:
        found.append(queue)  # everything else in such a trial follows from it
    else:
        early = warmup_not_over(course)
        rest = course.after(early[1]) if early else course
        moved = drift(rest)
        if early and moved and moved.check == FALLING:
            early, moved = None, drift(course)  # a steady fall is no warm-up
        found += [early[0] if early else None, moved, two_humps(rest)]
    return [replace(f, target=target, cell=cell, trial=trial) for f in found if f is not None]


@dataclass(frozen=True, slots=True)
class Course:
    """Successes in the order of their intended starts: times and latencies in nanoseconds."""

    intended_ns: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]

    @property
    def response_ns(self) -> NDArray[np.int64]:
        """end - intended start."""
        return self.end_ns - self.intended_ns

    def after(self, count: int) -> "Course":
        """Without the first ``count`` requests."""
        return Course(self.intended_ns[count:], self.start_ns[count:], self.end_ns[count:])


def _course(good: Samples) -> Course:
    order = np.argsort(good.rows["intended_start_ns"], kind="stable")
    rows = good.rows[order]
    return Course(rows["intended_start_ns"], rows["start_ns"], rows["end_ns"])


def warmup_not_over(course: Course) -> tuple[Finding, int] | None:
    """Were the first requests slower than the rest? Also how many of them were.

    A scan for a change-point after Pettitt (Applied Statistics 28, 1979): the ranks of the first m
    requests against the rest, for m from 3 up to half of the trial, corrected for the number of m
    and for neighbours that resemble each other.
    """
    from scipy.special import ndtri

    times = course.response_ns
    heads = _heads(len(times))
    scores = _slower_at_first(times, heads)
    best = int(np.argmax(scores))
    m = heads[best]
    head, rest = float(np.median(times[:m])), float(np.median(times[m:]))
    if scores[best] < -ndtri(LEVEL / len(heads)) or head < WARMUP_SIZE * rest:
        return None
    what = (
        f"warm-up was not over: the first {m} of {len(times)} measured requests took "
        f"{_ms(head)} ms, the rest {_ms(rest)} ms"
    )
    do = f"raise the cell's warm-up by {m} or more"
    return Finding("warm-up not over", "warn", what, do), m


def drift(course: Course) -> Finding | None:
    """Did latencies climb or fall steadily? Kendall's rank test on the medians of ten blocks.

    Kendall, Biometrika 30, 1938; Mann, Econometrica 13, 1945. Blocks, because neighbouring requests
    resemble each other.
    """
    medians = _block_medians(course.response_ns)
    if medians is None or _kendall_p(medians) > LEVEL:
        return None
    first, last = float(np.median(medians[:3])), float(np.median(medians[-3:]))
    if max(first, last) < DRIFT_SIZE * min(first, last):
        return None
    check = RISING if last > first else FALLING
    change = 100 * (last / first - 1)
    minutes = (course.intended_ns[-1] - course.intended_ns[0]) / 60e9
    what = f"latencies drifted by {change:+.0f} % within the trial ({minutes:.1f} min)"
    do = (
        "look for heat, clocks, memory growth or another load on the machine; "
        "more and shorter trials, interleaved, bear it better"
    )
    return Finding(check, "warn", what, do)


def two_humps(course: Course) -> Finding | None:
    """Do latencies gather at two values? Counts the modes of a kernel density (Silverman, 1986)."""
    from scipy.ndimage import gaussian_filter1d

    logs = np.log(np.maximum(course.response_ns, 1))
    low, high = np.percentile(logs, [1, 99])
    spread = min(float(logs.std()), float(np.subtract(*np.percentile(logs, [75, 25]))) / 1.34)
    if spread <= 0 or high - low < math.log(HUMP_SIZE):
        return None
    width = 0.9 * spread * len(logs) ** -0.2
    counts, edges = np.histogram(logs, bins=256, range=(low, high))
    grid = (edges[1:] + edges[:-1]) / 2
    steps = width / float(edges[1] - edges[0])
    density = np.asarray(gaussian_filter1d(counts.astype(np.float64), steps, mode="constant"))
    split = _deepest_valley(density)
    if split is None:
        return None
    peaks = [int(np.argmax(density[:split])), split + int(np.argmax(density[split:]))]
    slow_share = float((logs > grid[split]).mean())
    apart = math.exp(float(grid[peaks[1]] - grid[peaks[0]]))
    if not HUMP_SHARE <= slow_share <= 1 - HUMP_SHARE or apart < HUMP_SIZE:
        return None
    at = [math.exp(float(grid[i])) for i in peaks]
    what = (
        f"latencies have two humps, near {_ms(at[0])} ms and {_ms(at[1])} ms; "
        f"{100 * slow_share:.0f} % of the requests are in the slow one"
    )
    do = "find what the slow ones share (batching, cache, core, collector); p50 may sit in a gap"
    return Finding("two humps", "info", what, do)


def queue_grew(course: Course, load: OpenLoop) -> Finding | None:
    """Did the queue grow through an open-loop trial, as it does above capacity?

    Response times then climb for as long as the trial lasts: block medians that climb by Kendall's
    test, by half or more, and more requests in flight in the last tenth than in the first.
    """
    medians = _block_medians(course.response_ns)
    if medians is None or _kendall_p(medians, climbing=True) > LEVEL:
        return None
    first, last = float(medians[:2].mean()), float(medians[-2:].mean())
    if last < QUEUE_SIZE * first:
        return None
    ends = np.sort(course.end_ns)
    sent = np.arange(1, len(ends) + 1)
    in_flight = sent - np.searchsorted(ends, course.intended_ns, side="right")
    tenth = max(1, len(ends) // 10)
    if in_flight[-tenth:].mean() < in_flight[:tenth].mean() + 1:
        return None
    half = course.intended_ns[len(ends) // 2]
    busy = ends[(ends > half) & (ends <= course.intended_ns[-1])]
    kept = (len(busy) - 1) / (busy[-1] - busy[0]) * 1e9 if len(busy) > 2 else math.nan
    keeps_up = f"; it answers {kept:.3g} a second" if math.isfinite(kept) else ""
    what = (
        f"the rate of {load.rate_rps:g}/s is above capacity: response times climbed from "
        f"{_ms(first)} to {_ms(last)} ms through the trial{keeps_up}"
    )
    limit = f"below {kept:.3g}/s" if math.isfinite(kept) else "it"
    do = f"lower the rate {limit}; these latencies grow with the length of the trial"
    return Finding("queue grew", "warn", what, do)


def _heads(n: int) -> list[int]:
    """Numbers of first requests to try: 3, and then each half as many again, up to half of all."""
    heads, m = [], 3.0
    while m <= n / 2:
        heads.append(round(m))
        m *= 1.5
    return heads


def _slower_at_first(times: NDArray[np.int64], heads: list[int]) -> list[float]:
    """How many standard deviations the first m rank above the rest, neighbours allowed for."""
    from scipy.special import gammaln, ndtri
    from scipy.stats import rankdata

    n = len(times)
    ranks = np.asarray(rankdata(times), np.float64)
    sums, least = np.cumsum(ranks), np.minimum.accumulate(ranks)
    scores = []
    for m in heads:
        if m <= 8:  # all of them among the highest: exact, where the rank sum is not yet normal
            top = n - least[m - 1] + 1
            ways = gammaln(top + 1) - gammaln(top - m + 1) - gammaln(n + 1) + gammaln(n - m + 1)
            z = -float(ndtri(math.exp(float(ways))))
        else:
            z = float(sums[m - 1] - m * (n + 1) / 2) / math.sqrt(m * (n - m) * (n + 1) / 12)
        scores.append(z / _widening(ranks, m) if z > 0 else z)
    return scores


def _widening(ranks: Floats, m: int) -> float:
    """By how much neighbours that resemble each other widen a mean: AR(1) around both means."""
    around = np.concatenate([ranks[:m] - ranks[:m].mean(), ranks[m:] - ranks[m:].mean()])
    power = float(around @ around)
    r = float(around[1:] @ around[:-1]) / power if power > 0 else 0.0
    r = min(0.98, max(0.0, r) + 2 / len(ranks))  # small samples underrate it
    return math.sqrt((1 + r) / (1 - r))


def _block_medians(times: NDArray[np.int64]) -> Floats | None:
    if len(times) < LEAST:
        return None
    return np.array([np.median(block) for block in np.array_split(times, BLOCKS)])


def _kendall_p(medians: Floats, *, climbing: bool = False) -> float:
    from scipy.stats import kendalltau

    order = np.arange(len(medians))
    found = kendalltau(order, medians, alternative="greater" if climbing else "two-sided")
    return 1.0 if math.isnan(found.pvalue) else float(found.pvalue)


def _deepest_valley(density: Floats) -> int | None:
    """The grid point of the deepest valley between two peaks, if it is deep enough."""
    left = np.maximum.accumulate(density)
    right = np.maximum.accumulate(density[::-1])[::-1]
    depth = density / np.maximum(np.minimum(left, right), 1e-9)
    deepest = int(np.argmin(depth))
    return deepest if depth[deepest] <= VALLEY else None


def _ms(value_ns: float) -> str:
    return f"{value_ns / 1e6:.3g}"

"""Noise of known truth: latencies of two sides as servers on a restless machine would give them.

Each shape fills an array (comparisons, sides, trials, requests) of nanoseconds around 20 ms, in the
order in which a balanced conductor drives them: in every round both sides once, by turns first.
"""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

Floats = NDArray[np.float64]
Size = tuple[int, int, int, int]
RECORDED = Path(__file__).parents[2] / "tests/data/latencies/vllm_cpu_aa.csv"


def log_normal(random: np.random.Generator, size: Size) -> Floats:
    """Independent requests, 20 % apart."""
    return 0.2 * random.standard_normal(size)


def heavy_tail(random: np.random.Generator, size: Size) -> Floats:
    """3 of 100 requests have a Pareto tail without a mean of its square."""
    body = 0.1 * random.standard_normal(size)
    return np.where(random.random(size) < 0.03, np.log1p(random.pareto(1.5, size)), body)


def bimodal(random: np.random.Generator, size: Size) -> Floats:
    """3 of 10 requests take 1.65 times as long, as on a cache miss."""
    return 0.05 * random.standard_normal(size) + 0.5 * (random.random(size) < 0.3)


def autocorrelated(random: np.random.Generator, size: Size) -> Floats:
    """Neighbours resemble each other: AR(1) with 0.9."""
    steps = 0.2 * np.sqrt(1 - 0.9**2) * random.standard_normal(size)
    return np.asarray(lfilter([1.0], [1.0, -0.9], steps, axis=-1))


def drifting(random: np.random.Generator, size: Size) -> Floats:
    """The machine becomes up to 30 % faster or slower from the first round to the last."""
    total = random.uniform(-0.3, 0.3, (size[0], 1, 1, 1))
    when = _order(size)[None, :, :, None] + np.arange(size[3]) / size[3]
    noise = 0.1 * random.standard_normal(size)
    return noise + _starts(random, size, 0.03) + total * when / (2 * size[2])


def start_to_start(random: np.random.Generator, size: Size) -> Floats:
    """Each start has a speed of its own, 3 % apart: a quiet machine."""
    return 0.1 * random.standard_normal(size) + _starts(random, size, 0.03)


def restless_starts(random: np.random.Generator, size: Size) -> Floats:
    """Starts are 16 % apart, as eight recorded starts of one real server were."""
    return 0.1 * random.standard_normal(size) + _starts(random, size, 0.16)


def two_states(random: np.random.Generator, size: Size) -> Floats:
    """A start is either good or 20 % slower, such as on the other NUMA node."""
    slow = 0.2 * (random.random((*size[:3], 1)) < 0.5)
    return 0.05 * random.standard_normal(size) + slow + _starts(random, size, 0.01)


def wandering(random: np.random.Generator, size: Size) -> Floats:
    """Minute-to-minute shifts: a random walk of 8 % a trial, that both sides meet."""
    walk = np.cumsum(0.08 * random.standard_normal((size[0], 2 * size[2])), axis=1)
    here = walk[:, _order(size)][..., None]
    return 0.1 * random.standard_normal(size) + here + _starts(random, size, 0.02)


def recorded(random: np.random.Generator, size: Size) -> Floats:
    """Starts drawn from eight recorded ones of a real server, their requests in blocks of 20."""
    starts = np.log(np.array([s[:300] for s in recorded_starts(1)]) / 20e6)
    which = random.integers(len(starts), size=size[:3])
    blocks = -(-size[3] // 20)
    begin = random.integers(starts.shape[1] - 20, size=(*size[:3], blocks, 1))
    at = (begin + np.arange(20)).reshape(*size[:3], -1)[..., : size[3]]
    return np.asarray(starts[which[..., None], at])


SHAPES: dict[str, Callable[[np.random.Generator, Size], Floats]] = {
    "log-normal": log_normal,
    "heavy tail": heavy_tail,
    "bimodal": bimodal,
    "autocorrelated": autocorrelated,
    "drifting machine": drifting,
    "starts 3 % apart": start_to_start,
    "starts 16 % apart": restless_starts,
    "starts of two kinds": two_states,
    "wandering machine": wandering,
    "recorded, drawn anew": recorded,
}


def latencies_ns(shape: str, size: Size, *, effect: float, seed: int) -> NDArray[np.int64]:
    """``size`` latencies; the second side is slower by the share ``effect``."""
    logs = SHAPES[shape](np.random.default_rng(seed), size)
    logs[:, 1] += np.log1p(effect)
    return np.rint(20e6 * np.exp(logs)).astype(np.int64)


def recorded_starts(batch: int) -> list[NDArray[np.int64]]:
    """Service times of each of the eight recorded starts, in the order of time."""
    with RECORDED.open() as file:
        rows = [r for r in csv.DictReader(file) if int(r["batch"]) == batch]
    count = 1 + max(int(r["launch"]) for r in rows)
    return [
        np.array([int(r["service_ns"]) for r in rows if int(r["launch"]) == launch])
        for launch in range(count)
    ]


def _order(size: Size) -> NDArray[np.int64]:
    """The position in time (sides, trials) of each trial: AB, BA, AB, ..."""
    rounds = np.arange(size[2])
    return np.array([2 * rounds + rounds % 2, 2 * rounds + 1 - rounds % 2])


def _starts(random: np.random.Generator, size: Size, sd: float) -> Floats:
    return sd * random.standard_normal((*size[:3], 1))

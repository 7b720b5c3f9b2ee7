"""Schedules: when each request of an open loop is to leave.

In: a rate and a kind of arrivals, or a file of offsets. Out: absolute offsets from the trial's
origin in ns, the first 0, never decreasing; the same seed gives the same schedule.
"""

from pathlib import Path
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from embbench.config.plan import OpenLoop
from embbench.errors import ConfigError


def intended_offsets_ns(load: OpenLoop, count: int, seed: int) -> NDArray[np.int64]:
    """int64 ``[count]``. Seed 0 is a seed. Raises `ConfigError` for a rate or trace of no use."""
    match load.arrival:
        case "constant":
            # From the index, not by summing gaps: the millionth request is as exact as the first.
            offsets_ns = np.arange(count) * (1e9 / _rate(load))
        case "poisson":
            gaps_s = np.random.default_rng(seed).exponential(1.0 / _rate(load), count)
            first_s = float(gaps_s[0]) if count else 0.0
            offsets_ns = np.cumsum(gaps_s, out=gaps_s)  # in place: schedules can be long
            offsets_ns -= first_s
            offsets_ns *= 1e9
        case "trace":
            if load.trace is None:
                raise ConfigError("arrival 'trace' needs a file of offsets: set 'trace'")
            return read_trace_ns(Path(load.trace), count)
        case _:
            assert_never(load.arrival)
    return _whole(offsets_ns)


def _whole(offsets_ns: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    whole: NDArray[np.int64] = np.rint(offsets_ns, out=offsets_ns).astype(np.int64)
    return whole


def _rate(load: OpenLoop) -> float:
    if not 0 < load.rate_rps < 1e9:
        raise ConfigError(f"rate {load.rate_rps:g}: must be a positive number of requests a second")
    return load.rate_rps


def read_trace_ns(path: Path, count: int) -> NDArray[np.int64]:
    """The first ``count`` offsets of a trace: one number of seconds a line, ``#`` for comments.

    Offsets are shifted so that the first is 0. Raises `ConfigError` if a line is no number, if
    offsets decrease, or if there are too few.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: cannot read this trace of offsets ({exc})") from exc
    seconds: list[float] = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            second = float(text)
        except ValueError:
            second = np.nan
        if not np.isfinite(second):
            raise ConfigError(f"{path}:{number}: {text!r} is not an offset in seconds")
        if seconds and second < seconds[-1]:
            raise ConfigError(
                f"{path}:{number}: {text} comes before the line above; sort the trace"
            )
        seconds.append(second)
    if len(seconds) < count:
        raise ConfigError(
            f"{path}: {len(seconds)} offsets for {count} requests; ask for fewer requests"
        )
    offsets_s = np.asarray(seconds[:count], np.float64)
    return _whole((offsets_s - offsets_s[:1]) * 1e9)

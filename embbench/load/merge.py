"""Shards back into one trial.

In: each load process's raw rows and its own words. Out: a `TrialResult` in order of phase and
seq, exactly as if one process had driven it; the raw files are removed.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embbench.bodies import KEPT, KeptBodies
from embbench.errors import LoadError
from embbench.load.client import ClientName
from embbench.load.job import LoadHealth, ShardJob, ShardResult, TrialJob, TrialResult
from embbench.plan import OpenLoop
from embbench.samples import MEASURED, RECORD, Samples

_ROWS_A_READ = 65_536


def _pieces(path: Path, dtype: np.dtype[np.void]) -> Iterator[NDArray[np.void]]:
    with path.open("rb") as file:
        while len(piece := np.fromfile(file, dtype, _ROWS_A_READ)):
            yield piece


def merge_rows(
    files: Sequence[tuple[Path, tuple[str, ...]]], warmup: int, measured: int
) -> Samples:
    """Rows of all shards, warm-up first, each at the place that its seq gives it.

    Raises `LoadError` unless every request is there once.
    """
    rows = np.zeros(warmup + measured, RECORD)
    seen = np.zeros(len(rows), np.uint8)
    names: dict[str, int] = {}
    for path, error_names in files:
        codes = [names.setdefault(name, len(names)) for name in error_names]
        recode = np.asarray([*codes, -1], np.int16)  # the last one is what -1 picks
        for piece in _pieces(path, RECORD):
            piece["error"] = recode[piece["error"]]
            at = piece["seq"] + np.where(piece["phase"] == MEASURED, warmup, 0)
            rows[at] = piece
            np.add.at(seen, at, 1)
    if not (seen == 1).all():
        missing, twice = int((seen == 0).sum()), int((seen > 1).sum())
        raise LoadError(f"samples are not whole: {missing} missing, {twice} recorded twice")
    return Samples(rows, tuple(names))


def in_flight_max(start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> int:
    """The most requests between start and end at one moment; one that ends as another starts
    makes room for it."""
    if not len(start_ns):
        return 0
    starts, ends = np.sort(start_ns), np.sort(end_ns)
    over = np.searchsorted(ends, starts, "right")
    return int((np.arange(1, len(starts) + 1) - over).max())


def _kept_index(
    shards: Sequence[ShardJob], results: Sequence[ShardResult]
) -> tuple[NDArray[np.void], tuple[str, ...]]:
    types: dict[str, int] = {}
    indices = []
    for shard, result in zip(shards, results, strict=True):
        codes = [types.setdefault(kind, len(types)) for kind in result.content_types]
        index = np.fromfile(shard.kept, KEPT)
        index["content_type"] = np.asarray([*codes, -1], np.int16)[index["content_type"]]
        indices.append(index)
    return np.concatenate(indices), tuple(types)


def _rate(count: int, span_ns: int) -> float:
    return count * 1e9 / span_ns if span_ns > 0 else 0.0


def _health(
    job: TrialJob,
    samples: Samples,
    results: Sequence[ShardResult],
    origin_ns: int,
    client: ClientName,
) -> LoadHealth:
    rows = samples.rows[samples.rows["phase"] == MEASURED]
    start_ns, end_ns = rows["start_ns"], rows["end_ns"]
    last_ns = int(end_ns.max()) if len(rows) else origin_ns
    planned_rps: float | None = None
    lag_ns = np.zeros(1, np.int64)
    if isinstance(job.load, OpenLoop):
        if len(rows):
            lag_ns = start_ns - rows["intended_start_ns"]
            intended_ns = rows["intended_start_ns"]
            planned_rps = _rate(len(rows) - 1, int(intended_ns.max() - intended_ns.min()))
        achieved_rps = _rate(len(rows) - 1, int(np.ptp(start_ns)) if len(rows) else 0)
    else:
        origin_ns = int(start_ns.min()) if len(rows) else origin_ns
        ok = int((rows["error"] < 0).sum())
        achieved_rps = _rate(ok, last_ns - origin_ns)
    p50, p99 = np.percentile(lag_ns, (50, 99))
    return LoadHealth(
        origin_ns=origin_ns,
        wall_s=(last_ns - origin_ns) / 1e9,
        planned_rps=planned_rps,
        achieved_rps=achieved_rps,
        in_flight_max=in_flight_max(start_ns, end_ns),
        send_lag_p50_ns=int(p50),
        send_lag_p99_ns=int(p99),
        send_lag_max_ns=int(lag_ns.max()),
        stalls=tuple(
            sorted(stall for result in results for stall in result.stalls if stall[0] >= origin_ns)
        ),
        client_cpu_s=tuple(result.cpu_s for result in results),
        client_rss_bytes=tuple(result.rss_bytes for result in results),
        burst_in_statistics=sum(result.burst_in_statistics for result in results),
        client=client,
    )


def merge_trial(
    job: TrialJob,
    shards: Sequence[ShardJob],
    results: Sequence[ShardResult],
    arenas: Sequence[tuple[int, str]],
    origin_ns: int,
    client: ClientName,
) -> TrialResult:
    """Everything of one trial; ``arenas`` pass into the result's `KeptBodies`."""
    files = [(s.rows, r.error_names) for s, r in zip(shards, results, strict=True)]
    warmup = len(job.warmup_bodies) if job.warmup_bodies is not None else 0
    samples = merge_rows(files, warmup, len(job.bodies))
    health = _health(job, samples, results, origin_ns, client)
    index, types = _kept_index(shards, results)
    for shard in shards:
        shard.rows.unlink()
        shard.kept.unlink()
    kept = KeptBodies(
        [path for _, path in arenas],
        index,
        types,
        sum(result.unkept for result in results),
        [fd for fd, _ in arenas],
    )
    return TrialResult(samples, kept, health)

"""Shards back into one trial.

In: each load process's raw rows and its own words. Out: a `TrialResult` in order of phase and
seq, exactly as if one process had driven it; the raw files are removed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embbench.bodies import KEPT, KeptBodies
from embbench.errors import LoadError
from embbench.load.client import ClientName
from embbench.load.job import LoadHealth, ShardJob, ShardResult, TrialJob, TrialResult
from embbench.load.recorder import RAW
from embbench.plan import OpenLoop
from embbench.samples import GZIP, MEASURED, RECORD, Samples

_ROWS_A_READ = 65_536


@dataclass(frozen=True, slots=True)
class RawFile:
    """One shard's rows, and what their numbers mean."""

    path: Path
    error_names: tuple[str, ...]
    content_types: tuple[str, ...] = ()

    def pieces(self) -> Iterator[NDArray[np.void]]:
        """The rows, some at a time; a last row that is not whole is left out."""
        with self.path.open("rb") as file:
            while len(piece := np.fromfile(file, RAW, _ROWS_A_READ)):
                yield piece


def _codes(names: Sequence[str], known: dict[str, int]) -> NDArray[np.int16]:
    """From a shard's numbers to those of the trial; -1 picks the last, which is -1."""
    return np.asarray([*(known.setdefault(name, len(known)) for name in names), -1], np.int16)


def merge_rows(
    files: Sequence[RawFile], warmup: int, measured: int
) -> tuple[Samples, NDArray[np.void], tuple[str, ...]]:
    """Rows of all shards, warm-up first, each at the place that its seq gives it; the index of
    the kept bodies, and their content types.

    Raises `LoadError` unless every request is there once.
    """
    rows = np.zeros(warmup + measured, RECORD)
    seen = np.zeros(len(rows), np.uint8)
    errors: dict[str, int] = {}
    types: dict[str, int] = {}
    index = [np.empty(0, KEPT)]
    for shard, file in enumerate(files):
        error_codes = _codes(file.error_names, errors)
        type_codes = _codes(file.content_types, types)
        for piece in file.pieces():
            record = piece["record"]
            record["error"] = error_codes[record["error"]]
            at = record["seq"] + np.where(record["phase"] == MEASURED, warmup, 0)
            rows[at] = record
            np.add.at(seen, at, 1)
            index.append(_kept_index(piece[piece["kept_at"] >= 0], shard, type_codes))
    if not (seen == 1).all():
        missing, twice = int((seen == 0).sum()), int((seen > 1).sum())
        raise LoadError(f"samples are not whole: {missing} missing, {twice} recorded twice")
    return Samples(rows, tuple(errors)), np.concatenate(index), tuple(types)


def _kept_index(
    piece: NDArray[np.void], shard: int, type_codes: NDArray[np.int16]
) -> NDArray[np.void]:
    record = piece["record"]
    index = np.zeros(len(piece), KEPT)
    for name in ("seq", "status", "phase"):
        index[name] = record[name]
    index["offset"] = piece["kept_at"]
    index["length"] = record["response_bytes"]
    index["shard"] = shard
    index["content_type"] = type_codes[piece["content_type"]]
    index["gzip"] = (record["flags"] & GZIP) > 0
    return index


def salvage_rows(work_dir: Path) -> Samples:
    """What a trial that was cut short left in its ``work_dir``: rows in order of phase and seq."""
    parts = [np.empty(0, RECORD)]
    errors: dict[str, int] = {}
    for path in sorted(work_dir.glob("shard-*.rows")):
        names = path.with_suffix(".errors")
        told = names.read_text().split() if names.exists() else []
        codes = _codes(told, errors)
        for piece in RawFile(path, ()).pieces():
            record = piece["record"].copy()
            record["error"] = codes[record["error"]]
            parts.append(record)
    rows = np.concatenate(parts)
    return Samples(rows[np.lexsort((rows["seq"], rows["phase"]))], tuple(errors))


def in_flight_max(start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> int:
    """The most requests between start and end at one moment; one that ends as another starts
    makes room for it."""
    if not len(start_ns):
        return 0
    starts, ends = np.sort(start_ns), np.sort(end_ns)
    over = np.searchsorted(ends, starts, "right")
    return int((np.arange(1, len(starts) + 1) - over).max())


def _rate(count: int, span_ns: int) -> float:
    return count * 1e9 / span_ns if span_ns > 0 else 0.0


def _health(
    job: TrialJob,
    samples: Samples,
    results: Sequence[ShardResult],
    origin_ns: int,
    client: ClientName,
) -> LoadHealth:
    rows = samples.rows[len(samples) - len(job.bodies) :]  # a view: warm-up comes first
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
    files = [
        RawFile(shard.rows, result.error_names, result.content_types)
        for shard, result in zip(shards, results, strict=True)
    ]
    warmup = len(job.warmup_bodies) if job.warmup_bodies is not None else 0
    samples, index, types = merge_rows(files, warmup, len(job.bodies))
    health = _health(job, samples, results, origin_ns, client)
    for file in files:
        file.path.unlink()
        file.path.with_suffix(".errors").unlink()
    kept = KeptBodies(
        [path for _, path in arenas],
        index,
        types,
        sum(result.unkept for result in results),
        [fd for fd, _ in arenas],
    )
    return TrialResult(samples, kept, health)

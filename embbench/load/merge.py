"""Shards back into one trial.

In: each load process's raw rows and its own words. Out: a `TrialResult` in order of phase and
seq, exactly as if one process had driven it; the raw files are removed. The merged rows lie on
disk (`ondisk`), and are looked at some at a time: what takes memory here is two times a request,
16 bytes, while figures that need them all in order are worked out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embbench.config.plan import OpenLoop
from embbench.errors import LoadError
from embbench.load.client import ClientName
from embbench.load.job import LoadHealth, ShardJob, ShardResult, TrialJob, TrialResult
from embbench.load.kept_bodies import KEPT, KeptBodies
from embbench.load.recorder import RAW
from embbench.results.ondisk import let_go, rows_on_disk
from embbench.results.samples import GZIP, MEASURED, RECORD, Samples, joined

_ROWS_A_READ = 16_384


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
    files: Sequence[RawFile], warmup: int, measured: int, folder: Path
) -> tuple[Samples, NDArray[np.void], tuple[str, ...]]:
    """Rows of all shards, warm-up first, each at the place that its seq gives it; the index of
    the kept bodies, and their content types. The rows lie in ``folder``, without a name.

    Raises `LoadError` unless every request is there once.
    """
    rows = _room(folder, warmup + measured)
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
            let_go(rows)
            np.add.at(seen, at, 1)
            index.append(_kept_index(piece[piece["kept_at"] >= 0], shard, type_codes))
    if not (seen == 1).all():
        missing, twice = int((seen == 0).sum()), int((seen > 1).sum())
        raise LoadError(f"samples are not whole: {missing} missing, {twice} recorded twice")
    return Samples(rows, tuple(errors)), np.concatenate(index), tuple(types)


def _room(folder: Path, count: int) -> NDArray[np.void]:
    try:
        return rows_on_disk(folder, count, RECORD)
    except OSError as exc:
        raise LoadError(f"{folder}: no room for {count} samples ({exc.strerror})") from exc


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
    errors: dict[str, int] = {}
    files = []
    for path in sorted(work_dir.glob("shard-*.rows")):
        names = path.with_suffix(".errors")
        told = names.read_text().split() if names.exists() else []
        files.append((RawFile(path, ()), _codes(told, errors)))
    keys = [_order_keys(piece["record"]) for file, _ in files for piece in file.pieces()]
    order = np.argsort(np.concatenate([np.empty(0, np.int64), *keys]), kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    rows = _room(work_dir, len(order))
    done = 0
    for file, codes in files:
        for piece in file.pieces():
            record = piece["record"]
            record["error"] = codes[record["error"]]
            rows[place[done : done + len(piece)]] = record
            let_go(rows)
            done += len(piece)
    return Samples(rows, tuple(errors))


def _order_keys(record: NDArray[np.void]) -> NDArray[np.int64]:
    """Numbers that are in order where phase, and then seq, are."""
    keys: NDArray[np.int64] = record["phase"].astype(np.int64) << 48 | record["seq"]
    return keys


def in_flight_max(start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> int:
    """The most requests between start and end at one moment; one that ends as another starts
    makes room for it. Both arrays are sorted where they are."""
    start_ns.sort()
    end_ns.sort()
    most = 0
    for at in range(0, len(start_ns), _ROWS_A_READ):
        starts = start_ns[at : at + _ROWS_A_READ]
        begun = np.arange(at + 1, at + 1 + len(starts))
        most = max(most, int((begun - np.searchsorted(end_ns, starts, "right")).max()))
    return most


def _rate(count: int, span_ns: int) -> float:
    return count * 1e9 / span_ns if span_ns > 0 else 0.0


def _health(
    job: TrialJob,
    samples: Samples,
    results: Sequence[ShardResult],
    origin_ns: int,
    client: ClientName,
) -> LoadHealth:
    count = len(job.bodies)
    measured = Samples(samples.rows[len(samples) - count :])  # a view: warm-up comes first
    start_ns = joined((piece.rows["start_ns"] for piece in measured.pieces()), count)
    end_ns = joined((piece.rows["end_ns"] for piece in measured.pieces()), count)
    most = in_flight_max(start_ns, end_ns)  # from here on, both are in order
    last_ns = int(end_ns[-1]) if count else origin_ns
    planned_rps: float | None = None
    if isinstance(job.load, OpenLoop):
        achieved_rps = _rate(count - 1, int(start_ns[-1] - start_ns[0]) if count else 0)
        planned_rps = _planned_rps(measured) if count else None
    else:
        origin_ns = int(start_ns[0]) if count else origin_ns
        ok = sum(int((piece.rows["error"] < 0).sum()) for piece in measured.pieces())
        achieved_rps = _rate(ok, last_ns - origin_ns)
    del start_ns, end_ns
    lag_ns = np.zeros(1, np.int64)
    if isinstance(job.load, OpenLoop) and count:
        lag_ns = joined((piece.send_lag_ns for piece in measured.pieces()), count)
    lag_max_ns = int(lag_ns.max())
    p50, p99 = np.percentile(lag_ns, (50, 99), overwrite_input=True)
    return LoadHealth(
        origin_ns=origin_ns,
        wall_s=(last_ns - origin_ns) / 1e9,
        planned_rps=planned_rps,
        achieved_rps=achieved_rps,
        in_flight_max=most,
        send_lag_p50_ns=int(p50),
        send_lag_p99_ns=int(p99),
        send_lag_max_ns=lag_max_ns,
        stalls=tuple(
            sorted(stall for result in results for stall in result.stalls if stall[0] >= origin_ns)
        ),
        client_cpu_s=tuple(result.cpu_s for result in results),
        client_rss_bytes=tuple(result.rss_bytes for result in results),
        burst_in_statistics=sum(result.burst_in_statistics for result in results),
        client=client,
    )


def _planned_rps(measured: Samples) -> float:
    """Requests a second between the first and the last intended start."""
    ends = [
        (int(intended_ns.min()), int(intended_ns.max()))
        for intended_ns in (piece.rows["intended_start_ns"] for piece in measured.pieces())
    ]
    return _rate(len(measured) - 1, max(last for _, last in ends) - min(first for first, _ in ends))


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
    samples, index, types = merge_rows(files, warmup, len(job.bodies), job.work_dir)
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

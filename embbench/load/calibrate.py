"""The client's own floor: what it takes, and how much it can do, when the server takes no time.

In: load processes as a run uses them, and the points of its matrix. Out: a `Calibration`, driven
against the null server in a process of its own. `limits` turns it into findings.
"""

import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embbench.config.plan import ClosedLoop, Encoding, OpenLoop
from embbench.load.arrivals import intended_offsets_ns
from embbench.load.job import TrialJob, TrialResult
from embbench.load.nullserver import null_server
from embbench.load.processes import LoadProcesses
from embbench.load.request_bodies import BodyFile, BodyFileWriter

_ARENA_BYTES = 256 << 20
_FEWEST, _MOST = 50, 20_000
_PROBE, _WARMUP = 30, 20
_PACING_RPS = 1000.0


@dataclass(frozen=True, slots=True)
class FloorCell:
    """What the client adds to an answer of one size, with so many requests at once."""

    batch: int
    encoding: Encoding
    concurrency: int
    requests: int
    response_bytes: int
    p50_ns: int
    p99_ns: int
    rps: float
    """The ceiling: requests a second, null server and client together."""
    client_cpu_ns: int
    """CPU of all load processes a request."""

    @property
    def bytes_per_s(self) -> float:
        """The ceiling in body bytes."""
        return self.rps * self.response_bytes


@dataclass(frozen=True, slots=True)
class Pacing:
    """How an open loop keeps its schedule when nothing else is in its way."""

    rate_rps: float
    achieved_rps: float
    requests: int
    send_lag_p50_ns: int
    send_lag_p99_ns: int
    send_lag_max_ns: int
    stalls: int
    stall_max_ns: int
    """The longest time that a loop stood still, of those over 1 ms; 0 if there were none."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The floor of one client on one machine, for the points of a run."""

    client: str
    load_processes: int
    dimension: int
    cells: tuple[FloorCell, ...]
    pacing: Pacing

    def to_json(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {**asdict(self), "cells": [asdict(cell) for cell in self.cells]}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> "Calibration":
        """The inverse of `to_json`."""
        cells = tuple(FloorCell(**cell) for cell in raw["cells"])
        return cls(**{**raw, "cells": cells, "pacing": Pacing(**raw["pacing"])})

    def floor(self, batch: int, encoding: Encoding, concurrency: int) -> FloorCell | None:
        """The cell of that batch and encoding with the nearest concurrency that is not larger
        (of the smaller ones, if there is none)."""
        cells = [c for c in self.cells if (c.batch, c.encoding) == (batch, encoding)]
        below = [c for c in cells if c.concurrency <= concurrency]
        if below:
            return max(below, key=lambda c: c.concurrency)
        return min(cells, key=lambda c: c.concurrency, default=None)

    def ceiling(self, batch: int, encoding: Encoding) -> FloorCell | None:
        """The cell of that batch and encoding with the highest rate."""
        cells = [c for c in self.cells if (c.batch, c.encoding) == (batch, encoding)]
        return max(cells, key=lambda c: c.rps, default=None)


async def calibrate(
    load: LoadProcesses,
    points: Iterable[tuple[int, Encoding, int]],
    *,
    dimension: int = 1024,
    isl: int = 80,
    seconds: float = 0.5,
    server_cpus: Sequence[int] | None = None,
) -> Calibration:
    """Drive the null server at each point (batch, encoding, concurrency), then pace 1000/s.

    ``seconds`` is how long each point is driven, roughly; requests are as large as ``isl`` tokens
    an input make them. Raises `LoadError` if a load process or the null server dies.
    """
    cpus = frozenset(server_cpus) if server_cpus is not None else None
    with tempfile.TemporaryDirectory(prefix="embbench-calibrate-") as name:
        async with null_server(dimension, cpus) as base_url:
            driver = _Driver(load, base_url, Path(name), isl)
            cells = [await driver.cell(*point, seconds) for point in dict.fromkeys(points)]
            pacing = await driver.pacing(max(1.0, seconds))
    return Calibration(load.client, load.count, dimension, tuple(cells), pacing)


class _Driver:
    """Trials against the null server."""

    def __init__(self, load: LoadProcesses, base_url: str, folder: Path, isl: int) -> None:
        self._load = load
        self._base_url = base_url
        self._folder = folder
        self._isl = isl

    def _bodies(self, name: str, batch: int, encoding: Encoding, count: int) -> BodyFile:
        path = self._folder / f"{name}.bodies"
        body = {
            "model": "null",
            "input": ["word " * self._isl] * batch,
            "encoding_format": encoding,
        }
        with BodyFileWriter(path) as writer:
            for _ in range(count):
                writer.append(json.dumps(body).encode())
        return BodyFile(path)

    async def _drive(
        self, batch: int, encoding: Encoding, load: OpenLoop | ClosedLoop, count: int
    ) -> TrialResult:
        offsets_ns = intended_offsets_ns(load, count, 0) if isinstance(load, OpenLoop) else None
        warmup = _WARMUP + (load.concurrency if isinstance(load, ClosedLoop) else 0)
        with (
            self._bodies("measured", batch, encoding, count) as bodies,
            self._bodies("warmup", batch, encoding, warmup) as warmup_bodies,
        ):
            job = TrialJob(
                url=f"{self._base_url}/{encoding}/{batch}/v1/embeddings",
                bodies=bodies,
                warmup_bodies=warmup_bodies,
                load=load,
                offsets_ns=offsets_ns,
                arena_bytes=_ARENA_BYTES,
                work_dir=self._folder,
            )
            result = await self._load.drive(job)
        result.kept.close()
        return result

    async def cell(
        self, batch: int, encoding: Encoding, concurrency: int, seconds: float
    ) -> FloorCell:
        load = ClosedLoop(concurrency)
        probe = await self._drive(batch, encoding, load, _PROBE)
        count = int(min(_MOST, max(_FEWEST, probe.health.achieved_rps * seconds)))
        result = await self._drive(batch, encoding, load, count)
        measured = result.samples.measured.ok
        p50_ns, p99_ns = np.percentile(measured.service_time_ns, (50, 99))
        return FloorCell(
            batch=batch,
            encoding=encoding,
            concurrency=concurrency,
            requests=len(measured),
            response_bytes=int(measured.rows["response_bytes"].max()),
            p50_ns=int(p50_ns),
            p99_ns=int(p99_ns),
            rps=result.health.achieved_rps,
            client_cpu_ns=int(sum(result.health.client_cpu_s) * 1e9 / len(measured)),
        )

    async def pacing(self, seconds: float) -> Pacing:
        load = OpenLoop(_PACING_RPS)
        count = int(_PACING_RPS * seconds)
        health = (await self._drive(1, "base64", load, count)).health
        return Pacing(
            rate_rps=_PACING_RPS,
            achieved_rps=health.achieved_rps,
            requests=count,
            send_lag_p50_ns=health.send_lag_p50_ns,
            send_lag_p99_ns=health.send_lag_p99_ns,
            send_lag_max_ns=health.send_lag_max_ns,
            stalls=len(health.stalls),
            stall_max_ns=max((length for _, length in health.stalls), default=0),
        )

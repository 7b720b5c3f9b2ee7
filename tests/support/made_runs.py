"""Run directories of known latencies, written as a sweep writes them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from embbench.findings import Finding
from embbench.report.units import CellName
from embbench.results.rundir import Run, RunWriter, TrialRecord, load_run
from embbench.results.samples import MEASURED, RECORD, WARMUP, Samples

MS = 1_000_000


def samples_of(
    response_ms: Sequence[float], *, lag_ms: float = 0.0, failed: int = 0, gap_ms: float = 100.0
) -> Samples:
    """Requests that take so long from their intended start, then failures, and one slow warm-up."""
    count = len(response_ms) + failed
    rows = np.zeros(count + 1, RECORD)
    rows["phase"] = MEASURED
    rows["seq"][1:] = np.arange(count)
    rows["intended_start_ns"] = (np.arange(count + 1) * gap_ms * MS).astype(np.int64)
    rows["start_ns"] = rows["intended_start_ns"] + int(lag_ms * MS)
    took = np.array([99_999.0, *response_ms, *[0.001] * failed])
    rows["end_ns"] = rows["intended_start_ns"] + np.rint(took * MS).astype(np.int64)
    rows["status"], rows["error"] = 200, -1
    rows["response_bytes"] = 1000
    rows["phase"][0] = WARMUP
    rows["error"][1 + len(response_ms) :] = 0
    return Samples(rows, ("HTTP 503",) if failed else ())


def record_of(target: str, cell: str, index: int, samples: Samples, **more: Any) -> TrialRecord:
    """The line beside the samples."""
    name = CellName.of(cell)
    known: dict[str, Any] = {
        "launch": index,
        "batch": name.batch,
        "isl": name.isl,
        "encoding": name.encoding,
        "load": {},
        "requests": len(samples.measured),
        "started_at": "2026-01-01T00:00:00+00:00",
        "origin_ns": 0,
        "wall_s": 1.0,
        "asked_rps": 10.0 if name.open_loop else None,
        "achieved_rps": 10.0,
        "in_flight_max": 1,
        "send_lag_p50_ns": 500_000,
        "send_lag_p99_ns": 500_000,
        "send_lag_max_ns": 500_000,
        "request_bytes": 400.0 * name.batch,
        "response_bytes": 12_700.0 * name.batch,
        "dimension": 1024,
        "tokens_per_request": float(name.batch * name.isl),
        "verified_share": 1.0,
    }
    return TrialRecord(target=target, cell=cell, index=index, **(known | more))


def write_run(
    root: Path,
    trials: Mapping[tuple[str, str], Sequence[Samples]],
    findings: Sequence[Finding] = (),
    **meta: Any,
) -> Run:
    """A run directory with these trials a cell; targets and cells in the order of the keys."""
    own = {
        "targets": list(dict.fromkeys(target for target, _ in trials)),
        "cells": list(dict.fromkeys(cell for _, cell in trials)),
        "status": "complete",
    }
    own["floor"] = next(iter(own["targets"]), "")
    writer = RunWriter.create(root, "made", own | meta, datetime(2026, 1, 1, tzinfo=UTC))
    for (target, cell), of_cell in trials.items():
        for index, samples in enumerate(of_cell):
            writer.add_trial(record_of(target, cell, index, samples), samples)
    writer.add_findings(findings)
    return load_run(writer.folder)

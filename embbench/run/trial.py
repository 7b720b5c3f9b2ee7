"""One trial: bodies before the clock, load while it runs, checks after it has stopped.

In: a `Trial`, the endpoint that is up, the gate's facts about it. Out: a `TrialOutcome`: samples,
the record beside them, and findings. Nothing is written here but the request bodies, which are
gone when the trial is.
"""

import asyncio
import tempfile
import zlib
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embbench.config.plan import OpenLoop, Trial
from embbench.config.schema import RunConfig
from embbench.findings import Finding
from embbench.inputs import TextSource, request_bodies
from embbench.load.arrivals import intended_offsets_ns
from embbench.load.calibrate import Calibration
from embbench.load.job import TrialJob, TrialResult
from embbench.load.limits import Place, floor_findings, health_findings
from embbench.load.merge import salvage_rows
from embbench.load.processes import LoadProcesses
from embbench.load.request_bodies import BodyFile, BodyFileWriter
from embbench.machine.telemetry import Reading, Sampler, telemetry_findings
from embbench.payload.ask import Asker, known_vectors
from embbench.payload.checks import Expectation
from embbench.payload.gate import GateResult
from embbench.payload.identity import Sketches
from embbench.payload.verify import Verification, keep_mask, verify_trial
from embbench.results.rundir import IN_PROGRESS, RunWriter, TrialRecord
from embbench.results.samples import MEASURED, VERIFIED, WARMUP, Samples
from embbench.run.record import (
    Tally,
    counted,
    median_ns,
    partial_record,
    tally,
    trial_record,
)
from embbench.targets.counters import counter_findings, read_counters
from embbench.targets.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class TrialContext:
    """What all trials of a run share."""

    config: RunConfig
    load: LoadProcesses
    pool: ProcessPoolExecutor
    calibration: Calibration | None
    writer: RunWriter


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """What a trial leaves behind."""

    record: TrialRecord
    samples: Samples
    findings: tuple[Finding, ...]
    sketches: Sketches
    readings: tuple[Reading, ...]


async def run_trial(
    trial: Trial,
    launch: int,
    endpoint: Endpoint,
    gate: GateResult,
    source: TextSource,
    context: TrialContext,
) -> TrialOutcome:
    """Drive one trial and verify its answers. Raises `LoadError` if the generator fails."""
    config, work = context.config, trial.work
    expected_bytes = _expected_bytes(gate, trial)
    budget_bytes = config.checks.budget_mib << 20
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    in_progress = tempfile.TemporaryDirectory(prefix=IN_PROGRESS, dir=context.writer.folder)
    with in_progress as folder, ExitStack() as open_:
        warmup, measured = await asyncio.to_thread(
            _write_bodies, Path(folder), trial, source, endpoint.model, config.checks.dimensions
        )
        open_.enter_context(warmup)
        open_.enter_context(measured)
        job = TrialJob(
            url=f"{endpoint.base_url}/embeddings",
            headers=endpoint.headers,
            bodies=measured,
            warmup_bodies=warmup if len(warmup) else None,
            load=work.load,
            offsets_ns=_offsets(trial, config.seed),
            timeout_s=config.generator.timeout_s,
            keep=keep_mask(work.requests, expected_bytes, budget_bytes, config.seed),
            expected_response_bytes=expected_bytes,
            arena_bytes=budget_bytes,
            work_dir=Path(folder),
        )
        before = await read_counters(endpoint)
        async with Sampler(endpoint.trees, context.load.pids) as sampler:
            try:
                result = await context.load.drive(job)
            except asyncio.CancelledError:
                _keep_partial(
                    partial_record(trial, launch, started_at), salvage_rows(Path(folder)), context
                )
                raise
        after = await read_counters(endpoint)
        kept = open_.enter_context(result.kept)
        async with Asker(endpoint, config.generator.timeout_s) as asker:
            known, flaws = await known_vectors(
                asker,
                measured.__getitem__,
                requests=work.requests,
                batch=work.batch,
                encoding=work.encoding,
                dimension=gate.dimension,
                seed=config.seed + trial.index,
                cosine_min=config.checks.cosine_min,
                singles=config.checks.content_texts,
                dimensions=config.checks.dimensions,
            )
        verification = await asyncio.to_thread(
            verify_trial,
            kept,
            _expectation(gate, trial, config),
            target=trial.target,
            cell=work.slug,
            trial=trial.index,
            requests=work.requests,
            samples=result.samples,
            known=known,
            pool=context.pool,
        )
    samples = result.samples
    _mark_verified(samples, verification)
    total = tally(samples)
    return TrialOutcome(
        record=trial_record(
            trial, launch, started_at, result, total, verification, gate, counted(before, after)
        ),
        samples=samples,
        findings=(
            *verification.findings,
            *(replace(f.finding(trial.target), cell=work.slug, trial=trial.index) for f in flaws),
            *_failures(trial, total, config),
            *_client_findings(trial, total, result, context),
            *telemetry_findings(
                sampler.readings, target=trial.target, cell=work.slug, trial=trial.index
            ),
            *counter_findings(
                trial.target,
                before,
                after,
                caching_asked=bool(config.engine_args.get("enable_prefix_caching")),
                sent=work.warmup + work.requests,
                cell=work.slug,
                trial=trial.index,
            ),
        ),
        sketches=verification.sketches,
        readings=tuple(sampler.readings),
    )


def _offsets(trial: Trial, seed: int) -> NDArray[np.int64] | None:
    """The schedule depends on the work and the trial, not on the target."""
    work = trial.work
    if not isinstance(work.load, OpenLoop):
        return None
    own_seed = zlib.crc32(f"{seed}/{work.slug}/{trial.index}".encode())
    return intended_offsets_ns(work.load, work.requests, own_seed)


def _expected_bytes(gate: GateResult, trial: Trial) -> int:
    """The size of an answer, from what the gate saw of one vector; 0 if it saw none."""
    one = gate.float_vector_bytes if trial.work.encoding == "float" else gate.base64_vector_bytes
    return 0 if one is None else int(one * trial.work.batch)


def _write_bodies(
    folder: Path, trial: Trial, source: TextSource, model: str, dimensions: int | None
) -> tuple[BodyFile, BodyFile]:
    """Warm-up and measured request bodies of a trial."""
    files = []
    for phase in (WARMUP, MEASURED):
        path = folder / f"phase-{phase}.bodies"
        with BodyFileWriter(path) as writer:
            for body in request_bodies(source, trial.work, trial.index, phase, model, dimensions):
                writer.append(body)
        files.append(BodyFile(path))
    return files[0], files[1]


def _expectation(gate: GateResult, trial: Trial, config: RunConfig) -> Expectation:
    work, checks = trial.work, config.checks
    return Expectation(
        batch=work.batch,
        isl=work.isl,
        encoding=work.encoding,
        dimension=checks.dimensions or gate.dimension,
        model=gate.model,
        normalised=config.all_targets[trial.target].normalised,
        norm_tolerance=checks.norm_tolerance,
        cosine_min=checks.cosine_min,
    )


def _mark_verified(samples: Samples, verification: Verification) -> None:
    """Set `VERIFIED` on each request whose body was checked; in place, a trial can be large."""
    checked = np.sort(verification.checked[:, 0] << 48 | verification.checked[:, 1])
    for piece in samples.pieces():
        rows = piece.rows
        phase_and_seq = rows["phase"].astype(np.int64) << 48 | rows["seq"]
        place = np.searchsorted(checked, phase_and_seq)
        found = np.append(checked, -1)[place] == phase_and_seq
        rows["flags"][found] |= VERIFIED


def _failures(trial: Trial, total: Tally, config: RunConfig) -> list[Finding]:
    """A server that refuses work looks faster than one that serves it."""
    failed = total.measured - total.ok
    if not failed:
        return []
    share = failed / total.measured
    told = ", ".join(f"{name} {count}" for name, count in total.errors.items())
    fatal = share > config.checks.failed_share_max
    return [
        Finding(
            check="failures",
            severity="fail" if fatal else "warn",
            what=f"{failed} of {total.measured} requests failed ({share:.2%}): {told}",
            do="latencies are of successes only; see the server's log",
            target=trial.target,
            cell=trial.work.slug,
            trial=trial.index,
        )
    ]


def _client_findings(
    trial: Trial, total: Tally, result: TrialResult, context: TrialContext
) -> list[Finding]:
    """Whether the client was the limit."""
    samples, health = result.samples, result.health
    if not total.ok:
        return []
    place = Place(trial.target, trial.work.slug, trial.index)
    limit_ms = context.config.generator.send_lag_p99_limit_ms
    found = health_findings(
        place,
        trial.work.load,
        health,
        response_p50_ns=median_ns(samples, lambda ok: ok.response_time_ns),
        send_lag_p99_limit_ns=None if limit_ms is None else int(limit_ms * 1e6),
        exhausted=total.errors.get("client-exhausted", 0),
        requests=total.measured,
    )
    if context.calibration is not None:
        service_p50_ns = median_ns(samples, lambda ok: ok.service_time_ns)
        rate_rps = total.ok / health.wall_s if health.wall_s else 0.0
        found += floor_findings(
            place,
            trial.work,
            context.calibration,
            p50_ns=service_p50_ns,
            rate_rps=rate_rps,
            in_flight=max(1, round(rate_rps * service_p50_ns / 1e9)),
        )
    return found


def _keep_partial(record: TrialRecord, samples: Samples, context: TrialContext) -> None:
    """What an interrupted trial has measured so far: kept, marked, used for nothing."""
    done = tally(samples).measured
    if done:
        context.writer.add_trial(record, samples)
        what = f"trial {record.index} was interrupted after {done} of {record.requests} requests"
        place = (record.target, record.cell, record.index)
        context.writer.add_findings([Finding("partial", "info", what, "", *place)])

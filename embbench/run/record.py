"""The record beside a trial's samples: what was planned, and what was measured about it.

In: a `Trial` and what came of it. Out: a `TrialRecord`, ready to be written.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from embbench.config.plan import Trial
from embbench.load.job import TrialResult
from embbench.payload.gate import GateResult
from embbench.payload.verify import Verification
from embbench.results.rundir import TrialRecord
from embbench.results.samples import CHUNKED, GZIP, Samples, joined
from embbench.targets.counters import Counters


@dataclass(frozen=True, slots=True)
class Tally:
    """What the measured requests of a trial add up to; bytes and flags are those of successes."""

    measured: int
    ok: int
    errors: dict[str, int]
    """How often each error occurred, most frequent first."""
    request_bytes: int
    response_bytes: int
    flags: int
    """The flags of all of them, joined by or."""


def tally(samples: Samples) -> Tally:
    """Add a trial up, piece by piece."""
    measured = ok = request_bytes = response_bytes = flags = 0
    errors = np.zeros(len(samples.error_names), np.int64)
    for piece in samples.pieces():
        requests = piece.measured
        good, codes = requests.ok.rows, requests.failed.rows["error"]
        measured += len(requests)
        ok += len(good)
        errors += np.bincount(codes, minlength=len(errors))
        request_bytes += int(good["request_bytes"].sum())
        response_bytes += int(good["response_bytes"].sum())
        flags |= int(np.bitwise_or.reduce(good["flags"]))
    named = zip(samples.error_names, errors.tolist(), strict=True)
    most_first = sorted(((name, count) for name, count in named if count), key=lambda e: -e[1])
    return Tally(measured, ok, dict(most_first), request_bytes, response_bytes, flags)


def median_ns(samples: Samples, time: Callable[[Samples], NDArray[np.int64]]) -> float:
    """The median time of the measured successes, of which there must be one."""
    times = joined((time(piece.measured.ok) for piece in samples.pieces()), len(samples))
    return float(np.median(times, overwrite_input=True))


def trial_record(
    trial: Trial,
    launch: int,
    started_at: str,
    result: TrialResult,
    total: Tally,
    verification: Verification,
    gate: GateResult,
    counters: dict[str, float],
) -> TrialRecord:
    """The record of a trial that was driven to its end."""
    health = result.health
    answered = total.ok
    return replace(
        _planned(trial, launch, started_at),
        origin_ns=health.origin_ns,
        wall_s=health.wall_s,
        asked_rps=health.planned_rps,
        achieved_rps=health.achieved_rps,
        in_flight_max=health.in_flight_max,
        send_lag_p50_ns=health.send_lag_p50_ns,
        send_lag_p99_ns=health.send_lag_p99_ns,
        send_lag_max_ns=health.send_lag_max_ns,
        stalls=[list(stall) for stall in health.stalls],
        client_cpu_s=sum(health.client_cpu_s),
        request_bytes=total.request_bytes / answered if answered else None,
        response_bytes=total.response_bytes / answered if answered else None,
        dimension=gate.dimension,
        tokens_per_request=(
            verification.prompt_tokens / verification.verified
            if verification.prompt_tokens is not None and verification.verified
            else None
        ),
        chunked=bool(total.flags & CHUNKED),
        gzip=bool(total.flags & GZIP),
        verified_share=verification.verified / answered if answered else 0.0,
        metrics=counters,
    )


def partial_record(trial: Trial, launch: int, started_at: str) -> TrialRecord:
    """The record of a trial that was interrupted."""
    return replace(_planned(trial, launch, started_at), partial=True)


def _planned(trial: Trial, launch: int, started_at: str) -> TrialRecord:
    work = trial.work
    return TrialRecord(
        target=trial.target,
        cell=work.slug,
        index=trial.index,
        launch=launch,
        batch=work.batch,
        isl=work.isl,
        encoding=work.encoding,
        load={key: value for key, value in asdict(work.load).items() if value is not None},
        requests=work.requests,
        started_at=started_at,
    )


def counted(before: Counters, after: Counters) -> dict[str, float]:
    """How far the server's own counters went on during the load; absent if it does not count."""
    pairs = {
        "prefix_queries": (before.prefix_queries, after.prefix_queries),
        "prefix_hits": (before.prefix_hits, after.prefix_hits),
        "served": (before.served, after.served),
        **{
            f"requests of {worker}": (before.worker_requests.get(worker, 0), count)
            for worker, count in after.worker_requests.items()
        },
    }
    return {name: b - (a or 0) for name, (a, b) in pairs.items() if b is not None}

"""Summary: one trial's samples in figures, and a cell's trials together.

In: the measured `Samples` of a trial. Out: a `TrialSummary`, small enough to keep for every trial,
so that a run of any size is read trial by trial. `cell_summary` needs nothing else.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from embbench.samples import Samples
from embbench.stats import PERCENTILES, Percentile, cell_percentile, linear, percentile

Time = Literal["response", "service"]
"""Which time is a latency: from the intended start (open loop) or from the send."""


@dataclass(frozen=True, slots=True)
class TrialSummary:
    """One trial. Latencies are of successes; ``adjusted`` counts failures as infinitely slow.

    ``adjusted`` is empty when nothing failed. Figures without a success are None. ``sent_rps`` is
    the rate at which requests left, ``answered_rps`` at which successes came back. Bytes are the
    mean of a body.
    """

    round_index: int
    n: int
    failed: int
    errors: dict[str, int]
    min_ns: int | None
    mean_ns: float | None
    max_ns: int | None
    percentiles: tuple[Percentile, ...]
    adjusted: tuple[Percentile, ...]
    send_lag_p50_ns: float | None
    send_lag_p99_ns: float | None
    send_lag_max_ns: int | None
    sent_rps: float | None
    answered_rps: float | None
    request_bytes: float | None
    response_bytes: float | None


@dataclass(frozen=True, slots=True)
class CellSummary:
    """A cell: its trials, and what they say together. ``n`` and ``failed`` are over all trials."""

    trials: tuple[TrialSummary, ...]
    n: int
    failed: int
    errors: dict[str, int]
    min_ns: int | None
    max_ns: int | None
    percentiles: tuple[Percentile, ...]
    adjusted: tuple[Percentile, ...]

    def at(self, p: float) -> Percentile:
        """The cell's percentile ``p``, which must be one of those that were summarised."""
        return next(one for one in self.percentiles if one.p == p)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready values; what is absent is null, what is infinite is the string "inf"."""
        raw: dict[str, Any] = _jsonable(asdict(self))
        return raw


def trial_summary(
    samples: Samples,
    *,
    time: Time,
    round_index: int = 0,
    ps: Sequence[float] = PERCENTILES,
) -> TrialSummary:
    """Summarise one trial; warm-up rows are left out."""
    measured = samples.measured
    good = measured.ok
    latencies = np.sort(good.response_time_ns if time == "response" else good.service_time_ns)
    lag = np.sort(measured.send_lag_ns)
    failed = len(measured) - len(good)
    some = len(latencies) > 0
    return TrialSummary(
        round_index=round_index,
        n=len(latencies),
        failed=failed,
        errors=measured.error_counts(),
        min_ns=int(latencies[0]) if some else None,
        mean_ns=float(latencies.mean()) if some else None,
        max_ns=int(latencies[-1]) if some else None,
        percentiles=tuple(percentile(latencies, p, ordered=True) for p in ps),
        adjusted=tuple(percentile(latencies, p, failures=failed, ordered=True) for p in ps)
        if failed
        else (),
        send_lag_p50_ns=linear(lag, 50),
        send_lag_p99_ns=linear(lag, 99),
        send_lag_max_ns=int(lag[-1]) if len(lag) else None,
        sent_rps=_rate(measured.rows["start_ns"]),
        answered_rps=_answered(measured, good),
        request_bytes=float(measured.rows["request_bytes"].mean()) if len(measured) else None,
        response_bytes=float(good.rows["response_bytes"].mean()) if some else None,
    )


def cell_summary(trials: Sequence[TrialSummary]) -> CellSummary:
    """What the trials of one cell say together; there must be at least one."""
    rounds = [t.round_index for t in trials]
    errors: dict[str, int] = {}
    for trial in trials:
        for name, count in trial.errors.items():
            errors[name] = errors.get(name, 0) + count
    lows = [t.min_ns for t in trials if t.min_ns is not None]
    highs = [t.max_ns for t in trials if t.max_ns is not None]
    failed = sum(t.failed for t in trials)
    # a trial in which nothing failed has the same figures either way
    adjusted = [t.adjusted or t.percentiles for t in trials] if failed else []
    return CellSummary(
        trials=tuple(trials),
        n=sum(t.n for t in trials),
        failed=failed,
        errors=dict(sorted(errors.items(), key=lambda item: -item[1])),
        min_ns=min(lows, default=None),
        max_ns=max(highs, default=None),
        percentiles=_together([t.percentiles for t in trials], rounds),
        adjusted=_together(adjusted, rounds),
    )


def _together(
    trials: Sequence[tuple[Percentile, ...]], rounds: Sequence[int]
) -> tuple[Percentile, ...]:
    return tuple(cell_percentile(same, rounds=rounds) for same in zip(*trials, strict=True))


def _rate(starts_ns: NDArray[np.int64]) -> float | None:
    """Requests a second between the first and the last start; None of fewer than two."""
    if len(starts_ns) < 2 or starts_ns.max() == starts_ns.min():
        return None
    return float((len(starts_ns) - 1) / (starts_ns.max() - starts_ns.min()) * 1e9)


def _answered(measured: Samples, good: Samples) -> float | None:
    if len(good) == 0:
        return None
    first, last = measured.rows["start_ns"].min(), measured.rows["end_ns"].max()
    return float(len(good) / (last - first) * 1e9) if last > first else None


def _jsonable(value: Any) -> Any:
    """``value`` with what JSON cannot hold replaced by what it can."""
    match value:
        case float() if not np.isfinite(value):
            return "inf"
        case dict():
            return {key: _jsonable(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_jsonable(inner) for inner in value]
        case _:
            return value

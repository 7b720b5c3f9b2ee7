"""Summary: one trial's samples in figures, and a cell's trials together.

In: the measured `Samples` of a trial. Out: a `TrialSummary`, small enough to keep for every trial,
so that a run of any size is read trial by trial. `cell_summary` needs nothing else.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from embbench.analysis.percentiles import (
    PERCENTILES,
    Percentile,
    cell_percentile,
    linear,
    percentile,
)
from embbench.results.samples import Samples

Time = Literal["response", "service"]
"""Which time is a latency: from the intended start (open loop) or from the send."""

_NEVER = 2**63 - 1


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
    samples: Samples | Iterable[Samples],
    *,
    time: Time,
    round_index: int = 0,
    ps: Sequence[float] = PERCENTILES,
) -> TrialSummary:
    """Summarise one trial; warm-up rows are left out.

    ``samples`` may come in pieces (`batches.sample_batches`), of which only two times a request are
    kept, in 16 bytes a request.
    """
    kept: list[_Piece] = []
    times, lags = array("q"), array("q")  # they grow where they are: no value is held twice
    for piece in [samples] if isinstance(samples, Samples) else samples:
        measured = piece.measured
        good = measured.ok
        kept.append(_piece(measured, good))
        own = good.response_time_ns if time == "response" else good.service_time_ns
        times.frombytes(own.tobytes())
        lags.frombytes(measured.send_lag_ns.tobytes())
    latencies, lag = _sorted(times), _sorted(lags)
    failed = len(lag) - len(latencies)
    some = len(latencies) > 0
    return TrialSummary(
        round_index=round_index,
        n=len(latencies),
        failed=failed,
        errors=_added(k.errors for k in kept),
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
        sent_rps=_rate(kept, len(lag) - 1, "last_start"),
        answered_rps=_rate(kept, len(latencies), "last_end"),
        request_bytes=sum(k.request_bytes for k in kept) / len(lag) if len(lag) else None,
        response_bytes=sum(k.response_bytes for k in kept) / len(latencies) if some else None,
    )


@dataclass(frozen=True, slots=True)
class _Piece:
    """What is kept of a piece of a trial; bytes are sums, of all requests and of successes."""

    errors: dict[str, int]
    first_start: int
    last_start: int
    last_end: int
    request_bytes: int
    response_bytes: int


def _piece(measured: Samples, good: Samples) -> _Piece:
    starts, ends = measured.rows["start_ns"], measured.rows["end_ns"]
    nothing = len(measured) == 0
    return _Piece(
        measured.error_counts(),
        _NEVER if nothing else int(starts.min()),
        0 if nothing else int(starts.max()),
        0 if nothing else int(ends.max()),
        int(measured.rows["request_bytes"].sum()),
        int(good.rows["response_bytes"].sum()),
    )


def cell_summary(trials: Sequence[TrialSummary]) -> CellSummary:
    """What the trials of one cell say together; there must be at least one."""
    rounds = [t.round_index for t in trials]
    lows = [t.min_ns for t in trials if t.min_ns is not None]
    highs = [t.max_ns for t in trials if t.max_ns is not None]
    failed = sum(t.failed for t in trials)
    # a trial in which nothing failed has the same figures either way
    adjusted = [t.adjusted or t.percentiles for t in trials] if failed else []
    return CellSummary(
        trials=tuple(trials),
        n=sum(t.n for t in trials),
        failed=failed,
        errors=_added(t.errors for t in trials),
        min_ns=min(lows, default=None),
        max_ns=max(highs, default=None),
        percentiles=_together([t.percentiles for t in trials], rounds),
        adjusted=_together(adjusted, rounds),
    )


def _together(
    trials: Sequence[tuple[Percentile, ...]], rounds: Sequence[int]
) -> tuple[Percentile, ...]:
    return tuple(cell_percentile(same, rounds=rounds) for same in zip(*trials, strict=True))


def _sorted(times_ns: "array[int]") -> NDArray[np.int64]:
    """The same memory as an array of numpy, in order."""
    values = np.frombuffer(times_ns, np.int64)
    values.sort()
    return values


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Counts of the same names added up, most frequent first."""
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total.most_common())


def _rate(
    pieces: Sequence[_Piece], count: int, until: Literal["last_start", "last_end"]
) -> float | None:
    """``count`` a second from the first start on; None where there is no time or no count."""
    first = min((p.first_start for p in pieces), default=_NEVER)
    last = max((getattr(p, until) for p in pieces), default=0)
    return count / (last - first) * 1e9 if count > 0 and last > first else None


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

"""When the client was the limit: findings, so that a server is never blamed for its client.

In: the health of a trial, the calibration of a run. Out: `Finding`s.
"""

from dataclasses import dataclass, replace

from embbench.config.plan import ClosedLoop, OpenLoop, Work
from embbench.findings import Finding
from embbench.load.calibrate import Calibration
from embbench.load.job import LoadHealth

RATE_TOLERANCE_SHARE = 0.01
"""An open loop that missed its rate by more did not offer the load that was asked for."""

FEW_REQUESTS_TOLERANCE_SHARE = 0.05
"""The same for trials of fewer than `LAG_REQUESTS`, in which one late request moves the rate."""

FLOORS = 5
"""A p50 under so many floors is largely the client's own time."""

CEILING_SHARE = 0.7
"""A rate above this share of what the client can do at all is partly the client's."""

STALLED_SHARE = 0.01
"""Stalls that add up to more of a trial than this are worth a warning."""

LAG_REQUESTS = 100
"""The fewest requests of which the p99 of the send lag is not simply the latest one's."""

_LAG_LIMIT_NS = 1_000_000
_LAG_LIMIT_SHARE = 0.05


def send_lag_limit_ns(response_p50_ns: float | None) -> int:
    """The default limit on the p99 of the send lag: 1 ms, or 5 % of the p50 if that is more.

    The lag is part of the response time. 1 ms is half of the smallest difference between servers
    that is argued about (2 ms); where answers take longer than 20 ms, a lag that is a twentieth
    of the answer at its 99th percentile still cannot decide a comparison.
    """
    return max(_LAG_LIMIT_NS, int(_LAG_LIMIT_SHARE * (response_p50_ns or 0)))


@dataclass(frozen=True, slots=True)
class Place:
    """Where findings belong."""

    target: str
    cell: str
    trial: int | None = None

    def put(self, finding: Finding) -> Finding:
        """The finding, at this place."""
        return replace(finding, target=self.target, cell=self.cell, trial=self.trial)


def health_findings(
    place: Place,
    load: OpenLoop | ClosedLoop,
    health: LoadHealth,
    *,
    response_p50_ns: float | None = None,
    send_lag_p99_limit_ns: int | None = None,
    exhausted: int = 0,
    requests: int = LAG_REQUESTS,
) -> list[Finding]:
    """What was wrong with the load of one trial; ``fail`` means that it is INVALID.

    With fewer than `LAG_REQUESTS` ``requests`` one late request makes the p99 of the send lag, and
    moves the rate: a warning. It still fails if the median is late, or the rate 5 % off.
    ``exhausted`` counts the samples named ``client-exhausted``. With an in-flight cap the wait
    for a place is in the send lag and may hold the rate down: both are told, neither fails.
    """
    found = []
    if exhausted:
        found.append(
            Finding(
                "client-exhausted",
                "fail",
                f"{exhausted} requests found no file descriptor or local port on this machine",
                "raise `ulimit -n`, or lower the rate or the concurrency",
            )
        )
    if isinstance(load, OpenLoop):
        limit_ns = send_lag_p99_limit_ns or send_lag_limit_ns(response_p50_ns)
        carried = requests >= LAG_REQUESTS
        found += _rate_findings(load, health, carried=carried)
        if load.max_in_flight is None:
            found += _lag_findings(health, limit_ns, carried=carried)
    elif health.burst_in_statistics:
        found.append(
            Finding(
                "start-up-burst",
                "warn",
                f"{health.burst_in_statistics} measured requests belong to the start-up burst",
                f"use a warm-up of at least {load.concurrency} requests",
            )
        )
    found += _stall_findings(health)
    return [place.put(finding) for finding in found]


def _rate_findings(load: OpenLoop, health: LoadHealth, *, carried: bool) -> list[Finding]:
    found = []
    capped = load.max_in_flight is not None
    if health.planned_rps:
        missed = health.achieved_rps / health.planned_rps - 1
        fatal = abs(missed) > (RATE_TOLERANCE_SHARE if carried else FEW_REQUESTS_TOLERANCE_SHARE)
        if abs(missed) > RATE_TOLERANCE_SHARE:
            found.append(
                Finding(
                    "rate",
                    "fail" if fatal and not capped else "warn",
                    f"{health.achieved_rps:.4g} requests/s left, {health.planned_rps:.4g} were "
                    f"asked for ({missed:+.1%})",
                    f"the cap of {load.max_in_flight} in flight held them back; it is in the "
                    "response time"
                    if capped
                    else "the client could not send faster: use more load processes, pin them "
                    "away from the server, or lower the rate",
                )
            )
    return found


def _lag_findings(health: LoadHealth, limit_ns: int, *, carried: bool) -> list[Finding]:
    if health.send_lag_p99_ns <= limit_ns:
        return []
    return [
        Finding(
            "send-lag",
            "fail" if carried or health.send_lag_p50_ns > limit_ns else "warn",
            f"requests left late: p99 {health.send_lag_p99_ns / 1e6:.2f} ms after their "
            f"intended start, limit {limit_ns / 1e6:.2f} ms",
            "pin the load processes to cores of their own (--pin), or lower the rate",
        )
    ]


def _stall_findings(health: LoadHealth) -> list[Finding]:
    if not health.stalls:
        return []
    at_ns, longest_ns = max(health.stalls, key=lambda stall: stall[1])
    stalled_s = sum(length for _, length in health.stalls) / 1e9
    share = stalled_s / health.wall_s if health.wall_s else 0.0
    return [
        Finding(
            "client-stalls",
            "warn" if share > STALLED_SHARE else "info",
            f"the client's loop stood still {len(health.stalls)} times for over 1 ms, "
            f"{stalled_s * 1e3:.0f} ms in all ({share:.1%}), {longest_ns / 1e6:.1f} ms at most",
            "something else ran on the client's core: pin the load processes (--pin)",
            time_ns=at_ns,
        )
    ]


def floor_findings(
    place: Place,
    work: Work,
    calibration: Calibration,
    *,
    p50_ns: float,
    rate_rps: float,
    in_flight: int = 1,
) -> list[Finding]:
    """Whether a cell's p50 and rate are far enough from what the client itself can do.

    ``p50_ns`` is of service times, ``rate_rps`` of answers, ``in_flight`` as many as there were
    at once (an open loop's typical number; a closed loop's concurrency).
    """
    found = []
    concurrency = work.load.concurrency if isinstance(work.load, ClosedLoop) else in_flight
    floor = calibration.floor(work.batch, work.encoding, concurrency)
    if floor is not None and 0 < p50_ns < FLOORS * floor.p50_ns:
        found.append(
            Finding(
                "client-floor",
                "warn",
                f"p50 {p50_ns / 1e6:.3g} ms is {p50_ns / floor.p50_ns:.1f} times the client's own "
                f"{floor.p50_ns / 1e6:.3g} ms (at concurrency {floor.concurrency})",
                "the client's time is a good part of this figure; compare it with care",
            )
        )
    ceiling = calibration.ceiling(work.batch, work.encoding)
    if ceiling is not None and rate_rps > CEILING_SHARE * ceiling.rps:
        found.append(
            Finding(
                "client-ceiling",
                "warn",
                f"{rate_rps:.4g} requests/s is {rate_rps / ceiling.rps:.0%} of the most that this "
                f"client can do ({ceiling.rps:.4g}/s, {ceiling.bytes_per_s / 1e6:.0f} MB/s)",
                "use more load processes (--load-processes), on cores of their own (--pin)",
            )
        )
    return [place.put(finding) for finding in found]

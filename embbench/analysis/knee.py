"""Where a server's load curve bends: the rate beyond which waiting grows faster than work.

In: the open-loop rates of a sweep with what came of them. Out: the knee, if the rates reach it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

KEPT_UP_SHARE = 0.99
"""A server that answers less of the asked rate does not keep up."""


@dataclass(frozen=True, slots=True)
class Knee:
    """The rate at which the load curve bends, as an index into the sweep."""

    index: int
    rate_rps: float
    why: str


def find_knee(
    rates_rps: Sequence[float], answered_rps: Sequence[float], response_ns: Sequence[float]
) -> Knee | None:
    """The rate with the greatest power, among those that the server keeps up with.

    Power is answers a second over response time (Kleinrock, "Power and deterministic rules of
    thumb for probabilistic problems in computer communications", ICC 1979): its maximum is where
    the ray from the origin touches the curve of response time over throughput, and for an M/M/1
    queue it lies at half of the capacity. ``response_ns`` is one percentile of the response time
    from intended starts, such as the p99; use the same for all rates.

    None if there are fewer than three rates, or if the greatest power is at the highest rate and
    the server keeps up with it: the knee is then beyond the sweep. Rates may come in any order.
    """
    order = sorted(range(len(rates_rps)), key=lambda i: rates_rps[i])
    if len(order) < 3 or not len(rates_rps) == len(answered_rps) == len(response_ns):
        return None
    kept_up = []
    for i in order:
        if answered_rps[i] < KEPT_UP_SHARE * rates_rps[i]:
            break
        kept_up.append(i)
    if not kept_up:
        return None
    best = max(kept_up, key=lambda i: answered_rps[i] / response_ns[i])
    if best == order[-1]:
        return None
    if best == kept_up[-1]:
        return Knee(best, rates_rps[best], "the highest rate that the server kept up with")
    return Knee(best, rates_rps[best], "beyond it response time grows faster than throughput")

"""Findings from numbers about the machine: the client near its ceiling, a GPU that slowed down.

In: rates, CPU seconds, clock readings. Out: findings of the trial.
"""

from collections.abc import Sequence

import numpy as np

from embbench.findings import Finding

NEAR = 0.7
CLOCK_DROP = 0.05


def client_near_ceiling(
    *,
    target: str,
    cell: str,
    trial: int,
    achieved_rps: float,
    ceiling_rps: float | None,
    cpu_s: Sequence[float] = (),
    wall_s: float = 0.0,
) -> list[Finding]:
    """Was the client so busy that its own work may be in the latencies?

    ``ceiling_rps`` is what the client reached on answers of this size from a server that answers at
    once; ``cpu_s`` is the CPU time of each load process during ``wall_s``. Warns over 70 % of
    either.
    """
    shares = {}
    if ceiling_rps:
        what = f"requests ({achieved_rps:.3g} of at most {ceiling_rps:.3g} a second)"
        shares[what] = achieved_rps / ceiling_rps
    if cpu_s and wall_s > 0:
        shares["CPU time of its busiest load process"] = max(cpu_s) / wall_s
    do = "add load processes or cores for the client, or lower the load"
    return [
        Finding(
            "client near its ceiling",
            "warn",
            f"the client is at {share:.0%} of its ceiling in {of}; its own work may be in the tail",
            do,
            target=target,
            cell=cell,
            trial=trial,
        )
        for of, share in shares.items()
        if share > NEAR
    ]


def gpu_slowed_down(
    *,
    target: str,
    cell: str,
    trial: int,
    clock_mhz: Sequence[float],
    reasons: Sequence[str] = (),
) -> list[Finding]:
    """Did the GPU's clock fall within the trial, or did the driver hold it down?

    ``clock_mhz`` are readings while the GPU worked, ``reasons`` the driver's words for less speed,
    one for each reading that had any. The trial stays in: discarding by speed would bias it.
    """
    found = []
    clocks = np.asarray(clock_mhz, np.float64)
    if len(clocks) >= 6:
        third = len(clocks) // 3
        first, last = np.median(clocks[:third]), np.median(clocks[-third:])
        if last < (1 - CLOCK_DROP) * first:
            found.append(f"the GPU's clock fell from {first:.0f} to {last:.0f} MHz")
    if reasons:
        names = ", ".join(dict.fromkeys(reasons))
        found.append(f"the GPU was held down in {len(reasons)} readings ({names})")
    do = "cool it, raise its power limit or fix its clocks; compare only trials of equal clocks"
    return [
        Finding("GPU slowed down", "warn", what, do, target=target, cell=cell, trial=trial)
        for what in found
    ]

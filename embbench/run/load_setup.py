"""The load generator of a run: its processes, their cores, and what it can do at all.

In: a config and its plan. Out: `LoadProcesses` ready to be entered, and their `Calibration`.
"""

import os
from collections.abc import Callable

from embbench.config.plan import ClosedLoop, OpenLoop, Plan
from embbench.config.schema import Generator, RunConfig
from embbench.doctor import Pinning, physical_cores, propose_pinning
from embbench.errors import ConfigError
from embbench.load.arrivals import intended_offsets_ns
from embbench.load.calibrate import Calibration
from embbench.load.calibrate import calibrate as calibrate_client
from embbench.load.processes import LoadProcesses
from embbench.machine.metadata import as_ranges, cgroup_cpus
from embbench.results.rundir import RunWriter


def check_feasible(config: RunConfig, plan: Plan) -> None:
    """Raise `ConfigError` for a schedule or a pinning that cannot be had, before any launch."""
    pinning(config.generator)
    for work in plan.work:
        if isinstance(work.load, OpenLoop):
            intended_offsets_ns(work.load, work.requests, config.seed)


async def calibration_of(
    config: RunConfig,
    plan: Plan,
    load: LoadProcesses,
    writer: RunWriter,
    step: Callable[[str], None],
) -> Calibration | None:
    """The client's own floor at the points of this run, measured once and kept in run.json."""
    if not config.generator.calibrate:
        return None
    if (stored := writer.meta.get("calibration")) is not None:
        return Calibration.from_json(stored)
    step("calibrating the client against a server that answers at once")
    calibration = await _drive_null_server(config, plan, load)
    writer.update(calibration=calibration.to_json())
    return calibration


async def calibrate_generator(config: RunConfig, plan: Plan) -> Calibration:
    """The calibration alone: the client of ``config`` at the points of ``plan``."""
    async with load_processes(config) as load:
        return await _drive_null_server(config, plan, load)


async def _drive_null_server(config: RunConfig, plan: Plan, load: LoadProcesses) -> Calibration:
    points = [
        (work.batch, work.encoding, clients)
        for work in plan.work
        for clients in sorted(
            {1, work.load.concurrency if isinstance(work.load, ClosedLoop) else 8}
        )
    ]
    pinned = pinning(config.generator)
    return await calibrate_client(
        load,
        points,
        isl=max(config.isl),
        dimension=config.checks.dimensions or 1024,
        server_cpus=pinned.server if pinned else None,
    )


def load_processes(config: RunConfig) -> LoadProcesses:
    """The load processes of a run, on cores of their own if the config says so."""
    generator, pinned = config.generator, pinning(config.generator)
    if pinned is None:
        return LoadProcesses(generator.processes, generator.client)
    # A core that does not sleep takes from the servers where they run on its sibling, and where
    # CPU time is rationed.
    keep_awake = generator.keep_awake and pinned.apart(physical_cores()) and cgroup_cpus() is None
    return LoadProcesses(generator.processes, generator.client, pinned.load, keep_awake=keep_awake)


def pinning(generator: Generator) -> Pinning | None:
    """Which cores the load processes have to themselves, and which are left to the servers.

    Raises `ConfigError` if there are not enough cores for that.
    """
    cpus = os.sched_getaffinity(0)
    if generator.pin == "none":
        return None
    if generator.pin == "auto":
        found = propose_pinning(cpus, generator.processes, physical_cores())
    else:
        rest = tuple(sorted(cpus - set(generator.pin)))
        found = Pinning(generator.pin, rest) if rest and set(generator.pin) < cpus else None
    if found is None:
        raise ConfigError(
            f"generator.pin: {generator.pin}: cannot be had of the cores {as_ranges(cpus)} with "
            "one left for the servers; use pin: none, or fewer load processes"
        )
    return found

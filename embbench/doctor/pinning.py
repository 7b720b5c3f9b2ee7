"""Which cores the load processes get, so that they and the server do not disturb each other.

In: the cores that this process may use. Out: a `Pinning`, or None where there are too few cores.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from embbench.machine.metadata import as_ranges, read_text

_CPU = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class Pinning:
    """A logical CPU for each load process, and those left to the servers."""

    load: tuple[int, ...]
    server: tuple[int, ...]

    def apart(self, cores: Mapping[int, int]) -> bool:
        """No server CPU is a sibling of a load process's: ``cores`` as in `propose_pinning`."""
        load = {cores.get(cpu, cpu) for cpu in self.load}
        return load.isdisjoint(cores.get(cpu, cpu) for cpu in self.server)

    def __str__(self) -> str:
        return f"load processes on {as_ranges(self.load)}, servers on {as_ranges(self.server)}"


def propose_pinning(
    cpus: Collection[int], load_processes: int, cores: Mapping[int, int] | None = None
) -> Pinning | None:
    """The last physical cores go to the load processes, one each; interrupts favour the first.

    ``cores`` maps a logical CPU to its physical core (default: as the system tells). A sibling of
    a load process's CPU is left idle: on it a server would slow the client down. None if no
    physical core would be left for the servers.
    """
    of_core: dict[int, list[int]] = {}
    for cpu in sorted(cpus):
        of_core.setdefault((cores or {}).get(cpu, cpu), []).append(cpu)
    physical = sorted(of_core.values())
    if load_processes >= len(physical):
        return None
    split = len(physical) - load_processes
    return Pinning(
        load=tuple(siblings[0] for siblings in physical[split:]),
        server=tuple(sorted(cpu for siblings in physical[:split] for cpu in siblings)),
    )


def physical_cores() -> dict[int, int]:
    """Logical CPU -> the first logical CPU of its physical core, for the CPUs we may use."""
    found = {}
    for cpu in os.sched_getaffinity(0):
        siblings = read_text(_CPU / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        found[cpu] = int(siblings.replace("-", ",").split(",")[0])
    return found

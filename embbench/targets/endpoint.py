"""What bring-up hands out: where a target answers, and the processes behind it.

In: a target that is up and has answered with real embeddings. Out: an `Endpoint`, a plain value
that everything above the launch works with.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from embbench.errors import TargetError
from embbench.findings import Finding

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Process:
    """One process tree of a target; what it was started with is safe to print."""

    role: str
    pid: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: Path
    cwd: str | None = None
    supervisor_pid: int | None = None
    """Parent of the tree, and not part of it: all descendants of this pid are the target's."""

    def to_json(self) -> dict[str, Any]:
        """The process as JSON-ready values, for ``run.json``."""
        return {
            "role": self.role,
            "pid": self.pid,
            "argv": list(self.argv),
            "env": dict(self.env),
            "cwd": self.cwd,
            "log": str(self.log),
        }


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A target that is up. Requests go to ``base_url`` + "/embeddings"."""

    target: str
    base_url: str
    model: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Never written to results: they may hold a key."""
    processes: tuple[Process, ...] = ()
    """Empty for an external server."""
    metrics_url: str | None = None
    worker_metrics_urls: tuple[str, ...] = ()
    """Counters of workers that do not show in ``metrics_url``, a page each."""
    ready_after_s: float = 0.0
    findings: tuple[Finding, ...] = ()
    """What was odd during bring-up, such as a listener that is not on loopback."""
    death: "asyncio.Future[TargetError] | None" = field(default=None, repr=False, compare=False)
    """Done as soon as one of the processes has ended without being asked to."""

    @property
    def trees(self) -> dict[str, int]:
        """Its process trees, as ``target/role``, each with the pid of its parent."""
        return {
            f"{self.target}/{process.role}": process.supervisor_pid
            for process in self.processes
            if process.supervisor_pid is not None
        }


async def while_alive(work: Coroutine[Any, Any, T], *endpoints: Endpoint) -> T:
    """The result of ``work``, or `TargetError` as soon as a process of an endpoint has died.

    ``work`` is cancelled, and has ended, before the error is raised.
    """
    return await unless_dead(work, *(e.death for e in endpoints if e.death is not None))


async def unless_dead(work: Coroutine[Any, Any, T], *deaths: "asyncio.Future[TargetError]") -> T:
    """`while_alive` on the bare futures."""
    task = asyncio.ensure_future(work)
    try:
        awaited: list[asyncio.Future[Any]] = [task, *deaths]
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        dead = next((death for death in deaths if death.done()), None)
        if dead is None or (task.done() and not task.cancelled() and task.exception() is None):
            return await task
        raise dead.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

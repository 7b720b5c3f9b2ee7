"""Process trees: start an argv under its supervisor, notice its death, end all of it.

In: a `ProcessSpec`. Out: a running `ProcessTree` with its output in a log file. Each tree has a
supervisor process (machine/supervisor.py), so that nothing survives the end of embbench.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from embbench.errors import TargetError
from embbench.machine.supervisor import PROGRAM
from embbench.results.redact import redact_argv, redact_env
from embbench.targets.endpoint import Process

TREE_VARIABLE = "EMBBENCH_TREE"
"""Set in every process that is started: a tag that no other tree has."""

TAIL_LINES = 15
_TAIL_BYTES = 16_384
_AFTER_GRACE_S = 30.0
_SUPERVISOR_ENDS_S = 5.0


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What to start. ``env`` is added to the inherited environment.

    ``ports`` are the loopback ports on which the tree will listen; the first one answers HTTP.
    """

    role: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    ports: tuple[int, ...] = ()
    stop_grace_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Stopped:
    """How a tree ended: who had to be killed, what could not be ended, what was cleaned up."""

    killed: tuple[tuple[int, str], ...] = ()
    left: tuple[tuple[int, str], ...] = ()
    segments: tuple[str, ...] = ()


class ProcessTree:
    """One running tree. Made by `start`; `stop` must be awaited, and may be more than once."""

    def __init__(
        self, spec: ProcessSpec, log: Path, supervisor: asyncio.subprocess.Process, tag: str
    ) -> None:
        loop = asyncio.get_running_loop()
        self.spec = spec
        self.log = log
        self.pid = 0
        self.death: asyncio.Future[str] = loop.create_future()
        """How the tree's first process ended, such as "exited with code 1"."""
        self._supervisor = supervisor
        self._tag = tag
        self._started: asyncio.Future[int] = loop.create_future()
        self._stopped = Stopped()
        self._known: set[psutil.Process] = set()
        self._gone = False
        self._listening = loop.create_task(self._listen())

    @classmethod
    async def start(
        cls,
        spec: ProcessSpec,
        log: Path,
        scratch: Sequence[Path] = (),
        cpus: Sequence[int] | None = None,
    ) -> "ProcessTree":
        """Start ``spec`` with its output in ``log``, which must not exist yet.

        ``scratch`` are folders that go with the tree if embbench cannot remove them itself;
        ``cpus`` are those that its processes are held to.
        Raises `TargetError` if the program cannot be started at all.
        """
        tag = uuid.uuid4().hex[:12]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("xb") as output:
            supervisor = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", PROGRAM,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )  # fmt: skip
        tree = cls(spec, log, supervisor, tag)
        order = {
            "argv": list(spec.argv),
            "env": {**spec.env, TREE_VARIABLE: tag},
            "cwd": spec.cwd,
            "grace_s": spec.stop_grace_s,
            "conductor": os.getpid(),
            "cpus": None if cpus is None else list(cpus),
            "scratch": [str(folder) for folder in scratch],
        }
        try:
            tree._tell(json.dumps(order))
            tree.pid = await asyncio.shield(tree._started)
        except BaseException:
            await to_the_end(tree.stop())
            raise
        return tree

    @property
    def supervisor_pid(self) -> int:
        """The parent of the tree, and not part of it."""
        return self._supervisor.pid

    def describe(self) -> Process:
        """The tree as a value, with secrets masked."""
        return Process(
            role=self.spec.role,
            pid=self.pid,
            argv=redact_argv(self.spec.argv),
            env=redact_env(self.spec.env),
            log=self.log,
            cwd=self.spec.cwd,
            supervisor_pid=self.supervisor_pid,
        )

    def members(self) -> set[int]:
        """Pids of all processes of the tree, detached ones included."""
        with contextlib.suppress(psutil.NoSuchProcess):
            supervisor = psutil.Process(self.supervisor_pid)
            self._known = set(supervisor.children(recursive=True))
        return {process.pid for process in self._known}

    def note(self) -> None:
        """Remember members and shared memory in use, for the case that the tree dies later."""
        self.members()
        self._tell("note")

    async def stop(self) -> Stopped:
        """End every process of the tree; returns when they are gone."""
        if self._gone:
            return self._stopped
        self.members()
        self._tell("stop")
        limit_s = self.spec.stop_grace_s + _AFTER_GRACE_S
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._listening), limit_s)
        await self._end_what_is_left()
        try:
            # `kill` would reap a supervisor that has just ended, before asyncio's watcher does.
            await asyncio.wait_for(self._supervisor.wait(), _SUPERVISOR_ENDS_S)
        except TimeoutError:
            self._supervisor.kill()
            await self._supervisor.wait()
        await asyncio.gather(self._listening, return_exceptions=True)
        if self._supervisor.stdin is not None:
            self._supervisor.stdin.close()
        self._gone = True
        return self._stopped

    def _tell(self, line: str) -> None:
        stdin = self._supervisor.stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(line.encode() + b"\n")

    async def _listen(self) -> None:
        """Take in the supervisor's events until its end."""
        assert self._supervisor.stdout is not None
        async for line in self._supervisor.stdout:
            self._take(json.loads(line))
        self._died("was left by its supervisor, which was killed")
        if not self._started.done():
            self._started.set_exception(
                TargetError(f"{self.spec.role}: its supervisor ended at once; see {self.log}")
            )
            self._started.exception()  # also when nobody waits for it

    def _take(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "started":
                self._started.set_result(event["pid"])
            case "failed":
                self._started.set_exception(
                    TargetError(f"{self.spec.role} cannot be started: {event['what']}")
                )
                self._started.exception()
            case "exited":
                self._died(ended_how(event["code"]))
            case "gone":
                self._died("was stopped")
                self._stopped = Stopped(
                    killed=tuple((pid, name) for pid, name in event["killed"]),
                    left=tuple((pid, name) for pid, name in event["left"]),
                    segments=tuple(event["segments"]),
                )

    def _died(self, how: str) -> None:
        if not self.death.done():
            self.death.set_result(how)

    async def _end_what_is_left(self) -> None:
        """Kill what outlived its supervisor: members seen before, and carriers of our tag."""
        found = {process for process in self._known if process.is_running()}
        if self._supervisor.returncode == 0 and not self._stopped.left and not found:
            return
        found |= {process for process in psutil.process_iter() if self._carries_tag(process)}
        found = {p for p in found if p.is_running() and p.pid != self.supervisor_pid}
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()  # psutil compares the start time first
        await asyncio.to_thread(psutil.wait_procs, found, 10.0)

    def _carries_tag(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error, OSError):
            return process.environ().get(TREE_VARIABLE) == self._tag
        return False


def ended_how(code: int) -> str:
    """An exit status in words: "exited with code 1", "was killed by SIGKILL"."""
    if code >= 0:
        return f"exited with code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def log_tail(log: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log, or "(empty)"."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError as exc:
        return f"(unreadable: {exc})"
    kept = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(kept[-lines:]) or "(empty)"


def last_line(log: Path) -> str:
    """The last line of a log, for progress."""
    return log_tail(log, 1)


async def to_the_end(work: Any) -> Any:
    """Await ``work`` to its end even when we are cancelled meanwhile; then be cancelled."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled is not None:
        raise cancelled
    return task.result()

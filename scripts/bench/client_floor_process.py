"""A load tool as a process: run to its end in its own session, its CPU read, nothing left over.

What goes in is a Task, what a tool says of it is a Reading; the tools themselves are in
client_floor_tools.py and client_floor_heavy.py.
"""

import os
import re
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

LIMIT_S = 120.0
SAMPLED_EVERY_S = 0.1
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Task:
    """One point of the comparison; ``model`` is a folder with a tokenizer."""

    url: str
    request: bytes
    response_bytes: int
    concurrency: int
    seconds: float
    cpu: int | None
    arena_bytes: int
    model: Path


@dataclass(frozen=True, slots=True)
class Reading:
    """What a tool reports; ``cpu_ms`` is CPU a request, all of the tool's processes."""

    p50_ms: float
    p99_ms: float
    mean_ms: float
    rps: float
    cpu_ms: float
    requests: int

    @property
    def in_flight(self) -> float:
        """Mean number of requests under way, by Little's law."""
        return self.rps * self.mean_ms / 1e3


Tool = Callable[[Task], Reading]


class ToolError(Exception):
    """A tool could not be run to its end, or counted failed requests."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A run that ended well; ``sampled`` holds (unix seconds, CPU seconds so far)."""

    stdout: str
    cpu_s: float
    sampled: tuple[tuple[float, float], ...]

    def cpu_between_s(self, start_s: float, end_s: float) -> float:
        """CPU that all of its processes used between two unix times."""
        at_s, cpu_s = np.array(self.sampled).T
        if not at_s[0] <= start_s < end_s <= at_s[-1] + 2 * SAMPLED_EVERY_S:
            raise ToolError(f"requests from {start_s} to {end_s}, outside the run")
        first, last = np.interp((start_s, end_s), at_s, cpu_s)
        return float(last - first)


def run_tool(
    task: Task, argv: list[str], *, sampled: bool = False, env: Mapping[str, str] | None = None
) -> Ran:
    """Run it on the task's core; raises ToolError with the tool's own reason if it fails."""
    pinned = argv if task.cpu is None else ["taskset", "-c", str(task.cpu), *argv]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory(prefix="embbench-floor-") as name:
        out, err = Path(name, "out"), Path(name, "err")
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                pinned, cwd=name, env=env, stdout=stdout, stderr=stderr, start_new_session=True
            )
        try:
            samples = _wait(process, sampled)
        except subprocess.TimeoutExpired:
            words = f"{_read(out)}\n{_read(err)}".strip().rpartition("\n")[2] or "none"
            raise ToolError(f"no end after {LIMIT_S:.0f} s; its last words: {words}") from None
        finally:
            _end_session(process)
        said = _read(out)
        if process.returncode:
            raise ToolError(_reason(process.returncode, f"{said}\n{_read(err)}"))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Ran(said, cpu_s, samples)


def _read(path: Path) -> str:
    return path.read_text(errors="replace")


def _wait(process: subprocess.Popen[bytes], sampled: bool) -> tuple[tuple[float, float], ...]:
    if not sampled:
        process.wait(LIMIT_S)
        return ()
    samples = []
    until = time.monotonic() + LIMIT_S
    while process.poll() is None:
        if time.monotonic() > until:
            raise subprocess.TimeoutExpired(process.args, LIMIT_S)
        samples.append((time.time(), _session_cpu_s(process.pid)))
        time.sleep(SAMPLED_EVERY_S)
    return tuple(samples)


def _session_stats(session: int) -> Iterator[tuple[int, list[str]]]:
    """(pid, fields of /proc/PID/stat from the third on) of a session's processes."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(") ")[2].split()
            if int(fields[3]) == session:
                yield int(path.parent.name), fields


def _session_cpu_s(session: int) -> float:
    """User and system time, with that of children that have ended and been waited for."""
    ticks = sum(sum(map(int, fields[11:15])) for _, fields in _session_stats(session))
    return ticks / _TICKS_PER_S


def _end_session(process: subprocess.Popen[bytes]) -> None:
    for pid, _ in list(_session_stats(process.pid)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _reason(code: int, said: str) -> str:
    """One line: the last that names an error, or the last."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception): ", line)]
    return " ".join([f"exit {code}:", *(named or lines or ["no output"])[-1:]])

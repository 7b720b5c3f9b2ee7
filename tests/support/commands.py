"""Whole embbench commands in processes of their own, and what they must not leave behind."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil

from embbench.results.rundir import Run, load_run

MARK = "EMBBENCH_TEST_RUN"
"""Set for a command and inherited by all that it starts: how a test finds what was left."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line on stderr."""
        lines = [line for line in self.err.splitlines() if line]
        assert len(lines) == 1, self.err
        assert lines[0].startswith("embbench: ")
        return lines[0].removeprefix("embbench: ")


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "embbench", *args]


def embbench(*args: str, cwd: Path, timeout_s: float = 100, mark: str = "test") -> Finished:
    """Run a command to its end."""
    done = subprocess.run(
        command(*args),
        cwd=cwd,
        env={**os.environ, MARK: mark},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def start(*args: str, cwd: Path, mark: str) -> subprocess.Popen[str]:
    """Start a command; the caller ends it."""
    return subprocess.Popen(
        command(*args),
        cwd=cwd,
        env={**os.environ, MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def only_run(output: Path) -> Run:
    """The one run directory under ``output``."""
    (folder,) = output.iterdir()
    return load_run(folder)


def marked(mark: str) -> list[psutil.Process]:
    """Processes that still carry ``mark``."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def wait_for(condition: Callable[[], Any], timeout_s: float = 60) -> Any:
    """The first true value of ``condition``; fails after ``timeout_s``."""
    deadline = monotonic() + timeout_s
    while not (value := condition()):
        assert monotonic() < deadline, "it did not happen in time"
        sleep(0.05)
    return value


def orphans() -> list[str]:
    """Shared-memory segments of embbench whose owner, named by its pid, is gone."""
    names = [name.split("-") for name in os.listdir("/dev/shm")]  # noqa: PTH208
    ours = [name for name in names if name[0] == "embbench" and name[2:3] and name[2].isdigit()]
    return ["-".join(name) for name in ours if not psutil.pid_exists(int(name[2]))]


def write_config(folder: Path, **keys: Any) -> str:
    """A config file; JSON is YAML."""
    path = folder / "test.yaml"
    path.write_text(json.dumps(keys))
    return str(path)


def scripted(url: str, **more: Any) -> Mapping[str, Any]:
    """A target for a scripted server that is already up."""
    return {"kind": "external", "url": url, "start_timeout_s": 30, **more}

"""Runs an embbench command and keeps a list of every process that ever belonged to it."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import yaml

from embbench.results.rundir import Run, load_run

SHM = Path("/dev/shm")
GONE_S = 90.0


class Watched:
    """One embbench command after the other, all descendants remembered."""

    def __init__(self, folder: Path, server_python: str) -> None:
        self.folder = folder
        self.server_python = server_python
        self.seen: set[psutil.Process] = set()
        self.process: subprocess.Popen[str] | None = None
        self.stderr = folder / "stderr.txt"
        self.segments: set[Path] = set()
        self.scratch = folder

    def start(self, *words: str, config: dict[str, object] | None = None) -> None:
        """Start ``embbench WORDS``, with ``config`` as its YAML file."""
        argv = [sys.executable, "-m", "embbench", *words]
        if config is not None:
            path = self.folder / "config.yaml"
            path.write_text(yaml.safe_dump({"output": str(self.folder / "runs"), **config}))
            argv += ["--config", str(path)]
        self.scratch = Path(tempfile.mkdtemp(prefix="real-"))  # short: sockets are made in it
        env = {
            **os.environ,
            "EMBBENCH_SERVER_PYTHON": self.server_python,
            "TMPDIR": str(self.scratch),
        }
        with self.stderr.open("w") as stderr:
            self.process = subprocess.Popen(
                argv, stdout=subprocess.PIPE, stderr=stderr, text=True, env=env
            )
        threading.Thread(target=self._look_on, args=(self.process,), daemon=True).start()

    def finish(self, timeout_s: float) -> tuple[int, str]:
        """Exit code and stdout."""
        assert self.process is not None
        try:
            stdout, _ = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s} s\n{self.words()}") from None
        return self.process.returncode, stdout

    def words(self) -> str:
        """What it said on stderr."""
        return self.stderr.read_text()

    def run(self) -> Run:
        """The one run directory that it wrote."""
        (folder,) = (self.folder / "runs").iterdir()
        return load_run(folder)

    def meta(self) -> dict[str, Any]:
        """What its run.json holds so far."""
        for path in (self.folder / "runs").glob("*/run.json"):
            meta: dict[str, Any] = json.loads(path.read_text())
            return meta
        return {}

    def wait(self, what: str, is_so: Callable[[], bool], timeout_s: float) -> None:
        """Until ``is_so``; fails when the command ends or the time is up."""
        assert self.process is not None
        deadline = time.monotonic() + timeout_s
        while not is_so():
            assert self.process.poll() is None, f"ended before {what}\n{self.words()}"
            assert time.monotonic() < deadline, f"no {what} in {timeout_s} s\n{self.words()}"
            time.sleep(0.2)

    def named(self, text: str) -> list[psutil.Process]:
        """Living descendants whose command line holds ``text``."""
        found = []
        for process in list(self.seen):
            with contextlib.suppress(psutil.Error):
                if text in " ".join(process.cmdline()) and alive(process):
                    found.append(process)
        return found

    def end(self) -> None:
        """Nothing is left: no process, no segment of shared memory, no scratch folder."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(GONE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        deadline = time.monotonic() + GONE_S
        while (left := [p for p in self.seen if alive(p)]) and time.monotonic() < deadline:
            time.sleep(0.2)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        assert not left, f"left behind: {left}"
        assert len(self.seen) > 1, "nothing was watched"
        assert not (segments := {path for path in self.segments if path.exists()}), segments
        scratch = [path.name for path in self.scratch.iterdir()]
        shutil.rmtree(self.scratch)
        assert not [name for name in scratch if name.startswith("embbench-")], scratch

    def _look_on(self, process: subprocess.Popen[str]) -> None:
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(process.pid)
            while process.poll() is None:
                members = {root, *root.children(recursive=True)}
                self.seen |= members
                for member in members:
                    self.segments |= segments_of(member.pid)
                time.sleep(0.3)


def alive(process: psutil.Process) -> bool:
    """Whether it still runs; a zombie of somebody else's does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def segments_of(pid: int) -> set[Path]:
    """Shared memory that a process has mapped by a name that still exists."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if f" {SHM}/" in line}
    return {Path(path) for path in paths if not path.endswith("(deleted)")}

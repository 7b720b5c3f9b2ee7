"""Runs an embbench command and keeps a list of every process that ever belonged to it."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import yaml

from embbench.rundir import Run, read_run

SHM = Path("/dev/shm")
GONE_S = 90.0
SETTLED_S = 15.0


class Watched:
    """One embbench command after the other, all descendants remembered."""

    def __init__(self, folder: Path, server_python: str) -> None:
        self.folder = folder
        self.server_python = server_python
        self.seen: set[psutil.Process] = set()
        self.process: subprocess.Popen[str] | None = None
        self.stderr = folder / "stderr.txt"
        self.shm_before = set(SHM.iterdir())
        self.scratch_before = scratch_folders()

    def start(self, *words: str, config: dict[str, object] | None = None) -> None:
        """Start ``embbench WORDS``, with ``config`` as its YAML file."""
        argv = [sys.executable, "-m", "embbench", *words]
        if config is not None:
            path = self.folder / "config.yaml"
            path.write_text(yaml.safe_dump({"output": str(self.folder / "runs"), **config}))
            argv += ["--config", str(path)]
        env = {**os.environ, "EMBBENCH_SERVER_PYTHON": self.server_python}
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
        return read_run(folder)

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
        deadline = time.monotonic() + GONE_S
        while (left := [p for p in self.seen if alive(p)]) and time.monotonic() < deadline:
            time.sleep(0.2)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        assert not left, f"left behind: {left}"
        assert len(self.seen) > 1, "nothing was watched"
        # Other programs on this machine make and remove segments of their own meanwhile.
        segments = set(SHM.iterdir()) - self.shm_before
        deadline = time.monotonic() + SETTLED_S
        while (unused := unused_segments(segments)) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not unused, f"shared memory left behind: {unused}"
        assert not scratch_folders() - self.scratch_before

    def _look_on(self, process: subprocess.Popen[str]) -> None:
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(process.pid)
            while process.poll() is None:
                self.seen |= {root, *root.children(recursive=True)}
                time.sleep(0.1)


def alive(process: psutil.Process) -> bool:
    """Whether it still runs; a zombie of somebody else's does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def scratch_folders() -> set[Path]:
    """The folders that embbench makes for its targets."""
    return set(Path(tempfile.gettempdir()).glob("embbench-*"))


def unused_segments(paths: set[Path]) -> set[Path]:
    """Those that are there and that no process has mapped."""
    used: set[str] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                used |= set((entry / "maps").read_text().split())
    return {path for path in paths if path.exists() and str(path) not in used}

"""Starts real reference servers for tests, and takes them down whatever happens."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

SHM = Path("/dev/shm")
START_S = 60.0

T = TypeVar("T")


@dataclass(frozen=True)
class Reply:
    """One HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Reference:
    """A running server; its log is read as it grows."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def call(self, method: str, path: str, body: bytes | None = None) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            headers = {name.lower(): value for name, value in answer.headers.items()}
            return Reply(answer.status, headers, answer.read())
        finally:
            connection.close()

    def post(self, **fields: Any) -> Reply:
        """An embedding request; the model is the numpy engine's unless given."""
        body = json.dumps({"model": "embbench-numpy", **fields}).encode()
        return self.call("POST", "/v1/embeddings", body)

    def metrics(self) -> dict[str, float]:
        """The values of /metrics by their full names."""
        lines = self.call("GET", "/metrics").body.decode().splitlines()
        pairs = [line.rpartition(" ") for line in lines if not line.startswith("#")]
        return {name: float(value) for name, _, value in pairs}

    def workers(self) -> list[int]:
        """Pids of the server's children."""
        return [child.pid for child in psutil.Process(self.process.pid).children()]

    def text(self) -> str:
        return self.log.read_text()


def segments_of(*pids: int) -> list[str]:
    """Names of the segments that these processes have left, by listing the folder."""
    marks = [f"-{pid}-" for pid in pids]
    return [path.name for path in SHM.iterdir() if any(mark in path.name for mark in marks)]


def start(log: Path, *arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a server in a process group of its own."""
    argv = [sys.executable, "-m", "embbench.reference", "--port", "0", *arguments]
    with log.open("wb") as output:
        return subprocess.Popen(
            argv, stderr=output, env={**os.environ, **(env or {})}, start_new_session=True
        )


@contextmanager
def reference(log: Path, *arguments: str, env: dict[str, str] | None = None) -> Iterator[Reference]:
    """A server that is ready; afterwards its whole group is gone."""
    process = start(log, *arguments, env=env)
    try:
        yield Reference(process, _wait_for_port(process, log), log)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise


def _wait_for_port(process: subprocess.Popen[bytes], log: Path) -> int:
    def port() -> int | None:
        if process.poll() is not None:
            raise AssertionError(f"the server ended with {process.returncode}:\n{log.read_text()}")
        match = re.search(r"ready on http://127\.0\.0\.1:(\d+)/v1", log.read_text())
        return None if match is None else int(match[1])

    return wait_until(port, START_S)


def wait_until(read: Callable[[], T | None], limit_s: float = 20.0) -> T:
    """The first value that is neither None nor false."""
    deadline = time.monotonic() + limit_s
    while True:
        value = read()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {limit_s:g} s")
        time.sleep(0.02)

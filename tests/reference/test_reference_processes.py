"""Two real processes: whatever ends one of them, nothing is left of either."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from reference_server import SHM, Reference, Reply, reference, segments_of, start, wait_until

from embbench.errors import TargetError
from embbench.reference.api import RequestError
from embbench.reference.engine_numpy import NumpyModel
from embbench.reference.frontend import Link, start_worker
from embbench.reference.metrics import Metrics
from embbench.reference.options import ServeOptions

TWO = ["--processes", "2", "--hop", "shm"]


class Load:
    """Clients that send until they are stopped, or until nobody answers."""

    def __init__(self, server: Reference, clients: int) -> None:
        self.replies: list[Reply] = []
        self.broken = 0
        self._server, self._stopped = server, threading.Event()
        self._threads = [threading.Thread(target=self._send) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        while not self._stopped.is_set():
            try:
                self.replies.append(self._server.post(input=["some words here"] * 64))
            except OSError:
                self.broken += 1
                return

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def under_load(server: Reference, clients: int = 4) -> Iterator[Load]:
    load = Load(server, clients)
    try:
        wait_until(lambda: len(load.replies) > 2 * clients)
        yield load
    finally:
        load.stop()


def gone(*pids: int) -> bool:
    return not any(
        psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        for pid in pids
    )


def test_frontend_and_worker_are_two_processes_and_one_is_one(tmp_path: Path) -> None:
    with reference(tmp_path / "two", *TWO) as server:
        assert len(server.workers()) == 1
        # the hop's listener is closed: one port is open, on loopback
        listening = [
            connection.laddr.ip
            for pid in (server.process.pid, *server.workers())
            for connection in psutil.Process(pid).net_connections()
            if connection.status == psutil.CONN_LISTEN
        ]
        assert listening == ["127.0.0.1"]
    with reference(tmp_path / "one") as server:
        assert server.workers() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_dead_worker_ends_the_server(tmp_path: Path, number: signal.Signals) -> None:
    with reference(tmp_path / "log", *TWO, "--delay-ms-per-request", "20") as server:
        pids = [server.process.pid, *server.workers()]
        with under_load(server) as load:
            os.kill(pids[1], number)
            assert server.process.wait(10) == 1
        refused = [reply for reply in load.replies if reply.status != 200]
        assert refused
        answers = {(reply.status, reply.json["error"]["code"]) for reply in refused}
        assert answers == {(503, "worker_gone")}
        assert gone(*pids)
        assert segments_of(*pids) == []
        last = server.text().strip().splitlines()[-1]
        assert last.startswith(f"embbench: the worker (pid {pids[1]}) ")
        assert ("was killed by SIGKILL" if number == signal.SIGKILL else "exited") in last


def test_segments_of_a_killed_worker_are_removed(tmp_path: Path) -> None:
    """The frontend stands still while one is there, so that one surely is."""
    with reference(tmp_path / "log", *TWO) as server:
        frontend_pid, worker_pid = server.process.pid, server.workers()[0]
        with under_load(server, clients=8):
            wait_until(lambda: catch_segment(frontend_pid, worker_pid))
            os.kill(worker_pid, signal.SIGKILL)
            os.kill(frontend_pid, signal.SIGCONT)
            assert server.process.wait(10) == 1
        assert segments_of(frontend_pid, worker_pid) == []


def catch_segment(frontend_pid: int, worker_pid: int) -> bool:
    """Stop the frontend; true if the worker then has a segment that nobody has collected."""
    os.kill(frontend_pid, signal.SIGSTOP)
    time.sleep(0.2)
    if segments_of(worker_pid):
        return True
    os.kill(frontend_pid, signal.SIGCONT)
    return False


def test_a_killed_frontend_takes_the_worker_along(tmp_path: Path) -> None:
    with reference(tmp_path / "log", *TWO) as server:
        pids = [server.process.pid, *server.workers()]
        with under_load(server, clients=8):
            wait_until(lambda: catch_segment(*pids))
            os.kill(pids[0], signal.SIGKILL)
            server.process.wait()
            wait_until(lambda: gone(*pids))
        assert segments_of(*pids) == []


@pytest.mark.parametrize("shape", [TWO, ["--processes", "1"]], ids=["two", "one"])
@pytest.mark.parametrize("whole_group", [True, False], ids=["group", "server"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_polite_end_answers_what_is_in_flight(
    tmp_path: Path, shape: list[str], whole_group: bool, number: signal.Signals
) -> None:
    with reference(tmp_path / "log", *shape, "--delay-ms-per-request", "300") as server:
        pids = [server.process.pid, *server.workers()]
        replies: list[Reply] = []
        client = threading.Thread(target=lambda: replies.append(server.post(input="hi")))
        client.start()
        time.sleep(0.15)
        (os.killpg if whole_group else os.kill)(server.process.pid, number)
        assert server.process.wait(10) == 0
        client.join()
        assert [reply.status for reply in replies] == [200]
        assert gone(*pids)
        assert segments_of(*pids) == []


def test_the_end_does_not_wait_for_a_long_batch(tmp_path: Path) -> None:
    arguments = ["--delay-ms-per-request", "60000", "--shutdown-s", "0.5"]
    with reference(tmp_path / "log", *TWO, *arguments) as server:
        pids = [server.process.pid, *server.workers()]
        client = threading.Thread(target=lambda: under_way(server))
        client.start()
        time.sleep(0.3)
        server.process.terminate()
        assert server.process.wait(10) == 0
        client.join()
        assert gone(*pids)


def under_way(server: Reference) -> None:
    with suppress(OSError):
        server.post(input="hi")


def test_a_worker_without_shared_memory_is_told_by_trying(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with reference(tmp_path / "log", *TWO, "--worker-shm-dir", str(other)) as server:
        assert server.post(input=["hi", "hello world"]).status == 200
        metrics = server.metrics()
        assert any('hop="base64-numpy",hop_asked="shm"' in name for name in metrics)
        assert metrics['embbench_shm_fallbacks_total{reason="not co-located"}'] == 1
        assert metrics.get("embbench_shm_collected_total", 0) == 0
        assert "shares no memory" in server.text()
        assert list(other.iterdir()) == []


def test_segments_of_dead_servers_are_cleared_at_the_start(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    left = SHM / f"embbench-{namespace}-{dead.pid}-1-{'0' * 16}"
    left.touch(0o600)
    try:
        with reference(tmp_path / "log", *TWO):
            assert not left.exists()
    finally:
        left.unlink(missing_ok=True)


def test_messages_beyond_the_hops_limit_are_errors_of_one_request(tmp_path: Path) -> None:
    arguments = ["--processes", "2", "--hop", "json", "--max-hop-mb", "0.05"]
    with reference(tmp_path / "log", *arguments) as server:
        assert server.post(input="x " * 30_000).status == 413
        refused = server.post(input=["hi"] * 10)
        assert (refused.status, refused.json["error"]["code"]) == (500, "hop_message_too_large")
        assert server.post(input="hi").status == 200


def test_a_taken_port_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = start(tmp_path / "log", "--port", port)
        assert process.wait(20) == 1
    lines = (tmp_path / "log").read_text().strip().splitlines()
    assert len(lines) == 1
    assert f"127.0.0.1:{port}" in lines[0]


def test_a_worker_that_cannot_start_is_an_error_with_its_own_words(tmp_path: Path) -> None:
    process = start(tmp_path / "log", *TWO, "--engine", "torch", "--model", "/nonexistent/model")
    assert process.wait(60) == 1
    lines = (tmp_path / "log").read_text().strip().splitlines()
    assert "Traceback" not in "".join(lines)
    assert "/nonexistent/model" in lines[-2] or "torch" in lines[-2]
    assert "before it was ready" in lines[-1]


def test_a_worker_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    process = start(tmp_path / "log", *TWO, "--start-timeout-s", "0.01")
    assert process.wait(20) == 1
    assert "not ready after 0.01 s" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.3, 0.5])
def test_a_server_that_is_stopped_while_it_starts_leaves_nothing(
    tmp_path: Path, delay_s: float
) -> None:
    process = start(tmp_path / "log", *TWO)
    time.sleep(delay_s)
    children = psutil.Process(process.pid).children()
    process.terminate()
    assert process.wait(20) in (0, -signal.SIGTERM)
    assert gone(process.pid, *(child.pid for child in children))
    assert segments_of(process.pid, *(child.pid for child in children)) == []


@contextmanager
def bare_worker(*arguments: str) -> Iterator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    """A worker whose frontend is the test."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    argv = [sys.executable, "-m", "embbench.reference", *arguments, "--hop-fd", str(far.fileno())]
    with near, subprocess.Popen(argv, pass_fds=[far.fileno()]) as process:
        far.close()
        try:
            yield near, process
        finally:
            process.kill()


async def test_the_reaper_removes_what_is_never_collected() -> None:
    with bare_worker("--hop", "shm", "--shm-max-age-s", "0.6") as (connection, worker):
        link = await Link.over(connection, 10)
        ready, _ = await link.read()
        assert (ready["facts"]["model"], ready["facts"]["dimension"]) == ("embbench-numpy", 1024)
        await link.send({"kind": "start", "hop": "shm"})
        await link.send({"kind": "embed", "id": 5, "inputs": ["hi"], "dimensions": None})
        reply, _ = await link.read()
        assert set(reply["handle"]) == {"name", "count", "dim"}
        assert reply["id"] == 5
        path = SHM / reply["handle"]["name"]
        assert path.stat().st_size == 4096
        await asyncio.sleep(0.3)
        assert path.exists()
        await asyncio.sleep(1.5)
        assert not path.exists()
        await link.send({"kind": "stats", "id": 6})
        assert (await link.read())[0]["reaped"] == 1

        await link.send({"kind": "embed", "id": 7, "inputs": ["hi"], "dimensions": None})
        reply, _ = await link.read()
        await link.close()
        assert await asyncio.to_thread(worker.wait, 10) == 0
        assert not (SHM / reply["handle"]["name"]).exists()


FORGER = """
import asyncio, json, os, socket, sys
from pathlib import Path
from embbench.reference import segments
from embbench.reference.engine_numpy import NumpyModel
from embbench.reference.frontend import Link

async def main():
    link = await Link.over(socket.socket(fileno=int(sys.argv[-1])), 10)
    await link.send({"kind": "ready", "boot_id": segments.boot_id(),
                     "facts": {"model": "forger", "dimension": 4, "max_model_len": 8,
                               "dtype": "float32", "pool": "last"}})
    probe, _ = await link.read()
    secret = segments.answer_probe(Path("/dev/shm"), probe["name"])
    await link.send({"kind": "probe", "secret": secret})
    await link.read()
    while True:
        message, _ = await link.read()
        reply = {"id": message["id"], "kind": "embeddings", "tokens": 2, "seconds": {}}
        await link.send({**reply, **json.loads(message["inputs"][0])})

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "fields",
    [
        {"form": "shm", "handle": {"name": "../../etc/passwd", "count": 1, "dim": 4}},
        {"form": "shm", "handle": {"name": "embbench-victim", "count": 1, "dim": 4}},
        {"form": "shm", "handle": {"name": 3, "count": 1, "dim": 4}},
        {"form": "shm", "handle": {"count": 1, "dim": 4}},
        {"form": "shm", "handle": "embbench-victim"},
        {"form": "shm"},
        {"form": "pigeon", "vectors": [[1.0, 2.0]]},
        {"form": "json", "vectors": [["a"]]},
        {"form": "json", "vectors": [[1.0], [2.0]]},
        {"form": "base64", "vectors": ["%%%"]},
        {"form": "base64", "vectors": ["AAA="]},
        {"form": "base64", "vectors": [7]},
        {"form": "base64"},
        {},
    ],
)
async def test_answers_that_a_worker_cannot_give_are_refused(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "forger"
    script.write_text(f"#!{sys.executable}\n{FORGER}")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    victim = SHM / f"embbench-victim-{os.getpid()}"
    victim.write_bytes(bytes(16))
    text = json.dumps(fields).replace("embbench-victim", victim.name)
    backend = await start_worker(ServeOptions(processes=2, hop="shm"), Metrics())
    try:
        assert backend.hop == "shm"
        with pytest.raises(RequestError) as refused:
            await backend.embed([text], None)
        assert refused.value.status == 500
        assert victim.exists()
    finally:
        victim.unlink()
        await backend.close()


@pytest.mark.parametrize("lie", ["segments.boot_id()", "secret}"], ids=["kernel", "secret"])
async def test_memory_is_shared_only_on_the_same_kernel_and_with_proof(
    lie: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "forger"
    assert FORGER.count(lie) == 1
    lying = FORGER.replace(lie, f"'' and {lie}")
    script.write_text(f"#!{sys.executable}\n{lying}")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    backend = await start_worker(ServeOptions(processes=2, hop="shm"), Metrics())
    await backend.close()
    assert backend.hop == "base64-numpy"


async def test_a_segment_whose_maker_died_before_it_told_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = 'reply = {"id"'
    assert told in FORGER
    dying = (
        "import numpy as np\n"
        "        prefix = segments.prefix_of(os.getpid())\n"
        "        segments.SegmentStore(Path('/dev/shm'), prefix).create([np.zeros(4, 'f4')])\n"
        "        os.kill(os.getpid(), 9)\n        "
    )
    script = tmp_path / "dying"
    script.write_text(f"#!{sys.executable}\n{FORGER.replace(told, dying + told)}")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    backend = await start_worker(ServeOptions(processes=2, hop="shm"), Metrics())
    with pytest.raises(RequestError, match="killed by SIGKILL; removed 1 of its shared") as refused:
        await backend.embed(["hi"], None)
    assert refused.value.status == 503
    await backend.close()


async def test_the_segment_of_a_request_that_was_given_up_is_collected() -> None:
    options = ServeOptions(processes=2, hop="shm", delay_ms_per_request=300)
    metrics = Metrics()
    backend = await start_worker(options, metrics)
    try:
        request = asyncio.create_task(backend.embed(["hi"], None))
        await asyncio.sleep(0.1)
        request.cancel()
        await backend.embed(["the next one"], None)
        await backend.refresh_metrics()
        assert "embbench_shm_segments 0" in metrics.page()
        assert "embbench_shm_reaped_total 0" in metrics.page()
    finally:
        await backend.close()


async def test_a_worker_that_talks_nonsense_at_the_start_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "mute"
    script.write_text("#!/bin/sh\nexit 7\n")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(TargetError, match="exited with code 7 before it was ready"):
        await start_worker(ServeOptions(processes=2), Metrics())


async def test_vectors_come_through_whole(tmp_path: Path) -> None:
    """Against the engine itself, without HTTP."""
    expected = NumpyModel(ServeOptions()).embed(["one", "two three"], None).vectors
    backend = await start_worker(ServeOptions(processes=2, hop="shm"), Metrics())
    try:
        answer = await backend.embed(["one", "two three"], None)
        assert np.array_equal(np.stack(answer.vectors), np.stack(expected))
        assert answer.tokens == 5
    finally:
        await backend.close()

"""Load processes: whole trials against servers of known truth, and what happens when they die."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from raw_server import Peer, raw_server
from scripted_server import scripted_process

import embbench.load
from embbench.config.plan import ClosedLoop, OpenLoop
from embbench.errors import LoadError
from embbench.load.arrivals import intended_offsets_ns
from embbench.load.client import ClientName
from embbench.load.job import LoadHealth, TrialJob, TrialResult
from embbench.load.limits import Place, health_findings, send_lag_limit_ns
from embbench.load.merge import in_flight_max, salvage_rows
from embbench.load.processes import LoadProcesses
from embbench.load.request_bodies import BodyFile, BodyFileWriter
from embbench.results.samples import MEASURED, WARMUP

MS = 1e6
Job = Callable[..., TrialJob]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A `TrialJob` for so many requests and warm-up requests; each body is one of a kind."""

    def make(
        url: str, load: OpenLoop | ClosedLoop, count: int, warmup: int, **more: Any
    ) -> TrialJob:
        files = []
        for phase, number in (("warmup", warmup), ("measured", count)):
            path = tmp_path / f"{phase}-{number}.bodies"
            with BodyFileWriter(path) as writer:
                for n in range(number):
                    body = {"model": "m", "input": [f"{phase} {n}"]}
                    writer.append(json.dumps(body).encode())
            files.append(BodyFile(path))
        return TrialJob(
            url=url,
            bodies=files[1],
            warmup_bodies=files[0] if warmup else None,
            load=load,
            offsets_ns=intended_offsets_ns(load, count, 0) if isinstance(load, OpenLoop) else None,
            work_dir=tmp_path / "work",
            **{"timeout_s": 10.0, "arena_bytes": 16 << 20, **more},
        )

    return make


async def echo(peer: Peer) -> None:
    """Answers with the request's body, between brackets."""
    while True:
        body = (await peer.request()).partition(b"\r\n\r\n")[2]
        await peer.say(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n[" % (len(body) + 2) + body + b"]"
        )


async def until(true: Callable[[], bool]) -> None:
    """Wait for what another process does."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def response_ms(result: TrialResult) -> Any:
    return np.sort(result.samples.measured.response_time_ns / MS)


def service_ms(result: TrialResult) -> Any:
    return np.sort(result.samples.measured.service_time_ns / MS)


@pytest.mark.parametrize("client", ["buffered", "aiohttp"])
@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize(
    "load", [ClosedLoop(5), ClosedLoop(1), OpenLoop(300.0), OpenLoop(2000.0, "poisson", None, 7)]
)
async def test_every_request_is_sent_once_and_comes_back_in_its_place(
    client: ClientName, processes: int, load: OpenLoop | ClosedLoop, job: Job
) -> None:
    keep = np.arange(103) % 3 != 0
    async with raw_server(echo) as server, LoadProcesses(processes, client) as generator:
        task = job(server.url, load, 103, 11, keep=keep, keep_warmup=True)
        result = await generator.drive(task)
        heard = sorted(request.partition(b"\r\n\r\n")[2] for request in server.requests)
        assert task.warmup_bodies is not None
        warmup = [task.warmup_bodies[n] for n in range(11)]
        measured = [task.bodies[n] for n in range(103)]
        assert heard == sorted(warmup + measured)

        rows = result.samples.rows
        assert rows["phase"].tolist() == [WARMUP] * 11 + [MEASURED] * 103
        assert rows["seq"].tolist() == [*range(11), *range(103)]
        assert (rows["error"] == -1).all()
        assert (rows["status"] == 200).all()
        assert rows["request_bytes"].tolist() == [len(body) for body in warmup + measured]
        assert (rows["response_bytes"] == rows["request_bytes"] + 2).all()
        assert (rows["intended_start_ns"] <= rows["start_ns"]).all()
        assert (rows["start_ns"] < rows["first_byte_ns"]).all()
        assert (rows["first_byte_ns"] <= rows["end_ns"]).all()
        if isinstance(load, OpenLoop):
            intended = rows["intended_start_ns"][11:] - result.health.origin_ns
            assert (intended == task.offsets_ns).all()
        else:
            assert (rows["intended_start_ns"] == rows["start_ns"]).all()
            assert server.connections <= load.concurrency

        assert len(result.kept) == 11 + keep.sum()
        for body in result.kept:
            source = warmup if body.phase == WARMUP else measured
            assert bytes(body.payload) == b"[" + source[body.seq] + b"]"
        assert [body.seq for body in result.kept.measured] == np.flatnonzero(keep).tolist()
        result.kept.close()
    assert list((task.work_dir).iterdir()) == []


async def test_trials_follow_one_another_in_the_same_processes(job: Job) -> None:
    async with raw_server(echo) as server, LoadProcesses(2) as generator:
        pids = generator.pids
        for load in (ClosedLoop(2), OpenLoop(500.0), ClosedLoop(1)):
            result = await generator.drive(job(server.url, load, 20, 0))
            assert len(result.samples.ok) == 20
        assert generator.pids == pids
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_warm_up_and_measurement_share_connections(job: Job) -> None:
    async with raw_server(echo) as server, LoadProcesses() as generator:
        result = await generator.drive(job(server.url, ClosedLoop(4), 40, 9))
        assert server.connections == 4
        assert (result.samples.measured.rows["connect_ns"] == 0).all()
        assert result.health.burst_in_statistics == 0
        result = await generator.drive(job(server.url, ClosedLoop(4), 40, 1))
        assert result.health.burst_in_statistics == 3
        found = health_findings(Place("t", "c", 0), ClosedLoop(4), result.health)
        assert "start-up-burst" in {finding.check for finding in found}


async def test_a_constant_server_is_measured_as_it_is(job: Job) -> None:
    with scripted_process(delay_s=0.05) as server:
        async with LoadProcesses() as generator:
            result = await generator.drive(job(f"{server.url}/embeddings", OpenLoop(100.0), 200, 5))
            oracle = server.oracle()["log"][-200:]
        own_ms = np.sort([(e["sent_ns"] - e["arrival_ns"]) / MS for e in oracle])
        assert own_ms[100] == pytest.approx(50, abs=10)  # the server kept to its script
        assert own_ms[100] <= service_ms(result)[100] < own_ms[100] + 10
        assert service_ms(result)[0] >= 50
        assert result.health.achieved_rps == pytest.approx(100, rel=0.02)
        assert result.health.planned_rps == pytest.approx(100)


async def test_a_queue_behind_one_slow_answer_is_in_the_response_times(job: Job) -> None:
    """faults: 8 requests at 10/s, serial, 500 ms each: mean 1.90 s, p99 3.27 s, max 3.30 s."""
    with scripted_process(delay_s=0.25, serial=True) as server:
        async with LoadProcesses() as generator:
            load = OpenLoop(20.0, max_in_flight=1)
            result = await generator.drive(job(f"{server.url}/embeddings", load, 8, 0))
        sent_ns = np.array([entry["sent_ns"] for entry in server.oracle()["log"]])
    scale = 2  # twice as fast as the row: rate and service time
    assert response_ms(result).mean() * scale >= 1900
    assert response_ms(result).max() * scale >= 3300
    assert np.percentile(response_ms(result), 99) * scale >= 3270
    # A busy machine makes the server slower than its script; what it did is what must be told.
    own_ms = (sent_ns - result.samples.rows["intended_start_ns"]) / MS
    assert response_ms(result) == pytest.approx(np.sort(own_ms), abs=50)
    assert service_ms(result).mean() * scale < 1000
    assert result.health.in_flight_max == 1


async def test_a_frozen_server_shows_in_the_percentiles(job: Job) -> None:
    """20/s for 5 s, 10 ms, frozen from 2 s to 3 s: 20 requests wait, 500 ms in the mean."""
    with scripted_process(delay_s=0.01, freeze_at_s=2.0, freeze_s=1.0) as server:
        async with LoadProcesses() as generator:
            job_ = job(f"{server.url}/embeddings", OpenLoop(20.0), 100, 0)
            result = await generator.drive(job_)
        times = response_ms(result)
        assert np.percentile(times, 50) < 100
        assert 18 <= (times > 100).sum() <= 22  # (1000 - 90) / 50 and a little
        assert np.percentile(times, 99) == pytest.approx(960, abs=60)


async def test_more_than_the_client_can_send_is_invalid_not_restamped(job: Job) -> None:
    async with raw_server(echo) as server, LoadProcesses() as generator:
        load = OpenLoop(1_000_000.0)
        result = await generator.drive(job(server.url, load, 1500, 0))
        rows = result.samples.measured.rows
        assert len(result.samples.measured) == 1500
        assert rows["intended_start_ns"][-1] - rows["intended_start_ns"][0] == 1_499_000
        assert result.health.send_lag_max_ns > 1_000_000
        found = health_findings(Place("t", "c", 0), load, result.health)
        fails = {finding.check for finding in found if finding.severity == "fail"}
        assert fails >= {"rate", "send-lag"}


async def test_failures_are_samples_and_nothing_hangs(job: Job) -> None:
    async def script(peer: Peer) -> None:
        while True:
            number = json.loads((await peer.request()).partition(b"\r\n\r\n")[2])["input"][0]
            match int(number.split()[1]) % 5:
                case 0:
                    await peer.say(b"HTTP/1.1 503 No\r\nContent-Length: 4\r\n\r\nbusy")
                case 1:
                    await asyncio.sleep(60)
                case 2:
                    peer.reset()
                case _:
                    await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")

    async with raw_server(script) as server, LoadProcesses(2) as generator:
        begin = time.monotonic()
        result = await generator.drive(job(server.url, OpenLoop(200.0), 50, 0, timeout_s=0.5))
        assert time.monotonic() - begin < 20
        counts = result.samples.error_counts()
        assert counts.pop("http-503") == 10
        assert counts.pop("timeout") == 10
        assert sum(counts.values()) == 10
        assert set(counts) <= {"connection-reset", "stale-connection"}
        assert len(result.samples.ok) == 20
        words = [bytes(b.payload) for b in result.kept if b.status == 503]
        assert words == [b"busy"] * 10


async def test_nothing_listens(job: Job, free_port: Callable[[], int]) -> None:
    async with LoadProcesses() as generator:
        url = f"http://127.0.0.1:{free_port()}/v1/embeddings"
        result = await generator.drive(job(url, ClosedLoop(3), 20, 2))
        assert result.samples.error_counts() == {"connect-refused": 22}


async def test_a_host_without_a_name_is_an_error_of_the_load(job: Job) -> None:
    async with LoadProcesses() as generator:
        with pytest.raises(LoadError, match="no such host"):
            await generator.drive(job("http://no-such-host.invalid/", ClosedLoop(1), 3, 1))


async def test_a_load_process_that_dies_fails_the_trial_and_not_the_next(job: Job) -> None:
    async def stuck(peer: Peer) -> None:
        await peer.request()
        await asyncio.sleep(60)

    async with LoadProcesses(2) as generator:
        async with raw_server(stuck) as server:
            trial = asyncio.ensure_future(
                generator.drive(job(server.url, ClosedLoop(4), 40, 0, timeout_s=60.0))
            )
            await until(lambda: server.connections == 4)
            victim = generator.pids[1]
            os.kill(victim, signal.SIGKILL)
            with pytest.raises(LoadError, match=rf"load process 1 \(pid {victim}\) was killed by"):
                await asyncio.wait_for(trial, 10)
        async with raw_server(echo) as server:
            result = await generator.drive(job(server.url, ClosedLoop(4), 40, 4))
            assert len(result.samples.ok) == 44


async def test_a_cancelled_trial_leaves_rows_and_no_process(job: Job) -> None:
    async def slow(peer: Peer) -> None:
        while True:
            await peer.request()
            await asyncio.sleep(0.002)
            await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")

    async with raw_server(slow) as server, LoadProcesses() as generator:
        task = job(server.url, ClosedLoop(2), 5000, 2)
        trial = asyncio.ensure_future(generator.drive(task))
        await until(lambda: len(server.requests) >= 500)
        pids = generator.pids
        trial.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await trial
        assert not any(psutil.pid_exists(pid) for pid in pids)
        left = salvage_rows(task.work_dir)
        assert 300 <= len(left) <= len(server.requests)
        assert left.measured.rows["seq"].tolist() == sorted(set(left.measured.rows["seq"]))
        assert (left.rows["status"] == 200).all()


def test_load_processes_end_with_their_conductor(tmp_path: Path) -> None:
    script = (
        "import asyncio\n"
        "from embbench.load.processes import LoadProcesses\n"
        "async def main():\n"
        "    async with LoadProcesses(2) as load:\n"
        "        print(*load.pids, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as conductor:
        assert conductor.stdout is not None
        pids = [int(pid) for pid in conductor.stdout.readline().split()]
        assert len(pids) == 2
        conductor.kill()
    _, alive = psutil.wait_procs([psutil.Process(p) for p in pids if psutil.pid_exists(p)], 5)
    assert not alive


def test_a_load_process_stays_small() -> None:
    code = "import sys, embbench.load.worker; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = {name.partition(".")[0] for name in out.stdout.split()}
    assert loaded >= {"numpy", "uvloop"}
    assert not loaded & {"pandas", "pyarrow", "pydantic", "aiohttp", "scipy", "typer", "rich"}


async def test_pinned_processes_run_where_they_were_put(job: Job) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    async with raw_server(echo) as server, LoadProcesses(1, cpus=cpus[-1:]) as generator:
        await generator.drive(job(server.url, ClosedLoop(1), 5, 0))
        assert os.sched_getaffinity(generator.pids[0]) == {cpus[-1]}


def spinning_on(cpu: int) -> list[psutil.Process]:
    """Processes of the idle class on that core alone, below this one."""
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if os.sched_getscheduler(child.pid) == os.SCHED_IDLE and child.cpu_affinity() == [cpu]
    ]


@pytest.mark.parametrize("keep_awake", [True, False])
async def test_a_pinned_core_is_kept_awake_in_a_trial_only(keep_awake: bool, job: Job) -> None:
    cpu = max(os.sched_getaffinity(0))
    async with (
        raw_server(echo) as server,
        LoadProcesses(1, cpus=[cpu], keep_awake=keep_awake) as generator,
    ):
        trial = asyncio.ensure_future(generator.drive(job(server.url, OpenLoop(20.0), 40, 0)))
        await until(lambda: len(server.requests) > 10)
        spinning = spinning_on(cpu)
        assert len(spinning) == keep_awake
        # what tells the conductor that a load process has ended is held by that process alone
        assert all(process.num_fds() == 3 for process in spinning)
        spent = [process.cpu_times().user for process in spinning]
        result = await trial
        assert len(result.samples.measured.ok) == 40
        assert not spinning_on(cpu)
        assert all(seconds > 0 for seconds in spent)  # that is, it does not sleep


def test_what_keeps_a_core_awake_ends_with_its_parent() -> None:
    awake = str(Path(embbench.load.__file__).with_name("awake.py"))
    cpu = str(min(os.sched_getaffinity(0)))
    script = (
        "import os, subprocess, sys\n"
        f"argv = [sys.executable, {awake!r}, {cpu!r}, str(os.getpid())]\n"
        "print(subprocess.Popen(argv).pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    argv, pipe = [sys.executable, "-c", script], subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    if psutil.pid_exists(pid):
        psutil.Process(pid).wait(10)


@pytest.mark.parametrize(
    "wrong",
    [
        {"load": ClosedLoop(0)},
        {"load": OpenLoop(10.0, max_in_flight=0)},
        {"load": OpenLoop(10.0), "offsets_ns": np.zeros(3, np.int64)},
        {"keep": np.ones(3, np.bool_)},
    ],
)
async def test_parts_that_do_not_fit(job: Job, wrong: dict[str, Any]) -> None:
    async with LoadProcesses() as generator:
        with pytest.raises(LoadError):
            await generator.drive(
                replace(job("http://127.0.0.1:9/", ClosedLoop(1), 10, 0), **wrong)
            )


def test_one_cpu_for_each_process() -> None:
    for count, cpus in ((0, None), (2, [0]), (1, [0, 1])):
        with pytest.raises(LoadError):
            LoadProcesses(count, cpus=cpus)


def test_most_in_flight_by_hand() -> None:
    def most(*spans: tuple[int, int]) -> int:
        starts, ends = np.array(spans, np.int64).reshape(-1, 2).T
        return in_flight_max(starts, ends)

    assert most() == 0
    assert most((0, 10)) == 1
    assert most((0, 10), (10, 20)) == 1  # one ends as the other starts
    assert most((0, 10), (5, 15), (9, 12), (20, 30)) == 3
    assert most((20, 30), (0, 100), (50, 60), (55, 58)) == 3


def healthy(**changes: Any) -> LoadHealth:
    values: dict[str, Any] = {
        "origin_ns": 0,
        "wall_s": 10.0,
        "planned_rps": 100.0,
        "achieved_rps": 100.0,
        "in_flight_max": 3,
        "send_lag_p50_ns": 20_000,
        "send_lag_p99_ns": 200_000,
        "send_lag_max_ns": 400_000,
        "stalls": (),
        "client_cpu_s": (0.5,),
        "client_rss_bytes": (40 << 20,),
        "burst_in_statistics": 0,
    }
    return LoadHealth(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "load", "expected"),
    [
        ({}, OpenLoop(100.0), {}),
        ({"achieved_rps": 99.1}, OpenLoop(100.0), {}),
        ({"achieved_rps": 98.9}, OpenLoop(100.0), {"rate": "fail"}),
        ({"achieved_rps": 101.1}, OpenLoop(100.0), {"rate": "fail"}),
        ({"achieved_rps": 50.0}, OpenLoop(100.0, max_in_flight=2), {"rate": "warn"}),
        ({"send_lag_p99_ns": 1_000_001}, OpenLoop(100.0), {"send-lag": "fail"}),
        ({"send_lag_p99_ns": 9_000_000}, OpenLoop(100.0, max_in_flight=2), {}),
        ({"stalls": ((5, 2_000_000),)}, OpenLoop(100.0), {"client-stalls": "info"}),
        ({"stalls": ((5, 200_000_000),)}, ClosedLoop(1), {"client-stalls": "warn"}),
        ({"burst_in_statistics": 2}, ClosedLoop(4), {"start-up-burst": "warn"}),
    ],
)
def test_health_in_findings(
    changes: dict[str, Any], load: OpenLoop | ClosedLoop, expected: dict[str, str]
) -> None:
    found = health_findings(Place("bare", "cell", 2), load, healthy(**changes))
    assert {finding.check: finding.severity for finding in found} == expected
    assert all((f.target, f.cell, f.trial) == ("bare", "cell", 2) for f in found)


def test_the_lag_limit_follows_the_answer() -> None:
    assert send_lag_limit_ns(None) == send_lag_limit_ns(5e6) == 1_000_000
    assert send_lag_limit_ns(540e6) == 27_000_000
    late = healthy(send_lag_p99_ns=3_000_000)
    place, load = Place("t", "c"), OpenLoop(100.0)
    assert health_findings(place, load, late, response_p50_ns=100e6) == []
    assert health_findings(place, load, late, send_lag_p99_limit_ns=2_000_000)
    assert health_findings(place, load, late, exhausted=3)[0].check == "client-exhausted"

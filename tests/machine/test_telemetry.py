"""Telemetry against processes of known appetite."""

import asyncio
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from embbench.errors import RunError
from embbench.machine.gpu import throttle_reasons, visible_index, wait_memory_back
from embbench.machine.telemetry import (
    Reading,
    Sampler,
    read_telemetry,
    telemetry_findings,
    usage,
    write_telemetry,
)
from embbench.targets.endpoint import Endpoint, Process
from embbench.targets.processes import ProcessSpec, ProcessTree

BURNER = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
memory = bytearray(64 << 20)
print("up", flush=True)
time.sleep(300)
"""


def cpu_seconds(tree: ProcessTree) -> float:
    """What the system says of the tree's processes, by another way."""
    times = [psutil.Process(pid).cpu_times() for pid in tree.members()]
    return sum(t.user + t.system for t in times)


async def test_a_tree_that_burns_a_core_is_seen_with_its_detached_child(tmp_path: Path) -> None:
    spec = ProcessSpec("server", (sys.executable, "-c", BURNER), stop_grace_s=2)
    tree = await ProcessTree.start(spec, tmp_path / "log")
    try:
        while "up" not in tree.log.read_text():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        endpoint = Endpoint("burner", "http://127.0.0.1:1/v1", "m", processes=(tree.describe(),))
        began, before_s = time.monotonic(), cpu_seconds(tree)
        async with Sampler(endpoint.trees, interval_s=0.3) as sampler:
            await asyncio.sleep(2.0)
        truth = (cpu_seconds(tree) - before_s) / (time.monotonic() - began)
    finally:
        await tree.stop()
    rows = {row.subject: row for row in usage(sampler.readings)}
    burner = rows["burner/server"]
    assert burner.cpu_cores_mean is not None
    assert truth > 0.02  # it had some time, however busy this machine is
    assert burner.cpu_cores_mean == pytest.approx(truth, rel=0.3, abs=0.05)
    assert burner.memory_max_bytes is not None
    assert burner.memory_max_bytes > 64 << 20
    host = rows["host"].cpu_cores_mean
    assert host is not None
    assert host >= burner.cpu_cores_mean * 0.8
    assert rows["embbench"].cpu_cores_mean is not None
    assert len({r.time_ns for r in sampler.readings}) >= 3
    assert {r.processes for r in sampler.readings if r.subject == "burner/server"} == {2}


async def test_a_short_trial_has_a_reading() -> None:
    async with Sampler({}) as sampler:
        await asyncio.sleep(0.01)
    assert {r.subject for r in sampler.readings} >= {"host", "embbench", "load"}


async def test_a_process_that_ended_does_not_stop_the_sampler() -> None:
    gone = Process("server", 2**22 - 2, (), {}, Path("x"), supervisor_pid=2**22 - 3)
    endpoint = Endpoint("gone", "http://127.0.0.1:1/v1", "m", processes=(gone,))
    async with Sampler(endpoint.trees, [2**22 - 4], interval_s=0.05) as sampler:
        await asyncio.sleep(0.2)
    assert {r.processes for r in sampler.readings if r.subject == "gone/server"} == {0}


def test_readings_survive_the_file(tmp_path: Path) -> None:
    readings = [
        Reading(1, "host", "host", cpu_cores=1.5, load_average=0.3, steal_share=0.0),
        Reading(1, "gpu", "GPU-1", sm_clock_mhz=1980, throttle_bits=0, power_w=651.25),
        Reading(2, "target", "bare/server", cpu_cores=0.5, memory_bytes=2**40, processes=3),
    ]
    path = tmp_path / "telemetry/trial-00.parquet"
    write_telemetry(path, readings)
    assert read_telemetry(path) == readings
    assert [p.name for p in path.parent.iterdir()] == ["trial-00.parquet"]
    write_telemetry(path, [])
    assert read_telemetry(path) == []
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RunError, match="cannot be read as telemetry"):
        read_telemetry(path)
    with pytest.raises(RunError):
        read_telemetry(tmp_path / "missing.parquet")


def host(time_ns: int, cores: float, steal: float = 0.0) -> Reading:
    return Reading(time_ns, "host", "host", cpu_cores=cores, steal_share=steal)


def used(time_ns: int, cores: float, kind: str = "target") -> Reading:
    return Reading(time_ns, kind, f"{kind}/server", cpu_cores=cores)  # type: ignore[arg-type]


def test_a_quiet_machine_has_no_findings() -> None:
    readings = [
        *(host(t, 1.6) for t in range(10)),
        *(used(t, 0.9) for t in range(10)),
        *(used(t, 0.6, "load") for t in range(10)),
        *(Reading(t, "gpu", "GPU-1", sm_clock_mhz=1980, throttle_bits=1) for t in range(10)),
    ]
    assert telemetry_findings(readings, target="bare") == []
    assert telemetry_findings([], target="bare") == []


def test_a_busy_neighbour_stolen_time_and_a_hot_gpu_are_told() -> None:
    readings = [
        *(host(t, 1.9, steal=0.1) for t in range(10)),
        *(used(t, 0.9) for t in range(10)),
        *(
            Reading(t, "gpu", "GPU-1", sm_clock_mhz=1965 - 50 * t, throttle_bits=0x24 * (t > 6))
            for t in range(10)
        ),
    ]
    found = {f.check: f for f in telemetry_findings(readings, target="bare", cell="b1", trial=2)}
    assert found.keys() == {"noisy-host", "cpu-steal", "gpu-throttled"}
    assert "1.00 cores" in found["noisy-host"].what
    assert "10.0%" in found["cpu-steal"].what
    slowed = found["gpu-throttled"]
    assert "3 of 10 readings" in slowed.what
    assert "software power cap, software thermal slowdown" in slowed.what
    assert "1515 to 1965 MHz" in slowed.what
    assert (slowed.severity, slowed.target, slowed.cell, slowed.trial) == ("warn", "bare", "b1", 2)


@pytest.mark.parametrize(
    ("visible", "index", "position"),
    [
        (None, 3, 3),
        ("3,1", 3, 0),
        ("3,1", 1, 1),
        ("3,1", 0, None),
        ("", 0, None),
        ("-1", 0, None),
        ("1,-1,0", 0, None),
        ("GPU-ab", 2, 0),
        ("GPU-cd", 2, None),
        (" 0 , 2 ", 2, 1),
    ],
)
def test_visible_gpus(visible: str | None, index: int, position: int | None) -> None:
    assert visible_index(index, "GPU-abcd", visible) == position


def test_idle_and_user_set_clocks_are_no_throttling() -> None:
    assert throttle_reasons(0x1 | 0x2 | 0x10 | 0x100) == []
    assert throttle_reasons(0x8 | 0x40) == ["hardware slowdown", "hardware thermal slowdown"]


async def test_memory_that_comes_back_is_waited_for_and_memory_that_does_not_is_an_error() -> None:
    from embbench.errors import TargetError

    before = {"GPU-1": 10 << 30, "GPU-2": 0}
    levels = iter([60 << 30, 20 << 30, (10 << 30) + (1 << 20)])
    said: list[str] = []
    await wait_memory_back(
        before, read=lambda: {"GPU-1": next(levels), "GPU-2": 0}, on_progress=said.append
    )
    assert len(said) == 2
    assert "GPU GPU-1 holds 51200 MiB more" in said[0]
    with pytest.raises(TargetError, match="GPU-2 holds 1024 MiB more"):
        await wait_memory_back(before, timeout_s=0.2, read=lambda: {"GPU-1": 0, "GPU-2": 1 << 30})
    await wait_memory_back({}, timeout_s=0)


def test_the_interpreter_counts_its_own_ticks() -> None:
    from embbench.machine.telemetry.sampler import _process

    told = _process(os.getpid())
    assert told is not None
    ticks, resident = told
    user, system, *_ = os.times()
    assert abs(ticks / os.sysconf("SC_CLK_TCK") - (user + system)) < 1.0
    assert resident > 10 << 20

"""Judgements on machines that are not here, and a look at the one that is."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from embbench.doctor import (
    Machine,
    Pinning,
    examine,
    judge,
    physical_cores,
    propose_pinning,
)
from embbench.doctor.machine import stale_segments
from embbench.machine.gpu import Gpu, GpuReading
from embbench.reference.segments import prefix_of
from embbench.targets.environment import ServerEnvironment

GOOD = Machine(server=ServerEnvironment("/venv/bin/python", vllm="0.21.0", dynamo="1.0"))
H200 = Gpu(0, "GPU-1", "NVIDIA H200", "580.65", 0, 140 << 30)
IDLE = GpuReading("GPU-1", 0, 0.0, 1980, 3201, 75.0, 31, 0)


def test_a_good_machine_has_no_complaint() -> None:
    checks = judge(replace(GOOD, gpus=(H200,), gpu_readings=(IDLE,)))
    assert {check.status for check in checks} == {"ok"}
    assert len({check.name for check in checks}) == len(checks)


@pytest.mark.parametrize(
    ("change", "name", "status", "words"),
    [
        ({"python": "3.14.0"}, "python", "warn", "3.11 to 3.13"),
        ({"missing_packages": ("orjson",)}, "python", "fail", "orjson"),
        ({"server": None, "server_problem": "it does not run"}, "servers", "fail", "not run"),
        ({"server": ServerEnvironment("/p")}, "servers", "warn", "no vLLM"),
        ({"server": ServerEnvironment("/p", vllm="0.21.0")}, "servers", "warn", "no Dynamo"),
        ({"gpu_devices": 2}, "gpu", "fail", "NVML does not answer"),
        ({"gpus": (replace(H200, visible_as=None),)}, "gpu", "warn", "hides every GPU"),
        (
            {"gpus": (H200,), "gpu_readings": (replace(IDLE, memory_used_bytes=70 << 30),)},
            "gpu",
            "warn",
            "already holds 70.0 GiB",
        ),
        (
            {"gpus": (H200,), "gpu_readings": (replace(IDLE, throttle_bits=0x40),)},
            "gpu",
            "warn",
            "hardware thermal slowdown",
        ),
        ({"loopback_problem": "no route"}, "ports", "fail", "no route"),
        ({"free_ports": 3}, "ports", "fail", "hardly any free port"),
        ({"ephemeral_ports": 500}, "ports", "warn", "only 500 ports"),
        ({"shm_free_bytes": 64 << 20}, "shared memory", "warn", "64 MiB"),
        ({"shm_free_bytes": None}, "shared memory", "fail", "missing"),
        ({"shm_writable": False}, "shared memory", "fail", "not writable"),
        ({"stale_segments": ("embbench-1-2-3-f",)}, "shared memory", "warn", "1 segments of dead"),
        ({"governor": "powersave"}, "cpu frequency", "warn", "powersave"),
        ({"frequency_share": 0.4}, "cpu frequency", "warn", "40%"),
        ({"cores": {0: 0}}, "cores", "fail", "share one core"),
        ({"cores": {0: 0, 1: 0}}, "cores", "fail", "share one core"),
        ({"cores": {0: 0, 1: 1}}, "cores", "warn", "load processes on 1, servers on 0"),
        ({"cgroup_cpus": 2.5}, "cores", "warn", "allows 2.5 CPUs"),
        ({"busy_cores": 1.7}, "quiet", "warn", "1.7 cores busy"),
        ({"steal_share": 0.1}, "quiet", "warn", "hypervisor"),
        ({"other_runs": (4711,)}, "quiet", "warn", "4711"),
        ({"open_files_limit": 1024}, "open files", "warn", "1024"),
        ({"memory_available_bytes": 3 << 30}, "memory", "warn", "3.0 GiB"),
        ({"memory_available_bytes": 1 << 28}, "memory", "fail", "0.2 GiB"),
        ({"swap_used_bytes": 1 << 30}, "memory", "warn", "swapped out"),
        ({"clock_source": "hpet"}, "clock", "warn", "hpet"),
        ({"clock_read_ns": 2500.0}, "clock", "warn", "2500 ns"),
        ({"temp_free_bytes": 1 << 20}, "temporary files", "warn", "/tmp"),
    ],
)
def test_what_would_be_wrong_is_said_with_what_to_do(
    change: dict[str, object], name: str, status: str, words: str
) -> None:
    checks = judge(replace(GOOD, **change))  # type: ignore[arg-type]
    (complaint,) = [check for check in checks if check.status != "ok"]
    assert (complaint.name, complaint.status) == (name, status)
    assert words in complaint.what
    assert complaint.do


def test_no_limit_on_open_files_is_fine() -> None:
    assert {c.status for c in judge(replace(GOOD, open_files_limit=-1))} == {"ok"}


def test_a_server_environment_that_nobody_named_is_pointed_out() -> None:
    check = next(c for c in judge(replace(GOOD, server_chosen=False)) if c.name == "servers")
    assert check.do == "export EMBBENCH_SERVER_PYTHON=/venv/bin/python"


def test_this_machine_is_examined() -> None:
    checks = examine(server_python=sys.executable)
    assert [c.name for c in checks] == [c.name for c in judge(GOOD)]
    json.dumps([check.to_json() for check in checks])
    assert next(c for c in checks if c.name == "python").status == "ok"
    assert next(c for c in checks if c.name == "ports").status == "ok"
    broken = examine(server_python="/no/such/python")
    servers = next(c for c in broken if c.name == "servers")
    assert servers.status == "fail"
    assert "no such program" in servers.what


@pytest.mark.parametrize(
    ("cpus", "load_processes", "cores", "load", "server"),
    [
        (range(8), 2, None, (6, 7), (0, 1, 2, 3, 4, 5)),
        (range(2), 1, None, (1,), (0,)),
        ([3, 5, 9], 1, None, (9,), (3, 5)),
        # SMT: 0/4, 1/5, 2/6, 3/7 share a core; the load process's sibling stays idle
        (range(8), 1, {4: 0, 5: 1, 6: 2, 7: 3}, (3,), (0, 1, 2, 4, 5, 6)),
        (range(8), 3, {4: 0, 5: 1, 6: 2, 7: 3}, (1, 2, 3), (0, 4)),
        # siblings numbered side by side
        (range(4), 1, {1: 0, 3: 2}, (2,), (0, 1)),
    ],
)
def test_load_processes_get_cores_of_their_own(
    cpus: range, load_processes: int, cores: dict[int, int] | None, load: object, server: object
) -> None:
    pinning = propose_pinning(cpus, load_processes, cores)
    assert pinning is not None
    assert (pinning.load, pinning.server) == (load, server)
    assert pinning.apart(cores or {})


def test_siblings_are_not_apart() -> None:
    smt = {4: 0, 5: 1, 6: 2, 7: 3}
    assert not Pinning(load=(7,), server=(0, 1, 2, 3)).apart(smt)
    assert not Pinning(load=(3,), server=(6, 7)).apart(smt)
    assert Pinning(load=(3, 7), server=(0, 1, 2, 4, 5, 6)).apart(smt)


def test_too_few_cores_are_not_shared_out() -> None:
    assert propose_pinning([0], 1) is None
    assert propose_pinning([0, 1], 2) is None
    assert propose_pinning([0, 1], 1, {0: 0, 1: 0}) is None


def test_physical_cores_are_those_that_may_be_used() -> None:
    assert physical_cores().keys() == os.sched_getaffinity(0)


def test_segments_of_the_dead_are_stale_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    dead = subprocess.Popen(["sleep", "60"])
    name_of_dead = f"{prefix_of(dead.pid)}{'0' * 16}"
    dead.kill()
    dead.wait()
    for name in (name_of_dead, f"{prefix_of(os.getpid())}{'0' * 16}", "embbench-x", "psm_1"):
        (tmp_path / name).touch()
    assert stale_segments(tmp_path) == (name_of_dead,)

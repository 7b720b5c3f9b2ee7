"""Everything that the doctor looks at, read once.

In: the running system. Out: a `Machine`; None where the system does not tell.
"""

import importlib.metadata
import importlib.util
import os
import platform
import re
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from embbench.doctor.pinning import physical_cores
from embbench.errors import ConfigError
from embbench.machine.gpu import Gpu, GpuReading, gpus, read_gpus
from embbench.machine.metadata import (
    cgroup_cpus,
    cgroup_memory,
    governor,
    is_virtual,
    read_text,
    shm_free,
    turbo,
)
from embbench.machine.supervisor import stat_fields
from embbench.targets.environment import VARIABLE, ServerEnvironment, look, server_python
from embbench.targets.ports import LOOPBACK, candidate_ports, ephemeral_range

_IMPORT_NAMES = {
    "nvidia-ml-py": "pynvml",
    "pysimdjson": "simdjson",
    "pyyaml": "yaml",
}
"""Distributions whose module is called otherwise."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine as the doctor sees it. The defaults are a good one."""

    python: str = "3.12.0"
    missing_packages: tuple[str, ...] = ()
    server: ServerEnvironment | None = None
    server_problem: str = ""
    server_chosen: bool = True
    """Named, or this very interpreter: a sweep without a config will take it."""
    gpus: tuple[Gpu, ...] = ()
    gpu_readings: tuple[GpuReading, ...] = ()
    gpu_devices: int = 0
    """NVIDIA device files; NVML may still not answer."""
    loopback_problem: str = ""
    free_ports: int = 1000
    ephemeral_ports: int = 28_000
    shm_free_bytes: int | None = 16 << 30
    shm_writable: bool = True
    stale_segments: tuple[str, ...] = ()
    governor: str | None = "performance"
    turbo: str | None = None
    frequency_share: float | None = None
    """Current CPU frequency as a share of the highest, under no load in particular."""
    virtual_machine: bool = False
    cores: Mapping[int, int] = field(default_factory=lambda: {cpu: cpu for cpu in range(16)})
    """Logical CPU -> physical core, for the CPUs that may be used."""
    cgroup_cpus: float | None = None
    busy_cores: float = 0.0
    steal_share: float = 0.0
    other_runs: tuple[int, ...] = ()
    """Pids of targets of embbench that are up now."""
    open_files_limit: int = 65_536
    memory_available_bytes: int = 64 << 30
    swap_used_bytes: int = 0
    clock_source: str | None = "tsc"
    clock_read_ns: float = 50.0
    temp_free_bytes: int = 64 << 30
    temp_folder: str = "/tmp"


def read_machine(named_python: str | None = None) -> Machine:
    """This machine. Takes about half a second, to see how busy it is."""
    import psutil

    environment, problem = _server_environment(named_python)
    before = psutil.cpu_times()
    began = time.monotonic()
    time.sleep(0.5)
    after, span_s = psutil.cpu_times(), time.monotonic() - began
    cpus = os.cpu_count() or 1
    idle = after.idle - before.idle + after.iowait - before.iowait
    stolen = after.steal - before.steal
    limit = cgroup_memory()
    available = psutil.virtual_memory().available
    temp = Path(tempfile.gettempdir())
    low, high = ephemeral_range()
    return Machine(
        python=platform.python_version(),
        missing_packages=_missing_packages(),
        server=environment,
        server_problem=problem,
        server_chosen=bool(named_python or os.environ.get(VARIABLE))
        or environment is None
        or environment.python == sys.executable,
        gpus=tuple(gpus()),
        gpu_readings=tuple(read_gpus()),
        gpu_devices=len(list(Path("/dev").glob("nvidia[0-9]*"))),
        loopback_problem=_loopback_problem(),
        free_ports=_free_ports(),
        ephemeral_ports=high - low + 1,
        shm_free_bytes=shm_free(),
        shm_writable=os.access("/dev/shm", os.W_OK),
        stale_segments=stale_segments(Path("/dev/shm")),
        governor=governor(),
        turbo=turbo(),
        frequency_share=_frequency_share(),
        virtual_machine=is_virtual(),
        cores=physical_cores(),
        cgroup_cpus=cgroup_cpus(),
        busy_cores=max(0.0, cpus - (idle + stolen) / span_s),
        steal_share=stolen / span_s / cpus,
        other_runs=_other_runs(),
        open_files_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        memory_available_bytes=available if limit is None else min(available, limit),
        swap_used_bytes=psutil.swap_memory().used,
        clock_source=read_text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        clock_read_ns=_clock_read_ns(),
        temp_free_bytes=shutil.disk_usage(temp).free,
        temp_folder=str(temp),
    )


def stale_segments(folder: Path) -> tuple[str, ...]:
    """Shared memory that reference workers left: the process that a name tells of is gone."""
    stale = []
    for path in folder.glob("embbench-*"):
        parts = path.name.split("-")  # embbench-NAMESPACE-PID-STARTED-RANDOM
        if len(parts) == 5 and parts[2].isdigit():
            fields = stat_fields(int(parts[2]))
            if fields is None or str(fields[3]) != parts[3]:
                stale.append(path.name)
    return tuple(sorted(stale))


def _server_environment(named: str | None) -> tuple[ServerEnvironment | None, str]:
    try:
        return look(server_python(named)), ""
    except ConfigError as exc:
        return None, str(exc)


def _missing_packages() -> tuple[str, ...]:
    try:
        requires = importlib.metadata.requires("embbench") or []
    except importlib.metadata.PackageNotFoundError:
        return ()
    names = [
        re.split(r"[\s<>=!~;\[]", line, maxsplit=1)[0] for line in requires if "extra" not in line
    ]
    return tuple(
        name for name in names if importlib.util.find_spec(_IMPORT_NAMES.get(name, name)) is None
    )


def _loopback_problem() -> str:
    try:
        with (
            socket.create_server((LOOPBACK, 0)) as server,
            socket.create_connection(server.getsockname(), timeout=5),
        ):
            return ""
    except OSError as exc:
        return str(exc)


def _free_ports(wanted: int = 200) -> int:
    """How many of ``wanted`` ports, spread over those that embbench draws from, are free."""
    candidates = candidate_ports()
    free = 0
    for port in candidates[:: max(1, len(candidates) // wanted)]:
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, port))
                free += 1
            except OSError:
                continue
    return free


def _frequency_share() -> float | None:
    shares = []
    for folder in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq"):
        now, top = read_text(folder / "scaling_cur_freq"), read_text(folder / "cpuinfo_max_freq")
        if now and top and now.isdigit() and top.isdigit() and int(top):
            shares.append(int(now) / int(top))
    return sum(shares) / len(shares) if shares else None


def _other_runs() -> tuple[int, ...]:
    """Supervisors of targets that are up now, whoever started them."""
    import psutil

    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        words = process.info["cmdline"] or []
        if any(word.endswith("embbench/machine/supervisor.py") for word in words):
            found.append(process.info["pid"])
    return tuple(found)


def _clock_read_ns() -> float:
    count = 2000
    began = time.perf_counter_ns()
    for _ in range(count):
        time.perf_counter_ns()
    return (time.perf_counter_ns() - began) / count

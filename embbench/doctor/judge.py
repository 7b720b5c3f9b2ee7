"""The judgements: what each reading of a `Machine` means for a run.

In: a `Machine`. Out: a `Check` a point, in the order of their weight for somebody who reads them.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final, Literal

from embbench.doctor.machine import Machine
from embbench.doctor.pinning import propose_pinning
from embbench.machine.gpu import throttle_reasons
from embbench.machine.metadata import as_ranges, gib

Status = Literal["ok", "warn", "fail"]

GOOD_CLOCKS: Final = frozenset({"tsc", "kvm-clock", "arch_sys_counter"})
OPEN_FILES: Final = 4096
SHM_BYTES: Final = 256 << 20
TEMP_BYTES: Final = 2 << 30
BUSY_CORES: Final = 0.3
STEAL_SHARE: Final = 0.02


@dataclass(frozen=True, slots=True)
class Check:
    """One point. ``warn``: figures would suffer; ``fail``: a run would not work or not be sound."""

    name: str
    status: Status
    what: str
    do: str = ""

    def to_json(self) -> dict[str, str]:
        """The check as JSON-ready values."""
        return asdict(self)


def judge(machine: Machine) -> list[Check]:
    """All checks of a machine."""
    return [check(machine) for check in CHECKS]


def _python(m: Machine) -> Check:
    if m.missing_packages:
        missing = ", ".join(m.missing_packages)
        return Check("python", "fail", f"packages are missing: {missing}", f"pip install {missing}")
    major, minor = (int(part) for part in m.python.split(".")[:2])
    if not (3, 11) <= (major, minor) <= (3, 13):
        what = f"Python {m.python}; embbench is tested on 3.11 to 3.13"
        return Check("python", "warn", what, "use one of those")
    return Check("python", "ok", f"Python {m.python}, all dependencies installed")


def _servers(m: Machine) -> Check:
    if m.server is None:
        return Check("servers", "fail", m.server_problem, "name another interpreter, or none")
    has = {"vLLM": m.server.vllm, "Dynamo": m.server.dynamo}
    found = ", ".join(f"{name} {version}" for name, version in has.items() if version)
    if m.server.vllm is None:
        return Check(
            "servers",
            "warn",
            f"no vLLM in {m.server.python}: only reference, command and external targets run here",
            "install vLLM, or name its interpreter: --server-python or EMBBENCH_SERVER_PYTHON",
        )
    if m.server.dynamo is None:
        do = "install ai-dynamo beside vLLM to measure the split server, too"
        return Check("servers", "warn", f"{found} in {m.server.python}, no Dynamo", do)
    if not m.server_chosen:
        what = f"{found} in {m.server.python}, which a sweep without a config does not look for"
        return Check("servers", "ok", what, f"export EMBBENCH_SERVER_PYTHON={m.server.python}")
    return Check("servers", "ok", f"{found} in {m.server.python}")


def _gpu(m: Machine) -> Check:
    if not m.gpus:
        if m.gpu_devices:
            what = f"{m.gpu_devices} NVIDIA devices, but NVML does not answer"
            return Check("gpu", "fail", what, "run nvidia-smi; driver and library must match")
        return Check("gpu", "ok", "no NVIDIA GPU; CPU servers can be measured")
    names = ", ".join(f"{gpu.index}: {gpu.name}" for gpu in m.gpus)
    if all(gpu.visible_as is None for gpu in m.gpus):
        what = f"CUDA_VISIBLE_DEVICES hides every GPU ({names})"
        return Check("gpu", "warn", what, "unset it, or list the GPU to use")
    visible = {gpu.uuid: gpu for gpu in m.gpus if gpu.visible_as is not None}
    for reading in m.gpu_readings:
        gpu = visible.get(reading.uuid)
        if gpu is None:
            continue
        used = reading.memory_used_bytes or 0
        if used > 0.05 * gpu.memory_total_bytes:
            what = f"GPU {gpu.index} ({gpu.name}) already holds {gib(used)}"
            return Check("gpu", "warn", what, "end its other users (nvidia-smi shows them)")
        if slow := throttle_reasons(reading.throttle_bits or 0):
            what = f"GPU {gpu.index} ({gpu.name}) is slowed down: {', '.join(slow)}"
            return Check("gpu", "warn", what, "let it cool, or look at its power limit")
    return Check("gpu", "ok", f"{names}, driver {m.gpus[0].driver}")


def _ports(m: Machine) -> Check:
    if m.loopback_problem:
        what = f"127.0.0.1 cannot be used: {m.loopback_problem}"
        return Check("ports", "fail", what, "bring the loopback interface up (ip link set lo up)")
    if m.free_ports < 20:
        what = f"hardly any free port below the ephemeral range ({m.free_ports} of 200 tried)"
        return Check("ports", "fail", what, "see who holds them: ss -ltnp")
    if m.ephemeral_ports < 10_000:
        what = f"only {m.ephemeral_ports} ports for outgoing connections"
        return Check("ports", "warn", what, "widen net.ipv4.ip_local_port_range")
    what = f"loopback works, {m.ephemeral_ports} ports for outgoing connections"
    return Check("ports", "ok", what)


def _shared_memory(m: Machine) -> Check:
    if m.shm_free_bytes is None or not m.shm_writable:
        what = "/dev/shm is missing or not writable: the shm hop and vLLM need it"
        return Check("shared memory", "fail", what, "mount a tmpfs there (docker: --shm-size 8g)")
    if m.shm_free_bytes < SHM_BYTES:
        what = f"/dev/shm has only {m.shm_free_bytes >> 20} MiB free"
        return Check("shared memory", "warn", what, "enlarge it (docker: --shm-size 8g)")
    if m.stale_segments:
        what = f"{len(m.stale_segments)} segments of dead servers: {m.stale_segments[0]} ..."
        do = f"rm {' '.join('/dev/shm/' + name for name in m.stale_segments[:3])}"
        return Check("shared memory", "warn", what, do + (" ..." if m.stale_segments[3:] else ""))
    return Check("shared memory", "ok", f"/dev/shm has {gib(m.shm_free_bytes)} free")


def _frequency(m: Machine) -> Check:
    if m.governor is None:
        why = "as usual in a virtual machine" if m.virtual_machine else "by this kernel"
        return Check("cpu frequency", "ok", f"no governor told, {why}")
    facts = f"governor {m.governor}" + (f", turbo {m.turbo}" if m.turbo else "")
    if m.governor != "performance":
        do = "cpupower frequency-set -g performance"
        return Check("cpu frequency", "warn", f"{facts}: clocks follow the load", do)
    if m.frequency_share is not None and m.frequency_share < 0.7:
        what = f"{facts}, yet at {m.frequency_share:.0%} of the highest frequency"
        return Check("cpu frequency", "warn", what, "look for a power limit or heat")
    return Check("cpu frequency", "ok", facts)


def _cores(m: Machine) -> Check:
    usable = len(m.cores)
    physical = len(set(m.cores.values()))
    pinning = propose_pinning(m.cores, 1, m.cores)
    facts = f"{usable} logical CPUs ({as_ranges(m.cores)}), {physical} physical"
    if m.cgroup_cpus is not None and m.cgroup_cpus < usable:
        what = f"{facts}, but the control group allows {m.cgroup_cpus:g} CPUs' time and then pauses"
        return Check("cores", "warn", what, "lift the limit, or give whole cores (cpuset)")
    if pinning is None:
        what = f"{facts}: server and client share one core"
        return Check("cores", "fail", what, "use a machine with at least 4 cores")
    if physical < 4:
        what = f"{facts}: server and client take time from each other; possible: {pinning}"
        return Check("cores", "warn", what, "prefer 4 cores or more, or pin: --pin auto")
    return Check("cores", "ok", f"{facts}; with --pin auto: {pinning}")


def _quiet(m: Machine) -> Check:
    if m.other_runs:
        pids = ", ".join(map(str, m.other_runs[:5]))
        what = f"{len(m.other_runs)} targets of embbench are up now (supervisors: {pids})"
        return Check("quiet", "warn", what, "wait for the other run to end")
    if m.steal_share > STEAL_SHARE:
        what = f"the hypervisor gives {m.steal_share:.0%} of the CPU time to others"
        return Check("quiet", "warn", what, "use a machine with dedicated cores")
    if m.busy_cores > BUSY_CORES:
        what = f"other programs keep {m.busy_cores:.1f} cores busy"
        return Check("quiet", "warn", what, "stop them (top shows which)")
    return Check("quiet", "ok", f"{m.busy_cores:.1f} cores busy")


def _files(m: Machine) -> Check:
    if 0 <= m.open_files_limit < OPEN_FILES:
        what = f"at most {m.open_files_limit} open files: too few for many connections"
        return Check("open files", "warn", what, f"ulimit -n {OPEN_FILES}")
    return Check("open files", "ok", f"limit {m.open_files_limit}")


def _memory(m: Machine) -> Check:
    free = gib(m.memory_available_bytes)
    if m.memory_available_bytes < 1 << 30:
        return Check("memory", "fail", f"only {free} available", "end other programs")
    if m.memory_available_bytes < 4 << 30:
        what = f"{free} available; answers to large batches are kept until they are verified"
        return Check("memory", "warn", what, "lower checks.budget_mib, or end other programs")
    if m.swap_used_bytes > 256 << 20:
        what = f"{gib(m.swap_used_bytes)} are swapped out; pages that come back stall a request"
        return Check("memory", "warn", what, "swapoff -a while you measure")
    return Check("memory", "ok", f"{free} available")


def _clock(m: Machine) -> Check:
    facts = f"{m.clock_source or 'unknown'}, {m.clock_read_ns:.0f} ns a reading"
    if (m.clock_source is not None and m.clock_source not in GOOD_CLOCKS) or m.clock_read_ns > 1000:
        do = "boot with clocksource=tsc, if the processor's is stable"
        return Check("clock", "warn", f"slow clock: {facts}", do)
    return Check("clock", "ok", facts)


def _disk(m: Machine) -> Check:
    facts = f"{gib(m.temp_free_bytes)} free in {m.temp_folder}"
    if m.temp_free_bytes < TEMP_BYTES:
        return Check("temporary files", "warn", facts, "request bodies lie there: set TMPDIR")
    return Check("temporary files", "ok", facts)


CHECKS: Final[tuple[Callable[[Machine], Check], ...]] = (
    *(_python, _servers, _gpu, _cores, _quiet, _frequency, _memory, _shared_memory),
    *(_ports, _files, _clock, _disk),
)

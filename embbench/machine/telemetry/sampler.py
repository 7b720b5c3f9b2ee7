"""Read CPU, memory and GPUs about once a second while a trial runs.

In: the process trees of the targets, the pids of the load processes. Out: `Reading`s.
Runs in embbench's own process, which idles during a trial; a reading costs about a millisecond.
"""

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from embbench.machine.gpu import read_gpus
from embbench.machine.supervisor import descendants
from embbench.machine.telemetry.readings import Kind, Reading

INTERVAL_S: Final = 1.0
_RESCAN_EVERY: Final = 10
"""Readings between two looks for new processes; that look walks over all of /proc."""

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_CPU = Path("/sys/devices/system/cpu")


@dataclass(slots=True)
class _Group:
    """Processes that are one subject: descendants of ``root``, or just ``pids``."""

    kind: Kind
    subject: str
    root: int | None = None
    pids: tuple[int, ...] = ()
    ticks: dict[int, int] = field(default_factory=dict)

    def look_for_members(self) -> None:
        if self.root is not None:
            self.pids = tuple(descendants(self.root))

    def read(self, time_ns: int, interval_s: float) -> Reading:
        used = resident = alive = 0
        for pid in self.pids:
            if (told := _process(pid)) is not None:
                ticks, resident_bytes = told
                used += ticks - self.ticks.get(pid, ticks)
                self.ticks[pid] = ticks
                resident += resident_bytes
                alive += 1
        return Reading(
            time_ns,
            self.kind,
            self.subject,
            cpu_cores=used / _TICKS_PER_S / interval_s,
            memory_bytes=resident,
            processes=alive,
        )


class Sampler:
    """``async with Sampler(trees, load_pids) as sampler:`` … ``sampler.readings``.

    ``trees`` are the targets' process trees: a name, and the pid whose descendants they are.

    Leaving the block takes a last reading, so that even a short trial has one.
    """

    def __init__(
        self,
        trees: Mapping[str, int],
        load_pids: Sequence[int] = (),
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self.readings: list[Reading] = []
        self._interval_s = interval_s
        self._groups = [_Group("target", subject, root=pid) for subject, pid in trees.items()]
        self._groups.append(_Group("load", "load", pids=tuple(load_pids)))
        self._groups.append(_Group("embbench", "embbench", pids=(os.getpid(),)))
        self._host = (0, 0, 0)
        self._last_ns = 0
        self._count = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._read)  # the base that the first differences refer to
        self.readings.clear()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if time.monotonic_ns() - self._last_ns > self._interval_s * 1e9 / 4 or not self.readings:
            self._read()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await asyncio.to_thread(self._read)

    def _read(self) -> None:
        if self._count % _RESCAN_EVERY == 0:
            for group in self._groups:
                group.look_for_members()
        self._count += 1
        now_ns = time.monotonic_ns()
        interval_s = max((now_ns - self._last_ns) / 1e9, 1e-3)
        self._last_ns = now_ns
        self.readings += [group.read(now_ns, interval_s) for group in self._groups]
        self.readings.append(self._read_host(now_ns, interval_s))
        self.readings += [
            Reading(
                now_ns,
                "gpu",
                gpu.uuid,
                memory_bytes=gpu.memory_used_bytes,
                gpu_utilisation_share=gpu.utilisation_share,
                sm_clock_mhz=gpu.sm_clock_mhz,
                memory_clock_mhz=gpu.memory_clock_mhz,
                power_w=gpu.power_w,
                temperature_c=gpu.temperature_c,
                throttle_bits=gpu.throttle_bits,
            )
            for gpu in read_gpus()
        ]

    def _read_host(self, now_ns: int, interval_s: float) -> Reading:
        busy, steal, total = _host_ticks()
        busy_before, steal_before, total_before = self._host
        self._host = (busy, steal, total)
        return Reading(
            now_ns,
            "host",
            "host",
            cpu_cores=(busy - busy_before) / _TICKS_PER_S / interval_s,
            memory_bytes=_memory_used_bytes(),
            load_average=os.getloadavg()[0],
            steal_share=(steal - steal_before) / max(total - total_before, 1),
            cpu_mhz=_cpu_mhz(),
        )


def _process(pid: int) -> tuple[int, int] | None:
    """CPU ticks used and resident bytes; None if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    parts = text[text.rindex(")") + 2 :].split()  # the name may hold spaces and parentheses
    return int(parts[11]) + int(parts[12]), int(parts[21]) * _PAGE_BYTES


def _host_ticks() -> tuple[int, int, int]:
    """Busy, stolen and all ticks of all CPUs since boot."""
    line = Path("/proc/stat").read_text().split("\n", 1)[0]
    user, nice, system, idle, iowait, irq, softirq, steal = map(int, line.split()[1:9])
    busy = user + nice + system + irq + softirq
    return busy, steal, busy + idle + iowait + steal


def _memory_used_bytes() -> int:
    lines = dict(
        line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line
    )
    return 1024 * (int(lines["MemTotal"].split()[0]) - int(lines["MemAvailable"].split()[0]))


def _cpu_mhz() -> float | None:
    """Mean current frequency of the CPUs, where the kernel tells."""
    told = []
    for path in _CPU.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"):
        try:
            told.append(int(path.read_text()) / 1000)
        except (OSError, ValueError):
            continue
    return sum(told) / len(told) if told else None

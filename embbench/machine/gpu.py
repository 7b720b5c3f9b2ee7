"""What NVML tells of the GPUs: identity, memory, clocks, power, temperature, throttling.

In: nothing. Out: plain values. A machine without NVIDIA GPU or driver is fine: no rows.
"""

import asyncio
import functools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from embbench.errors import TargetError

MEMORY_SLACK_BYTES: Final = 256 * 2**20
MEMORY_BACK_S: Final = 60.0

THROTTLE_REASONS: Final = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons that mean less speed (idle and user-set clocks
do not count)."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, as it is and as it is used. ``visible_as``: its index under CUDA_VISIBLE_DEVICES."""

    index: int
    uuid: str
    name: str
    driver: str
    visible_as: int | None
    memory_total_bytes: int


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one moment; None where this GPU does not tell."""

    uuid: str
    memory_used_bytes: int | None
    utilisation_share: float | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    throttle_bits: int | None


@functools.cache
def _nvml() -> Any | None:
    """The initialised library, or None where there is no GPU or no driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # a missing library, driver or permission all mean: no GPU readings
        return None
    return pynvml


def _handles(nvml: Any) -> list[Any]:
    return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def visible_index(index: int, uuid: str, visible: str | None) -> int | None:
    """Where CUDA_VISIBLE_DEVICES puts a GPU; None if it hides it. Entries are indices or UUIDs."""
    if visible is None:
        return index
    for position, entry in enumerate(part.strip() for part in visible.split(",")):
        if entry == str(index) or (entry.startswith(("GPU-", "MIG-")) and uuid.startswith(entry)):
            return position
        if not entry or entry == "-1":  # CUDA stops reading at the first invalid entry
            return None
    return None


def gpus() -> list[Gpu]:
    """All GPUs of the machine."""
    nvml = _nvml()
    if nvml is None:
        return []
    driver = _text(nvml.nvmlSystemGetDriverVersion())
    found = []
    for index, handle in enumerate(_handles(nvml)):
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        found.append(
            Gpu(
                index=index,
                uuid=uuid,
                name=_text(nvml.nvmlDeviceGetName(handle)),
                driver=driver,
                visible_as=visible_index(index, uuid, os.environ.get("CUDA_VISIBLE_DEVICES")),
                memory_total_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).total,
            )
        )
    return found


def read_gpus() -> list[GpuReading]:
    """One reading of every GPU."""
    nvml = _nvml()
    return [] if nvml is None else [_read(nvml, handle) for handle in _handles(nvml)]


def _read(nvml: Any, handle: Any) -> GpuReading:
    def ask(function: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, function)(handle, *arguments)
        except (nvml.NVMLError, AttributeError):
            return None

    memory = ask("nvmlDeviceGetMemoryInfo")
    rates = ask("nvmlDeviceGetUtilizationRates")
    power_mw = ask("nvmlDeviceGetPowerUsage")
    bits = ask("nvmlDeviceGetCurrentClocksEventReasons")
    if bits is None:  # the name before driver 535
        bits = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    return GpuReading(
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        memory_used_bytes=None if memory is None else int(memory.used),
        utilisation_share=None if rates is None else rates.gpu / 100,
        sm_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        memory_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        power_w=None if power_mw is None else power_mw / 1000,
        temperature_c=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        throttle_bits=bits,
    )


def throttle_reasons(bits: int) -> list[str]:
    """The reasons for reduced clocks in words."""
    return [words for bit, words in THROTTLE_REASONS.items() if bits & bit]


def memory_used() -> dict[str, int]:
    """Bytes in use on each GPU that CUDA_VISIBLE_DEVICES leaves visible, by UUID."""
    visible = {gpu.uuid for gpu in gpus() if gpu.visible_as is not None}
    return {
        reading.uuid: reading.memory_used_bytes
        for reading in read_gpus()
        if reading.uuid in visible and reading.memory_used_bytes is not None
    }


async def wait_memory_back(
    before: Mapping[str, int],
    *,
    timeout_s: float = MEMORY_BACK_S,
    slack_bytes: int = MEMORY_SLACK_BYTES,
    read: Callable[[], Mapping[str, int]] = memory_used,
    on_progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Return when the memory in use is back at ``before``, give or take ``slack_bytes``.

    Raises `TargetError` after ``timeout_s``: something still holds memory that the next target
    would miss.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        now = read() if before else {}
        over = {u: now[u] - b for u, b in before.items() if now.get(u, b) - b > slack_bytes}
        if not over:
            return
        uuid, extra = max(over.items(), key=lambda item: item[1])
        what = f"GPU {uuid} holds {extra / 2**20:.0f} MiB more than before the target was started"
        if time.monotonic() > deadline:
            raise TargetError(f"{what}, {timeout_s:g} s after its end; see nvidia-smi for who")
        on_progress(f"waiting: {what}")
        await asyncio.sleep(0.5)

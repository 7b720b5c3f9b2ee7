"""Kernel timers on the event loop: pacing to the microsecond, and the loop's own stalls.

The loop's timers count whole milliseconds. A timerfd wakes the loop at an absolute nanosecond of
CLOCK_MONOTONIC, by an interrupt: no core is burnt while waiting.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable
from time import monotonic_ns
from typing import Final

from embbench.errors import LoadError

STALL_NS: Final = 1_000_000
"""A loop that stood still for longer has stalled."""

_MAX_STALLS = 10_000
_CLOCK_MONOTONIC, _TFD_TIMER_ABSTIME = 1, 1
_libc = ctypes.CDLL(None, use_errno=True)


class _TimerSpec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Timer:
    """Calls ``fire`` on the loop once the armed time has come."""

    def __init__(self, fire: Callable[[], None], interval_ns: int = 0) -> None:
        self._fire = fire
        self._loop = asyncio.get_running_loop()
        self.fd = _libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise LoadError(f"no timer: {os.strerror(ctypes.get_errno())}; raise `ulimit -n`")
        self._spec = _TimerSpec(*divmod(interval_ns, 1_000_000_000), 0, 0)
        self._address = ctypes.addressof(self._spec)
        self._settime = _libc.timerfd_settime
        self._settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._loop.add_reader(self.fd, self._on_readable)

    def arm(self, at_ns: int) -> None:
        """Fire at ``at_ns``; at once if that is past. Replaces what was armed before."""
        self._spec.value_s, self._spec.value_ns = divmod(max(at_ns, 1), 1_000_000_000)
        self._settime(self.fd, _TFD_TIMER_ABSTIME, self._address, None)

    def _on_readable(self) -> None:
        try:
            os.read(self.fd, 8)
        except BlockingIOError:  # armed anew between the interrupt and this call
            return
        self._fire()

    def close(self) -> None:
        """Never fire again; safe to call twice."""
        if self.fd >= 0:
            self._loop.remove_reader(self.fd)
            os.close(self.fd)
            self.fd = -1


class StallRecorder:
    """Notes each time that the loop came late to a tick of 1 ms by more than `STALL_NS`.

    A stall of 2 ms or more is always seen, one of 1 to 2 ms when it spans enough of a tick; the
    noted length is the lateness, at most one tick less than the stall.
    """

    def __init__(self, tick_ns: int = 1_000_000) -> None:
        self.stalls: list[tuple[int, int]] = []
        self._tick_ns = tick_ns
        self._due_ns = monotonic_ns() + tick_ns
        self._timer = Timer(self._tick)
        self._timer.arm(self._due_ns)

    def _tick(self) -> None:
        now_ns = monotonic_ns()
        late_ns = now_ns - self._due_ns
        if late_ns > STALL_NS and len(self.stalls) < _MAX_STALLS:
            self.stalls.append((self._due_ns, late_ns))
        self._due_ns = now_ns + self._tick_ns
        self._timer.arm(self._due_ns)

    def close(self) -> None:
        """Stop watching."""
        self._timer.close()

"""Loopback ports for every listener of a target, and who listens where.

In: how many ports, or which. Out: ports that nobody else holds, kept bound until just before the
launch. They lie outside the kernel's ephemeral range, so no outgoing connection can take one in
the moment between release and launch.
"""

import contextlib
import random
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from embbench.errors import TargetError

LOOPBACK = "127.0.0.1"
_LOWEST = 15_000  # below live the ports that people configure by hand
_HIGHEST = 32_767  # servers that read a port as a signed 16-bit number exist
_TRIES = 200


class PortTakenError(TargetError):
    """Somebody else listens on a port of ours. ``asked``: the port was asked for by number."""

    def __init__(self, message: str, *, asked: bool) -> None:
        super().__init__(message)
        self.asked = asked


@dataclass(frozen=True, slots=True)
class Listener:
    """One listening TCP socket. ``pid`` is None where the system does not tell."""

    host: str
    port: int
    pid: int | None

    def __str__(self) -> str:
        return f"{self.host}:{self.port} ({describe_pid(self.pid)})"

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host.startswith(("127.", "::ffff:127.")) or self.host == "::1"


def listeners(ports: Iterable[int] | None = None) -> list[Listener]:
    """The listening TCP sockets on these ports, or all."""
    wanted = None if ports is None else set(ports)
    return [
        Listener(c.laddr[0], c.laddr[1], c.pid)
        for c in psutil.net_connections("tcp")
        if c.status == psutil.CONN_LISTEN and c.laddr and (wanted is None or c.laddr[1] in wanted)
    ]


def describe_pid(pid: int | None) -> str:
    """A process in words for an error message: its pid and command."""
    if pid is None:
        return "a process that this user may not see"
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        command = " ".join(process.cmdline()).strip() or process.name()
        return f"pid {pid}: {command[:120]}"
    return f"pid {pid}, gone meanwhile"


def ephemeral_range() -> tuple[int, int]:
    """The ports that the kernel gives to outgoing connections, both ends included."""
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except (OSError, ValueError):
        return 32_768, 60_999
    return int(low), int(high)


def candidate_ports() -> Sequence[int]:
    """Ports to draw from: outside the ephemeral range, if enough are left there."""
    low, high = ephemeral_range()
    outside = [p for p in range(_LOWEST, _HIGHEST + 1) if not low <= p <= high]
    return outside if len(outside) >= 1000 else range(_LOWEST, _HIGHEST + 1)


class Ports:
    """The ports of one target while it is brought up. A context manager: leaving frees them."""

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}
        self._asked: set[int] = set()

    def __enter__(self) -> "Ports":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release everything."""
        self.release(tuple(self._held))

    def free(self, count: int = 1) -> int:
        """The first of ``count`` consecutive free ports, all of them held from now on."""
        candidates = candidate_ports()
        for _ in range(_TRIES):
            first = random.choice(candidates)
            run = range(first, first + count)
            if all(port in candidates and self._hold(port) for port in run):
                return first
            self.release(run)
        raise TargetError(f"no {count} free consecutive loopback ports found in {_TRIES} tries")

    def fixed(self, port: int) -> int:
        """Hold this very port. Raises `PortTakenError` that names whoever listens there."""
        self._asked.add(port)
        holders = [str(listener) for listener in listeners([port])]
        if holders or not self._hold(port, past_time_wait=True):
            who = ", ".join(holders) or "a process that does not listen on it yet"
            raise PortTakenError(
                f"port {port} is taken: {who}; end that process or ask for another port",
                asked=True,
            )
        return port

    def release(self, ports: Iterable[int]) -> None:
        """Let go of ports, just before the process that will listen on them is started."""
        for port in ports:
            if port in self._held:
                self._held.pop(port).close()

    def was_asked(self, port: int) -> bool:
        """Whether this port was asked for by number, so that another one will not do."""
        return port in self._asked

    def _hold(self, port: int, *, past_time_wait: bool = False) -> bool:
        held = socket.socket()
        try:
            if past_time_wait:  # old connections of a server that is gone do not count
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind((LOOPBACK, port))
        except OSError:
            held.close()
            return False
        self._held[port] = held
        return True


def foreign_listener(ports: Iterable[int], members: set[int]) -> Listener | None:
    """A listener on one of these ports that is none of ``members``, if there is one."""
    return next((each for each in listeners(ports) if each.pid not in members), None)

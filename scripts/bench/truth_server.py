"""A server of known truth, in a process of its own: it does what its script says and logs it.

    python truth_server.py --kind constant|stalled|serial [--cpu N]

Prints its port. ``POST`` bodies carry their number (``{"n": 17}``); ``GET /log`` gives one line a
request: number, when it had been read, when its answer was about to be written (CLOCK_MONOTONIC
ns); ``GET /reset`` forgets and starts the script again with the next request. Ends with stdin.
"""

import argparse
import asyncio
import heapq
import os
import re
import socket
import sys
import threading
from time import monotonic_ns
from typing import Final

import uvloop

from embbench.load.timers import Timer

MS: Final = 1_000_000
CONSTANT_NS: Final = 50 * MS
STALLED_NS, STALL_NS, STALL_EVERY = 20 * MS, 500 * MS, 100
SERIAL_NS: Final = MS * 8 // 10
FREEZE_EVERY_NS, FREEZE_NS = 10_000 * MS, 1_000 * MS
FREEZE_AT_NS: Final = 5_000 * MS + 370_000  # between the points of any schedule of whole ms
ANSWER: Final = b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"data":[]}'
NUMBER: Final = re.compile(rb'"n": (\d+)')


class Truth:
    """When a request that arrives at a time is answered."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._count = 0
        self._first_ns = -1
        self._free_ns = 0

    def answer_ns(self, arrival_ns: int) -> int:
        """For arrivals in order."""
        if self._first_ns < 0:
            self._first_ns = arrival_ns
        self._count += 1
        if self._kind == "constant":
            return arrival_ns + CONSTANT_NS
        if self._kind == "stalled":
            stalled = self._count % STALL_EVERY == 0
            return arrival_ns + (STALL_NS if stalled else STALLED_NS)
        begin_ns = max(arrival_ns, self._free_ns)
        into_ns = (begin_ns - self._first_ns) % FREEZE_EVERY_NS - FREEZE_AT_NS
        if 0 <= into_ns < FREEZE_NS:
            begin_ns += FREEZE_NS - into_ns
        self._free_ns = begin_ns + SERIAL_NS
        return self._free_ns


class Server:
    """Answers due, soonest first, behind one kernel timer."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.truth = Truth(kind)
        self.log: list[tuple[int, int, int]] = []
        self._due: list[tuple[int, int, int, int, Connection]] = []
        self._order = 0
        self._timer = Timer(self._answer)

    def request(self, number: int, connection: "Connection") -> None:
        arrival_ns = monotonic_ns()
        due_ns = self.truth.answer_ns(arrival_ns)
        self._order += 1
        heapq.heappush(self._due, (due_ns, self._order, number, arrival_ns, connection))
        self._timer.arm(self._due[0][0])

    def _answer(self) -> None:
        while self._due and self._due[0][0] <= monotonic_ns():
            _, _, number, arrival_ns, connection = heapq.heappop(self._due)
            self.log.append((number, arrival_ns, monotonic_ns()))
            connection.answer()
        if self._due:
            self._timer.arm(self._due[0][0])


class Connection(asyncio.Protocol):
    """One request at a time, each in one or more reads."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._socket = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._socket.close()

    def answer(self) -> None:
        """At once: the transport's own write waits for the loop's next turn."""
        assert self._socket.send(ANSWER) == len(ANSWER)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        if head.startswith(b"GET"):
            self._data = b""
            lines = ""
            if head.startswith(b"GET /log"):
                lines = "".join(f"{a} {b} {c}\n" for a, b, c in self._server.log)
            else:
                self._server.log.clear()
                self._server.truth = Truth(self._server.kind)
            reply = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(lines)}\r\n\r\n"
            self.transport.write((reply + lines).encode())
            self.transport.close()
            return
        lowered = head.lower()
        at = lowered.index(b"content-length:") + 15
        if len(body) < int(lowered[at:].split(b"\r\n", 1)[0]):
            return
        self._data = b""
        number = NUMBER.search(body)
        self._server.request(int(number[1]) if number else -1, self)


async def serve(kind: str) -> None:
    server = Server(kind)
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: Connection(server), "127.0.0.1", 0, backlog=2048)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=("constant", "stalled", "serial"), required=True)
    parser.add_argument("--cpu", type=int)
    args = parser.parse_args()
    if args.cpu is not None:
        os.sched_setaffinity(0, {args.cpu})
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    uvloop.run(serve(args.kind))


if __name__ == "__main__":
    main()

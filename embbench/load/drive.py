"""The two loops: when requests leave, and what happens when answers come.

In: a client, requests in order, and either intended starts (open loop) or a number of clients
(closed loop). Out: finished exchanges, one by one, to a callback. Nothing is dropped, and no
intended start is ever moved.
"""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Final

from embbench.bodies import BodyFile
from embbench.load.client import Client, Exchange
from embbench.load.timers import Timer

Record = Callable[[Exchange], None]

_SENDS_A_TURN: Final = 16
"""A loop behind its schedule sends this many, then reads what has come, then goes on."""


class Requests:
    """The requests of one phase, in order; the next one is read before it is needed."""

    def __init__(
        self,
        client: Client,
        bodies: BodyFile,
        phase: int,
        seqs: Sequence[int],
        keep: Callable[[int], int],
    ) -> None:
        self._client = client
        self._bodies = bodies
        self._phase = phase
        self._count = len(seqs)
        self._seqs = iter(seqs)
        self._keep = keep
        self._ready: tuple[Exchange, bytes] | None = None
        self.read_ahead()

    def __len__(self) -> int:
        return self._count

    def read_ahead(self) -> None:
        """Have the next request ready, if there is one."""
        if self._ready is None and (seq := next(self._seqs, None)) is not None:
            body = self._bodies[seq]
            exchange = Exchange(seq, self._phase, len(body), self._keep(seq))
            self._ready = exchange, self._client.prepare(body)

    def take(self) -> tuple[Exchange, bytes] | None:
        """The next request, None after the last."""
        if self._ready is None:
            self.read_ahead()
        ready, self._ready = self._ready, None
        return ready


async def open_loop(
    client: Client,
    requests: Requests,
    due_ns: Sequence[int],
    record: Record,
    max_in_flight: int | None = None,
) -> None:
    """Send request ``i`` at ``due_ns[i]``, whatever comes back; return when all are over.

    With ``max_in_flight``, a request that is due waits, in order, until another is over; its
    intended start stays, so the wait is in its response time.
    """
    if not due_ns:
        return
    drive = _OpenLoop(client, requests, due_ns, record, max_in_flight)
    try:
        await drive.over
    finally:
        drive.timer.close()


class _OpenLoop:
    def __init__(
        self,
        client: Client,
        requests: Requests,
        due_ns: Sequence[int],
        record: Record,
        max_in_flight: int | None,
    ) -> None:
        self._client = client
        self._requests = requests
        self._due_ns = due_ns
        self._record = record
        self._cap = max_in_flight or len(due_ns)
        self._count = len(due_ns)
        self._sent = 0
        self._in_flight = 0
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.timer = Timer(self._send_due)
        self.timer.arm(due_ns[0])

    def _send_due(self) -> None:
        due_ns = self._due_ns
        for _ in range(_SENDS_A_TURN):
            if self._sent == self._count or self._in_flight >= self._cap:
                return  # nothing more to send, or the next answer will call
            due = due_ns[self._sent]
            if due > monotonic_ns():
                break
            taken = self._requests.take()
            assert taken is not None
            exchange, message = taken
            exchange.intended_ns = due
            self._sent += 1
            self._in_flight += 1
            self._client.send(exchange, message, self._done)
        self._requests.read_ahead()
        if self._sent < self._count:
            self.timer.arm(due_ns[self._sent])

    def _done(self, exchange: Exchange) -> None:
        self._in_flight -= 1
        if self._in_flight == self._cap - 1:
            self._send_due()
        self._record(exchange)
        if self._sent == self._count and not self._in_flight and not self.over.done():
            self.over.set_result(None)


async def closed_loop(
    client: Client,
    requests: Sequence[Requests],
    concurrency: int,
    record: Record,
    think_time_s: float = 0.0,
) -> None:
    """``concurrency`` clients, each sends its next request when its answer has come.

    ``requests`` are sent one after the other without a pause between: a start-up burst first.
    Returns when all are over.
    """
    drive = _ClosedLoop(client, requests, record, think_time_s)
    if drive.left:
        drive.begin(concurrency)
        await drive.over


class _ClosedLoop:
    def __init__(
        self, client: Client, requests: Sequence[Requests], record: Record, think_time_s: float
    ) -> None:
        self._client = client
        self._queue = list(requests)
        self._record = record
        self._think_s = think_time_s
        self._loop = asyncio.get_running_loop()
        self.left = sum(len(r) for r in requests)
        self.over: asyncio.Future[None] = self._loop.create_future()

    def begin(self, concurrency: int) -> None:
        for _ in range(concurrency):
            self._send()

    def _send(self) -> None:
        while self._queue:
            taken = self._queue[0].take()
            if taken is not None:
                self._client.send(*taken, self._done)
                self._queue[0].read_ahead()
                return
            del self._queue[0]

    def _done(self, exchange: Exchange) -> None:
        if self._think_s:
            self._loop.call_later(self._think_s, self._send)
        else:
            self._send()
        self._record(exchange)
        self.left -= 1
        if not self.left:
            self.over.set_result(None)

"""The two loops: when requests leave, and what happens when answers come.

In: a client, requests in order, and either intended starts (open loop) or a number of clients
(closed loop). Out: finished exchanges, one by one, to a callback. Nothing is dropped, and no
intended start is ever moved.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from time import monotonic_ns
from typing import Final

from embbench.load.client import Client, Exchange
from embbench.load.request_bodies import BodyFile
from embbench.load.timers import Timer

Record = Callable[[Exchange], None]

_SENDS_A_TURN: Final = 16
"""A loop behind its schedule sends this many, then reads what has come, then goes on."""


class Requests:
    """The requests of one phase, in order, each made when it is asked for.

    ``keep`` says of each of ``seqs``, in turn, whether its answer is to be kept.
    """

    def __init__(
        self,
        client: Client,
        bodies: BodyFile,
        phase: int,
        seqs: range,
        keep: Iterable[int],
    ) -> None:
        self._client = client
        self._bodies = bodies
        self._phase = phase
        self._seqs = seqs
        self._keep = keep

    def __len__(self) -> int:
        return len(self._seqs)

    def __iter__(self) -> Iterator[tuple[Exchange, bytes]]:
        phase, prepare = self._phase, self._client.prepare
        bodies = self._bodies.read(self._seqs)
        for seq, body, keep in zip(self._seqs, bodies, self._keep, strict=False):
            yield Exchange(seq, phase, len(body), keep), prepare(body)


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
        self._requests = iter(requests)
        self._ready = next(self._requests, None)
        self._due_ns = due_ns
        self._record = record
        self._cap = max_in_flight or len(due_ns)
        self._count = len(due_ns)
        self._sent = 0
        self._in_flight = 0
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        client.done = self._done
        self.timer = Timer(self._send_due)
        self.timer.arm(due_ns[0])

    def _send_due(self) -> None:
        due_ns = self._due_ns
        for _ in range(_SENDS_A_TURN):
            if self._ready is None or self._in_flight >= self._cap:
                return  # nothing more to send, or the next answer will call
            due = due_ns[self._sent]
            if due > monotonic_ns():
                break
            exchange, message = self._ready
            exchange.intended_ns = due
            self._sent += 1
            self._in_flight += 1
            self._client.send(exchange, message)
            self._ready = next(self._requests, None)
        if self._sent < self._count:
            self.timer.arm(due_ns[self._sent])

    def _done(self, exchanges: list[Exchange]) -> None:
        waiting = self._in_flight >= self._cap
        self._in_flight -= len(exchanges)
        if waiting:
            self._send_due()
        for exchange in exchanges:
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
        self._requests = chain.from_iterable(requests)
        self._ready: deque[tuple[Exchange, bytes]] = deque()
        self._ahead = 0
        self._record = record
        self._think_s = think_time_s
        self._loop = asyncio.get_running_loop()
        self.left = sum(len(r) for r in requests)
        self.over: asyncio.Future[None] = self._loop.create_future()
        client.done = self._done

    def begin(self, concurrency: int) -> None:
        self._ahead = min(concurrency, _SENDS_A_TURN)
        self._send(concurrency)
        self._read_ahead()

    def _read_ahead(self) -> None:
        ready = self._ready
        ready.extend(islice(self._requests, self._ahead - len(ready)))

    def _send(self, count: int) -> None:
        ready, send = self._ready, self._client.send
        for _ in range(count):
            if not ready:
                self._read_ahead()
                if not ready:
                    return
            exchange, message = ready.popleft()
            send(exchange, message)

    def _think_over(self) -> None:
        self._send(1)
        self._read_ahead()

    def _done(self, exchanges: list[Exchange]) -> None:
        # All that leaves, leaves before anything else is done.
        if self._think_s:
            for _ in exchanges:
                self._loop.call_later(self._think_s, self._think_over)
        else:
            self._send(len(exchanges))
        record = self._record
        for exchange in exchanges:
            record(exchange)
        self._read_ahead()
        self.left -= len(exchanges)
        if not self.left:
            self.over.set_result(None)

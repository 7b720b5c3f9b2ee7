"""The default client: uvloop, and each answer read by the kernel straight into its final place.

In: prepared requests. Out: filled-in exchanges. Keeps idle connections, dials new ones, and ends
what exceeds the time limit; `Connection` does the rest.
"""

import asyncio
import contextlib
import socket
import ssl
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any, Final

from embbench.errors import LoadError
from embbench.load.arena import Arena
from embbench.load.client import (
    Address,
    ClientOptions,
    Done,
    Exchange,
    connect_error,
    parse_url,
    request_head,
    tls_context,
)
from embbench.load.connection import Connection, Scratch
from embbench.load.heads import Heads

_SCRATCH_BYTES: Final = 1 << 20
_LENGTHS: Final = 1024  # request heads, one for each length of a body


@dataclass(frozen=True, slots=True)
class _Peer:
    """A resolved address."""

    family: socket.AddressFamily
    address: Any


async def _resolve(address: Address) -> list[_Peer]:
    if address.unix is not None:
        return [_Peer(socket.AF_UNIX, address.unix)]
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as exc:
        raise LoadError(f"{address.host}: no such host ({exc}); check the target's URL") from exc
    return [_Peer(family, sockaddr) for family, _, _, _, sockaddr in found]


class BufferedClient:
    """`Client` over `Connection`s; the most recently used idle one is used first."""

    done: Done

    def __init__(self, options: ClientOptions, arena: Arena, peers: list[_Peer]) -> None:
        self.arena = arena
        self.heads = Heads()
        self.scratch = Scratch(_SCRATCH_BYTES)
        self.max_body_bytes = options.max_body_bytes
        self._address = parse_url(options.url)
        self._head = request_head(self._address, options.headers)
        self._heads_by_length: dict[int, bytes] = {}
        self._peers = peers
        self._tls = tls_context(options) if self._address.tls else None
        self._loop = asyncio.get_running_loop()
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._in_flight: dict[Exchange, Connection | asyncio.Task[None]] = {}  # oldest first
        self._finished: list[Exchange] = []
        self._timeout_ns = int(options.timeout_s * 1e9)
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._all_gone: asyncio.Event | None = None

    def prepare(self, body: bytes) -> bytes:
        size = len(body)
        try:
            return self._heads_by_length[size] + body
        except KeyError:
            if len(self._heads_by_length) >= _LENGTHS:
                self._heads_by_length.clear()
            self._heads_by_length[size] = head = b"%b%d\r\n\r\n" % (self._head, size)
            return head + body

    def send(self, exchange: Exchange, message: bytes) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_ns / 1e9, self._expire)
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.start(exchange, message, fresh=False):
                self._in_flight[exchange] = connection
                return
        exchange.start_ns = monotonic_ns()
        self._in_flight[exchange] = self._loop.create_task(self._connect(exchange, message))

    async def _connect(self, exchange: Exchange, message: bytes) -> None:
        try:
            connection = await self._dial()
        except (OSError, asyncio.CancelledError) as exc:
            if self._closing:
                raise
            exchange.end_ns = monotonic_ns()
            exchange.connect_ns = exchange.end_ns - exchange.start_ns
            exchange.error = connect_error(exc) if isinstance(exc, OSError) else "timeout"
            self.finished(None, exchange, reusable=False)
            return
        exchange.connect_ns = monotonic_ns() - exchange.start_ns
        self._in_flight[exchange] = connection
        if not connection.start(exchange, message, fresh=True):
            exchange.end_ns = monotonic_ns()
            exchange.error = "connection-closed"
            self.finished(None, exchange, reusable=False)

    async def _dial(self) -> Connection:
        last: OSError | None = None
        for peer in list(self._peers):
            sock = socket.socket(peer.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                await self._loop.sock_connect(sock, peer.address)
                connection = Connection(self, sock, self._tls is not None)
                await self._loop.create_connection(
                    lambda made=connection: made,
                    sock=sock,
                    ssl=self._tls,
                    server_hostname=self._address.host if self._tls is not None else None,
                )
            except BaseException as exc:
                sock.close()
                if not isinstance(exc, OSError) or isinstance(exc, ssl.SSLError):
                    raise
                last = exc
                continue
            self._open.add(connection)
            if peer is not self._peers[0]:
                self._peers.remove(peer)
                self._peers.insert(0, peer)
            return connection
        assert last is not None
        raise last

    def finished(self, connection: Connection | None, exchange: Exchange, reusable: bool) -> None:
        """`done` is told when this turn of the loop has read, and stamped, all that came."""
        if reusable and connection is not None:
            self._idle.append(connection)
        del self._in_flight[exchange]
        if not self._finished:
            self._loop.call_soon(self._tell)
        self._finished.append(exchange)

    def _tell(self) -> None:
        finished, self._finished = self._finished, []
        if not self._closing:
            done = self.done
            done(finished)

    def forget(self, connection: Connection) -> None:
        self._open.discard(connection)
        if self._all_gone is not None and not self._open:
            self._all_gone.set()

    def _expire(self) -> None:
        """End what is too old. One timer does for all, as every request has the same limit."""
        self._timer = None
        now_ns = monotonic_ns()
        for exchange, carrier in list(self._in_flight.items()):
            left_ns = exchange.start_ns + self._timeout_ns - now_ns
            if left_ns > 0:
                self._timer = self._loop.call_later(left_ns / 1e9 + 0.001, self._expire)
                return
            if isinstance(carrier, Connection):
                carrier.fail("timeout", now_ns)
            else:
                carrier.cancel()

    async def close(self) -> None:
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        dialling = [c for c in self._in_flight.values() if isinstance(c, asyncio.Task)]
        for task in dialling:
            task.cancel()
        await asyncio.gather(*dialling, return_exceptions=True)
        for connection in list(self._open):
            connection.drop()
        if self._open:
            self._all_gone = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), 1.0)


async def open_buffered(options: ClientOptions, arena: Arena) -> BufferedClient:
    """A `BufferedClient` with its host name resolved. Raises `LoadError` if it has none."""
    return BufferedClient(options, arena, await _resolve(parse_url(options.url)))

"""A server of raw bytes: each test says what comes back, byte by byte, and how it ends.

The server's own record (connections, requests as received) is the oracle of the client tests.
"""

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from embbench.load.arena import Arena
from embbench.load.client import ClientName, ClientOptions, Exchange
from embbench.load.kept_bodies import create_arena
from embbench.load.open_client import open_client
from embbench.results.samples import MEASURED

TIME_LIMIT_S = 20.0
"""A test that takes longer hangs."""

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop, as the load processes do; a callback that raises fails the test."""
    raised: list[BaseException] = []

    async def bounded() -> T:
        def note(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            exc = context.get("exception")
            if exc is not None and not isinstance(exc, OSError):
                raised.append(exc)

        asyncio.get_running_loop().set_exception_handler(note)
        return await asyncio.wait_for(main, TIME_LIMIT_S)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(bounded())
    if raised:
        raise raised[0]
    return result


class Peer:
    """One connection, from the server's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def request(self) -> bytes:
        """The next request, head and body. Raises `EOFError` when the client has left."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next(int(x.split(b":")[1]) for x in lines if x.startswith(b"content-length:"))
        return head + await self.reader.readexactly(length)

    async def say(self, data: bytes, piece: int = 0) -> None:
        """Send; in pieces of so many bytes, each in a packet of its own."""
        step = piece or len(data) or 1
        for at in range(0, len(data), step):
            self.writer.write(data[at : at + step])
            await self.writer.drain()
            if piece:
                await asyncio.sleep(0.0005)

    def close(self) -> None:
        """Close in order: FIN."""
        self.writer.close()

    def reset(self) -> None:
        """Close with a reset: RST."""
        sock = self.writer.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Script = Callable[[Peer], Awaitable[None]]
"""What the server does on each connection; when it returns, the connection is closed."""


@dataclass
class RawServer:
    """What it heard."""

    url: str
    connections: int = 0
    requests: list[bytes] = field(default_factory=list)


@asynccontextmanager
async def raw_server(
    script: Script,
    host: str = "127.0.0.1",
    unix: Path | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[RawServer]:
    """Serve ``script`` on a free port, or on a Unix socket."""
    peers: set[asyncio.Task[None]] = set()
    heard = RawServer("")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        peers.add(task)
        heard.connections += 1
        peer = Peer(reader, writer)
        original = peer.request

        async def request() -> bytes:
            data = await original()
            heard.requests.append(data)
            return data

        peer.request = request  # type: ignore[method-assign]
        with suppress(EOFError, ConnectionError, asyncio.CancelledError):
            await script(peer)
        writer.close()

    if unix is not None:
        server = await asyncio.start_unix_server(serve, str(unix))
        heard.url = f"http+unix://{str(unix).replace('/', '%2F')}/v1/embeddings"
    else:
        server = await asyncio.start_server(serve, host, 0, ssl=tls)
        port = server.sockets[0].getsockname()[1]
        name = f"[{host}]" if ":" in host else host
        heard.url = f"http{'s' if tls else ''}://{name}:{port}/v1/embeddings"
    try:
        yield heard
    finally:
        server.close()
        for task in peers:
            task.cancel()
        await asyncio.gather(*peers, return_exceptions=True)


def answers(*replies: bytes, piece: int = 0) -> Script:
    """Request i of a connection gets ``replies[i]``, the last one again and again."""

    async def script(peer: Peer) -> None:
        number = 0
        while True:
            await peer.request()
            await peer.say(replies[min(number, len(replies) - 1)], piece)
            number += 1

    return script


def then(data: bytes, end: Callable[[Peer], None]) -> Script:
    """One request gets ``data``, then the connection ends that way."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(data)
        await asyncio.sleep(0.002)  # let the kernel hand it over: a reset may overtake it
        end(peer)

    return script


@dataclass(frozen=True)
class Outcome:
    """A finished exchange, and its body where it was kept."""

    exchange: Exchange
    body: bytes | None


@asynccontextmanager
async def asking(
    client: ClientName,
    url: str,
    keep: bool = True,
    arena_bytes: int = 32 << 20,
    **options: Any,
) -> AsyncIterator[Callable[[Sequence[bytes]], Awaitable[list[Outcome]]]]:
    """A function that sends bodies at the same time and waits for all of their ends."""
    fd, path = create_arena("test", arena_bytes)
    arena = Arena(path)
    opened = await open_client(client, ClientOptions(url, **{"timeout_s": 5.0, **options}), arena)

    waiting: dict[Exchange, asyncio.Future[Exchange]] = {}

    def done(exchanges: list[Exchange]) -> None:
        for exchange in exchanges:
            waiting.pop(exchange).set_result(exchange)  # each of them once

    opened.done = done

    async def ask(bodies: Sequence[bytes]) -> list[Outcome]:
        futures = []
        for seq, body in enumerate(bodies):
            exchange = Exchange(seq, MEASURED, len(body), keep)
            waiting[exchange] = asyncio.get_running_loop().create_future()
            futures.append(waiting[exchange])
            opened.send(exchange, opened.prepare(body))
        over = await asyncio.gather(*futures)
        return [
            Outcome(e, None if e.kept_at < 0 else os.pread(fd, e.response_bytes, e.kept_at))
            for e in over
        ]

    try:
        yield ask
    finally:
        await opened.close()
        arena.close()
        os.close(fd)


def exchange_with(
    client: ClientName, script: Script, count: int = 1, keep: bool = True, **options: Any
) -> tuple[list[Outcome], RawServer]:
    """``count`` requests, one after the other, to a server with that script."""

    async def main() -> tuple[list[Outcome], RawServer]:
        async with raw_server(script) as server, asking(client, server.url, keep, **options) as ask:
            return [(await ask([b'{"n": %d}' % n]))[0] for n in range(count)], server

    return run(main())

"""One connection of the buffered client: sends a request, reads the answer into its final place.

In: a prepared request. Out: the exchange, filled in, handed to the client. Once the head of an
answer is parsed, a body with Content-Length is received without another look or copy; a chunked
one goes through the parser piece by piece.
"""

import asyncio
import mmap
import socket
from time import monotonic_ns
from typing import Final, Literal, Protocol

from embbench.load.arena import HEAD_ROOM, PAD, Arena
from embbench.load.client import IDLE_LIMIT_S, MAX_HEAD_BYTES, Exchange, status_error
from embbench.load.heads import BadHttpError, Chunks, Head, Heads
from embbench.load.rest import Rest
from embbench.results.samples import CHUNKED

_IDLE_LIMIT_NS: Final = int(IDLE_LIMIT_S * 1e9)

_UNUSED_BYTES: Final = 4096  # of a slot; more is given back

_State = Literal["idle", "head", "length", "chunked", "until-close"]


class Scratch:
    """Memory of this process alone."""

    def __init__(self, size: int) -> None:
        self.memory = mmap.mmap(-1, size)
        self.view = memoryview(self.memory)


class Pool(Protocol):
    """What a connection needs from its client."""

    arena: Arena
    heads: Heads
    scratch: Scratch
    max_body_bytes: int

    def finished(self, connection: "Connection", exchange: Exchange, reusable: bool) -> None:
        """The exchange has its end stamp."""
        ...

    def forget(self, connection: "Connection") -> None:
        """The connection is gone."""
        ...


class Connection(asyncio.BufferedProtocol):
    """Idle, or carrying one exchange at a time."""

    _transport: asyncio.Transport
    _chunks: Chunks

    def __init__(self, pool: Pool, sock: socket.socket, tls: bool) -> None:
        self._pool = pool
        self._sock = sock
        self._send = None if tls else sock.send
        self._exchange: Exchange | None = None
        self._state: _State = "idle"
        self._used = False  # an answer came on it before
        self._keep_alive = False
        self._reset = False
        self._rest: Rest | None = None  # of a request that the kernel did not take at once
        self._read_into(pool.scratch)
        self._filled = 0  # bytes in use from `_begin` on
        self._left = 0  # length state: body bytes still to come
        self.closed = False
        self._idle_since_ns = monotonic_ns()

    def _read_into(self, scratch: Scratch) -> None:
        """`_begin` to `_end` of this memory is where a head, and a kept body, is read to."""
        self._kept = False  # it is a slot of the arena
        self._place: Arena | Scratch = scratch
        self._begin, self._end = 0, len(scratch.view)

    # -- sending --------------------------------------------------------------------------------

    def start(self, exchange: Exchange, message: bytes, fresh: bool) -> bool:
        """Send a request; False if the connection has closed, or was idle for too long.

        ``start_ns`` is read here unless the connection was made for the request.
        """
        if self.closed:
            return False
        pool = self._pool
        if exchange.keep:
            arena = pool.arena
            self._begin, self._end = arena.take()
            self._place, self._kept = arena, True
            if self._begin < 0:
                exchange.unkept = True
                self._read_into(pool.scratch)
        else:
            self._read_into(pool.scratch)
        self._filled = 0
        self._state = "head"
        self._exchange = exchange
        if not fresh:
            now_ns = exchange.start_ns = monotonic_ns()
            if now_ns - self._idle_since_ns > _IDLE_LIMIT_NS:
                self._give_up()
                return False
        send = self._send
        if send is None:
            self._transport.write(message)
            return True
        # Straight to the kernel: the transport's write waits for the loop's next turn.
        try:
            sent = send(message)
        except BlockingIOError:
            sent = 0
        except OSError as exc:
            # What the peer said before it left can still be read, and so can its leaving.
            self._reset = isinstance(exc, ConnectionResetError)
            return True
        if sent != len(message):
            self._rest = Rest(self._sock, memoryview(message)[sent:], self._cannot_send)
        return True

    def _give_up(self) -> None:
        """Nothing has been sent yet, and nothing will be."""
        self._exchange = None
        self._state = "idle"
        if self._kept:
            self._pool.arena.give_back(self._begin, self._end, 0)
            self._kept = False
        self.drop()

    def _cannot_send(self, exc: OSError) -> None:
        self._reset = isinstance(exc, ConnectionResetError)

    def _stop_sending(self) -> None:
        if self._rest is not None:
            self._rest.stop()
            self._rest = None

    # -- receiving ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's are no subclasses

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        if self._state == "head" or (self._kept and self._state != "chunked"):
            return self._place.view[self._begin + self._filled : self._end]
        return self._pool.scratch.view

    def buffer_updated(self, nbytes: int) -> None:
        now_ns = monotonic_ns()
        exchange = self._exchange
        if exchange is None:
            self.drop()  # nobody asked: not a connection to use again
            return
        if not exchange.first_byte_ns:
            exchange.first_byte_ns = now_ns
        state = self._state
        if state == "head":
            self._filled += nbytes
            self._read_head(exchange, now_ns)
        elif state == "length":
            self._read_length(exchange, nbytes, now_ns, None)
        elif state == "chunked":
            self._feed(exchange, bytes(self._pool.scratch.view[:nbytes]), now_ns)
        else:
            self._read_until_close(exchange, nbytes, now_ns)

    def _read_head(self, exchange: Exchange, now_ns: int) -> None:
        pool, memory, start, filled = self._pool, self._place.memory, self._begin, self._filled
        at = 0  # where the head begins: later only after interim answers
        while True:
            room = filled - at
            try:
                # No more than heads are long: it is copied.
                near = memory[start + at : start + (filled if room < HEAD_ROOM else at + HEAD_ROOM)]
                found = pool.heads.find(near)
                if found is None and room > HEAD_ROOM:
                    near = memory[start + at : start + min(filled, MAX_HEAD_BYTES)]
                    found = pool.heads.find(near)
            except BadHttpError:
                self._finish("bad-http", now_ns)
                return
            if found is None:
                break
            head, size, length = found
            at += size
            if head.interim:
                continue
            exchange.head = head
            self._keep_alive = head.keep_alive
            if self._kept:
                exchange.kept_at = start + at
            if not head.by_length:
                self._begin_other(exchange, head, near[:size], at, now_ns)
            elif length == filled - at and length <= pool.max_body_bytes and self._kept:
                exchange.response_bytes = length  # all of it at once, as most small bodies
                self._finish(None, now_ns)
            else:
                self._begin_length(exchange, at, length, now_ns)
            return
        if filled >= MAX_HEAD_BYTES:
            self._finish("bad-http", now_ns)
            return
        if self._kept and start + filled + PAD > self._end:
            self._grow(exchange, 2 * (self._end - start))
        if self._place is pool.scratch:
            # Other connections read into the scratch memory too: move the unfinished head away.
            own = Scratch(MAX_HEAD_BYTES + PAD)
            own.view[:filled] = self._place.view[self._begin : self._begin + filled]
            self._read_into(own)

    def _begin_length(self, exchange: Exchange, begin: int, length: int, now_ns: int) -> None:
        """The head ends at ``begin``; some or all of the body may have come with it."""
        pool = self._pool
        if length > pool.max_body_bytes:
            self._finish("body-too-large", now_ns)
            return
        here = self._filled - begin
        if not self._kept and length > pool.arena.slot_bytes:
            pool.arena.expect(length)
        came = self._came(begin)
        if self._kept and self._begin + begin + length + PAD > self._end:
            self._grow(exchange, begin + length + PAD)
        self._state = "length"
        self._left = length
        self._filled = begin
        self._read_length(exchange, here, now_ns, came)

    def _came(self, begin: int) -> memoryview:
        """What was read from ``begin`` on."""
        return self._place.view[self._begin + begin : self._begin + self._filled]

    def _begin_other(
        self, exchange: Exchange, head: Head, raw: bytes, begin: int, now_ns: int
    ) -> None:
        """As `_begin_length`, for bodies that are empty, chunked, or end with the connection."""
        came = self._came(begin)
        if head.empty:
            self._finish_whole(now_ns, came)
        elif head.flags & CHUNKED:
            self._state = "chunked"
            self._chunks = Chunks(raw, self._on_piece)
            pieces = bytes(came)
            self._filled = begin
            if pieces:
                self._feed(exchange, pieces, now_ns)
        else:
            self._state = "until-close"
            self._keep_alive = False
            self._filled = begin
            self._read_until_close(exchange, len(came), now_ns)

    def _read_length(
        self, exchange: Exchange, nbytes: int, now_ns: int, read: memoryview | None
    ) -> None:
        """``read`` is what the bytes are in; None: where `get_buffer` said."""
        exchange.response_bytes += nbytes
        left = self._left = self._left - nbytes
        if left > 0:
            self._filled += nbytes
        elif left == 0:
            self._filled += nbytes
            self._finish(None, now_ns)
        else:
            exchange.response_bytes += left  # bytes beyond the promise are not the body
            if read is None:
                read = self.get_buffer(0)[:nbytes]
            self._filled += nbytes + left
            self._finish_whole(now_ns, read[nbytes + left :])

    def _read_until_close(self, exchange: Exchange, nbytes: int, now_ns: int) -> None:
        self._filled += nbytes
        exchange.response_bytes += nbytes
        if exchange.response_bytes > self._pool.max_body_bytes:
            self._finish("body-too-large", now_ns)
        elif self._kept and self._begin + self._filled + PAD > self._end:
            self._grow(exchange, 2 * (self._end - self._begin))

    def _feed(self, exchange: Exchange, data: bytes, now_ns: int) -> None:
        wrong = False
        try:
            self._chunks.feed(data)
        except BadHttpError:  # in the answer, or in what follows it
            wrong = True
        if exchange.response_bytes > self._pool.max_body_bytes:
            self._finish("body-too-large", now_ns)
        elif wrong:
            self._finish("bad-http", now_ns)
        elif self._chunks.complete:
            self._finish(None, now_ns, surplus=self._chunks.surplus)

    def _on_piece(self, piece: bytes) -> None:
        exchange = self._exchange
        assert exchange is not None
        size = len(piece)
        exchange.response_bytes += size
        if not self._kept or exchange.response_bytes > self._pool.max_body_bytes:
            return
        if self._begin + self._filled + size + PAD > self._end:
            self._grow(exchange, 2 * (self._end - self._begin) + size)
        if self._kept:
            to = self._begin + self._filled
            self._place.view[to : to + size] = piece
            self._filled += size

    def _grow(self, exchange: Exchange, size: int) -> None:
        """Move what has come to a larger slot; if there is no room for one, keep nothing."""
        arena, old, filled = self._pool.arena, self._begin, self._filled
        came = arena.view[old : old + filled]
        begin, end = arena.take(size)
        if begin < 0:
            arena.give_back(old, self._end, 0)
            if self._state == "head":
                self._pool.scratch.view[:filled] = came
            self._read_into(self._pool.scratch)
            exchange.unkept, exchange.kept_at = True, -1
            return
        arena.view[begin : begin + filled] = came
        if exchange.kept_at >= 0:
            exchange.kept_at += begin - old
        self._begin, self._end = begin, end

    # -- the end --------------------------------------------------------------------------------

    def _finish_whole(self, now_ns: int, surplus: memoryview) -> None:
        """The answer is whole, and more came than it promised.

        The start of another answer does no harm to this one, though it ends the connection;
        anything else says that the promised length is wrong.
        """
        another = bytes(surplus[:5]) == b"HTTP/"[: len(surplus)]
        self._finish(None if another else "bad-http", now_ns, surplus=bool(surplus))

    def _finish(self, error: str | None, now_ns: int, *, surplus: bool = False) -> None:
        exchange = self._exchange
        assert exchange is not None
        exchange.end_ns = self._idle_since_ns = now_ns
        if error is not None:
            exchange.error = error
        elif exchange.head.status != 200:
            exchange.error = status_error(exchange.head.status)
        if self._kept:
            if self._end - self._begin - self._filled > _UNUSED_BYTES:
                self._pool.arena.give_back(self._begin, self._end, self._filled)
            self._kept = False
        self._exchange = None
        self._state = "idle"
        self._used = True
        reusable = self._keep_alive and error is None and not surplus and not self.closed
        if self._send is None:
            reusable = reusable and not self._transport.get_write_buffer_size()
        elif self._rest is not None:
            reusable = reusable and self._rest.sent
            self._stop_sending()
        if not reusable:
            self.drop()
        self._pool.finished(self, exchange, reusable)

    def fail(self, error: str, now_ns: int) -> None:
        """End the exchange in flight from outside."""
        if self._exchange is not None:
            self._finish(error, now_ns)

    def drop(self) -> None:
        """Close at once, whatever is still in the buffers."""
        self.closed = True
        self._stop_sending()
        self._transport.abort()

    def eof_received(self) -> bool:
        now_ns = monotonic_ns()
        self.closed = True
        if self._exchange is not None:
            error = None if self._state == "until-close" else self._lost(self._exchange, None)
            self._finish(error, now_ns)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        now_ns = monotonic_ns()
        self.closed = True
        self._stop_sending()
        self._pool.forget(self)
        if self._exchange is not None:
            self._finish(self._lost(self._exchange, exc), now_ns)

    def _lost(self, exchange: Exchange, exc: Exception | None) -> str:
        if self._used and not exchange.first_byte_ns:
            return "stale-connection"
        if exc is not None or self._reset:
            return "connection-reset"
        return "truncated-body" if exchange.first_byte_ns else "connection-closed"

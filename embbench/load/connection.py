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

from embbench.load.arena import HEAD_ROOM, PAD, Arena, Slot
from embbench.load.client import MAX_HEAD_BYTES, Done, Exchange, status_error
from embbench.load.heads import BadHttpError, Chunks, Head, Heads
from embbench.load.rest import Rest

_HEAD_END: Final = b"\r\n\r\n"

_State = Literal["idle", "head", "length", "chunked", "until-close"]


def anonymous_slot(size: int) -> Slot:
    """Memory of this process alone, in the shape of a slot."""
    memory = mmap.mmap(-1, size)
    return Slot(memoryview(memory), 0, size)


class Pool(Protocol):
    """What a connection needs from its client."""

    arena: Arena
    heads: Heads
    scratch: Slot
    max_body_bytes: int

    def finished(
        self, connection: "Connection", exchange: Exchange, done: Done, reusable: bool
    ) -> None:
        """The exchange has its end stamp."""
        ...

    def forget(self, connection: "Connection") -> None:
        """The connection is gone."""
        ...


class Connection(asyncio.BufferedProtocol):
    """Idle, or carrying one exchange at a time."""

    _transport: asyncio.Transport
    _done: Done
    _chunks: Chunks

    def __init__(self, pool: Pool, sock: socket.socket, tls: bool) -> None:
        self._pool = pool
        self._sock = None if tls else sock
        self._exchange: Exchange | None = None
        self._state: _State = "idle"
        self._served = 0
        self._keep_alive = False
        self._reset = False
        self._rest: Rest | None = None  # of a request that the kernel did not take at once
        self._slot: Slot | None = None  # where the body is kept, if it is
        self._into = pool.scratch  # where a head is read to: the slot, or memory to forget
        self._filled = 0  # bytes of `_into` in use
        self._left = 0  # length state: body bytes still to come
        self.closed = False
        self.idle_since_ns = 0

    # -- sending --------------------------------------------------------------------------------

    def start(self, exchange: Exchange, message: bytes, done: Done, fresh: bool) -> None:
        """Send a request. ``start_ns`` is read here unless the connection was made for it."""
        self._exchange = exchange
        self._done = done
        self._rest = None
        self._state = "head"
        self._filled = 0
        self._into = self._pool.scratch
        if exchange.keep:
            self._slot = self._pool.arena.take()
            if self._slot is None:
                exchange.unkept = True
            else:
                self._into = self._slot
        if not fresh:
            exchange.start_ns = monotonic_ns()
        if self._sock is None:
            self._transport.write(message)
            return
        # Straight to the kernel: the transport's write waits for the loop's next turn.
        try:
            sent = self._sock.send(message)
        except BlockingIOError:
            sent = 0
        except OSError as exc:
            # What the peer said before it left can still be read, and so can its leaving.
            self._reset = isinstance(exc, ConnectionResetError)
            return
        if sent < len(message):
            self._rest = Rest(self._sock, memoryview(message)[sent:], self._cannot_send)

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
        if self._state == "head" or (self._slot is not None and self._state != "chunked"):
            return self._into.view[self._filled :]
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
        into = self._into
        begin = 0
        while True:
            # A copy of as much as heads are long is searched faster than the memory itself.
            near = bytes(into.view[begin : min(self._filled, begin + HEAD_ROOM)])
            found = near.find(_HEAD_END)
            if found < 0 and self._filled - begin > HEAD_ROOM:
                near = bytes(into.view[begin : min(self._filled, MAX_HEAD_BYTES)])
                found = near.find(_HEAD_END)
            if found < 0:
                break
            end = begin + found + 4
            raw = near[: found + 4]
            try:
                head, length = self._pool.heads.parse(raw)
            except BadHttpError:
                self._finish("bad-http", now_ns)
                return
            if head.interim:
                begin = end
                continue
            exchange.status = head.status
            exchange.gzip = head.gzip
            exchange.content_type = head.content_type
            self._keep_alive = head.keep_alive
            if self._slot is not None:
                exchange.kept_at = self._slot.start + end
            if length > 0 and not head.chunked and not head.empty:
                self._begin_length(exchange, end, length, now_ns)
            else:
                self._begin_other(exchange, head, raw, end, now_ns)
            return
        if self._filled >= MAX_HEAD_BYTES:
            self._finish("bad-http", now_ns)
            return
        if self._slot is not None and self._filled + PAD > self._slot.size:
            self._grow(exchange, self._slot, 2 * self._slot.size)
        if self._into is self._pool.scratch:
            # Other connections read into the scratch memory too: move the unfinished head away.
            self._into = anonymous_slot(MAX_HEAD_BYTES + PAD)
            self._into.view[: self._filled] = into.view[: self._filled]

    def _begin_length(self, exchange: Exchange, begin: int, length: int, now_ns: int) -> None:
        """The head ends at ``begin``; some or all of the body may have come with it."""
        pool, slot = self._pool, self._slot
        if length > pool.max_body_bytes:
            self._finish("body-too-large", now_ns)
            return
        here = self._filled - begin
        if slot is None and length > pool.arena.slot_bytes:
            pool.arena.expect(length)
        if here == length:  # all of it at once, as with most small bodies
            exchange.response_bytes = here
            self._finish(None, now_ns)
            return
        came = self._into.view[begin : self._filled]
        if slot is not None and begin + length + PAD > slot.size:
            self._grow(exchange, slot, begin + length + PAD)
        self._state = "length"
        self._left = length
        self._filled = begin
        self._read_length(exchange, here, now_ns, came)

    def _begin_other(
        self, exchange: Exchange, head: Head, raw: bytes, begin: int, now_ns: int
    ) -> None:
        """As `_begin_length`, for bodies that are empty, chunked, or end with the connection."""
        came = self._into.view[begin : self._filled]
        if head.empty:
            self._finish_whole(now_ns, came)
        elif head.chunked:
            exchange.chunked = True
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
        slot = self._slot
        if exchange.response_bytes > self._pool.max_body_bytes:
            self._finish("body-too-large", now_ns)
        elif slot is not None and self._filled + PAD > slot.size:
            self._grow(exchange, slot, 2 * slot.size)

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
        slot = self._slot
        if slot is None or exchange.response_bytes > self._pool.max_body_bytes:
            return
        if self._filled + size + PAD > slot.size:
            slot = self._grow(exchange, slot, 2 * slot.size + size)
        if slot is not None:
            slot.view[self._filled : self._filled + size] = piece
            self._filled += size

    def _grow(self, exchange: Exchange, old: Slot, size: int) -> Slot | None:
        """Move what has come to a larger slot; if there is no room for one, keep nothing."""
        new = self._pool.arena.take(size)
        if new is None:
            self._pool.arena.give_back(old, 0)
            self._into = self._pool.scratch
            exchange.unkept, exchange.kept_at = True, -1
        else:
            new.view[: self._filled] = old.view[: self._filled]
            if exchange.kept_at >= 0:
                exchange.kept_at += new.start - old.start
            self._into = new
        self._slot = new
        return new

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
        exchange.end_ns = now_ns
        exchange.error = error or status_error(exchange.status)
        if self._slot is not None:
            self._pool.arena.give_back(self._slot, self._filled)
            self._slot = None
        self._exchange = None
        self._state = "idle"
        self._served += 1
        reusable = (
            error is None
            and self._keep_alive
            and not surplus
            and not self.closed
            and (self._rest is None or self._rest.sent)
            and (self._sock is not None or self._transport.get_write_buffer_size() == 0)
        )
        self.idle_since_ns = now_ns
        if not reusable:
            self.drop()
        self._pool.finished(self, exchange, self._done, reusable)

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
        if self._served and not exchange.first_byte_ns:
            return "stale-connection"
        if exc is not None or self._reset:
            return "connection-reset"
        return "truncated-body" if exchange.first_byte_ns else "connection-closed"

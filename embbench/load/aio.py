"""The second client: aiohttp on an unlimited connector. For comparison, and to check the first.

In: request bodies. Out: filled-in exchanges, by the same rules as the buffered client. The first
byte is seen when the head is complete, which is later than the first read by aiohttp's own time.
"""

import asyncio
import ssl
from dataclasses import replace
from time import monotonic_ns
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError, TransferEncodingError

from embbench.load.arena import PAD, Arena
from embbench.load.client import (
    IDLE_LIMIT_S,
    MAX_HEAD_BYTES,
    ClientOptions,
    Done,
    Exchange,
    connect_error,
    parse_url,
    request_head,
    status_error,
    tls_context,
)
from embbench.load.heads import NO_HEAD, Head
from embbench.results.samples import CHUNKED, GZIP


def _tracing() -> aiohttp.TraceConfig:
    """Notes connect times and reuse on the exchange that is passed as the request's context."""
    trace = aiohttp.TraceConfig()

    async def begin(_: object, context: SimpleNamespace, __: object) -> None:
        context.connect_begin_ns = monotonic_ns()

    async def end(_: object, context: SimpleNamespace, __: object) -> None:
        call: _Call = context.trace_request_ctx
        call.exchange.connect_ns = monotonic_ns() - context.connect_begin_ns

    async def reuse(_: object, context: SimpleNamespace, __: object) -> None:
        context.trace_request_ctx.reused = True

    trace.on_connection_create_start.append(begin)
    trace.on_connection_create_end.append(end)
    trace.on_connection_reuseconn.append(reuse)
    return trace


class _Call:
    """One exchange under way."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.reused = False
        self.pieces: list[bytes] = []


class _TooLargeError(Exception):
    """The body is larger than the limit."""


class AiohttpClient:
    """`Client` over one aiohttp session."""

    done: Done

    def __init__(self, options: ClientOptions, arena: Arena) -> None:
        self._options = options
        self._arena = arena
        address = parse_url(options.url)
        request_head(address, options.headers)  # for its checks
        tls: ssl.SSLContext | bool = tls_context(options) if address.tls else True
        limits: dict[str, Any] = {"limit": 0, "keepalive_timeout": IDLE_LIMIT_S}
        connector: aiohttp.BaseConnector
        if address.unix is not None:
            connector = aiohttp.UnixConnector(address.unix, **limits)
            self._url = f"http://localhost{address.path}"
        else:
            connector = aiohttp.TCPConnector(ssl=tls, ttl_dns_cache=None, **limits)
            self._url = options.url
        self._session = aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            trace_configs=[_tracing()],
            max_line_size=MAX_HEAD_BYTES,
            max_field_size=MAX_HEAD_BYTES,
            headers={
                "Accept": "application/json",
                "Accept-Encoding": "identity",
                "Content-Type": "application/json",
                **options.headers,
            },
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._finished: list[Exchange] = []

    def prepare(self, body: bytes) -> bytes:
        return body

    def send(self, exchange: Exchange, message: bytes) -> None:
        exchange.start_ns = monotonic_ns()
        task = asyncio.get_running_loop().create_task(self._run(exchange, message))
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            raise bug

    async def _run(self, exchange: Exchange, message: bytes) -> None:
        call = _Call(exchange)
        error: str | None = None
        try:
            async with asyncio.timeout(self._options.timeout_s):
                await self._exchange(call, message)
        except TimeoutError:
            error = "timeout"
        except _TooLargeError:
            error = "body-too-large"
        except (aiohttp.ClientError, OSError, HttpProcessingError, ValueError) as exc:
            error = _error_name(exc, call)
        if error is not None:
            exchange.end_ns = monotonic_ns()
        exchange.error = error or status_error(exchange.head.status)
        self._keep(call)
        if not self._finished:
            asyncio.get_running_loop().call_soon(self._tell)
        self._finished.append(exchange)

    async def _exchange(self, call: _Call, message: bytes) -> None:
        exchange, limit = call.exchange, self._options.max_body_bytes
        async with self._session.post(
            self._url, data=message, allow_redirects=False, trace_request_ctx=call
        ) as response:
            exchange.first_byte_ns = monotonic_ns()
            exchange.head = _head_of(response)
            if (response.content_length or 0) > limit:
                raise _TooLargeError
            async for piece in response.content.iter_any():
                exchange.response_bytes += len(piece)
                if exchange.response_bytes > limit:
                    raise _TooLargeError
                if exchange.keep:
                    call.pieces.append(piece)
            exchange.end_ns = monotonic_ns()

    def _keep(self, call: _Call) -> None:
        exchange = call.exchange
        if not exchange.keep or not exchange.head.status:
            return
        arena = self._arena
        begin, end = arena.take(exchange.response_bytes + PAD)
        exchange.unkept = begin < 0
        if begin >= 0:
            at = begin
            for piece in call.pieces:
                arena.view[at : at + len(piece)] = piece
                at += len(piece)
            exchange.kept_at = begin
            arena.give_back(begin, end, at - begin)

    def _tell(self) -> None:
        finished, self._finished = self._finished, []
        self.done(finished)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._session.close()


def _head_of(response: aiohttp.ClientResponse) -> Head:
    headers = response.headers
    chunked = headers.get("Transfer-Encoding", "").lower() == "chunked"
    gzip = headers.get("Content-Encoding", "").lower() in ("gzip", "x-gzip")
    return replace(
        NO_HEAD,
        status=response.status,
        flags=(CHUNKED if chunked else 0) | (GZIP if gzip else 0),
        content_type=headers.get("Content-Type", ""),
    )


def _error_name(exc: Exception, call: _Call) -> str:
    exchange = call.exchange
    if isinstance(exc, aiohttp.ClientConnectorError):
        return connect_error(exc.os_error)
    if isinstance(exc, aiohttp.ClientSSLError | ssl.SSLError):
        return "tls-failed"
    if isinstance(exc, aiohttp.ClientResponseError | HttpProcessingError | ValueError):
        return "bad-http"
    if isinstance(exc, aiohttp.ServerDisconnectedError | OSError) and not exchange.head.status:
        if call.reused:
            return "stale-connection"
        reset = isinstance(exc, ConnectionResetError | aiohttp.ClientOSError)
        return "connection-reset" if reset else "connection-closed"
    if isinstance(exc, aiohttp.ClientPayloadError):
        cause = exc.__cause__ or exc.__context__
        if isinstance(cause, ConnectionError):
            return "connection-reset"
        if isinstance(cause, TransferEncodingError) and "Not enough data" not in str(cause):
            return "bad-http"
        return "truncated-body"
    return "connection-reset" if isinstance(exc, OSError) else "truncated-body"


async def open_aiohttp(options: ClientOptions, arena: Arena) -> AiohttpClient:
    """An `AiohttpClient`. Must be called on the loop that it will run on."""
    return AiohttpClient(options, arena)

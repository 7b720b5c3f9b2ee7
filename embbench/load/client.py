"""The client seam: one HTTP exchange, the clock readings around it, and the names of its failures.

In: an encoded request body. Out: an `Exchange` with four readings of CLOCK_MONOTONIC, exact byte
counts, a status or an error name, and (where asked) the response body in an `Arena`. A failed
request is a filled-in `Exchange`; an exception out of a client is a bug.
"""

import errno
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol
from urllib.parse import unquote, urlsplit

from embbench.errors import LoadError
from embbench.load.heads import NO_HEAD

ClientName = Literal["buffered", "aiohttp"]

IDLE_LIMIT_S: Final = 4.0
"""A kept connection idle for longer is not used again: servers close at 5 s (uvicorn's default)."""

MAX_HEAD_BYTES: Final = 65_536
"""An answer whose head is longer is ``bad-http``."""

ERRORS: Final[Mapping[str, str]] = {
    "connect-refused": "nothing listens at the address",
    "connect-failed": "the connection could not be made for another reason",
    "tls-failed": "the TLS handshake failed",
    "client-exhausted": "this machine ran out of descriptors or local ports: the client's fault",
    "connection-reset": "the server reset the connection",
    "connection-closed": "the server closed a new connection before the first byte of an answer",
    "stale-connection": "the server gave up a kept connection just as a request went out on it",
    "truncated-body": "the server closed the connection in the middle of an answer",
    "bad-http": "not HTTP/1.0 or 1.1, a head over 64 KiB, or more bytes than the answer promised",
    "body-too-large": "the body is larger than the limit",
    "timeout": "no complete answer within the time limit, connecting included",
}
"""All error names but ``http-NNN`` (any status outside 200 to 299, redirects included)."""

_CLIENT_LIMITS = {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM}


class Exchange:
    """One request and what came of it. Mutable, because it is filled in while bytes arrive.

    Times are CLOCK_MONOTONIC ns. ``start_ns`` is read before connecting or, on a kept connection,
    just before the first byte is written; ``first_byte_ns`` and ``end_ns`` right after the read
    that brought the first byte and the last body byte. ``response_bytes`` counts body bytes with
    the transfer encoding removed and the content encoding left: what Content-Length counts.
    """

    __slots__ = (
        "connect_ns",
        "end_ns",
        "error",
        "first_byte_ns",
        "head",
        "intended_ns",
        "keep",
        "kept_at",
        "phase",
        "request_bytes",
        "response_bytes",
        "seq",
        "start_ns",
        "unkept",
    )

    def __init__(self, seq: int, phase: int, request_bytes: int, keep: int) -> None:
        self.seq = seq
        self.phase = phase
        self.request_bytes = request_bytes
        self.keep = keep
        self.intended_ns = self.start_ns = self.first_byte_ns = self.end_ns = self.connect_ns = 0
        self.response_bytes = 0
        self.head = NO_HEAD
        self.error: str | None = None
        self.kept_at = -1
        """Where the body starts in the arena; -1 if it was not kept."""
        self.unkept = False
        """The body was to be kept, and the arena had no room."""


Done = Callable[[list[Exchange]], None]


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What a client needs to know before the first request."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 60.0
    max_body_bytes: int = 1 << 30
    tls_verify: bool = True


class Client(Protocol):
    """Sends requests on as many connections as it takes: no pool limit, no retry, no redirect.

    Whoever sends sets ``done`` first. It is called from the loop, never from within `send`, after
    every answer that was waiting in the kernel has been read and stamped, with all of these.
    """

    done: Done

    def prepare(self, body: bytes) -> bytes:
        """Whatever can be done for a request before its clock starts; goes to `send`."""
        ...

    def send(self, exchange: Exchange, message: bytes) -> None:
        """Read ``start_ns``, send, and tell ``done`` once, with the exchange filled in."""
        ...

    async def close(self) -> None:
        """Close all connections. Requests in flight are dropped without a call of ``done``."""
        ...


@dataclass(frozen=True, slots=True)
class Address:
    """A URL taken apart: where to connect, and what to ask for."""

    host: str
    port: int
    path: str
    tls: bool
    unix: str | None

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        if self.unix is not None:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def parse_url(url: str) -> Address:
    """``http://``, ``https://`` or, for Unix sockets, ``http+unix://%2Frun%2Fa.sock/v1/...``.

    Raises `LoadError` on anything else.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise LoadError(f"{url!r}: not a usable URL ({exc})") from exc
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if parts.scheme == "http+unix" and parts.netloc:
        return Address("localhost", 0, path, False, unquote(parts.netloc))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise LoadError(f"{url!r}: not a usable URL; expected http://HOST:PORT/v1/embeddings")
    tls = parts.scheme == "https"
    return Address(parts.hostname, port or (443 if tls else 80), path, tls, None)


def request_head(address: Address, headers: Mapping[str, str]) -> bytes:
    """The request head up to the value of Content-Length. Raises `LoadError` on a bad header."""
    fields = {
        "Host": address.authority,
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        **{name: value for name, value in headers.items() if name.lower() != "content-length"},
    }
    lines = [f"POST {address.path} HTTP/1.1"]
    given = {name.lower() for name in headers}
    for name, value in fields.items():
        if any(c in name + value for c in "\r\n\0"):
            raise LoadError(f"header {name!r} contains a line break; check the target's headers")
        if name in headers or name.lower() not in given:
            lines.append(f"{name}: {value}")
    return "\r\n".join([*lines, "Content-Length: "]).encode("latin-1")


def tls_context(options: ClientOptions) -> ssl.SSLContext:
    """Certificates are verified unless the target says not to."""
    context = ssl.create_default_context()
    if not options.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def status_error(status: int) -> str | None:
    """The error name of a status, None for 200 to 299."""
    return None if 200 <= status <= 299 else f"http-{status}"


def connect_error(exc: BaseException) -> str:
    """The error name of a connection that could not be made."""
    if isinstance(exc, ConnectionRefusedError):
        return "connect-refused"
    if isinstance(exc, ssl.SSLError | ssl.CertificateError):
        return "tls-failed"
    if isinstance(exc, ConnectionResetError):
        return "connection-reset"
    if isinstance(exc, OSError) and exc.errno in _CLIENT_LIMITS:
        return "client-exhausted"
    return "connect-failed"

"""What is around the JSON: status, compression, content type.

In: a body as it came, and what its header says. Out: the JSON text, or a `WireError`.
"""

import re
import zlib
from typing import Final

from embbench.payload.wire.reasons import WireError, not_json

WORDS_MAX: Final = 240
UNPACKED_BYTES_MAX: Final = 1 << 28
"""A gzip answer of unknown size is not unpacked beyond this."""


def gunzip(payload: bytes | memoryview, limit_bytes: int = UNPACKED_BYTES_MAX) -> bytes:
    """Unpack one gzip body, never to more than ``limit_bytes``. Raises `WireError`."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        unpacked = unpacker.decompress(payload, limit_bytes + 1)
    except zlib.error as exc:
        raise WireError("gzip", f"the gzip body is damaged ({exc})") from None
    if len(unpacked) > limit_bytes:
        what = f"the gzip body of {len(payload)} bytes unpacks to more than {limit_bytes} bytes"
        raise WireError("gzip", what)
    if not unpacker.eof:
        raise WireError("gzip", f"the gzip body ends early, after {len(payload)} bytes")
    if unpacker.unused_data:
        raise WireError("gzip", f"{len(unpacker.unused_data)} bytes after the end of the gzip body")
    return unpacked


def unpacked_max(count: int | None, dimension: int | None) -> int:
    """Far more than any honest way to print the numbers takes: 64 bytes each, and some room."""
    if count is None or dimension is None:
        return UNPACKED_BYTES_MAX
    return (1 << 20) + 64 * count * dimension


def check_content_type(content_type: str | None, payload: bytes | memoryview) -> None:
    """JSON in UTF-8; a page is named as such, whatever its header says. Raises `WireError`."""
    kind, _, parameters = (content_type or "").partition(";")
    kind = kind.strip().lower()
    if bytes(payload[:200]).lstrip()[:1] == b"<":
        raise not_json(bytes(payload[:4096]), "")
    if kind == "application/json" and not parameters:
        return
    if not kind:
        raise WireError("content-type", "the answer has no content type, not application/json")
    if kind != "application/json" and not kind.endswith("+json"):
        raise WireError("content-type", f"content type {kind}, not application/json")
    charset = parameters.lower().partition("charset=")[2].strip(' "')
    if charset and charset not in ("utf-8", "utf8", "us-ascii"):
        raise WireError("charset", f"charset {charset}, not UTF-8")


def words_of(payload: bytes | memoryview, gzip: bool) -> str:
    """The server's own words in a refusal, if it is one."""
    text = " ".join(bytes(payload[:2000]).decode("utf-8", "replace").split())
    if gzip or not text or '"embedding"' in text:
        return ""
    message = re.search(r'"(?:message|error|detail)"\s*:\s*"((?:[^"\\]|\\.)*)', text)
    words = message[1] if message else text
    return f": {words if len(words) <= WORDS_MAX else words[:WORDS_MAX] + '...'}"

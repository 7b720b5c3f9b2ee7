"""Why an answer cannot be read, in one sentence: off the fast way, only once reading has failed.

In: what was found, or the bytes and the parser's complaint. Out: a `WireError` of a named kind.
"""

import re
from typing import Any, Final

import orjson
import simdjson

from embbench.errors import EmbbenchError

_NOT_FINITE: Final = re.compile(rb"[\[,:]\s*(-?(?:NaN|nan|Infinity|inf))\b")
_KEY: Final = re.compile(rb'"embedding"\s*:')
_TITLE: Final = re.compile(rb"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_JSON_STARTS: Final = (
    *(bytes([char]) for char in b'{["-0123456789'),
    *(b"true", b"false", b"null", b"NaN", b"Infinity"),
    b"\xef\xbb\xbf",
)


class WireError(EmbbenchError):
    """The answer cannot be read; ``name`` is the kind, ``item`` the position in ``data``.

    ``lengths`` holds the vector lengths found, where they are the reason.
    """

    def __init__(
        self, name: str, what: str, *, item: int | None = None, lengths: tuple[int, ...] = ()
    ) -> None:
        super().__init__(what)
        self.name = name
        self.item = item
        self.lengths = lengths


def kind_of(value: Any) -> str:
    """What a JSON value is, in words."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case dict() | simdjson.Object():
            return "an object"
        case _:
            return "an array"


def not_json(body: bytes, complaint: str) -> WireError:
    """Why the parser refused a body, in better words than its own."""
    return WireError(*_why(body, complaint))


def _why(body: bytes, complaint: str) -> tuple[str, str]:
    start = body[:200].lstrip()
    if not start:
        return "empty", "the body is empty"
    if body[:2] in (b"\xff\xfe", b"\xfe\xff") or body[1:2] == b"\0" or body[:1] == b"\0":
        return "charset", "the body is UTF-16 or UTF-32, not UTF-8"
    if start[:1] == b"<":
        title = _TITLE.search(body[:4096])
        words = f' with the title "{_text(title[1])}"' if title else ""
        return "html", f"an HTML or XML page{words} instead of JSON"
    if not start.startswith(_JSON_STARTS):
        return "not-json", f'not JSON: the body starts with "{_text(body[:60])}"'
    if "CAPACITY" in complaint or "MEMALLOC" in complaint:
        return "too-large", f"a JSON body of {len(body)} bytes is too large to be read"
    if "DEPTH" in complaint:
        return "nesting", "the JSON is nested deeper than 1,024 levels"
    try:
        body.decode()
    except UnicodeDecodeError as exc:
        return "charset", f"not UTF-8 at byte {exc.start}"
    literal = _NOT_FINITE.search(body)
    if literal:
        vector = max(0, len(_KEY.findall(body, 0, literal.start())) - 1)
        name = literal[1].decode()
        return "not-finite", f"{name} in vector {vector}: not a JSON number"
    return _syntax(body, complaint)


def _syntax(body: bytes, complaint: str) -> tuple[str, str]:
    """Where the syntax breaks, by a second parser with better words."""
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        at = len(exc.doc[: exc.pos].encode()) if isinstance(exc.doc, str) else exc.pos
        if "end of data" in exc.msg:
            return "cut", f"the JSON ends in the middle, after {len(body)} bytes: a body cut short"
        if "after document" in exc.msg:
            return "trailing", f"{len(body) - at} bytes after the end of the JSON"
        near = _text(body[max(0, at - 20) : at + 20])
        return "syntax", f'not valid JSON at byte {at} ({exc.msg}), near "{near}"'
    if "NUMBER" in complaint or "BIGINT" in complaint:
        return "number", "a number is too large for float64"
    return "syntax", f"not valid JSON ({complaint.split(':')[0]})"


def _text(raw: bytes) -> str:
    return " ".join(raw.decode("utf-8", "replace").split())[:100]

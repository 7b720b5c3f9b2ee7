"""Heads found by way of the memory of earlier ones are those that the parser finds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embbench.load.heads import BadHttpError, Head, Heads, parse_head

FORMS = [
    b"HTTP/1.1 200 OK\r\nContent-Length: %b\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length:%b\r\ncontent-type: application/json\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nDate: today\r\nContent-Length: %b\r\nConnection: close\r\n\r\n",
    b"HTTP/1.1 404 Not Found\r\nContent-Length: %b\r\nContent-Encoding: gzip\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\nContent-Length: %b\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: %b\r\nContent-Length: 7\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: %b\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX: %b\r\n\r\n",
]
LENGTHS = st.sampled_from(
    [b"0", b"7", b"13", b"00", b"07", b"70", b"1234", b"1 2", b" 12", b"1_2", b"+12", b"-1", b"1x"]
)
BODIES = st.sampled_from([b"", b"{", b"12\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"\r\n\r\n"])


def by_parser(raw: bytes) -> tuple[Head, int, int] | None:
    """The head of ``raw``, its size and promise, with nothing remembered."""
    head, found, _ = raw.partition(b"\r\n\r\n")
    if not found:
        return None
    parsed, length = parse_head(head + found)
    return parsed, len(head) + 4, length


@given(st.lists(st.tuples(st.sampled_from(FORMS), LENGTHS, BODIES), max_size=30), st.data())
def test_what_is_remembered_changes_nothing(
    answers: list[tuple[bytes, bytes, bytes]], data: st.DataObject
) -> None:
    heads = Heads()
    for form, length, body in answers:
        raw = form % length + body
        if data.draw(st.booleans(), label="cut"):
            raw = raw[: data.draw(st.integers(0, len(raw)), label="at")]
        try:
            expected = by_parser(raw)
        except BadHttpError:
            with pytest.raises(BadHttpError):
                heads.find(raw)
        else:
            assert heads.find(raw) == expected

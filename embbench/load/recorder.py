"""Rows to disk as the trial goes: memory stays flat, and what was written survives a kill.

In: exchanges that are over. Out: a raw file of `RAW` rows, in the order in which the answers
came, and beside it the names that the rows' numbers stand for.
"""

import os
import struct
from pathlib import Path
from typing import Final

import numpy as np

from embbench.load.client import Exchange
from embbench.load.heads import NO_HEAD
from embbench.results.samples import RECORD

RAW: Final = np.dtype([("record", RECORD), ("kept_at", "<i8"), ("content_type", "<i2")])
"""A row of the raw file: ``kept_at`` is the body's place in the shard's arena, -1 if it was not
kept; ``content_type`` indexes the shard's content types, -1 = none was given."""

_ROW: Final = struct.Struct("<8q2h2Bqh")
assert _ROW.size == RAW.itemsize

_pack_into: Final = _ROW.pack_into
_ROW_BYTES: Final = _ROW.size
_BUFFER_BYTES: Final = 51 * _ROW_BYTES  # just under a page: short writes, no burst


class Recorder:
    """Takes each finished exchange of one shard.

    The order of ``error_names`` and ``content_types`` is what the rows' numbers mean; a new error
    name also goes to ``ROWS.errors`` at once, so that a file left by a kill can be read.
    """

    def __init__(self, rows: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._fd = os.open(rows, flags, 0o600)
        self._names = rows.with_suffix(".errors")
        self._names.write_text("")
        self._buffer = bytearray(_BUFFER_BYTES)
        self._used = 0
        self._errors: dict[str, int] = {}
        self._types: dict[str, int] = {"": -1}
        self._head, self._head_type = NO_HEAD, -1  # of the answer before, mostly like this one's
        self.unkept = 0

    @property
    def error_names(self) -> tuple[str, ...]:
        return tuple(self._errors)

    @property
    def content_types(self) -> tuple[str, ...]:
        return tuple(self._types)[1:]

    def add(self, exchange: Exchange) -> None:
        """Write one row; in a closed loop (no intended start) the intended start is the start."""
        error, start_ns = exchange.error, exchange.start_ns
        if exchange.head is not self._head:
            self._head = exchange.head
            self._head_type = self._type_code(exchange.head.content_type)
        head, used = self._head, self._used
        _pack_into(
            self._buffer,
            used,
            exchange.seq,
            exchange.intended_ns or start_ns,
            start_ns,
            exchange.first_byte_ns,
            exchange.end_ns,
            exchange.connect_ns,
            exchange.request_bytes,
            exchange.response_bytes,
            head.status,
            -1 if error is None else self._error_code(error),
            exchange.phase,
            head.flags,
            exchange.kept_at,
            self._head_type,
        )
        self._used = used = used + _ROW_BYTES
        if used == _BUFFER_BYTES:
            self._flush()
        if exchange.unkept:
            self.unkept += 1

    def _type_code(self, kind: str) -> int:
        return self._types.setdefault(kind, len(self._types) - 1)

    def _error_code(self, name: str) -> int:
        if name not in self._errors:
            self._errors[name] = len(self._errors)
            self._names.write_text("".join(f"{known}\n" for known in self._errors))
        return self._errors[name]

    def _flush(self) -> None:
        view = memoryview(self._buffer)[: self._used]
        while view:
            view = view[os.write(self._fd, view) :]
        self._used = 0

    def close(self) -> None:
        """Write what is left."""
        if self._fd >= 0:
            self._flush()
            os.close(self._fd)
            self._fd = -1

"""Rows to disk as the trial goes: memory stays flat, and what was written survives a kill.

In: exchanges that are over. Out: a raw file of `RECORD` rows and one of `KEPT` rows, in the order
in which the answers came.
"""

import os
import struct
from pathlib import Path
from typing import Final

from embbench.bodies import KEPT
from embbench.load.client import Exchange
from embbench.samples import CHUNKED, GZIP, RECORD

_ROW: Final = struct.Struct("<8q2h2B")
_KEPT: Final = struct.Struct("<3q3h2B")
assert _ROW.size == RECORD.itemsize
assert _KEPT.size == KEPT.itemsize

_ROWS_A_WRITE: Final = 56  # just under a page: short writes, no burst


class _RowFile:
    """Fixed-size rows, a buffer of a few, then a file."""

    def __init__(self, path: Path, row: struct.Struct) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._pack = row.pack_into
        self._size = row.size
        self._buffer = bytearray(row.size * _ROWS_A_WRITE)
        self._used = 0

    def add(self, *values: int) -> None:
        self._pack(self._buffer, self._used, *values)
        self._used += self._size
        if self._used == len(self._buffer):
            self.flush()

    def flush(self) -> None:
        view = memoryview(self._buffer)[: self._used]
        while view:
            view = view[os.write(self._fd, view) :]
        self._used = 0

    def close(self) -> None:
        if self._fd >= 0:
            self.flush()
            os.close(self._fd)
            self._fd = -1


class Recorder:
    """Takes each finished exchange of one shard. ``error_names`` index the rows' ``error``."""

    def __init__(self, rows: Path, kept: Path, shard: int) -> None:
        self._rows = _RowFile(rows, _ROW)
        self._kept = _RowFile(kept, _KEPT)
        self._shard = shard
        self._errors: dict[str, int] = {}
        self._types: dict[str, int] = {}
        self.unkept = 0

    @property
    def error_names(self) -> tuple[str, ...]:
        return tuple(self._errors)

    @property
    def content_types(self) -> tuple[str, ...]:
        return tuple(self._types)

    def add(self, exchange: Exchange) -> None:
        """Write one row; in a closed loop (no intended start) the intended start is the start."""
        error = exchange.error
        self._rows.add(
            exchange.seq,
            exchange.intended_ns or exchange.start_ns,
            exchange.start_ns,
            exchange.first_byte_ns,
            exchange.end_ns,
            exchange.connect_ns,
            exchange.request_bytes,
            exchange.response_bytes,
            exchange.status,
            -1 if error is None else self._errors.setdefault(error, len(self._errors)),
            exchange.phase,
            (CHUNKED if exchange.chunked else 0) | (GZIP if exchange.gzip else 0),
        )
        if exchange.kept_at >= 0:
            kind = exchange.content_type
            self._kept.add(
                exchange.seq,
                exchange.kept_at,
                exchange.response_bytes,
                self._shard,
                exchange.status,
                self._types.setdefault(kind, len(self._types)) if kind else -1,
                exchange.phase,
                exchange.gzip,
            )
        elif exchange.unkept:
            self.unkept += 1

    def close(self) -> None:
        """Write what is left."""
        self._rows.close()
        self._kept.close()

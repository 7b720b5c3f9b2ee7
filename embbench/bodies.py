"""Bodies at rest: request bodies before a trial, response bodies after it.

In: encoded request bodies from `inputs`, written one after the other into one file. Out: the
response bodies of a trial in a bounded arena of shared memory, for the checks, off the clock.
Neither grows the load process's own memory with the number of requests.
"""

import mmap
import os
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from embbench.errors import RunError
from embbench.samples import MEASURED

_MAGIC = b"EMBBODY1"
_READ_BYTES = 32_768
_OFFSETS_A_READ = 1024
_OFFSET = struct.Struct("<q")
_TRAILER = struct.Struct("<q8s")  # number of bodies, magic; before it: count + 1 offsets as <i8


class BodyFile:
    """Request bodies in one file, read from disk: ``body_file[i]``, or many in order by `read`.

    Raises `RunError` if the file is missing, or was not closed by its writer.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as exc:
            raise RunError(f"{path}: cannot read request bodies ({exc.strerror})") from exc
        try:
            self._count, self._offsets_at = self._trailer()
        except BaseException:
            self.close()
            raise

    def _trailer(self) -> tuple[int, int]:
        """How many bodies there are, and where their offsets begin in the file."""
        size = os.fstat(self._fd).st_size
        tail = os.pread(self._fd, _TRAILER.size, max(0, size - _TRAILER.size))
        count, magic = _TRAILER.unpack(tail) if len(tail) == _TRAILER.size else (-1, b"")
        start = size - _TRAILER.size - 8 * (count + 1)
        if magic != _MAGIC or count < 0 or start < 0:
            raise RunError(f"{self.path}: not a complete file of request bodies; write it again")
        return count, start

    def _offsets(self, first: int, last: int) -> "array[int]":
        """Where these bodies begin, and where the last ends; on disk, as a file may have many."""
        if not 0 <= first <= last < self._count:
            raise IndexError(f"body {first} to {last} of {self._count} in {self.path}")
        return array("q", os.pread(self._fd, 8 * (last - first + 2), self._offsets_at + 8 * first))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> bytes:
        start, end = self._offsets(index, index)
        return os.pread(self._fd, end - start, start)

    def read(self, indices: range) -> Iterator[bytes]:
        """These bodies one after the other; of small ones, a few are read from disk at once."""
        held, held_at, held_to = b"", 0, 0
        for at in range(0, len(indices), _OFFSETS_A_READ):
            some = indices[at : at + _OFFSETS_A_READ]
            offsets = self._offsets(some[0], some[-1])
            starts, ends = offsets[: -1 : indices.step], offsets[1 :: indices.step]
            for start, end in zip(starts, ends, strict=True):
                if end > held_to:
                    held = os.pread(self._fd, max(_READ_BYTES, end - start), start)
                    held_at, held_to = start, start + len(held)
                yield held[start - held_at : end - held_at]

    def close(self) -> None:
        """Close the file; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


class BodyFileWriter:
    """Writes a `BodyFile`, body by body; the file is readable once the writer is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._beside = path.with_name(f".{path.name}.part")
        self._file = self._beside.open("wb")
        offsets = path.with_name(f".{path.name}.offsets")
        self._offsets = offsets.open("w+b")  # on disk, as there may be any number of them
        offsets.unlink()
        self._offsets.write(_OFFSET.pack(0))
        self._count = self._end = 0

    def append(self, body: bytes) -> int:
        """Add one body; returns its number, from 0."""
        self._file.write(body)
        self._end += len(body)
        self._offsets.write(_OFFSET.pack(self._end))
        self._count += 1
        return self._count - 1

    def close(self) -> None:
        """Write the offsets and put the file in its place."""
        if self._file.closed:
            return
        self._offsets.seek(0)
        while piece := self._offsets.read(1 << 16):
            self._file.write(piece)
        self._offsets.close()
        self._file.write(_TRAILER.pack(self._count, _MAGIC))
        self._file.close()
        self._beside.rename(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()
            self._offsets.close()
            self._beside.unlink(missing_ok=True)


KEPT = np.dtype(
    [
        ("seq", "<i8"),
        ("offset", "<i8"),  # of the payload in its shard's arena
        ("length", "<i8"),
        ("shard", "<i2"),
        ("status", "<i2"),
        ("content_type", "<i2"),  # index into the content types; -1 = none was given
        ("phase", "u1"),
        ("gzip", "u1"),
    ]
)
"""One kept response body."""


@dataclass(frozen=True, slots=True)
class KeptBody:
    """One response body as it came, transfer encoding removed, content encoding not.

    ``status`` may be any: the words of a refusal are kept like any other body. ``payload`` is a
    view into the arena, valid until `KeptBodies.close`.
    """

    seq: int
    phase: int
    status: int
    payload: memoryview
    gzip: bool
    content_type: str


class KeptBodies:
    """The response bodies of one trial, one arena of shared memory for each load process.

    Iterates in order of phase and seq; ``kept[phase, seq]`` is random access. ``unkept`` counts
    the responses that were to be kept and for which the arena had no room: they were received
    and counted in full, but cannot be verified. An instance may be pickled and used in other
    processes of this host for as long as this one lives and has not closed it. The memory has no
    name in any file system: it is gone with the last process that uses it.
    """

    def __init__(
        self,
        arenas: Sequence[str],
        index: NDArray[np.void],
        content_types: Sequence[str] = (),
        unkept: int = 0,
        owned: Sequence[int] = (),
    ) -> None:
        self._arenas = tuple(arenas)
        self._owned = list(owned)
        self._maps: dict[int, memoryview] = {}
        self.index = index[np.lexsort((index["seq"], index["phase"]))]
        self.content_types = tuple(content_types)
        self.unkept = unkept

    @classmethod
    def empty(cls) -> "KeptBodies":
        """No bodies."""
        return cls((), np.empty(0, KEPT))

    def __reduce__(self) -> tuple[object, ...]:
        return KeptBodies, (self._arenas, self.index, self.content_types, self.unkept)

    def _arena(self, shard: int) -> memoryview:
        if shard not in self._maps:
            fd = os.open(self._arenas[shard], os.O_RDONLY | os.O_CLOEXEC)
            try:
                mapped = mmap.mmap(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ)
            finally:
                os.close(fd)
            self._maps[shard] = memoryview(mapped)
        return self._maps[shard]

    def _body(self, row: np.void) -> KeptBody:
        seq, start, length, shard, status, kind, phase, gzip = row.tolist()
        return KeptBody(
            seq,
            phase,
            status,
            self._arena(shard)[start : start + length],
            bool(gzip),
            self.content_types[kind] if kind >= 0 else "",
        )

    def part(self, start: int, stop: int) -> "KeptBodies":
        """Some of the bodies by their place in the order, in the same memory."""
        return KeptBodies(self._arenas, self.index[start:stop], self.content_types)

    def __len__(self) -> int:
        return len(self.index)

    def __iter__(self) -> Iterator[KeptBody]:
        return (self._body(row) for row in self.index)

    def _find(self, key: tuple[int, int]) -> np.void | None:
        phase, seq = key
        low = int(np.searchsorted(self.index["phase"], phase, "left"))
        high = int(np.searchsorted(self.index["phase"], phase, "right"))
        at = low + int(np.searchsorted(self.index["seq"][low:high], seq))
        return self.index[at] if at < high and self.index["seq"][at] == seq else None

    def __contains__(self, key: object) -> bool:
        return isinstance(key, tuple) and self._find(key) is not None

    def __getitem__(self, key: tuple[int, int]) -> KeptBody:
        row = self._find(key)
        if row is None:
            raise KeyError(f"the body of request {key[1]} (phase {key[0]}) was not kept")
        return self._body(row)

    @property
    def measured(self) -> Iterator[KeptBody]:
        """The bodies of the measured requests only."""
        return (self._body(row) for row in self.index[self.index["phase"] == MEASURED])

    @property
    def bytes(self) -> int:
        """Payload bytes kept."""
        return int(self.index["length"].sum())

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Give the memory back (once no view of it is left); safe to call twice."""
        self._maps.clear()
        while self._owned:
            os.close(self._owned.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


def create_arena(name: str, size: int) -> tuple[int, str]:
    """Shared memory of ``size`` bytes: its descriptor, and a path by which others here open it.

    Memory is taken page by page as it is touched; nothing is left behind after a kill.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd, f"/proc/{os.getpid()}/fd/{fd}"

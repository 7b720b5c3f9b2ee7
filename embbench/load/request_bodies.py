"""Request bodies before a trial: written one after the other into one file, read from disk.

In: encoded request bodies from `inputs`. Out: the same by number, for the load processes, whose
memory does not grow with the number of requests.
"""

import os
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from embbench.errors import RunError

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

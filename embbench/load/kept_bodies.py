"""Response bodies after a trial: in a bounded arena of shared memory, for the checks.

In: what the load processes received. Out: each kept body as a view into that memory, off the clock;
nothing is copied, and the load process's own memory does not grow with the number of requests.
"""

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from embbench.results.samples import MEASURED

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

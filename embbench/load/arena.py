"""The load process's side of the response arena: slots that bodies are received into.

In: a shared-memory file of bounded size. Out: slots, handed out one after the other, into which
the kernel copies a response; nothing is copied again. When the arena is full, `take` says so and
the response is received without being kept.
"""

import contextlib
import mmap
import os
import time

HEAD_ROOM = 1024
"""Room for the head of an answer, which arrives in the same read as the body's beginning."""

PAD = 64
"""A read is offered this much more than is expected, so that one read sees the end of the data."""

_LEAST = 4096
_SLACK_SHARE = 0.02  # float JSON of the same shape differs by so much in length, or less
_PAGE = mmap.PAGESIZE
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14


class Arena:
    """Slots in a shared mapping, told by where they begin in ``memory`` and ``view``.

    ``slot_bytes``, the size of the next slot, grows to the largest body seen (and its head).
    """

    def __init__(self, path: str | None, body_bytes: int = 0) -> None:
        """Map the arena at ``path``; None is an arena without room.

        ``body_bytes`` is the expected size of a body; a guess that is too small costs one copy
        of what came in the first read of the first such body.
        """
        self.slot_bytes = _LEAST
        self.expect(body_bytes)
        self._top = 0
        self._touched = 0
        self.memory = mmap.mmap(-1, _PAGE)
        self.size = 0
        if path is not None:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                self.size = os.fstat(fd).st_size
                if self.size:
                    self.memory = mmap.mmap(fd, self.size)
                    with contextlib.suppress(OSError):  # where allowed: fewer misses of the TLB
                        self.memory.madvise(mmap.MADV_HUGEPAGE)
            finally:
                os.close(fd)
        self.view = memoryview(self.memory)

    def expect(self, body_bytes: int) -> None:
        """Bodies of this size come; slots from now on have room for them."""
        room = int(body_bytes * (1 + _SLACK_SHARE)) + HEAD_ROOM + PAD
        if room > self.slot_bytes:
            self.slot_bytes = room

    def take(self, size: int = 0) -> tuple[int, int]:
        """A slot of `slot_bytes`: where it begins and ends; -1, -1 if the arena is full.

        ``size`` makes `slot_bytes` grow, if it is more.
        """
        if size > self.slot_bytes:
            self.slot_bytes = size
        begin = self._top
        end = begin + self.slot_bytes
        if end > self.size:
            return -1, -1
        self._top = (end + 63) & ~63
        return begin, end

    def give_back(self, begin: int, end: int, used: int) -> None:
        """Return what lies beyond ``used`` bytes, if the slot is the latest that was handed out."""
        if self._top == (end + 63) & ~63:
            self._top = (begin + used + 63) & ~63

    def prefault(self, slots: int, deadline_s: float = 2.0) -> None:
        """Touch the pages of the next ``slots`` slots, so that no page fault falls into a trial.

        Stops after ``deadline_s``: kept connections must not go stale meanwhile.
        """
        want = min(self.size, self._top + slots * (self.slot_bytes + 64) + _PAGE & ~(_PAGE - 1))
        at = max(self._touched, self._top & ~(_PAGE - 1))
        until = time.monotonic() + deadline_s
        while at < want and time.monotonic() < until:
            step = min(64 << 20, want - at)
            try:
                self.memory.madvise(_POPULATE_WRITE, at, step)
            except (OSError, ValueError):
                for page in range(at, at + step, _PAGE):
                    self.view[page] = 0
            at += step
        self._touched = max(self._touched, at)

    def close(self) -> None:
        """Unmap, once no view is left."""
        self.view = memoryview(b"")
        self.memory = mmap.mmap(-1, _PAGE)

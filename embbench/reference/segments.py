"""Shared-memory segments of the shm hop: made by the worker, read and removed by the frontend.

One segment holds the vectors of one request as raw little-endian float32 [count, dim]; only a
`Handle` crosses the hop. Segments are plain files of mode 0600 under /dev/shm, which is what
shm_open makes on Linux. Their names say who made them, so that whoever comes later can tell a
segment in use from one that a dead process left: pid namespace, pid, and the pid's start time.
"""

import os
import re
import secrets
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_NAME = re.compile(r"embbench-(\d+)-(\d+)-(\d+)-[0-9a-f]{16}")


class HandleError(Exception):
    """A handle that does not describe a segment of this server's worker."""


@dataclass(frozen=True, slots=True)
class Handle:
    """What crosses the hop in place of the vectors."""

    name: str
    count: int
    dim: int


def prefix_of(pid: int) -> str:
    """The start of the names of all segments that a running process makes."""
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    return f"embbench-{namespace}-{pid}-{_start_ticks(pid)}-"


def _start_ticks(pid: int) -> int:
    """When a process started; with it a pid that was given out again is told from the first."""
    # the command in parentheses may hold spaces: count the fields after it (proc(5), field 22)
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


class SegmentStore:
    """The worker's side: makes segments, and removes those that nobody collected."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self.folder, self.prefix = folder, prefix
        self.reaped = 0
        self._made: dict[Path, float] = {}

    def create(self, rows: Sequence[NDArray[np.float32]]) -> Handle:
        """Write rows of equal length into a new segment.

        Raises ValueError if the rows differ in length, and OSError if memory is short; then
        nothing is left behind.
        """
        dim = len(rows[0])
        if any(len(row) != dim for row in rows):
            raise ValueError("rows of different length")
        path = _write(self.folder, self.prefix, rows)
        self._made[path] = time.monotonic()
        return Handle(path.name, len(rows), dim)

    def reap(self, max_age_s: float) -> None:
        """Remove segments older than the limit; the frontend has long removed those it read."""
        limit = time.monotonic() - max_age_s
        for path in [path for path, made in self._made.items() if made <= limit]:
            del self._made[path]
            with suppress(FileNotFoundError):
                path.unlink()
                self.reaped += 1


def _write(folder: Path, prefix: str, rows: Sequence[NDArray[np.float32]]) -> Path:
    path = folder / (prefix + secrets.token_hex(8))
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        # written, not mapped: a full /dev/shm is then an error here and not a SIGBUS
        for row in rows:
            _write_all(fd, row.data.cast("B"))
    except BaseException:
        path.unlink()
        raise
    finally:
        os.close(fd)
    return path


def _write_all(fd: int, view: memoryview) -> None:
    while view:
        view = view[os.write(fd, view) :]


def collect(folder: Path, prefix: str, handle: Handle, expected_count: int) -> NDArray[np.float32]:
    """The vectors [count, dim] of a segment, which is removed.

    The handle is not trusted: the name must be one of the worker's, the file a plain one of this
    user, mode 0600, with one link, and exactly as long as the handle says. Raises HandleError.
    """
    name, count, dim = handle.name, handle.count, handle.dim
    if not _NAME.fullmatch(name) or not name.startswith(prefix):
        raise HandleError(f"'{name}' is not a segment of the worker")
    if type(count) is not int or type(dim) is not int or count != expected_count or dim < 1:
        raise HandleError(f"{count} x {dim} is not {expected_count} vectors")
    path = folder / name
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise HandleError(f"'{name}' cannot be opened: {error.strerror}") from None
    try:
        _check_file(name, os.fstat(fd), count * dim * 4)
        vectors = np.empty((count, dim), "<f4")
        view = vectors.data.cast("B")
        while view:
            read = os.readv(fd, [view])
            if read == 0:
                raise HandleError(f"'{name}' became shorter while it was read")
            view = view[read:]
        return vectors
    finally:
        os.close(fd)
        _remove(path)


def _check_file(name: str, status: os.stat_result, size: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise HandleError(f"'{name}' is not a plain file")
    if status.st_uid != os.geteuid():
        raise HandleError(f"'{name}' belongs to user {status.st_uid}")
    if stat.S_IMODE(status.st_mode) != 0o600:
        raise HandleError(f"'{name}' has mode {stat.S_IMODE(status.st_mode):o}, not 600")
    if status.st_nlink != 1:
        raise HandleError(f"'{name}' has {status.st_nlink} links")
    if status.st_size != size:
        raise HandleError(f"'{name}' has {status.st_size} bytes, the handle says {size}")


def live(folder: Path, prefix: str) -> list[Path]:
    """Segments of one process that are there now."""
    return [path for path in folder.glob("embbench-*") if path.name.startswith(prefix)]


def remove_all(folder: Path, prefix: str) -> int:
    """Remove every segment of one process; returns how many there were."""
    paths = live(folder, prefix)
    for path in paths:
        _remove(path)
    return len(paths)


def remove_stale(folder: Path) -> int:
    """Remove this user's segments whose maker is dead; returns how many.

    Segments of another pid namespace are left alone: whether their maker lives cannot be seen.
    """
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    stale = []
    for path in folder.glob("embbench-*"):
        match = _NAME.fullmatch(path.name)
        if match is None or int(match[1]) != namespace:
            continue
        with suppress(FileNotFoundError):
            if path.lstat().st_uid == os.geteuid() and not _made_by_living(path.name, match):
                stale.append(path)
    for path in stale:
        _remove(path)
    return len(stale)


def _made_by_living(name: str, match: re.Match[str]) -> bool:
    try:
        return name.startswith(prefix_of(int(match[2])))
    except (FileNotFoundError, ProcessLookupError):
        return False


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError, PermissionError):
        path.unlink()


def offer_probe(folder: Path) -> tuple[Path, str]:
    """A segment of random bytes, and the bytes in hex: who can say them shares the memory."""
    secret = np.frombuffer(secrets.token_bytes(32), "<f4")
    return _write(folder, prefix_of(os.getpid()), [secret]), secret.tobytes().hex()


def answer_probe(folder: Path, name: str) -> str | None:
    """The bytes of a probe in hex, or None if it cannot be read here."""
    if not _NAME.fullmatch(name):
        return None
    try:
        return (folder / name).read_bytes().hex()
    except OSError:
        return None


def boot_id() -> str:
    """The identity of this host's running kernel."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()

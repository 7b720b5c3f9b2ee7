"""Rows that lie in a file, so that a trial of any length takes no memory of its own.

In: a folder with room. Out: an array like any other, whose pages the system fetches when they are
looked at. The file has no name: it is gone with the last use of the array, or with the process.
"""

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class _Mapping(mmap.mmap):
    """A shared mapping of a file: its pages may be let go, as the file has them."""


def rows_on_disk(folder: Path, count: int, dtype: DTypeLike) -> NDArray[np.void]:
    """``count`` rows of zeros. Raises `OSError` if the folder has no room for them."""
    import tempfile  # here: the load processes, which share the samples' module, are to stay small

    dtype = np.dtype(dtype)
    if not count:
        return np.zeros(0, dtype)
    size = count * dtype.itemsize
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, size)  # a full disk is told here, not by a signal
        return np.frombuffer(_Mapping(file.fileno(), size), dtype)


def let_go(rows: NDArray[Any]) -> None:
    """Rows on disk, or some of them, leave this process's memory until they are looked at again.

    Nothing is lost, and any other array stays as it is.
    """
    owner: object = rows
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    if isinstance(owner, _Mapping):
        owner.madvise(mmap.MADV_DONTNEED)

"""Batches: one trial's samples in pieces, so that a trial of any length is read in flat memory.

In: a file as `samples.write_samples` left it. Out: `Samples` of at most `ROWS` rows each, in order.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from embbench.results.samples import Samples, batches, open_samples

ROWS = 1 << 14


def sample_batches(
    path: Path, columns: Sequence[str] | None = None, *, rows: int = ROWS
) -> Iterator[Samples]:
    """The rows of one trial's file, piece by piece. Columns that were not asked for are zero.

    Error names are those of the piece. Raises `RunError` if the file is missing, damaged or of
    another schema version.
    """
    with open_samples(path) as file:
        yield from batches(file, columns, rows)

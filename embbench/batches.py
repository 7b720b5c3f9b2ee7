"""Batches: one trial's samples in pieces, so that a trial of any length is read in flat memory.

In: a file as `samples.write_samples` left it. Out: `Samples` of at most `ROWS` rows each, in order.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embbench.errors import RunError
from embbench.samples import RECORD, SCHEMA_VERSION, Samples

ROWS = 1 << 17


def sample_batches(
    path: Path, columns: Sequence[str] | None = None, *, rows: int = ROWS
) -> Iterator[Samples]:
    """The rows of one trial's file, piece by piece. Columns that were not asked for are zero.

    Error names are those of the piece. Raises `RunError` if the file is missing, damaged or of
    another schema version.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            version = (file.schema_arrow.metadata or {}).get(b"embbench_schema", b"none").decode()
            if version != str(SCHEMA_VERSION):
                raise RunError(
                    f"{path}: samples of schema {version}, this embbench reads {SCHEMA_VERSION}; "
                    "read it with the embbench version named in the run's run.json"
                )
            wanted = None if columns is None else list(columns)
            for batch in file.iter_batches(batch_size=rows, columns=wanted):
                yield _samples(batch)
    except (OSError, pa.ArrowInvalid) as exc:
        raise RunError(f"{path}: not readable as samples ({exc}); was it cut short?") from exc


def _samples(batch: Any) -> Samples:
    rows = np.zeros(batch.num_rows, RECORD)
    rows["error"] = -1
    names: tuple[str, ...] = ()
    for name in batch.schema.names:
        column = batch.column(name)
        if name == "error":
            names = tuple(column.dictionary.to_pylist())
            rows["error"] = column.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        else:
            rows[name] = column.to_numpy()
    return Samples(rows, names)

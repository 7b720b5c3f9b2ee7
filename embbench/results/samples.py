"""The sample record and its files: one row a request, clock readings only, times derived.

In: rows of `RECORD` as the load processes wrote them. Out: one Parquet file a trial, warm-up rows
included and marked. Every reader above works on `Samples`, a set of equally long columns.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embbench.errors import RunError
from embbench.results.arrow import texts_to_arrow, to_arrow, to_numpy
from embbench.results.ondisk import let_go

if TYPE_CHECKING:
    import pandas

SCHEMA_VERSION = 1

_ROWS_A_GROUP = 1 << 16

_ROWS_A_PIECE = 1 << 14

_FEW_VALUES = ["status", "error", "phase", "flags"]
"""Columns worth a dictionary in the file: of the others it takes time and room."""

WARMUP, MEASURED = 0, 1

CHUNKED, GZIP, VERIFIED = 1, 2, 4
"""Bits of ``flags``: transfer encoding, content encoding, body was decoded and checked."""

RECORD = np.dtype(
    [
        ("seq", "<i8"),  # request number within its phase of the trial, from 0
        ("intended_start_ns", "<i8"),  # when the schedule says it leaves; closed loop: = start_ns
        ("start_ns", "<i8"),  # just before the first byte is written
        ("first_byte_ns", "<i8"),  # first byte of the answer read; 0 if none came
        ("end_ns", "<i8"),  # last body byte read, or the failure seen
        ("connect_ns", "<i8"),  # part of the service time spent connecting; 0 on a kept connection
        ("request_bytes", "<i8"),  # body bytes sent
        ("response_bytes", "<i8"),  # body bytes on the wire (before any decompression)
        ("status", "<i2"),  # HTTP status; 0 if no answer
        ("error", "<i2"),  # index into the trial's error names; -1 = none
        ("phase", "u1"),  # WARMUP or MEASURED
        ("flags", "u1"),  # CHUNKED | GZIP | VERIFIED
    ]
)
"""One request as the client saw it. Times are CLOCK_MONOTONIC nanoseconds of one host."""


@dataclass(frozen=True, slots=True)
class Samples:
    """All requests of one trial: an array of `RECORD` rows, and the names of the errors in it.

    A request failed if ``error`` >= 0; failed requests stay in and are never part of a latency.
    """

    rows: NDArray[np.void]
    error_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def pieces(self, rows: int = _ROWS_A_PIECE) -> Iterator["Samples"]:
        """All of it in order, some rows at a time.

        What is worked out piece by piece takes the memory of a piece: rows on disk leave memory
        when the next piece is asked for.
        """
        for start in range(0, len(self), rows):
            yield Samples(self.rows[start : start + rows], self.error_names)
            let_go(self.rows)

    def select(self, mask: NDArray[np.bool_]) -> "Samples":
        """The rows where ``mask`` is true."""
        return Samples(self.rows[mask], self.error_names)

    @property
    def measured(self) -> "Samples":
        """Without warm-up."""
        return self.select(self.rows["phase"] == MEASURED)

    @property
    def ok(self) -> "Samples":
        """Successes only."""
        return self.select(self.rows["error"] < 0)

    @property
    def failed(self) -> "Samples":
        """Failures only."""
        return self.select(self.rows["error"] >= 0)

    @property
    def send_lag_ns(self) -> NDArray[np.int64]:
        """start - intended start: the client's fault."""
        lag: NDArray[np.int64] = self.rows["start_ns"] - self.rows["intended_start_ns"]
        return lag

    @property
    def service_time_ns(self) -> NDArray[np.int64]:
        """end - start."""
        time: NDArray[np.int64] = self.rows["end_ns"] - self.rows["start_ns"]
        return time

    @property
    def response_time_ns(self) -> NDArray[np.int64]:
        """end - intended start: what a user would feel."""
        time: NDArray[np.int64] = self.rows["end_ns"] - self.rows["intended_start_ns"]
        return time

    def to_frame(self) -> "pandas.DataFrame":
        """A pandas frame for analysis of your own: the rows, the derived times, error names."""
        import pandas as pd

        frame = pd.DataFrame({name: self.rows[name] for name in RECORD.names or ()})
        frame["error"] = [self.error_names[c] if c >= 0 else None for c in self.rows["error"]]
        for name in ("send_lag_ns", "service_time_ns", "response_time_ns"):
            frame[name] = getattr(self, name)
        return frame

    def error_counts(self) -> dict[str, int]:
        """How often each error occurred, most frequent first."""
        codes, counts = np.unique(self.rows["error"][self.rows["error"] >= 0], return_counts=True)
        named = {self.error_names[c]: int(n) for c, n in zip(codes, counts, strict=True)}
        return dict(sorted(named.items(), key=lambda item: -item[1]))


def joined(parts: Iterable[NDArray[np.int64]], most: int) -> NDArray[np.int64]:
    """Parts one after the other, none held twice; together they have ``most`` values or fewer."""
    whole, used = np.empty(most, np.int64), 0
    for part in parts:
        whole[used : used + len(part)] = part
        used += len(part)
    return whole[:used]


def write_samples(path: Path, samples: Samples, metadata: dict[str, str]) -> None:
    """Write one trial's rows to ``path`` as Parquet, beside it first and then renamed.

    ``metadata`` goes into the file's schema under its own keys; the schema version is added.
    The error column holds the name, or null.
    """
    import pyarrow.parquet as pq

    about = {"embbench_schema": str(SCHEMA_VERSION), **metadata}
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    names = texts_to_arrow(samples.error_names)
    schema = _table(samples.rows[:0], names).schema.with_metadata(about)
    with pq.ParquetWriter(beside, schema, compression="zstd", use_dictionary=_FEW_VALUES) as writer:
        for piece in samples.pieces(_ROWS_A_GROUP):
            writer.write_table(_table(piece.rows, names))
    beside.rename(path)


def _table(rows: NDArray[np.void], names: Any) -> Any:
    import pyarrow as pa

    columns = {n: to_arrow(rows[n]) for n in RECORD.names or () if n != "error"}
    codes = to_arrow(rows["error"], rows["error"] >= 0)
    columns["error"] = pa.DictionaryArray.from_arrays(codes, names)
    return pa.table(columns)


def read_samples(path: Path, columns: Sequence[str] | None = None) -> Samples:
    """The rows of one trial's file. Columns that were not asked for are zero.

    Raises `RunError` if the file is missing, damaged or of another schema version.
    """
    known: dict[str, int] = {}
    with open_samples(path) as file:
        rows = np.zeros(file.metadata.num_rows, RECORD)
        at = 0
        for piece in batches(file, columns, _ROWS_A_GROUP):
            codes = [known.setdefault(name, len(known)) for name in piece.error_names]
            piece.rows["error"] = np.asarray([*codes, -1], np.int16)[piece.rows["error"]]
            rows[at : at + len(piece)] = piece.rows
            at += len(piece)
    return Samples(rows, tuple(known))


@contextmanager
def open_samples(path: Path) -> Iterator[Any]:
    """One trial's file, a `pyarrow.parquet.ParquetFile`.

    Raises `RunError` if it is missing, damaged or of another schema version.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:  # else all of it comes into memory
            version = (file.schema_arrow.metadata or {}).get(b"embbench_schema", b"none").decode()
            if version != str(SCHEMA_VERSION):
                raise RunError(
                    f"{path}: samples of schema {version}, this embbench reads {SCHEMA_VERSION}; "
                    "read it with the embbench version named in the run's run.json"
                )
            yield file
    except (OSError, pa.ArrowInvalid) as exc:
        raise RunError(f"{path}: not readable as samples ({exc}); was it cut short?") from exc


def batches(file: Any, columns: Sequence[str] | None, rows: int) -> Iterator[Samples]:
    """A file that `open_samples` opened, ``rows`` at a time; error names are those of the piece."""
    for batch in file.iter_batches(
        batch_size=rows, columns=None if columns is None else list(columns)
    ):
        whole = np.zeros(batch.num_rows, RECORD)
        whole["error"] = -1
        names: tuple[str, ...] = ()
        for name in batch.schema.names:
            column = batch.column(name)
            if name == "error":
                names, column = tuple(column.dictionary.to_pylist()), column.indices
            whole[name] = to_numpy(column, RECORD[name], null=-1)
        yield Samples(whole, names)

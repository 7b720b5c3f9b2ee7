"""The telemetry record and its files: what the machine did while a trial ran.

In: readings, about one a second and subject, as `Sampler` took them. Out: one Parquet file
a trial, a summary a subject, and findings about machines that were not quiet or not at full speed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, Literal

import numpy as np

from embbench.errors import RunError
from embbench.findings import Finding
from embbench.machine.gpu import throttle_reasons
from embbench.results.arrow import texts_to_arrow, to_arrow

SCHEMA_VERSION: Final = 1

Kind = Literal["target", "load", "embbench", "host", "gpu"]

STEAL_LIMIT_SHARE: Final = 0.02
OTHERS_LIMIT_CORES: Final = 0.25


@dataclass(frozen=True, slots=True)
class Reading:
    """One subject over one interval that ended at ``time_ns`` (CLOCK_MONOTONIC).

    Subjects: a process tree of a target ("bare/server"), the load processes together, embbench
    itself, the host, a GPU by UUID. None: does not apply, or is not told here.
    """

    time_ns: int
    kind: Kind
    subject: str
    cpu_cores: float | None = None
    """CPU time used per second of the interval: 1.0 is one core kept busy."""
    memory_bytes: int | None = None
    """Resident memory of the processes; used memory of host or GPU."""
    processes: int | None = None
    load_average: float | None = None
    steal_share: float | None = None
    """Share of the host's CPU time that its hypervisor gave to others."""
    cpu_mhz: float | None = None
    gpu_utilisation_share: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttle_bits: int | None = None


COLUMNS: Final = tuple(field.name for field in fields(Reading))


@dataclass(frozen=True, slots=True)
class Usage:
    """One subject over a whole trial."""

    subject: str
    kind: Kind
    cpu_cores_mean: float | None
    cpu_cores_max: float | None
    memory_max_bytes: int | None


def write_telemetry(path: Path, readings: Sequence[Reading]) -> None:
    """Write the readings of one trial as Parquet, beside it first and then renamed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {
        "time_ns": np.int64, "memory_bytes": np.int64, "processes": np.int32,
        "sm_clock_mhz": np.int32, "memory_clock_mhz": np.int32, "temperature_c": np.int32,
        "throttle_bits": np.int64,
    }  # fmt: skip
    columns = {}
    for name in COLUMNS:
        told = [getattr(reading, name) for reading in readings]
        if name in ("kind", "subject"):
            columns[name] = texts_to_arrow(told)
        else:
            valid = np.array([value is not None for value in told], np.bool_)
            values = np.array([value or 0 for value in told], types.get(name, np.float64))
            columns[name] = to_arrow(values, valid)
    table = pa.table(columns, metadata={"embbench_schema": str(SCHEMA_VERSION)})
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    pq.write_table(table, beside, compression="zstd")
    beside.rename(path)


def read_telemetry(path: Path) -> list[Reading]:
    """The inverse of `write_telemetry`. Raises `RunError` on a missing, damaged or other file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as exc:
        raise RunError(f"{path}: cannot be read as telemetry ({exc})") from exc
    version = (table.schema.metadata or {}).get(b"embbench_schema", b"none").decode()
    if version != str(SCHEMA_VERSION):
        raise RunError(
            f"{path}: telemetry of schema {version}, this embbench reads {SCHEMA_VERSION}; "
            "read it with the embbench version named in the run's run.json"
        )
    return [Reading(**row) for row in table.to_pylist()]


def usage(readings: Iterable[Reading]) -> list[Usage]:
    """One row a subject, in the order of their first reading."""
    by_subject: dict[str, list[Reading]] = {}
    for reading in readings:
        by_subject.setdefault(reading.subject, []).append(reading)
    rows = []
    for subject, of_subject in by_subject.items():
        cores = [r.cpu_cores for r in of_subject if r.cpu_cores is not None]
        memory = [r.memory_bytes for r in of_subject if r.memory_bytes is not None]
        rows.append(
            Usage(
                subject=subject,
                kind=of_subject[0].kind,
                cpu_cores_mean=sum(cores) / len(cores) if cores else None,
                cpu_cores_max=max(cores, default=None),
                memory_max_bytes=max(memory, default=None),
            )
        )
    return rows


def telemetry_findings(
    readings: Sequence[Reading], *, target: str, cell: str | None = None, trial: int | None = None
) -> list[Finding]:
    """What the machine did that the server is not to blame for. All are warnings: the cell is
    flagged, not dropped."""
    found = [*_throttled(readings), *_stolen(readings), *_others(readings)]
    return [
        Finding(check, "warn", what, do, target=target, cell=cell, trial=trial)
        for check, what, do in found
    ]


_Outcome = tuple[str, str, str]


def _throttled(readings: Sequence[Reading]) -> list[_Outcome]:
    found = []
    for uuid in dict.fromkeys(r.subject for r in readings if r.kind == "gpu"):
        of_gpu = [r for r in readings if r.subject == uuid]
        slowed = [r for r in of_gpu if throttle_reasons(r.throttle_bits or 0)]
        if not slowed:
            continue
        reasons = dict.fromkeys(
            reason for r in slowed for reason in throttle_reasons(r.throttle_bits or 0)
        )
        clocks = [r.sm_clock_mhz for r in of_gpu if r.sm_clock_mhz is not None]
        clock_range = f", SM clock {min(clocks)} to {max(clocks)} MHz" if clocks else ""
        found.append(
            (
                "gpu-throttled",
                f"GPU {uuid} was slowed down in {len(slowed)} of {len(of_gpu)} readings "
                f"({', '.join(reasons)}){clock_range}",
                "give it time to cool, or compare only with trials at the same clock",
            )
        )
    return found


def _stolen(readings: Sequence[Reading]) -> list[_Outcome]:
    steal = [r.steal_share for r in readings if r.steal_share is not None]
    mean = sum(steal) / len(steal) if steal else 0.0
    if mean < STEAL_LIMIT_SHARE:
        return []
    what = f"the hypervisor gave {mean:.1%} of this machine's CPU time to others"
    return [("cpu-steal", what, "use a machine with dedicated cores, or more trials")]


def _others(readings: Sequence[Reading]) -> list[_Outcome]:
    """CPU that neither the targets nor embbench used."""
    of_host = {
        r.time_ns: r.cpu_cores for r in readings if r.kind == "host" and r.cpu_cores is not None
    }
    ours = dict.fromkeys(of_host, 0.0)
    for reading in readings:
        if reading.kind in ("target", "load", "embbench") and reading.time_ns in ours:
            ours[reading.time_ns] += reading.cpu_cores or 0.0
    rest = [max(0.0, cores - ours[time_ns]) for time_ns, cores in of_host.items()]
    mean = sum(rest) / len(rest) if rest else 0.0
    if mean < OTHERS_LIMIT_CORES:
        return []
    what = f"other programs used {mean:.2f} cores during the trial"
    return [("noisy-host", what, "stop them (top shows which) and run again")]

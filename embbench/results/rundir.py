"""The run directory: what a sweep writes, trial by trial, and what every reader starts from.

    run.json            what was run, where, with what; rewritten whole at each step
    trials.jsonl        one `TrialRecord` a line, appended when its samples are safe
    findings.jsonl      one `Finding` a line
    samples/TARGET/CELL/trial-00.parquet
    logs/TARGET/launch-00/*.log
    telemetry/TARGET/CELL/trial-00.parquet
    report.md, p50.csv, p90.csv, p99.csv

A published run has `published.csv` instead of trials and samples: percentiles that were printed
elsewhere, as text, to the digit. Nothing overwrites a run directory.
"""

import csv
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

from embbench.config.plan import Trial
from embbench.errors import RunError
from embbench.findings import Finding
from embbench.results.samples import Samples, read_samples, write_samples

SCHEMA_VERSION = 1

IN_PROGRESS = ".trial-"
"""Folders that begin so hold the bodies of a trial that is being driven."""


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One driven trial beside its samples: what the load generator and the checks measured.

    Bytes are means per successful request, on the wire; ``stalls`` are (time, length) pairs of the
    load processes' loops in nanoseconds. ``metrics`` holds differences of server counters.
    ``partial`` trials were interrupted; their samples are kept, and used for nothing.
    """

    target: str
    cell: str
    index: int
    launch: int
    batch: int
    isl: int
    encoding: str
    load: dict[str, Any]
    requests: int
    started_at: str
    origin_ns: int = 0
    wall_s: float = 0.0
    asked_rps: float | None = None
    achieved_rps: float = 0.0
    in_flight_max: int = 0
    send_lag_p50_ns: int = 0
    send_lag_p99_ns: int = 0
    send_lag_max_ns: int = 0
    stalls: list[list[int]] = field(default_factory=list)
    client_cpu_s: float | None = None
    request_bytes: float | None = None
    response_bytes: float | None = None
    dimension: int | None = None
    tokens_per_request: float | None = None
    chunked: bool = False
    gzip: bool = False
    verified_share: float = 0.0
    partial: bool = False
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The samples file, relative to the run directory."""
        name = f"trial-{self.index:02d}{'-partial' if self.partial else ''}"
        return f"samples/{self.target}/{self.cell}/{name}.parquet"

    @property
    def telemetry_path(self) -> str:
        """What the machine did meanwhile, relative to the run directory."""
        return f"telemetry/{self.target}/{self.cell}/trial-{self.index:02d}.parquet"

    @property
    def bytes_per_vector(self) -> float | None:
        """Response bytes per input, the frame of the answer included."""
        return None if self.response_bytes is None else self.response_bytes / self.batch


@dataclass(frozen=True, slots=True)
class PublishedValue:
    """A printed figure: ``statistic`` is mean, p50, p90 or p99, ``value_ms`` as it was printed."""

    target: str
    batch: int
    load: str
    requests: int
    statistic: str
    value_ms: Decimal


@dataclass(frozen=True, slots=True)
class Run:
    """A run directory, read. Samples are read when asked for."""

    folder: Path
    meta: dict[str, Any]
    trials: tuple[TrialRecord, ...] = ()
    findings: tuple[Finding, ...] = ()
    published: tuple[PublishedValue, ...] = ()
    partials: tuple[TrialRecord, ...] = ()

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the targets, in the order of the config."""
        return tuple(self.meta["targets"])

    @property
    def cells(self) -> tuple[str, ...]:
        """Slugs of the work that every target met, in the order of the plan."""
        return tuple(self.meta["cells"])

    def cell_trials(self, target: str, cell: str) -> tuple[TrialRecord, ...]:
        """The trials of one cell, by index."""
        own = [t for t in self.trials if (t.target, t.cell) == (target, cell)]
        return tuple(sorted(own, key=lambda t: t.index))

    def cell_findings(self, target: str, cell: str) -> tuple[Finding, ...]:
        """What was found in this cell, or in its target as a whole."""
        return tuple(f for f in self.findings if f.target == target and f.cell in (None, cell))

    def samples(self, trial: TrialRecord, columns: Iterable[str] | None = None) -> Samples:
        """The requests of one trial, warm-up included."""
        return read_samples(self.folder / trial.path, None if columns is None else list(columns))


class RunWriter:
    """Writes one run directory. Each method leaves the directory readable."""

    def __init__(self, folder: Path, meta: dict[str, Any]) -> None:
        self.folder = folder
        self.meta = meta

    @classmethod
    def create(cls, root: Path, name: str, meta: Mapping[str, Any], now: datetime) -> Self:
        """A new directory under ``root``, named by time and ``name``. Never one that exists."""
        stem = f"{now:%Y%m%d-%H%M%S}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}"
        for attempt in range(100):
            folder = root / (stem if attempt == 0 else f"{stem}-{attempt}")
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as exc:
                reason = exc.strerror or str(exc)
                raise RunError(
                    f"{root}: cannot write results there ({reason}); choose another with --output"
                ) from exc
            writer = cls(folder, {"schema_version": SCHEMA_VERSION, "kind": "run", **meta})
            writer.update()
            return writer
        raise RunError(f"{root}: a hundred runs of this second exist already")

    @classmethod
    def reopen(cls, folder: Path) -> tuple[Self, Run]:
        """An unfinished run, to be completed; lines that a kill cut short are taken off."""
        run = load_run(folder)
        for left in folder.glob(f"{IN_PROGRESS}*"):
            shutil.rmtree(left)
        for path in folder.glob("*.jsonl"):
            text = path.read_text()
            path.write_text(text[: text.rfind("\n") + 1])
        return cls(folder, run.meta), run

    def update(self, **changes: Any) -> None:
        """Set keys of run.json and write it anew, beside it first."""
        self.meta.update(changes)
        self.write_text("run.json", json.dumps(self.meta, indent=2, default=str) + "\n")

    def add_trial(self, record: TrialRecord, samples: Samples) -> None:
        """Save a trial: its samples first, then the line that says they are there."""
        names = {"target": record.target, "cell": record.cell, "trial": str(record.index)}
        write_samples(self.folder / record.path, samples, names)
        self._append("trials.jsonl", [asdict(record)])

    def add_findings(self, findings: Iterable[Finding]) -> None:
        """Append findings."""
        self._append("findings.jsonl", [f.to_json() for f in findings])

    def write_text(self, name: str, text: str) -> None:
        """Write a file of the directory whole, beside it first."""
        path = self.folder / name
        beside = path.with_name(f".{path.name}.part")
        beside.write_text(text)
        beside.rename(path)

    def log_folder(self, target: str, launch: int) -> Path:
        """Where one launch of a target leaves its logs."""
        folder = self.folder / "logs" / target / f"launch-{launch:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _append(self, name: str, lines: list[dict[str, Any]]) -> None:
        if not lines:
            return
        with (self.folder / name).open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())


def is_driven(run: Run, trial: Trial) -> bool:
    """Whether a planned trial's samples are in the run already."""
    return any(t.index == trial.index for t in run.cell_trials(trial.target, trial.work.slug))


def load_run(folder: Path) -> Run:
    """Read a run directory. Raises `RunError` if it is none, is damaged, or of another schema."""
    try:
        meta = json.loads((folder / "run.json").read_text())
    except OSError as exc:
        raise RunError(f"{folder}: not a run directory (no readable run.json in it)") from exc
    except ValueError as exc:
        raise RunError(f"{folder}/run.json: damaged ({exc})") from exc
    if not isinstance(meta, dict):
        raise RunError(f"{folder}/run.json: damaged (not a run's metadata)")
    version = meta.get("schema_version")
    if version != SCHEMA_VERSION:
        writer = meta.get("embbench", {}).get("version", "of its time")
        raise RunError(
            f"{folder}: a run of schema {version}, this embbench reads {SCHEMA_VERSION}; "
            f"read it with embbench {writer}"
        )
    if meta["kind"] == "published":
        return Run(folder, meta, published=_read_published(folder / "published.csv"))
    known = {f.name for f in fields(TrialRecord)}
    trials = tuple(
        TrialRecord(**{k: v for k, v in raw.items() if k in known})
        for raw in _read_lines(folder / "trials.jsonl")
    )
    findings = tuple(Finding.from_json(raw) for raw in _read_lines(folder / "findings.jsonl"))
    whole = tuple(t for t in trials if not t.partial)
    return Run(folder, meta, whole, findings, partials=tuple(t for t in trials if t.partial))


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSON-lines file; a last line that a kill cut short is left out."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")
    try:
        return [json.loads(line) for line in lines[:-1]]
    except ValueError as exc:
        raise RunError(f"{path}: damaged ({exc})") from exc


def _read_published(path: Path) -> tuple[PublishedValue, ...]:
    try:
        with path.open(newline="") as file:
            return tuple(
                PublishedValue(
                    row["target"],
                    int(row["batch"]),
                    row["load"],
                    int(row["requests"]),
                    row["statistic"],
                    Decimal(row["value_ms"]),
                )
                for row in csv.DictReader(file)
            )
    except (OSError, KeyError, ValueError, ArithmeticError) as exc:
        raise RunError(f"{path}: not readable as published figures ({exc!r})") from exc

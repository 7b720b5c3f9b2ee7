"""A report as data: JSON of everything, CSV in long form, and one CSV a matrix."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from embbench.analysis.summary import Time
from embbench.report.model import Cell, Report
from embbench.report.units import CellName

SCHEMA_VERSION = 1


def to_json(report: Report) -> str:
    """The summaries, findings and comparisons of a run; missing values are null, never 0."""
    meta = {key: value for key, value in report.meta.items() if key != "schema_version"}
    data = {
        "schema_version": SCHEMA_VERSION,
        "run": meta,
        "floor": report.floor,
        "statistics": report.statistics,
        "cells": [_cell_json(cell) for cell in report.cells.values()],
        "findings": [finding.to_json() for finding in report.findings],
        "comparisons": [found.to_json() for found in report.comparisons],
    }
    return json.dumps(finite(data), indent=2, ensure_ascii=False, default=str) + "\n"


def finite(value: Any) -> Any:
    """JSON knows no infinity; a percentile beyond all successes becomes the text "inf"."""
    match value:
        case float() if value in (float("inf"), float("-inf")) or value != value:
            return str(value)
        case dict():
            return {key: finite(inner) for key, inner in value.items()}
        case list() | tuple():
            return [finite(inner) for inner in value]
        case _:
            return value


def _cell_json(cell: Cell) -> dict[str, Any]:
    figures: dict[str, dict[str, Any]] = {}
    for (time, statistic), figure in cell.figures.items():
        figures.setdefault(time, {})[statistic] = {
            "ms": figure.text,
            "value_ns": figure.value_ns,
            "low_ns": figure.of.low_ns if figure.of else None,
            "high_ns": figure.of.high_ns if figure.of else None,
            "closed": figure.closed,
            "ratio": figure.ratio,
        }
    return {
        "target": cell.target,
        "cell": cell.slug,
        **asdict(cell.name),
        "state": cell.state,
        "reason": cell.reason or None,
        "n": cell.n,
        "failed": cell.failed if cell.driven else None,
        "errors": cell.errors,
        "figures": figures,
        "times": {time: summary.to_json() for time, summary in cell.times.items()},
        "driven": asdict(cell.driven) if cell.driven else None,
    }


def to_csv(report: Report) -> str:
    """One row a cell and time, with a header; empty is missing."""
    header = [*("target", "cell", "batch", "isl", "encoding", "load", "time", "state", "reason")]
    header += ["trials", "n", "failed", "min_ms", "max_ms"]
    for statistic in report.statistics:
        header += [f"{statistic}_{what}" for what in ("ms", "low_ms", "high_ms", "closed", "ratio")]
    header += ["response_bytes", "bytes_per_vector", "dimension", "chunked", "gzip"]
    rows = [
        _row(report, cell, time)
        for slug in report.slugs
        for cell in report.row(slug)
        for time in report.times(slug)
    ]
    return csv_text(header, rows)


def _row(report: Report, cell: Cell, time: Time) -> list[object]:
    name, driven, summary = cell.name, cell.driven, cell.times.get(time)
    row: list[object] = [cell.target, cell.slug, name.batch, name.isl, name.encoding, name.load]
    row += [time, cell.state, cell.reason, driven.trials if driven else None, cell.n]
    row += [cell.failed if driven else None]
    row += [_ms(summary.min_ns), _ms(summary.max_ns)] if summary else [None, None]
    for statistic in report.statistics:
        figure = cell.figures.get((time, statistic))
        if figure is None:
            row += [None] * 5
            continue
        ends = (figure.of.low_ns, figure.of.high_ns) if figure.of else (None, None)
        # a published figure stays as it was printed, a measured one is exact
        value = _ms(figure.value_ns) if cell.times else figure.text
        row += [value, *map(_ms, ends), figure.closed, figure.ratio]
    wire = driven.wire if driven else None
    row += [wire.response_bytes, wire.bytes_per_vector] if wire else [None, None]
    row += [wire.dimension, wire.chunked, wire.gzip] if wire else [None, None, None]
    return row


def _ms(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / 1e6


def matrix_csv(report: Report, statistic: str) -> str:
    """One matrix: batch and load down, targets across; INVALID cells say INVALID."""
    header = ["batch", "isl", "encoding", "load", "time", *report.targets]
    rows: list[list[object]] = []
    for slug in report.slugs:
        name = CellName.of(slug)
        for time in report.times(slug):
            row: list[object] = [name.batch, name.isl, name.encoding, name.load, time]
            for cell in report.row(slug):
                figure = cell.figures.get((time, statistic))
                invalid = "INVALID" if cell.state == "INVALID" else None
                row.append(figure.text if figure else invalid)
            rows.append(row)
    return csv_text(header, rows)


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()

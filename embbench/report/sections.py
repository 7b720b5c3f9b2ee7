"""The document: which sections a report has, and in which order."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from embbench.findings import Finding
from embbench.report.blocks import Block, Code, Details, Heading, Listing, Table, Text
from embbench.report.matrices import Notes, bytes_matrix, legend, matrix
from embbench.report.model import Report
from embbench.report.tables import agreement, every_cell, parity
from embbench.report.units import count
from embbench.report.verdicts import gaps, verdicts

_SEVERITY = {"fail": "FAIL", "warn": "warning", "info": "note"}


def document(report: Report) -> tuple[Block, ...]:
    """All blocks of a report, the most important first."""
    notes = Notes()
    matrices: list[Block] = []
    for statistic in report.statistics:
        matrices += [Heading(3, f"{statistic}, ms"), matrix(report, statistic, notes)]
    blocks: list[Block] = [
        Heading(2, title(report)),
        Text(state(report)),
        _header(report),
        *_command(report),
        *matrices,
        Text(legend(report)),
        *notes.listing(),
        *verdicts(report),
        *gaps(report),
        *_findings(report),
    ]
    if any(cell.driven for cell in report.cells.values()):
        blocks += [Heading(3, "Response body, mean"), bytes_matrix(report)]
    blocks += [*parity(report.meta), *agreement(report.meta)]
    if not report.published:
        blocks.append(Details("Every cell", (every_cell(report),)))
    return tuple(blocks)


def title(report: Report) -> str:
    """The run's own description, or its targets."""
    return report.meta.get("description") or f"embbench: {', '.join(report.targets)}"


def state(report: Report) -> str:
    """Whether the run may be used, in one sentence or two."""
    if report.published:
        return (
            "Published figures, as they were printed: there are no samples and no trials in them, "
            "so they carry no verdict."
        )
    cells = report.cells.values()
    states = Counter(cell.state for cell in cells)
    told = f"{states['VALID']} of {len(cells)} cells VALID"
    told += "".join(f", {states[s]} {s}" for s in ("INVALID", "not run") if states[s])
    sent = sum(cell.n + cell.failed for cell in cells)
    failed = sum(cell.failed for cell in cells)
    told += f"; {count(failed)} of {count(sent)} measured requests failed."
    if (status := report.meta.get("status", "complete")) != "complete":
        told += f" This run is {status}: what is not there was not driven."
    return told


def _header(report: Report) -> Table:
    meta = report.meta
    rows = [
        ("measured", _measured(report)),
        ("trials", _trials(meta)),
        ("host", flat(meta.get("host", {}))),
        *(("GPU", flat(gpu)) for gpu in meta.get("gpu", ())),
        ("versions", flat(meta.get("versions", {}))),
        ("embbench", flat(meta.get("embbench", {}) | _prefixed("git ", meta.get("git", {})))),
        ("started", str(meta.get("started_at", ""))),
        *(("source", source) for source in meta.get("sources", ())),
        *(("A/A pair", f"{a} is {b} under a second name") for a, b in _same(meta)),
        *(("note", note) for note in meta.get("notes", ())),
    ]
    return Table(("", ""), tuple(row for row in rows if row[1]), left=2)


def _measured(report: Report) -> str:
    meta, cells = report.meta, report.cells.values()
    model = meta.get("model") or meta.get("config", {}).get("model")
    dimensions = {c.driven.wire.dimension for c in cells if c.driven and c.driven.wire.dimension}
    dimensions |= {meta["dimension"]} if meta.get("dimension") else set()
    names = [cell.name for cell in cells]
    parts = [
        "/v1/embeddings",
        f"model {model}" if model else "",
        f"ISL {_all(name.isl for name in names)}",
        f"encoding {_all(name.encoding for name in names)}",
        f"dimension {_all(dimensions)}" if dimensions else "",
    ]
    return ", ".join(part for part in parts if part)


def _all(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in dict.fromkeys(values))


def _trials(meta: Mapping[str, Any]) -> str:
    config = meta.get("config", {})
    if "trials" not in config:
        return ""
    told = f"{config['trials']} a cell, each from a fresh start, in balanced order"
    told += f", {config['placement']}" if "placement" in config else ""
    return told + (f", seed {config['seed']}" if "seed" in config else "")


def _same(meta: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, other) for name, other in meta.get("same_as", {}).items() if other]


def _prefixed(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {prefix + key: value for key, value in values.items()}


def flat(values: Mapping[str, Any]) -> str:
    """Names and values in one line; what is not known is left out, "name" names itself."""
    return ", ".join(
        str(value) if name == "name" else f"{name} {value}"
        for name, value in values.items()
        if value not in (None, "", [], {})
    )


def _command(report: Report) -> tuple[Block, ...]:
    argv = report.meta.get("argv")
    return (Code(shlex.join(argv)),) if argv else ()


# --- findings


def _findings(report: Report) -> tuple[Block, ...]:
    loud = _grouped(f for f in report.findings if f.severity != "info")
    quiet = _grouped(f for f in report.findings if f.severity == "info")
    blocks: list[Block] = []
    if loud:
        blocks += [Heading(3, "Findings"), Listing(tuple(loud))]
    if quiet:
        blocks.append(Details(f"Notes: {len(quiet)}", (Listing(tuple(quiet)),)))
    return tuple(blocks)


def _grouped(findings: Iterable[Finding]) -> list[str]:
    """One line for the same check at the same target: the first case, and where else."""
    groups: dict[tuple[str, str, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        groups[finding.severity, finding.check, finding.target].append(finding)
    order = list(_SEVERITY)
    keys = sorted(groups, key=lambda key: order.index(key[0]))
    return [_line(groups[key]) for key in keys]


def _line(group: Sequence[Finding]) -> str:
    first = group[0]
    cells = list(dict.fromkeys(f.cell for f in group if f.cell))
    where = first.target or "run"
    if cells:
        where += f", {cells[0]}" + (f" and in {len(cells) - 1} more" if len(cells) > 1 else "")
    times = f" [{count(len(group))} times; the first:]" if len(group) > 1 else ""
    line = f"{_SEVERITY[first.severity]} {first.check}, {where}:{times} {first.what.rstrip('.')}."
    return line + (f" {first.do.rstrip('.')}." if first.do else "")

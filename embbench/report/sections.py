"""The document: which sections a report has, and in which order."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from embbench.findings import Finding
from embbench.report.blocks import Block, Details, Heading, Listing, Text
from embbench.report.curves import load_curves
from embbench.report.header import header, in_full
from embbench.report.matrices import Notes, bytes_matrix, legend, matrix
from embbench.report.model import Report
from embbench.report.overheads import gaps, overheads
from embbench.report.tables import agreement, every_cell, parity
from embbench.report.units import count
from embbench.report.verdicts import verdicts

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
        *header(report),
        *matrices,
        Text(legend(report)),
        *notes.listing(),
        *load_curves(report),
        *verdicts(report),
        *overheads(report),
        *gaps(report),
        *_findings(report),
    ]
    if any(cell.driven for cell in report.cells.values()):
        blocks += [Heading(3, "Response body, mean"), bytes_matrix(report)]
    blocks += [*parity(report.meta), *agreement(report.meta)]
    if not report.published:
        blocks.append(Details("Every cell", (every_cell(report),)))
    return (*blocks, *in_full(report))


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

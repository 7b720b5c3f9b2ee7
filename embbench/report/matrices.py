"""Matrices: batch and load down, targets across, one for each statistic, and one for bytes."""

import math

from embbench.analysis.likeness import TOLD_FROM
from embbench.analysis.percentiles import requests_to_close
from embbench.analysis.summary import Time
from embbench.report.blocks import Block, Listing, Table, Text
from embbench.report.model import Cell, Report
from embbench.report.units import NOTHING, CellName, amount, count, ms, ratio

OPEN = "†"
"""The mark of a percentile that n cannot carry."""


class Notes:
    """Numbers the reasons why cells are INVALID: one number for one reason of one target."""

    def __init__(self) -> None:
        self._slugs: dict[tuple[str, str], list[str]] = {}

    def number(self, cell: Cell) -> int:
        """The number of this cell's reason."""
        slugs = self._slugs.setdefault((cell.target, cell.reason), [])
        if cell.slug not in slugs:
            slugs.append(cell.slug)
        return 1 + list(self._slugs).index((cell.target, cell.reason))

    def listing(self) -> tuple[Block, ...]:
        """The sentences, in the order of their numbers; nothing if there are none."""
        items = tuple(
            f"{target}, {', '.join(slugs)}: {reason}."
            for (target, reason), slugs in self._slugs.items()
        )
        said = Text("INVALID cells print no latency. Why they are:")
        return (said, Listing(items, numbered=True)) if items else ()


def matrix(report: Report, statistic: str, notes: Notes) -> Table:
    """One statistic of all cells; ``notes`` numbers the reasons of those that are INVALID.

    n, failures and the answer's size stand once a row; cells for which they differ say so.
    """
    two_times = any(len(report.times(slug)) > 1 for slug in report.slugs)
    sized = any(cell.driven for cell in report.cells.values())
    rows = []
    for slug in report.slugs:
        cells, times = report.row(slug), report.times(slug)
        usual = _usual(cells)
        for time in times:
            told = (time if len(times) > 1 else "service",) if two_times else ()
            answer = (_answer(report, usual),) if sized else ()
            figures = (_cell(cell, time, statistic, notes, usual) for cell in cells)
            rows.append((*place(report, slug), *told, *_n(usual), *answer, *figures))
    header = (*place_header(report), *(("time",) if two_times else ()), "n", "failed")
    return Table((*header, *(("answer",) if sized else ()), *_columns(report)), tuple(rows))


def bytes_matrix(report: Report) -> Table:
    """Response body on the wire, mean of the successes, and of it a vector's share."""
    rows = tuple(
        (*place(report, slug), *(_bytes(cell) for cell in report.row(slug)))
        for slug in report.slugs
    )
    return Table((*place_header(report), *report.targets), rows)


def legend(report: Report) -> str:
    """What the matrices hold and what their marks mean; only of marks that are there."""
    figures = [figure for cell in report.cells.values() for figure in cell.figures.values()]
    parts = ["Milliseconds over successful requests, exact; n counts these, over all trials."]
    if report.published:
        parts = ["Milliseconds as printed; n counts the requests."]
    if any(len(report.times(slug)) > 1 for slug in report.slugs):
        parts.append(
            "In open loop, response time counts from the intended start (what a user would feel) "
            "and service time from the real start; in closed loop the two are one."
        )
    if any(figure.ratio is not None for figure in figures):
        parts.append(f"× is the ratio to {report.floor}.")
    if not all(figure.closed for figure in figures):
        percentiles = [s for s in report.statistics if s.startswith("p")]
        needs = ", ".join(f"{s} needs {requests_to_close(float(s[1:]))}" for s in percentiles)
        parts.append(
            f"{OPEN}: n cannot carry this percentile ({needs}), so no verdict rests on it"
            + ("." if report.published else "; the maximum stands beside it.")
        )
    return " ".join(parts)


def place_header(report: Report) -> tuple[str, ...]:
    """The columns that say where a row is; ISL and encoding only where they vary."""
    isl, encoding = _vary(report)
    return ("batch", "load", *(("ISL",) if isl else ()), *(("encoding",) if encoding else ()))


def place(report: Report, slug: str) -> tuple[str, ...]:
    """Where a row is, in the columns of `place_header`."""
    name = CellName.of(slug)
    isl, encoding = _vary(report)
    also = (*((str(name.isl),) if isl else ()), *((name.encoding,) if encoding else ()))
    return (str(name.batch), name.load_label, *also)


def _vary(report: Report) -> tuple[bool, bool]:
    names = [CellName.of(slug) for slug in report.slugs]
    return len({name.isl for name in names}) > 1, len({name.encoding for name in names}) > 1


def _columns(report: Report) -> tuple[str, ...]:
    return tuple(
        f"{target} (floor)" if target == report.floor else target for target in report.targets
    )


def _usual(cells: tuple[Cell, ...]) -> Cell | None:
    """A cell with the n, failures and size of most of its row: only others say theirs."""
    told = [cell for cell in cells if cell.figures]
    kinds = [(cell.n, cell.failed, _size_class(cell)) for cell in told]
    return told[max(range(len(told)), key=lambda at: kinds.count(kinds[at]))] if told else None


def _size_class(cell: Cell) -> int | None:
    """Equal for answers that are about as long: to within a few percent."""
    size = cell.driven.wire.response_bytes if cell.driven else None
    return round(20 * math.log(size)) if size else None


def _n(usual: Cell | None) -> tuple[str, str]:
    if usual is None:
        return NOTHING, NOTHING
    return count(usual.n), NOTHING if usual.driven is None else count(usual.failed)


def _answer(report: Report, usual: Cell | None) -> str:
    """Mean size of an answer's body, and its encoding unless that has a column."""
    size = None if usual is None or usual.driven is None else usual.driven.wire.response_bytes
    if usual is None or size is None:
        return NOTHING
    return amount(size) + ("" if _vary(report)[1] else f" {usual.name.encoding}")


def _cell(cell: Cell, time: Time, statistic: str, notes: Notes, usual: Cell | None) -> str:
    if cell.state == "INVALID":
        return f"INVALID ({notes.number(cell)})"
    figure = cell.figures.get((time, statistic))
    if figure is None or usual is None:
        return NOTHING
    beside = []
    if not figure.closed and time in cell.times:
        beside.append(f"max {ms(cell.times[time].max_ns)}")
    if cell.n != usual.n:
        beside.append(f"n {count(cell.n)}")
    if cell.failed != usual.failed:
        beside.append(f"{count(cell.failed)} failed")
    if cell.driven and cell.driven.planned and cell.driven.trials < cell.driven.planned:
        beside.append(f"{cell.driven.trials} of {cell.driven.planned} trials")
    beside += _other_size(cell, usual)
    text = figure.text + ("" if figure.closed else OPEN)
    text += f" {ratio(figure.ratio)}" if figure.ratio is not None else ""
    return f"{text} ({', '.join(beside)})" if beside else text


def _other_size(cell: Cell, usual: Cell) -> list[str]:
    """The size of this cell's answers, if it is not that of its row."""
    sizes = [one.driven.wire.response_bytes for one in (cell, usual) if one.driven]
    own, row = sizes if len(sizes) == 2 else (None, None)
    if not own or not row or max(own, row) <= TOLD_FROM * min(own, row):
        return []
    return [amount(own)]


def _bytes(cell: Cell) -> str:
    if cell.driven is None or cell.driven.wire.response_bytes is None:
        return NOTHING
    wire = cell.driven.wire
    told = f"{amount(wire.response_bytes)} ({amount(wire.bytes_per_vector)} a vector"
    return told + (", gzip" if wire.gzip else "") + (", chunked" if wire.chunked else "") + ")"

"""The tables behind the matrices: every cell in full, parity of settings, agreement of answers."""

from collections.abc import Mapping
from typing import Any

from embbench.analysis.summary import Time
from embbench.report.blocks import Block, Details, Heading, Table, Text
from embbench.report.model import Cell, Driven, Report
from embbench.report.units import NOTHING, count, ms, share

_ALIKE = "="
_UNLIKE = "≠"


def every_cell(report: Report) -> Table:
    """One row a cell and time: everything that was summarised of it."""
    header = (
        *("cell", "target", "time", "state", "trials", "n", "failed"),
        *("min", *report.statistics, "max", "failures as ∞"),
        *("asked", "achieved", "in flight", "send lag p99", "verified"),
    )
    rows = tuple(
        _full(report, cell, time)
        for slug in report.slugs
        for cell in report.row(slug)
        for time in report.times(slug)
    )
    return Table(header, rows, left=4)


def _full(report: Report, cell: Cell, time: Time) -> tuple[str, ...]:
    errors = ", ".join(f"{number} {name}" for name, number in cell.errors.items())
    summary = cell.times.get(time)
    adjusted = summary.adjusted if summary else ()
    return (
        cell.slug,
        cell.target,
        time if cell.name.open_loop else "service",
        cell.state,
        _trials(cell.driven),
        count(cell.n),
        f"{count(cell.failed)} ({errors})" if errors else count(cell.failed),
        ms(summary.min_ns if summary else None),
        *(_interval(cell, time, statistic) for statistic in report.statistics),
        ms(summary.max_ns if summary else None),
        ", ".join(f"p{found.p:g} {ms(found.value_ns)}" for found in adjusted) or NOTHING,
        *_load(cell.driven),
    )


def _trials(driven: Driven | None) -> str:
    if driven is None:
        return "0"
    return str(driven.trials) if driven.planned is None else f"{driven.trials}/{driven.planned}"


def _load(driven: Driven | None) -> tuple[str, ...]:
    if driven is None:
        return (NOTHING,) * 5
    return (
        NOTHING if driven.asked_rps is None else f"{driven.asked_rps:.4g}/s",
        NOTHING if driven.achieved_rps is None else f"{driven.achieved_rps:.4g}/s",
        count(driven.in_flight_max),
        ms(driven.send_lag_p99_ns),
        share(driven.verified_share),
    )


def _interval(cell: Cell, time: Time, statistic: str) -> str:
    """A figure with its 95 % interval, or with its two trials, of which no interval says much.

    An end that no value of the sample gives is left open.
    """
    figure = cell.figures.get((time, statistic))
    if figure is None or figure.of is None:
        return figure.text if figure else NOTHING
    if len(figure.of.trials_ns) == 2:
        return f"{figure.text} ({' and '.join(map(ms, figure.of.trials_ns))})"
    low, high = figure.of.low_ns, figure.of.high_ns
    if low is None and high is None:
        return figure.text
    ends = ["…" if end is None else ms(end) for end in (low, high)]
    return f"{figure.text} [{ends[0]} to {ends[1]}]"


def parity(meta: Mapping[str, Any]) -> tuple[Block, ...]:
    """Settings of the targets side by side; those that differ come first and are visible."""
    settings = meta.get("parity", ())
    if not settings:
        return ()
    targets = tuple(meta["targets"])
    unlike = [s for s in settings if len(_values(s, targets)) > 1]
    alike = [s for s in settings if len(_values(s, targets)) <= 1]
    blocks: list[Block] = [Heading(3, "Parity of the targets")]
    if unlike:
        blocks.append(_settings(unlike, targets, _UNLIKE))
    else:
        blocks.append(Text("All settings are the same on all targets."))
    if alike:
        summary = f"The same on all targets: {len(alike)}"
        blocks.append(Details(summary, (_settings(alike, targets, _ALIKE),)))
    return tuple(blocks)


def _values(setting: Mapping[str, Any], targets: tuple[str, ...]) -> set[str]:
    return {str(setting["values"].get(target)) for target in targets}


def _settings(settings: list[Mapping[str, Any]], targets: tuple[str, ...], mark: str) -> Table:
    rows = tuple(
        (s["setting"], mark, *(_told(s["values"].get(target)) for target in targets))
        for s in settings
    )
    return Table(("setting", "", *targets), rows, left=2 + len(targets))


def _told(value: Any) -> str:
    return NOTHING if value is None else str(value)


def agreement(meta: Mapping[str, Any]) -> tuple[Block, ...]:
    """Do two targets give the same vectors for the same texts? One row a `content.Pair`."""
    pairs = meta.get("agreement", ())
    if not pairs:
        return ()
    rows = tuple(
        (
            pair["base"],
            pair["candidate"],
            "the same work" if pair["same_work"] else pair["what"],
            _told(pair["texts"]),
            NOTHING if pair["cosine_min"] is None else f"{pair['cosine_min']:.6f}",
            NOTHING
            if pair["norm_difference_max"] is None
            else f"{pair['norm_difference_max']:.2g}",
            _told(pair["usage_difference"]),
        )
        for pair in pairs
    )
    header = (
        *("target", "and", "answers"),
        *("texts", "lowest cosine", "largest norm difference", "tokens apart"),
    )
    return (Heading(3, "Agreement of the answers"), Table(header, rows, left=3))

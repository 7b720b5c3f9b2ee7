"""Figures of the cells' statistics: percentiles by batch, and every trial's own."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embbench.analysis.overhead import overhead
from embbench.report.curves import curves
from embbench.report.model import Figure, Report
from embbench.report.plots.style import (
    canvas_of,
    ink_of,
    legend,
    line_of,
    marker_of,
    plain_log,
    tick,
    title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


def percentiles(report: Report) -> "Canvas":
    """Each statistic by row of the matrix: milliseconds above, ratio to the floor below."""
    figures = [figure for cell in report.cells.values() for figure in cell.figures.values()]
    rows = 2 if any(figure.ratio is not None for figure in figures) else 1
    columns = len(report.statistics)
    canvas = canvas_of(max(4.2, 0.9 * len(report.slugs)) * columns, 3.1 * rows + 0.5)
    axes = canvas.subplots(rows, columns, squeeze=False, sharex=True)
    for column, statistic in enumerate(report.statistics):
        top, bottom = axes[0][column], axes[-1][column]
        for number, target in enumerate(report.targets):
            _points(top, number, _milliseconds(report, statistic, number, target))
            if rows == 2:
                _points(bottom, number, _ratios(report, statistic, number, target))
        top.set_title(statistic)
        top.set_yscale("log")
        plain_log(top.yaxis)
        if rows == 2:
            bottom.axhline(1.0, color="0.6", linewidth=0.8, zorder=0)
        for one in axes[:, column]:
            one.grid(axis="y", alpha=0.3)
            for border in range(1, len(report.slugs)):
                one.axvline(border - 0.5, color="0.9", linewidth=0.8, zorder=0)
        bottom.set_xlim(-0.5, len(report.slugs) - 0.5)
        bottom.set_xticks(range(len(report.slugs)), [tick(report, s) for s in report.slugs])
    axes[0][0].set_ylabel("ms")
    if rows == 2:
        axes[1][0].set_ylabel(f"ratio to {report.floor}")
    legend(canvas, report, report.slugs)
    return canvas


def trials(report: Report) -> "Canvas":
    """A dot a trial, so that the spread between starts is seen beside the spread of targets."""
    slugs = [slug for slug in report.slugs if any(cell.figures for cell in report.row(slug))]
    rows, columns = max(1, len(slugs)), len(report.statistics)
    canvas = canvas_of(4.2 * columns, (0.28 * len(report.targets) + 0.75) * rows + 0.4)
    axes = canvas.subplots(rows, columns, squeeze=False, sharey=True)
    for row, slug in enumerate(slugs):
        for column, statistic in enumerate(report.statistics):
            one = axes[row][column]
            for number, cell in enumerate(report.row(slug)):
                figure = cell.figures.get(("response", statistic))
                if figure is None:
                    at, within = (0.02, number), one.get_yaxis_transform()
                    one.annotate(cell.state, at, xycoords=within, va="center", color="0.4")
                else:
                    _trial_dots(one, number, figure)
            one.set_title(f"{title(slug)}: {statistic}, ms", fontsize=9, loc="left")
            one.locator_params(axis="x", nbins=6)
            one.set_yticks(range(len(report.targets)), report.targets)
            one.set_ylim(len(report.targets) - 0.5, -0.5)
            one.grid(axis="x", alpha=0.3)
    return canvas


def load_curves(report: Report, label: str) -> "Canvas":
    """Response time over the asked rate, p50 to p99; a ring around the knee."""
    found = [curve for curve in curves(report) if curve.label == label]
    canvas = canvas_of(3.6 * len(report.statistics) + 0.6, 3.6)
    axes = canvas.subplots(1, len(report.statistics), squeeze=False, sharey=True)[0]
    for one, statistic in zip(axes, report.statistics, strict=True):
        for curve in found:
            number = report.targets.index(curve.target)
            ink, values = ink_of(number), [ns / 1e6 for ns in curve.response_ns(statistic)]
            closed = [cell.figures["response", statistic].closed for cell in curve.cells]
            one.plot(curve.rates_rps, values, color=ink, linestyle=line_of(number), linewidth=1)
            one.scatter(
                curve.rates_rps,
                values,
                s=24,
                marker=marker_of(number),
                facecolors=[ink if carried else "white" for carried in closed],
                edgecolors=ink,
                zorder=3,
            )
            if curve.knee is not None:
                at = [curve.rates_rps[curve.knee.index]], [values[curve.knee.index]]
                one.scatter(*at, s=150, facecolors="none", edgecolors=ink, zorder=4)
        one.set_title(statistic)
        one.set_xlabel("asked rate, requests/s")
        one.set_yscale("log")
        plain_log(one.yaxis)
        one.grid(alpha=0.3)
    axes[0].set_ylabel("response time, ms")
    slugs = [cell.slug for curve in found for cell in curve.cells]
    legend(canvas, report, list(dict.fromkeys(slugs)))
    return canvas


@dataclass(frozen=True, slots=True)
class _Point:
    """One mark with its whiskers; hollow where n cannot carry it."""

    at: float
    value: float
    low: float
    high: float
    hollow: bool


def _milliseconds(report: Report, statistic: str, number: int, target: str) -> list[_Point]:
    points = []
    for row, slug in enumerate(report.slugs):
        figure = report.cells[target, slug].figures.get(("response", statistic))
        if figure is not None:
            low, high = _ends_ms(figure)
            at = row + _dodge(report, number)
            points.append(_Point(at, figure.value_ns / 1e6, low, high, not figure.closed))
    return points


def _ratios(report: Report, statistic: str, number: int, target: str) -> list[_Point]:
    points = []
    for row, slug in enumerate(report.slugs):
        figure = report.cells[target, slug].figures.get(("response", statistic))
        if figure is not None and figure.ratio is not None:
            low, high = _ratio_ends(report, slug, statistic, figure)
            at = row + _dodge(report, number)
            points.append(_Point(at, figure.ratio, low, high, not figure.closed))
    return points


def _points(one: "Axes", number: int, points: list[_Point]) -> None:
    if not points:
        return
    ink = ink_of(number)
    at = [point.at for point in points]
    one.vlines(at, [p.low for p in points], [p.high for p in points], color=ink, linewidth=1.2)
    one.scatter(
        at,
        [point.value for point in points],
        s=28,
        marker=marker_of(number),
        facecolors=["white" if point.hollow else ink for point in points],
        edgecolors=ink,
        zorder=3,
    )


def _trial_dots(one: "Axes", number: int, figure: Figure) -> None:
    assert figure.of is not None
    values = np.array(figure.of.trials_ns) / 1e6
    order = np.linspace(0.25, 1.0, len(values))
    spread = np.linspace(-0.18, 0.18, len(values)) if len(values) > 1 else np.zeros(1)
    inks = [(*_rgb(ink_of(number)), alpha) for alpha in order]
    one.scatter(values, number + spread, s=22, c=inks, linewidths=0, zorder=3)
    value_ms = figure.value_ns / 1e6
    one.plot([value_ms] * 2, [number - 0.32, number + 0.32], color=ink_of(number), linewidth=1.6)


def _rgb(ink: str) -> tuple[float, float, float]:
    red, green, blue = (int(ink[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue


def _ends_ms(figure: Figure) -> tuple[float, float]:
    """The interval; an end that is not known is drawn as no whisker."""
    if figure.of is None:
        return figure.value_ns / 1e6, figure.value_ns / 1e6
    low = figure.of.low_ns if figure.of.low_ns is not None else figure.value_ns
    high = figure.of.high_ns if figure.of.high_ns is not None else figure.value_ns
    return low / 1e6, high / 1e6


def _ratio_ends(report: Report, slug: str, statistic: str, figure: Figure) -> tuple[float, float]:
    assert figure.ratio is not None
    assert report.floor is not None
    floor = report.cells[report.floor, slug].figures[("response", statistic)]
    if floor.of is None or figure.of is None:
        return figure.ratio, figure.ratio
    found = overhead(floor.of, figure.of, paired=True)
    if found is None or found.low is None or found.high is None:
        return figure.ratio, figure.ratio
    return found.low, found.high


def _dodge(report: Report, number: int) -> float:
    """Targets side by side within a row, so that their whiskers can be told apart."""
    count = len(report.targets)
    return 0.0 if count == 1 else 0.6 * (number / (count - 1) - 0.5)

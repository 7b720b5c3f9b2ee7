"""Plots: what tables cannot show. A pure reader, like `report`.

In: a `Run` and its `Report`. Out: figures as SVG or PNG. INVALID cells are named and not drawn.
matplotlib is loaded here and nowhere else.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from embbench.errors import RunError
from embbench.report.build import summarise
from embbench.report.curves import curves
from embbench.report.model import Report
from embbench.report.plots.cells import load_curves, percentiles, trials
from embbench.report.plots.requests import distribution, over_time
from embbench.report.plots.style import Kind, encoded, title
from embbench.results.rundir import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


@dataclass(frozen=True, slots=True)
class Picture:
    """One figure: ``name`` is fit for a file, ``caption`` says what to see."""

    name: str
    caption: str
    kind: Kind
    data: bytes


def pictures(run: Run, report: Report, kind: Kind = "svg") -> Iterator[Picture]:
    """All figures of a run, one at a time. A published run has percentiles only."""

    def drawn(name: str, caption: str, canvas: "Canvas") -> Picture:
        return Picture(name, caption, kind, encoded(canvas, name, kind))

    yield drawn(
        "percentiles",
        "Percentiles by batch, and their ratio to the floor, with 95 % intervals over the trials; "
        "hollow where n cannot carry the percentile.",
        percentiles(report),
    )
    if report.published:
        return
    yield drawn(
        "trials",
        "Every trial's own percentile, the first round light, the last one dark; the bar is the "
        "cell's value.",
        trials(report),
    )
    for label in dict.fromkeys(curve.label for curve in curves(report)):
        yield drawn(
            f"load-curve-{label.replace(', ', '-').replace(' ', '')}",
            f"{label}: response time by rate; a ring around the knee, hollow where n cannot carry "
            "the percentile.",
            load_curves(report, label),
        )
    for slug in report.slugs:
        if not any(cell.figures for cell in report.row(slug)):
            continue
        yield drawn(
            f"distribution-{slug}",
            f"{title(slug)}: share of requests within a time, and the tail; a line a trial.",
            distribution(run, report, slug),
        )
        yield drawn(
            f"over-time-{slug}",
            f"{title(slug)}: each request's latency by when it was due, trials over each other; "
            "crosses at the top failed.",
            over_time(run, report, slug),
        )


def figures(run: Run, report: Report, kind: Kind = "svg") -> dict[str, bytes]:
    """All figures by caption, for the HTML report."""
    return {picture.caption: picture.data for picture in pictures(run, report, kind)}


def save_figures(run: Run, folder: Path, kinds: Sequence[Kind] = ("png",)) -> list[Path]:
    """Draw all figures into ``folder``; returns the files. Raises `RunError` if it cannot."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for kind in kinds:
            for picture in pictures(run, summarise(run), kind):
                path = folder / f"{picture.name}.{kind}"
                path.write_bytes(picture.data)
                paths.append(path)
    except OSError as exc:
        raise RunError(f"{folder}: cannot draw figures there ({exc.strerror})") from exc
    return paths


__all__ = [
    "Kind",
    "Picture",
    "distribution",
    "figures",
    "load_curves",
    "over_time",
    "percentiles",
    "pictures",
    "save_figures",
    "trials",
]

"""Load curves: the rates of a target at one batch, in order, and where the curve bends.

In: a `Report`. Out: `Curve`s of three rates or more, and the section that names their knees.
"""

import re
from collections import defaultdict
from dataclasses import dataclass

from embbench.analysis.knee import Knee, find_knee
from embbench.report.blocks import Block, Heading, Table, Text
from embbench.report.model import Cell, Report
from embbench.report.units import NOTHING, ms

_FEWEST_RATES = 3


@dataclass(frozen=True, slots=True)
class Curve:
    """Cells of one target that differ in their rate alone, slowest rate first."""

    target: str
    label: str
    cells: tuple[Cell, ...]

    @property
    def rates_rps(self) -> list[float]:
        """The asked rates."""
        return [cell.name.rate_rps or 0.0 for cell in self.cells]

    @property
    def answered_rps(self) -> list[float]:
        """Successes a second, mean of the trials."""
        return [_answered(cell) for cell in self.cells]

    def response_ns(self, statistic: str) -> list[float]:
        """One percentile of the response time at each rate."""
        return [cell.figures["response", statistic].value_ns for cell in self.cells]

    @property
    def statistic(self) -> str:
        """The highest percentile that n carries at every rate, else the median."""
        names = [name for time, name in self.cells[0].figures if time == "response"]
        closed = [
            name for name in names if all(c.figures["response", name].closed for c in self.cells)
        ]
        return closed[-1] if closed else names[0]

    @property
    def knee(self) -> Knee | None:
        """Where the curve bends, if the rates reach it."""
        return find_knee(self.rates_rps, self.answered_rps, self.response_ns(self.statistic))


def curves(report: Report) -> tuple[Curve, ...]:
    """The load curves of a report; cells that may not be used are left out."""
    groups: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for slug in report.slugs:
        for cell in report.row(slug):
            name = cell.name
            if name.rate_rps is not None and cell.times and cell.figures:
                kind = re.sub(r"^rate[\d.]+(?:e[+-]\d+)?", "", name.load).replace("-", ", ")
                label = f"batch {name.batch}, ISL {name.isl}, {name.encoding}{kind}"
                groups[cell.target, label].append(cell)
    return tuple(
        Curve(target, label, tuple(sorted(cells, key=lambda cell: cell.name.rate_rps or 0.0)))
        for (target, label), cells in groups.items()
        if len(cells) >= _FEWEST_RATES
    )


def load_curves(report: Report) -> tuple[Block, ...]:
    """One row a curve: its knee, and how far the answers kept up with the rates."""
    found = curves(report)
    if not found:
        return ()
    rows = tuple(
        (
            curve.label,
            curve.target,
            " → ".join(f"{rate:g}/s {ms(ns)}" for rate, ns in _steps(curve)),
            curve.statistic,
            f"{curve.knee.rate_rps:g}/s" if curve.knee else NOTHING,
            curve.knee.why if curve.knee else "not within these rates",
        )
        for curve in found
    )
    said = (
        "The knee is the rate with the most answers a second for its response time (Kleinrock's "
        "power), of those that the server keeps up with."
    )
    header = ("work", "target", "response time by rate, ms", "of", "knee", "because")
    return (Heading(3, "Load curves"), Text(said), Table(header, rows, left=len(header)))


def _steps(curve: Curve) -> list[tuple[float, float]]:
    return list(zip(curve.rates_rps, curve.response_ns(curve.statistic), strict=True))


def _answered(cell: Cell) -> float:
    rates = [trial.answered_rps or 0.0 for trial in cell.times["response"].trials]
    return sum(rates) / len(rates)

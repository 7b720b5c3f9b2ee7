"""Figures of single requests: the distribution of latencies, and latencies over time."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embbench.report.model import Report
from embbench.report.plots.style import (
    canvas_of,
    ink_of,
    legend,
    line_of,
    marker_of,
    plain_log,
    title,
)
from embbench.report.units import CellName
from embbench.results.rundir import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_POINTS = 4000
"""More points a curve or a cloud than this cannot be told apart; the slowest are always drawn."""


def distribution(run: Run, report: Report, slug: str) -> "Canvas":
    """Left the share of requests within a time, without the slowest tenth; right the tail."""
    canvas = canvas_of(9.6, 4.0)
    whole, tail = canvas.subplots(1, 2)
    fastest, slow = np.inf, 0.0
    for number, cell in enumerate(report.row(slug)):
        if not cell.figures:
            continue
        for trial in run.cell_trials(cell.target, slug):
            latencies = np.sort(run.samples(trial).measured.ok.response_time_ns) / 1e6
            share = np.arange(1, len(latencies) + 1) / len(latencies)
            fastest = min(fastest, latencies[0])
            slow = max(slow, latencies[int(0.9 * (len(latencies) - 1))])
            kept = _thinned(len(latencies))
            for one, values, where in ((whole, share, "post"), (tail, 1 - share + share[0], "pre")):
                one.step(
                    latencies[kept],
                    values[kept],
                    where=where,
                    color=ink_of(number),
                    linestyle=line_of(number),
                    linewidth=0.9,
                )
    name = "response time" if CellName.of(slug).open_loop else "service time"
    whole.set_xlim(fastest * 0.98, max(slow * 1.02, fastest * 1.1))
    whole.set_ylim(0, 1)
    whole.set_ylabel("share of requests within")
    tail.set_xscale("log")
    plain_log(tail.xaxis)
    tail.set_yscale("log")
    tail.set_ylabel("share of requests that take as long or longer")
    levels = {0.5: "50 %", 0.1: "10 % (p90)", 0.01: "1 % (p99)", 0.001: "0.1 %", 0.0001: "0.01 %"}
    shown = [level for level in levels if level >= tail.get_ylim()[0]]
    tail.set_yticks([1.0, *shown], ["all", *(levels[level] for level in shown)])
    tail.minorticks_off()
    for one in (whole, tail):
        one.set_xlabel(f"{name}, ms")
        one.grid(alpha=0.3)
    whole.set_title(title(slug), fontsize=9, loc="left")
    legend(canvas, report, [slug])
    return canvas


def over_time(run: Run, report: Report, slug: str) -> "Canvas":
    """Latency by the time at which each request was due: drift, stalls and queues are seen."""
    drawn = [cell for cell in report.row(slug) if cell.figures]
    canvas = canvas_of(9.6, 1.3 * len(drawn) + 0.9)
    axes = canvas.subplots(len(drawn), 1, squeeze=False, sharex=True, sharey=True)
    for one, cell in zip(axes[:, 0], drawn, strict=True):
        number = report.targets.index(cell.target)
        for trial in run.cell_trials(cell.target, slug):
            measured = run.samples(trial).measured
            due_s = (measured.rows["intended_start_ns"] - trial.origin_ns) / 1e9
            due_s = due_s - due_s.min(initial=np.inf) if len(due_s) else due_s
            ok = measured.rows["error"] < 0
            took_ms = measured.response_time_ns / 1e6
            kept = _slowest_and_some(took_ms[ok])
            one.scatter(
                due_s[ok][kept],
                took_ms[ok][kept],
                s=9,
                alpha=0.55,
                linewidths=0,
                color=ink_of(number),
                marker=marker_of(number),
                rasterized=True,
            )
            at_top = np.full(int((~ok).sum()), 0.97)
            one.scatter(
                due_s[~ok],
                at_top,
                s=24,
                marker="x",
                color="#D55E00",
                transform=one.get_xaxis_transform(),
            )
        one.set_yscale("log")
        plain_log(one.yaxis)
        one.grid(alpha=0.25)
        one.set_title(cell.target, fontsize=9, loc="left")
        one.set_ylabel("ms")
    axes[-1][0].set_xlabel("due, s after the first request")
    canvas.suptitle(title(slug), fontsize=11)
    return canvas


def _thinned(count: int) -> NDArray[np.int64]:
    """Positions of a sorted curve to draw: evenly spread, and every one of the last hundred."""
    if count <= _POINTS:
        return np.arange(count)
    spread = np.linspace(0, count - 1, _POINTS).astype(np.int64)
    return np.union1d(spread, np.arange(count - 100, count))


def _slowest_and_some(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Positions of a cloud to draw: every so many, and the slowest hundred."""
    if len(values) <= _POINTS:
        return np.arange(len(values))
    some = np.arange(0, len(values), -(-len(values) // _POINTS))
    return np.union1d(some, np.argsort(values)[-100:])

"""From a run directory to a `Report`: every cell summarised, and whether it may be used.

In: a `Run`, and the comparisons that were made of it. Out: a `Report`. Samples are read once, one
trial at a time.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from embbench.analysis.percentiles import PERCENTILES, Percentile, requests_to_close
from embbench.analysis.summary import CellSummary, Time, TrialSummary, cell_summary, trial_summary
from embbench.analysis.verdicts import Comparison
from embbench.findings import Finding
from embbench.report.model import Cell, Driven, Figure, Report, State, Wire
from embbench.report.units import CellName, ms
from embbench.results.pieces import sample_batches
from embbench.results.rundir import PublishedValue, Run, TrialRecord

_COLUMNS = (
    *("intended_start_ns", "start_ns", "end_ns", "error", "phase"),
    *("request_bytes", "response_bytes"),
)


def summarise(run: Run, comparisons: Iterable[Comparison] = ()) -> Report:
    """All cells of a run. ``comparisons`` are printed as its verdicts."""
    published = run.meta["kind"] == "published"
    read = _published if published else _measured
    cells = {
        (target, slug): read(run, target, slug) for slug in run.cells for target in run.targets
    }
    floor = run.meta.get("floor")
    return Report(
        meta=run.meta,
        targets=run.targets,
        slugs=run.cells,
        floor=floor,
        baseline=run.meta.get("baseline"),
        statistics=tuple(dict.fromkeys(value.statistic for value in run.published))
        if published
        else tuple(f"p{p:g}" for p in PERCENTILES),
        cells=_with_ratios(cells, floor),
        findings=run.findings,
        comparisons=tuple(comparisons),
    )


def _with_ratios(
    cells: Mapping[tuple[str, str], Cell], floor: str | None
) -> dict[tuple[str, str], Cell]:
    """The ratio of each figure to the floor's of the same row, where both are there."""
    if floor is None:
        return dict(cells)
    return {
        (target, slug): cell
        if target == floor
        else replace(cell, figures=_over(cell, cells[floor, slug]))
        for (target, slug), cell in cells.items()
    }


def _over(cell: Cell, floor: Cell) -> dict[tuple[Time, str], Figure]:
    return {
        key: replace(figure, ratio=figure.value_ns / under.value_ns)
        if (under := floor.figures.get(key)) and under.value_ns > 0
        else figure
        for key, figure in cell.figures.items()
    }


def _measured(run: Run, target: str, slug: str) -> Cell:
    trials = run.cell_trials(target, slug)
    failures = [f for f in run.cell_findings(target, slug) if f.severity == "fail"]
    if not trials:
        state: State = "INVALID" if failures else "not run"
        return Cell(target, slug, state, reason(failures) if failures else "")
    times = _times(run, trials, open_loop=CellName.of(slug).open_loop)
    summary = times["response"]
    cell = Cell(
        target,
        slug,
        "VALID",
        n=summary.n,
        failed=summary.failed,
        errors=summary.errors,
        figures={
            (time, f"p{found.p:g}"): Figure(ms(found.value_ns), found.value_ns, found)
            for time, one in times.items()
            for found in one.percentiles
            if found.value_ns is not None
        },
        times=times,
        driven=_driven(trials, run.meta.get("config", {}).get("trials")),
    )
    if not failures and summary.n:
        return cell
    told = ", ".join(f"{number} {error}" for error, number in cell.errors.items())
    nothing = f"none of {cell.failed} requests succeeded ({told})"
    why = reason(failures) if failures else nothing
    return replace(cell, state="INVALID", reason=why, figures={}, times={})


def reason(failures: Sequence[Finding]) -> str:
    """Why a cell is INVALID, in one sentence: the first finding, and how many more there are."""
    first = failures[0]
    numbers = {"trial": first.trial, "request": first.request, "item": first.item}
    places = [f"{word} {number}" for word, number in numbers.items() if number is not None]
    sentence = first.what.rstrip(".")
    sentence += f" ({', '.join(places)})" if places else ""
    more = len(failures) - 1
    sentence += f", and {more} more finding{'s' if more > 1 else ''}" if more else ""
    return sentence + (f"; {first.do.rstrip('.')}" if first.do else "")


def _times(run: Run, trials: Sequence[TrialRecord], *, open_loop: bool) -> dict[Time, CellSummary]:
    """The cell in each of its times; in closed loop the two are one and the same."""
    times: tuple[Time, ...] = ("response", "service") if open_loop else ("response",)
    summaries: dict[Time, list[TrialSummary]] = {time: [] for time in times}
    for trial in trials:
        for time in times:  # piece by piece, so that a long trial costs no memory
            pieces = sample_batches(run.folder / trial.path, _COLUMNS)
            summaries[time].append(trial_summary(pieces, time=time, round_index=trial.index))
    return {time: cell_summary(of_trials) for time, of_trials in summaries.items()}


def _driven(trials: Sequence[TrialRecord], planned: int | None) -> Driven:
    dimensions = {trial.dimension for trial in trials}
    return Driven(
        trials=len(trials),
        planned=planned,
        asked_rps=trials[0].asked_rps,
        achieved_rps=_mean([trial.achieved_rps for trial in trials]),
        in_flight_max=max(trial.in_flight_max for trial in trials),
        send_lag_p99_ns=max(trial.send_lag_p99_ns for trial in trials),
        verified_share=min(trial.verified_share for trial in trials),
        wire=Wire(
            request_bytes=_mean([trial.request_bytes for trial in trials]),
            response_bytes=_mean([trial.response_bytes for trial in trials]),
            bytes_per_vector=_mean([trial.bytes_per_vector for trial in trials]),
            dimension=dimensions.pop() if len(dimensions) == 1 else None,
            chunked=any(trial.chunked for trial in trials),
            gzip=any(trial.gzip for trial in trials),
        ),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _published(run: Run, target: str, slug: str) -> Cell:
    name = CellName.of(slug)
    values = [
        value
        for value in run.published
        if (value.target, value.batch, value.load) == (target, name.batch, name.load)
    ]
    if not values:
        return Cell(target, slug, "not run")
    figures: dict[tuple[Time, str], Figure] = {
        ("response", value.statistic): _as_printed(value) for value in values
    }
    return Cell(target, slug, "published", n=values[0].requests, figures=figures)


def _as_printed(value: PublishedValue) -> Figure:
    value_ns = float(value.value_ms * 10**6)
    of = None
    if value.statistic.startswith("p"):
        p = float(value.statistic[1:])
        closed = value.requests >= requests_to_close(p)
        of = Percentile(p, value_ns, None, None, closed, value.requests)
    return Figure(str(value.value_ms), value_ns, of)

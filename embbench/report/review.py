"""Review: the whole report of a run, with its verdicts and with what stands out in words.

In: a `Run`. Out: a `Report`. What was found while it was driven stays as it was; what can be
computed from the samples is computed anew each time, so that old runs profit from later checks.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from embbench.analysis.bootstrap import trial_draws, within_trial_sd
from embbench.analysis.diagnose import odd_trials, start_spread, tail_against_floor, trial_findings
from embbench.analysis.knee import find_knee
from embbench.config.plan import ClosedLoop, OpenLoop
from embbench.findings import Finding
from embbench.report.build import summarise
from embbench.report.compare_runs import compare_within
from embbench.report.model import Cell, Report
from embbench.report.units import CellName
from embbench.results.rundir import Run, TrialRecord

_COLUMNS = ("intended_start_ns", "start_ns", "end_ns", "error", "phase")


def review(run: Run) -> Report:
    """Matrices, verdicts and findings of a run."""
    report = summarise(run)
    found = [] if report.published else [*_within(run, report), *_across(run, report)]
    return replace(
        report,
        comparisons=compare_within(run, report=report).comparisons,
        findings=(*report.findings, *found),
    )


def _valid(report: Report) -> Iterator[Cell]:
    return (cell for cell in report.cells.values() if cell.state == "VALID")


def _within(run: Run, report: Report) -> Iterator[Finding]:
    """Each trial of each cell that may be used."""
    for cell in _valid(report):
        spreads = []
        for trial in run.cell_trials(cell.target, cell.slug):
            samples = run.samples(trial, _COLUMNS)
            yield from trial_findings(
                samples, _load(trial), target=cell.target, cell=cell.slug, trial=trial.index
            )
            draws = trial_draws(samples.measured.ok.response_time_ns, (50.0,))
            spreads.append(within_trial_sd(draws[0]))
        median = cell.times["response"].at(50.0)
        yield from start_spread(median, spreads, target=cell.target, cell=cell.slug)


def _across(run: Run, report: Report) -> Iterator[Finding]:
    """The trials of a cell beside each other, and each target beside the floor."""
    sweeps: dict[tuple[str, CellName], list[tuple[float, Cell]]] = defaultdict(list)
    for cell in _valid(report):
        summary = cell.times["response"]
        yield from odd_trials(summary.at(50.0), target=cell.target, cell=cell.slug)
        floor = report.cells.get((report.floor or "", cell.slug))
        if floor is not None and floor.state == "VALID" and floor is not cell:
            under = floor.times["response"]
            yield from tail_against_floor(
                (under.at(50.0), under.at(99.0)),
                (summary.at(50.0), summary.at(99.0)),
                paired=True,
                target=cell.target,
                cell=cell.slug,
            )
        load = _load(run.cell_trials(cell.target, cell.slug)[0])
        if isinstance(load, OpenLoop):
            row = replace(cell.name, load="")
            sweeps[cell.target, row].append((load.rate_rps, cell))
    for (target, _), cells in sweeps.items():
        yield from _knee(target, cells)


def _knee(target: str, cells: list[tuple[float, Cell]]) -> Iterator[Finding]:
    """Where the load curve of a rate sweep bends."""
    rates = [rate for rate, _ in cells]
    if len(rates) < 3:
        return
    summaries = [cell.times["response"] for _, cell in cells]
    answered = [
        sum(trial.answered_rps or 0.0 for trial in summary.trials) / len(summary.trials)
        for summary in summaries
    ]
    # the median: high percentiles of short trials would move the knee by chance
    response = [summary.at(50.0).value_ns or 0.0 for summary in summaries]
    knee = find_knee(rates, answered, response)
    if knee is None:
        what = f"no knee between {min(rates):g} and {max(rates):g} requests/s"
        yield Finding("knee", "info", what, "try higher rates", target=target)
        return
    cell = cells[knee.index][1]
    what = f"the load curve bends at {knee.rate_rps:g} requests/s: {knee.why}"
    do = "compare targets at rates below their knees"
    yield Finding("knee", "info", what, do, target=target, cell=cell.slug)


def _load(trial: TrialRecord) -> OpenLoop | ClosedLoop:
    return OpenLoop(**trial.load) if "rate_rps" in trial.load else ClosedLoop(**trial.load)

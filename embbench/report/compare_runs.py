"""From run directories to comparisons: who is set against whom, and whether the two are alike.

In: one run (its targets against the floor and the baseline), or two (each target against itself).
Out: `Comparison`s of one family, answered by `compare.judge`. Their key is (base, candidate, cell).
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from embbench.analysis.likeness import Difference, allowed, check_allowed, differences, refusal
from embbench.analysis.percentiles import PERCENTILES, Percentile
from embbench.analysis.verdicts import (
    Comparison,
    Question,
    judge,
    min_effects,
    noise_floor,
    relative_to,
)
from embbench.errors import ConfigError
from embbench.report.build import summarise
from embbench.report.model import Cell, Report
from embbench.results.rundir import Run


@dataclass(frozen=True, slots=True)
class Compared:
    """What `compare` found. ``first_line`` says what was let pass by ``--allow``, or is empty."""

    comparisons: tuple[Comparison, ...]
    min_effect: Mapping[float, float]
    first_line: str = ""


def compare(
    run: Run,
    new: Run | None = None,
    *,
    base: str | None = None,
    candidate: str | None = None,
    allow: Collection[str] = (),
    min_effect: float | None = None,
) -> Compared:
    """The targets of one run against each other, or, with ``new``, each against itself in ``new``.

    ``base`` and ``candidate`` choose one pair of targets; ``allow`` lets facts of two runs differ;
    ``min_effect`` is a share (0.05 for 5 %). Raises `ConfigError` for what cannot be meant.
    """
    if new is None:
        if allow:
            raise ConfigError("--allow is for two runs; one run has one host")
        return compare_within(run, base=base, candidate=candidate, min_effect=min_effect)
    one, other = base or candidate, candidate or base
    pairs = {one: other} if one and other else None
    return compare_between(run, new, allow=allow, targets=pairs, min_effect=min_effect)


def compare_within(
    run: Run,
    *,
    base: str | None = None,
    candidate: str | None = None,
    min_effect: float | None = None,
    report: Report | None = None,
) -> Compared:
    """Targets of one run: all against the floor, and all others against the baseline.

    ``base`` and ``candidate`` choose one pair. Raises `ConfigError` for a name that is no target.
    """
    report = report or summarise(run)
    for name in (base, candidate):
        if name is not None and name not in report.targets:
            raise ConfigError(f"no target '{name}' in {run.folder}; {_known(report.targets)}")
    apart = {
        frozenset((pair["base"], pair["candidate"])): pair["what"]
        for pair in run.meta.get("agreement", ())
        if not pair["same_work"]
    }
    questions = [
        question
        for one, other in _pairs(report, base, candidate)
        for slug in report.slugs
        for question in _questions(
            report.cells[one, slug],
            report.cells[other, slug],
            key=(one, other, slug),
            paired=not report.published,
            refused=apart.get(frozenset((one, other)), "") or _unlike_within(run, one, other, slug),
        )
    ]
    return _judged(questions, _noise(run, report), min_effect)


def compare_between(
    base: Run,
    candidate: Run,
    *,
    allow: Collection[str] = (),
    targets: Mapping[str, str] | None = None,
    min_effect: float | None = None,
) -> Compared:
    """Each target of ``base`` against the one of that name in ``candidate``, cell by cell.

    ``targets`` pairs other names. Where both runs drove the same floor, targets are compared by
    their ratio to it, which takes out what the machine did between the runs. ``allow`` lets facts
    differ (`likeness.FACTS`). Raises `ConfigError` if the two have no target or cell in common.
    """
    check_allowed(allow)
    left, right = summarise(base), summarise(candidate)
    pairs = targets or {name: name for name in left.targets if name in right.targets}
    slugs = [slug for slug in left.slugs if slug in right.slugs]
    if not pairs or not slugs:
        what = "target" if not pairs else "cell"
        raise ConfigError(
            f"{base.folder} and {candidate.folder} have no {what} in common: "
            f"{', '.join(left.targets if not pairs else left.slugs)} against "
            f"{', '.join(right.targets if not pairs else right.slugs)}; pair targets with "
            "--base and --candidate"
        )
    for one, other in pairs.items():
        if one not in left.targets or other not in right.targets:
            raise ConfigError(f"no target '{one}' and '{other}'; {_known(left.targets)}")
    questions: list[Question] = []
    found: list[Difference] = []
    for one, other in pairs.items():
        for slug in slugs:
            unlike = differences(facts(base, one, slug), facts(candidate, other, slug))
            found += unlike
            questions += _questions(
                left.cells[one, slug],
                right.cells[other, slug],
                key=(one, other if other != one else f"{other} (new)", slug),
                paired=False,
                refused=refusal(unlike, allow),
                controls=_controls(left, right, one, other, slug),
            )
    noise = {
        p: max(n.get(p, 0.0) for n in (_noise(base, left), _noise(candidate, right)))
        for p in PERCENTILES
    }
    judged = _judged(questions, noise, min_effect)
    return replace(judged, first_line=allowed(dict.fromkeys(found), allow))


def facts(run: Run, target: str, slug: str) -> dict[str, Any]:
    """What must be alike on both sides; see `likeness.FACTS`."""
    meta = run.meta
    trials = run.cell_trials(target, slug)
    first = trials[0] if trials else None
    host = meta.get("host", {})
    config = meta.get("config", {})
    launches = [entry for entry in meta.get("launches", ()) if entry["target"] == target]
    launch: Mapping[str, Any] = launches[0] if launches else {}
    gpus = meta.get("gpu", ())
    return {
        "schema": meta["schema_version"],
        "host": host.get("hostname"),
        "cpu": f"{host.get('cpu')}, {host.get('cores')} cores" if host else None,
        "gpu": [gpu.get("uuid") for gpu in gpus] or None,
        "driver": gpus[0].get("driver") if gpus else None,
        "model": launch.get("model_digest") or launch.get("model"),
        "engine": {
            str(row["setting"]): row["values"].get(target) for row in meta.get("parity", ())
        },
        "versions": launch.get("versions"),
        "batch": first and first.batch,
        "isl": first and first.isl,
        "encoding": first and f"{first.encoding}{', gzip' if first.gzip else ''}",
        "load": first and [f"{k} {v}" for k, v in first.load.items()],
        "request_bytes": first and first.request_bytes,
        "payload": first and first.response_bytes,
        "texts": [config.get("seed"), meta.get("text_recipe", {}).get("counted_by")],
    }


def _pairs(report: Report, base: str | None, candidate: str | None) -> Iterator[tuple[str, str]]:
    floor, baseline = report.floor, report.baseline
    bases = [base] if base else [name for name in (floor, baseline) if name]
    for one in bases:
        for other in [candidate] if candidate else report.targets:
            if other != one and not (base is None and other == floor):
                yield one, other


def _questions(
    base: Cell,
    candidate: Cell,
    *,
    key: tuple[str, str, str],
    paired: bool,
    refused: str,
    controls: tuple[Cell, Cell] | None = None,
) -> Iterator[Question]:
    """One question a percentile, of the response time."""
    states = [
        f"{side} is {cell.state}{': ' if cell.reason else ''}{cell.reason}"
        for side, cell in zip(key, (base, candidate), strict=False)
        if cell.state in ("INVALID", "not run")
    ]
    refused = "; ".join(states) or refused
    for p in PERCENTILES:
        left, right = _of(base, p), _of(candidate, p)
        if left is None or right is None:
            left = right = Percentile(p, None, None, None, closed=False, n=0)
            refused = refused or "there is no such percentile"
        elif controls is not None:
            floors = _of(controls[0], p), _of(controls[1], p)
            if floors[0] is not None and floors[1] is not None:
                left, right = relative_to(left, floors[0]), relative_to(right, floors[1])
        apart = not paired and controls is None
        yield Question(left, right, paired, refused, key, apart)


def _of(cell: Cell, p: float) -> Percentile | None:
    figure = cell.figures.get(("response", f"p{p:g}"))
    return figure.of if figure else None


def _unlike_within(run: Run, one: str, other: str, slug: str) -> str:
    """Within a run only what crosses the wire can differ unasked."""
    wire = ("encoding", "request_bytes", "payload")
    sides = [
        {name: value for name, value in facts(run, target, slug).items() if name in wire}
        for target in (one, other)
    ]
    return refusal(differences(*sides), ())


def _controls(
    left: Report, right: Report, one: str, other: str, slug: str
) -> tuple[Cell, Cell] | None:
    """The floor in both runs, if it is not what is compared, and both may be used."""
    if left.floor is None or left.floor != right.floor or left.floor in (one, other):
        return None
    cells = left.cells[left.floor, slug], right.cells[left.floor, slug]
    return cells if all(cell.state == "VALID" for cell in cells) else None


def _noise(run: Run, report: Report) -> dict[float, float]:
    """The A/A noise floor: what differs between targets that are declared to be the same."""
    return noise_floor(
        question
        for name, same in run.meta.get("same_as", {}).items()
        if same
        for slug in report.slugs
        for question in _questions(
            report.cells[same, slug],
            report.cells[name, slug],
            key=(same, name, slug),
            paired=True,
            refused="",
        )
    )


def _judged(
    questions: list[Question], noise: Mapping[float, float], min_effect: float | None
) -> Compared:
    effects = min_effects(noise) if min_effect is None else dict.fromkeys(PERCENTILES, min_effect)
    return Compared(judge(questions, effects), effects)


def _known(targets: Collection[str]) -> str:
    return f"targets are: {', '.join(targets)}"

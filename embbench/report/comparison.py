"""The text of `compare`: what was set against what, the verdicts, and the gate.

In: the runs, what was found, and the rules that were held against it. Out: text. The first line
says what was let pass although it was not alike.
"""

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from embbench.analysis.gates import Gate
from embbench.analysis.verdicts import Comparison
from embbench.report import html, markdown
from embbench.report.blocks import Block, Details, Heading, Listing, Text
from embbench.report.tabular import csv_text, finite
from embbench.report.verdicts import counts, refusals, table
from embbench.results.rundir import Run

if TYPE_CHECKING:
    from embbench.report.compare_runs import Compared

SCHEMA_VERSION = 1


def document(runs: Sequence[Run], compared: "Compared", gate: Gate) -> tuple[Block, ...]:
    """The comparison's blocks: differences first, the rest behind a line."""
    comparisons = compared.comparisons
    changed = [c for c in comparisons if c.verdict in ("faster", "slower")]
    others = [c for c in comparisons if c not in changed]
    blocks: list[Block] = [Text(compared.first_line)] if compared.first_line else []
    blocks += [
        Heading(2, " against ".join(run.folder.resolve().name for run in reversed(runs))),
        Text(counts(comparisons) if comparisons else "There is nothing to compare."),
        Text(_threshold(compared)),
    ]
    if changed:
        blocks.append(table(changed))
    blocks += refusals(comparisons)
    if others and len(others) <= 12:
        blocks.append(table(others))
    elif others:
        blocks.append(Details(f"{len(others)} other comparisons", (table(others),)))
    return (*blocks, *_gate(gate))


def _threshold(compared: "Compared") -> str:
    effects = ", ".join(f"p{p:g} {100 * e:.3g} %" for p, e in compared.min_effect.items())
    return f"Smallest difference that is called one: {effects}."


def _gate(gate: Gate) -> tuple[Block, ...]:
    lines = [f"BROKEN '{rule.text}': {_name(one)}" for rule, one in gate.broken]
    if gate.undecided:
        lines.append(
            f"not decided: {len(gate.undecided)} comparisons that a rule concerns have no verdict, "
            f"the first: {_name(gate.undecided[0])}, {gate.undecided[0].reason}"
        )
    return (Heading(3, "Gate"), Listing(tuple(lines))) if lines else ()


def _name(one: Comparison) -> str:
    base, candidate, slug = one.key
    ratio = "" if one.ratio is None else f", ratio {one.ratio:.3f}"
    return f"{candidate} against {base}, {slug}, p{one.p:g}{ratio}"


def _to_markdown(runs: Sequence[Run], compared: "Compared", gate: Gate) -> str:
    return markdown.render(document(runs, compared, gate))


def _to_html(runs: Sequence[Run], compared: "Compared", gate: Gate) -> str:
    return html.render(document(runs, compared, gate))


def _to_json(runs: Sequence[Run], compared: "Compared", gate: Gate) -> str:
    data = {
        "schema_version": SCHEMA_VERSION,
        "runs": [str(run.folder) for run in runs],
        "first_line": compared.first_line,
        "min_effect": {f"p{p:g}": effect for p, effect in compared.min_effect.items()},
        "comparisons": [one.to_json() for one in compared.comparisons],
        "gate": {
            "broken": [
                {"rule": rule.text, "key": one.key, "p": one.p} for rule, one in gate.broken
            ],
            "undecided": [{"key": one.key, "p": one.p} for one in gate.undecided],
        },
    }
    return json.dumps(finite(data), indent=2, ensure_ascii=False) + "\n"


def _to_csv(runs: Sequence[Run], compared: "Compared", gate: Gate) -> str:  # noqa: ARG001
    header = ["base", "candidate", "cell", "percentile", "verdict", "ratio", "low", "high"]
    header += ["base_ms", "candidate_ms", "p_value", "reason"]
    rows = [
        [*one.key, f"p{one.p:g}", one.verdict or "", one.ratio, one.low, one.high]
        + [None if ns is None else ns / 1e6 for ns in (one.base_ns, one.candidate_ns)]
        + [one.p_value, one.reason]
        for one in compared.comparisons
    ]
    return csv_text(header, rows)


COMPARISON_FORMATS: dict[str, Callable[[Sequence[Run], "Compared", Gate], str]] = {
    "md": _to_markdown,
    "html": _to_html,
    "json": _to_json,
    "csv": _to_csv,
}

"""Verdicts in tables: what `compare` found, in its own words."""

from collections import Counter
from collections.abc import Sequence

from embbench.analysis.verdicts import Comparison
from embbench.report.blocks import Block, Details, Heading, Listing, Table, Text
from embbench.report.model import Report
from embbench.report.units import NOTHING, CellName, ratio

_TRIALS_FOR_INTERVAL = 3
"""Student's interval of two trials reaches from nothing to a thousandfold: it tells nothing."""

_LOUD = ("faster", "slower")


def verdicts(report: Report) -> tuple[Block, ...]:
    """The count of each verdict, the differences, and behind a line every comparison."""
    comparisons = report.comparisons
    if not comparisons:
        return ()
    loud = [c for c in comparisons if c.verdict in _LOUD]
    blocks: list[Block] = [Heading(3, "Verdicts"), Text(counts(comparisons))]
    if loud:
        blocks.append(table(loud))
    blocks += refusals(comparisons)
    blocks.append(Details(f"All {len(comparisons)} comparisons", (table(comparisons),)))
    return tuple(blocks)


def refusals(comparisons: Sequence[Comparison]) -> list[Block]:
    """Why comparisons were refused, each reason once."""
    reasons = Counter(found.reason for found in comparisons if found.verdict == "not comparable")
    lines = [f"{number} not comparable: {reason}" for reason, number in reasons.items()]
    return [Listing(tuple(lines))] if lines else []


def table(comparisons: Sequence[Comparison]) -> Table:
    """One row a comparison; its key is (base, candidate, cell)."""
    rows = []
    for found in comparisons:
        base, candidate, slug = found.key
        name = CellName.of(slug)
        rows.append(
            (
                str(name.batch),
                name.load_label,
                f"{candidate} against {base}",
                f"p{found.p:g}",
                found.verdict or "no verdict",
                _ratio(found),
                found.reason,
            )
        )
    header = ("batch", "load", "comparison", "of", "verdict", "ratio", "because")
    return Table(header, tuple(rows), left=len(header))


def _ratio(found: Comparison) -> str:
    if found.ratio is None:
        return NOTHING
    if found.low is None or found.high is None or min(found.trials) < _TRIALS_FOR_INTERVAL:
        return ratio(found.ratio)
    return f"{ratio(found.ratio)} [{found.low:.2f} to {found.high:.2f}]"


def counts(comparisons: Sequence[Comparison]) -> str:
    """How many comparisons there are, and how many of each verdict."""
    counts = Counter(found.verdict or "no verdict" for found in comparisons)
    told = ", ".join(f"{number} {verdict}" for verdict, number in counts.most_common())
    return (
        f"{len(comparisons)} comparisons as one family: {told}. "
        "Ratios are candidate / base, with 95 % intervals over the trials."
    )

"""Verdicts in tables: what `compare` found, in its own words, and the story's "gap closed"."""

from collections import Counter
from collections.abc import Sequence

from embbench.compare import Comparison
from embbench.overhead import GapClosed, gap_closed
from embbench.report.blocks import Block, Details, Heading, Table, Text
from embbench.report.matrices import place, place_header
from embbench.report.model import Report
from embbench.report.units import NOTHING, CellName, ratio

_TRIALS_FOR_INTERVAL = 3
"""Student's interval of two trials reaches from nothing to a thousandfold: it tells nothing."""

_LOUD = ("faster", "slower", "not comparable")


def verdicts(report: Report) -> tuple[Block, ...]:
    """The count of each verdict, the differences, and behind a line every comparison."""
    comparisons = report.comparisons
    if not comparisons:
        return ()
    loud = [c for c in comparisons if c.verdict in _LOUD]
    blocks: list[Block] = [Heading(3, "Verdicts"), Text(counts(comparisons))]
    if loud:
        blocks.append(table(loud))
    blocks.append(Details(f"All {len(comparisons)} comparisons", (table(comparisons),)))
    return tuple(blocks)


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


def gaps(report: Report) -> tuple[Block, ...]:
    """How much of the baseline's overhead over the floor each other target takes away."""
    floor, baseline = report.floor, report.baseline
    others = [target for target in report.targets if target not in (floor, baseline)]
    if floor is None or baseline is None or floor == baseline or not others:
        return ()
    rows, reasons = [], Counter[str]()
    for slug in report.slugs:
        for statistic in report.statistics:
            found = [_gap(report, slug, statistic, target) for target in others]
            reasons.update(gap.reason for gap in found if gap and gap.reason)
            cells = (_share(gap) for gap in found)
            rows.append((*place(report, slug), statistic, *cells))
    why = "; ".join(f"{said} ({number} times)" for said, number in reasons.most_common())
    said = (
        f"The share of {baseline}'s overhead over {floor} that a target takes away: 1 - (target - "
        f"{floor}) / ({baseline} - {floor}), of the response time."
    )
    said += f" Where there is no share or no interval: {why}." if why else ""
    header = (*place_header(report), "of", *others)
    return (Details("Gap closed", (Text(said), Table(header, tuple(rows)))),)


def _gap(report: Report, slug: str, statistic: str, target: str) -> GapClosed | None:
    sides = [
        figure.of
        for name in (report.floor, report.baseline, target)
        if name and (figure := report.cells[name, slug].figures.get(("response", statistic)))
    ]
    floor, baseline, candidate = sides if len(sides) == 3 else (None, None, None)
    if floor is None or baseline is None or candidate is None:
        return None
    return gap_closed(floor, baseline, candidate, paired=not report.published)


def _share(gap: GapClosed | None) -> str:
    if gap is None or gap.value is None:
        return NOTHING
    told = f"{100 * gap.value:.0f} %"
    if gap.low is None or gap.high is None:
        return told
    return f"{told} [{100 * gap.low:.0f} to {100 * gap.high:.0f}]"

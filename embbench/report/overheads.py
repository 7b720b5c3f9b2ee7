"""How far targets are above the floor, and how much of the baseline's way a candidate closes."""

from collections import Counter

from embbench.analysis.overhead import GapClosed, gap_closed, overhead
from embbench.analysis.percentiles import Percentile
from embbench.report.blocks import Block, Details, Table, Text
from embbench.report.matrices import place, place_header
from embbench.report.model import Report
from embbench.report.units import NOTHING, ms


def overheads(report: Report) -> tuple[Block, ...]:
    """Overhead over the floor in milliseconds and percent, for every target but the floor."""
    floor = report.floor
    others = tuple(target for target in report.targets if target != floor)
    if floor is None or not others:
        return ()
    rows = tuple(
        (
            *(*place(report, slug), statistic),
            *(_overhead(report, slug, statistic, floor, target) for target in others),
        )
        for slug in report.slugs
        for statistic in report.statistics
    )
    said = f"Response time above {floor}'s, with the 95 % interval over the trials."
    table = Table((*place_header(report), "of", *others), rows)
    return (Details(f"Overhead over {floor}", (Text(said), table)),)


def _overhead(report: Report, slug: str, statistic: str, floor: str, target: str) -> str:
    sides = [_percentile(report, slug, statistic, name) for name in (floor, target)]
    if sides[0] is None or sides[1] is None:
        return NOTHING
    found = overhead(sides[0], sides[1], paired=not report.published)
    if found is None:
        return NOTHING
    sign = "+" if found.overhead_ns >= 0 else "-"
    told = f"{sign}{ms(abs(found.overhead_ns))} ms, {100 * (found.ratio - 1):+.1f} %"
    if found.low is None or found.high is None or len(sides[1].trials_ns) <= 2:
        return told
    return f"{told} [{100 * (found.low - 1):.1f} to {100 * (found.high - 1):.1f}]"


def _percentile(report: Report, slug: str, statistic: str, target: str) -> Percentile | None:
    figure = report.cells[target, slug].figures.get(("response", statistic))
    return figure.of if figure else None


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
    names = (report.floor, report.baseline, target)
    sides = [_percentile(report, slug, statistic, name) for name in names if name]
    floor, baseline, candidate = sides
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

"""Findings of a trial: what was wrong with its answers, one finding a kind, dated.

In: the `Checked` answers and the trial's samples. Out: `Finding`s that say where a fault was first
seen, how often, and when.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from embbench.findings import Finding, Severity
from embbench.payload.answer import Checked
from embbench.payload.checks import Flaw
from embbench.results.samples import MEASURED, Samples

_OK: Final = 200


def add_repeats(checked: list[Checked]) -> None:
    """Vectors that came in two answers: no text is sent twice, so one of them is wrong."""
    keys = np.concatenate([each.keys for each in checked] or [np.zeros(0, np.uint64)])
    values, first, counts = np.unique(keys, return_index=True, return_counts=True)
    if len(values) == len(keys):
        return
    sizes = np.asarray([len(each.keys) for each in checked])
    starts = np.cumsum(sizes) - sizes
    original = dict(zip(values[counts > 1].tolist(), first[counts > 1].tolist(), strict=True))
    for at, each in enumerate(checked):
        repeated = np.flatnonzero(np.isin(each.keys, values[counts > 1]))
        later = [i for i in repeated if original[int(each.keys[i])] != starts[at] + i]
        if not later:
            continue
        item = int(later[0])
        source = original[int(each.keys[item])]
        where = int(np.searchsorted(starts, source, "right")) - 1
        other = checked[where]
        name = "request" if other.phase == MEASURED else "warm-up request"
        what = (
            f"same vector for different texts: input {item} has the vector of input "
            f"{source - starts[where]} of {name} {other.seq}"
        )
        flaw = Flaw("distinct", "fail", what, item=item)
        checked[at] = replace(each, flaws=(*each.flaws, flaw))


@dataclass(frozen=True, slots=True)
class Dated:
    """Turns flaws into findings of one trial, one a kind, with where, how often and when."""

    target: str
    cell: str
    trial: int
    samples: Samples | None
    total: int

    def findings(self, checked: Sequence[Checked]) -> list[Finding]:
        """One finding for each kind of flaw, the first place first."""
        kinds: dict[tuple[str, str], list[tuple[Checked, Flaw]]] = defaultdict(list)
        for each in checked:
            once: set[tuple[str, str]] = set()
            for flaw in each.flaws:
                kind = (flaw.check, flaw.severity)
                if kind not in once:
                    kinds[kind].append((each, flaw))
                    once.add(kind)
        return [self._finding(found) for found in kinds.values()]

    def _finding(self, found: list[tuple[Checked, Flaw]]) -> Finding:
        found.sort(key=lambda pair: (-pair[0].phase, pair[0].seq))
        first, flaw = found[0]
        time_ns, into_s = self._time(first)
        phase = "request" if first.phase == MEASURED else "warm-up request"
        what = f"{flaw.what}; first in {phase} {first.seq}"
        what += f", {into_s:.2f} s into the trial" if into_s is not None else ""
        if self.total > 1:
            what += f"; {len(found)} of {self.total} answers"
            what += f", the last in request {found[-1][0].seq}" if len(found) > 1 else ""
        severity = flaw.severity
        if severity == "fail" and first.phase != MEASURED:
            severity = "warn"  # nothing measured is wrong
        return Finding(
            check=flaw.check,
            severity=severity,
            what=what,
            do=flaw.do,
            target=self.target,
            cell=self.cell,
            trial=self.trial,
            request=first.seq,
            item=flaw.item,
            time_ns=time_ns,
        )

    def _time(self, where: Checked) -> tuple[int | None, float | None]:
        if self.samples is None:
            return None, None
        ends_ns: list[int] = []
        begins_ns: list[int] = []
        for piece in self.samples.pieces():
            rows = piece.rows
            mine = (rows["phase"] == where.phase) & (rows["seq"] == where.seq)
            ends_ns += rows["end_ns"][mine].tolist()
            starts_ns = rows["intended_start_ns"][rows["phase"] == MEASURED]
            begins_ns += [int(starts_ns.min())] if len(starts_ns) else []
        if not ends_ns or not begins_ns:
            return None, None
        return ends_ns[0], (ends_ns[0] - min(begins_ns)) / 1e9

    def share(self, checked: Sequence[Checked], unkept: int) -> list[Finding]:
        """Say so where not all answers could be read."""
        if self.samples is None:
            return []
        answers = sum(
            int(((piece.rows["status"] == _OK) & (piece.rows["phase"] == MEASURED)).sum())
            for piece in self.samples.pieces()
        )
        read = sum(each.phase == MEASURED and not each.refused for each in checked)
        if read >= answers:
            return []
        what = f"{read} of {answers} answers verified ({read / answers:.0%}), a seeded share"
        what += f"; {unkept} more were to be kept and did not fit" if unkept else ""
        do = "raise checks.budget_mib to verify all of them"
        severity: Severity = "info" if read else "fail"
        return [Finding("verified", severity, what, do, self.target, self.cell, self.trial)]

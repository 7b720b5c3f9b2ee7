"""Gating: rules under which a comparison fails a CI job.

In: rules as text, and the comparisons of a report. Out: the comparisons that break a rule, and
those about which nothing could be said. The grammar, words in any case:

    RULES     = RULE { "," RULE }
    RULE      = [ "p" NUMBER ] CONDITION [ "by" NUMBER "%" ] [ "in" PATTERN ]
    CONDITION = "faster" | "slower" | "no measurable difference" | "too few trials"
              | "not comparable" | "no verdict"

A rule is broken by any comparison that fits all of it. Without ``p99`` every percentile counts.
``by 5 %`` asks that the whole interval is beyond 5 %. ``in`` takes a shell pattern (``b15-*``,
``shm``) that must match the cell or the target. ``no verdict`` fits percentiles that carry none.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Literal, get_args

from embbench.analysis.verdicts import Comparison, Verdict
from embbench.errors import ConfigError

Condition = Verdict | Literal["no verdict"]
CONDITIONS: tuple[str, ...] = (*get_args(Verdict), "no verdict")

_RULE = re.compile(
    r"(?:p(?P<p>\d+(?:\.\d+)?) )?"
    rf"(?P<condition>{'|'.join(CONDITIONS)})"
    r"(?: by (?P<share>\d+(?:\.\d+)?) ?%)?"
    r"(?: in (?P<pattern>\S+))?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; ``p`` None is every percentile, ``share`` is 0.05 for "by 5 %"."""

    text: str
    condition: str
    p: float | None = None
    share: float = 0.0
    pattern: str = "*"

    def concerns(self, comparison: Comparison) -> bool:
        """Is the comparison of the rule's percentile and cells?"""
        places = comparison.key or ("",)
        return self.p in (None, comparison.p) and any(
            fnmatchcase(place, self.pattern) for place in places
        )

    def is_broken_by(self, comparison: Comparison) -> bool:
        """Does the comparison fit all of the rule?"""
        if not self.concerns(comparison):
            return False
        if (comparison.verdict or "no verdict") != self.condition:
            return False
        match self.condition:
            case "slower":
                return comparison.low is not None and comparison.low > 1 + self.share
            case "faster":
                return comparison.high is not None and comparison.high < 1 - self.share
            case _:
                return True


@dataclass(frozen=True, slots=True)
class Gate:
    """``broken``: rule and comparison. ``undecided``: comparisons a rule concerns, without verdict.

    A gate that is not broken but undecided passes, and the report must say what was not decided.
    """

    broken: tuple[tuple[Rule, Comparison], ...]
    undecided: tuple[Comparison, ...]


def parse_rules(text: str) -> tuple[Rule, ...]:
    """The rules of one ``--fail-on``; raises `ConfigError` with what was not understood."""
    if not text.strip():
        raise ConfigError('--fail-on: empty; write for example --fail-on "p99 slower"')
    return tuple(_parse_rule(part.strip()) for part in text.split(","))


def evaluate(rules: Iterable[Rule], comparisons: Iterable[Comparison]) -> Gate:
    """Hold every comparison against every rule."""
    wanted, asked = tuple(rules), tuple(comparisons)
    broken = tuple((rule, one) for rule in wanted for one in asked if rule.is_broken_by(one))
    caught = {id(one) for _, one in broken}
    return Gate(
        broken,
        tuple(
            one
            for one in asked
            if one.verdict in (None, "too few trials", "not comparable")
            and id(one) not in caught
            and any(rule.concerns(one) for rule in wanted)
        ),
    )


def _parse_rule(text: str) -> Rule:
    found = _RULE.fullmatch(" ".join(text.split()))
    if found is None:
        raise ConfigError(f"--fail-on {text!r}: {_complaint(text)}")
    condition = found["condition"].lower()
    share = float(found["share"] or 0) / 100
    if found["share"] and condition not in ("faster", "slower"):
        raise ConfigError(f"--fail-on {text!r}: 'by' goes with 'faster' or 'slower' only")
    if found["p"] and not 0 < float(found["p"]) < 100:
        raise ConfigError(f"--fail-on {text!r}: a percentile lies between p0 and p100")
    return Rule(
        text, condition, float(found["p"]) if found["p"] else None, share, found["pattern"] or "*"
    )


def _complaint(text: str) -> str:
    """What is wrong with a rule, and the nearest one that is right."""
    rest = re.sub(r"^p\d+(\.\d+)?\s*", "", text.lower())
    words = re.split(r"\s+(?:by|in)\s+", rest)[0].strip()
    if words in CONDITIONS:
        return "after the condition come 'by 5 %' and then 'in PATTERN', or nothing"
    near = get_close_matches(words, CONDITIONS, n=1)
    if near:
        return f"did you mean '{near[0]}'?"
    return (
        f"a rule is [pNN] CONDITION [by N %] [in PATTERN], CONDITION one of {', '.join(CONDITIONS)}"
    )

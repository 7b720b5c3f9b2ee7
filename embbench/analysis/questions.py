"""Questions and answers of a comparison, as values.

In: nothing. Out: `Question` and `Comparison`, which `compare` turns one into the other.
"""

from dataclasses import dataclass
from typing import Any, Literal

from embbench.analysis.exact_tests import Analysis
from embbench.analysis.percentiles import Percentile

Verdict = Literal[
    "faster", "slower", "no measurable difference", "too few trials", "not comparable"
]

MIN_EFFECT = 0.02
"""No difference under 2 % is called one, however sure: build, port and address layout move more."""


@dataclass(frozen=True, slots=True)
class Question:
    """Is the candidate faster or slower than the base, in one percentile of one cell?

    ``paired``: both sides were driven in the same rounds of one run. ``apart``: they were driven in
    two runs with nothing in common to hold them against, so that more is asked of a difference.
    ``refused`` says why the two may not be compared (unlike, INVALID); the answer is then "not
    comparable". ``key`` is echoed.
    """

    base: Percentile
    candidate: Percentile
    paired: bool
    refused: str = ""
    key: tuple[str, ...] = ()
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """The answer to one `Question`; ratios are candidate / base, shares are 0.1 for 10 %.

    ``verdict`` is None where none may be drawn, and ``reason`` says why, or what the verdict rests
    on. ``low`` to ``high`` is the 95 % interval of ``ratio``. ``p_value`` is corrected for the
    family, ``exact_p`` is the exact test's own. ``detectable`` is the smallest slowdown, as a
    share, that this comparison would have called in 8 of 10 repetitions.
    """

    key: tuple[str, ...]
    p: float
    verdict: Verdict | None
    reason: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    base_ns: float | None = None
    candidate_ns: float | None = None
    trials: tuple[int, int] = (0, 0)
    analysis: Analysis | None = None
    p_value: float | None = None
    exact_p: float | None = None
    min_effect: float = MIN_EFFECT
    detectable: float | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready values; what is absent is null."""
        return {name: getattr(self, name) for name in self.__slots__}

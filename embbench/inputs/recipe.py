"""The recipe: which words cost how many tokens, as the server counts them.

In: costs found by `calibrate`. Out: a frozen, JSON-ready value that goes into run.json, so that
every target of a run, and a resumed run, meets the same texts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from embbench.errors import RunError

CountedBy = Literal["tokenizer", "server"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """A text is an opener, then words, then at most one closer; its tokens are the sum of costs.

    ``openers`` cost a whole text of this one word, special tokens included. ``words`` hold their
    leading space, so that joining needs no separator. ``probes`` is the number of requests that
    finding the costs took.
    """

    counted_by: CountedBy
    openers: Mapping[str, int]
    words: Mapping[str, int]
    closers: Mapping[str, int]
    probes: int

    @property
    def shortest(self) -> int:
        """Tokens of the shortest text: special tokens and one more."""
        return min(self.openers.values())

    @property
    def overhead(self) -> int:
        """Special tokens a text, where the cheapest opener is one token (it nearly always is)."""
        return self.shortest - 1

    def to_json(self) -> dict[str, Any]:
        """JSON-ready values, for run.json."""
        return {
            "counted_by": self.counted_by,
            "openers": dict(self.openers),
            "words": dict(self.words),
            "closers": dict(self.closers),
            "probes": self.probes,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "Recipe":
        """The inverse of `to_json`. Raises `RunError` if a part is missing or unknown."""
        try:
            return cls(**raw)
        except TypeError as exc:
            raise RunError(f"the run's text recipe is not of this version ({exc})") from exc

"""Likeness: may two sides be compared at all?

In: two flat mappings of facts about a side (`FACTS` names them). Out: the `Difference`s, and
whether they refuse the comparison. What a comparison is about (the target's own
recipe) is not a fact here.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from embbench.errors import ConfigError

FACTS: dict[str, str] = {
    "schema": "schema version of the samples",
    "host": "host",
    "cpu": "CPU model and number of cores",
    "gpu": "GPU (UUID)",
    "driver": "GPU driver",
    "model": "model (digest of its files)",
    "engine": "engine arguments",
    "versions": "software versions",
    "batch": "inputs in a request",
    "isl": "tokens per input, as the server counts them",
    "encoding": "encoding",
    "load": "load",
    "request_bytes": "request bytes",
    "payload": "response bytes",
    "texts": "texts (seed and kind of the inputs)",
}
"""Facts that decide whether two sides are alike, by the name that ``--allow`` takes."""

BYTES_TOLERANCE = {"request_bytes": 1.01, "payload": 2.0}
"""How far two byte counts may be apart, as a factor, before the comparison is refused.

Requests carry the same texts. Responses hold the same vectors, but servers print a float with 9 or
with 17 digits (a factor of 1.7): that is told and not refused. Twice as much is another payload.
"""

TOLD_FROM = 1.01
"""Byte counts that differ by a larger factor than this are told."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact that is not alike; ``matters`` says whether it refuses the comparison."""

    fact: str
    base: Any
    candidate: Any
    matters: bool

    def __str__(self) -> str:
        """Such as ``GPU (UUID): GPU-1 against GPU-2``."""
        name, key = FACTS.get(self.fact.split(".")[0], self.fact), self.fact.partition(".")[2]
        where = f"{name}, {key}" if key else name
        return f"{where}: {_shown(self.base)} against {_shown(self.candidate)}"

    @property
    def allow_name(self) -> str:
        """What ``--allow`` takes to let it pass."""
        return self.fact.split(".")[0]


def differences(base: Mapping[str, Any], candidate: Mapping[str, Any]) -> tuple[Difference, ...]:
    """What is not alike, in the order of `FACTS`.

    A fact that one side does not hold differs: unknown is not equal. A fact that neither holds is
    not looked at. Facts that are mappings (engine arguments, versions) are compared key by key.
    """
    found: list[Difference] = []
    for fact in FACTS:
        left, right = base.get(fact), candidate.get(fact)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            found += (
                Difference(f"{fact}.{key}", left.get(key), right.get(key), matters=True)
                for key in sorted(left.keys() | right.keys())
                if left.get(key) != right.get(key)
            )
        elif fact in BYTES_TOLERANCE and left and right:
            apart = max(left, right) / min(left, right)
            if apart > TOLD_FROM:
                found.append(Difference(fact, left, right, apart > BYTES_TOLERANCE[fact]))
        elif left != right:
            found.append(Difference(fact, left, right, matters=True))
    return tuple(found)


def check_allowed(names: Collection[str]) -> None:
    """Raise `ConfigError` on a name that ``--allow`` does not know."""
    for name in names:
        if name not in FACTS:
            near = get_close_matches(name, FACTS, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(FACTS)}"
            raise ConfigError(f"--allow {name}: no such fact; {hint}")


def refusal(found: Collection[Difference], allow: Collection[str] = ()) -> str:
    """Why the comparison is refused, in one line that names each fact; empty if it is not."""
    against = [d for d in found if d.matters and d.allow_name not in allow]
    if not against:
        return ""
    names = dict.fromkeys(f"--allow {d.allow_name}" for d in against)
    return f"not alike in {'; '.join(map(str, against))} ({' '.join(names)} compares anyway)"


def allowed(found: Collection[Difference], allow: Collection[str]) -> str:
    """The report's first line where a difference that matters was let pass; empty if none was."""
    passed = [d for d in found if d.matters and d.allow_name in allow]
    if not passed:
        return ""
    return f"NOT LIKE FOR LIKE, allowed by hand: {'; '.join(map(str, passed))}"


def _shown(value: Any) -> str:
    if value is None:
        return "not known"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

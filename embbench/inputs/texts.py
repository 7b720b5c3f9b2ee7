"""The texts of a run: exactly the asked number of tokens each, and no two alike.

In: a `Recipe`, the run's seed, and what the plan needs. Out: texts, each a function of (recipe,
seed, tokens, namespace, index) and of nothing else, so that every target meets the same ones.
A namespace is a stretch of the numbers that texts of one length can spell; stretches never meet.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from embbench.errors import ConfigError
from embbench.inputs.recipe import Recipe
from embbench.inputs.spelling import Speller

CALIBRATE, GATE = "calibrate", "gate"
"""Namespaces that every run has, at every length, without asking."""

_CALIBRATE_TEXTS, _GATE_TEXTS = 64, 4096
_SPARSE = 1000  # when fewer than one number in so many is used, namespaces lie at hashed places
_BLOCK_WORDS = 500_000  # words spelled at a time: bounds the memory


@dataclass(frozen=True, slots=True)
class Demand:
    """``count`` texts of ``tokens`` tokens under the name ``namespace``."""

    namespace: str
    tokens: int
    count: int


@dataclass(frozen=True, slots=True)
class _Stretch:
    first: int
    count: int


class TextSource:
    """All texts of a run. Raises `ConfigError` for a length or a count that cannot be met."""

    def __init__(self, recipe: Recipe, seed: int, demands: Iterable[Demand] = ()) -> None:
        self._speller = Speller(recipe, seed)
        self._seed = seed
        self.shortest = recipe.shortest
        self._demands: dict[int, list[Demand]] = defaultdict(list)
        for demand in demands:
            self._demands[demand.tokens].append(demand)
        self._stretches: dict[int, Mapping[str, _Stretch]] = {}
        for tokens in self._demands:  # what cannot be met is said before anything is sent
            self._at(tokens)

    def at_least(self, tokens: int) -> int:
        """The smallest length, from ``tokens`` on, that a text can have: 2 may be too short."""
        length = max(tokens, self.shortest)
        while not self._speller.can_spell(length):
            length += 1
        return length

    def capacity(self, tokens: int) -> int:
        """How many different texts of this length there are (`ConfigError` if none)."""
        return self._speller.layout(tokens).capacity

    def available(self, tokens: int, namespace: str) -> int:
        """How many texts of this length are set aside for a namespace."""
        return self._at(tokens)[namespace].count

    def text(self, tokens: int, namespace: str, index: int) -> str:
        """One text; see `texts`."""
        return self.texts(tokens, namespace, index, 1)[0]

    def texts(self, tokens: int, namespace: str, start: int, count: int) -> list[str]:
        """Texts ``start`` to ``start + count - 1`` of a namespace, each of exactly ``tokens``."""
        stretch = self._at(tokens)[namespace]
        if start < 0 or start + count > stretch.count:
            raise ConfigError(
                f"texts {start} to {start + count - 1} of '{namespace}' at {tokens} tokens were "
                f"asked for, {stretch.count} are set aside; ask for longer texts"
            )
        capacity = np.uint64(self.capacity(tokens))
        rows = max(1, _BLOCK_WORDS // tokens)
        found: list[str] = []
        for low in range(start, start + count, rows):
            indices = np.arange(low, min(low + rows, start + count), dtype=np.uint64)
            found += self._speller.spell(tokens, (indices + np.uint64(stretch.first)) % capacity)
        return found

    def _at(self, tokens: int) -> Mapping[str, _Stretch]:
        """Where the namespaces of one length lie; a stretch may wrap around at the end."""
        if tokens not in self._stretches:
            capacity = self.capacity(tokens)
            counts = self._counts(tokens, capacity)
            if sum(counts.values()) * _SPARSE > capacity:  # little room: side by side
                firsts = accumulate(counts.values(), initial=0)
                self._stretches[tokens] = {
                    name: _Stretch(first, count)
                    for (name, count), first in zip(counts.items(), firsts, strict=False)
                }
            else:
                self._stretches[tokens] = self._hashed(tokens, counts, capacity)
        return self._stretches[tokens]

    def _counts(self, tokens: int, capacity: int) -> dict[str, int]:
        demands = self._demands.get(tokens, [])
        asked = sum(demand.count for demand in demands)
        if asked > capacity:
            raise ConfigError(
                f"the run needs {asked} different texts of {tokens} tokens and only {capacity} "
                "can be made; use a larger ISL or fewer requests"
            )
        spare = capacity - asked
        calibrate = min(_CALIBRATE_TEXTS, spare // 4)
        counts = {CALIBRATE: calibrate, GATE: min(_GATE_TEXTS, spare - calibrate)}
        for demand in demands:
            counts[demand.namespace] = counts.get(demand.namespace, 0) + demand.count
        return counts

    def _hashed(
        self, tokens: int, counts: Mapping[str, int], capacity: int
    ) -> Mapping[str, _Stretch]:
        """Places that depend on each name alone, moved on only where two would meet."""
        placed: dict[str, _Stretch] = {}
        for name, count in counts.items():
            salt = 0
            while name not in placed:
                key = f"{self._seed}/{tokens}/{name}/{salt}".encode()
                first = int.from_bytes(hashlib.blake2b(key, digest_size=16).digest()) % capacity
                if all(
                    (first - other.first) % capacity >= other.count
                    and (other.first - first) % capacity >= count
                    for other in placed.values()
                ):
                    placed[name] = _Stretch(first, count)
                salt += 1
        return placed

"""Spelling: a number and a length in tokens in, one text of exactly that length out.

A text is an opener, words that spell the number (lowest digit first, so that neighbours differ at
once and share no prefix that a server could have cached), words drawn by a hash, and a rest that
makes the length exact. Distinct numbers give distinct texts, whatever the hash draws.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from embbench.errors import ConfigError
from embbench.inputs.recipe import Recipe

ENOUGH = 2**48
"""No more numbers a length than this are needed; more would only cost words."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How texts of one length are built. ``capacity`` is how many numbers can be spelled."""

    openers: tuple[str, ...]
    digit_cost: int
    digits: int
    fill: int  # tokens behind the number
    capacity: int


@dataclass(frozen=True, slots=True)
class Rest:
    """Word costs, and a closer or "", that add up to one small number of tokens."""

    costs: tuple[int, ...]
    closer: str = ""


class Speller:
    """Spells numbers with the words of a recipe."""

    def __init__(self, recipe: Recipe, seed: int) -> None:
        self._recipe = recipe
        self._seed = seed
        self._layouts: dict[int, Layout] = {}
        openers, words, closers = list(recipe.openers), list(recipe.words), list(recipe.closers)
        # a text is first a row of positions in `_units`; position 0 is an empty slot
        self._units = ["", *openers, *words, *closers]
        self._position = {unit: 1 + i for i, unit in enumerate([*openers, *words, *closers])}
        self._words = np.array([self._position[word] for word in words])
        self._costs = np.array(list(recipe.words.values()))
        self._of_cost = {int(c): self._words[self._costs == c] for c in np.unique(self._costs)}

    def can_spell(self, tokens: int) -> bool:
        """Whether there is a text of this length."""
        return any(self._ways(tokens))

    def layout(self, tokens: int) -> Layout:
        """How texts of this length are built. Raises `ConfigError` if there can be none."""
        if tokens not in self._layouts:
            ways = list(self._ways(tokens))
            if not ways:
                raise ConfigError(self._why_not(tokens))
            self._layouts[tokens] = max(ways, key=lambda w: (min(w.capacity, ENOUGH), w.fill))
        return self._layouts[tokens]

    def spell(self, tokens: int, numbers: NDArray[np.uint64]) -> list[str]:
        """The texts of these numbers, each below ``layout(tokens).capacity``."""
        layout = self.layout(tokens)
        openers = np.array([self._position[opener] for opener in layout.openers])
        bases = [openers] + [self._of_cost[layout.digit_cost]] * layout.digits
        columns = []
        rest = numbers
        for base in bases:
            columns.append(base[rest % np.uint64(len(base))])
            rest = rest // np.uint64(len(base))
        rows = np.concatenate([np.stack(columns, axis=1), self._fill(layout.fill, numbers)], axis=1)
        units = self._units
        return ["".join([units[position] for position in row]) for row in rows.tolist()]

    def _ways(self, tokens: int) -> Iterator[Layout]:
        """Every layout for this length: openers of one cost, digits of one cost, how many."""
        openers_of: dict[int, list[str]] = defaultdict(list)
        for opener, cost in self._recipe.openers.items():
            openers_of[cost].append(opener)
        for open_cost, openers in openers_of.items():
            for digit_cost, words in self._of_cost.items():
                digits, capacity = 0, len(openers)
                while (fill := tokens - open_cost - digits * digit_cost) >= 0:
                    if self._can_fill(fill):
                        yield Layout(tuple(openers), digit_cost, digits, fill, capacity)
                    if capacity >= ENOUGH or len(words) == 1:
                        break
                    digits, capacity = digits + 1, capacity * len(words)

    def _why_not(self, tokens: int) -> str:
        shortest, overhead = self._recipe.shortest, self._recipe.overhead
        if tokens < shortest:
            return (
                f"no text has {tokens} tokens here: the shortest has {shortest}, of which "
                f"{overhead} are special tokens; ask for {shortest} or more"
            )
        return (
            f"no text of exactly {tokens} tokens can be made of words that cost "
            f"{', '.join(map(str, self._of_cost))} tokens; ask for another length"
        )

    # --- filling up: drawn words as far as any rest can be made, then that rest

    @cached_property
    def _step(self) -> int:
        """The common divisor of all word costs: what drawn words can never leave."""
        return int(np.gcd.reduce(self._costs))

    @cached_property
    def _rests(self) -> list[Rest | None]:
        """For each small number of tokens: what makes it with the fewest words, or None."""
        of_words: list[Rest | None] = [Rest(())]
        for total in range(
            1, 5 * max(self._of_cost) + max(self._recipe.closers.values(), default=0)
        ):
            ways = [
                Rest((*before.costs, cost))
                for cost in self._of_cost
                if cost <= total and (before := of_words[total - cost]) is not None
            ]
            of_words.append(min(ways, key=lambda way: len(way.costs), default=None))
        return [
            plain
            or next(
                (
                    Rest(before.costs, closer)
                    for closer, cost in self._recipe.closers.items()
                    if cost <= total and (before := of_words[total - cost]) is not None
                ),
                None,
            )
            for total, plain in enumerate(of_words)
        ]

    @cached_property
    def _reserve(self) -> int:
        """Drawn words stop at least this many tokens before the end.

        From here on every rest that is possible at all (in steps of `_step`) can be made.
        """
        possible = {t % self._step for t, rest in enumerate(self._rests) if rest}
        gaps = [t for t, r in enumerate(self._rests) if r is None and t % self._step in possible]
        reserve = gaps[-1] + 1 if gaps else 0
        if reserve + max(self._of_cost) > len(self._rests):
            raise ConfigError(
                f"words that cost {', '.join(map(str, self._of_cost))} tokens cannot be added up "
                "to every length; give the model's tokenizer instead"
            )
        return reserve

    def _can_fill(self, tokens: int) -> bool:
        beyond = max(0, tokens - len(self._rests) + 1)
        return self._rests[tokens - -(-beyond // self._step) * self._step] is not None

    def _fill(self, tokens: int, numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Positions of words, 0 where there is none; each row costs exactly ``tokens``."""
        room = max(0, tokens - self._reserve)
        width = room // min(self._of_cost)
        drawn = self._draw(numbers, 0, width, len(self._words))
        spent = np.cumsum(self._costs[drawn], axis=1)
        kept = spent <= room
        body = np.where(kept, self._words[drawn], 0)
        lefts = tokens - np.max(np.where(kept, spent, 0), axis=1, initial=0)
        tail = np.zeros((len(numbers), self._reserve + max(self._of_cost)), np.int64)
        for left in np.unique(lefts):
            rest, rows = self._rests[left], lefts == left
            assert rest is not None, f"a rest of {left} tokens cannot be made"
            for column, cost in enumerate(rest.costs):
                words = self._of_cost[cost]
                choice = self._draw(numbers[rows], width + column, 1, len(words))
                tail[rows, column] = words[choice[:, 0]]
            if rest.closer:
                tail[rows, len(rest.costs)] = self._position[rest.closer]
        return np.concatenate([body, tail], axis=1)

    def _draw(
        self, numbers: NDArray[np.uint64], column: int, columns: int, among: int
    ) -> NDArray[np.int64]:
        """Choices in [0, among), [numbers, columns]: a function of seed, number and column."""
        key = _mix(numbers ^ _mix(np.array([self._seed % 2**64], np.uint64)))
        at = np.arange(column + 1, column + columns + 1, dtype=np.uint64) * _GOLDEN
        high = _mix(key[:, None] + at[None, :]) >> np.uint64(32)
        return ((high * np.uint64(among)) >> np.uint64(32)).astype(np.int64)


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014); overflow is meant."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))

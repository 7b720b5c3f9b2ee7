"""The numpy engine: a small causal model of seeded weights, real work without a download.

In: texts or token ids. Out: hidden states 1024 wide for every token, pooled and normalised. A
token's state depends on its own text up to the token and on nothing else: each input is computed
by itself, so a vector does not change by a bit with its batch mates.
"""

from collections.abc import Sequence
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from embbench.reference.api import Input
from embbench.reference.engine import Embedded, EngineFacts, Floats, check_ids, check_length
from embbench.reference.options import Pool, ServeOptions
from embbench.reference.tokens import WordTokenizer

WIDTH = 1024
RANK = 16
MAX_TOKENS = 8192
CHUNK = 128
"""Tokens mixed in one product; a carried state links a chunk to all before it."""

_BITS = 11
_TABLES = 3
VOCABULARY = 1 << (_BITS * _TABLES)
"""Ids are 33-bit hashes: words do not collide, and one row of each table adds up to a token."""


class NumpyModel:
    """Embedding rows, a causal mix, a low-rank layer and tanh."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self._tokenizer = WordTokenizer(VOCABULARY)
        limit = options.max_model_len or MAX_TOKENS
        self._pool: Pool = options.pool or "last"
        self.facts = EngineFacts(
            options.model or "embbench-numpy", WIDTH, limit, dtype="float32", pool=self._pool
        )
        draw = np.random.default_rng(options.seed)
        self._tables = draw.standard_normal((_TABLES, 1 << _BITS, WIDTH), dtype=np.float32)
        self._down = draw.standard_normal((WIDTH, RANK), dtype=np.float32) / np.float32(32)
        self._up = draw.standard_normal((RANK, WIDTH), dtype=np.float32) / np.float32(4)
        self._mix = _causal_mix(CHUNK)
        # memory that is new for each input costs more than the arithmetic
        self._scratch = np.empty((2, CHUNK, WIDTH), np.float32)

    def embed(self, inputs: Sequence[Input], dimensions: int | None) -> Embedded:
        """Vectors of 1024 (or ``dimensions``), or tokens x 1024 numbers if pooling is off."""
        tokens = [self._tokens(position, item) for position, item in enumerate(inputs)]
        vectors = [self._vector(self.hidden(ids), dimensions) for ids in tokens]
        return Embedded(vectors, [len(ids) for ids in tokens])

    def hidden(self, ids: Sequence[int]) -> Floats:
        """Hidden states [tokens, 1024] of one input. One call at a time: the scratch is shared."""
        states = np.empty((len(ids), WIDTH), np.float32)
        carried = np.zeros(WIDTH, np.float32)
        array = np.asarray(ids, np.int64)
        for start in range(0, len(ids), CHUNK):
            rows = self._rows(array[start : start + CHUNK])
            count = len(rows)
            mixed = np.matmul(self._mix[:count, :count], rows, out=self._scratch[1][:count])
            mixed += carried
            # fading, so that the order of chunks matters too
            carried = mixed[-1] * np.float32(0.9)
            mixed /= np.sqrt(np.arange(start + 1, start + count + 1, dtype=np.float32))[:, None]
            out = states[start : start + count]
            np.matmul(np.tanh(mixed @ self._down), self._up, out=out)
            out += mixed
        return np.tanh(states, out=states)

    def _rows(self, ids: NDArray[np.int64]) -> Floats:
        rows, more = (scratch[: len(ids)] for scratch in self._scratch)
        for place, table in enumerate(self._tables):
            part = (ids >> (_BITS * place)) & ((1 << _BITS) - 1)
            # clip: all are in range, and only then numpy writes into what it is given
            np.take(table, part, axis=0, out=more if place else rows, mode="clip")
            if place:
                rows += more
        return rows

    def _tokens(self, position: int, item: Input) -> list[int]:
        if isinstance(item, str):
            ids = self._tokenizer.encode(item)
        else:
            ids = item
            check_ids(position, ids, VOCABULARY)
        check_length(position, len(ids), self.facts.max_model_len)
        return ids

    def _vector(self, hidden: Floats, dimensions: int | None) -> Floats:
        if self._options.pooling == "token":
            return hidden.reshape(-1)
        vector: Floats
        match self._pool:
            case "last":
                vector = hidden[-1]
            case "mean":
                vector = hidden.mean(axis=0)
            case _:
                assert_never(self._pool)
        vector = vector[:dimensions].copy()
        if self._options.normalise:
            vector /= np.sqrt(vector @ vector)
        return vector


def _causal_mix(size: int) -> Floats:
    """Lower-triangular weights that fall with distance, so that word order matters."""
    place = np.arange(size)
    distance = place[:, None] - place[None, :]
    return np.where(distance >= 0, 0.5 ** (distance / size), 0).astype(np.float32)

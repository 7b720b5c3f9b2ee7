"""Whose vectors these are: known texts within a target, and the same texts between targets.

In: vectors of texts that were asked twice, or of two targets. Out: `Known` vectors for the checks
of a trial, the `Pair` facts of two targets, and findings.

A prefix cache is why the sample of a trial's texts is embedded *after* the trial: asked before,
a text would be in the cache when its timed request comes. Asked afterwards it may itself be
answered from the cache, which tests the batch's vectors no less, since a prefix cache holds
states and not vectors. A server that caches whole answers would only repeat its fault; against
that stand the gate (texts of its own, first alone and then in a batch) and the other targets,
which meet the same texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embbench.findings import Finding
from embbench.payload.checks import cosines_of
from embbench.payload.wire import Matrix, norms_of

SKETCH_WIDTH: Final = 16
SKETCHED_VECTORS_MAX: Final = 1 << 16
"""A trial keeps sketches of about this many vectors at most: 4 MiB."""


@dataclass(frozen=True, slots=True)
class Known:
    """Vectors [k, dimension] of k texts of a trial, by request and position in the batch."""

    seq: NDArray[np.int64]
    item: NDArray[np.int64]
    vectors: Matrix
    source: str = "the same text alone"

    def of_request(self, seq: int) -> "Known":
        """The part of one request."""
        mask = self.seq == seq
        return Known(self.seq[mask], self.item[mask], self.vectors[mask], self.source)


def by_request(known: Sequence[Known]) -> dict[int, list[Known]]:
    """The known texts of each request that has some."""
    parts: dict[int, list[Known]] = {}
    for each in known:
        for seq in np.unique(each.seq).tolist():
            parts.setdefault(seq, []).append(each.of_request(seq))
    return parts


@dataclass(frozen=True, slots=True)
class Sketches:
    """A few numbers that stand for each vector of a trial, [requests, batch, SKETCH_WIDTH].

    The distance of two sketches is that of the vectors, to within about a third.
    """

    seq: NDArray[np.int64]
    values: NDArray[np.float32]


@cache
def _projection(dimension: int) -> NDArray[np.float32]:
    random = np.random.default_rng(dimension).standard_normal((dimension, SKETCH_WIDTH))
    projection: NDArray[np.float32] = (random / np.sqrt(SKETCH_WIDTH)).astype(np.float32)
    return projection


def sketch(matrix: Matrix) -> NDArray[np.float32]:
    """The sketch of each row, [n, SKETCH_WIDTH]."""
    values: NDArray[np.float32] = matrix @ _projection(matrix.shape[1])
    return values


def sketch_every(requests: int, batch: int) -> int:
    """Every how many requests are sketched: a rule of the work alone, equal for all targets."""
    return max(1, -(-requests * batch // SKETCHED_VECTORS_MAX))


@dataclass(frozen=True, slots=True)
class Pair:
    """Two targets on the same texts: how far apart their answers are."""

    a: str
    b: str
    texts: int
    cosine_min: float | None  # None: vectors of another shape
    norm_difference_max: float | None
    usage_difference: int | None  # tokens, summed over the texts; None if one does not tell
    same_work: bool
    what: str  # one sentence, empty if the work is the same

    def to_json(self) -> dict[str, Any]:
        """A row of the report's agreement table."""
        return {
            "base": self.a,
            "candidate": self.b,
            "texts": self.texts,
            "cosine_min": self.cosine_min,
            "norm_difference_max": self.norm_difference_max,
            "usage_difference": self.usage_difference,
            "same_work": self.same_work,
            "what": self.what,
        }

    def finding(self) -> Finding | None:
        """A failure of the pair, or None."""
        if self.same_work:
            return None
        do = "give both targets the same model, dtype, pooling and normalisation"
        return Finding("same-work", "fail", self.what, do, target=self.b)


def compare_targets(
    vectors: Mapping[str, Matrix],
    tokens: Mapping[str, int | None],
    *,
    cosine_min: float,
    norm_tolerance: float,
) -> list[Pair]:
    """Every pair of targets on the same texts: ``vectors[target]`` is [texts, dimension]."""
    return [
        _compare(a, b, vectors, tokens, cosine_min, norm_tolerance)
        for a, b in combinations(vectors, 2)
    ]


def _compare(
    a: str,
    b: str,
    vectors: Mapping[str, Matrix],
    tokens: Mapping[str, int | None],
    cosine_min: float,
    norm_tolerance: float,
) -> Pair:
    left, right = vectors[a], vectors[b]
    usage_a, usage_b = tokens.get(a), tokens.get(b)
    usage = None if usage_a is None or usage_b is None else usage_b - usage_a
    if left.shape != right.shape:
        what = (
            f"not the same work: {b} returns dimension {right.shape[1]}, {a} {left.shape[1]}"
            if len(left) == len(right)
            else f"not the same work: {len(right)} vectors from {b}, {len(left)} from {a}"
        )
        return Pair(a, b, min(len(left), len(right)), None, None, usage, False, what)
    cosines = cosines_of(left, right)
    norms = np.abs(norms_of(left) - norms_of(right))
    lowest, apart = float(cosines.min(initial=1.0)), float(norms.max(initial=0.0))
    reasons = []
    if lowest < cosine_min:
        reasons.append(f"cosine {lowest:.4f}, asked {cosine_min:g}")
    if apart > 2 * norm_tolerance:
        reasons.append(f"norms differ by {apart:.3g}")
    if usage:
        reasons.append(f"{usage:+d} tokens on {len(left)} texts")
    what = f"not the same work: {b} against {a}: {'; '.join(reasons)}" if reasons else ""
    return Pair(a, b, len(left), lowest, apart, usage, not reasons, what)


def compare_sketches(
    a: str, left: Sketches, b: str, right: Sketches, *, cosine_min: float, cell: str, trial: int
) -> list[Finding]:
    """Every sketched vector of two targets in one trial of the same work.

    A sketch is coarse, so only what is far outside the tolerance counts; that is enough for a
    vector that stands in the wrong place.
    """
    seqs, at_left, at_right = np.intersect1d(left.seq, right.seq, return_indices=True)
    if not len(seqs) or left.values.shape[1:] != right.values.shape[1:]:
        return []
    one, other = left.values[at_left], right.values[at_right]
    apart = np.linalg.norm(one - other, axis=2)
    limit = 3 * np.sqrt(2 * (1 - cosine_min)) * _scale(one)
    wrong = np.argwhere(apart > limit)
    if not len(wrong):
        return []
    row, item = (int(at) for at in wrong[0])
    nearest = int(np.linalg.norm(other[row] - one[row, item], axis=1).argmin())
    found_at = float(np.linalg.norm(other[row, nearest] - one[row, item]))
    if nearest != item and found_at <= limit:
        what = f"vectors permuted between {a} and {b}: input {item} came back as {nearest}"
    else:
        cosine = 1 - float(apart[row, item] / _scale(one)) ** 2 / 2
        what = f"{b} gives input {item} another vector than {a}: cosine about {cosine:.2f}"
    what += f"; {len(wrong)} of {apart.size} vectors, the first in request {int(seqs[row])}"
    request = int(seqs[row])
    do = "not the same work: do not compare these targets"
    return [Finding("same-work", "fail", what, do, b, cell, trial, request, item)]


def _scale(sketches: NDArray[np.float32]) -> float:
    """The typical norm of the vectors behind the sketches; 1 where they are normalised."""
    return float(np.sqrt((sketches.astype(np.float64) ** 2).sum(axis=2).mean()))

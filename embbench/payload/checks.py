"""What one answer must hold, and the sentence for each way to miss it.

In: a body, or the vectors read from it, and the `Expectation` of its cell. Out: `Flaw`s; an
answer without flaws of severity ``fail`` may be counted. Everything is vectorised over the batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from embbench.config.plan import Encoding
from embbench.findings import Finding, Severity
from embbench.payload.wire import Decoded, Matrix, WireError, looks_big_endian, norms_of


@dataclass(frozen=True, slots=True)
class Expectation:
    """What every answer of one cell of one target must be.

    ``dimension`` and ``model`` are what the gate saw (None: not known yet). ``normalised`` is
    false for a target that is meant to return other norms than 1; these must still be more than
    0. ``cosine_min`` is the least cosine of two vectors that are to be the same.
    """

    batch: int
    isl: int
    encoding: Encoding
    dimension: int | None = None
    model: str | None = None
    normalised: bool = True
    norm_tolerance: float = 1e-3
    cosine_min: float = 0.999


@dataclass(frozen=True, slots=True)
class Flaw:
    """One thing that is wrong with one answer; ``item`` is the input it concerns."""

    check: str
    severity: Severity
    what: str
    do: str = ""
    item: int | None = None

    def finding(self, target: str) -> Finding:
        """The flaw as a finding about ``target``."""
        return Finding(self.check, self.severity, self.what, self.do, target, item=self.item)


def check_response(
    answer: Decoded | WireError, expect: Expectation, keys: NDArray[np.uint64] | None = None
) -> list[Flaw]:
    """All flaws of one answer on its own; ``keys`` are the `row_keys`, where they are known."""
    if isinstance(answer, WireError):
        return [flaw_of(answer)]
    return [
        *_check_encoding(answer, expect),
        *check_norms(answer.matrix, expect, answer.encoding, answer.norms),
        *check_distinct_rows(answer.matrix, keys),
        *check_usage(answer.prompt_tokens, expect),
        *_check_model(answer.model, expect),
    ]


_ADVICE = {
    "per-token": "make the server pool (vLLM: the task must be 'embed')",
    "dimension": "make the server pool, and serve the same model everywhere",
    "dtype": "make the server send little-endian float32",
    "count": "the server must answer every input",
    "error-object": "see the server's log",
    "html": "is this the right URL, and is there a proxy in between?",
}


def flaw_of(error: WireError) -> Flaw:
    """An answer that could not be read.

    A refusal is only a warning here: it is a failed request, and counted as such elsewhere.
    """
    severity: Severity = "warn" if error.name == "refused" else "fail"
    return Flaw(error.name, severity, str(error), _ADVICE.get(error.name, ""), error.item)


def _check_encoding(answer: Decoded, expect: Expectation) -> list[Flaw]:
    if answer.encoding == expect.encoding:
        return []
    dimension = answer.matrix.shape[1]
    what = (
        f"encoding_format ignored: asked {expect.encoding}, got {answer.encoding} "
        f"(dimension {dimension})"
    )
    return [Flaw("encoding", "fail", what, f"measure this target with {answer.encoding}")]


def check_norms(
    matrix: Matrix,
    expect: Expectation,
    encoding: Encoding = "float",
    norms: NDArray[np.float64] | None = None,
) -> list[Flaw]:
    """Norm 1 within the tolerance, or, for un-normalised targets, more than 0.

    ``norms`` are those of the rows, where they are known.
    """
    norms = norms_of(matrix) if norms is None else norms
    least, greatest = span_of(norms)
    if 1 - least <= min(expect.norm_tolerance, 0.5) and greatest - 1 <= expect.norm_tolerance:
        return []
    zero = np.flatnonzero(norms < 1e-12)
    if len(zero):
        what = f"vector {zero[0]} is all zeros"
        if len(zero) > 1:
            what += f", and {len(zero) - 1} more of {len(norms)}"
        return [Flaw("zero", "fail", what, item=int(zero[0]))]
    off = np.flatnonzero(np.abs(norms - 1) > expect.norm_tolerance)
    if not expect.normalised or not len(off):
        return []
    low, high = float(norms.min()), float(norms.max())
    span = f"norm {low:.4g}" if np.isclose(low, high, 1e-3) else f"norm {low:.4g} to {high:.4g}"
    what = f"{span}: not normalised ({len(off)} of {len(norms)} vectors)"
    if encoding == "base64" and looks_big_endian(matrix):
        what = f"the values are big-endian float32 on the wire ({what})"
    elif _whole_numbers(matrix[off]):
        what = f"the values are whole numbers: quantised vectors ({what})"
    do = "set 'normalised: false' on the target if it is meant to be so"
    return [Flaw("norm", "fail", what, do, int(off[0]))]


def _whole_numbers(rows: Matrix) -> bool:
    """As int8 or uint8 quantisation gives."""
    return 2 < float(np.abs(rows).max()) <= 255 and bool((rows == np.rint(rows)).all())


def span_of(norms: NDArray[np.float64]) -> tuple[float, float]:
    """The least and the greatest; quicker than numpy's own for the rows of a batch."""
    told: list[float] = norms.tolist()
    return min(told, default=math.nan), max(told, default=math.nan)


def row_keys(matrix: Matrix) -> NDArray[np.uint64]:
    """A key for each row, equal for equal rows: 64 spread components, hashed."""
    step = max(1, matrix.shape[1] // 64)
    bits = matrix.view(np.uint32)[:, ::step].astype(np.uint64)
    keys: NDArray[np.uint64] = bits @ _odd(bits.shape[1])  # modulo 2**64
    return keys


@cache
def _odd(count: int) -> NDArray[np.uint64]:
    """The multipliers of `row_keys`."""
    odd: NDArray[np.uint64] = (
        np.random.default_rng(1).integers(1, 1 << 62, count, dtype=np.uint64) * 2 + 1
    )
    return odd


def check_distinct_rows(matrix: Matrix, keys: NDArray[np.uint64] | None = None) -> list[Flaw]:
    """Different texts, different vectors: no two rows are equal."""
    keys = row_keys(matrix) if keys is None else keys
    if len(set(keys.tolist())) == len(keys):
        return []
    values, counts = np.unique(keys, return_counts=True)
    same = np.flatnonzero(keys == values[counts.argmax()])
    what = f"same vector for different texts: inputs {same[0]} and {same[1]}"
    if len(same) > 2:
        what += f", and {len(same) - 2} more of {len(matrix)}"
    return [Flaw("distinct", "fail", what, item=int(same[1]))]


def check_usage(prompt_tokens: int | None, expect: Expectation) -> list[Flaw]:
    """The server's own token count against batch x ISL."""
    batch, isl = expect.batch, expect.isl
    if prompt_tokens is None:
        what = "no usage.prompt_tokens in the answer: the token count cannot be checked"
        return [Flaw("usage", "warn", what)]
    if prompt_tokens == batch * isl:
        return []
    do = "give the model's own tokenizer, so that texts have the asked length"
    each, rest = divmod(prompt_tokens, batch)
    if batch > 1 and prompt_tokens == isl:
        what = f"usage says {isl} tokens in all for {batch} inputs: it counts one of them"
    elif rest or each == 0:
        what = f"usage says {prompt_tokens} tokens, asked {batch} x {isl} = {batch * isl}"
    else:
        what = f"usage says {each} tokens an input, asked {isl}"
        if 0 < each - isl <= 2:
            what += ": special tokens counted"
        elif 0 < isl - each <= 2:
            what += ": special tokens not counted, or left out"
        elif each < isl:
            what += ": truncated, or counted in another way"
    return [Flaw("usage", "fail", what, do)]


def _check_model(model: str | None, expect: Expectation) -> list[Flaw]:
    if expect.model is None or model == expect.model:
        return []
    named = "no model" if model is None else f"model '{model}'"
    what = f"the answer names {named}, before load it was '{expect.model}'"
    return [Flaw("model", "fail", what, "is another server answering in between?")]


def unit_rows(matrix: Matrix) -> NDArray[np.float64]:
    """Rows scaled to norm 1, for cosines; a zero row stays zero."""
    rows = matrix.astype(np.float64)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms == 0, 1, norms)


def cosines_of(a: Matrix, b: Matrix) -> NDArray[np.float64]:
    """The cosine of each row of ``a`` with the same row of ``b``."""
    cosines: NDArray[np.float64] = np.einsum("ij,ij->i", unit_rows(a), unit_rows(b))
    return cosines


def check_content(
    matrix: Matrix,
    items: Sequence[int] | NDArray[np.int64],
    known: Matrix,
    cosine_min: float,
    source: str = "the same text alone",
) -> list[Flaw]:
    """Whether rows ``items`` of ``matrix`` are the ``known`` vectors of their texts."""
    rows = np.asarray(items, np.int64)
    if matrix.shape[1] != known.shape[1]:
        what = f"dimension {matrix.shape[1]} in the batch, {known.shape[1]} in {source}"
        return [Flaw("content", "fail", what)]
    if not (cosines_of(known, matrix[rows]) < cosine_min).any():
        return []
    cosines = unit_rows(known) @ unit_rows(matrix).T  # [known, batch]
    own = cosines[np.arange(len(rows)), rows]
    wrong = np.flatnonzero(own < cosine_min)
    flaws: list[Flaw] = []
    for at in wrong[:1]:
        item, best = int(rows[at]), int(cosines[at].argmax())
        more = f" ({len(wrong)} of {len(rows)} known texts)" if len(rows) > 1 else ""
        if best != item and cosines[at, best] >= cosine_min:
            what = f"vectors permuted: input {item} came back as {best}{more}"
        else:
            what = (
                f"input {item} is not the vector of its text: cosine {own[at]:.4f} with "
                f"{source}, asked {cosine_min:g}{more}"
            )
        flaws.append(Flaw("content", "fail", what, item=item))
    return flaws

"""One kept body of a trial: read, checked, and forgotten but for a few numbers.

In: a `KeptBody`, the `Expectation` of its cell, and vectors known of its texts. Out: `Checked`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embbench.load.kept_bodies import KeptBody
from embbench.payload.checks import (
    Expectation,
    Flaw,
    check_content,
    check_response,
    row_keys,
    span_of,
)
from embbench.payload.identity import Known, sketch
from embbench.payload.wire import Decoded, Matrix, WireError, decode
from embbench.results.samples import MEASURED


@dataclass(frozen=True, slots=True)
class Checked:
    """What is kept of one verified answer."""

    phase: int
    seq: int
    flaws: tuple[Flaw, ...]
    keys: NDArray[np.uint64]
    sketch: NDArray[np.float32] | None
    norms: tuple[float, float]
    prompt_tokens: int | None
    body_bytes: int
    gzip: bool

    def __reduce__(self) -> tuple[object, ...]:
        """As bytes: arrays of a few numbers are slow to pickle, and there is one such an answer."""
        sketch = None if self.sketch is None else (self.sketch.shape, self.sketch.tobytes())
        rest = (self.norms, self.prompt_tokens, self.body_bytes, self.gzip)
        return _checked, (self.phase, self.seq, self.flaws, self.keys.tobytes(), sketch, *rest)

    @property
    def refused(self) -> bool:
        """The server said no: a failed request, with no payload to be right or wrong."""
        return any(flaw.check == "refused" for flaw in self.flaws)

    @property
    def ok(self) -> bool:
        """Nothing is wrong with the payload."""
        return all(flaw.severity != "fail" for flaw in self.flaws)


def _checked(
    phase: int,
    seq: int,
    flaws: tuple[Flaw, ...],
    keys: bytes,
    sketch: tuple[tuple[int, ...], bytes] | None,
    *rest: Any,
) -> Checked:
    values = None if sketch is None else np.frombuffer(sketch[1], np.float32).reshape(sketch[0])
    return Checked(phase, seq, flaws, np.frombuffer(keys, np.uint64), values, *rest)


def decode_body(body: KeptBody, expect: Expectation) -> Decoded | WireError:
    """The vectors of one kept body, or why there are none."""
    try:
        return decode(
            body.payload,
            count=expect.batch,
            dimension=expect.dimension,
            status=body.status,
            content_type=body.content_type,
            gzip=body.gzip,
        )
    except WireError as error:
        return error


_NO_KEYS: Final = np.zeros(0, np.uint64)


def check_body(
    body: KeptBody, expect: Expectation, known: Mapping[int, Sequence[Known]], every: int
) -> Checked:
    """All checks of one kept body; every ``every``-th request is sketched.

    ``known`` are the known texts of each measured request that has some.
    """
    answer = decode_body(body, expect)
    keys, short, norms, tokens = _NO_KEYS, None, (np.nan, np.nan), None
    if isinstance(answer, WireError):
        flaws = check_response(answer, expect)
    else:
        matrix, of_rows = answer.matrix, row_keys(answer.matrix)
        flaws = check_response(answer, expect, of_rows)
        norms, tokens = span_of(answer.norms), answer.prompt_tokens
        if all(flaw.check not in ("zero", "distinct") for flaw in flaws):
            keys = of_rows
            flaws += _check_known(body, matrix, expect, known)
        sketched = body.phase == MEASURED and body.seq % every == 0
        if sketched and all(flaw.severity != "fail" for flaw in flaws):
            short = sketch(matrix)
    return Checked(
        body.phase,
        body.seq,
        tuple(flaws),
        keys,
        short,
        norms,
        tokens,
        len(body.payload),
        body.gzip,
    )


def _check_known(
    body: KeptBody, matrix: Matrix, expect: Expectation, known: Mapping[int, Sequence[Known]]
) -> list[Flaw]:
    """The known texts of this request, if there are any."""
    flaws: list[Flaw] = []
    for texts in known.get(body.seq, ()) if body.phase == MEASURED else ():
        flaws += check_content(matrix, texts.item, texts.vectors, expect.cosine_min, texts.source)
    return flaws

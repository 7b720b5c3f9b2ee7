"""One kept body of a trial: read, checked, and forgotten but for a few numbers.

In: a `KeptBody`, the `Expectation` of its cell, and vectors known of its texts. Out: `Checked`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embbench.bodies import KeptBody
from embbench.checks import Expectation, Flaw, check_content, check_response, norms_of, row_keys
from embbench.content import Known, sketch
from embbench.samples import MEASURED
from embbench.wire import Decoded, Matrix, WireError, decode


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

    @property
    def refused(self) -> bool:
        """The server said no: a failed request, with no payload to be right or wrong."""
        return any(flaw.check == "refused" for flaw in self.flaws)

    @property
    def ok(self) -> bool:
        """Nothing is wrong with the payload."""
        return all(flaw.severity != "fail" for flaw in self.flaws)


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


def check_body(body: KeptBody, expect: Expectation, known: Sequence[Known], every: int) -> Checked:
    """All checks of one kept body; every ``every``-th request is sketched."""
    answer = decode_body(body, expect)
    flaws = check_response(answer, expect)
    keys, short, norms, tokens = np.zeros(0, np.uint64), None, (np.nan, np.nan), None
    if isinstance(answer, Decoded):
        matrix = answer.matrix
        of_rows = norms_of(matrix)
        norms, tokens = (float(of_rows.min()), float(of_rows.max())), answer.prompt_tokens
        if all(flaw.check not in ("zero", "distinct") for flaw in flaws):
            keys = row_keys(matrix)
            flaws += _check_known(body, matrix, expect, known)
        fine = all(flaw.severity != "fail" for flaw in flaws)
        if fine and body.phase == MEASURED and body.seq % every == 0:
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
    body: KeptBody, matrix: Matrix, expect: Expectation, known: Sequence[Known]
) -> list[Flaw]:
    """The known texts of this request, if there are any."""
    flaws: list[Flaw] = []
    for each in known if body.phase == MEASURED else ():
        texts = each.of_request(body.seq)
        if texts is not None:
            flaws += check_content(
                matrix, texts.item, texts.vectors, expect.cosine_min, texts.source
            )
    return flaws

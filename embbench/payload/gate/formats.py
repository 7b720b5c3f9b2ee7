"""Gate checks on other ways to ask: base64, token ids, and fewer dimensions."""

import numpy as np

from embbench.payload.checks import check_content, check_norms, flaw_of, unit_rows
from embbench.payload.gate.session import Session
from embbench.payload.wire import Matrix, WireError


async def check_encodings(session: Session) -> None:
    """base64 is honoured, and holds the same float32 bits as the JSON numbers."""
    plan, text = session.plan, session.texts(session.isl, 1)
    assert session.first is not None
    if session.first[1].encoding != "float":
        what = "encoding_format ignored: asked float, got base64"
        session.add("float", "FAIL" if "float" in plan.encodings else "WARN", what)
        return
    wanted = "base64" in plan.encodings
    try:
        again = await session.vector(text[0])
        reply = await session.asker.ask(text, "base64")
        answer = reply.decode(1, session.dimension)
    except WireError as error:
        only_refused = error.name == "refused" and not wanted
        status, do = "WARN" if only_refused else "FAIL", flaw_of(error).do
        session.add("base64", "WARN" if status == "WARN" else "FAIL", str(error), do)
        return
    if answer.encoding != "base64":
        what = f"encoding_format ignored: asked base64, got floats (dimension {session.dimension})"
        session.add("base64", "FAIL" if wanted else "WARN", what, "measure float only")
        return
    session.base64_bytes = len(reply.body)
    _compare(session, answer.matrix, again.matrix)


def _compare(session: Session, base64: Matrix, again: Matrix) -> None:
    apart = float(np.abs(base64 - again).max())
    cosine = float((unit_rows(base64) @ unit_rows(again).T)[0, 0])
    if np.array_equal(base64, again):
        session.add("base64", "PASS", "float and base64 agree bit for bit in float32")
    elif np.array_equal(base64.byteswap(), again):
        what = "the base64 numbers are big-endian float32"
        session.add("base64", "FAIL", what, "make the server send little-endian float32")
    elif cosine < session.plan.cosine_min:
        what = f"float and base64 give other vectors for one text: cosine {cosine:.4f}"
        session.add("base64", "FAIL", what)
    elif not np.array_equal(again, session.alone[:1]):
        what = f"one text asked twice differs by up to {apart:.1e}: bits cannot be compared"
        session.add("base64", "WARN", what)
    else:
        what = f"float and base64 differ by up to {apart:.1e}: the JSON numbers are rounded"
        session.add("base64", "WARN", what)


async def check_token_ids(session: Session) -> None:
    """Token ids give the vector of their text, where the tokenizer is known."""
    if session.plan.tokenize is None:
        return
    text = session.texts(session.isl, 1)[0]
    try:
        reply = await session.asker.ask([session.plan.tokenize(text)])
        answer = reply.decode(1, session.dimension)
    except WireError as error:
        session.add("token ids", "WARN", f"token ids are not taken: {error}")
        return
    flaws = check_content(
        answer.matrix, [0], session.alone[:1], session.plan.cosine_min, "the text they spell"
    )
    session.judge("token ids", flaws, "token ids give the vector of their text")


async def check_dimensions(session: Session) -> None:
    """``dimensions`` is honoured, where the run asks for it, and its vectors are normalised."""
    asked = session.plan.dimensions
    if asked is None:
        return
    try:
        reply = await session.asker.ask(session.texts(session.isl, 1), dimensions=asked)
        answer = reply.decode(1)
    except WireError as error:
        what = f"dimensions={asked} is not supported: {error}"
        session.add("dimensions", "FAIL", what, "leave checks.dimensions out")
        return
    got = answer.matrix.shape[1]
    if got != asked:
        session.add("dimensions", "FAIL", f"dimensions={asked} ignored: dimension {got}")
        return
    flaws = check_norms(answer.matrix, session.plan.expect(1, session.isl, "float", asked))
    session.judge("dimensions", flaws, f"dimensions={asked} gives {asked} numbers of norm 1")

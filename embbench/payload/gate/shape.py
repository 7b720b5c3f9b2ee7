"""Gate checks on short texts: dimension, norm, usage, and texts alone against texts in company."""

import numpy as np

from embbench.payload.checks import (
    check_content,
    check_distinct_rows,
    check_norms,
    check_usage,
    cosines_of,
    unit_rows,
)
from embbench.payload.gate.session import Session, listed
from embbench.payload.wire import Matrix, WireError, norms_of

_SAME = 1 - 1e-9


async def check_dimension(session: Session) -> bool:
    """Inputs of several lengths: readable, and of one dimension."""
    lengths = sorted({session.source.at_least(2), *session.lengths})
    found: dict[int, int] = {}
    for tokens in lengths:
        try:
            reply = await session.asker.ask(session.texts(tokens, 1))
            answer = reply.decode(1)
        except WireError as error:
            if error.name == "per-token" and error.lengths:
                found[tokens] = error.lengths[0]
                continue
            session.fail("answer", error, f"one text of {tokens} tokens")
            return False
        found[tokens] = answer.matrix.shape[1]
        if tokens == session.isl:
            session.first = reply, answer
    session.add("answer", "PASS", f"texts of {listed(lengths)} tokens are answered")
    if len(set(found.values())) > 1:
        session.add("dimension", "FAIL", *_dimension_differs(found, session.isl))
        return False
    if session.first is None:
        session.add("dimension", "FAIL", "vectors are nested arrays: per-token output, no pooling")
        return False
    session.dimension = found[session.isl]
    session.add("dimension", "PASS", f"dimension {session.dimension} for {listed(lengths)} tokens")
    return True


def _dimension_differs(found: dict[int, int], isl: int) -> tuple[str, str]:
    short, long = min(found), isl if found[isl] != found[min(found)] else max(found)
    small, large = found[short], found[long]
    if large >= 2 * small:
        what = (
            f"dimension grows with input length ({small} for {short} tokens, {large} for {long}): "
            "per-token output, no pooling"
        )
        return what, "make the server pool (vLLM: the task must be 'embed')"
    told = ", ".join(f"dimension {size} for {tokens} tokens" for tokens, size in found.items())
    return f"dimension differs: {told}", "every input must get a vector of one length"


async def check_alone(session: Session) -> bool:
    """The sample, one text a request: norms, usage, and the model's name."""
    plan, vectors, tokens = session.plan, [], []
    for text in session.texts(session.isl, max(2, plan.sample)):
        try:
            answer = await session.vector(text)
        except WireError as error:
            session.fail("alone", error)
            return False
        vectors.append(answer.matrix)
        tokens.append(answer.prompt_tokens)
    session.alone = np.concatenate(vectors)
    told = [each for each in tokens if each is not None]
    session.tokens = sum(told) if len(told) == len(tokens) else None
    expect = plan.expect(1, session.isl, "float", session.dimension)
    norms = norms_of(session.alone)
    good = f"norm {norms.min():.6f} to {norms.max():.6f}"
    good += "" if plan.normalised else " (declared as not normalised)"
    session.judge("norm", check_norms(session.alone, expect), good)
    wrong = [flaws for each in tokens if (flaws := check_usage(each, expect))]
    good = f"usage says {session.isl} tokens for a text of {session.isl}"
    session.judge("usage", wrong[0] if wrong else [], good)
    _check_model(session)
    return True


def _check_model(session: Session) -> None:
    assert session.first is not None
    asked, named = session.asker.endpoint.model, session.first[1].model
    if named == asked:
        session.add("model", "PASS", f"the answer names model '{named}'")
    else:
        told = "no model" if named is None else f"model '{named}'"
        session.add("model", "WARN", f"the answer names {told}, asked '{asked}'")


async def check_batch(session: Session) -> None:
    """The sample among other texts, in two orders: count, usage, and whose vector is where.

    Two orders prove every position: a server that mixes up places mixes up other texts each time.
    """
    size = session.plan.batch
    if size is None:
        return
    order = np.random.default_rng(size).permutation(size)
    first = await _ask_batch(session, np.arange(size))
    second = await _ask_batch(session, order) if first is not None else None
    if first is None or second is None:
        return
    expect = session.plan.expect(size, session.isl, "float", session.dimension)
    flaws = check_norms(first, expect) or check_distinct_rows(first)
    if not session.judge("batch", flaws, f"{size} vectors for {size} texts, in two orders"):
        return
    least, count = session.plan.cosine_min, min(size, len(session.alone))
    places = np.argsort(order)
    flaws = (
        check_content(first, np.arange(count), session.alone[:count], least)
        or check_content(second, places[:count], session.alone[:count], least)
        or check_content(first, np.arange(size), second[places], least, "another batch")
    )
    lowest = float(cosines_of(first[:count], session.alone[:count]).min())
    good = f"a text has the same vector alone and among {size} (lowest cosine {lowest:.6f})"
    session.judge("content", flaws, good)


async def _ask_batch(
    session: Session, order: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> Matrix | None:
    size = len(order)
    texts = session.texts(session.isl, size)
    try:
        reply = await session.asker.ask([texts[i] for i in order])
        answer = reply.decode(size, session.dimension)
    except WireError as error:
        session.fail("batch", error, f"{size} texts", refusal_is_fine=True)
        return None
    if order[0] == 0:
        expect = session.plan.expect(size, session.isl, "float", session.dimension)
        usage = check_usage(answer.prompt_tokens, expect)
        session.judge("batch usage", usage, f"usage says {size} x {session.isl} tokens")
    return answer.matrix


def check_distinct(session: Session) -> bool:
    """Different texts, different vectors; and different enough for an order to be proven."""
    rows = unit_rows(session.alone)
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -1)
    highest = float(cosines.max())
    if highest > _SAME:
        one, other = (int(i) for i in np.argwhere(cosines > _SAME)[0])
        session.add("distinct", "FAIL", f"same vector for different texts: texts {one} and {other}")
        return False
    if highest >= session.plan.cosine_min:
        what = (
            f"different texts have nearly the same vector (cosine {highest:.6f}), so a wrong "
            "order cannot be seen"
        )
        session.add("distinct", "WARN", what, "raise checks.cosine_min")
    else:
        good = f"different texts have different vectors (highest cosine {highest:.3f})"
        session.add("distinct", "PASS", good)
    return True

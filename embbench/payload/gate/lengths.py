"""Gate checks on long texts: all of a text must count, and too much of it must be said."""

from embbench.payload.checks import unit_rows
from embbench.payload.gate.session import Session, listed
from embbench.payload.wire import WireError

_SAME = 1 - 1e-9


async def find_longest(session: Session) -> None:
    """How many tokens fit, if the plan or the server's list of models tells."""
    if session.limit is None:
        told = await session.asker.models()
        models = told.get("data") if isinstance(told, dict) else None
        for model in models if isinstance(models, list) else []:
            length = model.get("max_model_len") if isinstance(model, dict) else None
            if isinstance(length, int) and not isinstance(length, bool):
                session.limit = length
    if session.limit is not None:
        top = min(session.limit, session.plan.longest_max)
        fitting = (n for n in range(top, max(top - 16, 2), -1) if session.source.at_least(n) == n)
        session.longest = next(fitting, None)


async def check_truncation(session: Session) -> None:
    """The end of a text must matter, at the ISLs and at the longest that fits."""
    for tokens in session.lengths:
        text = session.texts(tokens, 1)[0]
        try:
            kept = await _deciding_tokens(session, text)
        except WireError as error:
            session.fail("truncation", error)
            return
        if kept is not None:
            what = (
                f"the first {kept} tokens decide the vector: silent truncation "
                f"(text of {tokens} tokens)"
            )
            session.add("truncation", "FAIL", what, "ask for a shorter ISL, or raise the limit")
            return
    good = f"the last word matters, at {listed(session.lengths)} tokens"
    session.add("truncation", "PASS", good)


async def _deciding_tokens(session: Session, text: str) -> int | None:
    """Tokens of the shortest beginning that has the whole text's vector; None: all of it."""
    words = text.split(" ")
    if len(words) < 3:
        return None
    whole = unit_rows((await session.vector(text)).matrix)
    tokens: dict[int, int | None] = {}

    async def same(count: int) -> bool:
        answer = await session.vector(" ".join(words[:count]))
        tokens[count] = answer.prompt_tokens
        return bool((unit_rows(answer.matrix) @ whole.T)[0, 0] > _SAME)

    if not await same(len(words) - 1):
        return None
    low, high = 1, len(words) - 1  # the same at high; not known at low
    while low < high:
        middle = (low + high) // 2
        if await same(middle):
            high = middle
        else:
            low = middle + 1
    return tokens.get(high) or high


async def check_over_long(session: Session) -> None:
    """More than fits: an error, or a truncation that usage admits."""
    if session.limit is None or session.limit > session.plan.longest_max:
        return
    tokens = session.source.at_least(session.limit + max(2, session.limit // 4))
    text = session.texts(tokens, 1)[0]
    try:
        told = (await session.vector(text)).prompt_tokens
        if told is not None and told <= session.limit:
            what = f"{tokens} tokens are cut to {told}, as usage says: declared truncation"
            session.add("over-long", "WARN", what)
        elif (kept := await _deciding_tokens(session, text)) is not None:
            what = f"the first {kept} of {tokens} tokens decide the vector: silent truncation"
            session.add("over-long", "FAIL", what, "make the server refuse what does not fit")
        else:
            what = f"{tokens} tokens are embedded, though {session.limit} are said to fit"
            session.add("over-long", "WARN", what)
    except WireError as error:
        if error.name == "refused":
            session.add("over-long", "PASS", f"{tokens} tokens are refused: {error}")
        else:
            session.fail("over-long", error)

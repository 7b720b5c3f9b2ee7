"""The gate on its own, against any running server: `embbench verify`.

In: an `Endpoint` and what is known of its model. Out: the same `GateResult` as before a run. Texts
of exact length come from the tokenizer or from the server's own counts; where neither can be had,
plain words serve, and the table says so.
"""

from dataclasses import replace
from pathlib import Path

from embbench.errors import TargetError
from embbench.inputs import TextSource, calibrate, open_tokenizer, recipe_from_tokenizer
from embbench.payload.ask import Asker
from embbench.payload.gate import GatePlan, GateResult, Row, Texts, run_gate
from embbench.targets.endpoint import Endpoint

EXIT_INVALID = 3


async def verify_endpoint(
    endpoint: Endpoint,
    plan: GatePlan,
    *,
    tokenizer: Path | None = None,
    seed: int = 1,
    timeout_s: float = 120.0,
) -> GateResult:
    """Run the gate without a run. Raises `TargetError` if nobody answers at all."""
    source: Texts
    doubt: Row | None = None
    try:
        if tokenizer is not None:
            spelled = open_tokenizer(tokenizer)
            plan = replace(plan, tokenize=lambda text: list(spelled.encode(text).ids))
            recipe = await recipe_from_tokenizer(tokenizer, plan.isls, seed)
        else:
            async with Asker(endpoint, timeout_s) as asker:
                if await asker.count_tokens(["a text"]) is None:
                    raise _NoUsageError("no usage.prompt_tokens in the answers")
                recipe = await calibrate(asker.count_tokens, plan.isls, seed)
        source = TextSource(recipe, seed)
    except _NoUsageError as error:
        do = "give the tokenizer, for texts of exact length"
        source, doubt = _PlainWords(), Row("usage", "WARN", str(error), do)
    except TargetError as error:
        source, doubt = _PlainWords(), Row("usage", "FAIL", str(error))
    result = await run_gate(endpoint, source, plan, timeout_s)
    return result if doubt is None else _doubtful(result, doubt)


class _NoUsageError(Exception):
    """The server does not count tokens."""


def exit_status(result: GateResult) -> int:
    """0, or 3 where a check failed."""
    return 0 if result.passed else EXIT_INVALID


def table(result: GateResult) -> list[tuple[str, str, str]]:
    """Check, status and sentence of each row; what to do is part of the sentence."""
    return [
        (row.check, row.status, f"{row.what}; {row.do}" if row.do else row.what)
        for row in result.rows
    ]


class _PlainWords:
    """Texts of about the asked length: a word a token, where tokens cannot be counted."""

    def at_least(self, tokens: int) -> int:
        return tokens

    def texts(self, tokens: int, namespace: str, start: int, count: int) -> list[str]:  # noqa: ARG002
        numbers = range(start, start + count)
        return [
            " ".join(str((n + 7) * (k + 3) * 7919 % 100_003) for k in range(max(1, tokens - 1)))
            for n in numbers
        ]


def _doubtful(result: GateResult, doubt: Row) -> GateResult:
    """Without exact texts nothing can be said about usage but that."""
    rows = [row for row in result.rows if row.check not in ("usage", "batch usage")]
    failed_early = any(row.check == "answer" and row.status == "FAIL" for row in rows)
    return replace(result, rows=(*rows, *([] if failed_early else [doubt])))

"""The state of one pass through the gate: who is asked, what was seen, and the rows so far."""

from collections.abc import Sequence

import numpy as np

from embbench.errors import TargetError
from embbench.payload.ask import Asker, Reply
from embbench.payload.checks import Flaw, flaw_of
from embbench.payload.gate.values import GatePlan, GateResult, Row, Status, Texts
from embbench.payload.wire import Decoded, Matrix, WireError


class Session:
    """One target, in the middle of its checks. Each check adds rows, and facts for later ones."""

    def __init__(self, asker: Asker, source: Texts, plan: GatePlan) -> None:
        self.asker, self.source, self.plan = asker, source, plan
        self.isl = plan.isls[0]
        self.rows: list[Row] = []
        self.limit = plan.longest  # tokens that fit, as far as is known
        self.longest: int | None = None  # ... and of which a text can be made
        self.first: tuple[Reply, Decoded] | None = None  # the answer to the first text
        self.dimension: int | None = None
        self.alone: Matrix = np.zeros((0, 0), np.float32)  # the sample, asked one by one
        self.tokens: int | None = None  # usage of the sample
        self.base64_bytes: int | None = None

    def texts(self, tokens: int, count: int) -> list[str]:
        """Texts of the gate at this length; of the shortest there are too few to move on."""
        first = self.plan.first_text if tokens in self.plan.isls else 0
        return self.source.texts(tokens, "gate", first, count)

    @property
    def lengths(self) -> list[int]:
        """The ISLs of the run, and the longest that fits."""
        return sorted({*self.plan.isls, *([self.longest] if self.longest else [])})

    async def vector(self, text: str) -> Decoded:
        """One text alone. Raises `WireError`."""
        return (await self.asker.ask([text])).decode(1, self.dimension)

    def add(self, check: str, status: Status, what: str, do: str = "") -> None:
        """One row."""
        self.rows.append(Row(check, status, what, do))

    def judge(self, check: str, flaws: Sequence[Flaw], good: str) -> bool:
        """A row for each flaw, or one that says what is good. True if nothing failed."""
        for flaw in flaws:
            self.add(check, "FAIL" if flaw.severity == "fail" else "WARN", flaw.what, flaw.do)
        if not flaws:
            self.add(check, "PASS", good)
        return not any(flaw.severity == "fail" for flaw in flaws)

    def fail(
        self, check: str, error: WireError, about: str = "", *, refusal_is_fine: bool = False
    ) -> None:
        """A row for an answer that could not be read."""
        if error.name == "connection" and not self.rows:
            endpoint = self.asker.endpoint
            raise TargetError(f"target '{endpoint.target}' at {endpoint.base_url}: {error}")
        flaw = flaw_of(error)
        status: Status = "WARN" if refusal_is_fine and error.name == "refused" else "FAIL"
        self.add(check, status, f"{flaw.what} ({about})" if about else flaw.what, flaw.do)

    def result(self) -> GateResult:
        """All rows and facts."""
        reply, answer = self.first or (None, None)
        if reply is not None and reply.coding == "gzip":
            what = "answers are compressed (gzip), unasked: never compared with plain ones"
            self.add("compression", "WARN", what, "switch compression off in the server")
        is_float = answer is not None and answer.encoding == "float"
        return GateResult(
            target=self.asker.endpoint.target,
            rows=tuple(self.rows),
            dimension=self.dimension,
            model=answer.model if answer else None,
            float_vector_bytes=len(reply.body) if reply and is_float else None,
            base64_vector_bytes=self.base64_bytes,
            chunked=reply is not None and reply.chunked,
            gzip=reply is not None and reply.coding == "gzip",
            reference=self.alone,
            reference_tokens=self.tokens,
        )


def listed(numbers: Sequence[int]) -> str:
    """As in "2, 80 and 512"."""
    words = [str(number) for number in numbers]
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))

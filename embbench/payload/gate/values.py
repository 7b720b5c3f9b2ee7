"""What goes into the gate and what comes out, as values."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from embbench.config.plan import Encoding
from embbench.findings import Finding
from embbench.payload.checks import Expectation
from embbench.payload.wire import Matrix

Status = Literal["PASS", "FAIL", "WARN"]


class Texts(Protocol):
    """Where the gate's texts come from: `embbench.inputs.TextSource`."""

    def at_least(self, tokens: int) -> int:
        """The smallest possible length from ``tokens`` on."""
        ...

    def texts(self, tokens: int, namespace: str, start: int, count: int) -> list[str]:
        """Texts of exactly ``tokens`` tokens."""
        ...


@dataclass(frozen=True, slots=True)
class GatePlan:
    """What the run will ask of the target, and how exact it must be.

    ``tokenize`` gives the ids that the server would see, where the tokenizer is known;
    ``longest`` the most tokens that fit (else ``/models`` is asked for it); of more than
    ``longest_max`` tokens no text is sent. ``sample`` texts are known afterwards. A server start
    that meets the gate again gets texts of its own if ``first_text`` is moved on.
    """

    isls: Sequence[int]
    batches: Sequence[int]
    encodings: Sequence[Encoding]
    normalised: bool = True
    norm_tolerance: float = 1e-3
    cosine_min: float = 0.999
    sample: int = 8
    dimensions: int | None = None
    longest: int | None = None
    longest_max: int = 8192
    tokenize: Callable[[str], list[int]] | None = None
    first_text: int = 0

    @property
    def batch(self) -> int | None:
        """What the gate asks for: the smallest batch of the run, at most 32; None if all are 1."""
        batches = [batch for batch in self.batches if batch > 1]
        return min(32, *batches) if batches else None

    def expect(
        self, batch: int, isl: int, encoding: Encoding, dimension: int | None
    ) -> Expectation:
        """What an answer of this shape must be."""
        return Expectation(
            batch,
            isl,
            encoding,
            dimension,
            None,
            self.normalised,
            self.norm_tolerance,
            self.cosine_min,
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    check: str
    status: Status
    what: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class GateResult:
    """What the gate found out about one target.

    ``reference`` [sample, dimension] are the vectors of the first texts of ``isls[0]``, the same
    texts for every target, and ``reference_tokens`` what usage said of them all together.
    ``*_vector_bytes`` is the size of an answer with one vector.
    """

    target: str
    rows: tuple[Row, ...]
    dimension: int | None = None
    model: str | None = None
    float_vector_bytes: int | None = None
    base64_vector_bytes: int | None = None
    chunked: bool = False
    gzip: bool = False
    reference: Matrix = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    reference_tokens: int | None = None

    @property
    def passed(self) -> bool:
        """No row says FAIL."""
        return all(row.status != "FAIL" for row in self.rows)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The rows that say FAIL or WARN, as findings."""
        return tuple(
            Finding(
                f"gate-{row.check.replace(' ', '-')}",
                "fail" if row.status == "FAIL" else "warn",
                row.what,
                row.do,
                self.target,
            )
            for row in self.rows
            if row.status != "PASS"
        )

    def to_json(self) -> dict[str, Any]:
        """The table and the facts as JSON-ready values; the vectors are left out."""
        facts = {
            name: getattr(self, name)
            for name in (
                "target",
                "passed",
                "dimension",
                "model",
                "float_vector_bytes",
                "base64_vector_bytes",
                "chunked",
                "gzip",
            )
        }
        return {**facts, "checks": [asdict(row) for row in self.rows]}

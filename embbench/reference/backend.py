"""What the HTTP side calls: an engine in the same process, or (frontend.py) one behind the hop.

In: the inputs of a valid request. Out: an `Answer` whose vectors can go onto the wire.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from embbench.reference.api import Input, WireVector
from embbench.reference.engine import Engine, EngineFacts, as_array


@dataclass(frozen=True, slots=True)
class Answer:
    """Vectors in the order of the inputs, tokens in all, and seconds by stage."""

    vectors: Sequence[WireVector]
    tokens: int
    seconds: Mapping[str, float]


class Backend(Protocol):
    """Raises RequestError where a request cannot be served."""

    facts: EngineFacts

    async def embed(self, inputs: Sequence[Input], dimensions: int | None) -> Answer: ...

    async def refresh_metrics(self) -> None: ...

    async def failure(self) -> str: ...

    async def close(self) -> object: ...


class LocalBackend:
    """The engine in this process: no hop."""

    def __init__(self, engine: Engine) -> None:
        self.facts = engine.facts
        self._engine = engine

    async def embed(self, inputs: Sequence[Input], dimensions: int | None) -> Answer:
        start_ns = time.perf_counter_ns()
        result = await self._engine.embed(inputs, dimensions)
        total_s = (time.perf_counter_ns() - start_ns) / 1e9
        vectors = [as_array(vector) for vector in result.vectors]
        seconds = {"engine": result.engine_s, "queue": total_s - result.engine_s}
        return Answer(vectors, sum(result.token_counts), seconds)

    async def refresh_metrics(self) -> None:
        """All counters are kept by the caller."""

    async def failure(self) -> str:
        return await self._engine.failure()

    async def close(self) -> None:
        await self._engine.close()

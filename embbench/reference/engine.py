"""The engine seam: what turns inputs into vectors, one request at a time.

In: the inputs of one request. Out: `Embedded`: one float32 vector an input, numpy or torch, still
unserialised, and the token counts. Engines that compute in one blocking call are `Model`s, run by
`ThreadedEngine` in a thread of their own so that the event loop stays free.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from embbench.reference.api import Input, RequestError
from embbench.reference.options import ServeOptions

Floats: TypeAlias = NDArray[np.float32]


class Vector(Protocol):
    """A 1-dimensional float32 array in host memory: numpy's, or torch's until it is serialised."""

    def tolist(self) -> Any: ...

    def __array__(self) -> NDArray[Any]: ...


def as_array(vector: Vector) -> Floats:
    """The vector as little-endian float32, without a copy where it is that already."""
    return np.asarray(vector, dtype="<f4")


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a loaded engine is: what it serves, and with which settings."""

    model: str
    dimension: int
    max_model_len: int
    dtype: str
    pool: str


@dataclass(frozen=True, slots=True)
class Embedded:
    """The vectors of one request in the order of its inputs, and how long the engine took."""

    vectors: Sequence[Vector]
    token_counts: Sequence[int]
    engine_s: float = 0.0


class Model(Protocol):
    """An engine that computes in one blocking call. Raises RequestError on bad inputs."""

    facts: EngineFacts

    def embed(self, inputs: Sequence[Input], dimensions: int | None) -> Embedded: ...


class Engine(Protocol):
    """What a server calls. Raises RequestError on inputs that the model cannot take."""

    facts: EngineFacts

    async def embed(self, inputs: Sequence[Input], dimensions: int | None) -> Embedded: ...

    async def failure(self) -> str: ...

    async def close(self) -> None: ...


class ThreadedEngine:
    """Runs a model in one thread: one request after the other, as one GPU would."""

    def __init__(self, model: Model, options: ServeOptions) -> None:
        self.facts = model.facts
        self._model = model
        self._options = options
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        # a daemon: a long batch must not hold up the end of the process
        Thread(target=self._run, name="engine", daemon=True).start()

    async def embed(self, inputs: Sequence[Input], dimensions: int | None) -> Embedded:
        future: Future[Embedded] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(self._embed(inputs, dimensions))
            except Exception as error:  # raised again where it is awaited
                future.set_exception(error)

        self._jobs.put(job)
        return await asyncio.wrap_future(future)

    def _run(self) -> None:
        while True:
            self._jobs.get()()

    def _embed(self, inputs: Sequence[Input], dimensions: int | None) -> Embedded:
        start_ns = time.perf_counter_ns()
        result = self._model.embed(inputs, dimensions)
        time.sleep(delay_s(self._options, len(inputs)))
        engine_s = (time.perf_counter_ns() - start_ns) / 1e9
        return Embedded(result.vectors, result.token_counts, engine_s)

    async def failure(self) -> str:
        """Never returns: the thread ends with the process."""
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        """Nothing to give back: the thread ends with the process."""


def delay_s(options: ServeOptions, count: int) -> float:
    """The known delay of a request of ``count`` inputs."""
    return (options.delay_ms_per_request + count * options.delay_ms_per_input) / 1e3


def check_length(position: int, tokens: int, limit: int) -> None:
    """Refuse an input that is longer than the model takes."""
    if tokens > limit:
        raise RequestError(
            400,
            f"input {position} has {tokens} tokens, the model takes at most {limit}",
            param="input",
            code="context_length_exceeded",
        )


def check_ids(position: int, ids: Sequence[int], vocabulary: int) -> None:
    """Refuse token ids that the model does not have."""
    if min(ids) < 0 or max(ids) >= vocabulary:
        raise RequestError(
            400, f"input {position} has a token id outside 0 to {vocabulary - 1}", param="input"
        )

"""The vllm engine: AsyncLLM in this process, as Dynamo's embedding worker runs it.

In: texts or token ids. Out: the tensors that vLLM returns, not yet serialised. All inputs of a
request are submitted at once; when one fails, the others are cancelled.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, assert_never

from vllm import PoolingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import TokensPrompt
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from embbench.errors import ConfigError, EmbbenchError
from embbench.reference.api import Input, RequestError
from embbench.reference.engine import Embedded, EngineFacts, check_ids, check_length, delay_s
from embbench.reference.options import ServeOptions

# what vLLM raises where a request is at fault: newer versions have a class of their own
_REFUSALS: tuple[type[Exception], ...] = (ValueError,)
with suppress(ImportError):
    from vllm.exceptions import VLLMClientError

    _REFUSALS = (ValueError, VLLMClientError)

_TASKS = {"embed": "embed", "token": "token_embed"}


class VllmEngine:
    """A running vLLM engine. Made inside the event loop that serves it."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        arguments = engine_arguments(options)
        try:
            self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
        except Exception as error:  # of any kind: of a model, an argument, a device
            why = str(error).strip().partition("\n")[0]
            raise EmbbenchError(f"vLLM did not start with model {options.model}: {why}") from error
        config = self._llm.model_config
        self._vocabulary = config.get_vocab_size()
        self._numbers = itertools.count()
        self._turn = asyncio.Lock()
        self.facts = EngineFacts(
            model=config.served_model_name or config.model,
            dimension=config.get_hidden_size(),
            max_model_len=config.max_model_len,
            dtype=str(config.dtype).removeprefix("torch."),
            pool=str(config.pooler_config.seq_pooling_type or "").lower(),
        )

    async def embed(self, inputs: Sequence[Input], dimensions: int | None) -> Embedded:
        """Vectors as vLLM pooled them, or per-token states if not pooled."""
        start_ns = time.perf_counter_ns()
        prompts = [self._prompt(position, item) for position, item in enumerate(inputs)]
        params = self._params(dimensions)
        name = f"embbench-{next(self._numbers)}"
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._encode(prompt, params, f"{name}-{position}"))
                    for position, prompt in enumerate(prompts)
                ]
        except ExceptionGroup as errors:
            raise _as_request_error(errors.exceptions[0]) from None
        outputs = [task.result() for task in tasks]
        await self._delay(len(inputs))
        vectors = [output.outputs.data.float().reshape(-1) for output in outputs]
        counts = [len(output.prompt_token_ids) for output in outputs]
        return Embedded(vectors, counts, (time.perf_counter_ns() - start_ns) / 1e9)

    async def _encode(self, prompt: Any, params: PoolingParams, name: str) -> Any:
        outputs = [output async for output in self._llm.encode(prompt, params, name)]
        return outputs[-1]

    def _prompt(self, position: int, item: Input) -> Any:
        if isinstance(item, str):
            return item
        check_ids(position, item, self._vocabulary)
        check_length(position, len(item), self.facts.max_model_len)
        return TokensPrompt(prompt_token_ids=item)

    def _params(self, dimensions: int | None) -> PoolingParams:
        match self._options.pooling:
            case "embed":
                # None leaves the model its own way, as the real servers do
                activation = None if self._options.normalise else False
                return PoolingParams(task="embed", use_activation=activation, dimensions=dimensions)
            case "token":
                return PoolingParams(task="token_embed", use_activation=False)
            case _:
                assert_never(self._options.pooling)

    async def _delay(self, count: int) -> None:
        seconds = delay_s(self._options, count)
        if seconds:
            async with self._turn:  # as the other engines: one request after the other
                await asyncio.sleep(seconds)

    async def failure(self) -> str:
        """Why vLLM's own process ended; waits until it does."""
        while not self._llm.errored:  # noqa: ASYNC110 (vLLM has no event to wait for)
            await asyncio.sleep(0.5)
        return "vLLM's engine process died"

    async def close(self) -> None:
        self._llm.shutdown()


def engine_arguments(options: ServeOptions) -> Mapping[str, Any]:
    """Arguments of AsyncEngineArgs; ``--engine-args`` has the last word. Raises ConfigError."""
    if options.model is None:
        raise ConfigError("model: the vllm engine needs one, a folder or a hub name")
    if options.model.startswith(("/", ".", "~")) and not Path(options.model).is_dir():
        raise ConfigError(f"model: {options.model}: no such folder")
    arguments: dict[str, Any] = {
        "model": options.model,
        "runner": "pooling",
        "dtype": options.dtype,
        "seed": options.seed,
        "enable_prefix_caching": False,
        "load_format": options.load_format,
    }
    if options.max_model_len is not None:
        arguments["max_model_len"] = options.max_model_len
    pooler: dict[str, Any] = {"task": _TASKS[options.pooling]}
    if options.pool is not None:
        pooler["seq_pooling_type"] = options.pool.upper()
    arguments["pooler_config"] = pooler
    given = {
        name.replace("-", "_"): value for name, value in json.loads(options.engine_args).items()
    }
    known = {field.name for field in fields(AsyncEngineArgs)}
    for name in given.keys() - known:
        near = get_close_matches(name, known, 1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise ConfigError(f"engine_args.{name}: unknown to this vLLM{hint}")
    return arguments | given


def _as_request_error(error: Exception) -> Exception:
    if isinstance(error, EngineDeadError):
        return RequestError(503, "vLLM's engine process died", code="worker_gone")
    if isinstance(error, _REFUSALS):
        return RequestError(400, str(error), param="input")
    return error

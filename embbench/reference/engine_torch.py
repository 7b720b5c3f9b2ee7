"""The torch engine: a transformers model with seeded random or real weights, on CPU or CUDA.

In: texts or token ids. Out: one float32 tensor an input, in host memory and not yet serialised.
Inputs are sorted by length and computed in passes of bounded size. A packed pass is one row of
concatenated inputs with attention inside each input only; a padded pass is a matrix that is filled
up on the right, where a causal model does not look.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, assert_never

import torch
from torch.nn import functional
from transformers import AttentionInterface

from embbench.reference.api import Input
from embbench.reference.engine import Embedded, EngineFacts, check_ids, check_length
from embbench.reference.options import ServeOptions
from embbench.reference.torch_model import ATTENTION, load_model


class TorchModel:
    """A loaded model. Raises ConfigError if there is none of that name."""

    def __init__(self, options: ServeOptions) -> None:
        torch.set_num_threads(options.threads)
        AttentionInterface.register(ATTENTION, attend)
        self._options = options
        self._model = load_model(options)
        limit = options.max_model_len or self._model.max_tokens
        self.facts = EngineFacts(
            self._model.name, self._model.dimension, limit, options.dtype, self._model.pool
        )

    def embed(self, inputs: Sequence[Input], dimensions: int | None) -> Embedded:
        """Vectors as wide as the model (or ``dimensions``), or per-token states if not pooled."""
        tokens = self._tokens(inputs)
        vectors: list[torch.Tensor] = [torch.empty(0)] * len(tokens)
        with torch.inference_mode():
            for positions in plan_passes(list(map(len, tokens)), self._options.max_batched_tokens):
                chosen = [tokens[position] for position in positions]
                rows = self._vectors(self._states(chosen), list(map(len, chosen)), dimensions)
                for position, row in zip(positions, rows, strict=True):
                    vectors[position] = row
        return Embedded(vectors, list(map(len, tokens)))

    def _tokens(self, inputs: Sequence[Input]) -> list[list[int]]:
        texts = [item for item in inputs if isinstance(item, str)]
        ids = [item for item in inputs if not isinstance(item, str)]
        for position, given in enumerate(ids):
            check_ids(position, given, self._model.vocabulary)
        tokens = self._model.encode(texts) if texts else ids
        for position, many in enumerate(tokens):
            check_length(position, len(many), self.facts.max_model_len)
        return tokens

    def _states(self, tokens: list[list[int]]) -> torch.Tensor:
        """Hidden states [tokens of all inputs, width] of inputs in order of their length."""
        lengths = [len(ids) for ids in tokens]
        if self._options.layout == "packed" and self._model.causal:
            places = torch.cat([torch.arange(length) for length in lengths])
            ids = torch.tensor([one for many in tokens for one in many])
            groups = [(length, len(list(same))) for length, same in groupby(lengths)]
            return self._run(ids[None], position_ids=places[None], embbench_groups=groups)[0]
        longest = lengths[-1]
        ids = torch.tensor([many + [0] * (longest - len(many)) for many in tokens])
        real = torch.arange(longest)[None] < torch.tensor(lengths)[:, None]
        # what fills up stands on the right: causal attention needs no mask to keep it out
        mask = {} if self._model.causal else {"attention_mask": real}
        return self._run(ids, **mask)[real.to(self._model.device)]

    def _run(self, ids: torch.Tensor, **arguments: Any) -> torch.Tensor:
        device = self._model.device
        moved = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value
            for name, value in arguments.items()
        }
        if self._model.causal:
            moved["use_cache"] = False
        states: torch.Tensor = self._model.network(ids.to(device), **moved).last_hidden_state
        return states

    def _vectors(
        self, states: torch.Tensor, lengths: list[int], dimensions: int | None
    ) -> Sequence[torch.Tensor]:
        """Rows in host memory: one copy from the device, then views of it."""
        if self._options.pooling == "token":
            return [row.reshape(-1) for row in states.float().cpu().split(lengths)]
        counts = torch.tensor(lengths, device=states.device)
        match self._model.pool:
            case "last":
                pooled = states[counts.cumsum(0) - 1].float()
            case "mean":
                pooled = torch.segment_reduce(states.float(), "mean", lengths=counts)
            case _:
                assert_never(self._model.pool)
        pooled = pooled[:, :dimensions]
        if self._options.normalise:
            pooled = functional.normalize(pooled, dim=-1)
        return list(pooled.cpu().contiguous())


def plan_passes(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Positions of the inputs of each pass, short ones first; a pass holds at least one input."""
    passes: list[list[int]] = []
    for position in sorted(range(len(lengths)), key=lengths.__getitem__):
        # counted as if padded: inputs come in order of their length
        if not passes or (len(passes[-1]) + 1) * lengths[position] > max_tokens:
            passes.append([])
        passes[-1].append(position)
    return passes


def attend(
    _module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    embbench_groups: Sequence[tuple[int, int]] | None = None,
    **_arguments: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention as transformers calls it: [rows, heads, tokens, width], heads third out.

    In a packed row the groups (length, count) say which runs of inputs of one length follow each
    other. Each run is attended to as a batch without any mask, so that the fast kernels apply.
    """
    if attention_mask is not None:
        raise ValueError("this attention is causal and takes no mask")
    if embbench_groups is None:
        return _causal(query, key, value, scaling=scaling).transpose(1, 2), None
    start, runs = 0, []
    for length, count in embbench_groups:
        end = start + length * count
        parts = (_as_batch(tensor[0, :, start:end], count) for tensor in (query, key, value))
        out = _causal(*parts, scaling=scaling)  # [count, heads, length, width]
        runs.append(out.transpose(1, 2).flatten(0, 1))
        start = end
    return torch.cat(runs)[None], None


def _as_batch(run: torch.Tensor, count: int) -> torch.Tensor:
    """[heads, count x length, width] as [count, heads, length, width], without a copy."""
    return run.unflatten(1, (count, -1)).transpose(0, 1)


def _causal(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scaling: float | None
) -> torch.Tensor:
    return functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=True
    )

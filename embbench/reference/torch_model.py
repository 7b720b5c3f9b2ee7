"""Loading for the torch engine: a model directory, or a built-in shape with random weights.

In: options. Out: a `LoadedModel` on its device, with what turns texts into its token ids.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer, Qwen3Config

from embbench.errors import ConfigError
from embbench.reference.options import Pool, ServeOptions
from embbench.reference.tokens import WordTokenizer

ATTENTION = "embbench"
"""The name under which the engine registers its attention with transformers."""

_HEADS = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
_WIDTHS = {"hidden_size": 1024, "intermediate_size": 3072}

SHAPES: dict[str, dict[str, int]] = {
    "qwen3-embedding-0.6b": {
        **_HEADS,
        **_WIDTHS,
        "num_hidden_layers": 28,
        "vocab_size": 151_669,
    },
    "one-layer": {**_HEADS, **_WIDTHS, "num_hidden_layers": 1, "vocab_size": 32_768},
    "tiny": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "vocab_size": 4096,
    },
}
"""Qwen3 models that need no files: random weights, and words as tokens."""

_MAX_TOKENS = 32_768


Encoder: TypeAlias = Callable[[Sequence[str]], list[list[int]]]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A network that is ready, and what the engine must know of it."""

    name: str
    network: Any
    encode: Encoder
    pool: Pool
    causal: bool
    device: torch.device

    dimension: int
    vocabulary: int
    max_tokens: int


def load_model(options: ServeOptions) -> LoadedModel:
    """Load what the options name. Raises ConfigError if it is no model, or one of another kind."""
    name = options.model or "one-layer"
    folder = Path(name)
    if name in SHAPES:
        config = Qwen3Config(max_position_embeddings=_MAX_TOKENS, **SHAPES[name])
        encode = _word_encoder(config.vocab_size)
    elif (folder / "config.json").is_file():
        with _one_line_errors(name):
            config = AutoConfig.from_pretrained(name, local_files_only=True)
            encode = _folder_encoder(name)
    else:
        raise ConfigError(
            f"model: {name} is neither a folder with a config.json nor one of {', '.join(SHAPES)}"
        )
    causal = config.model_type == "qwen3"
    if causal and set(config.layer_types) != {"full_attention"}:
        raise ConfigError(f"model: {name} has sliding-window layers, which are not supported")
    device = _device(options.device)
    return LoadedModel(
        name=name,
        network=_network(name, config, causal, device, options),
        encode=encode,
        pool=options.pool or _pool_of(folder),
        causal=causal,
        device=device,
        dimension=config.hidden_size,
        vocabulary=config.vocab_size,
        max_tokens=_max_tokens(folder, config),
    )


@contextmanager
def _one_line_errors(name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"model: {name} cannot be loaded: {reason}") from None


def _word_encoder(vocabulary: int) -> Encoder:
    words = WordTokenizer(vocabulary)
    return lambda texts: [words.encode(text) for text in texts]


def _folder_encoder(name: str) -> Encoder:
    tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=True)
    return lambda texts: tokenizer(list(texts))["input_ids"]


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"device: {name} cannot be used: {reason}") from None
    return device


def _network(
    name: str, config: Any, causal: bool, device: torch.device, options: ServeOptions
) -> Any:
    how = {
        "dtype": getattr(torch, options.dtype),
        "attn_implementation": ATTENTION if causal else "sdpa",
    }
    if name not in SHAPES and options.load_format == "auto":
        with _one_line_errors(name):
            network = AutoModel.from_pretrained(name, local_files_only=True, **how)
        return network.to(device).eval()
    if not causal:
        raise ConfigError(f"model: {name} is no Qwen3 model; random weights are made for those")
    # on no device first, so that no weight is drawn twice
    with torch.device("meta"):
        network = AutoModel.from_config(config, **how)
    network = network.to_empty(device=device).eval()
    network.rotary_emb = type(network.rotary_emb)(config).to(device)
    with torch.no_grad():
        _draw(network, options.seed, device)
    return network


def _draw(network: Any, seed: int, device: torch.device) -> None:
    """Random weights under which different texts give vectors in different directions.

    As in the generated model: wide norms of queries and keys make attention pick a few tokens, and
    a wide output lets those outweigh the end token.
    """
    draw = torch.Generator(device).manual_seed(seed)
    for name, weight in network.named_parameters():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            weight.fill_(2)
        elif name.endswith("norm.weight"):
            weight.fill_(1)
        elif name.endswith("embed_tokens.weight"):
            weight.normal_(0, 1, generator=draw)
        else:
            gain = 4 if name.endswith("o_proj.weight") else 1
            weight.normal_(0, gain * weight.shape[1] ** -0.5, generator=draw)


def _pool_of(folder: Path) -> Pool:
    """How the model itself pools, by its sentence-transformers file; last where it has none."""
    try:
        pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    except FileNotFoundError:
        return "last"
    if pooling.get("pooling_mode_mean_tokens"):
        return "mean"
    if pooling.get("pooling_mode_lasttoken"):
        return "last"
    raise ConfigError(f"model: {folder} pools in another way than last or mean; choose with --pool")


def _max_tokens(folder: Path, config: Any) -> int:
    limit: int = config.max_position_embeddings
    try:
        own = json.loads((folder / "sentence_bert_config.json").read_text())
    except FileNotFoundError:
        return limit
    return min(limit, own.get("max_seq_length") or limit)

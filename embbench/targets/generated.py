"""The generated model: a real architecture at little compute, written to disk from a seed.

In: a shape and a seed. Out: a folder that vLLM, Dynamo and transformers load like any embedding
model. One layer of Qwen3 at hidden size 1024 keeps vectors and payloads at their real size while
the servers' own overhead dominates the latency, as it does on a GPU. Writing it needs no torch.
"""

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embbench.errors import EmbbenchError

END = "<|endoftext|>"


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Qwen3 model; names follow its ``config.json``."""

    hidden_size: int = 1024
    num_hidden_layers: int = 1
    intermediate_size: int = 3072
    num_attention_heads: int = 16
    num_key_value_heads: int = 8
    head_dim: int = 128
    vocab_size: int = 320
    max_position_embeddings: int = 2048


SHAPES = {
    "one-layer": Shape(),
    "tiny": Shape(64, 2, 128, 4, 2, 16, 320, 512),
    # The real model's cost; its vocabulary is a look-up table, so only its size is kept.
    "qwen3-embedding-0.6b": Shape(1024, 28, 3072, 16, 8, 128, 151_669, 32_768),
}


def write_model(
    folder: Path, shape: str = "one-layer", *, seed: int = 0, weights: bool = True
) -> Path:
    """Write the model into a new ``folder`` and return it; an existing model there is kept.

    Equal shape and seed give equal bytes. Without ``weights`` the folder serves
    ``--load-format dummy``. The folder appears whole or not at all.
    """
    if shape not in SHAPES:
        raise EmbbenchError(f"no shape '{shape}'; shapes are: {', '.join(SHAPES)}")
    if (folder / "config.json").is_file():
        return folder
    sizes = SHAPES[shape]
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for name, content in _json_files(sizes).items():
            (beside / name).parent.mkdir(exist_ok=True)
            (beside / name).write_text(json.dumps(content, indent=2) + "\n")
        if weights:
            _write_safetensors(beside / "model.safetensors", sizes, seed)
        beside.chmod(0o755)
        beside.replace(folder)
    except OSError:
        if not (folder / "config.json").is_file():  # another writer may have been faster
            raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def _json_files(sizes: Shape) -> dict[str, Any]:
    end_id = 256
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": sizes.hidden_size,
        "num_hidden_layers": sizes.num_hidden_layers,
        "intermediate_size": sizes.intermediate_size,
        "num_attention_heads": sizes.num_attention_heads,
        "num_key_value_heads": sizes.num_key_value_heads,
        "head_dim": sizes.head_dim,
        "vocab_size": sizes.vocab_size,
        "max_position_embeddings": sizes.max_position_embeddings,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": end_id,
        "eos_token_id": end_id,
        "torch_dtype": "float32",
    }
    end = {"id": end_id, "content": END, "special": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [end | flags],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        },
        # As Qwen3-Embedding does: the end token is appended, and it is the one that is pooled.
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": END, "type_id": 0}},
            ],
            "pair": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 0}},
                {"SpecialToken": {"id": END, "type_id": 0}},
            ],
            "special_tokens": {END: {"id": END, "ids": [end_id], "tokens": [END]}},
        },
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        },
        "model": {
            "type": "BPE",
            "vocab": {symbol: byte for byte, symbol in enumerate(_byte_symbols())} | {END: end_id},
            "merges": [],
            "fuse_unk": False,
            "byte_fallback": False,
        },
    }
    return {
        "config.json": config,
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": sizes.max_position_embeddings,
            "eos_token": END,
            "pad_token": END,
            "padding_side": "left",
        },
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {
                "idx": 1,
                "name": "1",
                "path": "1_Pooling",
                "type": "sentence_transformers.models.Pooling",
            },
            {
                "idx": 2,
                "name": "2",
                "path": "2_Normalize",
                "type": "sentence_transformers.models.Normalize",
            },
        ],
        "1_Pooling/config.json": {
            "word_embedding_dimension": sizes.hidden_size,
            "pooling_mode_cls_token": False,
            "pooling_mode_mean_tokens": False,
            "pooling_mode_lasttoken": True,
            "include_prompt": True,
        },
    }


def _byte_symbols() -> list[str]:
    """GPT-2's printable stand-in for each byte value, the alphabet of byte-level tokenizers."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def _tensors(sizes: Shape) -> dict[str, tuple[tuple[int, ...], float, float]]:
    """Name to shape, mean and spread of the values.

    Wide norms of queries and keys make attention pick a few tokens, and a wide output lets those
    outweigh the end token, so that different texts point in different directions.
    """
    hidden, inner, width = sizes.hidden_size, sizes.intermediate_size, sizes.head_dim
    queries, keys = sizes.num_attention_heads * width, sizes.num_key_value_heads * width
    tensors: dict[str, tuple[tuple[int, ...], float, float]] = {
        "model.embed_tokens.weight": ((sizes.vocab_size, hidden), 0.0, 1.0)
    }
    for layer in range(sizes.num_hidden_layers):
        at = f"model.layers.{layer}."
        tensors |= {
            at + "input_layernorm.weight": ((hidden,), 1.0, 0.0),
            at + "self_attn.q_proj.weight": ((queries, hidden), 0.0, hidden**-0.5),
            at + "self_attn.k_proj.weight": ((keys, hidden), 0.0, hidden**-0.5),
            at + "self_attn.v_proj.weight": ((keys, hidden), 0.0, hidden**-0.5),
            at + "self_attn.o_proj.weight": ((hidden, queries), 0.0, 4 * queries**-0.5),
            at + "self_attn.q_norm.weight": ((width,), 2.0, 0.0),
            at + "self_attn.k_norm.weight": ((width,), 2.0, 0.0),
            at + "post_attention_layernorm.weight": ((hidden,), 1.0, 0.0),
            at + "mlp.gate_proj.weight": ((inner, hidden), 0.0, hidden**-0.5),
            at + "mlp.up_proj.weight": ((inner, hidden), 0.0, hidden**-0.5),
            at + "mlp.down_proj.weight": ((hidden, inner), 0.0, inner**-0.5),
        }
    return tensors | {"model.norm.weight": ((hidden,), 1.0, 0.0)}


def _write_safetensors(path: Path, sizes: Shape, seed: int) -> None:
    """The safetensors format by hand: header length, JSON header, then the raw values in order."""
    tensors = _tensors(sizes)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (shape, _, _) in tensors.items():
        begin, end = end, end + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    draw = np.random.Generator(np.random.PCG64(seed))
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape, mean, spread in tensors.values():
            values = np.full(shape, mean, dtype=np.float32)
            if spread:
                values += draw.standard_normal(shape, dtype=np.float32) * np.float32(spread)
            file.write(values.astype("<f4").tobytes())

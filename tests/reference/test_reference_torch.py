"""The torch engine: packed, padded and alone agree with plain transformers at any length."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embbench.errors import ConfigError
from embbench.reference.api import RequestError
from embbench.reference.options import Layout, Pool, ServeOptions
from embbench.targets.generated import write_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
engine_torch = pytest.importorskip("embbench.reference.engine_torch")

IDS = st.lists(st.integers(0, 4095), min_size=1, max_size=40)


def model(**values: Any) -> Any:
    return engine_torch.TorchModel(ServeOptions(engine="torch", model="tiny", **values))


def rows(engine: Any, inputs: list[Any], dimensions: int | None = None) -> list[Any]:
    return [np.asarray(vector) for vector in engine.embed(inputs, dimensions).vectors]


ENGINES = {
    (layout, pool): model(layout=layout, pool=pool, max_batched_tokens=64)
    for layout in get_args(Layout)
    for pool in get_args(Pool)
}


@settings(max_examples=25, deadline=None)
@given(st.lists(IDS, min_size=1, max_size=8))
def test_every_layout_gives_what_transformers_gives(batch: list[list[int]]) -> None:
    network = ENGINES["packed", "last"]._model.network
    plain = type(network)(network.config).eval()
    plain.load_state_dict(network.state_dict())
    plain.config._attn_implementation = "eager"
    for pool in get_args(Pool):
        with torch.inference_mode():
            states = [plain(torch.tensor([ids])).last_hidden_state[0].double() for ids in batch]
        pooled = [state[-1] if pool == "last" else state.mean(0) for state in states]
        expected = [(vector / vector.norm()).numpy() for vector in pooled]
        for layout in get_args(Layout):
            for seen, known in zip(rows(ENGINES[layout, pool], batch), expected, strict=True):
                assert np.abs(seen - known).max() < 1e-5


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 100))
def test_passes_hold_every_input_once_and_no_more_tokens_than_allowed(
    lengths: list[int], limit: int
) -> None:
    passes = engine_torch.plan_passes(lengths, limit)
    assert sorted(position for part in passes for position in part) == list(range(len(lengths)))
    for part in passes:
        assert len(part) == 1 or len(part) * max(lengths[position] for position in part) <= limit


def test_vectors_stay_tensors_and_are_as_wide_as_asked() -> None:
    result = model().embed(["hello world", "hi"], 16)
    assert all(isinstance(vector, torch.Tensor) for vector in result.vectors)
    assert result.token_counts == [3, 2]
    for vector in rows(model(), ["hello world", "hi"], 16):
        assert vector.shape == (16,)
        assert vector.dtype == np.float32
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)
    assert np.linalg.norm(rows(model(normalise=False), ["hi"])[0]) > 1.5


def test_without_pooling_every_token_is_there() -> None:
    one, other = rows(model(pooling="token"), ["hello world", "hi"])
    assert (one.shape, other.shape) == ((3 * 64,), (2 * 64,))
    pooled = rows(model(normalise=False), ["hello world"])[0]
    assert np.allclose(one.reshape(3, 64)[-1], pooled, atol=1e-6)


def test_the_seed_makes_the_weights_and_texts_make_the_vectors() -> None:
    texts = ["one two", "two one", "one three"]
    first, again, other = (np.stack(rows(model(seed=seed), texts)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert np.abs(first - other).max() > 0.01
    cosines = first @ first.T
    assert cosines[np.triu_indices(3, 1)].max() < 0.99


def test_bfloat16_is_near_float32() -> None:
    texts = ["one two three", "four"]
    for seen, known in zip(rows(model(dtype="bfloat16"), texts), rows(model(), texts), strict=True):
        assert seen.dtype == np.float32
        assert seen @ known > 0.97


def test_what_the_model_cannot_take_is_refused(tmp_path: Path) -> None:
    for bad in ([[4096]], [[-1]], [[1] * 9], ["x " * 8]):
        with pytest.raises(RequestError):
            model(max_model_len=8).embed(bad, None)
    with pytest.raises(ConfigError, match="neither a folder"):
        engine_torch.TorchModel(ServeOptions(engine="torch", model=str(tmp_path)))


def test_a_folder_is_loaded_with_its_tokenizer_and_weights(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "tiny")
    engine = engine_torch.TorchModel(ServeOptions(engine="torch", model=str(folder)))
    assert engine.embed(["hello"], None).token_counts == [6]  # five bytes and the end
    plain = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        state = plain(torch.tensor([[*b"hello", 256]])).last_hidden_state[0, -1]
    assert np.abs(rows(engine, [[*b"hello", 256]])[0] - (state / state.norm()).numpy()).max() < 1e-5
    dummy = engine_torch.TorchModel(
        ServeOptions(engine="torch", model=str(folder), load_format="dummy")
    )
    assert np.abs(rows(dummy, ["hello"])[0] - rows(engine, ["hello"])[0]).max() > 0.01

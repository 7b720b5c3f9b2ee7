"""The numpy engine and its tokenizer: causal, deterministic, and free of batch mates."""

import os
import subprocess
import sys
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embbench.reference.api import RequestError
from embbench.reference.engine_numpy import VOCABULARY, NumpyModel
from embbench.reference.options import ServeOptions
from embbench.reference.tokens import END, WordTokenizer

MODEL = NumpyModel(ServeOptions())
WORDS = st.text("abcdefg", min_size=1, max_size=4)
SENTENCES = st.lists(WORDS, min_size=1, max_size=12).map(" ".join)


def vector(text: str, model: NumpyModel = MODEL) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.asarray(model.embed([text], None).vectors[0], np.float32)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("hi", ["hi"]),
        ("hello world", ["hello", "world"]),
        ("  Hello,\tworld!\n", ["Hello", ",", "world", "!"]),
        ("don't stop", ["don", "'", "t", "stop"]),
        ("naïve 北京 x_1 3.5", ["naïve", "北京", "x_1", "3", ".", "5"]),
        ("😀😀", ["😀", "😀"]),
        (" ", []),
        ("\ud800", ["\ud800"]),
    ],
)
def test_tokens_are_hashes_of_words_and_marks_and_one_end(text: str, pieces: list[str]) -> None:
    def expected(piece: str) -> int:
        data = piece.encode("utf-8", "surrogatepass")
        return 1 + int.from_bytes(blake2b(data, digest_size=8).digest(), "little") % 998

    assert WordTokenizer(999).encode(text) == [*map(expected, pieces), END]


@settings(deadline=None)
@given(st.lists(SENTENCES, min_size=1, max_size=6))
def test_batch_mates_do_not_change_a_bit(texts: list[str]) -> None:
    together = MODEL.embed(texts, None)
    for text, row in zip(texts, together.vectors, strict=True):
        assert np.array_equal(vector(text), np.asarray(row))


@settings(deadline=None)
@given(SENTENCES, SENTENCES)
def test_other_texts_give_other_vectors(one: str, other: str) -> None:
    assert (one.split() == other.split()) == np.array_equal(vector(one), vector(other))


def test_word_order_and_the_first_of_many_words_show() -> None:
    """Across the chunks in which the engine mixes tokens, too."""
    words = [f"w{number}" for number in range(2000)]
    base = vector(" ".join(words))
    for one, other in ((0, 1), (0, 1999), (127, 128), (128, 256), (700, 701)):
        swapped = words.copy()
        swapped[one], swapped[other] = swapped[other], swapped[one]
        assert np.abs(vector(" ".join(swapped)) - base).max() > 1e-6
    blocks = words[128:256] + words[:128] + words[256:]
    assert np.abs(vector(" ".join(blocks)) - base).max() > 1e-6
    assert np.abs(vector(" ".join(["other", *words[1:]])) - base).max() > 1e-6


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, VOCABULARY - 1), min_size=2, max_size=300), st.data())
def test_a_state_depends_on_nothing_after_it(ids: list[int], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(ids)))
    assert np.allclose(MODEL.hidden(ids)[:cut], MODEL.hidden(ids[:cut]), atol=1e-5)


def test_pooling_is_what_it_says() -> None:
    ids = [5, 6, 7, 8]
    states = MODEL.hidden(ids).astype(np.float64)
    expected = {"last": states[-1], "mean": states.mean(axis=0)}
    for pool in ("last", "mean"):
        for normalise in (True, False):
            model = NumpyModel(ServeOptions(pool=pool, normalise=normalise))
            row = np.asarray(model.embed([ids], None).vectors[0])
            scale = np.linalg.norm(expected[pool]) if normalise else 1
            assert row.dtype == np.float32
            assert np.allclose(row, expected[pool] / scale, atol=1e-6)
    token = NumpyModel(ServeOptions(pooling="token")).embed([ids], None).vectors[0]
    assert np.array_equal(np.asarray(token).reshape(4, 1024), MODEL.hidden(ids))


def test_vectors_are_the_same_in_every_process() -> None:
    code = (
        "from embbench.reference.engine_numpy import NumpyModel\n"
        "from embbench.reference.options import ServeOptions\n"
        "row = NumpyModel(ServeOptions(seed=3)).embed(['one, two'], None).vectors[0]\n"
        "print(row.tobytes().hex())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("0", "1")
    }
    seeded = NumpyModel(ServeOptions(seed=3))
    assert seen == {vector("one, two", seeded).tobytes().hex()}
    assert not np.allclose(vector("one, two"), vector("one, two", seeded), atol=1e-2)


@pytest.mark.parametrize("ids", [[-1], [VOCABULARY], [1] * 5])
def test_ids_and_lengths_beyond_the_model_are_refused(ids: list[int]) -> None:
    model = NumpyModel(ServeOptions(max_model_len=4))
    with pytest.raises(RequestError) as refused:
        model.embed([[1, 2], ids], None)
    assert refused.value.status == 400
    assert "input 1" in refused.value.message

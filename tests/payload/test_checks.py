"""Checks of single answers: each sentence of the diagnosis, and what must pass."""

from typing import Any

import numpy as np
import pytest
from scripted_faults import vectors_of

from embbench.payload.checks import (
    Expectation,
    check_content,
    check_response,
    check_usage,
    row_keys,
)
from embbench.payload.wire import Decoded, WireError, norms_of

EXPECT = Expectation(15, 80, "float", 1024, "m")


def texts(count: int, start: int = 0) -> list[tuple[int, ...]]:
    return [(start + i, 5, 1) for i in range(count)]


def decoded(
    matrix: Any, tokens: int | None = 1200, encoding: Any = "float", model: str = "m"
) -> Decoded:
    rows = np.asarray(matrix, np.float32)
    return Decoded(rows, norms_of(rows), encoding, tokens, model, 1)


def words(answer: Decoded | WireError, expect: Expectation = EXPECT) -> list[str]:
    return [flaw.what for flaw in check_response(answer, expect)]


GOOD = vectors_of(texts(15), 1024)


def test_a_right_answer_has_no_flaw() -> None:
    assert words(decoded(GOOD)) == []


def test_norms_are_told_as_a_span() -> None:
    scale = np.linspace(0.71, 3.9, 15)[:, None]
    assert words(decoded(GOOD * scale)) == ["norm 0.71 to 3.9: not normalised (15 of 15 vectors)"]
    one = GOOD.copy()
    one[7] *= 3.7
    (flaw,) = check_response(decoded(one), EXPECT)
    assert (flaw.item, flaw.what) == (7, "norm 1 to 3.7: not normalised (1 of 15 vectors)")
    assert words(decoded(GOOD * 0.6)) == ["norm 0.6: not normalised (15 of 15 vectors)"]


def test_the_tolerance_holds_half_precision_and_no_more() -> None:
    assert words(decoded(GOOD.astype(np.float16))) == []
    assert words(decoded(GOOD * 1.0009)) == []
    assert len(words(decoded(GOOD * 1.0012))) == 1


def test_a_target_declared_as_not_normalised_may_have_any_norm_but_zero() -> None:
    free = Expectation(15, 80, "float", 1024, "m", normalised=False)
    assert words(decoded(GOOD * 3.7), free) == []
    zero = GOOD.copy()
    zero[[3, 5]] = 0
    for expect in (free, EXPECT):
        flaws = check_response(decoded(zero), expect)
        assert (flaws[0].what, flaws[0].item) == ("vector 3 is all zeros, and 1 more of 15", 3)


def test_norms_of_huge_and_tiny_values_are_right() -> None:
    huge = np.full((1, 4), 1e30, np.float32)
    assert norms_of(huge)[0] == pytest.approx(2e30, rel=1e-6)
    assert "not normalised" in words(decoded(GOOD * np.float32(1e25)))[0]


def test_quantised_and_big_endian_values_are_recognised() -> None:
    whole = np.rint(GOOD * 127 / np.abs(GOOD).max())
    assert words(decoded(whole))[0].startswith("the values are whole numbers: quantised vectors")
    swapped = decoded(GOOD.byteswap(), encoding="base64")
    if np.isfinite(swapped.matrix).all():
        expect = Expectation(15, 80, "base64", 1024, "m")
        assert "big-endian" in words(swapped, expect)[0]


def test_equal_vectors_are_found_whatever_their_number() -> None:
    twice = GOOD.copy()
    twice[9] = twice[4]
    (flaw,) = check_response(decoded(twice), EXPECT)
    assert flaw.what == "same vector for different texts: inputs 4 and 9"
    assert flaw.item == 9
    all_same = np.repeat(GOOD[:1], 15, axis=0)
    assert words(decoded(all_same)) == [
        "same vector for different texts: inputs 0 and 1, and 13 more of 15"
    ]


def test_keys_are_equal_for_equal_rows_only() -> None:
    many = vectors_of(texts(4000), 384)
    assert len(np.unique(row_keys(many))) == 4000
    assert (row_keys(many) == row_keys(many.copy())).all()
    assert len(np.unique(row_keys(many.astype(np.float16).astype(np.float32)))) == 4000
    assert len(np.unique(row_keys(many[:, :8]))) == 4000


@pytest.mark.parametrize(
    ("tokens", "sentence"),
    [
        (1215, "usage says 81 tokens an input, asked 80: special tokens counted"),
        (1185, "usage says 79 tokens an input, asked 80: special tokens not counted, or left out"),
        (960, "usage says 64 tokens an input, asked 80: truncated, or counted in another way"),
        (80, "usage says 80 tokens in all for 15 inputs: it counts one of them"),
        (1, "usage says 1 tokens, asked 15 x 80 = 1200"),
        (0, "usage says 0 tokens, asked 15 x 80 = 1200"),
        (1201, "usage says 1201 tokens, asked 15 x 80 = 1200"),
    ],
)
def test_usage_is_set_against_batch_times_isl(tokens: int, sentence: str) -> None:
    (flaw,) = check_usage(tokens, EXPECT)
    assert (flaw.what, flaw.severity) == (sentence, "fail")


def test_usage_that_is_right_or_missing() -> None:
    assert check_usage(1200, EXPECT) == []
    (flaw,) = check_usage(None, EXPECT)
    assert flaw.severity == "warn"


def test_an_ignored_encoding_is_told_with_the_dimension() -> None:
    expect = Expectation(15, 80, "base64", 1024, "m")
    assert words(decoded(GOOD), expect) == [
        "encoding_format ignored: asked base64, got float (dimension 1024)"
    ]


def test_another_model_in_the_answer_is_told() -> None:
    other = decoded(GOOD, model="other")
    assert words(other) == ["the answer names model 'other', before load it was 'm'"]


def test_a_refusal_is_a_warning_and_an_unreadable_answer_a_failure() -> None:
    (refused,) = check_response(WireError("refused", "status 503: busy"), EXPECT)
    assert refused.severity == "warn"
    (unreadable,) = check_response(WireError("cut", "cut"), EXPECT)
    assert unreadable.severity == "fail"


def test_content_says_where_a_vector_went() -> None:
    order = np.arange(15)
    order[[4, 9]] = [9, 4]
    (flaw,) = check_content(GOOD[order], [2, 4], GOOD[[2, 4]], 0.999)
    assert flaw.what == "vectors permuted: input 4 came back as 9 (1 of 2 known texts)"
    assert flaw.item == 4
    assert check_content(GOOD, [2, 4], GOOD[[2, 4]], 0.999) == []
    (flaw,) = check_content(GOOD, [4], -GOOD[[4]], 0.999)
    assert flaw.what.startswith("input 4 is not the vector of its text: cosine -1.0000")
    (flaw,) = check_content(GOOD[:, :512], [4], GOOD[[4]], 0.999)
    assert flaw.what == "dimension 512 in the batch, 1024 in the same text alone"


def test_content_does_not_depend_on_the_norm() -> None:
    assert check_content(GOOD * 3.7, range(15), GOOD, 0.999) == []

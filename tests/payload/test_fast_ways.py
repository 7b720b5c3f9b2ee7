"""Short cuts of decoding and checking: each gives what the long way gives, and is really taken."""

import base64
import json
import math
import pickle
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scripted_faults import vectors_of

from embbench.payload import wire
from embbench.payload.answer import Checked
from embbench.payload.checks import (
    Expectation,
    Flaw,
    check_content,
    check_distinct_rows,
    check_norms,
    row_keys,
    unit_rows,
)
from embbench.payload.wire import WireError, decode, norms_of
from embbench.payload.wire.numbers import may_be_nested, plain_base64

WIDTH = 4

any_floats = hnp.arrays(
    np.uint32,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=9),
    elements=st.integers(0, 2**32 - 1)
    | st.sampled_from([0, 1, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0x7FC00000]),
).map(lambda bits: bits.view(np.float32))
"""Every bit pattern, and often the largest, infinities, quiet and signalling NaN."""


# --- base64: plain answers


def text_of(row: np.ndarray[Any, Any]) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


def items_of(count: int) -> list[dict[str, Any]]:
    rows = np.arange(count * WIDTH, dtype=np.float32).reshape(count, WIDTH) - 3.5
    return [
        {"object": "embedding", "index": i, "embedding": text_of(row)} for i, row in enumerate(rows)
    ]


STRANGE: list[Any] = [
    *(None, True, False, 0, 1, 1.0, -1, 2**40, 2**64 - 1, "", "0", "AACAPw==", "é===", [], {}),
    *([0.5] * WIDTH, text_of(np.ones(WIDTH)), text_of(np.ones(WIDTH // 2)), text_of(np.ones(8))),
    *(text_of(np.ones(WIDTH))[:-1], text_of(np.ones(WIDTH)) + "\n", {"index": 0, "embedding": ""}),
    *(text_of(np.full(WIDTH, np.nan)), text_of(np.full(WIDTH, np.nan)).replace("/", "_")),
    *([text_of(np.ones(WIDTH))], "A" * 7, "A" * 24),
]
strange = st.sampled_from(STRANGE)


@st.composite
def odd_answers(draw: st.DrawFn) -> bytes:
    """Base64 answers with a few things changed, or none, in any layout."""
    items: list[Any] = items_of(draw(st.integers(0, 5)))
    doubled: list[tuple[str, str]] = []
    for _ in range(draw(st.integers(0, 2)) if items else 0):
        at = draw(st.integers(0, len(items) - 1))
        key = draw(st.sampled_from(["object", "index", "embedding", "more"]))
        match draw(st.sampled_from(["item", "set", "drop", "twice", "swap", "repeat", "order"])):
            case "item":
                items[at] = deepcopy(draw(strange))
            case "set" if isinstance(items[at], dict):
                items[at][key] = draw(strange)
            case "drop" if isinstance(items[at], dict):
                items[at].pop(key, None)
            case "twice" if isinstance(items[at], dict) and key in items[at]:
                items[at][f"{key}?"] = draw(strange)
                doubled.append((f'"{key}?"', f'"{key}"'))
            case "swap":
                other = draw(st.integers(0, len(items) - 1))
                items[at], items[other] = items[other], items[at]
            case "repeat":
                items[at] = deepcopy(items[draw(st.integers(0, len(items) - 1))])
            case "order" if isinstance(items[at], dict):
                items[at] = dict(reversed(items[at].items()))
    indent = draw(st.sampled_from([None, 1]))
    text = json.dumps({"data": items, "model": "m"}, indent=indent)
    for old, new in doubled:
        text = text.replace(old, new)
    if draw(st.booleans()):
        text = text.replace("/", "\\/")
    return text.encode()


def told(payload: bytes, **known: Any) -> tuple[Any, ...]:
    """All that `decode` tells of a body."""
    try:
        answer = decode(payload, **known)
    except WireError as error:
        return error.name, str(error), error.item, error.lengths
    return (
        answer.matrix.tobytes(),
        answer.matrix.shape,
        str(answer.matrix.dtype),
        answer.norms.tolist(),
        answer.encoding,
        answer.model,
    )


@settings(max_examples=600)
@given(odd_answers(), st.none() | st.integers(1, 5), st.sampled_from([None, WIDTH, 2, 8]))
def test_base64_is_read_as_by_the_long_way(
    payload: bytes, count: int | None, dimension: int | None
) -> None:
    short = told(payload, count=count, dimension=dimension)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "plain_base64", lambda *_: None)
        assert told(payload, count=count, dimension=dimension) == short


def plain(payload: bytes, dimension: int | None = WIDTH) -> Any:
    data = wire._parse(payload)["data"]
    return plain_base64(data, dimension, len(payload))


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("dimension", [None, WIDTH])
def test_right_answers_are_plain(indent: int | None, dimension: int | None) -> None:
    items = items_of(3)
    for each in (items, [dict(reversed(item.items())) for item in items]):
        matrix = plain(json.dumps({"data": each}, indent=indent).encode(), dimension)
        assert matrix.tobytes() == (np.arange(12, dtype="<f4") - 3.5).tobytes()


@pytest.mark.parametrize("key", ["object", "index", "embedding"])
@pytest.mark.parametrize("at", [0, 2])
def test_what_is_strange_in_one_item_is_not_plain(key: str, at: int) -> None:
    good = text_of(np.ones(WIDTH))
    for value in STRANGE:
        items = items_of(3)
        items[at][key] = value
        fine = key == "object" or (key == "embedding" and isinstance(value, str) and value == good)
        fine |= key == "index" and type(value) is int and value == at
        fine |= key == "embedding" and value == text_of(np.full(WIDTH, np.nan))  # found later
        assert (plain(json.dumps({"data": items}).encode()) is not None) == fine, value
    text = json.dumps({"data": items_of(3)}).replace(f'"{key}":', f'"{key}": 0, "{key}":')
    assert plain(text.encode()) is None


def test_much_else_in_the_body_is_left_to_the_long_way() -> None:
    items = items_of(3)
    items[1]["more"] = [0] * 100_000
    payload = json.dumps({"data": items}).encode()
    assert plain(json.dumps({"data": items_of(3)}).encode(), 1 << 40) is None  # no such memory
    assert plain(payload) is None
    assert decode(payload, count=3, dimension=WIDTH).matrix.shape == (3, WIDTH)


# --- numbers


@settings(max_examples=400)
@given(any_floats)
def test_norms_are_finite_where_all_of_the_row_is(matrix: np.ndarray[Any, Any]) -> None:
    with np.errstate(all="ignore"):
        exact = np.sqrt((matrix.astype(np.float64) ** 2).sum(axis=1))
    norms = norms_of(matrix)
    assert (np.isfinite(norms) == np.isfinite(matrix).all(axis=1)).all()
    usual = np.isfinite(norms) & (exact > 1e-15)  # below, float32 squares are subnormal
    assert norms[usual] == pytest.approx(exact[usual], rel=1e-5)


@settings(max_examples=300)
@given(any_floats)
def test_no_infinity_and_no_nan_gets_through(matrix: np.ndarray[Any, Any]) -> None:
    data = [{"index": i, "embedding": text_of(row)} for i, row in enumerate(matrix)]
    payload = json.dumps({"data": data}).encode()
    if np.isfinite(matrix).all():
        answer = decode(payload)
        assert answer.matrix.tobytes() == matrix.tobytes()
        assert (answer.norms == norms_of(matrix)).all()
    else:
        item = int(np.flatnonzero(~np.isfinite(matrix).all(axis=1))[0])
        with pytest.raises(WireError) as caught:
            decode(payload)
        assert (caught.value.name in ("not-finite", "dtype"), caught.value.item) == (True, item)


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_norms_go_where_their_rows_go(encoding: str) -> None:
    rows = np.diag([1.0, 2.0, 3.0]).astype(np.float32)
    vectors: list[Any] = rows.tolist() if encoding == "float" else [text_of(row) for row in rows]
    items = [{"index": i, "embedding": vector} for i, vector in enumerate(vectors)]
    answer = decode(json.dumps({"data": [items[2], items[0], items[1]]}).encode())
    assert answer.matrix.tolist() == rows.tolist()
    assert answer.norms.tolist() == [1, 2, 3]


@settings(max_examples=400)
@given(
    st.lists(
        st.floats(0, 3, width=32) | st.sampled_from([0.0, 1e-13, 1.0, 0.999, 1.001, 1e30]),
        max_size=6,
    ),
    st.sampled_from([1e-3, 0.1, 0.7, 2.0]),
    st.booleans(),
)
def test_a_flaw_of_the_norm_is_found_by_either_end(
    norms: list[float], tolerance: float, normalised: bool
) -> None:
    matrix = np.zeros((len(norms), 3), np.float32)
    matrix[:, 1] = norms
    expect = Expectation(15, 80, "float", 3, normalised=normalised, norm_tolerance=tolerance)
    exact = norms_of(matrix)
    zero, off = bool((exact < 1e-12).any()), bool((np.abs(exact - 1) > tolerance).any())
    checks = [flaw.check for flaw in check_norms(matrix, expect)]
    assert checks == (["zero"] if zero else ["norm"] if off and normalised else [])
    assert check_norms(matrix, expect, "float", exact) == check_norms(matrix, expect)


@given(any_floats, st.data())
def test_keys_are_the_hash_of_the_bits(matrix: np.ndarray[Any, Any], data: st.DataObject) -> None:
    width = matrix.shape[1]
    odd = np.random.default_rng(1).integers(1, 1 << 62, width, dtype=np.uint64) * 2 + 1
    bits = matrix.view(np.uint32).tolist()
    sums = [sum(b * int(o) for b, o in zip(row, odd, strict=True)) % 2**64 for row in bits]
    assert row_keys(matrix).tolist() == sums
    assert bool(check_distinct_rows(matrix)) == (len(set(sums)) < len(sums))
    twice = matrix[data.draw(st.lists(st.integers(0, len(matrix) - 1), min_size=1))]
    assert check_distinct_rows(twice) == check_distinct_rows(twice, row_keys(twice))
    assert len(twice) <= len(matrix) or check_distinct_rows(twice)


GOOD = vectors_of([(i, 5, 1) for i in range(8)], 64)


@settings(max_examples=200)
@given(st.permutations(range(8)), st.floats(0, 1), st.lists(st.integers(0, 7), unique=True))
def test_content_is_wrong_where_a_cosine_is(
    order: list[int], noise: float, items: list[int]
) -> None:
    """The cosines of all with all are made only for the words."""
    shifted = GOOD[order] + np.float32(noise / 64) * GOOD[::-1]
    known = GOOD[items]
    cosines = unit_rows(known) @ unit_rows(shifted).T
    wrong = bool((cosines[np.arange(len(items)), items] < 0.999).any())
    assert bool(check_content(shifted, items, known, 0.999)) == wrong


@settings(max_examples=50)
@given(st.lists(st.integers(0, 700_000), unique=True, max_size=8), st.integers(0, 8))
def test_brackets_are_counted_to_the_last(places: list[int], n: int) -> None:
    text = bytearray(b"1" * 700_001)  # more than two steps of the count
    for at in places:
        text[at] = ord("[")
    assert may_be_nested(bytes(text), n) == (len(places) > n + 1)


# --- what verifying processes send back


@given(any_floats, st.booleans(), st.booleans())
def test_what_was_checked_survives_the_way_between_processes(
    matrix: np.ndarray[Any, Any], sketched: bool, flawed: bool
) -> None:
    flaws = (Flaw("norm", "fail", "norm 2: not normalised", item=3),) if flawed else ()
    short = matrix if sketched else None
    before = Checked(1, 7, flaws, row_keys(matrix), short, (math.nan, 1.5), None, 9, True)
    after: Checked = pickle.loads(pickle.dumps(before))
    assert (after.phase, after.seq, after.flaws) == (1, 7, flaws)
    assert (after.prompt_tokens, after.body_bytes, after.gzip) == (None, 9, True)
    assert math.isnan(after.norms[0])
    assert after.norms[1] == 1.5
    assert after.keys.dtype == np.uint64
    assert after.keys.tolist() == before.keys.tolist()
    if short is None:
        assert after.sketch is None
    else:
        assert after.sketch is not None
        assert (after.sketch.shape, after.sketch.tobytes()) == (short.shape, short.tobytes())

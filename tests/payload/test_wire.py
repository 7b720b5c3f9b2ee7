"""Decoding: what goes in as float32 comes out bit for bit, and what is not that is named."""

import gzip
import json
import tracemalloc
from contextlib import suppress
from typing import Any

import numpy as np
import orjson
import pybase64
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from embbench.payload import wire
from embbench.payload.wire import Decoded, WireError, decode


def answer(matrix: np.ndarray[Any, Any], encoding: str = "float", **extra: Any) -> dict[str, Any]:
    """An answer as Python values; numbers as Python floats, which hold every float32 exactly."""
    data = [
        {
            "object": "embedding",
            "index": i,
            "embedding": pybase64.b64encode(row.astype("<f4").tobytes()).decode()
            if encoding == "base64"
            else [float(value) for value in row],
        }
        for i, row in enumerate(matrix)
    ]
    return {"object": "list", "data": data, "usage": {"prompt_tokens": 7}, "model": "m", **extra}


def body(value: Any) -> bytes:
    return json.dumps(value).encode()


def why(payload: bytes, **known: Any) -> WireError:
    with pytest.raises(WireError) as caught:
        decode(payload, **known)
    return caught.value


VECTORS = np.asarray([[0.25, -1.0, 3e-5], [1.0, 0.0, -0.0]], np.float32)

finite_floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
matrices = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=finite_floats
)


@given(matrices, st.sampled_from(["float", "base64"]), st.randoms())
def test_every_float32_survives_in_any_order_of_items(
    matrix: np.ndarray[Any, Any], encoding: str, random: Any
) -> None:
    value = answer(matrix, encoding)
    random.shuffle(value["data"])
    decoded = decode(body(value), count=len(matrix), dimension=matrix.shape[1])
    assert decoded.matrix.dtype == np.float32
    assert decoded.matrix.tobytes() == matrix.tobytes()  # minus zeros included
    assert decoded.encoding == encoding
    assert (decoded.prompt_tokens, decoded.model) == (7, "m")


@given(matrices)
def test_shortest_float32_digits_are_read_as_that_float32(matrix: np.ndarray[Any, Any]) -> None:
    rows = [{"index": i, "embedding": row} for i, row in enumerate(matrix)]
    text = orjson.dumps({"data": rows}, option=orjson.OPT_SERIALIZE_NUMPY)
    assert decode(text).matrix.tobytes() == matrix.tobytes()


@settings(max_examples=300)
@given(st.data())
def test_no_change_of_a_byte_gets_through_unless_it_is_still_an_answer(data: st.DataObject) -> None:
    """Any damage either raises a `WireError`, or what came out is what a strict parser reads."""
    encoding = data.draw(st.sampled_from(["float", "base64"]))
    text = bytearray(body(answer(VECTORS, encoding)))
    for _ in range(data.draw(st.integers(1, 3))):
        match data.draw(st.sampled_from(["set", "cut", "insert"])):
            case "set":
                text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
            case "cut":
                at = data.draw(st.integers(0, len(text) - 1))
                del text[at : at + data.draw(st.integers(1, 9))]
            case _:
                text.insert(data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 255)))
        if not text:
            break
    try:
        decoded = decode(bytes(text), count=2, dimension=3)
    except WireError:
        return
    reference = json.loads(bytes(text).decode("utf-8-sig"), parse_constant=pytest.fail)
    rows = {item["index"]: item["embedding"] for item in reference["data"]}
    for i in range(2):
        row = rows[i]
        if decoded.encoding == "base64":
            expected = np.frombuffer(pybase64.b64decode(row, validate=True), "<f4")
        else:
            assert all(type(value) in (int, float) for value in row)
            expected = np.asarray(row, np.float64).astype(np.float32)
        assert decoded.matrix[i].tobytes() == expected.tobytes()


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_named_failure(payload: bytes) -> None:
    error = why(payload)
    assert error.name
    assert str(error)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["data", "embedding", "index", "usage", "x"]), inner)
    ),
    max_leaves=20,
)


@settings(max_examples=200)
@given(json_values)
def test_any_json_is_an_answer_or_a_named_failure(value: Any) -> None:
    with suppress(WireError):
        assert np.isfinite(decode(body(value)).matrix).all()


def replaced(element: str) -> bytes:
    """The second vector with its middle number replaced by some text."""
    text = body(answer(VECTORS)).decode()
    assert "1.0, 0.0, -0.0" in text
    return text.replace("1.0, 0.0, -0.0", f"1.0, {element}, -0.0").encode()


@pytest.mark.parametrize(
    ("element", "words"),
    [
        ("null", "null in vector 1 (component 1)"),
        ('"0.5"', "string in vector 1 (component 1)"),
        ("true", "boolean in vector 1"),
        ("[0.5]", "array in vector 1"),
        ("[]", "array in vector 1"),
        ("{}", "object in vector 1"),
        ("NaN", "NaN in vector 1"),
        ("-Infinity", "-Infinity in vector 1"),
        ("1e39", "too large for float32"),
        ("1e999", "not valid JSON"),
        ("1" + "0" * 40, "number"),
        ("0x1p3", "not valid JSON"),
        ("1_000", "not valid JSON"),
        (".5", "not valid JSON"),
        ("05", "not valid JSON"),
        ("", "not valid JSON"),
    ],
)
def test_what_is_not_a_number_is_named_with_its_place(element: str, words: str) -> None:
    assert words in str(why(replaced(element)))


@pytest.mark.parametrize(
    ("element", "value"),
    [("0", 0.0), ("1", 1.0), ("-0", 0.0), ("5E-1", 0.5), ("0.1e+1", 1.0), ("1e-400", 0.0)],
)
def test_other_ways_to_print_a_number_are_read(element: str, value: float) -> None:
    assert decode(replaced(element)).matrix[1, 1] == value


def test_nested_arrays_are_not_flattened() -> None:
    """simdjson would read [[1],[2]] as [1, 2]."""
    for vector in ([[1.0], [2.0]], [[1.0, 2.0]], [1.0, [2.0]], [[], [1.0, 2.0]]):
        error = why(body({"data": [{"index": 0, "embedding": vector}]}))
        assert "array in vector 0" in str(error) or "nested arrays" in str(error)
    per_token = why(body({"data": [{"index": 0, "embedding": [[0.5] * 4] * 3}]}))
    assert (per_token.name, per_token.lengths) == ("per-token", (12,))
    assert "3 nested arrays of 4 numbers: per-token output, no pooling" in str(per_token)


def test_brackets_elsewhere_do_not_disturb() -> None:
    value = answer(VECTORS, notes=["[", [[1], []]], model="[m]")
    for item in value["data"]:
        item["tags"] = [["a"]]
    assert decode(body(value)).matrix.tobytes() == VECTORS.tobytes()


@pytest.mark.parametrize("key", ["data", "embedding", "index", "usage", "prompt_tokens"])
def test_a_key_that_is_there_twice_is_no_answer(key: str) -> None:
    """Parsers disagree on which of the two counts."""
    text = body(answer(VECTORS)).decode()
    at = text.index(f'"{key}": ')
    doubled = f'{text[:at]}"{key}": 0, {text[at:]}'
    assert f'"{key}" twice' in str(why(doubled.encode()))


def base64_body(*raw: bytes) -> bytes:
    rows = [
        {"index": i, "embedding": pybase64.b64encode(each).decode()} for i, each in enumerate(raw)
    ]
    return body({"data": rows})


def test_other_number_types_in_base64_are_named() -> None:
    row = np.full(1024, 1 / 32, np.float64)
    words = "8192 bytes for dimension 1024: float64 on the wire"
    assert str(why(base64_body(row.astype("<f8").tobytes()), dimension=1024)) == words
    for half in (row.astype("<f2").tobytes(), row.astype(">f4").tobytes()[:2048]):
        text = str(why(base64_body(half), dimension=1024))
        assert text.startswith("2048 bytes for dimension 1024: float16")
    shorter = np.full(512, 512**-0.5, "<f4").tobytes()
    assert "dimension 512, expected 1024" in str(why(base64_body(shorter), dimension=1024))
    assert "not a whole number of float32" in str(why(base64_body(b"\0" * 4095)))
    nan = np.asarray([1.0, np.nan], "<f4").tobytes()
    assert "NaN in vector 1 (component 1)" in str(why(base64_body(b"\0\0\x80?" * 2, nan)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("AACAPw", "bad length or padding"),
        ("AACAPw=", "bad length or padding"),
        ("AACA Pw==", "' '"),
        ("AACAPw==\n", "'\\n'"),
        ("AACA-w==", "url-safe"),
        ("AACAé===", "not base64"),
        ("", "empty"),
    ],
)
def test_bad_base64_is_named(text: str, words: str) -> None:
    payload = json.dumps({"data": [{"index": 0, "embedding": text}]}).encode()
    assert words in str(why(payload))


def test_counts_and_indices_are_named() -> None:
    def indexed(*indices: Any) -> bytes:
        return body({"data": [{"index": i, "embedding": [1.0]} for i in indices]})

    assert str(why(indexed(0), count=15)) == "1 of 15 vectors"
    assert str(why(indexed(0, 1, 2), count=2)) == "3 vectors for 2 inputs"
    twice = why(indexed(0, 1, 2, 3, 4, 5, 6, 3), count=8)
    assert (str(twice), twice.item) == ("index 3 twice, 7 missing", 7)
    assert str(why(indexed(0, 0, 0))) == "index 0 3 times, 1 and 1 more missing"
    assert "index 2 is outside 0 to 1" in str(why(indexed(1, 2)))
    assert "index -1 is outside" in str(why(indexed(0, -1)))
    for index in ("0", 0.0, None, True, [0]):
        assert '"index" of item 0' in str(why(indexed(index)))


def test_lengths_that_differ_are_named() -> None:
    rows = [{"index": i, "embedding": [0.5] * n} for i, n in enumerate((4, 4, 3))]
    error = why(body({"data": rows}))
    assert (str(error), error.item) == ("vector 2 has dimension 3, vector 0 has 4", 2)
    rows[1]["embedding"] = [0.5] * 320
    error = why(body({"data": rows[:2]}), dimension=4)
    assert str(error) == "vector 1 has dimension 320 = 80 x 4: per-token output, no pooling"


def test_the_envelope_is_checked() -> None:
    good = body(answer(VECTORS))
    page = b"<!DOCTYPE html><html><title>502 Bad Gateway</title></html>"
    assert '"502 Bad Gateway"' in str(why(page))
    assert "HTML" in str(why(page, content_type="text/html"))
    assert str(why(good, content_type="text/plain")).startswith("content type text/plain")
    assert "no content type" in str(why(good, content_type=""))
    assert "charset latin-1" in str(why(good, content_type='application/json; charset="latin-1"'))
    assert "UTF-16" in str(why(good.decode().encode("utf-16-le")))
    assert str(why(good, status=206)) == "status 206"
    refused = why(b'{"error": {"message": "batch too large", "code": 422}}', status=422)
    assert (refused.name, str(refused)) == ("refused", "status 422: batch too large")
    error = why(b'{"error": {"message": "CUDA out of memory"}}')
    assert "status 200: CUDA out of memory" in str(error)
    for kind in ("application/json", "Application/JSON ; charset=UTF-8", "application/x+json"):
        assert isinstance(decode(good, content_type=kind), Decoded)
    assert isinstance(decode(b"\xef\xbb\xbf \n" + good), Decoded)
    assert isinstance(decode(memoryview(good)), Decoded)


def test_a_body_that_ends_early_or_late_is_named() -> None:
    good = body(answer(VECTORS))
    for end in range(1, len(good)):
        assert why(good[:end]).name in ("cut", "syntax"), good[:end]
    assert why(good[: len(good) // 2]).name == "cut"
    assert "2 bytes after the end" in str(why(good + b"{}"))
    assert "nested deeper" in str(why(b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}"))


def test_gzip_is_unpacked_but_never_beyond_its_bound() -> None:
    good = body(answer(VECTORS))
    packed = gzip.compress(good)
    assert decode(packed, gzip=True).matrix.tobytes() == VECTORS.tobytes()
    assert "ends early" in str(why(packed[:-4], gzip=True))
    assert "damaged" in str(why(packed[:-8] + b"\1" * 8, gzip=True))
    assert "damaged" in str(why(good, gzip=True))
    assert "after the end of the gzip body" in str(why(packed + b"xx", gzip=True))
    bomb = gzip.compress(good[:-1] + b" " * 30_000_000 + b"}")
    tracemalloc.start()
    try:
        assert "unpacks to more than" in str(why(bomb, gzip=True, count=2, dimension=3))
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_a_failure_leaves_the_parser_usable() -> None:
    """Views of a document that a traceback keeps alive would forbid to parse another."""
    decode(body(answer(VECTORS)))
    parser, errors = wire._local.parser, []
    for payload in (replaced("null"), body([1]), replaced("[1]"), body({"data": [[]]})) * 3:
        errors.append(why(payload))
        assert decode(body(answer(VECTORS))).matrix.tobytes() == VECTORS.tobytes()
    assert len(errors) == 12  # all of them alive, with their tracebacks
    assert wire._local.parser is parser


def test_usage_of_a_wrong_type_is_named_and_missing_usage_is_not() -> None:
    for usage, words in (([], "an array"), ({"prompt_tokens": "7"}, "a string"), (7, "a number")):
        assert words in str(why(body(answer(VECTORS, usage=usage))))
    for silent in (None, {}, {"prompt_tokens": None}):
        assert decode(body(answer(VECTORS, usage=silent))).prompt_tokens is None

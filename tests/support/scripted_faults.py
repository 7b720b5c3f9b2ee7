"""The faults and oddities of the scripted server, by name: what is done to a right answer.

A fault works at one stage: on the vectors, on the JSON value of one embedding, on the list of
items, on the answer as an object, on its bytes, or on the HTTP answer around it. ``says`` is a
regular expression that a good diagnosis matches; an oddity has none, because it must pass.
"""

import gzip
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal

import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

LATENT = 256
Matrix = NDArray[np.float32]
Items = list[dict[str, Any]]
Stage = Literal["vectors", "value", "items", "answer", "bytes", "http", "texts"]
BOTH = ("float", "base64")


@dataclass(frozen=True, slots=True)
class Scope:
    """Which fault is on now, and in which item only (None: in all)."""

    fault: str | None = None
    item: int | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """What a fault may look at."""

    texts: list[tuple[int, ...]]
    number: int
    encoding: str
    model: str
    usage: int
    numbers: str
    scope: Scope
    previous: Matrix


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to answer wrongly (or oddly, if ``says`` is empty)."""

    stage: Stage
    apply: Callable[..., Any]
    says: str = ""
    encodings: tuple[str, ...] = BOTH


@cache
def _basis(dimension: int) -> NDArray[np.float64]:
    """Whole numbers, so that every sum is exact and does not depend on the batch."""
    return np.random.default_rng(7).integers(-1000, 1001, (LATENT, dimension)).astype(np.float64)


def vectors_of(texts: list[tuple[int, ...]], dimension: int) -> Matrix:
    """A unit vector for each list of token ids, [n, dimension]; equal ids, equal vector."""
    return _vectors_of(tuple(texts), dimension)


@lru_cache(maxsize=48)
def _vectors_of(texts: tuple[tuple[int, ...], ...], dimension: int) -> Matrix:
    hashed = b"".join(hashlib.shake_128(repr(ids).encode()).digest(LATENT) for ids in texts)
    latent = np.frombuffer(hashed, np.uint8).reshape(len(texts), LATENT) - 127.5
    vectors = latent @ _basis(dimension)
    unit: Matrix = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit


def render(matrix: Matrix, context: Context) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers of the answer with these vectors, the fault of ``context`` done."""
    fault = FAULTS.get(context.scope.fault or "")
    if context.scope.fault and fault is None:
        raise ValueError(f"unknown fault {context.scope.fault}")
    if fault and context.encoding not in fault.encodings:
        fault = None
    only = context.scope.item
    hit = range(len(matrix)) if only is None else range(only, min(only + 1, len(matrix)))
    if fault and fault.stage == "vectors":
        matrix = matrix.copy()
        matrix[hit.start : hit.stop] = fault.apply(matrix, context)[hit.start : hit.stop]
    items: Items = [
        {"object": "embedding", "index": i, "embedding": encode(row, context.encoding, context)}
        for i, row in enumerate(matrix)
    ]
    if fault and fault.stage == "value":
        for i in hit:
            items[i]["embedding"] = fault.apply(matrix[i], context, i)
    if fault and fault.stage == "items":
        items = fault.apply(items, context)
    usage = {"prompt_tokens": context.usage, "total_tokens": context.usage}
    answer: Any = {"object": "list", "data": items, "model": context.model, "usage": usage}
    if fault and fault.stage == "answer":
        answer = fault.apply(answer, context)
    body = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    if fault and fault.stage == "bytes":
        body = fault.apply(body)
    headers = {"Content-Type": "application/json"}
    if fault and fault.stage == "http":
        status, body, headers = fault.apply(200, body, headers)
        return int(status), bytes(body), dict(headers)
    return 200, body, headers


def encode(row: Any, encoding: str, context: Context) -> Any:
    """One vector as it stands in the JSON: an array of numbers, or a base64 string."""
    if encoding == "base64":
        return pybase64.b64encode(np.ascontiguousarray(row, "<f4").tobytes()).decode()
    return np.ascontiguousarray(row, np.float64 if context.numbers == "float64" else np.float32)


# --- on the vectors: [n, dimension] -> the same shape


def _unit(rows: Any) -> Matrix:
    unit: Matrix = (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)
    return unit


def _scaled(factor: float) -> Callable[[Matrix, Context], Matrix]:
    return lambda matrix, context: matrix * np.float32(factor)


def _norms_vary(matrix: Matrix, context: Context) -> Matrix:
    return matrix * np.linspace(0.71, 3.9, len(matrix), dtype=np.float32)[:, None]


def _with(value: float) -> Callable[[Matrix, Context], Matrix]:
    def change(matrix: Matrix, context: Context) -> Matrix:
        changed = matrix.copy()
        changed[:, 17] = value
        return changed

    return change


def _noisy(matrix: Matrix, context: Context) -> Matrix:
    noise = np.random.default_rng(context.number).standard_normal(matrix.shape)
    mixed = matrix + 0.3 * noise / np.sqrt(matrix.shape[1])
    return _unit(mixed)


def _random(matrix: Matrix, context: Context) -> Matrix:
    noise = np.random.default_rng(context.number + 1).standard_normal(matrix.shape)
    return _unit(noise)


def _tail_zeroed(matrix: Matrix, context: Context) -> Matrix:
    half = matrix.copy()
    half[:, matrix.shape[1] // 2 :] = 0
    return _unit(half)


def _swapped(matrix: Matrix, context: Context) -> Matrix:
    order = np.arange(len(matrix))
    first, second = (4, 9) if len(matrix) > 9 else (0, len(matrix) - 1)
    order[[first, second]] = order[[second, first]]
    return matrix[order]


def _padding_leaks(matrix: Matrix, context: Context) -> Matrix:
    """Each vector of a batch is mixed with the others': right alone, wrong in company."""
    mixed = matrix + 0.2 * matrix.sum(axis=0) / np.sqrt(len(matrix))
    return _unit(mixed)


def _stale(matrix: Matrix, context: Context) -> Matrix:
    """The vectors of the request before."""
    return context.previous if context.previous.shape == matrix.shape else matrix


def _quantised(matrix: Matrix, context: Context) -> Matrix:
    whole: Matrix = np.rint(matrix * 127 / np.abs(matrix).max()).astype(np.float32)
    return whole


def _bf16(matrix: Matrix, context: Context) -> Matrix:
    bits = np.ascontiguousarray(matrix, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    floats: Matrix = rounded.view(np.float32)
    return floats


# --- on the JSON value of one embedding: row, context, i -> value


def _token_states(row: Matrix, context: Context, i: int) -> Matrix:
    ids = context.texts[i]
    prefixes = [ids[: k + 1] for k in range(len(ids))]
    return vectors_of(prefixes, len(row)) * np.float32(5.0)


def _per_token(row: Matrix, context: Context, i: int) -> Any:
    return encode(_token_states(row, context, i).ravel(), context.encoding, context)


def _per_token_nested(row: Matrix, context: Context, i: int) -> Any:
    return np.ascontiguousarray(_token_states(row, context, i))


def _per_token_unless_short(row: Matrix, context: Context, i: int) -> Any:
    if len(context.texts[i]) < 10:
        return encode(row, context.encoding, context)
    return _per_token(row, context, i)


def _resized(change: int) -> Callable[..., Any]:
    def resize(row: Matrix, context: Context, i: int) -> Any:
        longer = np.concatenate([row, row[:1]])
        return encode(longer[: len(row) + change], context.encoding, context)

    return resize


def _cut_dimension(row: Matrix, context: Context, i: int) -> Any:
    half = row[: len(row) // 2]
    return encode(half / np.linalg.norm(half), context.encoding, context)


def _element(text: str) -> Callable[..., Any]:
    """One element of the array replaced by some JSON, valid or not."""

    def replace(row: Matrix, context: Context, i: int) -> Any:
        numbers = orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")
        numbers[len(row) // 2] = text.encode()
        return orjson.Fragment(b"[" + b",".join(numbers) + b"]")

    return replace


def _zeros_as(text: str) -> Callable[..., Any]:
    """Every seventh component is zero, printed in this way."""

    def replace(row: Matrix, context: Context, i: int) -> Any:
        changed = row.copy()
        changed[::7] = 0
        if context.encoding == "base64":
            return encode(_unit(changed), "base64", context)
        numbers = orjson.dumps(_unit(changed), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")
        numbers[::7] = [text.encode()] * len(numbers[::7])
        return orjson.Fragment(b"[" + b",".join(numbers) + b"]")

    return replace


def _rounded(row: Matrix, context: Context, i: int) -> Any:
    if context.encoding == "base64":
        return encode(row, "base64", context)
    return [round(float(value), 7) for value in row]


def _base64(dtype: str) -> Callable[..., Any]:
    return lambda row, context, i: pybase64.b64encode(row.astype(dtype).tobytes()).decode()


def _text_of_base64(change: Callable[[str], str]) -> Callable[..., Any]:
    return lambda row, context, i: change(encode(row, "base64", context))


def _shifted_bytes(row: Matrix, context: Context, i: int) -> str:
    raw = row.astype("<f4").tobytes()
    return pybase64.b64encode(raw[1:] + raw[:1]).decode()


def _other_encoding(row: Matrix, context: Context, i: int) -> Any:
    return encode(row, "float" if context.encoding == "base64" else "base64", context)


def _constant(value: Any) -> Callable[..., Any]:
    return lambda row, context, i: value


# --- on the items


def _indices(change: Callable[[int, int], Any]) -> Callable[[Items, Context], Items]:
    def apply(items: Items, context: Context) -> Items:
        return [{**item, "index": change(i, len(items))} for i, item in enumerate(items)]

    return apply


def _double_index(i: int, n: int) -> int:
    return min(3, n - 2) if i == min(7, n - 1) and n > 1 else i


def _renumbered(items: Items, context: Context) -> Items:
    return [{**item, "index": i} for i, item in enumerate(reversed(items))]


def _without(key: str, at: int = -1) -> Callable[[Items, Context], Items]:
    def apply(items: Items, context: Context) -> Items:
        items[at] = {k: v for k, v in items[at].items() if k != key}
        return items

    return apply


def _double_embedding(items: Items, context: Context) -> Items:
    raw = orjson.dumps(items[-1], option=orjson.OPT_SERIALIZE_NUMPY)
    other = orjson.dumps(items[0]["embedding"], option=orjson.OPT_SERIALIZE_NUMPY)
    doubled = orjson.Fragment(raw[:-1] + b',"embedding":' + other + b"}")
    return [*items[:-1], doubled]  # type: ignore[list-item]


def _last_is(value: Any) -> Callable[[Items, Context], Items]:
    return lambda items, context: [*items[:-1], value]


# --- on the answer


def _usage(change: Callable[[int, int], Any]) -> Callable[..., Any]:
    def apply(answer: dict[str, Any], context: Context) -> dict[str, Any]:
        tokens = change(context.usage, len(context.texts))
        return {**answer, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}

    return apply


def _put(**values: Any) -> Callable[..., Any]:
    return lambda answer, context: {**answer, **values}


def _drop(key: str) -> Callable[..., Any]:
    return lambda answer, context: {k: v for k, v in answer.items() if k != key}


def _data(change: Callable[[Items], Any]) -> Callable[..., Any]:
    return lambda answer, context: {**answer, "data": change(answer["data"])}


ERROR_OBJECT = {"error": {"message": "CUDA out of memory", "type": "server_error", "code": 500}}


# --- on the bytes


def _twice_data(body: bytes) -> bytes:
    return body[:-1] + b',"data":[]}'


def _pretty(body: bytes) -> bytes:
    return json.dumps(json.loads(body), indent=1).encode()


def _other_key_order(body: bytes) -> bytes:
    answer = json.loads(body)
    answer["data"] = [dict(reversed(item.items())) for item in answer["data"]]
    return json.dumps(dict(reversed(answer.items()))).encode()


def _escaped(body: bytes) -> bytes:
    """Keys and the model name in unicode escapes."""
    for key in (b"embedding", b"index", b"data", b"model"):
        escaped = b"".join(b"\\u%04x" % char for char in key)
        body = body.replace(b'"' + key + b'":', b'"' + escaped + b'":')
    return body


def _exponents(body: bytes) -> bytes:
    answer = json.loads(body)
    for item in answer["data"]:
        if isinstance(item["embedding"], list):
            numbers = ",".join(f"{value:.9E}" for value in item["embedding"])
            item["embedding"] = orjson.Fragment(f"[{numbers}]".encode())
    return orjson.dumps(answer)


# --- on the HTTP answer


def _page(status: int, body: bytes, headers: dict[str, str]) -> tuple[int, bytes, dict[str, str]]:
    page = b"<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head><body>nginx</body>"
    return status, page, {"Content-Type": "text/html"}


def _typed(content_type: str) -> Callable[..., Any]:
    return lambda status, body, headers: (status, body, {"Content-Type": content_type})


def _gzipped(change: Callable[[bytes], bytes] = bytes) -> Callable[..., Any]:
    def apply(status: int, body: bytes, headers: dict[str, str]) -> Any:
        packed = change(gzip.compress(body, 1, mtime=0))
        return status, packed, {**headers, "Content-Encoding": "gzip"}

    return apply


def _bomb(status: int, body: bytes, headers: dict[str, str]) -> Any:
    packed = gzip.compress(body[:-1] + b" " * 40_000_000 + b"}", 1, mtime=0)
    return status, packed, {**headers, "Content-Encoding": "gzip"}


def _event_stream(status: int, body: bytes, headers: dict[str, str]) -> Any:
    return status, b"data: " + body + b"\n\n", {"Content-Type": "text/event-stream"}


FLOAT, BASE64 = ("float",), ("base64",)
NOT_NORMALISED = r"norms? .*not normalised"
OTHER_VECTOR = r"not the vector of its text: cosine|another vector than|not the same work"
PERMUTED = r"vectors permuted.*: input \d+ came back as \d+"
SAME_VECTOR = r"same vector for different texts"

FAULTS: dict[str, Fault] = {
    # what the vectors are
    "per-token": Fault("value", _per_token, r"dimension grows with input length|per-token"),
    "per-token-nested": Fault("value", _per_token_nested, r"nested|per-token", FLOAT),
    "per-token-unless-short": Fault("value", _per_token_unless_short, r"per-token"),
    "not-normalised": Fault("vectors", _scaled(3.7), NOT_NORMALISED),
    "norms-vary": Fault("vectors", _norms_vary, NOT_NORMALISED),
    "norm-slightly-off": Fault("vectors", _scaled(0.98), NOT_NORMALISED),
    "cut-not-renormalised": Fault("vectors", _scaled(0.6), NOT_NORMALISED),
    "zero": Fault("vectors", _scaled(0.0), r"all zeros"),
    "huge-values": Fault("vectors", _scaled(1e20), NOT_NORMALISED),
    "quantised": Fault("vectors", _quantised, r"whole numbers|quantised"),
    "nan-bits": Fault("vectors", _with(float("nan")), r"NaN in vector", BASE64),
    "infinity-bits": Fault("vectors", _with(float("inf")), r"infinity in vector", BASE64),
    "nan-literal": Fault("value", _element("NaN"), r"NaN", FLOAT),
    "infinity-literal": Fault("value", _element("Infinity"), r"Infinity", FLOAT),
    "null": Fault("value", _element("null"), r"null in vector", FLOAT),
    "string-number": Fault("value", _element('"0.1"'), r"string in vector", FLOAT),
    "boolean": Fault("value", _element("true"), r"boolean in vector", FLOAT),
    "nested-number": Fault("value", _element("[0.1]"), r"array in vector", FLOAT),
    "object-in-vector": Fault("value", _element("{}"), r"object in vector", FLOAT),
    "too-large-for-float32": Fault("value", _element("1e39"), r"too large for float32", FLOAT),
    "too-large-for-float64": Fault("value", _element("1e999"), r"number", FLOAT),
    "not-a-json-number": Fault("value", _element("+0.1"), r"number|not valid JSON", FLOAT),
    "one-short": Fault("value", _resized(-1), rf"dimension 1023|{NOT_NORMALISED}"),
    "one-long": Fault("value", _resized(1), rf"dimension 1025|{NOT_NORMALISED}"),
    "half-dimension": Fault("value", _cut_dimension, r"dimension 512"),
    "empty-vector": Fault("value", _constant([]), r"empty", FLOAT),
    "null-embedding": Fault("value", _constant(None), r"null"),
    "number-embedding": Fault("value", _constant(0.5), r"number"),
    "sparse-embedding": Fault(
        "value", _constant({"indices": [1, 5], "values": [0.6, 0.8]}), r"object"
    ),
    # base64
    "float64-base64": Fault(
        "value", _base64("<f8"), r"8192 bytes for dimension 1024: float64", BASE64
    ),
    "float16-base64": Fault("value", _base64("<f2"), r"2048 bytes.*float16", BASE64),
    "big-endian": Fault("value", _base64(">f4"), r"big-endian", BASE64),
    "bad-padding": Fault("value", _text_of_base64(lambda s: s.rstrip("=")[:-1]), r"base64", BASE64),
    "url-safe-base64": Fault(
        "value",
        _text_of_base64(lambda s: s.replace("+", "-").replace("/", "_")),
        r"url-safe",
        BASE64,
    ),
    "wrapped-base64": Fault(
        "value", _text_of_base64(lambda s: s[:76] + "\n" + s[76:]), r"base64", BASE64
    ),
    "not-base64": Fault("value", _constant("?" * 5464), r"base64", BASE64),
    "shifted-bytes": Fault("value", _shifted_bytes, r"norm|NaN|infinity", BASE64),
    "odd-bytes": Fault(
        "value",
        lambda row, context, i: pybase64.b64encode(row.astype("<f4").tobytes()[:-1]).decode(),
        r"4095 bytes",
        BASE64,
    ),
    "encoding-ignored": Fault(
        "value", _other_encoding, r"encoding_format ignored|though the first came as"
    ),
    # whose vectors they are
    "swapped": Fault("vectors", _swapped, PERMUTED),
    "rotated": Fault("vectors", lambda m, c: np.roll(m, 1, axis=0), f"{PERMUTED}|{SAME_VECTOR}"),
    "renumbered": Fault("items", _renumbered, PERMUTED),
    "all-the-same": Fault("vectors", lambda m, c: np.repeat(m[:1], len(m), axis=0), SAME_VECTOR),
    "constant-vector": Fault(
        "vectors", lambda m, c: np.full_like(m, m.shape[1] ** -0.5), r"same vector"
    ),
    "stale": Fault("vectors", _stale, SAME_VECTOR),
    "random": Fault("vectors", _random, OTHER_VECTOR),
    "noisy": Fault("vectors", _noisy, OTHER_VECTOR),
    "negated": Fault("vectors", lambda m, c: -m, OTHER_VECTOR),
    "reversed-components": Fault("vectors", lambda m, c: m[:, ::-1], OTHER_VECTOR),
    "tail-zeroed": Fault("vectors", _tail_zeroed, OTHER_VECTOR),
    "batch-leaks": Fault("vectors", _padding_leaks, OTHER_VECTOR),
    # how many, and in which order
    "one-item": Fault("items", lambda items, c: items[:1], r"1 of \d+ vectors"),
    "one-dropped": Fault("items", lambda items, c: items[:-1], r"\d+ of \d+ vectors"),
    "one-too-many": Fault("items", lambda items, c: [*items, items[0]], r"\d+ vectors? for \d+"),
    "no-items": Fault("items", lambda items, c: [], r"0 of \d+ vectors"),
    "double-index": Fault("items", _indices(_double_index), r"index \d+ twice, \d+ missing"),
    "index-all-zero": Fault("items", _indices(lambda i, n: 0), r"index 0 \d+ times"),
    "index-from-one": Fault("items", _indices(lambda i, n: i + 1), r"index"),
    "index-string": Fault("items", _indices(lambda i, n: str(i)), r"index"),
    "index-float": Fault("items", _indices(lambda i, n: i + 0.5), r"index"),
    "index-negative": Fault("items", _indices(lambda i, n: i - n), r"index"),
    "index-missing": Fault("items", _without("index"), r"no \"index\""),
    "embedding-missing": Fault("items", _without("embedding"), r"no \"embedding\""),
    "embedding-twice": Fault("items", _double_embedding, r"\"embedding\" twice"),
    "item-null": Fault("items", _last_is(None), r"null"),
    "item-list": Fault("items", _last_is([0.1, 0.2]), r"array"),
    # usage and names
    "usage-missing": Fault("answer", _drop("usage"), r"usage"),
    "usage-one-more": Fault(
        "answer", _usage(lambda t, n: t + n), r"usage says 81 tokens an input, asked 80"
    ),
    "usage-one": Fault("answer", _usage(lambda t, n: 1), r"usage says"),
    "usage-zero": Fault("answer", _usage(lambda t, n: 0), r"usage says 0"),
    "usage-per-request": Fault("answer", _usage(lambda t, n: t // n), r"usage says"),
    "usage-string": Fault("answer", _usage(lambda t, n: str(t)), r"usage"),
    "usage-truncated": Fault("answer", _usage(lambda t, n: 64 * n), r"usage says 64"),
    "wrong-model": Fault("answer", _put(model="other-model"), r"model"),
    # the answer as a whole
    "error-object": Fault("answer", lambda a, c: ERROR_OBJECT, r"CUDA out of memory"),
    "no-data": Fault("answer", _drop("data"), r"no \"data\""),
    "data-null": Fault("answer", _put(data=None), r"\"data\" is null"),
    "data-object": Fault("answer", _data(lambda d: {"0": d[0]}), r"\"data\" is an object"),
    "bare-list": Fault("answer", lambda a, c: a["data"], r"array"),
    "bare-string": Fault("answer", lambda a, c: "ok", r"string"),
    "data-twice": Fault("bytes", _twice_data, r"\"data\" twice"),
    "not-json": Fault("bytes", lambda b: b"Internal Server Error", r"not JSON"),
    "empty-body": Fault("bytes", lambda b: b"", r"empty"),
    "truncated-json": Fault("bytes", lambda b: b[: len(b) // 2], r"cut|truncated|ends"),
    "trailing-garbage": Fault("bytes", lambda b: b + b"{}", r"after the end|not valid JSON"),
    "trailing-comma": Fault("bytes", lambda b: b[:-1] + b",}", r"not valid JSON"),
    "deep-nesting": Fault(
        "bytes", lambda b: b[:-1] + b',"x":' + b"[" * 100000 + b"]" * 100000 + b"}", r"nest"
    ),
    "invalid-utf8": Fault("bytes", lambda b: b[:-1] + b',"x":"\xff\xfe"}', r"UTF-8"),
    "utf-16": Fault("bytes", lambda b: b.decode().encode("utf-16"), r"UTF-16"),
    "html-page": Fault("http", _page, r"HTML"),
    "html-type": Fault("http", _typed("text/html"), r"content type text/html"),
    "text-type": Fault("http", _typed("text/plain"), r"content type text/plain"),
    "latin-charset": Fault("http", _typed("application/json; charset=latin-1"), r"charset"),
    "event-stream": Fault("http", _event_stream, r"text/event-stream"),
    "gzip-cut": Fault("http", _gzipped(lambda b: b[: len(b) // 2]), r"gzip"),
    "gzip-corrupt": Fault("http", _gzipped(lambda b: b[:-8] + b"\0" * 8), r"gzip"),
    "gzip-bomb": Fault("http", _bomb, r"gzip"),
    "not-gzip": Fault("http", lambda s, b, h: (s, b, {**h, "Content-Encoding": "gzip"}), r"gzip"),
    "unknown-coding": Fault(
        "http", lambda s, b, h: (s, b, {**h, "Content-Encoding": "br"}), r"coding|br\b"
    ),
    "created": Fault("http", lambda s, b, h: (206, b, h), r"status 206"),
}

ODDITIES: dict[str, Fault] = {
    "reversed-right-index": Fault("items", lambda items, c: items[::-1]),
    "shuffled-right-index": Fault("items", lambda items, c: [*items[1::2], *items[::2]]),
    "extra-keys": Fault(
        "answer", _put(id="embd-1", created=17, extra={"list": [[1], [2, {"data": []}]]})
    ),
    "extra-item-keys": Fault(
        "items",
        lambda items, c: [{"score": None, "tags": ["[", "]"], **item} for item in items],
    ),
    "whole-zeros": Fault("value", _zeros_as("0")),
    "minus-zeros": Fault("value", _zeros_as("-0.0")),
    "bf16-rounded": Fault("vectors", _bf16),
    "float-rounded": Fault("value", _rounded),
    "key-order": Fault("bytes", _other_key_order),
    "pretty-printed": Fault("bytes", _pretty),
    "unicode-escapes": Fault("bytes", _escaped),
    "exponents": Fault("bytes", _exponents, encodings=FLOAT),
    "leading-space": Fault("bytes", lambda b: b" \n\t" + b + b"\r\n"),
    "byte-order-mark": Fault("bytes", lambda b: b"\xef\xbb\xbf" + b),
    "charset-utf8": Fault("http", _typed("application/json; charset=UTF-8")),
    "problem-free-json-type": Fault("http", _typed("application/vnd.embeddings+json")),
    "gzip-answer": Fault("http", _gzipped()),
    "total-tokens-missing": Fault(
        "answer", lambda a, c: {**a, "usage": {"prompt_tokens": c.usage}}
    ),
    "usage-details": Fault(
        "answer",
        lambda a, c: {
            **a,
            "usage": {**a["usage"], "completion_tokens": 0, "prompt_tokens_details": None},
        },
    ),
}

FAULTS |= ODDITIES

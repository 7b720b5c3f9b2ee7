"""From the bytes of an embedding answer to a float32 matrix, or one named reason why not.

In: a response body as it came. Out: `Decoded`, the vectors in the order of the inputs, or a
`WireError`. What cannot be read as exactly ``count`` vectors of one length never gets a matrix:
simdjson flattens nested arrays and takes the first of two equal keys in silence, so both are
looked for here. What the numbers say (norms, content, usage) is for `checks`.

The route is simdjson with one buffer an array, and pybase64 on the strings; scripts/bench/decode
measures it against the others.
"""

import re
import threading
import zlib
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pybase64
import simdjson
from numpy.typing import NDArray

from embbench.errors import EmbbenchError
from embbench.plan import Encoding
from embbench.unreadable import why_not_json

Matrix = NDArray[np.float32]

UNPACKED_BYTES_MAX: Final = 1 << 28
"""A gzip answer of unknown size is not unpacked beyond this."""


class WireError(EmbbenchError):
    """The answer cannot be read; ``name`` is the kind, ``item`` the position in ``data``.

    ``lengths`` holds the vector lengths found, where they are the reason.
    """

    def __init__(
        self, name: str, what: str, *, item: int | None = None, lengths: tuple[int, ...] = ()
    ) -> None:
        super().__init__(what)
        self.name = name
        self.item = item
        self.lengths = lengths


@dataclass(frozen=True, slots=True)
class Decoded:
    """The vectors of one answer in the order of the inputs, [count, dimension], all finite.

    ``encoding`` is how they came, which need not be what was asked.
    """

    matrix: Matrix
    encoding: Encoding
    prompt_tokens: int | None
    model: str | None
    unpacked_bytes: int


_local = threading.local()


def decode(
    payload: bytes | memoryview,
    *,
    count: int | None = None,
    dimension: int | None = None,
    status: int = 200,
    content_type: str | None = "application/json",
    gzip: bool = False,
) -> Decoded:
    """Read one answer; ``count`` and ``dimension`` are what it must hold, where they are known.

    Raises `WireError`, whose message is one sentence.
    """
    if status != 200:
        name = "status" if 200 < status < 300 else "refused"
        raise WireError(name, f"status {status}{_words_of(payload, gzip)}")
    if gzip:
        payload = gunzip(payload, _unpacked_max(count, dimension))
    _check_content_type(content_type, payload)
    try:
        return _read(_parse(payload), payload, count, dimension)
    except WireError as error:
        # frames of tracebacks hold views of the parser, which then could not be used again
        error.__context__ = None
        raise error.with_traceback(None) from None


def _parse(payload: bytes | memoryview) -> Any:
    """The document; the parser of this thread is used again, and with it its memory."""
    if not hasattr(_local, "parser"):
        _local.parser = simdjson.Parser()
    try:
        return _local.parser.parse(payload)
    except (ValueError, RuntimeError, UnicodeDecodeError) as exc:
        if "re-use" in str(exc):
            _local.parser = simdjson.Parser()
            return _parse(payload)
        name, what = why_not_json(bytes(payload), str(exc))
        raise WireError(name, what) from None


def _read(
    document: Any, payload: bytes | memoryview, count: int | None, dimension: int | None
) -> Decoded:
    if not isinstance(document, simdjson.Object):
        raise WireError("shape", f'the answer is {_kind(document)}, not an object with "data"')
    keys = _keys(document, "the answer")
    if "data" not in keys:
        raise _no_data(document, keys)
    data = document["data"]
    if not isinstance(data, simdjson.Array):
        raise WireError("shape", f'"data" is {_kind(data)}, not an array')
    vectors, order = _items(data, count)
    encoding: Encoding = "base64" if vectors and isinstance(vectors[0], str) else "float"
    if encoding == "base64":
        matrix = _from_base64(vectors, dimension)
    else:
        if _nested(payload, len(vectors)):
            _find_nested(vectors)
        matrix = _from_floats(vectors, dimension)
    _check_finite(matrix, encoding)
    model = document["model"] if "model" in keys else None
    return Decoded(
        matrix=matrix if order is None else matrix[order],
        encoding=encoding,
        prompt_tokens=_prompt_tokens(document, keys),
        model=model if isinstance(model, str) else None,
        unpacked_bytes=len(payload),
    )


# --- items and their order


def _items(data: Any, count: int | None) -> tuple[list[Any], NDArray[np.int64] | None]:
    """The embedding values as they stand, and the order that ``index`` asks for if another."""
    n = len(data)
    if count is not None and n < count:
        raise WireError("count", f"{n} of {count} vectors")
    if count is not None and n > count:
        raise WireError("count", f"{n} vectors for {count} inputs")
    vectors: list[Any] = []
    indices: list[int] = []
    for position, item in enumerate(data):
        if not isinstance(item, simdjson.Object):
            raise WireError("shape", f"item {position} is {_kind(item)}", item=position)
        keys = _keys(item, f"item {position}")
        for key in ("embedding", "index"):
            if key not in keys:
                raise WireError("shape", f'item {position} has no "{key}"', item=position)
        index = item["index"]
        if isinstance(index, bool) or not isinstance(index, int):
            what = f'"index" of item {position} is {_kind(index)}, not a whole number'
            raise WireError("index", what, item=position)
        indices.append(index)
        vectors.append(item["embedding"])
    if indices == list(range(n)):
        return vectors, None
    _check_indices(indices)
    return vectors, np.argsort(np.asarray(indices, np.int64))


def _check_indices(indices: list[int]) -> None:
    n = len(indices)
    outside = [i for i in indices if not 0 <= i < n]
    if outside:
        what = f"index {outside[0]} is outside 0 to {n - 1}"
        raise WireError("index", what, item=indices.index(outside[0]))
    seen = Counter(indices)
    index, times = max(seen.items(), key=lambda pair: pair[1])
    if times > 1:
        missing = [i for i in range(n) if i not in seen]
        often = "twice" if times == 2 else f"{times} times"
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        what = f"index {index} {often}, {missing[0]}{more} missing"
        raise WireError("index", what, item=indices.index(index, indices.index(index) + 1))


# --- numbers


def _from_floats(vectors: list[Any], dimension: int | None) -> Matrix:
    if not vectors:
        return np.zeros((0, dimension or 0), np.float32)
    for i, vector in enumerate(vectors):
        if not isinstance(vector, simdjson.Array):
            _refuse_value(vector, i, "float")
    length = _one_length([len(vector) for vector in vectors], dimension)
    matrix = np.empty((len(vectors), length), np.float32)
    with np.errstate(over="ignore"):  # an overflow becomes an infinity, and is reported as one
        for i, vector in enumerate(vectors):
            try:
                matrix[i] = np.frombuffer(vector.as_buffer(of_type="d"), np.float64)
            except (TypeError, ValueError):
                raise _bad_element(vector, i) from None
    return matrix


def _nested(payload: bytes | memoryview, n: int) -> bool:
    """Whether there may be arrays inside the vectors: more brackets than ``data`` and n arrays."""
    text = np.frombuffer(payload, np.uint8)
    step = 1 << 16  # small enough to stay in the cache
    brackets = sum(
        int(np.count_nonzero(text[at : at + step] == ord("["))) for at in range(0, len(text), step)
    )
    return brackets > n + 1


def _find_nested(vectors: list[Any]) -> None:
    """Raise if a vector holds an array; other keys may hold what they like."""
    for i, vector in enumerate(vectors):
        if isinstance(vector, simdjson.Array) and str(vector.mini).count("[") > 1:
            raise _bad_element(vector, i)


def _bad_element(vector: Any, item: int) -> WireError:
    """Name the first element of an array that is not a number."""
    elements = vector.as_list()
    for k, element in enumerate(elements):
        if isinstance(element, bool) or not isinstance(element, int | float):
            if isinstance(element, list) and all(isinstance(e, list) for e in elements):
                inner = len(element)
                what = (
                    f"vector {item} is {len(elements)} nested arrays of {inner} numbers: "
                    "per-token output, no pooling"
                )
                return WireError("per-token", what, item=item, lengths=(len(elements) * inner,))
            what = f"{_kind(element).split(' ')[-1]} in vector {item} (component {k})"
            return WireError("not-a-number", what, item=item)
    return WireError("not-a-number", f"vector {item} cannot be read as numbers", item=item)


def _from_base64(vectors: list[Any], dimension: int | None) -> Matrix:
    raw: list[bytes] = []
    for i, vector in enumerate(vectors):
        if not isinstance(vector, str):
            _refuse_value(vector, i, "base64")
        try:
            raw.append(pybase64.b64decode(vector, validate=True))
        except ValueError:  # binascii.Error is one
            raise WireError("base64", _bad_base64(vector, i), item=i) from None
    sizes = [len(each) for each in raw]
    for i, size in enumerate(sizes):
        if dimension and (dtype := _other_dtype(raw[i], dimension)):
            what = f"{size} bytes for dimension {dimension}: {dtype} on the wire"
            raise WireError("dtype", what, item=i, lengths=(size // 4,))
        if size % 4:
            what = f"vector {i} has {size} bytes, which is not a whole number of float32"
            raise WireError("dtype", what, item=i)
    length = _one_length([size // 4 for size in sizes], dimension)
    matrix = np.frombuffer(b"".join(raw), "<f4").astype(np.float32, copy=False)
    return matrix.reshape(len(raw), length)


def _other_dtype(raw: bytes, dimension: int) -> str | None:
    """Which other number type these bytes are, judged by their count and their norm."""
    if len(raw) == 8 * dimension:
        return "float64"
    if len(raw) != 2 * dimension:
        return None
    with np.errstate(all="ignore"):
        norm = float(np.linalg.norm(np.frombuffer(raw, "<f4").astype(np.float64)))
    return None if abs(norm - 1) < 0.05 else "float16 or bfloat16"  # None: half the dimension


def _bad_base64(text: str, item: int) -> str:
    alphabet = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")
    strange = next((char for char in text if char not in alphabet), None)
    if strange is not None and strange in "-_":
        return f"vector {item} is in the url-safe base64 alphabet ({strange!r})"
    if strange is not None:
        return f"vector {item} is not base64: it holds {strange!r}"
    return f"vector {item} is base64 of bad length or padding ({len(text)} characters)"


def _one_length(lengths: list[int], dimension: int | None) -> int:
    """The length that all vectors have. Raises if they differ, are 0, or are not ``dimension``."""
    expected = dimension or lengths[0]
    if 0 in lengths:
        item = lengths.index(0)
        raise WireError("dimension", f"vector {item} is empty", item=item)
    if lengths.count(expected) == len(lengths):
        return expected
    item, length = next((i, n) for i, n in enumerate(lengths) if n != expected)
    what = f"vector {item} has dimension {length}"
    if length % expected == 0:
        what += f" = {length // expected} x {expected}: per-token output, no pooling"
    else:
        what += f", expected {dimension}" if dimension else f", vector 0 has {expected}"
    raise WireError("dimension", what, item=item, lengths=tuple(lengths))


def _check_finite(matrix: Matrix, encoding: Encoding) -> None:
    finite = np.isfinite(matrix)
    if finite.all():
        return
    item, k = (int(at) for at in np.argwhere(~finite)[0])
    if encoding == "float":
        what = f"a number in vector {item} (component {k}) is too large for float32"
    elif _plausible(matrix[item : item + 1].byteswap()):
        what = f"the float32 values of vector {item} are big-endian on the wire"
        raise WireError("dtype", what, item=item)
    else:
        name = "NaN" if np.isnan(matrix[item, k]) else "infinity"
        what = f"{name} in vector {item} (component {k})"
    raise WireError("not-finite", what, item=item)


def looks_big_endian(matrix: Matrix) -> bool:
    """Whether the values make sense only when their bytes are swapped."""
    return not _plausible(matrix) and _plausible(matrix.byteswap())


def _plausible(matrix: Matrix) -> bool:
    with np.errstate(all="ignore"):
        norms = np.sqrt(np.einsum("ij,ij->i", matrix, matrix, dtype=np.float64))
    return bool(np.isfinite(norms).all() and (norms > 1e-3).all() and (norms < 1e6).all())


# --- the parts around the vectors


def _keys(item: Any, where: str) -> list[str]:
    keys = list(item.keys())
    if len(set(keys)) != len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise WireError("duplicate-key", f'"{twice}" twice in {where}')
    return keys


def _no_data(document: Any, keys: list[str]) -> WireError:
    if "error" in keys:
        error = document["error"]
        inner = (
            error["message"] if isinstance(error, simdjson.Object) and "message" in error else error
        )
        words = inner if isinstance(inner, str) else _kind(inner)
        return WireError("error-object", f"an error in an answer with status 200: {words[:200]}")
    return WireError(
        "shape", f'the answer has no "data" (its keys: {", ".join(keys[:8]) or "none"})'
    )


def _prompt_tokens(document: Any, keys: list[str]) -> int | None:
    if "usage" not in keys or document["usage"] is None:
        return None
    usage = document["usage"]
    if not isinstance(usage, simdjson.Object):
        raise WireError("usage", f'"usage" is {_kind(usage)}, not an object')
    if "prompt_tokens" not in _keys(usage, '"usage"') or usage["prompt_tokens"] is None:
        return None
    tokens = usage["prompt_tokens"]
    if isinstance(tokens, bool) or not isinstance(tokens, int):
        raise WireError("usage", f"usage.prompt_tokens is {_kind(tokens)}, not a whole number")
    return tokens


def _refuse_value(value: Any, item: int, encoding: Encoding) -> None:
    if isinstance(value, str | simdjson.Array):
        what = f"vector {item} is {_kind(value)}, though the first came as {encoding}"
        raise WireError("mixed", what, item=item)
    raise WireError("shape", f'"embedding" of item {item} is {_kind(value)}', item=item)


def _kind(value: Any) -> str:
    """What a JSON value is, in words."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case dict() | simdjson.Object():
            return "an object"
        case _:
            return "an array"


# --- what is around the body


def gunzip(payload: bytes | memoryview, limit_bytes: int = UNPACKED_BYTES_MAX) -> bytes:
    """Unpack one gzip body, never to more than ``limit_bytes``. Raises `WireError`."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        unpacked = unpacker.decompress(payload, limit_bytes + 1)
    except zlib.error as exc:
        raise WireError("gzip", f"the gzip body is damaged ({exc})") from None
    if len(unpacked) > limit_bytes:
        what = f"the gzip body of {len(payload)} bytes unpacks to more than {limit_bytes} bytes"
        raise WireError("gzip", what)
    if not unpacker.eof:
        raise WireError("gzip", f"the gzip body ends early, after {len(payload)} bytes")
    if unpacker.unused_data:
        raise WireError("gzip", f"{len(unpacker.unused_data)} bytes after the end of the gzip body")
    return unpacked


def _unpacked_max(count: int | None, dimension: int | None) -> int:
    """Far more than any honest way to print the numbers takes: 64 bytes each, and some room."""
    if count is None or dimension is None:
        return UNPACKED_BYTES_MAX
    return (1 << 20) + 64 * count * dimension


def _check_content_type(content_type: str | None, payload: bytes | memoryview) -> None:
    kind, _, parameters = (content_type or "").partition(";")
    kind = kind.strip().lower()
    if bytes(payload[:200]).lstrip()[:1] == b"<":
        name, what = why_not_json(bytes(payload[:4096]), "")
        raise WireError(name, what)
    if not kind:
        raise WireError("content-type", "the answer has no content type, not application/json")
    if kind != "application/json" and not kind.endswith("+json"):
        raise WireError("content-type", f"content type {kind}, not application/json")
    charset = parameters.lower().partition("charset=")[2].strip(' "')
    if charset and charset not in ("utf-8", "utf8", "us-ascii"):
        raise WireError("charset", f"charset {charset}, not UTF-8")


def _words_of(payload: bytes | memoryview, gzip: bool) -> str:
    """The server's own words in a refusal, if it is one."""
    text = " ".join(bytes(payload[:400]).decode("utf-8", "replace").split())
    if gzip or not text or '"embedding"' in text:
        return ""
    message = re.search(r'"(?:message|error|detail)"\s*:\s*"((?:[^"\\]|\\.)*)', text)
    return f": {(message[1] if message else text)[:200]}"

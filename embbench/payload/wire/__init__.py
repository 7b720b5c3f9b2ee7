"""From the bytes of an embedding answer to a float32 matrix, or one named reason why not.

In: a response body as it came. Out: `Decoded`, the vectors in the order of the inputs, or a
`WireError`. What cannot be read as exactly ``count`` vectors of one length never gets a matrix:
simdjson flattens nested arrays and takes the first of two equal keys in silence, so both are
looked for here. What the numbers say (norms, content, usage) is for `checks`.

The route is simdjson with one buffer an array, and pybase64 on the strings; scripts/bench/decode
measures it against the others. A base64 answer in which nothing is odd takes a short cut.
"""

import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import simdjson
from numpy.typing import NDArray

from embbench.config.plan import Encoding
from embbench.payload.wire.envelope import check_content_type, gunzip, unpacked_max, words_of
from embbench.payload.wire.numbers import (
    Matrix,
    finite_norms,
    from_base64,
    from_floats,
    looks_big_endian,
    may_be_nested,
    norms_of,
    plain_base64,
    refuse_nested,
)
from embbench.payload.wire.reasons import WireError, kind_of, not_json

__all__ = ["Decoded", "Matrix", "WireError", "decode", "gunzip", "looks_big_endian", "norms_of"]


@dataclass(frozen=True, slots=True)
class Decoded:
    """The vectors of one answer in the order of the inputs, [count, dimension], all finite.

    ``norms`` are the L2 norms of the rows. ``encoding`` is how they came, which need not be what
    was asked.
    """

    matrix: Matrix
    norms: NDArray[np.float64]
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
        raise WireError(name, f"status {status}{words_of(payload, gzip)}")
    if gzip:
        payload = gunzip(payload, unpacked_max(count, dimension))
    check_content_type(content_type, payload)
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
        raise not_json(bytes(payload), str(exc)) from None


def _read(
    document: Any, payload: bytes | memoryview, count: int | None, dimension: int | None
) -> Decoded:
    if not isinstance(document, simdjson.Object):
        raise WireError("shape", f'the answer is {kind_of(document)}, not an object with "data"')
    keys = _keys(document, "the answer")
    if "data" not in keys:
        raise _no_data(document, keys)
    data = document["data"]
    if not isinstance(data, simdjson.Array):
        raise WireError("shape", f'"data" is {kind_of(data)}, not an array')
    matrix, order, encoding = _vectors(data, payload, count, dimension)
    norms = finite_norms(matrix, encoding)
    model = document["model"] if "model" in keys else None
    return Decoded(
        matrix=matrix if order is None else matrix[order],
        norms=norms if order is None else norms[order],
        encoding=encoding,
        prompt_tokens=_prompt_tokens(document, keys),
        model=model if isinstance(model, str) else None,
        unpacked_bytes=len(payload),
    )


def _vectors(
    data: Any, payload: bytes | memoryview, count: int | None, dimension: int | None
) -> tuple[Matrix, NDArray[np.int64] | None, Encoding]:
    """The rows as they stand, the order that ``index`` asks for if another, how they came."""
    if count in (None, len(data)):
        matrix = plain_base64(data, dimension, len(payload))
        if matrix is not None:
            return matrix, None, "base64"
    vectors, order = _items(data, count)
    if vectors and isinstance(vectors[0], str):
        return from_base64(vectors, dimension), order, "base64"
    if may_be_nested(payload, len(vectors)):
        refuse_nested(vectors)
    return from_floats(vectors, dimension), order, "float"


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
    usual: list[str] | None = None  # keys that were found to be right
    for position, item in enumerate(data):
        if not isinstance(item, simdjson.Object):
            raise WireError("shape", f"item {position} is {kind_of(item)}", item=position)
        keys = list(item.keys())
        if keys != usual:
            _check_keys(keys, f"item {position}")
            for key in ("embedding", "index"):
                if key not in keys:
                    raise WireError("shape", f'item {position} has no "{key}"', item=position)
            usual = keys
        index = item["index"]
        if isinstance(index, bool) or not isinstance(index, int):
            what = f'"index" of item {position} is {kind_of(index)}, not a whole number'
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


# --- the parts around the vectors


def _keys(item: Any, where: str) -> list[str]:
    keys = list(item.keys())
    _check_keys(keys, where)
    return keys


def _check_keys(keys: list[str], where: str) -> None:
    if len(set(keys)) != len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise WireError("duplicate-key", f'"{twice}" twice in {where}')


def _no_data(document: Any, keys: list[str]) -> WireError:
    if "error" in keys:
        error = document["error"]
        inner = (
            error["message"] if isinstance(error, simdjson.Object) and "message" in error else error
        )
        words = inner if isinstance(inner, str) else kind_of(inner)
        return WireError("error-object", f"an error in an answer with status 200: {words[:200]}")
    return WireError(
        "shape", f'the answer has no "data" (its keys: {", ".join(keys[:8]) or "none"})'
    )


def _prompt_tokens(document: Any, keys: list[str]) -> int | None:
    usage = document["usage"] if "usage" in keys else None
    if usage is None:
        return None
    if not isinstance(usage, simdjson.Object):
        raise WireError("usage", f'"usage" is {kind_of(usage)}, not an object')
    told = "prompt_tokens" in _keys(usage, '"usage"')
    tokens = usage["prompt_tokens"] if told else None
    if tokens is None:
        return None
    if isinstance(tokens, bool) or not isinstance(tokens, int):
        raise WireError("usage", f"usage.prompt_tokens is {kind_of(tokens)}, not a whole number")
    return tokens

"""The vectors of an answer as numbers: one float32 matrix, or the first thing wrong with them.

In: the values of ``embedding`` as simdjson holds them, JSON arrays or base64 strings. Out: a
matrix [n, dimension], all finite. Raises `WireError`.
"""

import math
from typing import Any, Final

import numpy as np
import pybase64
import simdjson
from numpy.typing import NDArray

from embbench.config.plan import Encoding
from embbench.payload.wire.reasons import WireError, kind_of

Matrix = NDArray[np.float32]
_ROOM_BYTES: Final = 1 << 16


def plain_base64(data: Any, dimension: int | None, body_bytes: int) -> Matrix | None:
    """The rows of a base64 answer in which nothing is odd; None where anything is.

    Plain: every item is an object without a key twice, ``index`` counts from 0, and each
    ``embedding`` is base64 of as many float32, which is ``dimension`` where it is known. Also the
    strings are most of the body, so that little else becomes Python objects here. What is plain
    is what `from_base64` reads in the same order; why an answer is not, it tells.
    """
    try:
        first = data[0]["embedding"]
        if not isinstance(first, str):
            return None
        size = 4 * dimension if dimension else len(pybase64.b64decode(first, None, True))
        strings = len(data) * len(first)
        if size == 0 or size % 4 or len(first) != 4 * -(-size // 3):
            return None
        if not strings <= body_bytes <= 2 * strings + _ROOM_BYTES:
            return None
        matrix = np.empty((len(data), size // 4), "<f4")
        room, at = matrix.data.cast("B"), 0
        for position, item in enumerate(data):
            fields = item.as_dict()
            index = fields["index"]
            if index != position or type(index) is not int or len(fields) != len(item):
                return None
            # another length is a ValueError
            room[at : at + size] = pybase64.b64decode(fields["embedding"], None, True)
            at += size
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None
    return matrix.astype(np.float32, copy=False)


def from_floats(vectors: list[Any], dimension: int | None) -> Matrix:
    """The rows of JSON arrays that hold nothing but numbers (see `refuse_nested`)."""
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


def may_be_nested(payload: bytes | memoryview, n: int) -> bool:
    """Whether there may be arrays inside the vectors: more brackets than ``data`` and n arrays."""
    text = np.frombuffer(payload, np.uint8)
    step = 1 << 18  # small enough to stay in the cache
    brackets = sum(
        int(np.count_nonzero(text[at : at + step] == ord("["))) for at in range(0, len(text), step)
    )
    return brackets > n + 1


def refuse_nested(vectors: list[Any]) -> None:
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
            what = f"{kind_of(element).split(' ')[-1]} in vector {item} (component {k})"
            return WireError("not-a-number", what, item=item)
    return WireError("not-a-number", f"vector {item} cannot be read as numbers", item=item)


def from_base64(vectors: list[Any], dimension: int | None) -> Matrix:
    """The rows of base64 strings that hold little-endian float32."""
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
    if len(raw) % 4 == 0:
        with np.errstate(all="ignore"):
            norm = float(np.linalg.norm(np.frombuffer(raw, "<f4").astype(np.float64)))
        if abs(norm - 1) < 0.05:
            return None  # float32, of half the dimension
    return "float16 or bfloat16"


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


def norms_of(matrix: Matrix) -> NDArray[np.float64]:
    """The L2 norm of each row; finite where, and only where, all of the row is."""
    squares = np.einsum("ij,ij->i", matrix, matrix)
    if not _all_finite(squares):
        squares = np.einsum("ij,ij->i", matrix, matrix, dtype=np.float64)
    norms: NDArray[np.float64] = np.sqrt(squares, dtype=np.float64)
    return norms


def _all_finite(squares: NDArray[np.floating]) -> bool:
    """Whether no sum of squares is NaN or infinite: their sum, in float64, is neither."""
    return math.isfinite(sum(squares.tolist()))


def finite_norms(matrix: Matrix, encoding: Encoding) -> NDArray[np.float64]:
    """No NaN, no infinity: seen in the norms, which are returned, and looked for in the rows."""
    norms = norms_of(matrix)
    if _all_finite(norms):
        return norms
    item, k = (int(at) for at in np.argwhere(~np.isfinite(matrix))[0])
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


def _refuse_value(value: Any, item: int, encoding: Encoding) -> None:
    if isinstance(value, str | simdjson.Array):
        what = f"vector {item} is {kind_of(value)}, though the first came as {encoding}"
        raise WireError("mixed", what, item=item)
    raise WireError("shape", f'"embedding" of item {item} is {kind_of(value)}', item=item)

"""The hop between worker and frontend: frames on a loopback TCP connection.

A frame is a little-endian u32 length and that many bytes of JSON. How vectors sit in the JSON is
the hop's name: ``json`` float lists, ``base64-struct`` and ``base64-numpy`` base64 of little-endian
float32 made in two ways, ``shm`` a handle to a shared-memory segment. Each frame of vectors names
its own form, because the worker falls back to base64 where shared memory will not do.
"""

import asyncio
import errno
import struct
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from embbench.reference import fastjson, segments
from embbench.reference.api import WireVector
from embbench.reference.engine import Vector, as_array
from embbench.reference.options import Hop

_HEADER = struct.Struct("<I")
STREAM_LIMIT = 1 << 24
"""Bytes that a stream buffers before it stops reading: a frame should not arrive in sips."""


class HopError(Exception):
    """The other side sent what cannot be a message."""


def frame(message: dict[str, Any], max_bytes: float) -> list[bytes]:
    """A message as the parts to write, in order. Raises HopError if it is too large."""
    payload = fastjson.dumps(message)
    if len(payload) > max_bytes:
        raise HopError(_too_large(len(payload), max_bytes))
    return [_HEADER.pack(len(payload)), payload]


def _too_large(length: int, max_bytes: float) -> str:
    return f"a message of {length} bytes on the hop, at most {max_bytes:.0f} are taken"


async def read_frame(reader: asyncio.StreamReader, max_bytes: float) -> tuple[dict[str, Any], int]:
    """The next message and its size on the hop. Raises IncompleteReadError at the end, HopError."""
    (length,) = _HEADER.unpack(await reader.readexactly(_HEADER.size))
    if length > max_bytes:
        raise HopError(_too_large(length, max_bytes))
    payload = await reader.readexactly(length)
    try:
        message = fastjson.loads(payload)
    except ValueError as error:
        raise HopError(f"a message is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise HopError("a message is not an object")
    return message, _HEADER.size + length


def pack(
    vectors: Sequence[Vector], hop: Hop, store: segments.SegmentStore
) -> tuple[dict[str, Any], str | None]:
    """Vectors as fields of a message, and why shared memory was not used if it should have been."""
    match hop:
        case "json":
            return {"form": "json", "vectors": [vector.tolist() for vector in vectors]}, None
        case "base64-struct":
            return {"form": "base64", "vectors": [_struct_base64(row) for row in vectors]}, None
        case "base64-numpy":
            return {"form": "base64", "vectors": [_numpy_base64(row) for row in vectors]}, None
        case "shm":
            return _pack_shm(vectors, store)
        case _:
            assert_never(hop)


def _struct_base64(vector: Vector) -> str:
    """The story's baseline, kept as it was: a Python float for each number."""
    floats = vector.tolist()
    return b64encode(struct.pack(f"<{len(floats)}f", *floats)).decode("ascii")


def _numpy_base64(vector: Vector) -> str:
    """The story's opt-2: one copy in C."""
    return b64encode(as_array(vector).tobytes()).decode("ascii")


def _pack_shm(
    vectors: Sequence[Vector], store: segments.SegmentStore
) -> tuple[dict[str, Any], str | None]:
    try:
        handle = store.create([as_array(vector) for vector in vectors])
    except ValueError:
        reason = "ragged"
    except OSError as error:
        reason = errno.errorcode.get(error.errno or 0, "unknown").lower()
    else:
        fields = {"name": handle.name, "count": handle.count, "dim": handle.dim}
        return {"form": "shm", "handle": fields}, None
    return pack(vectors, "base64-numpy", store)[0], reason


def unpack(
    message: dict[str, Any], folder: Path, prefix: str, expected_count: int
) -> Sequence[WireVector]:
    """The vectors of a message; a segment is collected. Raises HopError, HandleError."""
    if message.get("form") == "shm":
        fields = message.get("handle")
        if not isinstance(fields, dict) or set(fields) != {"name", "count", "dim"}:
            raise segments.HandleError("the handle is not {name, count, dim}")
        if not isinstance(fields["name"], str):
            raise segments.HandleError("the handle's name is not a string")
        handle = segments.Handle(fields["name"], fields["count"], fields["dim"])
        return list(segments.collect(folder, prefix, handle, expected_count))
    vectors = message.get("vectors")
    if not isinstance(vectors, list) or len(vectors) != expected_count:
        raise HopError(f"it does not hold {expected_count} vectors")
    match message.get("form"):
        case "json":
            return [_floats(vector) for vector in vectors]
        case "base64":
            return [_checked_base64(vector) for vector in vectors]
        case form:
            raise HopError(f"it has no known form: {form!r}")


def _floats(value: Any) -> NDArray[np.float32]:
    try:
        vector = np.asarray(value, np.float32)
    except (TypeError, ValueError) as error:
        raise HopError(f"a vector is no list of numbers: {error}") from None
    if vector.ndim != 1:
        raise HopError("a vector is no list of numbers")
    return vector


def _checked_base64(value: Any) -> str:
    """The string, if its length is that of whole float32 values; it is not decoded for nothing."""
    if not isinstance(value, str) or len(value) % 4:
        raise HopError("a vector is not base64")
    if (len(value) // 4 * 3 - value[-2:].count("=")) % 4:
        raise HopError("a vector is not base64 of float32 values")
    return value

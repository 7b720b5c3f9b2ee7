"""JSON for the servers: orjson, or the standard library where orjson is not installed.

Without orjson a float32 is printed as a float64 of up to 17 digits (as bare vLLM does), with it in
its shortest float32 form: the value read back is the same, the bytes on the wire are not.
"""

import json
from contextlib import suppress
from typing import Any

import numpy as np

orjson: Any = None
with suppress(ImportError):
    import orjson


def dumps(value: Any) -> bytes:
    """JSON of a value in which numpy float32 arrays may stand for lists."""
    if orjson is not None:
        return bytes(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))
    return json.dumps(value, default=_to_list, separators=(",", ":")).encode()


def loads(payload: bytes) -> Any:
    """The value of a JSON document. Raises ValueError if it is none."""
    if orjson is not None:
        return orjson.loads(payload)
    try:
        return json.loads(payload)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _to_list(value: object) -> list[float]:
    if isinstance(value, np.ndarray):
        return value.tolist()  # type: ignore[no-any-return]
    raise TypeError(f"no JSON for {type(value).__name__}")

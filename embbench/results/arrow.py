"""Arrow arrays from numpy and back, without pandas.

In: numpy arrays, texts. Out: what `pyarrow.array` and ``to_numpy`` give; those import pandas where
it is installed, which takes more memory than all of a trial, and the file on disk is the same.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


def to_arrow(values: NDArray[Any], valid: NDArray[np.bool_] | None = None) -> Any:
    """Numbers as an Arrow array; null where ``valid`` is false."""
    import pyarrow as pa

    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [bits, data])


def texts_to_arrow(texts: Sequence[str]) -> Any:
    """Texts as an Arrow array of strings."""
    import pyarrow as pa

    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(
        len(texts), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))
    )


def to_numpy(array: Any, dtype: DTypeLike, null: int = 0) -> NDArray[Any]:
    """The numbers of an Arrow array that is not chunked, ``null`` where it is null."""
    import pyarrow as pa

    dtype = np.dtype(dtype)
    array = array.cast(pa.from_numpy_dtype(dtype))
    start, stop = array.offset, array.offset + len(array)
    bits, data = array.buffers()
    values: NDArray[Any] = np.frombuffer(data or b"", dtype, stop)[start:]
    if bits is None or not array.null_count:
        return values
    valid = np.unpackbits(np.frombuffer(bits, np.uint8), count=stop, bitorder="little")[start:]
    return np.where(valid.astype(np.bool_), values, np.asarray(null, dtype))

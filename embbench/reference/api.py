"""The OpenAI surface: bodies to requests, answers to bodies, errors to the shape clients expect.

In: the bytes of a body. Out: an `EmbedRequest`, or a `RequestError` with the status to answer; and
the bytes of an answer from vectors.
"""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from embbench.reference import fastjson

Input: TypeAlias = str | list[int]
Encoding = Literal["float", "base64"]
WireVector: TypeAlias = NDArray[np.float32] | str
"""A vector on its way out: float32 values, or their base64 as it came over the hop."""


class RequestError(Exception):
    """A request that is answered with an error; also crosses the hop from the worker."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> bytes:
        """The error in OpenAI's shape."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return fastjson.dumps({"error": error})


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """One valid request."""

    inputs: list[Input]
    encoding: Encoding
    dimensions: int | None


@dataclass(frozen=True, slots=True)
class Limits:
    """What this server takes."""

    model: str
    dimension: int
    max_batch: int
    allow_dimensions: bool


def parse_request(payload: bytes, limits: Limits) -> EmbedRequest:
    """The request in a body. Raises RequestError (400, or 404 for another model)."""
    try:
        body = fastjson.loads(payload)
    except ValueError as error:
        raise RequestError(400, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise RequestError(400, "the body must be a JSON object")
    model = body.get("model")
    if not isinstance(model, str):
        raise RequestError(400, "'model' must be a string", param="model")
    if model != limits.model:
        raise RequestError(
            404,
            f"the model '{model}' does not exist; this server has '{limits.model}'",
            param="model",
            code="model_not_found",
        )
    encoding = _encoding(body.get("encoding_format"))
    inputs = _inputs(body.get("input"))
    if len(inputs) > limits.max_batch:
        raise RequestError(
            400, f"{len(inputs)} inputs, at most {limits.max_batch} are taken", param="input"
        )
    return EmbedRequest(inputs, encoding, _dimensions(body.get("dimensions"), limits))


def _encoding(value: Any) -> Encoding:
    match value:
        case None | "float":
            return "float"
        case "base64":
            return "base64"
        case _:
            raise RequestError(
                400, "'encoding_format' must be 'float' or 'base64'", param="encoding_format"
            )


def _inputs(value: Any) -> list[Input]:
    """A list of inputs from any of the four forms."""
    if _is_input(value):
        return [value]
    if isinstance(value, list) and value and all(_is_input(item) for item in value):
        if len({type(item) for item in value}) == 1:
            return value
        raise RequestError(400, "'input' mixes texts and token ids", param="input")
    raise RequestError(
        400,
        "'input' must be a text, a list of texts, a list of token ids, or a list of such lists; "
        "none of them empty",
        param="input",
    )


def _is_input(value: Any) -> bool:
    if isinstance(value, str):
        return value != ""
    # exact type: JSON's true is an int to isinstance
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def _dimensions(value: Any, limits: Limits) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= limits.dimension:
        raise RequestError(
            400, f"'dimensions' must be an integer from 1 to {limits.dimension}", param="dimensions"
        )
    if not limits.allow_dimensions:
        raise RequestError(400, "this model does not support 'dimensions'", param="dimensions")
    return value


def render(vectors: Sequence[WireVector], tokens: int, encoding: Encoding, model: str) -> bytes:
    """The body of an answer. Vectors are converted only where their form is not the asked one."""
    convert = _to_floats if encoding == "float" else _to_base64
    data = [
        {"object": "embedding", "index": index, "embedding": convert(vector)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return fastjson.dumps({"object": "list", "data": data, "model": model, "usage": usage})


def _to_floats(vector: WireVector) -> NDArray[np.float32]:
    return np.frombuffer(b64decode(vector), "<f4") if isinstance(vector, str) else vector


def _to_base64(vector: WireVector) -> str:
    return vector if isinstance(vector, str) else b64encode(vector.data).decode("ascii")

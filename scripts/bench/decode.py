"""From bytes to a float32 matrix: embbench's route against the others, on one core.

    scripts/bench/decode [--seconds 1.0] [--batch 15 --batch 1024]

Bodies hold 1,024-wide vectors as OpenAI-compatible servers print them: shortest float32 digits,
float32 printed as float64 (as vLLM does), and base64. Each route gets the same bytes and must give
the same matrix. ``embbench`` does all of `embbench.wire.decode`: shape, index, keys, types, finite
values; ``checks`` adds norms, usage and duplicates. Prints Markdown, medians and the best.
"""

import argparse
import base64
import json
import resource
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import orjson
import pybase64
import simdjson
from numpy.typing import NDArray

from embbench.checks import Expectation, check_response
from embbench.wire import decode

DIMENSION = 1024
Matrix = NDArray[np.float32]
Route = Callable[[bytes], Matrix]


def body_of(batch: int, form: str) -> bytes:
    """One answer of ``batch`` unit vectors in this form."""
    rows = np.random.default_rng(batch).standard_normal((batch, DIMENSION))
    unit = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    values: dict[str, Callable[[Matrix], Any]] = {
        "float32 digits": lambda row: row,
        "float64 digits": lambda row: row.astype(np.float64),
        "base64": lambda row: pybase64.b64encode(row.tobytes()).decode(),
    }
    data = [
        {"object": "embedding", "index": i, "embedding": values[form](row)}
        for i, row in enumerate(unit)
    ]
    usage = {"prompt_tokens": 80 * batch, "total_tokens": 80 * batch}
    answer = {"object": "list", "data": data, "model": "m", "usage": usage}
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def with_checks(body: bytes, batch: int, encoding: Any) -> Matrix:
    """`decode` and `check_response`."""
    answer = decode(body, count=batch, dimension=DIMENSION)
    assert not check_response(answer, Expectation(batch, 80, encoding, DIMENSION))
    return answer.matrix


def numbers_by(loads: Callable[[bytes], Any]) -> Route:
    """A parser that makes Python floats, and numpy."""
    return lambda body: np.array([e["embedding"] for e in loads(body)["data"]], np.float32)


def strings_by(loads: Callable[[bytes], Any], unbase: Callable[[str], bytes]) -> Route:
    """A parser and a base64 decoder."""
    return lambda body: np.stack(
        [np.frombuffer(unbase(e["embedding"]), "<f4") for e in loads(body)["data"]]
    )


def simdjson_numbers(body: bytes) -> Matrix:
    """pysimdjson with one buffer an array, and nothing checked."""
    document: Any = simdjson.Parser().parse(body)
    rows = [
        np.frombuffer(e["embedding"].as_buffer(of_type="d"), np.float64) for e in document["data"]
    ]
    return np.stack(rows).astype(np.float32)


def routes(batch: int, form: str) -> dict[str, Route]:
    """The ways to read this form."""
    ours: dict[str, Route] = {
        "embbench": lambda body: decode(body, count=batch, dimension=DIMENSION).matrix,
        "embbench and checks": partial(
            with_checks, batch=batch, encoding="base64" if form == "base64" else "float"
        ),
    }
    if form == "base64":
        validated = partial(pybase64.b64decode, validate=True)
        return {
            **ours,
            "orjson + pybase64": strings_by(orjson.loads, validated),
            "json + base64": strings_by(json.loads, base64.b64decode),
        }
    return {
        **ours,
        "pysimdjson, nothing checked": simdjson_numbers,
        "orjson + numpy": numbers_by(orjson.loads),
        "json + numpy": numbers_by(json.loads),
    }


def seconds(route: Route, body: bytes, budget_s: float) -> tuple[float, float]:
    """Median and best time of one call."""
    times: list[float] = []
    until = time.perf_counter() + budget_s
    while time.perf_counter() < until or len(times) < 3:
        start = time.perf_counter()
        route(body)
        times.append(time.perf_counter() - start)
    return statistics.median(times), min(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="From bytes to a float32 matrix")
    parser.add_argument("--seconds", type=float, default=1.0, help="time a route and body")
    parser.add_argument("--batch", type=int, action="append", help="default: 15 and 1024")
    options = parser.parse_args()
    print("| batch | form | body | route | median ms | MB/s | best MB/s |")
    print("|--:|:--|--:|:--|--:|--:|--:|")
    for batch in options.batch or [15, 1024]:
        for form in ("float32 digits", "float64 digits", "base64"):
            body = body_of(batch, form)
            wanted = decode(body).matrix
            for name, route in routes(batch, form).items():
                assert np.array_equal(route(body), wanted), name
                median, best = seconds(route, body, options.seconds)
                size = f"{len(body) / 1e6:.2f} MB"
                speed = f"{len(body) / median / 1e6:.0f} | {len(body) / best / 1e6:.0f}"
                print(f"| {batch} | {form} | {size} | {name} | {median * 1e3:.2f} | {speed} |")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\npeak memory of all routes together: {peak:.0f} MiB")


if __name__ == "__main__":
    main()

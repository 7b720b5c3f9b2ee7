"""From bytes to a float32 matrix: embbench's route against the others, on one core.

    scripts/bench/decode [--seconds 1.0] [--batch 15 --batch 1024] [--only-trials]

Bodies hold 1,024-wide vectors as OpenAI-compatible servers print them: shortest float32 digits,
float32 printed as float64 (as vLLM does), and base64. Each route gets the same bytes and must give
the same matrix. ``embbench`` does all of `embbench.payload.wire.decode`: shape, index, keys, types,
finite values; ``checks`` adds norms, usage and duplicates.

``a whole trial`` is `embbench.payload.verify.verify_trial` as after a trial, from the shared memory
of about 64 MB of different bodies to the findings: known texts, sketches and vectors that came
before as well. ``by one process`` is the same in a pool of one. Prints Markdown, medians and the
best.
"""

import argparse
import base64
import gzip
import json
import os
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import orjson
import pybase64
import simdjson
from numpy.typing import NDArray

from embbench.load.kept_bodies import KEPT, KeptBodies, create_arena
from embbench.payload.checks import Expectation, check_response
from embbench.payload.identity import Known
from embbench.payload.verify import verify_pool, verify_trial
from embbench.payload.wire import decode
from embbench.results.samples import MEASURED

DIMENSION: Final = 1024
TRIAL_BYTES: Final = 64_000_000
FORMS: Final = ("float32 digits", "float64 digits", "base64")
Matrix = NDArray[np.float32]
Route = Callable[[bytes], Matrix]


def body_of(batch: int, form: str, seed: int = 0) -> bytes:
    """One answer of ``batch`` unit vectors in this form."""
    rows = np.random.default_rng((batch, seed)).standard_normal((batch, DIMENSION))
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


def seconds(call: Callable[[], object], budget_s: float) -> tuple[float, float]:
    """Median and best time of one call."""
    times: list[float] = []
    until = time.perf_counter() + budget_s
    while time.perf_counter() < until or len(times) < 3:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times), min(times)


def kept_of(bodies: Sequence[bytes], packed: bool) -> KeptBodies:
    """The bodies in shared memory, as a trial leaves them."""
    fd, path = create_arena("bench", sum(map(len, bodies)))
    index = np.zeros(len(bodies), KEPT)
    index["seq"], index["phase"], index["status"] = np.arange(len(bodies)), MEASURED, 200
    index["length"], index["gzip"] = [len(body) for body in bodies], packed
    index["offset"] = np.cumsum(index["length"]) - index["length"]
    for row, body in zip(index, bodies, strict=True):
        os.pwrite(fd, body, int(row["offset"]))
    return KeptBodies([path], index, ["application/json"], owned=[fd])


def known_of(bodies: Sequence[bytes], batch: int) -> tuple[Known, ...]:
    """Eight texts, and up to 64 others, as are asked again after each trial."""
    picks = np.random.default_rng(1).permutation(len(bodies) * batch)[: 8 + min(64, batch)]
    parts = []
    for part in (np.sort(picks[:8]), picks[8:]):
        vectors = [decode(bodies[place // batch]).matrix[place % batch] for place in part]
        parts.append(Known(part // batch, part % batch, np.stack(vectors)))
    return tuple(parts)


def measure_trials(batch: int, form: str, packed: bool, budget_s: float) -> None:
    """One trial, verified in this process, and by one process of a pool."""
    size = len(body_of(batch, form))
    bodies = [body_of(batch, form, seed) for seed in range(max(3, TRIAL_BYTES // size))]
    known, whole = known_of(bodies, batch), sum(map(len, bodies))
    if packed:
        bodies = [gzip.compress(body, 1) for body in bodies]
    expect = Expectation(batch, 80, "base64" if form == "base64" else "float", DIMENSION, "m")

    def verify(**more: Any) -> None:
        told = verify_trial(
            kept, expect, target="t", cell="c", trial=0, requests=len(bodies), known=known, **more
        )
        assert not told.findings, told.findings
        assert told.verified == len(bodies)

    with kept_of(bodies, packed) as kept, verify_pool(1) as pool:
        named = f"{form}, gzip" if packed else form
        for name, call in (
            ("a whole trial", verify),
            ("a whole trial, by one process", partial(verify, pool=pool)),
        ):
            call()  # the process is started, the pages are there
            tell(batch, named, whole, f"{name}: {len(bodies)} bodies", *seconds(call, budget_s))


def tell(batch: int, form: str, size: int, route: str, median: float, best: float) -> None:
    """One row."""
    speed = f"{size / median / 1e6:.0f} | {size / best / 1e6:.0f}"
    print(f"| {batch} | {form} | {size / 1e6:.2f} MB | {route} | {median * 1e3:.2f} | {speed} |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="From bytes to a float32 matrix")
    parser.add_argument("--seconds", type=float, default=1.0, help="time a route and body")
    parser.add_argument("--batch", type=int, action="append", help="default: 15 and 1024")
    parser.add_argument("--only-trials", action="store_true", help="leave the other routes out")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])  # the pool's process too
    print("| batch | form | bytes | route | median ms | MB/s | best MB/s |")
    print("|--:|:--|--:|:--|--:|--:|--:|")
    for batch in options.batch or [15, 1024]:
        for form in () if options.only_trials else FORMS:
            body = body_of(batch, form)
            wanted = decode(body).matrix
            for name, route in routes(batch, form).items():
                assert np.array_equal(route(body), wanted), name
                tell(batch, form, len(body), name, *seconds(partial(route, body), options.seconds))
        for form in FORMS:
            measure_trials(batch, form, False, options.seconds)
        measure_trials(batch, "base64", True, options.seconds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\npeak memory of all routes together: {peak:.0f} MiB")


if __name__ == "__main__":
    main()

"""The client's own floor: the null server's answers, calibration, and what is said about it."""

import base64
import json
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import psutil
import pytest

from embbench.config.plan import ClosedLoop, Encoding, OpenLoop, Work
from embbench.load.calibrate import Calibration, FloorCell, Pacing, calibrate
from embbench.load.limits import Place, floor_findings
from embbench.load.nullserver import canned_body, null_server
from embbench.load.processes import LoadProcesses


def matrix(body: bytes) -> Any:
    """The vectors of an answer, by the standard library alone."""
    data = json.loads(body)["data"]
    assert [item["index"] for item in data] == list(range(len(data)))
    values = [item["embedding"] for item in data]
    if isinstance(values[0], str):
        return np.array([np.frombuffer(base64.b64decode(value), "<f4") for value in values])
    return np.array(values, np.float32)


@pytest.mark.parametrize("batch", [1, 15])
def test_canned_answers_say_the_same_in_all_forms(batch: int) -> None:
    forms = [
        canned_body(batch, "base64", 64),
        canned_body(batch, "float", 64),
        canned_body(batch, "float", 64, shortest=True),
    ]
    matrices = [matrix(form) for form in forms]
    assert matrices[0].shape == (batch, 64)
    assert np.linalg.norm(matrices[0], axis=1) == pytest.approx(np.ones(batch), abs=1e-6)
    assert all((other == matrices[0]).all() for other in matrices)
    assert len(forms[0]) < len(forms[2]) < len(forms[1])


def test_sizes_are_those_of_real_servers() -> None:
    """A 1024-vector takes about 21.7 KB from bare vLLM and 12.7 KB from Dynamo."""
    assert len(canned_body(1, "float", 1024)) == pytest.approx(21_700, rel=0.02)
    assert len(canned_body(1, "float", 1024, shortest=True)) == pytest.approx(12_700, rel=0.02)


async def test_the_null_server_answers_each_path_and_ends() -> None:
    import asyncio

    def post(url: str, size: int) -> bytes:
        with urllib.request.urlopen(url, b"x" * size, timeout=10) as response:
            body: bytes = response.read()
            return body

    before = {child.pid for child in psutil.Process().children()}
    async with null_server(32) as url:
        for encoding, batch, size in (("float", 3, 0), ("base64", 2, 500_000), ("float", 1, 10)):
            body = await asyncio.to_thread(post, f"{url}/{encoding}/{batch}/v1/embeddings", size)
            assert matrix(body).shape == (batch, 32)
        for wrong in ("float16/3/x", "float/many/x"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                await asyncio.to_thread(post, f"{url}/{wrong}", 1)
    assert {child.pid for child in psutil.Process().children()} <= before


async def test_calibration_of_a_small_matrix() -> None:
    points: list[tuple[int, Encoding, int]] = [(1, "float", 1), (2, "base64", 4), (1, "float", 1)]
    async with LoadProcesses(1) as load:
        found = await calibrate(load, points, dimension=64, isl=4, seconds=0.1)
    assert [(c.batch, c.encoding, c.concurrency) for c in found.cells] == points[:2]
    for cell in found.cells:
        assert cell.response_bytes == len(canned_body(cell.batch, cell.encoding, 64))
        assert 0 < cell.p50_ns <= cell.p99_ns
        assert cell.requests >= 50
        assert cell.rps > 50
        assert cell.bytes_per_s == cell.rps * cell.response_bytes
        assert 0 < cell.client_cpu_ns < 1e9 / cell.rps * 2
    assert found.pacing.requests == 1000
    assert found.pacing.achieved_rps == pytest.approx(1000, rel=0.1)
    assert Calibration.from_json(json.loads(json.dumps(found.to_json()))) == found


def calibration() -> Calibration:
    cells = [
        FloorCell(15, "float", 1, 100, 300_000, 100_000, 200_000, 5_000.0, 50_000),
        FloorCell(15, "float", 8, 100, 300_000, 800_000, 900_000, 10_000.0, 50_000),
        FloorCell(64, "float", 8, 100, 300_000, 3_000_000, 4_000_000, 2_000.0, 50_000),
    ]
    return Calibration("buffered", 1, 1024, tuple(cells), Pacing(1e3, 1e3, 1000, 1, 2, 3, 0, 0))


def test_the_floor_of_a_point() -> None:
    known = calibration()

    def p50(batch: int, concurrency: int) -> int | None:
        floor = known.floor(batch, "float", concurrency)
        return None if floor is None else floor.p50_ns

    assert [p50(15, k) for k in (1, 4, 8, 100)] == [100_000, 100_000, 800_000, 800_000]
    assert p50(64, 1) == 3_000_000
    assert p50(1, 1) is None
    assert known.floor(15, "base64", 1) is None
    ceiling = known.ceiling(15, "float")
    assert ceiling is not None
    assert ceiling.rps == 10_000


@pytest.mark.parametrize(
    ("load", "p50_ms", "rate_rps", "expected"),
    [
        (ClosedLoop(1), 0.51, 1_900.0, []),
        (ClosedLoop(1), 0.49, 1_900.0, ["client-floor"]),
        (ClosedLoop(8), 3.9, 1_900.0, ["client-floor"]),
        (OpenLoop(6_900.0), 0.51, 6_900.0, []),
        (OpenLoop(7_100.0), 0.51, 7_100.0, ["client-ceiling"]),
        (ClosedLoop(8), 1.0, 8_000.0, ["client-floor", "client-ceiling"]),
    ],
)
def test_a_cell_near_the_client_is_told(
    load: OpenLoop | ClosedLoop, p50_ms: float, rate_rps: float, expected: list[str]
) -> None:
    work = Work(15, 80, "float", load, 100, 10)
    found = floor_findings(
        Place("bare", work.slug), work, calibration(), p50_ns=p50_ms * 1e6, rate_rps=rate_rps
    )
    assert [finding.check for finding in found] == expected
    assert all((f.target, f.cell, f.severity) == ("bare", work.slug, "warn") for f in found)


def test_a_cell_that_was_not_calibrated_is_not_judged() -> None:
    work = Work(1024, 80, "float", ClosedLoop(1), 100, 10)
    assert floor_findings(Place("t", "c"), work, calibration(), p50_ns=1.0, rate_rps=1e9) == []

"""The oracle itself: the scripted server does what its knobs say, and its record says so."""

import asyncio
import json
import time
import urllib.error
import urllib.request
from typing import Any

import aiohttp
import numpy as np
import pytest
from scripted_faults import FAULTS, vectors_of
from scripted_server import ScriptedServer, scripted_process


async def post(server: ScriptedServer, inputs: Any, **more: Any) -> tuple[int, Any]:
    body = {"model": "scripted", "input": inputs, **more}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.url}/embeddings", json=body) as response,
    ):
        return response.status, json.loads(await response.read())


def service_s(server: ScriptedServer) -> list[float]:
    return [(entry.answer_ns - entry.arrival_ns) / 1e9 for entry in server.log]


async def test_vectors_depend_on_the_text_alone(scripted_server: ScriptedServer) -> None:
    _, alone = await post(scripted_server, "w5 w7")
    _, batch = await post(scripted_server, ["x y", "w5 w7", "z"])
    _, ids = await post(scripted_server, [[5, 7, 1]])
    vectors = [a["data"][i]["embedding"] for a, i in ((alone, 0), (batch, 1), (ids, 0))]
    assert vectors[0] == vectors[1] == vectors[2]
    assert vectors[0] != batch["data"][0]["embedding"]
    assert np.linalg.norm(vectors[0]) == pytest.approx(1, abs=1e-6)
    assert batch["usage"]["prompt_tokens"] == 3 + 3 + 2
    many = vectors_of([(i, 1) for i in range(500)], 64)
    cosines = many @ many.T - np.eye(500)
    assert np.abs(cosines).max() < 0.75


async def test_delays_add_up_and_are_recorded(scripted_server: ScriptedServer) -> None:
    scripted_server.script(
        delay_s=0.02, delay_per_input_s=0.01, first_k=1, first_delay_s=0.1, slow_every=4, slow_s=0.2
    )
    for inputs in (["a"], ["a", "b", "c"], ["a"], ["a"], ["a"]):
        await post(scripted_server, inputs)
    asked = [0.13, 0.05, 0.03, 0.23, 0.03]
    for measured, delay_s in zip(service_s(scripted_server), asked, strict=True):
        assert delay_s <= measured < delay_s + 0.1


async def test_the_first_of_each_batch_size_and_seen_texts(
    scripted_server: ScriptedServer,
) -> None:
    scripted_server.script(first_k_of_batch=1, first_of_batch_s=0.15)
    for inputs in (["a"], ["b"], ["c", "d"], ["e", "f"]):
        await post(scripted_server, inputs)
    slow = [each > 0.14 for each in service_s(scripted_server)]
    assert slow == [True, False, True, False]
    scripted_server.script(first_k_of_batch=0, cache=True, delay_s=0.15)
    for inputs in (["g"], ["g"], ["g", "h"]):
        await post(scripted_server, inputs)
    assert [each > 0.14 for each in service_s(scripted_server)] == [True, False, True]
    assert scripted_server.counts.repeated_texts == 2


async def test_the_freeze_window_stops_all_work(scripted_server: ScriptedServer) -> None:
    scripted_server.script(delay_s=0.01, freeze_at_s=0.1, freeze_s=0.4)

    async def send(at_s: float) -> None:
        await asyncio.sleep(at_s)
        await post(scripted_server, ["a"])

    await asyncio.gather(*(send(at) for at in (0, 0.2, 0.3, 0.7)))
    first = scripted_server.log[0].arrival_ns
    answered = [(entry.answer_ns - first) / 1e9 for entry in scripted_server.log]
    assert answered[0] < 0.1
    assert answered[1] >= 0.5
    assert answered[2] >= 0.5
    assert service_s(scripted_server)[3] < 0.15


async def test_a_serial_server_answers_one_at_a_time(scripted_server: ScriptedServer) -> None:
    scripted_server.script(delay_s=0.05, serial=True)
    await asyncio.gather(*(post(scripted_server, ["a"]) for _ in range(6)))
    answers = sorted(entry.answer_ns for entry in scripted_server.log)
    assert np.diff(answers).min() >= 0.049e9
    assert scripted_server.counts.in_flight_max == 6
    assert scripted_server.answered == 6
    scripted_server.script(serial=False)
    await asyncio.gather(*(post(scripted_server, ["a"]) for _ in range(6)))
    assert max(service_s(scripted_server)) < 0.25


async def test_error_share_is_exact(scripted_server: ScriptedServer) -> None:
    scripted_server.script(error_share=0.4, error_code=503)
    statuses = [(await post(scripted_server, ["a"]))[0] for _ in range(25)]
    assert statuses.count(503) == 10
    assert [entry.status for entry in scripted_server.log] == statuses


@pytest.mark.parametrize(
    ("knobs", "inputs", "more", "status"),
    [
        ({"batch_limit": 2}, ["a"] * 3, {}, 422),
        ({"body_limit_bytes": 50}, ["a" * 50], {}, 413),
        ({"token_limit": 3}, ["a b c"], {}, 400),
        ({"reject_lists": True}, ["a"], {}, 400),
        ({"base64_refused": True}, ["a"], {"encoding_format": "base64"}, 400),
        ({}, ["a"], {"dimensions": 64}, 400),
        ({}, [], {}, 400),
        ({"api_key": "k"}, ["a"], {}, 401),
    ],
)
async def test_refusals(
    scripted_server: ScriptedServer, knobs: Any, inputs: Any, more: Any, status: int
) -> None:
    scripted_server.script(**knobs)
    got, answer = await post(scripted_server, inputs, **more)
    assert got == status
    assert answer["error"]["message"]


async def test_healthy_before_ready() -> None:
    async with ScriptedServer(ready_after_s=0.6) as server:
        seen: list[int] = []
        while not seen or seen[-1] != 200:
            seen.append((await post(server, ["a"]))[0])
            await asyncio.sleep(0.05)
        async with aiohttp.ClientSession() as session:
            for path in ("/models", "/health"):
                async with session.get(server.url + path) as response:
                    assert response.status == 200
    assert seen[0] == 404
    assert 500 in seen
    assert seen == sorted(seen, key=[404, 500, 200].index)


async def test_broken_connections(scripted_server: ScriptedServer) -> None:
    scripted_server.script(reset_request=0, cut_request=1)
    with pytest.raises(aiohttp.ClientError):
        await post(scripted_server, ["a"])
    with pytest.raises(aiohttp.ClientPayloadError):
        await post(scripted_server, ["a"])
    assert (await post(scripted_server, ["a"]))[0] == 200
    assert scripted_server.answered == 1


async def test_idle_connections_are_closed() -> None:
    async with ScriptedServer(close_idle_s=0.1) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        start = time.perf_counter()
        await asyncio.wait_for(reader.read(), 20)  # to the end of the connection
        assert time.perf_counter() - start >= 0.09
        writer.close()


async def test_service_time_in_a_header_chunks_and_compression(
    scripted_server: ScriptedServer,
) -> None:
    scripted_server.script(service_header=True, chunked=True, gzip=True, delay_s=0.03)
    async with (
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.post(f"{scripted_server.url}/embeddings", json={"input": ["a"]}) as response,
    ):
        await response.read()
        assert float(response.headers["openai-processing-ms"]) >= 30
        assert response.headers["Transfer-Encoding"] == "chunked"
        assert response.headers["Content-Encoding"] == "gzip"


def test_a_process_of_its_own_tells_its_record_and_ends() -> None:
    with scripted_process(delay_s=0.01) as server:
        request = urllib.request.Request(
            f"{server.url}/embeddings", json.dumps({"input": ["a b", "c"]}).encode()
        )
        urllib.request.urlopen(request).close()
        server.script(error_share=1.0)
        with pytest.raises(urllib.error.HTTPError, match="503") as refused:
            urllib.request.urlopen(request)
        refused.value.close()
        record = server.oracle()
    assert [entry["status"] for entry in record["log"]] == [503]
    assert record["counts"]["received"] == 1
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{server.url}/models")


async def test_unknown_faults_are_refused_and_known_ones_have_words() -> None:
    async with ScriptedServer(fault="no-such-fault") as server:
        with pytest.raises((aiohttp.ClientError, json.JSONDecodeError)):
            await post(server, ["a"])
    assert all(fault.encodings for fault in FAULTS.values())

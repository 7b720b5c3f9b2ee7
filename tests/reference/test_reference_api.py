"""Reference servers over HTTP: every shape of server gives the same vectors and the same errors."""

import base64
import json
import math
import socket
import struct
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference_server import Reference, Reply, reference

TEXTS = ["hi", "hello world", "one two, three", "naïve café 北京 😀", "x " * 200]
TOKENS = [2, 3, 5, 5, 201]
"""By hand: words and marks, and one special token."""

SHAPES = {
    "bare": ["--processes", "1"],
    "json": ["--processes", "2", "--hop", "json"],
    "base64-struct": ["--processes", "2", "--hop", "base64-struct"],
    "base64-numpy": ["--processes", "2", "--hop", "base64-numpy"],
    "shm": ["--processes", "2", "--hop", "shm"],
}


@pytest.fixture(scope="module", params=SHAPES, ids=list(SHAPES))
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Reference]:
    log = tmp_path_factory.mktemp("log") / "server.log"
    with reference(log, *SHAPES[request.param], "--max-body-mb", "1", "--max-batch", "64") as up:
        yield up


@pytest.fixture(scope="module")
def bare_vectors(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    with reference(tmp_path_factory.mktemp("log") / "bare.log") as bare:
        return as_bytes(bare.post(input=TEXTS))


def as_bytes(reply: Reply) -> list[bytes]:
    """The vectors of an answer of either encoding as little-endian float32."""
    assert reply.status == 200, reply.body
    rows = [item["embedding"] for item in reply.json["data"]]
    return [
        base64.b64decode(row) if isinstance(row, str) else struct.pack(f"<{len(row)}f", *row)
        for row in rows
    ]


def norm(row: list[float]) -> float:
    return math.sqrt(sum(value * value for value in row))


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_every_server_and_encoding_gives_the_same_bits(
    server: Reference, bare_vectors: list[bytes], encoding: str
) -> None:
    assert as_bytes(server.post(input=TEXTS, encoding_format=encoding)) == bare_vectors


def test_the_answer_has_openais_shape(server: Reference) -> None:
    reply = server.post(input=TEXTS)
    answer = reply.json
    assert reply.headers["content-type"].startswith("application/json")
    assert float(reply.headers["openai-processing-ms"]) > 0
    assert set(answer) == {"object", "data", "model", "usage"}
    assert (answer["object"], answer["model"]) == ("list", "embbench-numpy")
    assert answer["usage"] == {"prompt_tokens": sum(TOKENS), "total_tokens": sum(TOKENS)}
    for index, item in enumerate(answer["data"]):
        assert set(item) == {"object", "index", "embedding"}
        assert (item["object"], item["index"]) == ("embedding", index)
        assert len(item["embedding"]) == 1024
        assert norm(item["embedding"]) == pytest.approx(1, abs=1e-5)


def test_floats_are_printed_in_their_shortest_float32_form(server: Reference) -> None:
    text = server.post(input="hi").body.decode()
    printed = text[text.index("[", text.index('"embedding":')) + 1 :].split("]")[0].split(",")
    assert len(printed) == 1024
    assert all(Decimal(number) == Decimal(str(np.float32(number))) for number in printed)


def test_a_vector_is_the_same_alone_and_among_others(
    server: Reference, bare_vectors: list[bytes]
) -> None:
    for text, expected in zip(TEXTS, bare_vectors, strict=True):
        assert as_bytes(server.post(input=text)) == [expected]


def test_token_ids_are_taken_as_they_are(server: Reference) -> None:
    one, many = server.post(input=[7, 8, 9]), server.post(input=[[7, 8, 9], [10]])
    assert one.json["usage"]["prompt_tokens"] == 3
    assert many.json["usage"]["prompt_tokens"] == 4
    assert as_bytes(one)[0] == as_bytes(many)[0] != as_bytes(many)[1]


def test_dimensions_cut_and_scale_again(server: Reference) -> None:
    whole = server.post(input="hello world").json["data"][0]["embedding"]
    cut = server.post(input="hello world", dimensions=256).json["data"][0]["embedding"]
    assert len(cut) == 256
    assert norm(cut) == pytest.approx(1, abs=1e-5)
    scale = norm(whole[:256])
    assert cut == pytest.approx([value / scale for value in whole[:256]], abs=1e-6)


BAD: dict[str, tuple[Any, int, str | None]] = {
    "not json": (b"{", 400, None),
    "not utf-8": (b'{"model":"embbench-numpy","input":"\xff"}', 400, None),
    "empty body": (b"", 400, None),
    "a list": ([], 400, None),
    "no model": ({"input": "hi"}, 400, "model"),
    "model of another type": ({"model": 3, "input": "hi"}, 400, "model"),
    "unknown model": ({"model": "other", "input": "hi"}, 404, "model"),
    "no input": ({}, 400, "input"),
    "null input": ({"input": None}, 400, "input"),
    "empty text": ({"input": ""}, 400, "input"),
    "empty list": ({"input": []}, 400, "input"),
    "empty text in a list": ({"input": ["hi", ""]}, 400, "input"),
    "empty token list": ({"input": [[1], []]}, 400, "input"),
    "number": ({"input": 3}, 400, "input"),
    "object": ({"input": {"text": "hi"}}, 400, "input"),
    "texts and ids": ({"input": ["hi", [1, 2]]}, 400, "input"),
    "texts and numbers": ({"input": ["hi", 1]}, 400, "input"),
    "booleans": ({"input": [True, False]}, 400, "input"),
    "fractions": ({"input": [1.5, 2]}, 400, "input"),
    "negative id": ({"input": [-1]}, 400, "input"),
    "id beyond the vocabulary": ({"input": [1 << 33]}, 400, "input"),
    "too many tokens": ({"input": "word " * 8192}, 400, "input"),
    "too many inputs": ({"input": ["hi"] * 65}, 400, "input"),
    "unknown encoding": ({"input": "hi", "encoding_format": "hex"}, 400, "encoding_format"),
    "encoding of another type": ({"input": "hi", "encoding_format": 1}, 400, "encoding_format"),
    "no dimension": ({"input": "hi", "dimensions": 0}, 400, "dimensions"),
    "too many dimensions": ({"input": "hi", "dimensions": 1025}, 400, "dimensions"),
    "dimensions as text": ({"input": "hi", "dimensions": "256"}, 400, "dimensions"),
    "dimensions true": ({"input": "hi", "dimensions": True}, 400, "dimensions"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_requests_are_refused_in_openais_shape(server: Reference, case: str) -> None:
    fields, status, param = BAD[case]
    if isinstance(fields, dict):
        fields = {**({} if case == "no model" else {"model": "embbench-numpy"}), **fields}
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    reply = server.call("POST", "/v1/embeddings", body)
    assert reply.status == status
    error = reply.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert error["message"]
    assert server.post(input="still there").status == 200


def test_the_longest_input_is_taken(server: Reference) -> None:
    assert server.post(input="word " * 8191).json["usage"]["prompt_tokens"] == 8192


def test_paths_methods_and_sizes_are_refused_in_openais_shape(server: Reference) -> None:
    large = b'{"input":"' + b"x" * 1_000_001
    refused = {
        404: server.call("GET", "/v1/nothing"),
        405: server.call("GET", "/v1/embeddings"),
        413: server.call("POST", "/v1/embeddings", large),
    }
    for status, reply in refused.items():
        assert reply.status == status
        assert set(reply.json["error"]) == {"message", "type", "param", "code"}
    assert refused[405].headers["allow"] == "POST"


def test_models_and_health(server: Reference) -> None:
    models = server.call("GET", "/v1/models").json
    assert [model["id"] for model in models["data"]] == ["embbench-numpy"]
    assert models["data"][0]["max_model_len"] == 8192
    assert server.call("GET", "/health").json == {"status": "ok"}


def test_metrics_count_what_was_sent(server: Reference) -> None:
    before = server.metrics()
    server.post(input=TEXTS)
    server.post(input="hi")
    server.post(input="")
    server.call("GET", "/health")
    after = server.metrics()

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown('embbench_requests_total{status="200"}') == 2
    assert grown('embbench_requests_total{status="400"}') == 1
    assert grown("embbench_errors_total") == 1
    assert grown("embbench_inputs_total") == len(TEXTS) + 1
    assert grown("embbench_prompt_tokens_total") == sum(TOKENS) + 2
    assert grown('embbench_seconds_total{stage="engine"}') > 0


def test_the_form_on_the_hop_shows_in_its_bytes(server: Reference) -> None:
    info = next(name for name in server.metrics() if name.startswith("embbench_info"))
    hop = next(shape for shape in SHAPES if f'hop="{shape}"' in info)
    name = 'embbench_hop_bytes_total{direction="to_frontend"}'
    before = server.metrics()
    server.post(input=["one text"] * 10)
    vector_bytes = (server.metrics().get(name, 0) - before.get(name, 0)) / 10
    match hop:
        case "bare":
            assert vector_bytes == 0
        case "json":
            assert vector_bytes > 1024 * 15  # float64 digits, as tolist() makes them
        case "base64-struct" | "base64-numpy":
            assert 5464 <= vector_bytes <= 5464 + 60  # 4096 bytes in base64
        case "shm":
            assert vector_bytes < 60


def test_an_oversized_body_without_a_length_is_refused(server: Reference) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(
            b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        for _ in range(20):
            connection.sendall(chunk)
        assert connection.recv(100).split(b" ")[1] == b"413"


@pytest.mark.parametrize("hop", ["base64-struct", "base64-numpy", "json", "shm"])
def test_without_pooling_the_dimension_is_tokens_times_1024(tmp_path: Path, hop: str) -> None:
    """The story's bug, as it showed itself."""
    arguments = ["--pooling", "token", "--processes", "2", "--hop", hop]
    with reference(tmp_path / "log", *arguments) as server:
        rows = [
            server.post(input=text).json["data"][0]["embedding"] for text in ("hi", "hello world")
        ]
        assert [len(row) for row in rows] == [2048, 3072]
        assert norm(rows[0]) > 5
        ragged = server.post(input=["hi", "hello world"]).json["data"]
        assert [item["embedding"] for item in ragged] == rows
        assert server.post(input="hi", dimensions=256).status == 400
        if hop == "shm":
            metrics = server.metrics()
            assert metrics['embbench_shm_fallbacks_total{reason="ragged"}'] == 1
            assert metrics["embbench_shm_collected_total"] == 2


def test_known_delays_are_served_one_request_after_the_other(tmp_path: Path) -> None:
    arguments = ["--delay-ms-per-request", "100", "--delay-ms-per-input", "50"]
    with reference(tmp_path / "log", "--processes", "2", *arguments) as server:
        server.post(input="warm")
        started = time.monotonic()
        threads = [
            threading.Thread(target=server.post, kwargs={"input": ["a", "b"]}) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        assert server.metrics()["embbench_in_flight"] == 4
        for thread in threads:
            thread.join()
        assert 0.6 <= time.monotonic() - started < 3


def test_health_answers_while_a_long_batch_runs(tmp_path: Path) -> None:
    with reference(tmp_path / "log") as server:
        texts = [f"{number} " * 500 for number in range(1000)]
        batch = threading.Thread(target=server.post, kwargs={"input": texts})
        started = time.monotonic()
        batch.start()
        answers = 0
        while batch.is_alive():
            server.call("GET", "/health")
            answers += 1
        assert answers / (time.monotonic() - started) > 5


def test_a_server_can_be_named_and_left_without_norm_or_dimensions(tmp_path: Path) -> None:
    arguments = ["--served-model-name", "mine", "--no-normalise", "--no-allow-dimensions"]
    with reference(tmp_path / "log", *arguments) as server:
        assert server.post(input="hi").status == 404
        reply = server.post(model="mine", input="hi")
        assert reply.json["model"] == "mine"
        assert norm(reply.json["data"][0]["embedding"]) > 2
        assert server.post(model="mine", input="hi", dimensions=256).status == 400

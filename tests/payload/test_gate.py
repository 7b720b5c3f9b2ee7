"""The gate against the scripted server: rows in words, facts, and how it ends."""

import asyncio
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson
import pytest
from catalogue import Words
from scripted_faults import vectors_of
from scripted_server import SPECIAL_TOKEN, Script, ScriptedServer

from embbench.errors import TargetError
from embbench.payload.ask import Asker, known_vectors
from embbench.payload.gate import GatePlan, GateResult, run_gate
from embbench.payload.gate.standalone import exit_status, table, verify_endpoint
from embbench.payload.wire import WireError
from embbench.targets.endpoint import Endpoint

PLAN = GatePlan([80], [15, 64], ["float", "base64"])


def endpoint(server: ScriptedServer, **more: object) -> Endpoint:
    return Endpoint("stub", server.url, "scripted", **more)  # type: ignore[arg-type]


async def gate(server: ScriptedServer, plan: GatePlan = PLAN) -> dict[str, tuple[str, str]]:
    result = await run_gate(endpoint(server), Words(), plan)
    return {row.check: (row.status, row.what) for row in result.rows}


def ids_of(text: str) -> list[int]:
    return [*(int(word[1:]) for word in text.split()), SPECIAL_TOKEN]


async def test_a_good_server_passes_and_its_facts_are_known(
    scripted_server: ScriptedServer,
) -> None:
    result = await run_gate(endpoint(scripted_server), Words(), PLAN)
    assert result.passed
    assert result.findings == ()
    assert {row.status for row in result.rows} == {"PASS"}
    assert (result.dimension, result.model) == (1024, "scripted")
    assert result.float_vector_bytes == scripted_server.log[1].response_bytes
    assert result.base64_vector_bytes == scripted_server.log[-1].response_bytes
    texts = Words().texts(80, "gate", 0, 8)
    expected = vectors_of([tuple(ids_of(text)) for text in texts], 1024)
    assert result.reference.tobytes() == expected.tobytes()
    assert result.reference_tokens == 8 * 80
    assert len(scripted_server.log) < 40
    assert orjson.dumps(result.to_json())


async def test_per_token_output_ends_the_gate(scripted_server: ScriptedServer) -> None:
    scripted_server.script(fault="per-token")
    result = await run_gate(endpoint(scripted_server), Words(), PLAN)
    assert [row.status for row in result.rows] == ["PASS", "FAIL"]
    assert result.rows[1].what == (
        "dimension grows with input length (2048 for 2 tokens, 81920 for 80): "
        "per-token output, no pooling"
    )
    (finding,) = result.findings
    assert (finding.check, finding.severity, finding.target) == ("gate-dimension", "fail", "stub")


async def test_order_is_proven_by_content(scripted_server: ScriptedServer) -> None:
    scripted_server.script(fault="swapped")
    rows = await gate(scripted_server)
    assert rows["content"][0] == "FAIL"
    assert rows["content"][1].startswith("vectors permuted: input 4 came back as 9")


async def test_a_batch_limit_is_a_warning_and_counts_are_asked_in_parts(
    scripted_server: ScriptedServer,
) -> None:
    scripted_server.script(batch_limit=4)
    rows = await gate(scripted_server, GatePlan([80], [8, 2], ["float"]))
    assert rows["batch"] == ("PASS", "2 vectors for 2 texts, in two orders")
    rows = await gate(scripted_server, GatePlan([80], [8], ["float"]))
    assert rows["batch"] == ("WARN", "status 422: batch size 8 > maximum allowed 4 (8 texts)")
    assert "batch" not in await gate(scripted_server, GatePlan([80], [1], ["float"]))
    async with Asker(endpoint(scripted_server)) as asker:
        assert await asker.count_tokens(Words().texts(80, "gate", 0, 13)) == 13 * 80
        scripted_server.script(error_share=1.0, error_code=413)
        with pytest.raises(TargetError, match=r"target 'stub' at .*status 413"):
            await asker.count_tokens(["w1", "w2", "w3"])


async def test_the_first_text_can_be_moved_on(scripted_server: ScriptedServer) -> None:
    scripted_server.keep_bodies = True
    sent: list[set[str]] = []
    for first in (0, 100):
        plan = GatePlan([80], [15], ["float"], first_text=first)
        assert (await run_gate(endpoint(scripted_server), Words(), plan)).passed
        texts = {text for body in scripted_server.bodies for text in orjson.loads(body)["input"]}
        sent.append({text for text in texts if " " in text})  # there are few of two tokens
        scripted_server.bodies.clear()
    assert len(sent[0]) >= 15
    assert not sent[0] & sent[1]


async def test_silent_truncation_is_measured(scripted_server: ScriptedServer) -> None:
    scripted_server.script(truncate_tokens=64)
    rows = await gate(scripted_server)
    assert rows["truncation"] == (
        "FAIL",
        "the first 64 tokens decide the vector: silent truncation (text of 80 tokens)",
    )


@pytest.mark.parametrize(
    ("knobs", "status", "words"),
    [
        ({"token_limit": 256}, "PASS", "refused: status 400: maximum context length is 256"),
        ({"truncate_tokens": 256}, "FAIL", "the first 256 of 320 tokens decide the vector"),
        (
            {"truncate_tokens": 256, "truncate_usage": True},
            "WARN",
            "320 tokens are cut to 256, as usage says: declared truncation",
        ),
        ({}, "WARN", "320 tokens are embedded, though 256 are said to fit"),
    ],
)
async def test_too_long_an_input_must_be_refused_or_cut_openly(
    scripted_server: ScriptedServer, knobs: dict[str, int], status: str, words: str
) -> None:
    scripted_server.script(**knobs)
    rows = await gate(scripted_server, GatePlan([80], [15], ["float"], longest=256))
    assert rows["over-long"][0] == status
    assert words in rows["over-long"][1]
    assert "256" in rows["dimension"][1]


async def test_token_ids_are_compared_with_their_text(scripted_server: ScriptedServer) -> None:
    plan = GatePlan([80], [15], ["float"], tokenize=ids_of)
    assert (await gate(scripted_server, plan))["token ids"][0] == "PASS"
    wrong = GatePlan([80], [15], ["float"], tokenize=lambda text: ids_of(text)[:-1])
    status, what = (await gate(scripted_server, wrong))["token ids"]
    assert status == "FAIL"
    assert "not the vector of its text" in what


@pytest.mark.parametrize(
    ("knobs", "status", "words"),
    [
        ({"dimensions_refused": False}, "PASS", "dimensions=256 gives 256 numbers of norm 1"),
        ({}, "FAIL", "dimensions=256 is not supported: status 400"),
    ],
)
async def test_fewer_dimensions_are_asked_for_only_if_the_run_does(
    scripted_server: ScriptedServer, knobs: dict[str, bool], status: str, words: str
) -> None:
    scripted_server.script(**knobs)
    assert "dimensions" not in await gate(scripted_server)
    rows = await gate(scripted_server, GatePlan([80], [15], ["float"], dimensions=256))
    assert rows["dimensions"][0] == status
    assert words in rows["dimensions"][1]


async def test_refused_base64_matters_only_where_it_is_measured(
    scripted_server: ScriptedServer,
) -> None:
    scripted_server.script(base64_refused=True)
    assert (await gate(scripted_server))["base64"][0] == "FAIL"
    rows = await gate(scripted_server, GatePlan([80], [15], ["float"]))
    assert rows["base64"] == ("WARN", "status 400: encoding_format base64 is not supported")


async def test_rounded_json_numbers_are_noticed(scripted_server: ScriptedServer) -> None:
    scripted_server.script(numbers="float64")
    assert (await gate(scripted_server))["base64"][0] == "PASS"
    scripted_server.script(fault="float-rounded")
    status, what = (await gate(scripted_server))["base64"]
    assert status == "WARN"
    assert "the JSON numbers are rounded" in what


async def test_a_declared_lack_of_normalisation_passes(scripted_server: ScriptedServer) -> None:
    scripted_server.script(fault="not-normalised")
    assert (await gate(scripted_server))["norm"][0] == "FAIL"
    free = GatePlan([80], [15], ["float"], normalised=False)
    rows = await gate(scripted_server, free)
    assert {status for status, _ in rows.values()} == {"PASS"}
    assert rows["norm"][1] == "norm 3.700000 to 3.700000 (declared as not normalised)"


async def test_compression_and_chunks_are_facts(scripted_server: ScriptedServer) -> None:
    scripted_server.script(gzip=True, chunked=True)
    result = await run_gate(endpoint(scripted_server), Words(), PLAN)
    assert (result.passed, result.gzip, result.chunked) == (True, True, True)
    assert [f.check for f in result.findings] == ["gate-compression"]


async def test_the_servers_words_are_shown(scripted_server: ScriptedServer) -> None:
    scripted_server.script(reject_lists=True)
    assert await gate(scripted_server) == {
        "answer": ("FAIL", "status 400: input must be a string (one text of 2 tokens)")
    }


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"hang_request": 0}, "no complete answer within 1 s"),
        ({"stall_body_request": 0}, "no complete answer within 1 s"),
        ({"cut_request": 0}, "no answer"),
    ],
)
async def test_answers_that_never_end_are_named(
    scripted_server: ScriptedServer, knobs: dict[str, int], words: str
) -> None:
    scripted_server.script(**knobs)
    async with Asker(endpoint(scripted_server), timeout_s=1) as asker:
        with pytest.raises(WireError, match=words):
            await asker.ask(["w1 w2"])


async def test_endless_and_huge_bodies_are_not_read(
    scripted_server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embbench.payload.ask.BODY_BYTES_MAX", 1 << 20)
    scripted_server.script(endless_request=0)
    async with Asker(endpoint(scripted_server)) as asker:
        with pytest.raises(WireError, match="does not end after"):
            await asker.ask(["w1"])

    async def announce(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
        writer.write(b"Content-Length: 10737418240\r\n\r\n{")
        await writer.drain()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(announce, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with Asker(Endpoint("t", f"http://127.0.0.1:{port}/v1", "m")) as asker:
            with pytest.raises(WireError, match="10737418240 bytes is announced"):
                await asker.ask(["w1"])


# --- on its own


async def alone(server: ScriptedServer, **more: object) -> GateResult:
    return await verify_endpoint(endpoint(server, **more), PLAN)


async def test_verify_makes_its_own_texts(scripted_server: ScriptedServer) -> None:
    result = await alone(scripted_server)
    assert exit_status(result) == 0
    assert ("usage", "PASS", "usage says 80 tokens for a text of 80") in table(result)


async def test_verify_without_counts_says_so(scripted_server: ScriptedServer) -> None:
    scripted_server.script(fault="usage-missing")
    result = await alone(scripted_server)
    assert exit_status(result) == 0
    assert [row.status for row in result.rows if row.check == "usage"] == ["WARN"]
    scripted_server.script(fault="usage-one")
    result = await alone(scripted_server)
    assert exit_status(result) == 3


@pytest.mark.parametrize("fault", ["per-token", "html-page", "not-normalised", "swapped"])
async def test_verify_exits_with_3_on_a_fault(scripted_server: ScriptedServer, fault: str) -> None:
    scripted_server.script(fault=fault)
    assert exit_status(await alone(scripted_server)) == 3


async def test_a_key_and_a_path_prefix() -> None:
    async with ScriptedServer(prefix="/proxy/a", api_key="secret") as server:
        refused = await alone(server)
        assert exit_status(refused) == 3
        assert "status 401: invalid api key" in refused.rows[0].what
        result = await alone(server, headers={"Authorization": "Bearer secret"})
        assert exit_status(result) == 0
        assert "secret" not in str(result.to_json())


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A key and a certificate that it signs itself, for 127.0.0.1."""
    key, signed = tmp_path / "key.pem", tmp_path / "cert.pem"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = [*request, *names, "-keyout", str(key), "-out", str(signed)]
    try:
        subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no openssl to make a certificate")
    return key, signed


async def test_https(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    key, signed = certificate
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(signed, key)
    async with ScriptedServer(ssl=context) as server:
        with pytest.raises(TargetError, match="certificate verify failed"):
            await alone(server)
        monkeypatch.setenv("SSL_CERT_FILE", str(signed))
        assert exit_status(await alone(server)) == 0


async def test_nobody_there_is_an_error_of_the_target(free_port: Callable[[], int]) -> None:
    nobody = Endpoint("t", f"http://127.0.0.1:{free_port()}/v1", "m")
    with pytest.raises(TargetError, match="no answer"):
        await run_gate(nobody, Words(), PLAN)
    with pytest.raises(TargetError, match="no answer"):
        await verify_endpoint(nobody, PLAN)


# --- texts of a trial, asked again


async def test_known_vectors_are_those_of_the_trials_texts(
    scripted_server: ScriptedServer,
) -> None:
    texts = [Words().texts(80, "trial", seq * 15, 15) for seq in range(10)]

    def body(seq: int) -> bytes:
        return orjson.dumps({"input": texts[seq]})

    async with Asker(endpoint(scripted_server)) as asker:
        known, flaws = await known_vectors(
            asker, body, requests=10, batch=15, encoding="float", dimension=1024, seed=3
        )
    assert flaws == ()
    assert [len(each.vectors) for each in known] == [8, 15]
    for each in known:
        for seq, item, vector in zip(each.seq, each.item, each.vectors, strict=True):
            expected = vectors_of([tuple(ids_of(texts[seq][item]))], 1024)[0]
            assert np.array_equal(vector, expected)
    assert [entry.batch for entry in scripted_server.log] == [1] * 8 + [15] * 2
    places = {(s, i) for each in known for s, i in zip(each.seq, each.item, strict=True)}
    assert len(places) == 23


async def test_a_server_that_mixes_up_is_found_when_asked_again(
    scripted_server: ScriptedServer,
) -> None:
    scripted_server.script(fault="rotated")
    texts = Words().texts(80, "trial", 0, 15)
    async with Asker(endpoint(scripted_server)) as asker:
        known, flaws = await known_vectors(
            asker,
            lambda seq: orjson.dumps({"input": texts}),
            requests=1,
            batch=15,
            encoding="float",
            dimension=1024,
            seed=3,
            singles=4,
        )
        (flaw,) = flaws
        assert flaw.severity == "fail"
        assert flaw.what.startswith("asked again after the trial: vectors permuted: input")
        assert len(known[0].vectors) == 4
        assert len(known) == 1  # what is not certain is not known
        scripted_server.knobs = Script(error_share=1.0)
        known, flaws = await known_vectors(
            asker,
            lambda seq: orjson.dumps({"input": texts}),
            requests=1,
            batch=15,
            encoding="float",
            dimension=1024,
            seed=3,
        )
    assert known == ()
    assert flaws[0].severity == "warn"

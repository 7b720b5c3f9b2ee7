"""Both clients against servers of raw bytes: the same suite, the same outcomes."""

import asyncio
import gzip
import os
import resource
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest
from raw_server import (
    Peer,
    answers,
    asking,
    exchange_with,
    raw_server,
    run,
    then,
)

from embbench.errors import LoadError
from embbench.load.client import (
    ERRORS,
    IDLE_LIMIT_S,
    ClientName,
    ClientOptions,
    parse_url,
    request_head,
)
from embbench.results import samples

BODY = b'{"data": [1, 2, 3]}'
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 19\r\n\r\n" + BODY
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\n" + BODY[:5] + b"\r\n"
    b"e\r\n" + BODY[5:] + b"\r\n"
    b"0\r\n\r\n"
)


@pytest.fixture(params=["buffered", "aiohttp"])
def client(request: pytest.FixtureRequest) -> ClientName:
    name: ClientName = request.param
    return name


@pytest.fixture(params=[True, False], ids=["kept", "unkept"])
def keep(request: pytest.FixtureRequest) -> bool:
    value: bool = request.param
    return value


def check_ok(client: ClientName, reply: bytes, keep: bool, body: bytes = BODY, **how: int) -> None:
    outcomes, server = exchange_with(client, answers(reply, **how), 3, keep)
    for outcome in outcomes:
        exchange = outcome.exchange
        assert (exchange.error, exchange.head.status) == (None, 200)
        assert exchange.response_bytes == len(body)
        assert outcome.body == (body if keep else None)
        assert 0 < exchange.start_ns <= exchange.first_byte_ns <= exchange.end_ns
    assert server.connections == 1
    assert [o.exchange.connect_ns > 0 for o in outcomes] == [True, False, False]
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 19\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 19\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nCONTENT-LENGTH:19\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \t 19\r\n\r\n",
        b"HTTP/1.1 200 \r\nContent-Length: 19\r\n\r\n",
        b"HTTP/1.1 200 Fine, thanks\r\nContent-Length: 19\r\nConnection: keep-alive\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0019\r\nX-Empty:\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Content-Length: 7\r\nContent-Length: 19\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Latin: \xe9\xff\r\nContent-Length: 19\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 20_000 + b"\r\nContent-Length: 19\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 19\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 19\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 19\r\n\r\n",
    ],
)
def test_spellings_of_a_head(client: ClientName, head: bytes, keep: bool) -> None:
    check_ok(client, head + BODY, keep)


@pytest.mark.parametrize(
    "chunks",
    [
        b"13\r\n" + BODY + b"\r\n0\r\n\r\n",
        b"0013\r\n" + BODY + b"\r\n000\r\n\r\n",
        b"13;name=value\r\n" + BODY + b"\r\n0\r\n\r\n",
        b'13;a="b;c";d\r\n' + BODY + b"\r\n0;last\r\n\r\n",
        b"13\r\n" + BODY + b"\r\n0\r\nX-Time: 5\r\nX-Sum: 99\r\n\r\n",
        b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n",
    ],
)
def test_chunked_with_extensions_and_trailers(
    client: ClientName, chunks: bytes, keep: bool
) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    check_ok(client, head + chunks, keep)
    outcomes, _ = exchange_with(client, answers(head + chunks))
    assert outcomes[0].exchange.head.flags & samples.CHUNKED


@pytest.mark.parametrize("reply", [OK, CHUNKED], ids=["length", "chunked"])
@pytest.mark.parametrize("piece", [1, 7])
def test_a_few_bytes_at_a_time(client: ClientName, reply: bytes, piece: int, keep: bool) -> None:
    check_ok(client, reply, keep, piece=piece)


@pytest.mark.parametrize("size", [0, 1, 65_000, 65_536, 1_048_576, 3_000_000])
@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_of_all_sizes_arrive_whole(
    client: ClientName, size: int, chunked: bool, keep: bool
) -> None:
    body = bytes(range(251)) * (size // 251 + 1)
    body = body[:size]
    if chunked:
        pieces = [body[at : at + 8192] for at in range(0, size, 8192)]
        coded = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"
        reply = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + coded
    else:
        reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + body
    check_ok(client, reply, keep, body)


def test_a_body_until_the_connection_closes(client: ClientName, keep: bool) -> None:
    script = then(b"HTTP/1.0 200 OK\r\n\r\n" + BODY * 9_000, Peer.close)
    outcomes, server = exchange_with(client, script, 2, keep)
    for outcome in outcomes:
        assert outcome.exchange.error is None
        assert outcome.exchange.response_bytes == 171_000
        assert outcome.body == (BODY * 9_000 if keep else None)
    assert server.connections == 2


@pytest.mark.parametrize("more", [b"", b"Content-Length: 0\r\n", b"Content-Length: 5\r\n"])
def test_no_content(client: ClientName, more: bytes) -> None:
    reply = b"HTTP/1.1 204 No Content\r\n" + more + b"\r\n"
    outcomes, server = exchange_with(client, answers(reply), 2)
    for outcome in outcomes:
        assert (outcome.exchange.head.status, outcome.exchange.error) == (204, None)
        assert outcome.exchange.response_bytes == 0
    assert server.connections == 1


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 404, 413, 422, 429, 500, 503])
def test_a_status_is_the_name_of_a_failure(client: ClientName, status: int) -> None:
    reply = b"HTTP/1.1 %d X\r\nLocation: /v1/elsewhere\r\nContent-Length: 19\r\n\r\n" % status
    outcomes, server = exchange_with(client, answers(reply + BODY), 2)
    for outcome in outcomes:
        assert (outcome.exchange.head.status, outcome.exchange.error) == (status, f"http-{status}")
        assert outcome.body == BODY  # the server's own words
    assert (server.connections, len(server.requests)) == (1, 2)  # not followed, not retried


def test_gzip_is_flagged_and_left_alone(client: ClientName) -> None:
    packed = gzip.compress(BODY)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Type: application/json\r\n"
    outcomes, _ = exchange_with(
        client, answers(head + b"Content-Length: %d\r\n\r\n" % len(packed) + packed)
    )
    exchange = outcomes[0].exchange
    assert exchange.head.flags & samples.GZIP
    assert exchange.response_bytes == len(packed)
    assert outcomes[0].body == packed
    assert exchange.head.content_type == "application/json"


# -- answers that are none --------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply",
    [
        b"garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
        b"HTTP/2 200 OK\r\nContent-Length: 19\r\n\r\n" + BODY,
        b"HTTP/1.1 20 OK\r\nContent-Length: 19\r\n\r\n" + BODY,
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 19\r\nContent-Length: 20\r\n\r\n" + BODY,
        b"HTTP/1.1 200 OK\r\nContent-Length: 19\r\nTransfer-Encoding: chunked\r\n\r\n" + BODY,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nhello\r\n0\r\n\r\n",
    ],
)
def test_what_is_not_http(client: ClientName, reply: bytes, keep: bool) -> None:
    outcomes, server = exchange_with(client, answers(reply), 2, keep)
    assert [outcome.exchange.error for outcome in outcomes] == ["bad-http"] * 2
    assert server.connections == 2  # such a connection is not used again


def test_a_flood_of_headers_is_bounded(client: ClientName, keep: bool) -> None:
    async def flood(peer: Peer) -> None:
        await peer.request()
        await peer.say(b"HTTP/1.1 200 OK\r\n")
        while True:
            await peer.say(b"X-Flood: " + b"x" * 1000 + b"\r\n")

    outcomes, _ = exchange_with(client, flood, 1, keep)
    assert outcomes[0].exchange.error == "bad-http"


def test_one_endless_header_is_bounded(client: ClientName, keep: bool) -> None:
    async def flood(peer: Peer) -> None:
        await peer.request()
        await peer.say(b"HTTP/1.1 200 OK\r\nX-Flood: ")
        while True:
            await peer.say(b"x" * 4096)

    outcomes, _ = exchange_with(client, flood, 1, keep)
    assert outcomes[0].exchange.error == "bad-http"


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit(client: ClientName, chunked: bool, keep: bool) -> None:
    async def endless(peer: Peer) -> None:
        await peer.request()
        await peer.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await peer.say(b"1000\r\n" + b"x" * 4096 + b"\r\n")

    promised = answers(b"HTTP/1.1 200 OK\r\nContent-Length: 100001\r\n\r\n")
    script = endless if chunked else promised
    outcomes, _ = exchange_with(client, script, 1, keep, max_body_bytes=100_000)
    assert outcomes[0].exchange.error == "body-too-large"
    assert outcomes[0].exchange.response_bytes <= 100_000 + (1 << 20)


def test_a_body_until_close_over_the_limit(client: ClientName, keep: bool) -> None:
    async def endless(peer: Peer) -> None:
        await peer.request()
        await peer.say(b"HTTP/1.0 200 OK\r\n\r\n")
        while True:
            await peer.say(b"x" * 4096)

    outcomes, _ = exchange_with(client, endless, 1, keep, max_body_bytes=100_000)
    assert outcomes[0].exchange.error == "body-too-large"


# -- connections that end ---------------------------------------------------------------------


@pytest.mark.parametrize("reply", [OK, CHUNKED], ids=["length", "chunked"])
def test_reset_at_every_byte(client: ClientName, reply: bytes) -> None:
    async def main() -> list[tuple[str | None, int]]:
        seen = []
        for position in range(len(reply) + 1):
            script = then(reply[:position], Peer.reset)
            async with raw_server(script) as server, asking(client, server.url) as ask:
                outcome = (await ask([b"{}"]))[0]
                seen.append((outcome.exchange.error, outcome.exchange.head.status))
        return seen

    seen = run(main())
    assert seen[-1] == (None, 200)
    names = {error for error, _ in seen[:-1]}
    if client == "aiohttp":  # does not always tell a reset from a close in a body
        names.discard("truncated-body")
    assert names == {"connection-reset"}


@pytest.mark.parametrize("reply", [OK, CHUNKED], ids=["length", "chunked"])
def test_close_at_every_byte(client: ClientName, reply: bytes) -> None:
    async def main() -> list[str | None]:
        seen = []
        for position in range(len(reply) + 1):
            script = then(reply[:position], Peer.close)
            async with raw_server(script) as server, asking(client, server.url) as ask:
                seen.append((await ask([b"{}"]))[0].exchange.error)
        return seen

    seen = run(main())
    assert seen[-1] is None
    assert seen[0] == "connection-closed"
    # aiohttp does not tell whether a part of a head had come
    begun = 1 if client == "buffered" else reply.index(b"\r\n\r\n") + 4
    assert set(seen[1:begun]) <= {"connection-closed"}
    assert set(seen[begun:-1]) == {"truncated-body"}


def test_half_a_body(client: ClientName, keep: bool) -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n" + b"x" * 1_000_000
    outcomes, _ = exchange_with(client, then(reply, Peer.close), 1, keep)
    exchange = outcomes[0].exchange
    assert exchange.error == "truncated-body"
    assert exchange.response_bytes == 1_000_000


def test_a_length_too_small_is_not_http(client: ClientName, keep: bool) -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n" + BODY
    outcomes, server = exchange_with(client, answers(reply), 3, keep)
    for outcome in outcomes:
        assert outcome.exchange.error == "bad-http"
    assert server.connections == 3


def test_an_answer_nobody_asked_for_is_not_the_next_one(client: ClientName) -> None:
    stale = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nSTALE"
    outcomes, server = exchange_with(client, answers(OK + stale), 4)
    assert [outcome.body for outcome in outcomes] == [BODY] * 4
    assert server.connections == 4


def test_a_chunked_answer_with_a_surplus(client: ClientName) -> None:
    outcomes, server = exchange_with(client, answers(CHUNKED + OK), 3)
    assert [outcome.body for outcome in outcomes] == [BODY] * 3
    assert server.connections == 3


def test_words_on_an_idle_connection_end_it() -> None:
    """The buffered client only: aiohttp takes such words for the next answer."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(OK)
        await asyncio.sleep(0.05)
        await peer.say(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        await peer.request()

    async def main() -> None:
        async with raw_server(script) as server, asking("buffered", server.url) as ask:
            assert (await ask([b"{}"]))[0].exchange.error is None
            await asyncio.sleep(0.3)
            assert (await ask([b"{}"]))[0].body == BODY
            assert server.connections == 2

    run(main())


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 19\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 19\r\n\r\n",
    ],
)
def test_a_server_that_closes_after_every_answer(client: ClientName, head: bytes) -> None:
    outcomes, server = exchange_with(client, then(head + BODY, Peer.close), 5)
    assert [outcome.exchange.error for outcome in outcomes] == [None] * 5
    assert all(outcome.exchange.connect_ns > 0 for outcome in outcomes)
    assert server.connections == 5


def test_a_close_without_notice_between_answers(client: ClientName) -> None:
    async def main() -> None:
        async with raw_server(then(OK, Peer.close)) as server, asking(client, server.url) as ask:
            for _ in range(5):
                assert (await ask([b"{}"]))[0].exchange.error is None
                await asyncio.sleep(0.05)  # the close arrives while the connection is idle
            assert server.connections == 5

    run(main())


@pytest.mark.parametrize("end", [Peer.close, Peer.reset])
def test_a_stale_connection_has_its_own_name_and_is_not_retried(
    client: ClientName, end: object
) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(OK)
        await peer.request()
        end(peer)  # type: ignore[operator]

    outcomes, server = exchange_with(client, script, 3)
    assert [o.exchange.error for o in outcomes] == [None, "stale-connection", None]
    assert (server.connections, len(server.requests)) == (2, 3)


def test_idle_connections_are_left_before_the_server_leaves(
    client: ClientName, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert IDLE_LIMIT_S < 5.0
    monkeypatch.setattr("embbench.load.connection._IDLE_LIMIT_NS", 200_000_000)
    monkeypatch.setattr("embbench.load.aio.IDLE_LIMIT_S", 0.2)

    async def main() -> None:
        async with raw_server(answers(OK)) as server, asking(client, server.url) as ask:
            await ask([b"{}"])
            await ask([b"{}"])
            assert server.connections == 1
            await asyncio.sleep(0.5)
            assert (await ask([b"{}"]))[0].exchange.error is None
            assert server.connections == 2

    run(main())


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_a_refusal_before_the_request_is_read(client: ClientName) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readexactly(1000)
        await peer.say(
            b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 3\r\n\r\nbig"
        )
        await asyncio.sleep(0.2)

    async def main() -> None:
        async with raw_server(script) as server, asking(client, server.url) as ask:
            outcome = (await ask([b"x" * 30_000_000]))[0]
            assert outcome.exchange.error == "http-413"
            assert outcome.body == b"big"

    run(main())


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_a_large_request_arrives_whole(client: ClientName) -> None:
    body = bytes(range(256)) * 80_000

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.say(OK)

    async def main() -> None:
        async with raw_server(script) as server, asking(client, server.url) as ask:
            for _ in range(2):
                outcome = (await ask([body]))[0]
                assert outcome.exchange.error is None
            assert all(request.endswith(body) for request in server.requests)
            assert server.connections == 1

    run(main())


# -- time limits ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "before", [b"", b"HTTP/1.1 200", OK[:-1], CHUNKED[:-2]], ids=["nothing", "head", "body", "end"]
)
def test_never_answers(client: ClientName, before: bytes, keep: bool) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(before)
        await asyncio.sleep(60)

    begin = time.monotonic()
    outcomes, _ = exchange_with(client, script, 2, keep, timeout_s=0.3)
    for outcome in outcomes:
        assert outcome.exchange.error == "timeout"
        assert 0.29e9 < outcome.exchange.end_ns - outcome.exchange.start_ns < 2e9
    assert time.monotonic() - begin < 10


def test_the_time_limit_covers_connecting(client: ClientName) -> None:
    async def main() -> None:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            address = full.getsockname()
            held = []
            for _ in range(4):  # fill the backlog: further connections hang
                sock = socket.socket()
                sock.setblocking(False)
                sock.connect_ex(address)
                held.append(sock)
            url = f"http://127.0.0.1:{address[1]}/"
            async with asking(client, url, timeout_s=0.4) as ask:
                outcome = (await ask([b"{}"]))[0]
                assert outcome.exchange.error == "timeout"
                assert 0.3e9 < outcome.exchange.end_ns - outcome.exchange.start_ns < 3e9
            for sock in held:
                sock.close()

    run(main())


def test_each_request_has_its_own_time_limit(client: ClientName) -> None:
    """One hanging request among quick ones: it fails at its time, the others do not."""

    async def script(peer: Peer) -> None:
        while True:
            if b"hang" in await peer.request():
                await asyncio.sleep(60)
            await peer.say(OK)

    async def main() -> None:
        async with (
            raw_server(script) as server,
            asking(client, server.url, timeout_s=0.6) as ask,
        ):
            hanging = asyncio.ensure_future(ask([b"hang"]))
            for _ in range(30):
                assert (await ask([b"{}"]))[0].exchange.error is None
                await asyncio.sleep(0.03)
            exchange = (await hanging)[0].exchange
            assert exchange.error == "timeout"
            assert 0.59e9 < exchange.end_ns - exchange.start_ns < 2e9

    run(main())


# -- addresses --------------------------------------------------------------------------------


def test_nothing_listens(client: ClientName) -> None:
    async def main() -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{probe.getsockname()[1]}/"
            async with asking(client, url) as ask:
                assert (await ask([b"{}"]))[0].exchange.error == "connect-refused"

    run(main())


def test_ipv6(client: ClientName) -> None:
    async def main() -> None:
        async with (
            raw_server(answers(OK), "::1") as server,
            asking(client, server.url) as ask,
        ):
            assert (await ask([b"{}"]))[0].body == BODY
            assert b"host: [::1]:" in server.requests[0].lower()

    run(main())


def test_a_name_with_several_addresses(client: ClientName) -> None:
    async def main() -> None:
        async with raw_server(answers(OK), "127.0.0.1") as server:
            url = server.url.replace("127.0.0.1", "localhost")
            async with asking(client, url) as ask:
                assert (await ask([b"{}"]))[0].body == BODY

    run(main())


def test_unix_socket(client: ClientName, tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "a server.sock"
        async with (
            raw_server(answers(OK), unix=path) as server,
            asking(client, server.url.replace(" ", "%20")) as ask,
        ):
            assert [o.body for o in await ask([b"{}"] * 3)] == [BODY] * 3
            assert server.requests[0].startswith(b"POST /v1/embeddings HTTP/1.1\r\n")

    run(main())


def test_a_missing_unix_socket(client: ClientName, tmp_path: Path) -> None:
    async def main() -> None:
        url = f"http+unix://{str(tmp_path / 'none').replace('/', '%2F')}/"
        async with asking(client, url) as ask:
            assert (await ask([b"{}"]))[0].exchange.error == "connect-failed"

    run(main())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    path = folder / "both.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"), *subject),
        ],
        check=True,
        capture_output=True,
    )
    path.write_bytes((folder / "key.pem").read_bytes() + (folder / "cert.pem").read_bytes())
    return path


@pytest.mark.parametrize("size", [19, 3_000_000])
def test_tls(client: ClientName, certificate: Path, size: int, keep: bool) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    body = b"t" * size
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + body

    async def main() -> None:
        async with (
            raw_server(answers(reply), tls=context) as server,
            asking(client, server.url, keep, tls_verify=False) as ask,
        ):
            for _ in range(3):
                outcome = (await ask([b"q" * 300_000]))[0]
                assert outcome.exchange.error is None
                assert outcome.exchange.response_bytes == size
                assert outcome.body == (body if keep else None)
            assert server.connections == 1
            assert server.requests[0].endswith(b"q" * 300_000)

    run(main())


def test_a_certificate_nobody_vouches_for(client: ClientName, certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def main() -> None:
        async with (
            raw_server(answers(OK), tls=context) as server,
            asking(client, server.url) as ask,
        ):
            assert (await ask([b"{}"]))[0].exchange.error == "tls-failed"

    run(main())


def test_tls_to_a_server_without(client: ClientName) -> None:
    async def plain(peer: Peer) -> None:
        await peer.reader.read(1)
        await peer.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def main() -> None:
        async with raw_server(plain) as server:
            url = server.url.replace("http:", "https:")
            async with asking(client, url) as ask:
                assert (await ask([b"{}"]))[0].exchange.error == "tls-failed"

    run(main())


# -- many at once -----------------------------------------------------------------------------


def test_no_hidden_limit_on_connections(client: ClientName) -> None:
    """faults: aiohttp's pool of 100 queues in silence. All 300 must be with the server at once."""
    everyone = asyncio.Event()
    inside = 0

    async def script(peer: Peer) -> None:
        nonlocal inside
        await peer.request()
        inside += 1
        if inside == 300:
            everyone.set()
        await everyone.wait()
        await peer.say(OK)

    async def main() -> None:
        async with raw_server(script) as server, asking(client, server.url) as ask:
            outcomes = await ask([b"{}"] * 300)
            assert [o.exchange.error for o in outcomes] == [None] * 300
            assert server.connections == 300

    run(main())


def test_answers_go_to_the_requests_they_belong_to(client: ClientName) -> None:
    """Answers of many sizes at once, some kept, each with its own bytes."""

    async def script(peer: Peer) -> None:
        while True:
            request = await peer.request()
            number = int(request.rsplit(b" ", 1)[1])
            await asyncio.sleep(0.001 * (number % 7))
            body = b"%d," % number * (number * 997 % 40_000)
            head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
            await peer.say(head[:20])
            await peer.say(head[20:] + body)

    async def main() -> None:
        async with (
            raw_server(script) as server,
            asking(client, server.url, arena_bytes=64 << 20) as ask,
        ):
            for _ in range(3):
                outcomes = await ask([b"number %d" % n for n in range(40)])
                for number, outcome in enumerate(outcomes):
                    assert outcome.body == b"%d," % number * (number * 997 % 40_000)
            assert server.connections == 40

    run(main())


def test_a_full_arena_still_receives_and_counts(client: ClientName) -> None:
    body = b"f" * 100_000
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + body

    async def main() -> None:
        async with (
            raw_server(answers(reply)) as server,
            asking(client, server.url, arena_bytes=380_000) as ask,
        ):
            outcomes = [(await ask([b"{}"]))[0] for _ in range(5)]
            assert [o.exchange.response_bytes for o in outcomes] == [100_000] * 5
            assert [o.exchange.unkept for o in outcomes] == [False] * 3 + [True] * 2
            assert [o.body for o in outcomes] == [body] * 3 + [None] * 2

    run(main())


def test_out_of_descriptors_is_the_clients_fault(client: ClientName) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def main() -> list[str | None]:
        async with (
            raw_server(answers(OK)) as server,
            asking(client, server.url, timeout_s=1.0) as ask,
        ):
            used = max(map(int, os.listdir("/proc/self/fd")))  # noqa: PTH208
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, hard))
            try:
                return [o.exchange.error for o in await ask([b"{}"] * 300)]
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert "client-exhausted" in run(main())


# -- the seam ---------------------------------------------------------------------------------


def test_the_request_on_the_wire(client: ClientName) -> None:
    async def main() -> None:
        async with (
            raw_server(answers(OK)) as server,
            asking(client, server.url, headers={"Authorization": "Bearer x"}) as ask,
        ):
            await ask([b'{"input": "hi"}'])
            head, _, body = server.requests[0].partition(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            assert lines[0] == b"post /v1/embeddings http/1.1"
            assert body == b'{"input": "hi"}'
            assert b"authorization: bearer x" in lines
            assert b"content-type: application/json" in lines
            assert b"content-length: 15" in lines
            assert b"accept-encoding: identity" in lines
            assert sum(line.startswith(b"host:") for line in lines) == 1

    run(main())


def test_a_header_cannot_smuggle_another() -> None:
    with pytest.raises(LoadError, match="line break"):
        request_head(parse_url("http://h/"), {"X": "a\r\nY: b"})


@pytest.mark.parametrize(
    "url", ["", "h:80", "ftp://h/", "http:///x", "http://h:port/", "http+unix:///x"]
)
def test_urls_of_no_use(client: ClientName, url: str) -> None:
    async def main() -> None:
        with pytest.raises(LoadError, match="URL"):
            async with asking(client, url):
                pass

    run(main())


def test_an_unknown_host_name() -> None:
    async def main() -> None:
        with pytest.raises(LoadError, match="no such host"):
            async with asking("buffered", "http://no-such-host.invalid/"):
                pass

    run(main())


def test_error_names_are_a_closed_set_of_plain_words() -> None:
    assert all(name.replace("-", "").isalpha() and name.islower() for name in ERRORS)
    assert ClientOptions("http://h/").timeout_s > 0

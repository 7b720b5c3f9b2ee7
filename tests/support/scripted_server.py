"""A scripted embedding server: known delays, known faults, and its own record as the oracle.

In a test: ``async with ScriptedServer(delay_s=0.05) as server: ... server.url ... server.log``.
In a process of its own: ``with scripted_process(delay_s=0.05) as server: ... server.oracle()``.
By hand: ``tests/support/scripted_server.py --port 8000 --fault per-token --set delay_s=0.05``.

A text is split at white space; each word is a token and one special token ends it. The word
``w<number>`` is token ``<number>``, so a text and a list of token ids can say the same. The vector
is a deterministic unit vector of the token ids alone. Times are CLOCK_MONOTONIC nanoseconds, as in
embbench's samples.
"""

import argparse
import asyncio
import gzip
import json
import signal
import subprocess
import sys
import time
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from aiohttp import web
from scripted_faults import FAULTS, Context, Scope, render, vectors_of

SPECIAL_TOKEN = 1


@dataclass(frozen=True, slots=True)
class Script:
    """What the server does. Delays add up; all times are in seconds; None and 0 mean off."""

    # delays
    delay_s: float = 0.0
    delay_per_input_s: float = 0.0
    delays_s: tuple[float, ...] = ()  # request i takes delays_s[i % len]
    first_k: int = 0  # the first k requests take first_delay_s more
    first_delay_s: float = 0.0
    first_k_of_batch: int = 0  # the first k of each new batch size take first_of_batch_s more
    first_of_batch_s: float = 0.0
    slow_every: int = 0  # every n-th request takes slow_s more
    slow_s: float = 0.0
    drift_s_per_minute: float = 0.0
    freeze_at_s: float = 0.0  # nothing is answered in this window after the first request
    freeze_s: float = 0.0
    stall_at: int | None = None  # this request takes stall_s more
    stall_s: float = 0.0
    serial: bool = False  # one request at a time, first come first served
    cache: bool = False  # a request whose texts were all seen takes cached_delay_s in all
    cached_delay_s: float = 0.001
    # failures
    error_share: float = 0.0
    error_from: int = 0  # ... of the requests from this one on
    error_code: int = 503
    error_delay_s: float = 0.0
    hang_request: int | None = None  # never answered
    reset_request: int | None = None  # connection aborted instead of an answer
    cut_request: int | None = None  # half of the announced body, then the connection ends
    stall_body_request: int | None = None  # half of the body, then silence
    endless_request: int | None = None  # a chunked body without end
    close_idle_s: float = 75.0  # read at start
    body_limit_bytes: int | None = None  # 413
    batch_limit: int | None = None  # 422
    token_limit: int | None = None  # 400
    reject_lists: bool = False  # 400
    api_key: str | None = None  # 401
    base64_refused: bool = False  # 400
    dimensions_refused: bool = True  # 400; else cut to `dimensions` and normalised again
    ready_after_s: float = 0.0  # 404, then from half of it on 500; /health and /v1/models are fine
    # the answer
    model: str = "scripted"
    answer_model: str | None = None
    dimension: int = 1024
    numbers: str = "float32"  # or "float64": how a float is printed
    gzip: bool = False
    chunked: bool = False
    service_header: bool = False  # openai-processing-ms
    truncate_tokens: int | None = None  # only the first tokens count, in silence
    truncate_usage: bool = False  # ... and usage admits it
    extra_special: bool = False  # the server adds one special token more than it should
    fault: str | None = None  # a name of FAULTS
    fault_from: int = 0  # from this request on
    fault_request: int | None = None  # in this request only
    fault_item: int | None = None  # in this item only, where the fault is one of single items


@dataclass(slots=True)
class Entry:
    """One request to /v1/embeddings as the server saw it."""

    number: int
    batch: int
    arrival_ns: int  # headers read
    received_ns: int = 0  # body read
    answer_ns: int = 0  # first byte of the answer is about to be written
    sent_ns: int = 0  # last byte handed to the transport
    status: int = 0
    tokens: int = 0
    texts: int = 0  # a hash of all its texts
    repeated: int = 0  # texts that had been sent before
    in_flight: int = 0  # this one included, at arrival
    request_bytes: int = 0
    response_bytes: int = 0


@dataclass(slots=True)
class Counts:
    """The server's own account."""

    received: int = 0
    answered: int = 0
    in_flight: int = 0
    in_flight_max: int = 0
    repeated_texts: int = 0
    connections: int = 0
    batch_sizes: dict[int, int] = field(default_factory=dict)


class RefusalError(Exception):
    """An answer that is not 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ScriptedServer:
    """The server in the running event loop. ``log`` and ``counts`` are its record."""

    def __init__(self, *, port: int = 0, prefix: str = "", ssl: Any = None, **knobs: Any) -> None:
        self.port = port
        self.prefix = prefix
        self.ssl = ssl
        self.knobs = Script(**knobs)
        self.log: list[Entry] = []
        self.bodies: list[bytes] = []
        self.keep_bodies = False
        self.counts = Counts()
        self.start_ns = time.perf_counter_ns()
        self._runner: web.ServerRunner | None = None
        self._seen_texts: set[tuple[int, ...]] = set()
        self._seen_connections: set[int] = set()
        self._lock = asyncio.Lock()
        self._first_ns: int | None = None
        self._previous = np.zeros((0, 0), np.float32)

    @property
    def url(self) -> str:
        """The base URL, as in an `Endpoint`."""
        return f"http{'s' if self.ssl else ''}://127.0.0.1:{self.port}{self.prefix}/v1"

    @property
    def answered(self) -> int:
        return self.counts.answered

    def script(self, **knobs: Any) -> None:
        """Change some knobs. Request numbers and the freeze window start again."""
        self.knobs = replace(self.knobs, **knobs)
        self._first_ns = None
        self.log.clear()
        self.bodies.clear()
        self.counts = Counts(in_flight=self.counts.in_flight)

    async def __aenter__(self) -> "ScriptedServer":
        self._runner = web.ServerRunner(
            web.Server(self._handle, keepalive_timeout=self.knobs.close_idle_s, access_log=None),
            shutdown_timeout=0.1,
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, backlog=4096, ssl_context=self.ssl)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.start_ns = time.perf_counter_ns()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path.removeprefix(self.prefix)
        if path == "/v1/embeddings" and request.method == "POST":
            return await self._embeddings(request)
        if path in ("/health", "/v1/health"):
            return web.Response(text="ok")
        if path == "/v1/models":
            return web.json_response({"object": "list", "data": [{"id": self.knobs.model}]})
        if path == "/metrics":
            return web.Response(
                text=f"scripted_requests_total {self.counts.received}\n"
                f"vllm:prefix_cache_hits_total {float(self.counts.repeated_texts)}\n"
            )
        if path == "/oracle":
            log = [asdict(entry) for entry in self.log]
            return web.json_response({"counts": asdict(self.counts), "log": log})
        if path == "/script" and request.method == "POST":
            self.script(**_from_json(json.loads(await request.read())))
            return web.Response(text="ok")
        return web.json_response({"error": {"message": "no such path"}}, status=404)

    async def _embeddings(self, request: web.BaseRequest) -> web.StreamResponse:
        counts = self.counts
        entry = Entry(len(self.log), 0, time.perf_counter_ns())
        self.log.append(entry)
        counts.received += 1
        counts.in_flight += 1
        counts.in_flight_max = max(counts.in_flight_max, counts.in_flight)
        entry.in_flight = counts.in_flight
        if id(request.transport) not in self._seen_connections:
            self._seen_connections.add(id(request.transport))
            counts.connections += 1
        if self._first_ns is None:
            self._first_ns = entry.arrival_ns
        request._client_max_size = 1 << 40
        try:
            return await self._answer(request, entry)
        finally:
            counts.in_flight -= 1

    async def _answer(self, request: web.BaseRequest, entry: Entry) -> web.StreamResponse:
        knobs = self.knobs
        try:
            raw = await request.read()
            entry.received_ns = time.perf_counter_ns()
            entry.request_bytes = len(raw)
            if self.keep_bodies:
                self.bodies.append(raw)
            self._refuse_early(request, raw, entry)
            asked = json.loads(raw)
            texts = _token_lists(asked.get("input"), knobs)
            entry.batch = len(texts)
            counts = self.counts
            counts.batch_sizes[entry.batch] = counts.batch_sizes.get(entry.batch, 0) + 1
            self._refuse(asked, texts)
        except RefusalError as refusal:
            await _sleep_until(entry.received_ns + int(knobs.error_delay_s * 1e9))
            return await self._send(request, entry, refusal.status, *_error(refusal))
        cached = all(tokens in self._seen_texts for tokens in texts)
        entry.texts = zlib.crc32(repr(texts).encode())
        entry.repeated = sum(tokens in self._seen_texts for tokens in texts)
        counts.repeated_texts += entry.repeated
        self._seen_texts.update(texts)
        status, body, headers = self._body(asked, texts, entry)
        if knobs.serial:
            async with self._lock:
                await self._wait(entry, cached, time.perf_counter_ns())
        else:
            await self._wait(entry, cached, entry.received_ns)
        return await self._send(request, entry, status, body, headers)

    def _refuse_early(self, request: web.BaseRequest, raw: bytes, entry: Entry) -> None:
        knobs, number = self.knobs, entry.number
        age_s = (time.perf_counter_ns() - self.start_ns) / 1e9
        if knobs.api_key and request.headers.get("Authorization") != f"Bearer {knobs.api_key}":
            raise RefusalError(401, "invalid api key")
        if age_s < knobs.ready_after_s:
            raise RefusalError(404 if age_s < knobs.ready_after_s / 2 else 500, "model not loaded")
        if knobs.body_limit_bytes is not None and len(raw) > knobs.body_limit_bytes:
            raise RefusalError(413, "length limit exceeded")
        share = knobs.error_share if number >= knobs.error_from else 0  # spread evenly, and exact
        if int((number + 1) * share + 1e-9) > int(number * share + 1e-9):
            raise RefusalError(knobs.error_code, f"scripted error {knobs.error_code}")

    def _refuse(self, asked: dict[str, Any], texts: list[tuple[int, ...]]) -> None:
        knobs = self.knobs
        if knobs.reject_lists and isinstance(asked.get("input"), list):
            raise RefusalError(400, "input must be a string")
        if knobs.batch_limit is not None and len(texts) > knobs.batch_limit:
            raise RefusalError(
                422, f"batch size {len(texts)} > maximum allowed {knobs.batch_limit}"
            )
        if knobs.token_limit is not None and max(map(len, texts)) > knobs.token_limit:
            raise RefusalError(400, f"maximum context length is {knobs.token_limit} tokens")
        if knobs.base64_refused and asked.get("encoding_format") == "base64":
            raise RefusalError(400, "encoding_format base64 is not supported")
        if knobs.dimensions_refused and "dimensions" in asked:
            raise RefusalError(400, "this model does not support changing dimensions")

    def _body(
        self, asked: dict[str, Any], texts: list[tuple[int, ...]], entry: Entry
    ) -> tuple[int, bytes, dict[str, str]]:
        knobs, number = self.knobs, entry.number
        cut = [_truncated(tokens, knobs.truncate_tokens) for tokens in texts]
        entry.tokens = sum(map(len, cut if knobs.truncate_usage else texts))
        active = knobs.fault and number >= knobs.fault_from
        active = active and knobs.fault_request in (None, number)
        context = Context(
            texts=cut,
            number=number,
            encoding=asked.get("encoding_format") or "float",
            model=knobs.answer_model or knobs.model,
            usage=entry.tokens,
            numbers=knobs.numbers,
            scope=Scope(knobs.fault if active else None, knobs.fault_item),
            previous=self._previous,
        )
        matrix = vectors_of(cut, knobs.dimension)
        if "dimensions" in asked:
            matrix = matrix[:, : int(asked["dimensions"])]
            matrix = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
        self._previous = matrix
        return render(matrix, context)

    async def _wait(self, entry: Entry, cached: bool, now_ns: int) -> None:
        """Wait until the scripted delay, counted from ``now_ns``, is over."""
        knobs, number = self.knobs, entry.number
        first_ns = self._first_ns or entry.arrival_ns
        delay_s = knobs.delay_s + knobs.delay_per_input_s * entry.batch
        delay_s += knobs.delays_s[number % len(knobs.delays_s)] if knobs.delays_s else 0
        delay_s += knobs.first_delay_s if number < knobs.first_k else 0
        nth_of_batch = self.counts.batch_sizes.get(entry.batch, 0)
        delay_s += knobs.first_of_batch_s if nth_of_batch <= knobs.first_k_of_batch else 0
        slow = knobs.slow_every and number % knobs.slow_every == knobs.slow_every - 1
        delay_s += knobs.slow_s if slow else 0
        delay_s += knobs.drift_s_per_minute * (now_ns - first_ns) / 60e9
        delay_s += knobs.stall_s if number == knobs.stall_at else 0
        if knobs.cache and cached:
            delay_s = knobs.cached_delay_s
        thaw_ns = first_ns + int((knobs.freeze_at_s + knobs.freeze_s) * 1e9)
        frozen_ns = first_ns + int(knobs.freeze_at_s * 1e9)
        if knobs.freeze_s and frozen_ns < now_ns + delay_s * 1e9 and now_ns < thaw_ns:
            delay_s += (thaw_ns - max(now_ns, frozen_ns)) / 1e9  # the window stops all work
        await _sleep_until(now_ns + int(delay_s * 1e9))
        if number == knobs.hang_request:
            await asyncio.Event().wait()

    async def _send(
        self,
        request: web.BaseRequest,
        entry: Entry,
        status: int,
        body: bytes,
        headers: dict[str, str],
    ) -> web.StreamResponse:
        knobs, number = self.knobs, entry.number
        if number == knobs.reset_request and request.transport is not None:
            request.transport.abort()
            return web.Response()
        if knobs.gzip:
            body = gzip.compress(body, 1, mtime=0)
            headers = {**headers, "Content-Encoding": "gzip"}
        if knobs.service_header:
            service_ms = (time.perf_counter_ns() - entry.arrival_ns) / 1e6
            headers = {**headers, "openai-processing-ms": f"{service_ms:.3f}"}
        response = web.StreamResponse(status=status, headers=headers)
        if knobs.chunked or number == knobs.endless_request:
            response.enable_chunked_encoding()
        else:
            response.content_length = len(body)
        entry.answer_ns = time.perf_counter_ns()
        await response.prepare(request)
        with suppress(ConnectionError):
            if number in (knobs.cut_request, knobs.stall_body_request):
                await response.write(body[: len(body) // 2])
                if number == knobs.stall_body_request:
                    await asyncio.Event().wait()
                assert request.transport is not None
                request.transport.close()
                return response
            while number == knobs.endless_request:
                await response.write(b" " * 65536)
            await response.write(body)
            await response.write_eof()
        entry.sent_ns = time.perf_counter_ns()
        entry.status = status
        entry.response_bytes = len(body)
        self.counts.answered += 1
        return response


async def _sleep_until(until_ns: int) -> None:
    """Sleep to within tens of microseconds; the loop's own timers are coarser."""
    left_s = (until_ns - time.perf_counter_ns()) / 1e9
    if left_s > 0.002:
        await asyncio.sleep(left_s - 0.0015)
    while time.perf_counter_ns() < until_ns:  # noqa: ASYNC110
        await asyncio.sleep(0)


def _error(refusal: RefusalError) -> tuple[bytes, dict[str, str]]:
    error = {"message": str(refusal), "type": "invalid_request_error", "code": refusal.status}
    return json.dumps({"error": error}).encode(), {"Content-Type": "application/json"}


def _token_lists(given: Any, knobs: Script) -> list[tuple[int, ...]]:
    """Every input as its token ids. A list of ints is one input of token ids."""
    match given:
        case str():
            inputs: list[Any] = [given]
        case [int(), *_]:
            inputs = [given]
        case [_, *_]:
            inputs = given
        case _:
            raise RefusalError(400, "input must not be empty")
    ends = (SPECIAL_TOKEN,) * (2 if knobs.extra_special else 1)
    return [
        (*map(_token_id, each.split()), *ends) if isinstance(each, str) else tuple(each)
        for each in inputs
    ]


def _truncated(tokens: tuple[int, ...], limit: int | None) -> tuple[int, ...]:
    """The first tokens, with the special one at the end, as tokenizers truncate."""
    return tokens if limit is None or len(tokens) <= limit else (*tokens[: limit - 1], tokens[-1])


def _token_id(word: str) -> int:
    number = word[1:] if word[:1] == "w" else ""
    return int(number) if number.isdecimal() else zlib.crc32(word.encode("utf-8", "replace"))


def _from_json(knobs: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in knobs.items()}


@dataclass(frozen=True, slots=True)
class ScriptedProcess:
    """A scripted server in a process of its own."""

    url: str
    port: int
    pid: int

    def oracle(self) -> dict[str, Any]:
        """``{"counts": ..., "log": [...]}``, with the fields of `Counts` and `Entry`."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/oracle") as answer:
            record: dict[str, Any] = json.loads(answer.read())
            return record

    def script(self, **knobs: Any) -> None:
        """As `ScriptedServer.script`."""
        urllib.request.urlopen(
            f"http://127.0.0.1:{self.port}/script", json.dumps(knobs).encode()
        ).close()


@contextmanager
def scripted_process(**knobs: Any) -> Iterator[ScriptedProcess]:
    """Start a scripted server in another process, on a free port; end it on exit."""
    argv = [sys.executable, str(Path(__file__)), "--script", json.dumps(knobs)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the scripted server did not start"
        url = line.split()[-1]
        yield ScriptedProcess(url, int(url.split(":")[2].split("/")[0]), process.pid)
    finally:
        process.terminate()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


async def _serve(port: int, prefix: str, knobs: dict[str, Any]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with ScriptedServer(port=port, prefix=prefix, **knobs) as server:
        print(f"scripted server on {server.url}", flush=True)  # noqa: T201
        await stop.wait()


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--prefix", default="")
    parser.add_argument("--fault", choices=sorted(FAULTS))
    parser.add_argument("--script", type=json.loads, default={}, help="knobs as a JSON object")
    knob_names = ", ".join(f.name for f in fields(Script))
    parser.add_argument(
        "--set", action="append", default=[], metavar="KNOB=VALUE", help=f"knobs: {knob_names}"
    )
    options = parser.parse_args()
    knobs = _from_json(options.script)
    for assignment in options.set:
        name, _, value = assignment.partition("=")
        try:
            knobs[name] = json.loads(value)
        except json.JSONDecodeError:
            knobs[name] = value
    if options.fault:
        knobs["fault"] = options.fault
    asyncio.run(_serve(options.port, options.prefix, _from_json(knobs)))


if __name__ == "__main__":
    main()

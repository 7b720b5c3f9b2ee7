"""The null server: canned embedding answers at once, so that only the client's time is left.

``python -m embbench.load.nullserver --dimension 1024`` prints its port and serves
``/ENCODING/BATCH/...`` on loopback until its standard input closes. `null_server` runs it in a
process of its own. A float answer prints float32 as float64 with up to 17 digits, as bare vLLM
does: the larger of the two common forms.
"""

import argparse
import asyncio
import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, get_args

import numpy as np
import uvloop

from embbench.config.plan import Encoding
from embbench.errors import LoadError


def canned_body(batch: int, encoding: Encoding, dimension: int, *, shortest: bool = False) -> bytes:
    """An OpenAI embeddings answer: unit vectors from a fixed seed.

    ``shortest`` prints each float32 in its shortest form, as Rust servers do.
    """
    vectors = np.random.default_rng(0).standard_normal((batch, dimension))
    rows = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype("<f4")
    data = []
    for index, row in enumerate(rows):
        value: str
        if encoding == "base64":
            value = '"' + base64.b64encode(row.tobytes()).decode() + '"'
        elif shortest:
            value = "[" + ",".join(map(str, row)) + "]"
        else:
            value = json.dumps(row.tolist(), separators=(",", ":"))
        data.append(f'{{"object":"embedding","index":{index},"embedding":{value}}}')
    usage = f'"usage":{{"prompt_tokens":{batch},"total_tokens":{batch}}}'
    return f'{{"object":"list","data":[{",".join(data)}],"model":"null",{usage}}}'.encode()


class _Canned:
    """Whole answers by path, built when first asked for."""

    def __init__(self, dimension: int, shortest: bool) -> None:
        self._dimension = dimension
        self._shortest = shortest
        self._answers: dict[bytes, bytes] = {}

    def __getitem__(self, path: bytes) -> bytes:
        answer = self._answers.get(path)
        if answer is None:
            answer = self._answers[path] = self._build(path)
        return answer

    def _build(self, path: bytes) -> bytes:
        parts = path.decode("latin-1").split("/")
        encoding: Any = parts[1]
        if encoding not in get_args(Encoding) or not parts[2].isdigit():
            return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        body = canned_body(int(parts[2]), encoding, self._dimension, shortest=self._shortest)
        head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
        return f"{head}{len(body)}\r\n\r\n".encode() + body


class _NullProtocol(asyncio.Protocol):
    """Counts off requests by Content-Length; looks at nothing else."""

    def __init__(self, canned: _Canned) -> None:
        self._canned = canned
        self._pending = b""
        self._left = 0  # body bytes of the present request still to come
        self._answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write: Callable[[bytes], None] = transport.write  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if self._left:
            if len(data) < self._left:
                self._left -= len(data)
                return
            data, self._left = data[self._left :], 0
            self._write(self._answer)
        if self._pending:
            data, self._pending = self._pending + data, b""
        while data:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._pending = data
                return
            head = data[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            self._answer = self._canned[data[: data.index(b"\r\n")].split(b" ")[1]]
            data = data[end + 4 :]
            if len(data) < length:
                self._left = length - len(data)
                return
            data = data[length:]
            self._write(self._answer)


async def _serve(dimension: int, shortest: bool) -> None:
    canned = _Canned(dimension, shortest)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _NullProtocol(canned), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201
    await server.serve_forever()


def _leave_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


@asynccontextmanager
async def null_server(
    dimension: int, cpus: frozenset[int] | None = None, *, shortest: bool = False
) -> AsyncIterator[str]:
    """A null server's base URL: add ``/float/15/v1/embeddings``. It ends with the block."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "embbench.load.nullserver", "--dimension", str(dimension)),
        *(["--shortest"] if shortest else []),
        *(["--cpus", ",".join(map(str, sorted(cpus)))] if cpus else []),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        port = (await process.stdout.readline()).decode().strip()
        if not port:
            raise LoadError(f"the null server ended with code {await process.wait()}")
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def main() -> None:
    """The process: see the module's words."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dimension", type=int, default=1024)
    parser.add_argument("--shortest", action="store_true")
    parser.add_argument("--cpus", default="")
    args = parser.parse_args()
    if args.cpus:
        os.sched_setaffinity(0, {int(cpu) for cpu in args.cpus.split(",")})
    threading.Thread(target=_leave_with_stdin, daemon=True).start()
    uvloop.run(_serve(args.dimension, args.shortest))


if __name__ == "__main__":
    main()

"""The frontend's side of the hop: starts the worker, sends it requests, notices its death.

In: options. Out: a `Backend` whose engine is another process. Nothing outlives it: the worker ends
when the connection closes, and segments of a dead worker are removed by their names.
"""

import asyncio
import itertools
import logging
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from embbench.errors import TargetError
from embbench.reference import hop, segments
from embbench.reference.api import Input, RequestError, WireVector
from embbench.reference.backend import Answer
from embbench.reference.engine import EngineFacts
from embbench.reference.metrics import Metrics
from embbench.reference.options import Hop, ServeOptions

log = logging.getLogger("embbench.frontend")


class WorkerBackend:
    """A running worker. Made by `start_worker`."""

    def __init__(
        self, options: ServeOptions, metrics: Metrics, link: "Link", worker: Process
    ) -> None:
        self._options, self._metrics = options, metrics
        self._link, self._worker = link, worker
        self._folder = Path(options.shm_dir)
        self._prefix = "unknown"  # until it is known, no segment is the worker's
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[tuple[dict[str, Any], int]]] = {}
        self._gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reader: asyncio.Task[None] | None = None
        self._ending = False
        self.facts = EngineFacts("", 0, 0, "", "")
        self.hop: Hop = options.hop

    async def open(self) -> None:
        """Shake hands: learn what the worker serves and whether it shares this host's memory."""
        self._prefix = segments.prefix_of(self._worker.pid)
        ready, _ = await self._link.read()
        self.facts = EngineFacts(**ready["facts"])
        if self.hop == "shm" and not await self._shares_memory(ready["boot_id"]):
            log.warning("the worker shares no memory with the frontend: base64-numpy instead")
            self.hop = "base64-numpy"
        await self._link.send({"kind": "start", "hop": self.hop})
        self._reader = asyncio.create_task(self._read())

    async def _shares_memory(self, boot_id: str) -> bool:
        """Whether the worker can read, on this same kernel, what is written here."""
        try:
            probe, secret = segments.offer_probe(self._folder)
        except OSError:
            return False
        try:
            await self._link.send({"kind": "probe", "name": probe.name})
            answer, _ = await self._link.read()
        finally:
            probe.unlink()
        return boot_id == segments.boot_id() and answer["secret"] == secret

    async def embed(self, inputs: Sequence[Input], dimensions: int | None) -> Answer:
        start_ns = time.perf_counter_ns()
        message = {"kind": "embed", "inputs": inputs, "dimensions": dimensions}
        reply, received = await self._call(message)
        self._metrics.add("embbench_hop_bytes_total", received, direction="to_frontend")
        if reply["kind"] == "error":
            error = reply["error"]
            raise RequestError(
                error["status"], error["message"], param=error["param"], code=error["code"]
            )
        unpack_ns = time.perf_counter_ns()
        # in a thread: a segment or a list of floats can be hundreds of MB
        try:
            vectors = await asyncio.to_thread(self._unpack, reply, len(inputs))
        except (hop.HopError, segments.HandleError) as error:
            if self._ending:  # its segments went with the worker
                raise _unavailable(await self.failure()) from None
            log.error("refused an answer of the worker: %s", error)
            raise RequestError(500, f"the worker's answer was refused: {error}") from None
        end_ns = time.perf_counter_ns()
        seconds = dict(reply["seconds"])
        seconds["hop"] = (unpack_ns - start_ns) / 1e9 - sum(seconds.values())
        seconds["unpack"] = (end_ns - unpack_ns) / 1e9
        return Answer(vectors, reply["tokens"], seconds)

    def _unpack(self, reply: dict[str, Any], count: int) -> Sequence[WireVector]:
        vectors = hop.unpack(reply, self._folder, self._prefix, count)
        if reply["form"] == "shm":
            self._metrics.add("embbench_shm_collected_total", 1)
        return vectors

    async def _call(self, message: dict[str, Any]) -> tuple[dict[str, Any], int]:
        if self._gone.done():
            raise _unavailable(self._gone.result())
        number = next(self._numbers)
        future: asyncio.Future[tuple[dict[str, Any], int]]
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            sent = await self._link.send({**message, "id": number})
            self._metrics.add("embbench_hop_bytes_total", sent, direction="to_worker")
            return await future
        except hop.HopError as error:
            raise RequestError(413, str(error), param="input") from None
        except OSError:
            raise _unavailable(await self.failure()) from None
        finally:
            del self._waiting[number]

    async def _read(self) -> None:
        reason = ""
        try:
            while True:
                message, size = await self._link.read()
                future = self._waiting.get(message.get("id", -1))
                if future is not None and not future.done():
                    future.set_result((message, size))
                elif message.get("form") == "shm":
                    # its request was given up: collect the segment for nobody
                    with suppress(segments.HandleError):
                        count = message["handle"]["count"]
                        hop.unpack(message, self._folder, self._prefix, count)
        except (asyncio.IncompleteReadError, OSError):
            pass
        except hop.HopError as error:
            reason = f"; its last message was refused: {error}"
        await self._bury(reason)

    async def _bury(self, reason: str) -> None:
        """The connection is over: see the process off, remove what it left, fail who waits."""
        self._ending = True
        await self._link.close()
        status = await _end(self._worker, self._options.shutdown_s)
        left = segments.remove_all(self._folder, self._prefix)
        text = f"the worker (pid {self._worker.pid}) {status}{reason}"
        if left:
            text += f"; removed {left} of its shared-memory segments"
        if not self._gone.done():
            self._gone.set_result(text)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(_unavailable(text))

    async def refresh_metrics(self) -> None:
        """Ask the worker for the counts that only it has."""
        with suppress(RequestError):
            reply, _ = await self._call({"kind": "stats"})
            self._metrics.set("embbench_shm_reaped_total", reply["reaped"])
            for reason, count in reply["fallbacks"].items():
                self._metrics.set("embbench_shm_fallbacks_total", count, reason=reason)
        count = len(segments.live(self._folder, self._prefix))
        self._metrics.set("embbench_shm_segments", count)

    async def failure(self) -> str:
        return await asyncio.shield(self._gone)

    async def close(self) -> str:
        """End the worker by closing the connection, by force if it does not obey; say how."""
        await self._link.close()
        status = await _end(self._worker, self._options.shutdown_s)
        log.debug("the worker %s", status)
        await _end_group(self._worker.pid)
        if self._reader is not None:
            await self._reader
        return status


class Link:
    """One end of the hop."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_bytes: float
    ) -> None:
        self._reader, self._writer, self._max_bytes = reader, writer, max_bytes

    @classmethod
    async def over(cls, connection: socket.socket, max_mb: float) -> "Link":
        """A link over a connected socket."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader, writer = await asyncio.open_connection(sock=connection, limit=hop.STREAM_LIMIT)
        return cls(reader, writer, max_mb * 1e6)

    async def send(self, message: dict[str, Any]) -> int:
        """Send one message; returns its bytes. Raises HopError if it is too large, OSError."""
        parts = hop.frame(message, self._max_bytes)
        if self._writer.is_closing():  # uvloop would raise a RuntimeError
            raise ConnectionResetError("the hop is closed")
        self._writer.writelines(parts)
        await self._writer.drain()
        return sum(map(len, parts))

    async def read(self) -> tuple[dict[str, Any], int]:
        """The next message and its bytes. Raises IncompleteReadError at the end, HopError."""
        return await hop.read_frame(self._reader, self._max_bytes)

    def end(self) -> None:
        """Say that nothing more will be sent."""
        with suppress(OSError, RuntimeError):
            self._writer.write_eof()

    async def close(self) -> None:
        """Close the connection, whatever state it is in."""
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


async def start_worker(options: ServeOptions, metrics: Metrics) -> WorkerBackend:
    """Start the worker process and wait until its engine is loaded. Raises TargetError."""
    near, far = _connected_pair()
    with far:
        argv = ["-m", "embbench.reference", *options.to_argv(), "--hop-fd", str(far.fileno())]
        worker = await asyncio.create_subprocess_exec(
            sys.executable, *argv, pass_fds=[far.fileno()], stdin=asyncio.subprocess.DEVNULL
        )
    link = await Link.over(near, options.max_hop_mb)
    backend = WorkerBackend(options, metrics, link, worker)
    try:
        async with asyncio.timeout(options.start_timeout_s):
            await backend.open()
    except TimeoutError:
        await backend.close()
        limit = f"{options.start_timeout_s:g} s"
        raise TargetError(f"the worker was not ready after {limit}; see its log above") from None
    except (asyncio.IncompleteReadError, hop.HopError, OSError):
        status = await backend.close()
        raise TargetError(f"the worker {status} before it was ready; see its log above") from None
    except asyncio.CancelledError:
        await backend.close()
        raise
    return backend


def _connected_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a loopback TCP connection; no listener stays open."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        while True:
            far, address = listener.accept()
            if address == near.getsockname():
                return near, far
            far.close()  # a stranger was quicker


async def _end(process: Process, grace_s: float) -> str:
    """Wait for a process that should end, kill it if it does not, and say how it went."""
    try:
        code = await asyncio.wait_for(process.wait(), grace_s)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        code = await process.wait()
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


async def _end_group(head: int) -> None:
    """End what a dead worker's engine left in its process group.

    It is asked before it is forced, so that it can remove shared memory of its own.
    """
    with suppress(ProcessLookupError):
        os.killpg(head, signal.SIGTERM)
        for _ in range(100):
            await asyncio.sleep(0.1)
            os.killpg(head, 0)
        os.killpg(head, signal.SIGKILL)


def _unavailable(text: str) -> RequestError:
    return RequestError(503, text, code="worker_gone")

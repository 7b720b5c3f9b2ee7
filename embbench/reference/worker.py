"""The worker process: the engine at one end of the hop.

In: frames with inputs. Out: frames with vectors in the form of the hop. It ends when the frontend
closes the connection or dies, and leaves no shared memory behind.
"""

import asyncio
import ctypes
import logging
import os
import signal
import socket
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from embbench.errors import TargetError
from embbench.reference import hop, segments
from embbench.reference.api import RequestError
from embbench.reference.engine import Engine
from embbench.reference.frontend import Link
from embbench.reference.load_engine import load_engine
from embbench.reference.options import Hop, ServeOptions

log = logging.getLogger("embbench.worker")

_PR_SET_PDEATHSIG = 1


def settle() -> None:
    """Make this process the head of a group, and let it die with the frontend.

    The group holds what the engine may start; the frontend removes it whole. It also keeps Ctrl-C
    away, which the frontend gets and acts on. The kernel's SIGTERM comes even if the hop is not
    being read.
    """
    os.setpgrp()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def work(options: ServeOptions, connection: socket.socket) -> None:
    """Load the engine, then answer the frontend until it closes the connection.

    Raises EmbbenchError if the engine cannot be loaded, or dies.
    """
    engine = load_engine(options)
    worker = Worker(options, await Link.over(connection, options.max_hop_mb), engine)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.drain)
    running = asyncio.create_task(worker.run())
    failure = asyncio.create_task(engine.failure())
    try:
        await asyncio.wait((running, failure), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise TargetError(failure.result())
        with suppress(asyncio.IncompleteReadError, ConnectionError):  # the frontend is gone
            await running
    finally:
        running.cancel()
        failure.cancel()
        await worker.close()
        await engine.close()


class Worker:
    """One connection's work."""

    def __init__(self, options: ServeOptions, link: Link, engine: Engine) -> None:
        self._options, self._link, self._engine = options, link, engine
        folder = Path(options.worker_shm_dir or options.shm_dir)
        self._store = segments.SegmentStore(folder, segments.prefix_of(os.getpid()))
        self._hop: Hop = options.hop
        self._fallbacks: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = asyncio.Event()
        self._reaper: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Shake hands, then answer. Raises IncompleteReadError when the frontend closes."""
        facts = asdict(self._engine.facts)
        await self._link.send({"kind": "ready", "boot_id": segments.boot_id(), "facts": facts})
        start, _ = await self._link.read()
        if start["kind"] == "probe":
            secret = segments.answer_probe(self._store.folder, start["name"])
            await self._link.send({"kind": "probe", "secret": secret})
            start, _ = await self._link.read()
        self._hop = start["hop"]
        if self._hop != self._options.hop:
            self._fallbacks["not co-located"] += 1
        if self._hop == "shm":
            self._reaper = asyncio.create_task(self._reap())
        while True:
            message, _ = await self._link.read()
            task = asyncio.create_task(self._answer(message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: dict[str, Any]) -> None:
        if message["kind"] == "stats":
            reply = {"reaped": self._store.reaped, "fallbacks": self._fallbacks}
        elif self._draining.is_set():
            reply = _error(RequestError(503, "the worker is stopping", code="worker_gone"))
        else:
            reply = await self._embed(message)
        reply["id"] = message["id"]
        with suppress(ConnectionError):  # the frontend is gone, which run() sees
            try:
                await self._link.send(reply)
            except hop.HopError as error:
                refusal = _error(RequestError(500, str(error), code="hop_message_too_large"))
                await self._link.send({**refusal, "id": message["id"]})

    async def _embed(self, message: dict[str, Any]) -> dict[str, Any]:
        start_ns = time.perf_counter_ns()
        try:
            result = await self._engine.embed(message["inputs"], message["dimensions"])
            pack_ns = time.perf_counter_ns()
            fields, reason = await asyncio.to_thread(
                hop.pack, result.vectors, self._hop, self._store
            )
        except RequestError as error:
            return _error(error)
        except Exception:
            log.exception("the engine failed")
            return _error(RequestError(500, "the engine failed; see the server's log"))
        if reason is not None:
            self._fallbacks[reason] += 1
        seconds = {
            "engine": result.engine_s,
            "queue": (pack_ns - start_ns) / 1e9 - result.engine_s,
            "pack": (time.perf_counter_ns() - pack_ns) / 1e9,
        }
        tokens = sum(result.token_counts)
        return {"kind": "embeddings", "tokens": tokens, "seconds": seconds, **fields}

    async def _reap(self) -> None:
        max_age_s = self._options.shm_max_age_s
        while True:
            await asyncio.sleep(max(max_age_s / 4, 0.05))
            self._store.reap(max_age_s)

    def drain(self) -> None:
        """On SIGTERM: answer what is in work, then hang up; the frontend closes its end."""
        if not self._draining.is_set():
            self._draining.set()
            self._drainer = asyncio.create_task(self._hang_up())

    async def _hang_up(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.shutdown_s):
                await asyncio.gather(*self._tasks, return_exceptions=True)
        self._link.end()
        await asyncio.sleep(1.0)
        await self._link.close()  # the frontend has not closed: it may be gone

    async def close(self) -> None:
        """Stop, and remove what was never collected."""
        for task in (*self._tasks, self._reaper):
            if task is not None:
                task.cancel()
        await self._link.close()
        left = segments.remove_all(self._store.folder, self._store.prefix)
        if left:
            log.info("removed %d uncollected shared-memory segments", left)


def _error(error: RequestError) -> dict[str, Any]:
    fields = {"status": error.status, "message": error.message}
    return {"kind": "error", "error": {**fields, "param": error.param, "code": error.code}}

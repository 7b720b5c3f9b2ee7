"""A load process: ``python -m embbench.load.worker CONTROL_FD LIFELINE_FD [CPU]``.

In: pickled `ShardJob`s and `Go`s on the control socket. Out: ``("warm", None)`` when the warm-up
is over, then ``("done", ShardResult)``, or ``("failed", words)``; rows and bodies go to the files
and the arena that the job names. Imports no more than numpy, uvloop and a client.
"""

import asyncio
import gc
import logging
import os
import pickle
import resource
import signal
import socket
import ssl
import struct
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from itertools import repeat
from typing import Any

import uvloop

from embbench.config.plan import OpenLoop
from embbench.errors import EmbbenchError
from embbench.load.arena import Arena
from embbench.load.awake import CoreKeptAwake
from embbench.load.client import Client
from embbench.load.drive import Requests, closed_loop, open_loop
from embbench.load.job import Go, ShardJob, ShardResult
from embbench.load.open_client import open_client
from embbench.load.recorder import Recorder
from embbench.load.request_bodies import BodyFile
from embbench.load.timers import StallRecorder
from embbench.results.samples import MEASURED, WARMUP

_LENGTH = struct.Struct("<Q")


class _Channel:
    """Length-prefixed pickles on a blocking socket."""

    def __init__(self, fd: int) -> None:
        self._file = socket.socket(fileno=fd).makefile("rwb")

    def receive(self) -> Any:
        """The next message; None when the other side is gone."""
        prefix = self._file.read(_LENGTH.size)
        if len(prefix) < _LENGTH.size:
            return None
        return pickle.loads(self._file.read(_LENGTH.unpack(prefix)[0]))

    def send(self, message: tuple[str, object]) -> None:
        data = pickle.dumps(message)
        self._file.write(_LENGTH.pack(len(data)) + data)
        self._file.flush()


class _Shard:
    """One shard of one trial, in two steps: `warm_up`, and from the common origin `measure`."""

    def __init__(self, job: ShardJob) -> None:
        self._job = job
        self._bodies = BodyFile(job.bodies)
        self._warmup = BodyFile(job.warmup_bodies) if job.warmup_bodies else None
        self._arena = Arena(job.arena, job.expected_response_bytes)
        self._recorder = Recorder(job.rows)
        self._seqs = range(job.shard, len(self._bodies), job.shards)
        warmup = range(job.shard, len(self._warmup) if self._warmup else 0, job.shards)
        if isinstance(job.load, OpenLoop):
            self._first, self._then = warmup[:1], warmup[1:]
        else:
            burst = min(len(warmup), job.load.concurrency)
            self._first = warmup[: len(warmup) - burst]
            self._then = warmup[len(warmup) - burst :]
        self._client: Client | None = None

    def _requests(self, client: Client, phase: int, seqs: range) -> Requests:
        keep: Iterable[int] = repeat(1)
        if phase == WARMUP:
            assert self._warmup is not None
            if not self._job.keep_warmup:
                keep = repeat(0)
            return Requests(client, self._warmup, phase, seqs, keep)
        if self._job.keep is not None:
            keep = self._job.keep[seqs.start : seqs.stop : seqs.step]
        return Requests(client, self._bodies, phase, seqs, keep)

    async def warm_up(self) -> None:
        """Everything that has to be over before the schedule begins."""
        job = self._job
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_die_of)
        loop.add_signal_handler(signal.SIGTERM, self._cut_short)
        client = self._client = await open_client(job.client, job.options, self._arena)
        kept = len(self._seqs)
        if job.keep is not None:
            kept -= job.keep[job.shard :: job.shards].count(0)
        if job.expected_response_bytes:
            self._arena.prefault(kept)
        add = self._recorder.add
        if isinstance(job.load, OpenLoop):
            if self._first:
                await closed_loop(client, [self._requests(client, WARMUP, self._first)], 1, add)
            if self._then:
                begin_ns = time.monotonic_ns() + 1_000_000
                due_ns = [
                    begin_ns + (seq - self._first[0]) * job.warmup_gap_ns for seq in self._then
                ]
                await open_loop(
                    client, self._requests(client, WARMUP, self._then), due_ns, add,
                    job.load.max_in_flight,
                )  # fmt: skip
        elif self._first:
            await closed_loop(
                client,
                [self._requests(client, WARMUP, self._first)],
                job.load.concurrency,
                add,
                job.load.think_time_s,
            )
        self._arena.prefault(kept)

    async def measure(self, origin_ns: int) -> ShardResult:
        """From the origin to the last answer."""
        job, client, add = self._job, self._client, self._recorder.add
        assert client is not None
        requests = self._requests(client, MEASURED, self._seqs)
        stalls = StallRecorder() if job.stalls else None
        cpu_s = time.process_time()
        burst = 0
        if isinstance(job.load, OpenLoop):
            assert job.offsets_ns is not None
            due_ns = job.offsets_ns
            due_ns += origin_ns  # in place: a schedule can be long
            await open_loop(client, requests, due_ns.data, add, job.load.max_in_flight)
        elif job.load.concurrency:
            first = [self._requests(client, WARMUP, self._then)] if self._then else []
            burst = min(len(requests), job.load.concurrency - len(self._then))
            await asyncio.sleep(max(0.0, (origin_ns - time.monotonic_ns()) / 1e9))
            await closed_loop(
                client, [*first, requests], job.load.concurrency, add, job.load.think_time_s
            )
        cpu_s = time.process_time() - cpu_s
        if stalls is not None:
            stalls.close()
        self._recorder.close()
        await client.close()
        return ShardResult(
            self._recorder.error_names,
            self._recorder.content_types,
            self._recorder.unkept,
            tuple(stalls.stalls) if stalls is not None else (),
            cpu_s,
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            burst,
        )

    def _cut_short(self) -> None:
        """The trial is over before its end: keep what was measured."""
        self._recorder.close()
        os._exit(0)

    def close(self) -> None:
        self._recorder.close()
        self._bodies.close()
        if self._warmup is not None:
            self._warmup.close()
        self._arena.close()


def _die_of(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An exception in a callback is a bug: say so and stop, rather than measure on."""
    exc = context.get("exception")
    if exc is None or ("transport" in context and isinstance(exc, OSError | ssl.SSLError)):
        return  # a connection's own end: its exchange has the name of it
    print(context.get("message"), file=sys.stderr)  # noqa: T201
    traceback.print_exception(exc)
    sys.stderr.flush()
    os._exit(1)


def _run(job: ShardJob, channel: _Channel, cpu: int | None) -> ShardResult | None:
    shard = _Shard(job)
    try:
        with (
            CoreKeptAwake(cpu if job.keep_awake else None),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            gc.collect()
            if not job.collect_garbage:
                gc.freeze()
                gc.disable()
            try:
                runner.run(shard.warm_up())
                channel.send(("warm", None))
                go = channel.receive()
                return runner.run(shard.measure(go.origin_ns)) if isinstance(go, Go) else None
            finally:
                gc.enable()
                gc.unfreeze()
    finally:
        shard.close()


def _follow(lifeline: int) -> None:
    """End with the conductor, however it ended, and whatever this process is doing."""
    os.read(lifeline, 1)
    os._exit(0)


def main(control: int, lifeline: int, cpu: int | None) -> None:
    """Serve jobs until the conductor is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the conductor decides when a trial ends
    logging.disable()
    for fd in (control, lifeline):
        os.set_inheritable(fd, False)  # a child that held them would hide this process's end
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    threading.Thread(target=_follow, args=(lifeline,), daemon=True).start()
    channel = _Channel(control)
    while (job := channel.receive()) is not None:
        try:
            result = _run(job, channel, cpu)
        except (EmbbenchError, OSError) as exc:
            channel.send(("failed", str(exc)))
            continue
        if result is None:
            return
        channel.send(("done", result))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)

"""The load processes, as the conductor sees them: spawned once a run, one trial after the other.

In: a `TrialJob`. Out: a `TrialResult`, merged exactly from the shards. A load process that dies
or fails makes the trial fail with `LoadError`; the next trial gets new processes.
"""

import asyncio
import contextlib
import os
import pickle
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import IO, Any, Self

from embbench.config.plan import ClosedLoop, OpenLoop
from embbench.errors import LoadError
from embbench.load.client import ClientName, ClientOptions
from embbench.load.job import Go, ShardJob, ShardResult, TrialJob, TrialResult
from embbench.load.kept_bodies import create_arena
from embbench.load.merge import merge_trial

_HEAD_START_NS = 30_000_000
"""From the word to go to the schedule's origin: time for all load processes to be waiting."""

_ENDS_S = 2.0
"""A load process that has not ended so long after SIGTERM is killed."""


@dataclass(frozen=True, slots=True)
class _Worker:
    """One load process and the conductor's ends of what connects them."""

    number: int
    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    lifeline: int
    errors: IO[bytes]

    async def send(self, message: object) -> None:
        data = pickle.dumps(message)
        with contextlib.suppress(ConnectionError):  # its death is told by `receive`
            self.writer.write(len(data).to_bytes(8, "little"))
            self.writer.write(data)  # not joined to its length: a schedule can be long
            await self.writer.drain()

    async def receive(self, kind: str) -> Any:
        """The next message, which must be of that kind. Raises `LoadError`."""
        try:
            size = int.from_bytes(await self.reader.readexactly(8), "little")
            got, value = pickle.loads(await self.reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError) as exc:
            raise LoadError(await self._obituary()) from exc
        if got != kind:
            raise LoadError(f"load process {self.number}: {value}")
        return value

    async def _obituary(self) -> str:
        code = await self.process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        self.errors.seek(0)
        last = self.errors.read()[-2000:].decode(errors="replace").strip()
        words = f"load process {self.number} (pid {self.process.pid}) {how} during a trial"
        return f"{words}; its last words:\n{last}" if last else f"{words}; run the trial again"


class LoadProcesses:
    """``async with LoadProcesses(2, cpus=(2, 3)) as load: result = await load.drive(job)``.

    ``cpus`` pins load process ``i`` to ``cpus[i]``, cores that nothing else needs: in a trial they
    do not sleep (`embbench.load.awake`) unless ``keep_awake=False``. ``stalls=False`` leaves out
    the recorder of loop stalls, ``collect_garbage=True`` lets Python's collector run in trials (to
    show what each costs).
    """

    def __init__(
        self,
        count: int = 1,
        client: ClientName = "buffered",
        cpus: Sequence[int] | None = None,
        *,
        keep_awake: bool = True,
        stalls: bool = True,
        collect_garbage: bool = False,
    ) -> None:
        if count < 1 or (cpus is not None and len(cpus) != count):
            raise LoadError(f"{count} load processes on cpus {cpus}: name one cpu for each")
        self._count = count
        self._client = client
        self._cpus = cpus
        self._keep_awake = keep_awake
        self._stalls = stalls
        self._collect_garbage = collect_garbage
        self._workers: list[_Worker] = []

    @property
    def client(self) -> ClientName:
        """The client that the load processes use."""
        return self._client

    @property
    def count(self) -> int:
        """How many load processes there are."""
        return self._count

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes as they are now."""
        return tuple(worker.process.pid for worker in self._workers)

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._stop()

    async def _start(self) -> None:
        try:
            for number in range(self._count):
                self._workers.append(await self._spawn(number))
        except OSError as exc:
            await self._stop()
            raise LoadError(f"cannot start a load process ({exc}); raise `ulimit -n`") from exc
        except BaseException:
            await self._stop()
            raise

    async def _spawn(self, number: int) -> _Worker:
        ours, theirs = socket.socketpair()
        follow, lifeline = os.pipe()
        errors = tempfile.TemporaryFile()  # noqa: SIM115
        cpu = [] if self._cpus is None else [str(self._cpus[number])]
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "embbench.load.worker", str(theirs.fileno()), str(follow), *cpu),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=(theirs.fileno(), follow),
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # nothing is multiplied here
                start_new_session=True,  # Ctrl-C reaches the conductor, which ends the trial
            )
        finally:
            theirs.close()
            os.close(follow)
        reader, writer = await asyncio.open_connection(sock=ours)
        return _Worker(number, process, reader, writer, lifeline, errors)

    async def _stop(self) -> None:
        workers, self._workers = self._workers, []
        for worker in workers:
            if worker.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    worker.process.terminate()  # in a trial, it writes its rows down first
        for worker in workers:
            try:
                await asyncio.wait_for(worker.process.wait(), _ENDS_S)
            except TimeoutError:
                worker.process.kill()
                await worker.process.wait()
            worker.writer.close()
            os.close(worker.lifeline)
            worker.errors.close()

    async def drive(self, job: TrialJob) -> TrialResult:
        """Run one trial. Raises `LoadError` if a load process fails or dies.

        If the call is cancelled, the load processes write down their rows and end; what there is
        stays in ``job.work_dir`` (`merge.salvage_rows`).
        """
        _check(job)
        if not self._workers:
            await self._start()
        job.work_dir.mkdir(parents=True, exist_ok=True)
        count = _active(job.load, self._count)
        arenas = [create_arena(f"embbench-{n}", job.arena_bytes // count) for n in range(count)]
        try:
            shards = self._shards(job, [path for _, path in arenas])
            origin_ns, results = await self._drive(shards)
            return merge_trial(job, shards, results, arenas, origin_ns, self._client)
        except BaseException:
            for fd, _ in arenas:
                with contextlib.suppress(OSError):
                    os.close(fd)
            await self._stop()
            raise

    async def _drive(self, shards: Sequence[ShardJob]) -> tuple[int, list[ShardResult]]:
        workers = self._workers[: len(shards)]
        for worker, shard in zip(workers, shards, strict=True):
            await worker.send(shard)
        await _all([worker.receive("warm") for worker in workers])
        go = Go(time.monotonic_ns() + _HEAD_START_NS)
        for worker in workers:
            await worker.send(go)
        return go.origin_ns, await _all([worker.receive("done") for worker in workers])

    def _shards(self, job: TrialJob, arenas: Sequence[str]) -> list[ShardJob]:
        options = ClientOptions(
            job.url, job.headers, job.timeout_s, job.max_body_bytes, job.tls_verify
        )
        gap_ns = 0
        if job.offsets_ns is not None and len(job.offsets_ns) > 1:
            gap_ns = int(job.offsets_ns[-1] - job.offsets_ns[0]) // (len(job.offsets_ns) - 1)
        warmup = job.warmup_bodies
        return [
            ShardJob(
                shard=number,
                shards=len(arenas),
                client=self._client,
                options=options,
                bodies=job.bodies.path,
                warmup_bodies=warmup.path if warmup is not None and len(warmup) else None,
                load=_part(job.load, number, len(arenas)),
                offsets_ns=None
                if job.offsets_ns is None
                else job.offsets_ns[number :: len(arenas)],
                warmup_gap_ns=gap_ns,
                keep=None if job.keep is None else job.keep.tobytes(),
                keep_warmup=job.keep_warmup,
                arena=arena,
                expected_response_bytes=job.expected_response_bytes,
                rows=job.work_dir / f"shard-{number}.rows",
                keep_awake=self._keep_awake,
                stalls=self._stalls,
                collect_garbage=self._collect_garbage,
            )
            for number, arena in enumerate(arenas)
        ]


def _check(job: TrialJob) -> None:
    """Raises `LoadError` if the parts of a job do not fit together."""
    if isinstance(job.load, OpenLoop):
        if job.offsets_ns is None or len(job.offsets_ns) != len(job.bodies):
            raise LoadError("an open loop needs one offset for each request body")
        if job.load.max_in_flight is not None and job.load.max_in_flight < 1:
            raise LoadError("an in-flight cap needs to allow at least one request")
    elif job.load.concurrency < 1:
        raise LoadError("a closed loop needs at least one client")
    if job.keep is not None and len(job.keep) != len(job.bodies):
        raise LoadError("the mask of kept bodies needs one value for each request body")


def _active(load: OpenLoop | ClosedLoop, count: int) -> int:
    """How many load processes have something to do: none has less than one client or place."""
    whole = load.concurrency if isinstance(load, ClosedLoop) else load.max_in_flight
    return count if whole is None else min(count, whole)


def _part(load: OpenLoop | ClosedLoop, number: int, count: int) -> OpenLoop | ClosedLoop:
    """Load process ``number``'s part of the concurrency, or of the in-flight cap."""
    whole = load.concurrency if isinstance(load, ClosedLoop) else load.max_in_flight
    if whole is None:
        return load
    part = whole // count + (number < whole % count)
    if isinstance(load, ClosedLoop):
        return replace(load, concurrency=part)
    return replace(load, max_in_flight=part)


async def _all(receiving: Sequence[Any]) -> list[Any]:
    """All of them, or the first failure, at once."""
    tasks = [asyncio.ensure_future(one) for one in receiving]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

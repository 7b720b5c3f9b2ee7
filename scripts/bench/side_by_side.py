"""What embbench's own work beside a trial costs the trial: each switched on and off, in turn.

    scripts/bench/side_by_side [--repeats 7] [--batches 15,1024] [--encoding float]

Against the null server, each on a core of its own, closed loop, one client and eight: the plain
client; with Python's garbage collector left on in the load process; without the recorder of loop
stalls; with the telemetry sampler; with the live progress display; with every body kept and
verified when the clock has stopped, as a sweep does, against none kept. Trials of all variants
alternate; the figures are medians over the repeats of each trial's own p50 and p99, in ms, and
their ratio to the plain one.
"""

import argparse
import asyncio
import os
import pty
import sys
import tempfile
import threading
from collections import defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embbench.cli.progress import Progress
from embbench.config.plan import ClosedLoop, Encoding
from embbench.load.job import TrialJob
from embbench.load.nullserver import canned_body, null_server
from embbench.load.processes import LoadProcesses
from embbench.load.request_bodies import BodyFile, BodyFileWriter
from embbench.machine.telemetry import Sampler
from embbench.payload.checks import Expectation
from embbench.payload.verify import verify_pool, verify_trial

VARIANTS = ("plain", "gc on", "no stall recorder", "telemetry", "progress", "verified")


@dataclass(frozen=True, slots=True)
class Point:
    """A batch, how many clients, and how many requests a trial."""

    batch: int
    clients: int
    requests: int


def main() -> None:
    """Print one table a point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batches", default="15,1024")
    parser.add_argument("--encoding", choices=("float", "base64"), default="float")
    options = parser.parse_args()
    batches = [int(batch) for batch in options.batches.split(",")]
    points = [
        Point(batch, clients, max(40, 40_000 // batch)) for batch in batches for clients in (1, 8)
    ]
    show_progress_to_nobody()
    asyncio.run(measure(points, options.encoding, options.repeats))


def show_progress_to_nobody() -> None:
    """Make stderr a terminal that is read and forgotten, so that the live display is drawn."""
    ours, theirs = pty.openpty()
    os.dup2(theirs, 2)
    threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(ours, 65536), b"")],
                     daemon=True).start()  # fmt: skip


async def measure(points: list[Point], encoding: Encoding, repeats: int) -> None:
    async with AsyncExitStack() as stack:
        cpus = sorted(os.sched_getaffinity(0))
        own, rest = (cpus[-1:], frozenset(cpus[:-1])) if len(cpus) > 1 else (None, None)
        base_url = await stack.enter_async_context(null_server(1024, rest))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="embbench-side-")))
        plain = await stack.enter_async_context(LoadProcesses(cpus=own))
        loads = {
            "gc on": await stack.enter_async_context(LoadProcesses(cpus=own, collect_garbage=True)),
            "no stall recorder": await stack.enter_async_context(
                LoadProcesses(cpus=own, stalls=False)
            ),
        }
        pool = stack.enter_context(verify_pool(1))
        for point in points:
            found: dict[str, list[tuple[float, float]]] = defaultdict(list)
            for _ in range(repeats):
                for variant in VARIANTS:
                    load = loads.get(variant, plain)
                    job = make_job(folder, base_url, point, encoding, keep=variant == "verified")
                    found[variant].append(await drive(load, job, variant, point, pool))
            print_point(point, encoding, repeats, found)


def make_job(
    folder: Path, base_url: str, point: Point, encoding: Encoding, *, keep: bool
) -> TrialJob:
    files = []
    for name, count in (("warmup", point.clients + 4), ("measured", point.requests)):
        with BodyFileWriter(folder / f"{name}.bodies") as writer:
            for _ in range(count):
                writer.append(b'{"model": "null", "input": []}')
        files.append(BodyFile(folder / f"{name}.bodies"))
    return TrialJob(
        url=f"{base_url}/{encoding}/{point.batch}/v1/embeddings",
        bodies=files[1],
        load=ClosedLoop(point.clients),
        work_dir=folder,
        warmup_bodies=files[0],
        keep=np.full(point.requests, keep),
        expected_response_bytes=len(canned_body(point.batch, encoding, 1024)),
    )


async def drive(
    load: LoadProcesses, job: TrialJob, variant: str, point: Point, pool: object
) -> tuple[float, float]:
    """p50 and p99 of one trial, in ms."""
    async with AsyncExitStack() as stack:
        if variant == "telemetry":
            await stack.enter_async_context(Sampler({}, load.pids))
        if variant == "progress":
            progress = stack.enter_context(Progress(10, quiet=False))
            progress.step(f"batch {point.batch}, {point.clients} clients")
        result = await load.drive(job)
    with result.kept as kept:
        if variant == "verified":
            expect = Expectation(point.batch, 80, "float", 1024)
            await asyncio.to_thread(
                verify_trial,
                kept,
                expect,
                target="null",
                cell="",
                trial=0,
                requests=point.requests,
                pool=pool,  # type: ignore[arg-type]
            )
    times = result.samples.measured.ok.service_time_ns
    return float(np.percentile(times, 50)) / 1e6, float(np.percentile(times, 99)) / 1e6


def print_point(
    point: Point, encoding: str, repeats: int, found: dict[str, list[tuple[float, float]]]
) -> None:
    clients = "1 client" if point.clients == 1 else f"{point.clients} clients"
    print(
        f"\nbatch {point.batch} {encoding}, {clients}, {point.requests} requests, {repeats} turns"
    )
    print("\n| variant | p50 ms | ratio | p99 ms | ratio |\n| :-- | --: | --: | --: | --: |")
    base = np.median(found["plain"], axis=0)
    for variant in VARIANTS:
        p50, p99 = np.median(found[variant], axis=0)
        print(f"| {variant} | {p50:.3f} | {p50 / base[0]:.2f} | {p99:.3f} | {p99 / base[1]:.2f} |")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

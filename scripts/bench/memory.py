"""Memory of a trial of many requests: load process and conductor, sampled fifty times a second.

    scripts/bench/memory [--requests 100000,1000000] [--load closed|open] [--rate 8000]

Against the null server, batch 1 in base64, closed loop of eight clients or an open loop of Poisson
arrivals, an arena of 64 MiB, the samples written as Parquet at the end, as a sweep does; a process
of its own for each number of requests. Flat means: ten times the requests cost two times a request
while they are sorted (16 bytes), the schedule of an open loop (8 bytes on either side), and what
they fill of the arena, which is counted in the load process.
"""

import argparse
import asyncio
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import psutil

from embbench.config.plan import ClosedLoop, OpenLoop
from embbench.load.arrivals import intended_offsets_ns
from embbench.load.job import TrialJob
from embbench.load.nullserver import null_server
from embbench.load.processes import LoadProcesses
from embbench.load.request_bodies import BodyFile, BodyFileWriter
from embbench.results.samples import write_samples

CLIENTS = 8


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", default="100000,1000000")
    parser.add_argument("--load", choices=("closed", "open"), default="closed")
    parser.add_argument("--rate", type=float, default=8000.0, help="of the open loop, a second")
    args = parser.parse_args()
    load = ClosedLoop(CLIENTS) if args.load == "closed" else OpenLoop(rate_rps=args.rate)
    counts = [int(count) for count in args.requests.split(",")]
    print("| requests | seconds | load process MB | conductor MB | both at once MB |")
    print("| --: | --: | --: | --: | --: |")
    for count in counts:
        process = get_context("spawn").Process(target=run, args=(load, count))
        process.start()
        process.join()


def run(load: ClosedLoop | OpenLoop, count: int) -> None:
    """One row of the table."""
    asyncio.run(measure(load, count))


async def measure(load: ClosedLoop | OpenLoop, count: int) -> None:
    async with null_server(1024) as base_url, LoadProcesses() as generator:
        with tempfile.TemporaryDirectory(prefix="embbench-memory-") as name:
            over = threading.Event()
            with ThreadPoolExecutor(1) as threads:
                watched = [psutil.Process(pid) for pid in generator.pids]
                watcher = threads.submit(watch, watched, over)
                began = time.monotonic()
                try:
                    await trial(generator, load, base_url, Path(name), count)
                finally:
                    over.set()
            took_s = time.monotonic() - began
    told = " | ".join(f"{peak / 1e6:.0f}" for peak in watcher.result())
    print(f"| {count:,} | {took_s:.0f} | {told} |", flush=True)


async def trial(
    generator: LoadProcesses,
    load: ClosedLoop | OpenLoop,
    base_url: str,
    folder: Path,
    count: int,
) -> None:
    files = []
    for name, bodies in (("warmup", CLIENTS + 4), ("measured", count)):
        with BodyFileWriter(folder / f"{name}.bodies") as writer:
            for number in range(bodies):
                writer.append(b'{"model": "null", "input": ["text %d"]}' % number)
        files.append(BodyFile(folder / f"{name}.bodies"))
    job = TrialJob(
        url=f"{base_url}/base64/1/v1/embeddings",
        bodies=files[1],
        load=load,
        offsets_ns=intended_offsets_ns(load, count, 0) if isinstance(load, OpenLoop) else None,
        work_dir=folder,
        warmup_bodies=files[0],
        keep=np.arange(count) % 100 == 0,
        arena_bytes=64 << 20,
    )
    result = await generator.drive(job)
    result.kept.close()
    await asyncio.to_thread(write_samples, folder / "trial.parquet", result.samples, {})


def watch(load: list[psutil.Process], over: threading.Event) -> list[int]:
    """Peaks of resident memory in bytes: load processes, this one, and both at one moment."""
    own = psutil.Process()
    peaks = [0, 0, 0]
    while not over.wait(0.02):
        theirs = sum(process.memory_info().rss for process in load)
        ours = own.memory_info().rss
        peaks = [max(p, v) for p, v in zip(peaks, (theirs, ours, theirs + ours), strict=True)]
    return peaks


if __name__ == "__main__":
    main()

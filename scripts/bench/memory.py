"""Memory of a trial of many requests: load process and conductor, sampled once a tenth of a second.

    scripts/bench/memory [--requests 100000,1000000]

Against the null server, batch 1 in base64, closed loop of eight clients, an arena of 64 MiB, the
samples written as Parquet at the end, as a sweep does. Flat means: ten times the requests cost
hardly more than the readings themselves (64 bytes a request).
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from embbench.bodies import BodyFile, BodyFileWriter
from embbench.load.job import TrialJob
from embbench.load.nullserver import null_server
from embbench.load.processes import LoadProcesses
from embbench.plan import ClosedLoop
from embbench.samples import write_samples

CLIENTS = 8


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", default="100000,1000000")
    counts = [int(count) for count in parser.parse_args().requests.split(",")]
    print("| requests | seconds | load process MB | conductor MB | both at once MB |")
    print("| --: | --: | --: | --: | --: |")
    for count in counts:
        asyncio.run(measure(count))


async def measure(count: int) -> None:
    async with null_server(1024) as base_url, LoadProcesses() as load:
        with tempfile.TemporaryDirectory(prefix="embbench-memory-") as name:
            watcher = asyncio.create_task(watch([psutil.Process(pid) for pid in load.pids]))
            began = time.monotonic()
            await trial(load, base_url, Path(name), count)
            took_s = time.monotonic() - began
            watcher.cancel()
            peaks = (await asyncio.gather(watcher, return_exceptions=True))[0]
    assert isinstance(peaks, tuple), peaks
    told = " | ".join(f"{peak / 1e6:.0f}" for peak in peaks)
    print(f"| {count:,} | {took_s:.0f} | {told} |", flush=True)


async def trial(load: LoadProcesses, base_url: str, folder: Path, count: int) -> None:
    files = []
    for name, bodies in (("warmup", CLIENTS + 4), ("measured", count)):
        with BodyFileWriter(folder / f"{name}.bodies") as writer:
            for number in range(bodies):
                writer.append(b'{"model": "null", "input": ["text %d"]}' % number)
        files.append(BodyFile(folder / f"{name}.bodies"))
    job = TrialJob(
        url=f"{base_url}/base64/1/v1/embeddings",
        bodies=files[1],
        load=ClosedLoop(CLIENTS),
        work_dir=folder,
        warmup_bodies=files[0],
        keep=np.arange(count) % 100 == 0,
        arena_bytes=64 << 20,
    )
    result = await load.drive(job)
    result.kept.close()
    await asyncio.to_thread(write_samples, folder / "trial.parquet", result.samples, {})


async def watch(load: list[psutil.Process]) -> tuple[int, int, int]:
    """Peaks of resident memory in bytes: load processes, this one, and both at one moment."""
    own = psutil.Process()
    peaks = [0, 0, 0]
    try:
        while True:
            theirs = sum(process.memory_info().rss for process in load if process.is_running())
            ours = own.memory_info().rss
            peaks = [max(p, v) for p, v in zip(peaks, (theirs, ours, theirs + ours), strict=True)]
            await asyncio.sleep(0.1)
    except asyncio.CancelledError:
        return peaks[0], peaks[1], peaks[2]


if __name__ == "__main__":
    main()

"""How long do reports and comparisons of large runs take, and how much memory?

    scripts/bench/scale [--millions 10]

Writes run directories as a sweep does, with simulated samples, and times `embbench report` and
`embbench compare` on them as they are called by hand. Prints Markdown.
"""

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from embbench.results.rundir import RunWriter, TrialRecord
from embbench.results.samples import MEASURED, RECORD, VERIFIED, Samples

CELL = "b15-isl80-float-rate1000"


@dataclass(frozen=True, slots=True)
class Cost:
    """One command: wall time and the most memory it ever held."""

    wall_s: float
    peak_mib: float


def write_run(root: Path, name: str, *, trials: int, requests: int, seed: int) -> Path:
    """A run of one target and one cell, ``trials`` times ``requests`` samples."""
    meta = {
        "targets": ["bare"],
        "cells": [CELL],
        "floor": "bare",
        "baseline": None,
        "host": {"hostname": "simulated", "cpu": "simulated", "cores": 1},
        "config": {"trials": trials, "seed": 0},
    }
    writer = RunWriter.create(root, name, meta, datetime.now(UTC))
    random = np.random.default_rng(seed)
    for index in range(trials):
        writer.add_trial(record(index, requests), trial(random, requests))
    return writer.folder


def trial(random: np.random.Generator, requests: int) -> Samples:
    """Log-normal latencies around 20 ms, a start of its own 2 % apart from others."""
    rows = np.zeros(requests, RECORD)
    rows["seq"] = np.arange(requests)
    rows["intended_start_ns"] = 10**12 + np.arange(requests) * 10**6
    rows["start_ns"] = rows["intended_start_ns"] + random.integers(10_000, 60_000, requests)
    noise = 0.2 * random.standard_normal(requests) + 0.02 * random.standard_normal()
    rows["end_ns"] = rows["start_ns"] + np.rint(20e6 * np.exp(noise)).astype(np.int64)
    rows["request_bytes"], rows["response_bytes"] = 6_100, 190_000
    rows["status"], rows["error"], rows["phase"], rows["flags"] = 200, -1, MEASURED, VERIFIED
    return Samples(rows)


def record(index: int, requests: int) -> TrialRecord:
    """What stands beside the samples."""
    return TrialRecord(
        target="bare",
        cell=CELL,
        index=index,
        launch=index,
        batch=15,
        isl=80,
        encoding="float",
        load={"rate_rps": 1000.0},
        requests=requests,
        started_at=datetime.now(UTC).isoformat(),
        origin_ns=10**12,
        wall_s=requests / 1000,
        asked_rps=1000.0,
        achieved_rps=1000.0,
        in_flight_max=40,
        send_lag_p50_ns=35_000,
        send_lag_p99_ns=60_000,
        send_lag_max_ns=60_000,
        request_bytes=6_100.0,
        response_bytes=190_000.0,
        dimension=1024,
        verified_share=1.0,
    )


def cost(*arguments: str) -> Cost:
    """Run an ``embbench`` command in a process of its own, its output thrown away."""
    begun = time.monotonic()
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "embbench", *arguments],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)],
    )
    _, status, used = os.wait4(pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"embbench {' '.join(arguments)} failed")
    return Cost(time.monotonic() - begun, used.ru_maxrss / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--millions", type=int, default=10, help="samples of the largest run")
    asked = parser.parse_args()
    million = 10**6
    print("| command | samples | seconds | peak MiB |\n|:--|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)

        def row(command: str, samples: str, *arguments: str) -> None:
            found = cost(*arguments)
            print(
                f"| {command} | {samples} | {found.wall_s:.1f} | {found.peak_mib:.0f} |", flush=True
            )

        small = write_run(root, "small", trials=8, requests=100, seed=1)
        row("report", "8 trials of 100", "report", str(small))
        pair = [
            write_run(root, name, trials=8, requests=million // 8, seed=seed)
            for name, seed in (("base", 2), ("new", 3))
        ]
        row("report", "8 trials of 125,000", "report", str(pair[0]))
        row("compare", "twice 8 trials of 125,000", "compare", *map(str, pair))
        large = write_run(root, "large", trials=asked.millions, requests=million, seed=4)
        row("report", f"{asked.millions} trials of 1,000,000", "report", str(large))
        whole = write_run(root, "whole", trials=1, requests=asked.millions * million, seed=5)
        row("report", f"1 trial of {asked.millions},000,000", "report", str(whole))


if __name__ == "__main__":
    main()

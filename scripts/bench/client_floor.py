"""What each load tool adds to an answer that a server gives at once.

    scripts/bench/client_floor [--bodies a,b,c,d,e,f] [--concurrency 1,8,32] [--repeats 3]
                               [--seconds 1.5] [--tools wrk,embbench] [--json FILE]

nginx serves canned embedding answers (dimension 1024) on one core; the tools run on another, in
turn, `--repeats` times: a) 1 float, b) 15 float, c) 15 base64, d) 64 float, e) 1024 float,
f) 1024 base64. embbench keeps every sample and every body, as in a run. Prints medians and, for
p50, p99 and requests/s, the median of the ratios to wrk in the same turn. p99 is left out below 100
requests; "in flight" is the mean number of requests under way (rate times mean time), which a tool
that is busy elsewhere keeps under the concurrency asked of it. (wrk adds times for requests that a
stall kept from leaving, so its mean and p99 can tell of requests that were not there.)

Needs nginx and taskset (`apt-get install nginx-light wrk hey`); tools that are not there are named
and left out, and one that fails has a line with its reason. For the heavy ones see
client_floor_heavy.py; they take 15 to 40 s a point, whatever `--seconds` says.
"""

import argparse
import itertools
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from client_floor_nginx import canned_nginx, nginx_path
from client_floor_process import Reading, Task, ToolError
from client_floor_tools import TOOLS, median, missing

from embbench.config.plan import Encoding
from embbench.load.nullserver import canned_body
from embbench.targets.generated import write_model

BODIES: dict[str, tuple[int, Encoding]] = {
    "a": (1, "float"),
    "b": (15, "float"),
    "c": (15, "base64"),
    "d": (64, "float"),
    "e": (1024, "float"),
    "f": (1024, "base64"),
}
HEADER = (
    "| body | c | tool | n | p50 ms | x wrk | p99 ms | x wrk | req/s | x wrk | in flight "
    "| CPU ms/req |\n|:--|--:|:--|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)
FEWEST_FOR_P99 = 100
# What a tool that fails, or reports in another form than it did, can raise.
FAILURES = (ToolError, OSError, LookupError, TypeError, ValueError)


def request_of(batch: int, encoding: Encoding) -> bytes:
    """A request of 80 tokens an input, or so."""
    words = ["word " * 80] * batch
    return json.dumps({"model": "null", "input": words, "encoding_format": encoding}).encode()


def ratio(name: str, of: list[Reading], to: list[Reading]) -> str:
    """Median of the ratios turn by turn."""
    if not to:
        return "-"
    pairs = zip(of, to, strict=True)
    return f"{statistics.median(getattr(a, name) / getattr(b, name) for a, b in pairs):.2f}"


def row(body: str, concurrency: int, tool: str, readings: list[Reading], wrk: list[Reading]) -> str:
    """One line of the table."""
    m = median(readings)
    p99 = ["-", "-"]
    if m.requests >= FEWEST_FOR_P99:
        p99 = [f"{m.p99_ms:.3f}", ratio("p99_ms", readings, wrk)]
    cells = [body, concurrency, tool, m.requests]
    cells += [f"{m.p50_ms:.3f}", ratio("p50_ms", readings, wrk), *p99]
    cells += [f"{m.rps:.0f}" if m.rps >= 100 else f"{m.rps:.1f}", ratio("rps", readings, wrk)]
    cells += [f"{m.in_flight:.1f}", f"{m.cpu_ms:.3f}"]
    return f"| {' | '.join(map(str, cells))} |"


def measure(
    task: Task, tools: list[str], repeats: int
) -> tuple[dict[str, list[Reading]], dict[str, str]]:
    """Readings of each tool, a turn each, and why others failed: they have no readings here."""
    readings: dict[str, list[Reading]] = {name: [] for name in tools}
    failed: dict[str, str] = {}
    for turn in range(repeats):
        for name in tools[turn % len(tools) :] + tools[: turn % len(tools)]:
            if name in failed:
                continue
            try:
                readings[name].append(TOOLS[name](task))
            except FAILURES as error:
                said = str(error) if isinstance(error, ToolError) else repr(error)
                failed[name] = " ".join(said.split())[:300]
                readings[name] = []
    return readings, failed


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are taken down
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bodies", default="a,b,c,d,e,f")
    parser.add_argument("--concurrency", default="1,8,32")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--arena-mib", type=int, default=2048, help="memory for kept bodies")
    parser.add_argument("--model", type=Path, help="tokenizer folder for the heavy tools")
    parser.add_argument("--json", type=Path, help="write all readings here")
    args = parser.parse_args()
    if nginx_path() is None or shutil.which("taskset") is None:
        print("client_floor: needs nginx and taskset: apt-get install nginx-light util-linux")
        return 1
    cpus = sorted(os.sched_getaffinity(0))
    server_cpu, client_cpu = (cpus[0], cpus[-1]) if len(cpus) > 1 else (None, None)
    if server_cpu is None:
        print("only one core: server and client share it, ratios say little", file=sys.stderr)
    asked = [name.strip() for name in args.tools.split(",")]
    for name in asked:
        if why := missing(name):
            print(f"left out: {name}: {why}", file=sys.stderr)
    tools = [name for name in asked if missing(name) is None]
    bodies = {key: canned_body(*BODIES[key], 1024, shortest=True) for key in args.bodies.split(",")}
    log, failures = [], 0
    print(HEADER, flush=True)
    with (
        canned_nginx(bodies, server_cpu) as base_url,
        tempfile.TemporaryDirectory(prefix="embbench-floor-") as folder,
    ):
        model = args.model or write_model(Path(folder, "model"), weights=False)
        for key, concurrency in itertools.product(bodies, map(int, args.concurrency.split(","))):
            task = Task(
                url=f"{base_url}/{key}/v1/embeddings",
                request=request_of(*BODIES[key]),
                response_bytes=len(bodies[key]),
                concurrency=concurrency,
                seconds=args.seconds,
                cpu=client_cpu,
                arena_bytes=args.arena_mib << 20,
                model=model.resolve(),
            )
            readings, failed = measure(task, tools, args.repeats)
            failures += len(failed)
            for name in tools:
                if name in failed:
                    reason = failed[name].replace("|", "/")
                    print(f"| {key} | {concurrency} | {name} | failed: {reason} |")
                    continue
                print(row(key, concurrency, name, readings[name], readings.get("wrk", [])))
                log += [
                    {"body": key, "concurrency": concurrency, "tool": name, **asdict(reading)}
                    for reading in readings[name]
                ]
            sys.stdout.flush()
    if args.json:
        args.json.write_text(json.dumps(log, indent=1) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Are the reported times true? Servers that do what they are told, and log it, as the oracle.

    scripts/bench/truth [--rates 10,200,1000] [--seconds 20] [--client buffered|aiohttp]
                        [--arrival constant|poisson] [--servers constant,stalled,serial]

Three servers: every answer after 50 ms; 20 ms, every 100th 500 ms; strictly serial, 0.8 ms each,
frozen for 1 s in every 10 s. Each is asked in an open loop at each rate, server and client on
cores of their own. "own" is the server's own record of the same requests, from read until about to
be answered: the service time must agree. "truth" is what a client without any lag would have
seen: the server's own time where requests do not wait for each other, and in the serial server,
from intended start until about to be answered: the response time must agree.

Where every 100th request takes 500 ms, the 99th percentile lies between the very slowest of the
others and the first of these, and tells of one request more than of the client. It is shown and not
judged; the p99 of the others and the p50 of these, by the server's record, are.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embbench import load
from embbench.config.plan import OpenLoop
from embbench.load.arrivals import intended_offsets_ns
from embbench.load.job import TrialJob, TrialResult
from embbench.load.processes import LoadProcesses
from embbench.load.request_bodies import BodyFile, BodyFileWriter

PERCENTILES = (50, 90, 99)
OWN_MS, OWN_SHARE, TRUTH_SHARE = 0.2, 0.005, 0.01
KINDS = {
    "constant": "50 ms",
    "stalled": "20 ms, every 100th 500 ms",
    "serial": "serial 0.8 ms, frozen 1 s in 10 s",
}
HEADER = (
    "| server | rate | n | got | p50: service / own; response / truth "
    "| p90: service / own; response / truth | p99: service / own; response / truth "
    "| lag p50 / p99 / max | within |\n"
    "|:--|--:|--:|--:|--:|--:|--:|--:|:--|"
)


@contextmanager
def truth_server(kind: str, cpu: int | None) -> Iterator[str]:
    """The base URL of a server of that kind."""
    argv = [sys.executable, str(Path(__file__).with_name("truth_server.py")), "--kind", kind]
    argv += [] if cpu is None else ["--cpu", str(cpu)]
    with ExitStack() as stack:
        pipe = subprocess.PIPE
        process = stack.enter_context(subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True))
        stack.callback(process.kill)
        if cpu is not None:  # its own waking up would be in the client's time, not in its record
            awake = [sys.executable, "-I", "-S", str(Path(load.__file__).with_name("awake.py"))]
            spinning = stack.enter_context(subprocess.Popen([*awake, str(cpu), str(os.getpid())]))
            stack.callback(spinning.kill)
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"


def own_record(url: str, count: int) -> NDArray[np.int64]:
    """(read, about to be answered) of requests 0 to ``count`` by the server's log, in ns."""
    with urllib.request.urlopen(f"{url}/log", timeout=60) as response:
        log = np.loadtxt(response, np.int64, ndmin=2)
    log = log[log[:, 0] >= 0]
    log = log[np.argsort(log[:, 0])]
    assert (log[:, 0] == np.arange(count)).all(), "the server saw other requests than were sent"
    record: NDArray[np.int64] = log[:, 1:]
    return record


def reset(url: str) -> None:
    """The script begins with the next request."""
    urllib.request.urlopen(f"{url}/reset", timeout=10).close()


async def drive(
    processes: LoadProcesses,
    url: str,
    open_loop: OpenLoop,
    offsets_ns: NDArray[np.int64],
    folder: Path,
) -> TrialResult:
    files = []
    for name, numbers in (("warmup", [-1] * 20), ("measured", range(len(offsets_ns)))):
        with BodyFileWriter(folder / name) as writer:
            for number in numbers:
                writer.append(b'{"n": %d}' % number if number >= 0 else b'{"w": 0}')
        files.append(BodyFile(folder / name))
    return await processes.drive(
        TrialJob(
            url=f"{url}/v1/embeddings",
            bodies=files[1],
            warmup_bodies=files[0],
            load=open_loop,
            offsets_ns=offsets_ns,
            arena_bytes=64 << 20,
            work_dir=folder / "work",
        )
    )


def judge(
    kind: str, service: NDArray[np.float64], own: NDArray[np.float64],
    response: NDArray[np.float64], truth: NDArray[np.float64], rate_share: float, lag_p99_ms: float,
    rate: float,
) -> str:  # fmt: skip
    """What is out of bounds. Times of each request, in ms."""
    wrong = []
    if kind == "stalled":
        slow = own > 250
        pairs = [("", 50, service, own), ("", 90, service, own)]
        pairs += [
            ("fast ", 99, service[~slow], own[~slow]),
            ("slow ", 50, service[slow], own[slow]),
        ]
    else:
        pairs = [("", p, service, own) for p in PERCENTILES]
    for which, p, of, to in pairs:
        t, o = np.percentile(of, p), np.percentile(to, p)
        if abs(t - o) > max(OWN_MS, OWN_SHARE * o):
            wrong.append(f"{which}p{p} {t - o:+.2f} ms")
    if kind != "constant":  # there, truth and own are the same
        for p in PERCENTILES if kind == "serial" else PERCENTILES[:2]:
            r, t = np.percentile(response, p), np.percentile(truth, p)
            if abs(r - t) > max(OWN_MS, TRUTH_SHARE * t):
                wrong.append(f"p{p} of response {r / t - 1:+.1%}")
    if abs(rate_share - 1) > 0.001:
        wrong.append(f"rate {rate_share - 1:+.2%}")
    if rate >= 1000 and lag_p99_ms > 0.3:
        wrong.append(f"lag p99 {lag_p99_ms:.2f} ms")
    return "yes" if not wrong else "no: " + ", ".join(wrong)


def histogram(lag_ns: NDArray[np.int64]) -> str:
    """The send lag in powers of two of a microsecond."""
    edges_us = [0, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192]
    counts, _ = np.histogram(lag_ns / 1e3, [*edges_us, np.inf])
    lines = []
    for low, count in zip(edges_us, counts, strict=True):
        share = count / len(lag_ns)
        lines.append(f"  from {low:>5} us  {count:>7}  {share:>7.2%}  {'#' * round(50 * share)}")
    return "\n".join(lines)


async def run(args: argparse.Namespace) -> list[str]:
    cpus = sorted(os.sched_getaffinity(0))
    apart = len(cpus) > 1
    histograms = []
    print(HEADER, flush=True)
    async with LoadProcesses(1, args.client, [cpus[-1]] if apart else None) as processes:
        for kind in args.servers.split(","):
            with truth_server(kind, cpus[0] if apart else None) as url:
                for rate in map(float, args.rates.split(",")):
                    reset(url)
                    open_loop = OpenLoop(rate, args.arrival)
                    offsets_ns = intended_offsets_ns(open_loop, int(rate * args.seconds), 0)
                    with tempfile.TemporaryDirectory(prefix="embbench-truth-") as folder:
                        result = await drive(processes, url, open_loop, offsets_ns, Path(folder))
                    samples, health = result.samples.measured, result.health
                    result.kept.close()
                    assert len(samples.ok) == len(samples), samples.error_counts()
                    record = own_record(url, len(samples))
                    own_ns = record[:, 1] - record[:, 0]
                    queue_ns = record[:, 1] - health.origin_ns - offsets_ns
                    truth_ns = queue_ns if kind == "serial" else own_ns
                    times = [samples.service_time_ns, own_ns, samples.response_time_ns, truth_ns]
                    service, own, response, truth = (ns / 1e6 for ns in times)
                    lag = np.percentile(samples.send_lag_ns, (50, 99, 100)) / 1e6
                    assert health.planned_rps is not None
                    share = health.achieved_rps / health.planned_rps
                    within = judge(kind, service, own, response, truth, share, lag[1], rate)
                    cells = " | ".join(
                        f"{t:.2f} / {o:.2f}; {r:.2f} / {i:.2f}"
                        for t, o, r, i in np.percentile(
                            [service, own, response, truth], PERCENTILES, axis=1
                        )
                    )
                    print(
                        f"| {KINDS[kind]} | {rate:g} | {len(samples)} | {health.achieved_rps:.2f} "
                        f"| {cells} | {lag[0]:.3f} / {lag[1]:.3f} / {lag[2]:.3f} | {within} |",
                        flush=True,
                    )
                    if rate >= 1000:
                        title = f"send lag, {KINDS[kind]}, {rate:g}/s:"
                        histograms.append(f"{title}\n{histogram(samples.send_lag_ns)}")
    return histograms


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are taken down
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", default="10,200,1000")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--servers", default=",".join(KINDS))
    parser.add_argument("--client", choices=("buffered", "aiohttp"), default="buffered")
    parser.add_argument("--arrival", choices=("constant", "poisson"), default="constant")
    histograms = asyncio.run(run(parser.parse_args()))
    print("", *histograms, sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""One function a load tool: drive a URL in a closed loop, and say what the tool reports.

A tool that is not installed has a line that says so. Heavy tools are taken from virtual
environments of their own, named by environment variables, because they bring hundreds of packages:

    EMBBENCH_BENCH_VLLM       python of an environment with vLLM, for `vllm bench serve`
    EMBBENCH_BENCH_AIPERF     the aiperf executable
    EMBBENCH_BENCH_GUIDELLM   the guidellm executable
"""

import asyncio
import csv
import io
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embbench.bodies import BodyFile, BodyFileWriter
from embbench.load.client import ClientName
from embbench.load.job import TrialJob
from embbench.load.processes import LoadProcesses
from embbench.plan import ClosedLoop


@dataclass(frozen=True, slots=True)
class Task:
    """One point of the comparison."""

    url: str
    request: bytes
    response_bytes: int
    concurrency: int
    seconds: float
    cpu: int | None
    arena_bytes: int
    model: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a tool reports; ``cpu_ms`` is CPU a request, all of the tool's processes."""

    p50_ms: float
    p99_ms: float
    rps: float
    cpu_ms: float
    requests: int


Tool = Callable[[Task], Reading]

WRK_SCRIPT = """
local file = io.open("{body}", "rb")
wrk.method = "POST"
wrk.body = file:read("*a")
wrk.headers["Content-Type"] = "application/json"
file:close()
done = function(summary, latency, requests)
  io.write(string.format("READING %.3f %.3f %d %d %d\\n", latency:percentile(50),
    latency:percentile(99), summary.requests, summary.duration,
    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.status
    + summary.errors.timeout))
end
"""


def _pinned(task: Task, argv: list[str]) -> list[str]:
    return argv if task.cpu is None else ["taskset", "-c", str(task.cpu), *argv]


def _run(argv: list[str], **how: Any) -> tuple[str, float]:
    """Standard output of a tool and its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=600, **how)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{argv}: exit {done.returncode}: {done.stderr[-800:]}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, cpu_s


def wrk(task: Task) -> Reading:
    """wrk: C, the floor. It reads a body into an 8 KB buffer and forgets it."""
    with tempfile.TemporaryDirectory() as name:
        body, script = Path(name, "body.json"), Path(name, "script.lua")
        body.write_bytes(task.request)
        script.write_text(WRK_SCRIPT.format(body=body))
        options = ["-t1", f"-c{task.concurrency}", f"-d{max(1, round(task.seconds))}s"]
        argv = ["wrk", *options, "--timeout", "60s", "-s", str(script), task.url]
        out, cpu_s = _run(_pinned(task, argv))
    match = re.search(r"READING (\S+) (\S+) (\d+) (\d+) (\d+)", out)
    assert match is not None, out
    p50_us, p99_us, requests, duration_us, errors = map(float, match.groups())
    assert not errors, out
    return Reading(
        p50_us / 1e3,
        p99_us / 1e3,
        requests / duration_us * 1e6,
        cpu_s * 1e3 / requests,
        int(requests),
    )


def _embbench(client: ClientName, task: Task) -> Reading:
    async def main() -> Reading:
        cpus = None if task.cpu is None else [task.cpu]
        most = int(0.9 * task.arena_bytes / (task.response_bytes + 2048))
        with tempfile.TemporaryDirectory() as name:
            async with LoadProcesses(1, client, cpus) as load:

                async def drive(count: int) -> Any:
                    warmup = 20 + task.concurrency
                    with (
                        _bodies(Path(name, "measured"), task.request, count) as measured,
                        _bodies(Path(name, "warmup"), task.request, warmup) as warm,
                    ):
                        job = TrialJob(
                            url=task.url,
                            bodies=measured,
                            warmup_bodies=warm,
                            load=ClosedLoop(task.concurrency),
                            expected_response_bytes=task.response_bytes,
                            arena_bytes=task.arena_bytes,
                            work_dir=Path(name, "work"),
                        )
                        return await load.drive(job)

                rps = 200.0
                for _ in range(2):  # the first is short, and says little
                    probe = await drive(min(most, max(50, int(rps * 0.3))))
                    probe.kept.close()
                    rps = probe.health.achieved_rps
                result = await drive(max(50, min(most, int(rps * task.seconds))))
        samples = result.samples.measured
        assert len(samples.ok) == len(samples), samples.error_counts()
        assert result.kept.unkept == 0
        assert len(result.kept) == len(samples)
        result.kept.close()
        p50_ns, p99_ns = np.percentile(samples.service_time_ns, (50, 99))
        cpu_ms = sum(result.health.client_cpu_s) * 1e3 / len(samples)
        rps = result.health.achieved_rps
        return Reading(p50_ns / 1e6, p99_ns / 1e6, rps, cpu_ms, len(samples))

    return asyncio.run(main())


def _bodies(path: Path, body: bytes, count: int) -> BodyFile:
    with BodyFileWriter(path) as writer:
        for _ in range(count):
            writer.append(body)
    return BodyFile(path)


def buffered(task: Task) -> Reading:
    """embbench's own client, every sample and every body kept."""
    return _embbench("buffered", task)


def aiohttp(task: Task) -> Reading:
    """embbench's second client, every sample and every body kept."""
    return _embbench("aiohttp", task)


def hey(task: Task) -> Reading:
    """hey: Go."""
    with tempfile.NamedTemporaryFile() as body:
        body.write(task.request)
        body.flush()
        argv = ["hey", "-z", f"{task.seconds}s", "-c", str(task.concurrency), "-cpus", "1"]
        argv += ["-m", "POST", "-T", "application/json", "-D", body.name, "-o", "csv", task.url]
        out, cpu_s = _run(_pinned(task, argv))
    rows = list(csv.DictReader(io.StringIO(out)))
    assert {row["status-code"] for row in rows} == {"200"}
    took = [float(row["response-time"]) * 1e3 for row in rows]
    last_s = max(float(row["offset"]) + float(row["response-time"]) for row in rows)
    p50, p99 = np.percentile(took, (50, 99))
    return Reading(p50, p99, len(rows) / last_s, cpu_s * 1e3 / len(rows), len(rows))


def oha(task: Task) -> Reading:
    """oha: Rust."""
    with tempfile.NamedTemporaryFile() as body:
        body.write(task.request)
        body.flush()
        argv = ["oha", "-z", f"{task.seconds}s", "-c", str(task.concurrency), "--no-tui"]
        argv += ["--output-format", "json", "-m", "POST", "-T", "application/json"]
        out, cpu_s = _run(_pinned(task, [*argv, "-D", body.name, task.url]))
    found = json.loads(out)
    percentiles, rps = found["latencyPercentiles"], found["summary"]["requestsPerSec"]
    requests = sum(found["statusCodeDistribution"].values())
    p50_ms, p99_ms = percentiles["p50"] * 1e3, percentiles["p99"] * 1e3
    return Reading(p50_ms, p99_ms, rps, cpu_s * 1e3 / requests, requests)


def vllm_bench(task: Task) -> Reading:
    """`vllm bench serve` with its embeddings back-end; it sends prompts of its own making."""
    count = _heavy_count(task)
    inputs = len(json.loads(task.request)["input"])
    with tempfile.TemporaryDirectory() as name:
        argv = [os.environ["EMBBENCH_BENCH_VLLM"], "-m", "vllm.entrypoints.cli.main", "bench"]
        argv += ["serve", "--backend", "openai-embeddings", "--model", task.model]
        argv += ["--base-url", task.url.removesuffix("/v1/embeddings")]
        argv += ["--endpoint", "/v1/embeddings", "--dataset-name", "random"]
        argv += ["--random-input-len", "80", "--random-batch-size", str(inputs)]
        argv += ["--num-prompts", str(count * inputs), "--max-concurrency", str(task.concurrency)]
        argv += ["--percentile-metrics", "e2el", "--metric-percentiles", "50,99"]
        argv += ["--save-result", "--result-dir", name, "--result-filename", "result.json"]
        _, cpu_s = _run(_pinned(task, argv))
        found = json.loads(Path(name, "result.json").read_text())
    done, took = found["completed"], found["duration"]
    cpu_ms = cpu_s * 1e3 / done
    return Reading(found["p50_e2el_ms"], found["p99_e2el_ms"], done / took, cpu_ms, done)


def aiperf(task: Task) -> Reading:
    """AIPerf."""
    count = _heavy_count(task)
    inputs = len(json.loads(task.request)["input"])
    with tempfile.TemporaryDirectory() as name:
        argv = [os.environ["EMBBENCH_BENCH_AIPERF"], "profile", "--model", "null"]
        argv += ["--tokenizer", task.model or "gpt2", "--endpoint-type", "embeddings"]
        argv += ["--url", task.url.removesuffix("/v1/embeddings"), "--ui", "none"]
        argv += ["--concurrency", str(task.concurrency), "--request-count", str(count)]
        argv += ["--prompt-batch-size", str(inputs), "--isl", "80", "--artifact-dir", name]
        _, cpu_s = _run(_pinned(task, argv))
        found = json.loads(next(Path(name).rglob("profile_export_aiperf.json")).read_text())
    latency, rps = found["request_latency"], found["request_throughput"]["avg"]
    return Reading(latency["p50"], latency["p99"], rps, cpu_s * 1e3 / count, count)


def guidellm(task: Task) -> Reading:
    """GuideLLM."""
    count = _heavy_count(task)
    with tempfile.TemporaryDirectory() as name:
        argv = [os.environ["EMBBENCH_BENCH_GUIDELLM"], "benchmark", "run"]
        argv += ["--target", task.url.removesuffix("/v1/embeddings"), "--model", "null"]
        argv += ["--request-type", "embeddings", "--processor", task.model or "gpt2"]
        argv += ["--data", "prompt_tokens=80,output_tokens=1", "--profile", "concurrent"]
        argv += ["--rate", str(task.concurrency), "--max-requests", str(count)]
        argv += ["--output-path", str(Path(name, "result.json")), "--disable-console"]
        _, cpu_s = _run(_pinned(task, argv))
        found = json.loads(Path(name, "result.json").read_text())["benchmarks"][0]
    metrics = found["metrics"]
    latency = metrics["request_latency"]["successful"]["percentiles"]
    rps = metrics["requests_per_second"]["successful"]["mean"]
    p50_ms, p99_ms = latency["p50"] * 1e3, latency["p99"] * 1e3
    return Reading(p50_ms, p99_ms, rps, cpu_s * 1e3 / count, count)


def _heavy_count(task: Task) -> int:
    """Heavy tools manage tens to hundreds of requests a second at most."""
    return max(20, min(200, int(30e6 / task.response_bytes) * task.concurrency))


TOOLS: dict[str, Tool] = {
    "wrk": wrk,
    "embbench": buffered,
    "embbench --client aiohttp": aiohttp,
    "hey": hey,
    "oha": oha,
    "vllm bench serve": vllm_bench,
    "AIPerf": aiperf,
    "GuideLLM": guidellm,
}

_VARIABLES = {
    "vllm bench serve": "EMBBENCH_BENCH_VLLM",
    "AIPerf": "EMBBENCH_BENCH_AIPERF",
    "GuideLLM": "EMBBENCH_BENCH_GUIDELLM",
}


def missing(name: str) -> str | None:
    """Why a tool cannot run here, None if it can."""
    if variable := _VARIABLES.get(name):
        return None if os.environ.get(variable) else f"set {variable} to run it"
    if name.startswith("embbench") or shutil.which(name):
        return None
    hint = "apt-get install " + name if name in ("wrk", "hey") else "cargo install oha"
    return f"not installed ({hint})"


def median(readings: list[Reading]) -> Reading:
    """Field by field."""
    return Reading(
        *(statistics.median(getattr(r, f) for r in readings) for f in Reading.__slots__[:-1]),
        requests=min(reading.requests for reading in readings),
    )

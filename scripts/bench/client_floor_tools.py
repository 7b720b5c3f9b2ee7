"""One function a load tool: drive a URL in a closed loop, and say what the tool reports.

A tool that is not installed has a line that says so. The light tools are here: wrk and hey
(`apt-get install wrk hey`) and embbench's two clients; the heavy ones are in client_floor_heavy.py.
"""

import asyncio
import csv
import io
import os
import re
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from client_floor_heavy import HEAVY, VARIABLES
from client_floor_process import Reading, Task, Tool, ToolError, run_tool

from embbench.config.plan import ClosedLoop
from embbench.load.client import ClientName
from embbench.load.job import TrialJob
from embbench.load.processes import LoadProcesses
from embbench.load.request_bodies import BodyFile, BodyFileWriter

HEY_SETTLED = 0.1  # the part of a run of hey whose requests are not looked at

WRK_SCRIPT = """
local file = io.open("{body}", "rb")
wrk.method = "POST"
wrk.body = file:read("*a")
wrk.headers["Content-Type"] = "application/json"
file:close()
done = function(summary, latency, requests)
  io.write(string.format("READING %.3f %.3f %.3f %d %d %d\\n", latency:percentile(50),
    latency:percentile(99), latency.mean, summary.requests, summary.duration,
    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.status
    + summary.errors.timeout))
end
"""


def wrk(task: Task) -> Reading:
    """wrk: C, the floor. It reads a body into an 8 KB buffer and forgets it."""
    with tempfile.TemporaryDirectory() as name:
        body, script = Path(name, "body.json"), Path(name, "script.lua")
        body.write_bytes(task.request)
        script.write_text(WRK_SCRIPT.format(body=body))
        options = ["-t1", f"-c{task.concurrency}", f"-d{max(1, round(task.seconds))}s"]
        argv = ["wrk", *options, "--timeout", "60s", "-s", str(script), task.url]
        ran = run_tool(task, argv)
    match = re.search(r"READING (\S+) (\S+) (\S+) (\d+) (\d+) (\d+)", ran.stdout)
    if match is None:
        raise ToolError(f"its script said nothing: {ran.stdout[-200:]}")
    p50_us, p99_us, mean_us, requests, duration_us, errors = map(float, match.groups())
    if errors:
        raise ToolError(f"{errors:.0f} errors")
    return Reading(
        p50_ms=p50_us / 1e3,
        p99_ms=p99_us / 1e3,
        mean_ms=mean_us / 1e3,
        rps=requests / duration_us * 1e6,
        cpu_ms=ran.cpu_s * 1e3 / requests,
        requests=int(requests),
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
        if len(samples.ok) < len(samples):
            raise ToolError(f"failed requests: {samples.error_counts()}")
        if result.kept.unkept or len(result.kept) < len(samples):
            raise ToolError("bodies were not kept; a larger --arena-mib is needed")
        result.kept.close()
        p50_ns, p99_ns = np.percentile(samples.service_time_ns, (50, 99))
        return Reading(
            p50_ms=p50_ns / 1e6,
            p99_ms=p99_ns / 1e6,
            mean_ms=samples.service_time_ns.mean() / 1e6,
            rps=result.health.achieved_rps,
            cpu_ms=sum(result.health.client_cpu_s) * 1e3 / len(samples),
            requests=len(samples),
        )

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
    """hey: Go. It writes times in steps of 0.1 ms, and nothing of requests without an answer."""
    with tempfile.NamedTemporaryFile() as body:
        body.write(task.request)
        body.flush()
        argv = ["hey", "-z", f"{task.seconds}s", "-c", str(task.concurrency), "-cpus", "1"]
        argv += ["-m", "POST", "-T", "application/json", "-D", body.name, "-o", "csv", task.url]
        ran = run_tool(task, argv)
    rows = list(csv.DictReader(io.StringIO(ran.stdout)))
    if not rows:
        raise ToolError("no request was answered")
    if failed := sum(row["status-code"] != "200" for row in rows):
        raise ToolError(f"{failed} of {len(rows)} requests failed")
    starts_s = np.array([float(row["offset"]) for row in rows])
    took_s = np.array([float(row["response-time"]) for row in rows])
    settled = starts_s >= HEY_SETTLED * task.seconds
    starts_s, took_s = starts_s[settled], took_s[settled]
    p50_ms, p99_ms = np.percentile(took_s * 1e3, (50, 99))
    return Reading(
        p50_ms=p50_ms,
        p99_ms=p99_ms,
        mean_ms=took_s.mean() * 1e3,
        rps=len(took_s) / ((starts_s + took_s).max() - starts_s.min()),
        cpu_ms=ran.cpu_s * 1e3 / len(rows),
        requests=len(took_s),
    )


TOOLS: dict[str, Tool] = {
    "wrk": wrk,
    "embbench": buffered,
    "embbench --client aiohttp": aiohttp,
    "hey": hey,
    **HEAVY,
}


def missing(name: str) -> str | None:
    """Why a tool cannot run here, None if it can."""
    if variable := VARIABLES.get(name):
        path = os.environ.get(variable)
        if path is None:
            return f"set {variable} to run it"
        return None if shutil.which(path) else f"{variable}: {path} is not an executable"
    if name.startswith("embbench") or shutil.which(name):
        return None
    return f"not installed (apt-get install {name})"


def median(readings: list[Reading]) -> Reading:
    """Field by field."""
    return Reading(
        *(statistics.median(getattr(r, f) for r in readings) for f in Reading.__slots__[:-1]),
        requests=min(reading.requests for reading in readings),
    )

"""A target's own counters: prefix-cache hits, and how many requests each worker has served.

In: a target that is up. Out: plain numbers, read before and after the load, and findings about
their difference. None where the server does not count.
"""

from dataclasses import dataclass, field

import aiohttp

from embbench.findings import Finding
from embbench.targets.endpoint import Endpoint, Process
from embbench.targets.parity import fetch, samples
from embbench.targets.ports import LOOPBACK

_TIMEOUT_S = 10.0
_HITS = {"vllm:prefix_cache_hits", "vllm:prefix_cache_hits_total"}
_QUERIES = {"vllm:prefix_cache_queries", "vllm:prefix_cache_queries_total"}


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the server's start. Prefix-cache figures are tokens looked up and found."""

    prefix_queries: int | None = None
    prefix_hits: int | None = None
    worker_requests: dict[str, int] = field(default_factory=dict)
    """Requests by worker, for targets whose workers count apart."""


async def read_counters(endpoint: Endpoint) -> Counters:
    """The counters now, from every metrics page of the target."""
    queries: int | None = None
    hits: int | None = None
    served: dict[str, int] = {}
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, headers=dict(endpoint.headers)) as session:
        for url in metrics_urls(endpoint):
            for name, labels, value in samples(await fetch(session, url)):
                if name in _QUERIES:
                    queries = (queries or 0) + int(value)
                elif name in _HITS:
                    hits = (hits or 0) + int(value)
                elif name == "dynamo_component_requests_total":
                    worker = labels.get("worker_id", url)
                    served[worker] = served.get(worker, 0) + int(value)
    return Counters(queries, hits, served)


def metrics_urls(endpoint: Endpoint) -> tuple[str, ...]:
    """All metrics pages of a target: its main one and, for Dynamo, one of each worker process."""
    main = () if endpoint.metrics_url is None else (endpoint.metrics_url,)
    workers = (
        f"http://{LOOPBACK}:{port}/metrics"
        for process in endpoint.processes
        for port in _system_ports(process)
    )
    return (*main, *workers)


def counter_findings(
    target: str, before: Counters, after: Counters, *, caching_asked: bool = False
) -> list[Finding]:
    """What the difference tells: cache hits that flatter the target, workers that idled."""
    findings = []
    if before.prefix_hits is not None and after.prefix_hits is not None:
        hits = after.prefix_hits - before.prefix_hits
        queries = (after.prefix_queries or 0) - (before.prefix_queries or 0)
        if hits > 0:
            findings.append(
                Finding(
                    "prefix-cache",
                    "info" if caching_asked else "warn",
                    f"{hits} of {queries} tokens came from the prefix cache",
                    ""
                    if caching_asked
                    else "turn prefix caching off: engine_args: {enable_prefix_caching: false}",
                    target,
                )
            )
    busy = {
        worker: count - before.worker_requests.get(worker, 0)
        for worker, count in after.worker_requests.items()
    }
    idle = sorted(worker for worker, count in busy.items() if count <= 0)
    if idle and len(busy) > 1:
        findings.append(
            Finding(
                "idle-worker",
                "warn",
                f"{len(idle)} of {len(busy)} workers served no request: {', '.join(idle)}",
                "with more workers than requests in flight this is expected; else look at the "
                "frontend's log for workers that it never discovered",
                target,
            )
        )
    return findings


def _system_ports(process: Process) -> range:
    """Ports of the status servers of one Dynamo worker tree."""
    first = process.env.get("DYN_SYSTEM_PORT", "-1")
    if process.role != "worker" or not first.isdigit():
        return range(0)
    flag = "--embedding-worker-processes"
    count = int(process.argv[process.argv.index(flag) + 1]) if flag in process.argv else 1
    return range(int(first), int(first) + count)

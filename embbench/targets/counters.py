"""A target's own counters: prefix-cache hits, and how many requests each worker has served.

In: a target that is up. Out: plain numbers, read before and after the load, and findings about
their difference. None where the server does not count.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from embbench.findings import Finding
from embbench.targets.endpoint import Endpoint
from embbench.targets.parity import fetch, samples

_TIMEOUT_S = 10.0
_HITS = {"vllm:prefix_cache_hits", "vllm:prefix_cache_hits_total"}
_QUERIES = {"vllm:prefix_cache_queries", "vllm:prefix_cache_queries_total"}

_SERVED: Final = {
    "dynamo_frontend_requests_total": {"endpoint": "embeddings", "status": "success"},
    "http_requests_total": {"handler": "/v1/embeddings", "status": "2xx"},
    "embbench_requests_total": {"status": "200"},
}
"""Requests for embeddings that the server's front has answered: counters and their labels."""

_ROUTED_ENOUGH: Final = 4
"""Requests a worker from which on an idle one is no accident of routing."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the server's start. Prefix-cache figures are tokens looked up and found."""

    prefix_queries: int | None = None
    prefix_hits: int | None = None
    worker_requests: dict[str, int] = field(default_factory=dict)
    """Requests by worker, for targets whose workers count apart."""
    served: int | None = None


async def read_counters(endpoint: Endpoint) -> Counters:
    """The counters now, from every metrics page of the target."""
    urls = [url for url in (endpoint.metrics_url, *endpoint.worker_metrics_urls) if url]
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, headers=dict(endpoint.headers)) as session:
        pages = await asyncio.gather(*(fetch(session, url) for url in urls))
    totals: dict[str, int] = {}
    workers: dict[str, int] = {}
    for url, page in zip(urls, pages, strict=True):
        for name, labels, value in samples(page):
            if name in _QUERIES:
                totals["queries"] = totals.get("queries", 0) + int(value)
            elif name in _HITS:
                totals["hits"] = totals.get("hits", 0) + int(value)
            elif name in _SERVED and _SERVED[name].items() <= labels.items():
                totals["served"] = totals.get("served", 0) + int(value)
            elif name == "dynamo_component_requests_total":
                worker = labels.get("worker_id", url)
                workers[worker] = workers.get(worker, 0) + int(value)
            elif name == "vllm:request_success_total" and "engine" in labels:
                worker = f"engine {labels['engine']}"
                workers[worker] = workers.get(worker, 0) + int(value)
    return Counters(totals.get("queries"), totals.get("hits"), workers, totals.get("served"))


def counter_findings(
    target: str,
    before: Counters,
    after: Counters,
    *,
    caching_asked: bool = False,
    sent: int | None = None,
    cell: str | None = None,
    trial: int | None = None,
) -> list[Finding]:
    """What the difference tells: cache hits that flatter the target, workers that idled, a restart,
    requests of somebody else (``sent``: those of embbench, warm-up included)."""

    def finding(check: str, severe: bool, what: str, do: str) -> Finding:
        return Finding(check, "fail" if severe else "warn", what, do, target, cell, trial)

    findings = []
    if _restarted(before, after):
        what = "a counter of the server fell: one of its processes began anew under the load"
        findings.append(finding("server-restarted", True, what, "look at the server's log"))
    hits = (after.prefix_hits or 0) - (before.prefix_hits or 0)
    queries = (after.prefix_queries or 0) - (before.prefix_queries or 0)
    if hits > 0:
        what = f"{hits} of {queries} tokens came from the prefix cache"
        if caching_asked:
            findings.append(Finding("prefix-cache", "info", what, "", target, cell, trial))
        else:
            do = "turn prefix caching off: engine_args: {enable_prefix_caching: false}"
            findings.append(finding("prefix-cache", False, what, do))
    busy = {
        worker: count - before.worker_requests.get(worker, 0)
        for worker, count in after.worker_requests.items()
    }
    idle = sorted(worker for worker, count in busy.items() if count <= 0)
    if idle and any(count > 0 for count in busy.values()):
        findings.append(
            finding(
                "idle-worker",
                sum(busy.values()) >= _ROUTED_ENOUGH * len(busy),
                f"{len(idle)} of {len(busy)} workers served no request: {', '.join(idle)}",
                "with more workers than requests in flight this is expected; else look at the "
                "frontend's log for workers that it never discovered",
            )
        )
    served = None if after.served is None else after.served - (before.served or 0)
    if sent is not None and served is not None and served > sent:
        what = f"the server answered {served} requests, embbench sent {sent}"
        do = "somebody else uses this server; keep it to yourself during a run"
        findings.append(finding("foreign-requests", False, what, do))
    return findings


def _restarted(before: Counters, after: Counters) -> bool:
    """Whether any counter is lower than it was."""
    pairs = [
        (before.prefix_queries, after.prefix_queries),
        (before.served, after.served),
        *((count, after.worker_requests.get(w)) for w, count in before.worker_requests.items()),
    ]
    return any(b is not None and a is not None and a < b for b, a in pairs)

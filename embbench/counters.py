"""The servers' own counters, read before and after a trial.

In: the ``/metrics`` pages of a target. Out: what was served by whom in between, how much came from
a prefix cache, and findings. A server without such a page is fine.
"""

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from embbench.findings import Finding
from embbench.targets.endpoint import Endpoint

Series = Mapping[str, Mapping[str, float]]
"""URL of a page -> ``name{labels}`` as printed -> value."""

TIMEOUT_S: Final = 5.0

SERVED: Final = (
    re.compile(r"dynamo_frontend_requests_total\{.*endpoint=\"embeddings\".*status=\"success\""),
    re.compile(r"http_requests_total\{.*handler=\"/v1/embeddings\".*status=\"2xx\""),
    re.compile(r"embbench_requests_total\{.*status=\"200\""),
)
"""HTTP requests for embeddings that a server's front counts as answered."""
WORK: Final = (
    re.compile(r"dynamo_component_requests_total\{.*dynamo_endpoint=\"generate\""),
    re.compile(r"vllm:request_success_total\{"),
)
"""What one worker or engine has done."""
PREFIX_HITS: Final = re.compile(r"(?:vllm:|sglang:)?(?:gpu_)?prefix_cache_hits(?:_total)?(?:\{|$)")
PREFIX_QUERIES: Final = re.compile(
    r"(?:vllm:|sglang:)?(?:gpu_)?prefix_cache_queries(?:_total)?(?:\{|$)"
)
_WORKER: Final = re.compile(r"(?:worker_id|engine|engine_index)=\"([^\"]*)\"")

_ENOUGH_FOR_ALL: Final = 4
"""Requests a worker from which on an idle one is no accident of routing."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What the servers counted between two readings; None where they do not count it."""

    served: int | None = None
    work_by_worker: Mapping[str, int] = field(default_factory=dict)
    prefix_hits: int | None = None
    prefix_queries: int | None = None
    restarted: bool = False
    """A counter fell: its process began anew in between."""


async def read_counters(endpoint: Endpoint) -> Series:
    """All pages of a target, those of its workers included; pages that do not answer are left
    out."""
    import aiohttp

    urls = [endpoint.metrics_url, *endpoint.worker_metrics_urls]
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, headers=dict(endpoint.headers)) as session:

        async def read(url: str) -> str:
            try:
                async with session.get(url) as response:
                    return await response.text() if response.status == 200 else ""
            except (aiohttp.ClientError, TimeoutError, UnicodeDecodeError):
                return ""

        asked = [url for url in dict.fromkeys(urls) if url]
        texts = await asyncio.gather(*map(read, asked))
    pages = {url: parse_metrics(text) for url, text in zip(asked, texts, strict=True)}
    return {url: page for url, page in pages.items() if page}


def parse_metrics(text: str) -> dict[str, float]:
    """``name{labels}`` -> value of a page in Prometheus' text format; what is no sample is left
    out."""
    found = {}
    for line in text.splitlines():
        match = re.match(r"([A-Za-z_:][\w:]*(?:\{.*\})?)\s+(\S+)", line)
        if match:
            try:
                found[match[1]] = float(match[2])
            except ValueError:
                continue
    return found


def count(before: Series, after: Series) -> Counted:
    """What was counted between two readings of the same target."""
    deltas = list(_deltas(before, after))
    workers: dict[str, int] = {}
    for url, name, delta in deltas:
        if any(pattern.match(name) for pattern in WORK):
            label = _WORKER.search(name)
            who = label[1] if label else ""
            key = f"{url.split('/')[2]} {who}".strip() if len(after) > 1 else who or url
            workers[key] = workers.get(key, 0) + round(delta)
    return Counted(
        served=_sum(deltas, SERVED),
        work_by_worker=workers,
        prefix_hits=_sum(deltas, (PREFIX_HITS,)),
        prefix_queries=_sum(deltas, (PREFIX_QUERIES,)),
        restarted=any(
            delta < 0 and re.match(r"[\w:]+_total(\{|$)", name) for _, name, delta in deltas
        ),
    )


def counter_findings(
    counted: Counted,
    *,
    sent: int,
    target: str,
    cell: str | None = None,
    trial: int | None = None,
) -> list[Finding]:
    """What the counters say against this trial of ``sent`` requests, warm-up included."""

    def finding(check: str, severe: bool, what: str, do: str) -> Finding:
        return Finding(check, "fail" if severe else "warn", what, do, target, cell, trial)

    found = []
    if counted.restarted:
        found.append(
            finding(
                "server-restarted",
                True,
                "a counter of the server fell during the trial: one of its processes began anew",
                "look at the server's log",
            )
        )
    work = sum(counted.work_by_worker.values())
    idle = [worker for worker, done in counted.work_by_worker.items() if done <= 0]
    if idle and work > 0:
        workers = len(counted.work_by_worker)
        found.append(
            finding(
                "idle-worker",
                work >= _ENOUGH_FOR_ALL * workers,
                f"{len(idle)} of {workers} workers served nothing during the trial "
                f"({', '.join(idle)}), the others {work} requests",
                "check that all workers are registered under one name and are routed to",
            )
        )
    if counted.prefix_hits:
        of = f" of {counted.prefix_queries:,} tokens" if counted.prefix_queries else " tokens"
        found.append(
            finding(
                "prefix-cache",
                False,
                f"{counted.prefix_hits:,}{of} came from the prefix cache",
                "set enable_prefix_caching: false in engine_args, unless caching is the subject",
            )
        )
    if counted.served is not None and counted.served > sent:
        found.append(
            finding(
                "foreign-requests",
                False,
                f"the server answered {counted.served} requests, embbench sent {sent}",
                "somebody else uses this server; keep it to yourself during a run",
            )
        )
    return found


def _deltas(before: Series, after: Series) -> Iterator[tuple[str, str, float]]:
    for url, page in after.items():
        for name, value in page.items():
            yield url, name, value - before.get(url, {}).get(name, 0.0)


def _sum(
    deltas: Iterable[tuple[str, str, float]], patterns: Iterable[re.Pattern[str]]
) -> int | None:
    """The first pattern that occurs counts; the same event is not counted by two of them."""
    rows = list(deltas)
    for pattern in patterns:
        matching = [delta for _, name, delta in rows if pattern.match(name)]
        if matching:
            return round(sum(matching))
    return None

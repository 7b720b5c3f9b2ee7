"""What changes between two metrics pages, on pages as real servers print them."""

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from embbench.targets.counters import Counters, counter_findings, read_counters
from embbench.targets.endpoint import Endpoint

VLLM = """
# HELP vllm:prefix_cache_hits_total Prefix cache hits, in terms of number of cached tokens.
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1200.0
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.7960197018263135e+09
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 320.0
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 77.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 100.0
vllm:request_success_total{engine="0",finished_reason="abort",model_name="m"} 1.0
vllm:request_success_total{engine="1",finished_reason="stop",model_name="m"} 0.0
vllm:cache_config_info{block_size="128",note="a { b } \\" c",engine="0"} 1.0
http_requests_total{handler="/v1/models",method="GET",status="2xx"} 5.0
http_requests_total{handler="/v1/embeddings",method="POST",status="2xx"} 20.0
http_requests_total{handler="/v1/embeddings",method="POST",status="5xx"} 3.0
"""
FRONTEND = """
dynamo_frontend_requests_started_total{endpoint="embeddings",model="m"} 99
dynamo_frontend_requests_total{endpoint="embeddings",error_type="",model="m",status="success"} 20
dynamo_frontend_requests_total{endpoint="embeddings",error_type="x",model="m",status="error"} 2
"""
WORKER = """
dynamo_component_inflight_requests{dynamo_endpoint="generate",worker_id="ID"} 0
dynamo_component_requests_total{dynamo_endpoint="generate",worker_id="ID"} COUNT
"""
PAGES = {
    "/vllm": VLLM,
    "/frontend": FRONTEND,
    "/worker0": WORKER.replace("ID", "aa").replace("COUNT", "20"),
    "/worker1": WORKER.replace("ID", "bb").replace("COUNT", "0"),
    "/nothing": "<html>not found</html>",
}


@pytest.fixture
async def origin() -> AsyncIterator[str]:
    async def page(request: web.BaseRequest) -> web.Response:
        return web.Response(text=PAGES[request.path])

    runner = web.ServerRunner(web.Server(page))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def endpoint(origin: str, main: str, *workers: str) -> Endpoint:
    return Endpoint(
        "t",
        f"{origin}/v1",
        "m",
        metrics_url=origin + main,
        worker_metrics_urls=tuple(origin + worker for worker in workers),
    )


async def test_counters_of_vllm(origin: str) -> None:
    assert await read_counters(endpoint(origin, "/vllm")) == Counters(
        prefix_queries=1200,
        prefix_hits=320,
        worker_requests={"engine 0": 101, "engine 1": 0},
        served=20,
    )


async def test_counters_of_dynamo_come_from_every_worker(origin: str) -> None:
    assert await read_counters(endpoint(origin, "/frontend", "/worker0", "/worker1")) == Counters(
        worker_requests={"aa": 20, "bb": 0}, served=20
    )


async def test_a_server_that_counts_nothing_is_fine(origin: str) -> None:
    counters = await read_counters(endpoint(origin, "/nothing"))
    assert counters == Counters()
    assert counter_findings("t", counters, counters, sent=20) == []


def checks(before: Counters, after: Counters, sent: int = 20) -> dict[str, str]:
    found = counter_findings("t", before, after, sent=sent, cell="b1", trial=0)
    assert all((f.target, f.cell, f.trial) == ("t", "b1", 0) for f in found)
    return {f.check: f.severity for f in found}


def test_one_idle_worker_of_two_fails_where_routing_cannot_excuse_it() -> None:
    idle = {"a": 3, "b": 2}
    assert checks(Counters(worker_requests=idle), Counters(worker_requests={"a": 23, "b": 2})) == {
        "idle-worker": "fail"
    }
    assert checks(Counters(worker_requests=idle), Counters(worker_requests={"a": 5, "b": 2})) == {
        "idle-worker": "warn"
    }
    assert checks(Counters(worker_requests=idle), Counters(worker_requests=idle)) == {}


def test_a_fallen_counter_is_a_restart() -> None:
    before = Counters(served=50, worker_requests={"engine 0": 50})
    after = Counters(served=7, worker_requests={"engine 0": 7})
    assert checks(before, after)["server-restarted"] == "fail"


def test_requests_that_embbench_did_not_send_are_told() -> None:
    before, after = Counters(served=5), Counters(served=30)
    assert checks(before, after, sent=20) == {"foreign-requests": "warn"}
    assert checks(before, after, sent=25) == {}

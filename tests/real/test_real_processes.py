"""Several worker processes, and a prefix cache: what the servers themselves count."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from embbench.config.schema import DynamoTarget, VllmTarget
from embbench.targets.bring_up import bring_up
from embbench.targets.counters import counter_findings, read_counters
from embbench.targets.endpoint import Endpoint
from embbench.targets.parity import parity_findings, read_settings
from embbench.targets.recipe import Context

ENGINE = {"dtype": "float32", "enforce_eager": True, "max_model_len": 256}


@pytest.fixture
def context(tmp_path: Path, server_python: str) -> Context:
    return Context(
        log_dir=tmp_path,
        batches=(1, 4),
        model="generated",
        engine_args=ENGINE,
        server_python=server_python,
    )


async def ask(up: Endpoint, requests: int) -> None:
    """Overlapping requests of four texts each, all of them answered."""
    async with aiohttp.ClientSession() as session:

        async def one(number: int) -> None:
            texts = [f"request {number}, text {text}" for text in range(4)]
            body = {"model": up.model, "input": texts}
            async with session.post(f"{up.base_url}/embeddings", json=body) as response:
                assert response.status == 200
                assert len((await response.json())["data"]) == 4

        await asyncio.gather(*(one(number) for number in range(requests)))


async def test_dynamo_with_two_worker_processes_and_frontend_tokenization(
    context: Context,
) -> None:
    config = DynamoTarget(embedding_worker_processes=2, embedding_frontend_tokenization=True)
    async with bring_up("split", config, context) as up:
        settings = await read_settings(up, config, context)
        before = await read_counters(up)
        await ask(up, 12)
        after = await read_counters(up)
    assert up.findings == (), "a listener that other machines can reach, or a slow start"
    assert settings["worker processes"].used == "2"
    assert settings["tokenization"].shown == "frontend"
    assert parity_findings("split", settings) == []
    served = [after.worker_requests[w] - n for w, n in before.worker_requests.items()]
    assert len(served) == 2
    assert sum(served) == 12
    assert min(served) > 0
    assert counter_findings("split", before, after) == []


async def test_bare_vllm_counts_its_prefix_cache(context: Context) -> None:
    config = VllmTarget(engine_args={"enable_prefix_caching": True})
    async with bring_up("bare", config, context) as up:
        settings = await read_settings(up, config, context)
        before = await read_counters(up)
        for _ in range(2):  # the same texts again, longer than a cache block
            async with aiohttp.ClientSession() as session:
                body = {"model": up.model, "input": ["x" * 200]}
                async with session.post(f"{up.base_url}/embeddings", json=body) as response:
                    assert response.status == 200
        after = await read_counters(up)
    assert up.findings == ()
    assert settings["API processes"].used == "1"
    assert settings["prefix caching"].used == "on"
    assert parity_findings("bare", settings) == []
    (finding,) = counter_findings("bare", before, after)
    assert "came from the prefix cache" in finding.what

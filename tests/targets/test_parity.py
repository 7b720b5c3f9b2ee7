"""Parity and counters: what real start-up logs and metrics pages tell."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from embbench.config.schema import DynamoTarget, ExternalTarget, ReferenceTarget, VllmTarget
from embbench.targets.counters import Counters, counter_findings, read_counters
from embbench.targets.endpoint import Endpoint, Process
from embbench.targets.parity import (
    Setting,
    from_log,
    from_metrics,
    from_models,
    parity_findings,
    parity_table,
    read_settings,
)
from embbench.targets.recipe import Context

DATA = Path(__file__).parents[1] / "data"
CONTEXT = Context(log_dir=Path(), engine_args={"dtype": "float32", "max_model_len": 256})


def test_the_log_of_a_real_vllm_tells_its_whole_configuration() -> None:
    told = from_log((DATA / "vllm-0.31-startup.log").read_text())
    assert told == {
        "engine": "vLLM 0.31.0",
        "API processes": "1",
        "dtype": "float32",
        "max_model_len": "256",
        "prefix caching": "off",
        "enforce_eager": "on",
        "load_format": "auto",
        "pooling": "last",
        "normalised": "on",
        "max_num_batched_tokens": "2048",
    }


def test_the_log_of_a_real_dynamo_worker_tells_its_processes_too() -> None:
    told = from_log((DATA / "dynamo-1.6-worker.log").read_text())
    assert told["worker processes"] == "2"
    assert told["prefix caching"] == "on"
    assert told["dtype"] == "float32"


def test_older_words_for_the_same_things_are_read() -> None:
    line = (
        "INFO [core.py:99] Initializing a V1 LLM engine (v0.19.0) with config: model='m', "
        "dtype=torch.bfloat16, max_seq_len=2048, load_format=dummy, enforce_eager=False, "
        "enable_prefix_caching=True, pooler_config=PoolerConfig(pooling_type='MEAN', "
        "normalize=False, dimensions=None), compilation_config={'level': 3}"
    )
    told = from_log(f"\x1b[32m{line}\x1b[0m\nmax_num_batched_tokens=8192.\n")
    assert told["dtype"] == "bfloat16"
    assert (told["pooling"], told["normalised"]) == ("mean", "off")
    assert (told["prefix caching"], told["max_num_batched_tokens"]) == ("on", "8192")


@pytest.mark.parametrize("text", ["", "nothing of the sort", "dtype=float16", "\x00\xff"])
def test_a_log_that_tells_nothing(text: str) -> None:
    assert from_log(text) == {}


def test_api_processes_are_counted_by_name() -> None:
    lines = [f"(ApiServer_{n} pid=1{n}) INFO x" for n in (0, 1, 1, 2)]
    assert from_log("\n".join(lines))["API processes"] == "3"


def test_models_and_metrics() -> None:
    assert from_models('{"data": [{"id": "m", "max_model_len": 256}]}') == {"max_model_len": "256"}
    assert from_models('{"data": [{"id": "m", "context_window": 9}]}') == {"max_model_len": "9"}
    for nothing in ("", "[]", '{"data": []}', '{"data": [{"id": "m"}]}'):
        assert from_models(nothing) == {}
    page = (
        "# HELP x y\n"
        'dynamo_frontend_model_max_num_batched_tokens{model="m"} 2048\n'
        'embbench_info{engine="numpy",hop="shm",normalise="true",pool="last",processes="2"} 1\n'
        "broken{ 1\nnot_a_number nope\n"
    )
    assert from_metrics(page) == {
        "max_num_batched_tokens": "2048",
        "engine": "numpy",
        "hop": "shm",
        "normalised": "on",
        "pooling": "last",
    }


def test_the_table_shows_what_is_used_and_what_was_asked_where_they_differ() -> None:
    same = {"dtype": Setting("float32", "float32", "startup log")}
    other = {"dtype": Setting("float32", "bfloat16", "startup log"), "hop": Setting("shm")}
    rows = parity_table({"a": same, "b": other})
    assert rows == [
        {
            "setting": "dtype",
            "values": {"a": "float32", "b": "bfloat16 (asked float32)"},
            "sources": {"a": "startup log", "b": "startup log"},
        },
        {"setting": "hop", "values": {"b": "shm"}, "sources": {"b": "as asked"}},
    ]
    assert parity_findings("a", same) == []
    (finding,) = parity_findings("b", other)
    assert finding.severity == "warn"
    assert "dtype is bfloat16" in finding.what


PAGES = {
    "/metrics": 'vllm:prefix_cache_queries_total{engine="0"} {q}\n'
    'vllm:prefix_cache_hits_total{engine="0"} {h}\n',
    "/v1/models": '{"data": [{"id": "m", "max_model_len": 128}]}',
}


async def test_a_target_that_is_up_is_asked_everywhere(tmp_path: Path) -> None:
    counts = {"q": "10", "h": "0"}

    async def answer(request: web.Request) -> web.Response:
        page = PAGES[request.path]
        for key, value in counts.items():
            page = page.replace(f"{{{key}}}", value)
        return web.Response(text=page)

    app = web.Application()
    for path in PAGES:
        app.router.add_get(path, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    origin = f"http://127.0.0.1:{runner.addresses[0][1]}"
    log = tmp_path / "log"
    log.write_text((DATA / "vllm-0.31-startup.log").read_text())
    up = Endpoint(
        target="t",
        base_url=f"{origin}/v1",
        model="m",
        processes=(Process("server", 1, ("x",), {}, log),),
        metrics_url=f"{origin}/metrics",
    )
    try:
        settings = await read_settings(up, VllmTarget(api_server_count=2), CONTEXT)
        before = await read_counters(up)
        counts |= {"q": "110", "h": "30"}
        after = await read_counters(up)
    finally:
        await runner.cleanup()
    assert settings["dtype"] == Setting("float32", "float32", "startup log")
    # a server that did not do what it was told to
    assert settings["API processes"].shown == "1 (asked 2)"
    # the list of models is asked last, and is what clients are held to
    assert settings["max_model_len"] == Setting("256", "128", "/v1/models")
    assert (before.prefix_queries, before.prefix_hits) == (10, 0)
    (finding,) = counter_findings("t", before, after)
    assert finding.severity == "warn"
    assert finding.what == "30 of 100 tokens came from the prefix cache"
    assert counter_findings("t", before, after, caching_asked=True)[0].severity == "info"


async def test_a_target_that_answers_nothing_is_known_by_what_was_asked() -> None:
    up = Endpoint(target="t", base_url="http://127.0.0.1:1/v1", model="m", metrics_url=None)
    config = DynamoTarget(embedding_worker_processes=2, embedding_frontend_tokenization=True)
    async with asyncio.timeout(30):
        settings = await read_settings(up, config, CONTEXT)
        counters = await read_counters(up)
    assert settings["worker processes"].shown == "2"
    assert settings["tokenization"].shown == "frontend"
    assert settings["prefix caching"].shown == "off"
    assert counters == Counters()
    token = await read_settings(up, ReferenceTarget(pooling="token", hop="shm"), CONTEXT)
    assert (token["pooling"].shown, token["normalised"].shown) == ("token", "off")
    assert token["hop"].shown == "shm"
    assert token["engine"].shown == "numpy"
    real = await read_settings(up, ReferenceTarget(engine="vllm"), CONTEXT)
    assert "engine" not in real, "vLLM tells its version where it is up"
    assert await read_settings(up, ExternalTarget(url=up.base_url), CONTEXT) == {}


def test_a_worker_that_idled_is_found_and_a_single_one_is_not() -> None:
    before = Counters(worker_requests={"a": 5, "b": 5})
    (finding,) = counter_findings("t", before, Counters(worker_requests={"a": 9, "b": 5}))
    assert "1 of 2 workers served no request: b" in finding.what
    assert counter_findings("t", before, Counters(worker_requests={"a": 9, "b": 6})) == []
    one = Counters(worker_requests={"a": 5})
    assert counter_findings("t", one, one) == []

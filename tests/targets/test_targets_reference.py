"""Kind `reference`: the command line it makes, without starting anything."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import embbench
from embbench.config.schema import ReferenceTarget
from embbench.errors import ConfigError
from embbench.reference.options import ServeOptions, parse_command
from embbench.targets import reference
from embbench.targets.generated import write_model
from embbench.targets.ports import Ports
from embbench.targets.recipe import Context, Recipe


def recipe(context: Context, **config: Any) -> Recipe:
    with Ports() as ports:
        return reference.recipe("ref", ReferenceTarget.model_validate(config), ports, context)


def options(made: Recipe) -> ServeOptions:
    """What the server itself reads from the command line."""
    argv = made.specs[0].argv
    assert argv[1:3] == ("-m", "embbench.reference")
    return parse_command(argv[3:], "serve")[0]


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(tmp_path, engine_args={"dtype": "float32", "max-num-batched-tokens": 512})


def test_the_config_arrives_at_the_server(context: Context) -> None:
    made = recipe(context, processes=2, hop="shm", pooling="token", normalised=False)
    told = options(made)
    assert (told.processes, told.hop, told.pooling) == (2, "shm", "token")
    assert told.normalise is False
    assert (told.dtype, told.max_batched_tokens) == ("float32", 512)
    assert made.specs[0].ports == (told.port,)
    assert made.base_url == f"http://127.0.0.1:{told.port}/v1"
    assert made.specs[0].argv[0] == sys.executable
    assert made.scratch == ()


def test_engine_arguments_of_the_run_that_it_does_not_have_are_left_out(context: Context) -> None:
    run_args = {"gpu_memory_utilization": 0.5, "max_model_len": 300}
    told = options(recipe(Context(context.log_dir, engine_args=run_args)))
    assert told.max_model_len == 300
    with pytest.raises(ConfigError, match=r"targets\.ref\.engine_args\.gpu_memory_utilization"):
        recipe(context, engine_args=run_args)


def test_the_vllm_engine_gets_the_rest_as_json(context: Context, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    (packages / "vllm").mkdir(parents=True)
    (packages / "vllm/__init__.py").touch()
    made = recipe(
        context,
        engine="vllm",
        model=str(write_model(tmp_path / "model", "tiny", weights=False)),
        engine_args={"max-model-len": 128, "enforce-eager": True},
        python=sys.executable,
        pythonpath=str(packages),
    )
    told = options(made)
    assert (told.dtype, told.max_model_len) == ("float32", 128)
    further = json.loads(told.engine_args)
    assert further["enforce_eager"] is True
    assert further["enable_prefix_caching"] is False
    assert not further.keys() & {"dtype", "max_model_len"}
    assert told.served_model_name == "model"


@pytest.mark.parametrize("value", [{"dtype": "float8"}, {"max_batch": 0}, {"max_batch": "many"}])
def test_values_that_cannot_be_served_are_a_config_error(
    context: Context, value: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=r"targets\.ref"):
        recipe(context, engine_args=value)


def test_a_borrowed_interpreter_imports_this_embbench_and_nothing_beside_it(
    context: Context,
) -> None:
    made = recipe(context, python="/other/venv/bin/python", env={"PYTHONPATH": "/mine"})
    first, *others = made.specs[0].env["PYTHONPATH"].split(":")
    (scratch,) = made.scratch
    try:
        assert (first, others) == (str(scratch), ["/mine"])
        assert [entry.name for entry in scratch.iterdir()] == ["embbench"]
        assert (scratch / "embbench").resolve() == Path(embbench.__file__).parent.resolve()
    finally:
        (scratch / "embbench").unlink()
        scratch.rmdir()


@pytest.mark.parametrize(
    ("engine", "model", "told_model"),
    [("numpy", "generated", "generated"), ("torch", "qwen3-0.6b", "qwen3-0.6b")],
)
def test_names_of_models(context: Context, engine: str, model: str, told_model: str) -> None:
    told = options(recipe(context, engine=engine, model=model, python=sys.executable))
    assert (told.model, told.served_model_name) == (told_model, model)

"""Kind `vllm`: a bare `vllm serve`, and the engine arguments that all vLLM-based targets share.

In: the run's engine arguments and those of the target. Out: a command line. Every value that is
not asked for is left to vLLM, except prefix caching, which is off.
"""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from embbench.config.schema import DynamoTarget, Launch, VllmTarget
from embbench.errors import ConfigError
from embbench.reference.options import ServeOptions
from embbench.targets.environment import ServerEnvironment, require, server_python
from embbench.targets.models import resolve_model, served_name
from embbench.targets.ports import LOOPBACK, Ports
from embbench.targets.processes import ProcessSpec
from embbench.targets.recipe import Context, Recipe, launch_env

POOLS: Final = {"last": "LAST", "mean": "MEAN", "cls": "CLS"}
OURS: Final = frozenset({"model", "host", "port", "served_model_name", "runner", "convert"})
"""What embbench itself decides, so that targets stay comparable and on loopback."""
_SHARED: Final = {"dtype", "max_model_len", "seed", "load_format", "pool", "normalise"}
REFERENCE_ONLY: Final = {option.name for option in fields(ServeOptions)} - _SHARED - OURS
"""Arguments of a run that are meant for reference servers beside this target, such as device."""


def engine_arguments(
    name: str, config: VllmTarget | DynamoTarget, context: Context
) -> dict[str, Any]:
    """The run's engine arguments with the target's own put over them, by vLLM's names.

    ``pool`` (last, mean, cls) and ``normalise`` become vLLM's pooler config, as the reference
    servers know them, too. Raises `ConfigError` for what embbench decides itself.
    """
    merged: dict[str, Any] = {"enable_prefix_caching": False}
    if not config.normalised:
        merged["normalise"] = False
    for given, foreign in ((context.engine_args, REFERENCE_ONLY), (config.engine_args, set())):
        named = {key.replace("-", "_"): value for key, value in given.items()}
        merged |= {key: value for key, value in named.items() if key not in foreign}
    if clash := OURS & merged.keys():
        raise ConfigError(
            f"targets.{name}.engine_args.{min(clash)}: embbench sets it itself; "
            "the model is named by model: of the run or the target"
        )
    pooler = dict(merged.pop("pooler_config", None) or {})
    if (pool := merged.pop("pool", None)) is not None:
        if pool not in POOLS:
            raise ConfigError(f"targets.{name}.engine_args.pool: one of {', '.join(POOLS)}")
        pooler["pooling_type"] = POOLS[pool]
    if (normalise := merged.pop("normalise", None)) is not None:
        pooler["use_activation"] = bool(normalise)
    return merged | ({"pooler_config": pooler} if pooler else {})


def engine_argv(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Engine arguments as flags: ``a_b: 1`` is ``--a-b 1``, ``c: false`` is ``--no-c``."""
    argv: list[str] = []
    for key, value in arguments.items():
        flag = "--" + key.replace("_", "-")
        match value:
            case None:
                pass
            case True:
                argv.append(flag)
            case False:
                argv.append(flag.replace("--", "--no-", 1))
            case dict():
                argv += [flag, json.dumps(value)]
            case list() | tuple():
                argv += [flag, *map(str, value)]
            case _:
                argv += [flag, str(value)]
    return tuple(argv)


def pooling_argv(model_name: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """The options of an embedding engine that bare vLLM and Dynamo's worker have in common."""
    named = ("--served-model-name", served_name(model_name))
    return (*named, "--runner", "pooling", "--convert", "embed", *engine_argv(arguments))


def server_env(environment: ServerEnvironment, launch: Launch, scratch: Path) -> dict[str, str]:
    """What a server process gets beyond the inherited environment; the config's own wins.

    Temporary files go where they are removed afterwards, and a module that lies in the working
    folder shadows none of theirs.
    """
    env = environment.engine_env() | {"TMPDIR": str(scratch)}
    if launch.cwd is None:
        env["PYTHONSAFEPATH"] = "1"
    return env | launch_env(launch)


def named_model(target: str, config: VllmTarget | DynamoTarget, context: Context) -> str:
    """The model's name as the config gives it. Raises `ConfigError` if it gives none."""
    name = config.model or context.model
    if name is None:
        raise ConfigError(
            f"targets.{target}: no model is named; set model: to a folder, a hub name, "
            "'minilm' or 'generated'"
        )
    return name


def recipe(name: str, config: VllmTarget, ports: Ports, context: Context) -> Recipe:
    """One tree: the API server starts its engine core and workers by itself."""
    python = server_python(config.python, context.server_python)
    environment = require(name, "vllm", python, config.pythonpath)
    model_name = named_model(name, config, context)
    model = resolve_model(model_name, environment.python)
    arguments = engine_arguments(name, config, context)
    count = config.api_server_count
    if count > 1 and not environment.command:
        raise ConfigError(
            f"targets.{name}.api_server_count: the vLLM of {python} starts by its module, which "
            "knows one API process only; several need a build whose `vllm serve` works"
        )
    port = ports.free()
    scratch = Path(tempfile.mkdtemp(prefix="embbench-vllm-"))
    offline = {"HF_HUB_OFFLINE": "1"} if Path(model).is_dir() else {}
    spec = ProcessSpec(
        role="server",
        argv=(
            *environment.serve_argv(model),
            *("--host", LOOPBACK, "--port", str(port)),
            *(("--api-server-count", str(count)) if count > 1 else ()),
            *pooling_argv(model_name, arguments),
            *config.args,
        ),
        env=offline | server_env(environment, config, scratch),
        cwd=config.cwd,
        ports=(port,),
        stop_grace_s=config.stop_grace_s,
    )
    origin = f"http://{LOOPBACK}:{port}"
    return Recipe(
        specs=(spec,),
        base_url=f"{origin}/v1",
        model=served_name(model_name),
        metrics_url=f"{origin}/metrics",
        scratch=(scratch,),
    )

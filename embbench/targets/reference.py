"""Kind `reference`: our own servers, as one process or as frontend and worker."""

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from embbench import version
from embbench.config.schema import ReferenceTarget
from embbench.errors import ConfigError
from embbench.reference.options import ServeOptions
from embbench.targets.environment import require, server_python
from embbench.targets.models import GENERATED, MINILM, resolve_model, served_name
from embbench.targets.ports import LOOPBACK, Ports
from embbench.targets.processes import ProcessSpec
from embbench.targets.recipe import Context, Recipe, launch_env

_OPTIONS = {option.name for option in fields(ServeOptions)} - {"engine_args"}
_VLLM_NAMES = {"max_num_batched_tokens": "max_batched_tokens"}


def recipe(name: str, config: ReferenceTarget, ports: Ports, context: Context) -> Recipe:
    """One tree: the server starts its own worker. It runs this very embbench, under any Python."""
    python = config.python or sys.executable
    if config.engine != "numpy":
        python = server_python(config.python, context.server_python)
    options = serve_options(name, config, context, python, ports.free())
    env = {}
    if config.engine == "vllm":
        env = require(name, "vllm", python, config.pythonpath).engine_env()
    package, scratch = _package_path(python)
    env |= launch_env(config, pythonpath=str(package))
    if config.cwd is None:  # a module that lies in the working folder shadows none of ours
        env = {"PYTHONSAFEPATH": "1", **env}
    spec = ProcessSpec(
        role="server",
        argv=(python, "-m", "embbench.reference", *options.to_argv(), *config.args),
        env=env,
        cwd=config.cwd,
        ports=(options.port,),
        stop_grace_s=config.stop_grace_s,
    )
    origin = f"http://{LOOPBACK}:{options.port}"
    return Recipe(
        specs=(spec,),
        base_url=f"{origin}/v1",
        model=options.served_model_name,
        metrics_url=f"{origin}/metrics",
        scratch=scratch,
    )


def serve_options(
    name: str, config: ReferenceTarget, context: Context, python: str, port: int
) -> ServeOptions:
    """The server's options. Engine arguments of the run that it does not have are left out;
    those of the target itself must exist. Raises `ConfigError`."""
    run_args, own_args = _renamed(context.engine_args), _renamed(config.engine_args)
    values = {key: value for key, value in (run_args | own_args).items() if key in _OPTIONS}
    if config.engine == "vllm":
        further = {"enable_prefix_caching": False} | run_args | own_args
        further = {key: value for key, value in further.items() if key not in _OPTIONS}
        values["engine_args"] = json.dumps(further)
    elif unknown := own_args.keys() - _OPTIONS:
        raise ConfigError(
            f"targets.{name}.engine_args.{min(unknown)}: no option of the reference server; "
            "see `embbench serve --help`"
        )
    if (model := config.model or context.model) is not None:
        values["model"] = _model(config, model, python)
        values["served_model_name"] = served_name(model)
    if not config.normalised:
        values["normalise"] = False
    try:
        return ServeOptions(
            **values,
            processes=config.processes,
            hop=config.hop,
            engine=config.engine,
            pooling=config.pooling,
            port=port,
            start_timeout_s=config.start_timeout_s,
        )
    except (ConfigError, TypeError) as exc:
        raise ConfigError(f"targets.{name}: {exc}") from exc


def _model(config: ReferenceTarget, name: str, python: str) -> str:
    """A folder or hub name; the numpy engine only takes the name, torch knows shapes by name."""
    known = (MINILM, GENERATED)
    is_name = not Path(name).is_dir() and "/" not in name and name.split(":")[0] not in known
    if config.engine == "numpy" or (config.engine == "torch" and is_name):
        return name
    return resolve_model(name, python)


def _package_path(python: str) -> tuple[Path, tuple[Path, ...]]:
    """A folder for PYTHONPATH from which ``python`` imports this embbench and nothing else of ours,
    and what of it is to be removed afterwards."""
    package = Path(version.__file__).resolve().parent
    if python == sys.executable:
        return package.parent, ()
    scratch = Path(tempfile.mkdtemp(prefix="embbench-package-"))
    (scratch / "embbench").symlink_to(package)
    return scratch, (scratch,)


def _renamed(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Engine arguments by the names of the reference server's options."""
    named = {key.replace("-", "_"): value for key, value in arguments.items()}
    return {_VLLM_NAMES.get(key, key): value for key, value in named.items()}

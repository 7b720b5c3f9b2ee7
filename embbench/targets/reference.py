"""Kind `reference`: our own servers, as one process or as frontend and worker."""

import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import embbench
from embbench.config import ReferenceTarget
from embbench.errors import ConfigError
from embbench.reference.options import ServeOptions
from embbench.targets.ports import LOOPBACK, Ports
from embbench.targets.processes import ProcessSpec
from embbench.targets.recipe import Context, Recipe, launch_env

_OPTIONS = {option.name for option in fields(ServeOptions)}
_PACKAGE_PARENT = str(Path(embbench.__file__).resolve().parent.parent)


def serve_options(name: str, config: ReferenceTarget, context: Context, port: int) -> ServeOptions:
    """The server's options. Engine arguments of the run that it does not have are left out;
    those of the target itself must exist. Raises `ConfigError`."""
    run_args = _named(context.engine_args)
    own_args = _named(config.engine_args)
    values: dict[str, Any]
    if config.engine == "vllm":
        values = {"engine_args": json.dumps(run_args | own_args)}
    else:
        unknown = own_args.keys() - _OPTIONS
        if unknown:
            raise ConfigError(
                f"targets.{name}.engine_args.{min(unknown)}: no option of the reference server; "
                "see `embbench serve --help`"
            )
        values = {key: value for key, value in run_args.items() if key in _OPTIONS} | own_args
    model = config.model or context.model
    if model is not None:
        values["model"] = model
    values |= {
        "processes": config.processes,
        "hop": config.hop,
        "engine": config.engine,
        "pooling": config.pooling,
        "port": port,
        "start_timeout_s": config.start_timeout_s,
    }
    if not config.normalised:
        values["normalise"] = False
    try:
        return ServeOptions(**values)
    except ConfigError as exc:
        raise ConfigError(f"targets.{name}: {exc}") from exc


def recipe(name: str, config: ReferenceTarget, ports: Ports, context: Context) -> Recipe:
    """One tree: the server starts its own worker. It runs this very embbench, under any Python."""
    port = ports.free()
    options = serve_options(name, config, context, port)
    borrowed = config.python or (context.server_python if config.engine != "numpy" else None)
    origin = f"http://{LOOPBACK}:{port}"
    spec = ProcessSpec(
        role="server",
        argv=(
            borrowed or sys.executable,
            "-m",
            "embbench.reference",
            *options.to_argv(),
            *config.args,
        ),
        env=launch_env(config, pythonpath=_PACKAGE_PARENT if borrowed else None),
        cwd=config.cwd,
        ports=(port,),
        stop_grace_s=config.stop_grace_s,
    )
    return Recipe(
        specs=(spec,), base_url=f"{origin}/v1", model=None, metrics_url=f"{origin}/metrics"
    )


def _named(arguments: Any) -> dict[str, Any]:
    return {key.replace("-", "_"): value for key, value in arguments.items()}

"""Verbs that keep a server up: `serve` (a reference server), `up` (any target of a config)."""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from embbench.cli.options import RunOptions, build_config, takes_run_options
from embbench.errors import ConfigError

if TYPE_CHECKING:
    from embbench.config.schema import RunConfig


def register(app: typer.Typer) -> None:
    """Add this module's verbs to the app."""
    passing_on = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(context_settings=passing_on, add_help_option=False)(serve)
    app.command()(up)


def serve(context: typer.Context) -> None:
    """Run a reference server until Ctrl-C: `embbench serve --processes 2 --hop shm`."""
    from embbench.reference.main import main

    main(context.args, prog="embbench serve")


@takes_run_options
def up(
    target: Annotated[str, typer.Argument(help="A target of the config, such as bare.")],
    *,
    options: RunOptions,
) -> None:
    """Bring one target up as a sweep would, print its URL and pids, stay until Ctrl-C."""
    config, _ = build_config(options)
    if target not in config.all_targets:
        raise ConfigError(f"no target '{target}'; targets are: {', '.join(config.all_targets)}")
    with tempfile.TemporaryDirectory(prefix="embbench-up-") as logs:
        try:
            asyncio.run(_stay_up(config, target, Path(logs)))
        except KeyboardInterrupt:
            print("embbench: taken down", file=sys.stderr)


async def _stay_up(config: "RunConfig", target: str, logs: Path) -> None:
    from embbench.targets.bring_up import bring_up
    from embbench.targets.endpoint import while_alive
    from embbench.targets.recipe import Context

    context = Context(
        log_dir=logs,
        batches=(min(config.batches),),
        model=config.model,
        engine_args=config.engine_args,
        server_python=config.server_python,
        on_progress=lambda text: print(f"embbench: {text}", file=sys.stderr),
    )
    async with bring_up(target, config.all_targets[target], context) as endpoint:
        print(f"{target}: {endpoint.base_url} (model {endpoint.model}), Ctrl-C ends it")
        for process in endpoint.processes:
            print(f"  {process.role}: pid {process.pid}, log {process.log}")
        await while_alive(asyncio.Event().wait(), endpoint)

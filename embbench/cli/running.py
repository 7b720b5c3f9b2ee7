"""Verbs that plan and run: `sweep`, `plan`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from embbench.cli.options import RunOptions, build_config, takes_run_options


def register(app: typer.Typer) -> None:
    """Add this module's verbs to the app."""
    app.command()(sweep)
    app.command()(plan)


@takes_run_options
def sweep(
    *,
    options: RunOptions,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", help="Complete this interrupted run directory; no other options."),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress on stderr, warnings only.")
    ] = False,
) -> None:
    """Bring up each target, drive every cell, check every answer, print the matrices."""
    from embbench.cli.conducting import conduct, continue_run

    if resume is not None:
        raise typer.Exit(continue_run(resume, quiet=quiet))
    config, chosen_line = build_config(options)
    raise typer.Exit(conduct(config, chosen_line=chosen_line, quiet=quiet))


@takes_run_options
def plan(*, options: RunOptions) -> None:
    """Print the resolved config, the cells, the request counts and a guess of the time."""
    from embbench.cli.plan_text import plan_text
    from embbench.config.grid import build_plan

    config, chosen_line = build_config(options)
    if chosen_line:
        print(f"embbench: {chosen_line}", file=sys.stderr)
    print(plan_text(config, build_plan(config)))

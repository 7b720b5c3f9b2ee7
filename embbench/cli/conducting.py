"""What `sweep` does around the conductor: a run directory, signals, the report, the exit code."""

import asyncio
import signal
import sys
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from embbench.cli.progress import Progress
from embbench.errors import EmbbenchError, RunError
from embbench.version import __version__

if TYPE_CHECKING:
    from embbench.config.plan import Plan
    from embbench.config.schema import RunConfig
    from embbench.results.rundir import Run, RunWriter

EXIT_INVALID = 3
EXIT_INTERRUPTED = 130


def conduct(config: "RunConfig", *, chosen_line: str | None, quiet: bool) -> int:
    """Run ``config`` into a new run directory; print its report; return the exit code."""
    from embbench.cli.plan_text import outlook_lines
    from embbench.config.grid import build_plan
    from embbench.machine.metadata import environment_metadata
    from embbench.results.rundir import RunWriter
    from embbench.run.load_setup import check_feasible

    plan = build_plan(config)
    check_feasible(config, plan)
    meta = {
        "status": "running",
        "name": config.name,
        "description": config.description,
        "embbench": {"version": __version__},
        "argv": ["embbench", *sys.argv[1:]],
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "config": config.model_dump(mode="json"),
        "targets": list(plan.targets),
        "cells": [work.slug for work in plan.work],
        "floor": config.floor_name,
        "baseline": config.baseline_name,
        "same_as": {
            name: target.same_as for name, target in config.all_targets.items() if target.same_as
        },
        **environment_metadata(),
        "launches": [],
    }
    writer = RunWriter.create(Path(config.output), config.name, meta, datetime.now(UTC))
    with Progress(sum(len(e.trials) for e in plan.episodes), quiet=quiet) as progress:
        if chosen_line:
            progress.say(chosen_line)
        for line in outlook_lines(config, plan):
            progress.say(line)
        return _run(config, plan, writer, None, progress)


def continue_run(folder: Path, *, quiet: bool) -> int:
    """Complete an interrupted run from the config that it was started with."""
    from embbench.config.files import resolve
    from embbench.config.grid import build_plan
    from embbench.results.rundir import RunWriter

    writer, run = RunWriter.reopen(folder)
    if run.meta["kind"] != "run":
        raise RunError(f"{folder}: published figures cannot be resumed")
    config = resolve(run.meta["config"], f"{folder}/run.json")
    plan = build_plan(config)
    with Progress(sum(len(e.trials) for e in plan.episodes), quiet=quiet) as progress:
        return _run(config, plan, writer, run, progress)


def _run(
    config: "RunConfig", plan: "Plan", writer: "RunWriter", run: "Run | None", progress: Progress
) -> int:
    """Conduct, and whatever happens, leave a report of what there is."""
    from embbench.results.rundir import load_run
    from embbench.run.sweep import run_sweep

    failure: EmbbenchError | None = None
    interrupted = False
    try:
        asyncio.run(_obeying_sigterm(run_sweep(config, plan, writer, run, progress)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        interrupted = True
    except EmbbenchError as exc:
        failure = exc
    status = "interrupted" if interrupted else "failed" if failure else "complete"
    writer.update(status=status, ended_at=datetime.now(UTC).isoformat(timespec="seconds"))
    valid = _report(load_run(writer.folder), writer)
    progress.say(f"{status}: {writer.folder}")
    if interrupted:
        progress.say(f"the rest: embbench sweep --resume {writer.folder}")
        return EXIT_INTERRUPTED
    if failure is not None:
        raise failure
    return 0 if valid else EXIT_INVALID


async def _obeying_sigterm(work: Coroutine[object, object, None]) -> None:
    """SIGTERM ends a run as Ctrl-C does: everything is taken down first."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await work


def _report(run: "Run", writer: "RunWriter") -> bool:
    """Write the report and the matrices beside the samples, print it; are all cells VALID?"""
    from embbench.report import matrix_csv, to_markdown
    from embbench.report.review import review

    report = review(run)
    text = to_markdown(report)
    if not run.trials and all(cell.state == "not run" for cell in report.cells.values()):
        return False
    writer.write_text("report.md", text)
    for statistic in report.statistics:
        writer.write_text(f"{statistic}.csv", matrix_csv(report, statistic))
    sys.stdout.write(text)
    return all(cell.state == "VALID" for cell in report.cells.values())

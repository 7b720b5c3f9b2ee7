"""Verbs that look: `verify` (the gate alone), `doctor` (this machine), `calibrate` (the client)."""

import asyncio
import json
import os
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from embbench.cli.options import RunOptions, build_config, takes_run_options
from embbench.errors import ConfigError, TargetError

if TYPE_CHECKING:
    from embbench.config.schema import ExternalTarget, RunConfig
    from embbench.payload.gate import GateResult

EXIT_FAILED = 3
API_KEY_VARIABLE = "EMBBENCH_API_KEY"

AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]


def register(app: typer.Typer) -> None:
    """Add this module's verbs to the app."""
    app.command()(verify)
    app.command()(calibrate)
    app.command()(doctor)


@takes_run_options
def verify(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET-OR-URL",
            help="A target of the config, or the URL of a running server, such as "
            f"http://127.0.0.1:8000/v1. Its key is taken from {API_KEY_VARIABLE}.",
        ),
    ],
    *,
    options: RunOptions,
    tokenizer: Annotated[
        str | None,
        typer.Option("--tokenizer", help="Directory of the model's tokenizer, for exact lengths."),
    ] = None,
    unnormalised: Annotated[
        bool, typer.Option("--unnormalised", help="Vectors are meant to have other norms than 1.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check what a server answers, without load: one line a check, exit 3 if one fails."""
    config, _ = build_config(options)
    if "://" in target:
        external = _external(target, config, unnormalised)
        config = config.model_copy(update={"targets": {target: external}, "floor": None})
    elif target not in config.all_targets:
        known = ", ".join(config.all_targets)
        raise ConfigError(f"no target '{target}'; targets are: {known}, or give a URL")
    if tokenizer is not None:
        config = config.model_copy(update={"tokenizer": tokenizer})
    result = asyncio.run(_verify(config, target))
    if as_json:
        print(json.dumps(result.to_json(), indent=2))
    else:
        _print_gate(result)
    if not result.passed:
        raise typer.Exit(EXIT_FAILED)


def _external(url: str, config: "RunConfig", unnormalised: bool) -> "ExternalTarget":
    from embbench.config.schema import ExternalTarget

    return ExternalTarget(
        url=url,
        model=config.model,
        normalised=not unnormalised,
        api_key_env=API_KEY_VARIABLE if os.environ.get(API_KEY_VARIABLE) else None,
        start_timeout_s=30.0,
    )


async def _verify(config: "RunConfig", target: str) -> "GateResult":
    from embbench.payload.gate.standalone import verify_endpoint
    from embbench.run.sweep import gate_plan, tokenizer_folder
    from embbench.targets.bring_up import bring_up
    from embbench.targets.recipe import Context

    async with AsyncExitStack() as stack:
        logs = stack.enter_context(tempfile.TemporaryDirectory(prefix="embbench-verify-"))
        context = Context(
            log_dir=Path(logs),
            batches=(min(config.batches),),
            model=config.model,
            engine_args=config.engine_args,
            server_python=config.server_python,
        )
        endpoint = await stack.enter_async_context(
            bring_up(target, config.all_targets[target], context)
        )
        return await verify_endpoint(
            endpoint, gate_plan(config, target), tokenizer=tokenizer_folder(config)
        )


def _print_gate(result: "GateResult") -> None:
    from embbench.payload.gate.standalone import table

    rows = table(result)
    width = max(len(check) for check, _, _ in rows)
    for check, status, sentence in rows:
        print(f"{status}  {check:<{width}}  {sentence}")
    failed = sum(status == "FAIL" for _, status, _ in rows)
    print(f"{result.target}: {f'{failed} of {len(rows)} checks failed' if failed else 'all good'}")


def doctor(
    server_python: Annotated[
        str | None,
        typer.Option(
            "--server-python",
            envvar="EMBBENCH_SERVER_PYTHON",
            help="Python of the environment that has vLLM or Dynamo.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what on this machine would be wrong with a run, and what to do about it."""
    from embbench.doctor import examine

    checks = examine(server_python=server_python)
    if as_json:
        print(json.dumps([check.to_json() for check in checks], indent=2))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            print(f"{check.status.upper():<4}  {check.name:<{width}}  {check.what}")
            if check.do:
                print(f"{'':<4}  {'':<{width}}  -> {check.do}")
    if any(check.status == "fail" for check in checks):
        print("embbench: a run on this machine would not be sound", file=sys.stderr)
        raise typer.Exit(TargetError.exit_code)


@takes_run_options
def calibrate(*, options: RunOptions, as_json: AsJson = False) -> None:
    """Measure the client itself on this machine: its floor, its ceiling, and how it keeps time."""
    from embbench.config.grid import build_plan
    from embbench.run.load_setup import calibrate_generator

    config, _ = build_config(options)
    found = asyncio.run(calibrate_generator(config, build_plan(config)))
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
        return
    print(f"{found.client} client, {found.load_processes} load process(es), null server\n")
    print("batch  encoding  clients   p50 ms   p99 ms   requests/s     MB/s  CPU ms a request")
    for cell in found.cells:
        print(
            f"{cell.batch:>5}  {cell.encoding:<8}  {cell.concurrency:>7}  {cell.p50_ns / 1e6:>7.3f}"
            f"  {cell.p99_ns / 1e6:>7.3f}  {cell.rps:>11.1f}  {cell.bytes_per_s / 1e6:>7.1f}"
            f"  {cell.client_cpu_ns / 1e6:>16.3f}"
        )
    pacing = found.pacing
    print(
        f"\nsend lag at {pacing.rate_rps:g}/s: p50 {pacing.send_lag_p50_ns / 1e6:.3f} ms, "
        f"p99 {pacing.send_lag_p99_ns / 1e6:.3f} ms, most {pacing.send_lag_max_ns / 1e6:.3f} ms; "
        f"{pacing.stalls} stalls over 1 ms, the longest {pacing.stall_max_ns / 1e6:.1f} ms"
    )

"""Options that several verbs share, and how they become a config.

An option left out is None and changes nothing: defaults live in `embbench.config.schema` alone.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from embbench.errors import ConfigError

if TYPE_CHECKING:
    from embbench.config.schema import RunConfig

CONFIG_HELP = (
    "A YAML file, or the name of a ready-made config (see configs/). Without it embbench takes the "
    "real servers where it finds them, else the reference servers, and says so."
)

Config = Annotated[str | None, typer.Option("--config", "-c", help=CONFIG_HELP)]
Targets = Annotated[
    str | None,
    typer.Option("--targets", help="Only these targets of the config, comma-separated, in order."),
]
Batches = Annotated[
    str | None, typer.Option("--batches", help="Inputs a request, such as 15,64,1024.")
]
Isl = Annotated[
    str | None, typer.Option("--isl", help="Tokens an input as the server counts them, such as 80.")
]
Rate = Annotated[
    str | None,
    typer.Option(
        "--rate",
        help="Open loop at this many requests a second for every batch; several rates, "
        "comma-separated, make a rate sweep. Replaces the config's loads.",
    ),
]
Concurrency = Annotated[
    str | None,
    typer.Option(
        "--concurrency",
        help="Closed loop with this many clients for every batch, comma-separated for several. "
        "Replaces the config's loads.",
    ),
]
Arrival = Annotated[
    str | None,
    typer.Option("--arrival", help="With --rate: constant (default) or poisson."),
]
Requests = Annotated[
    int | None, typer.Option("--requests", "-n", help="Measured requests a trial, in every cell.")
]
Warmup = Annotated[
    int | None, typer.Option("--warmup", help="Warm-up requests before each trial, in every cell.")
]
Trials = Annotated[
    int | None,
    typer.Option(
        "--trials",
        help="Trials a cell, each from a fresh start of its server; default: as the config says, "
        "else as many as fit into half an hour.",
    ),
]
EncodingOption = Annotated[
    str | None, typer.Option("--encoding", help="float, base64, or both: float,base64.")
]
Model = Annotated[
    str | None, typer.Option("--model", "-m", help="Model directory, or name for the servers.")
]
Output = Annotated[
    str | None, typer.Option("--output", "-o", help="Folder under which the run directory is made.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any key of the config: --set generator.processes=2. Repeatable."),
]
AA = Annotated[
    bool,
    typer.Option("--aa", help="Launch the floor a second time under another name: the A/A noise."),
]
Client = Annotated[
    str | None, typer.Option("--client", help="The HTTP client: buffered (default) or aiohttp.")
]
LoadProcesses = Annotated[
    int | None, typer.Option("--load-processes", help="Processes over which the load is spread.")
]
Pin = Annotated[
    str | None,
    typer.Option("--pin", help="Cores for the load processes: none, auto, or a list such as 2,3."),
]
TimeoutS = Annotated[
    float | None, typer.Option("--timeout", help="Seconds after which a request has failed.")
]
Placement = Annotated[
    str | None,
    typer.Option(
        "--placement", help="exclusive: one target up at a time (default); co-resident: all up."
    ),
]
ServerPython = Annotated[
    str | None,
    typer.Option(
        "--server-python",
        envvar="EMBBENCH_SERVER_PYTHON",
        help="Python of the environment that has vLLM or Dynamo.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What `sweep`, `plan` and `up` take from the command line, as it was written there."""

    config: Config = None
    targets: Targets = None
    batches: Batches = None
    isl: Isl = None
    rate: Rate = None
    concurrency: Concurrency = None
    arrival: Arrival = None
    requests: Requests = None
    warmup: Warmup = None
    trials: Trials = None
    encoding: EncodingOption = None
    model: Model = None
    output: Output = None
    settings: Settings = None
    aa: AA = False
    client: Client = None
    load_processes: LoadProcesses = None
    pin: Pin = None
    timeout_s: TimeoutS = None
    placement: Placement = None
    server_python: ServerPython = None


def takes_run_options(verb: Callable[..., None]) -> Callable[..., None]:
    """A command whose ``options: RunOptions`` is spread out into one option a field."""
    own = inspect.signature(verb).parameters
    shared = inspect.signature(RunOptions).parameters
    names = shared.keys()

    @functools.wraps(verb)
    def command(**given: Any) -> None:
        options = RunOptions(**{key: given.pop(key) for key in names})
        verb(options=options, **given)

    spread = [*shared.values(), *(p for p in own.values() if p.name != "options")]
    keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in spread]
    # Typer reads the one, and typing the other.
    command.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in keyword_only}
    del command.__wrapped__
    return command


def split(option: str, text: str) -> list[str]:
    """The parts of a comma-separated value. Raises `ConfigError` if there are none."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ConfigError(f"{option} '{text}': an item is empty; write a list such as 15,64,1024")
    return parts


def numbers(option: str, text: str, kind: type[int] | type[float]) -> list[Any]:
    """The comma-separated numbers of an option, each above 0."""
    values = []
    for part in split(option, text):
        try:
            value = kind(part)
        except ValueError as exc:
            raise ConfigError(f"{option} '{text}': '{part}' is not a number") from exc
        if not 0 < value < float("inf"):
            raise ConfigError(f"{option} '{text}': {part} must be above 0")
        values.append(value)
    return values


def build_config(options: RunOptions) -> "tuple[RunConfig, str | None]":
    """The resolved config, and the line that says what embbench chose, if it had to choose."""
    from embbench.config.files import DEFAULT, read_config

    chosen: str | None = None
    overrides = _overrides(options)
    if options.config is None:
        from embbench.targets.choose import choose_targets

        choice = choose_targets(model=options.model, server_python=options.server_python)
        if choice is not None:
            overrides = {**choice.overrides, **overrides}
            chosen = choice.line
    names = split("--targets", options.targets) if options.targets else []
    config = read_config(
        options.config or DEFAULT,
        overrides=overrides,
        settings=[*_deep_settings(options), *(options.settings or ())],
        only_targets=names,
    )
    return _with_trials(config), chosen


def _with_trials(config: "RunConfig") -> "RunConfig":
    """As many trials as are of use and fit into the time, where the config leaves it open."""
    if config.trials is not None:
        return config
    from embbench.analysis.power import trials_that_fit
    from embbench.config.grid import build_plan, estimate_s

    round_s = estimate_s(config, build_plan(config))
    trials = trials_that_fit(round_s, 60 * config.time_budget_min)
    return config.model_copy(update={"trials": trials})


def _overrides(options: RunOptions) -> dict[str, Any]:
    overrides: dict[str, Any] = {}
    if options.batches is not None:
        overrides["batches"] = numbers("--batches", options.batches, int)
    if options.isl is not None:
        overrides["isl"] = numbers("--isl", options.isl, int)
    if options.encoding is not None:
        overrides["encoding"] = split("--encoding", options.encoding)
    loads = _loads(options)
    if loads:
        overrides["loads"] = loads
    for key in ("model", "output", "trials", "placement"):
        if getattr(options, key) is not None:
            overrides[key] = getattr(options, key)
    if options.aa:
        overrides["aa"] = True
    return overrides


def _loads(options: RunOptions) -> list[dict[str, Any]]:
    loads: list[dict[str, Any]] = []
    if options.rate is not None:
        arrival = options.arrival or "constant"
        rates = numbers("--rate", options.rate, float)
        loads += [{"rate_rps": rate, "arrival": arrival} for rate in rates]
    elif options.arrival is not None:
        raise ConfigError("--arrival goes with --rate")
    if options.concurrency is not None:
        clients = numbers("--concurrency", options.concurrency, int)
        loads += [{"concurrency": count} for count in clients]
    return loads


def _deep_settings(options: RunOptions) -> list[str]:
    """Options that change one key deep in the config, as ``--set`` would."""
    named = {
        "generator.client": options.client,
        "generator.processes": options.load_processes,
        "generator.timeout_s": options.timeout_s,
    }
    settings = [f"{key}={value}" for key, value in named.items() if value is not None]
    if options.pin is not None:
        pin = options.pin if options.pin in ("none", "auto") else f"[{options.pin}]"
        settings.append(f"generator.pin={pin}")
    for key, value in (("requests", options.requests), ("warmup", options.warmup)):
        if value is not None:
            settings.append(f"loads.*.{key}={value}")
    return settings

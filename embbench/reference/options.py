"""Options of a reference server: every default, in one place.

In: keyword arguments or a command line. Out: a validated, frozen `ServeOptions`, and from it the
command line that starts the same server again.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from embbench.errors import ConfigError

Hop = Literal["json", "base64-struct", "base64-numpy", "shm"]
EngineName = Literal["numpy", "torch", "vllm"]
Pooling = Literal["embed", "token"]
Pool = Literal["last", "mean"]
LoadFormat = Literal["auto", "dummy"]
Layout = Literal["packed", "padded"]
Dtype = Literal["float32", "bfloat16"]
LogLevel = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """One reference server as launched. Raises ConfigError on values that cannot be served."""

    processes: Annotated[Literal[1, 2], "1: HTTP and engine together; 2: frontend and worker"] = 1
    hop: Annotated[Hop, "how vectors cross from worker to frontend (2 processes)"] = "base64-struct"
    engine: Annotated[EngineName, "what computes the vectors"] = "numpy"
    host: Annotated[str, "address to listen on"] = "127.0.0.1"
    port: Annotated[int, "port to listen on; 0 picks a free one and logs it"] = 8000
    model: Annotated[
        str | None,
        "model directory, or a shape of the torch engine: qwen3-embedding-0.6b, one-layer, tiny",
    ] = None
    served_model_name: Annotated[str | None, "the name clients must send; default: the model"] = (
        None
    )
    pooling: Annotated[
        Pooling, "embed: one vector an input; token: the whole per-token matrix (negative control)"
    ] = "embed"
    pool: Annotated[
        Pool | None, "which hidden states make the vector; default: the model's own way, or last"
    ] = None
    normalise: Annotated[bool, "scale vectors to L2 norm 1"] = True
    allow_dimensions: Annotated[bool, "obey the request's 'dimensions', else answer 400"] = True
    seed: Annotated[int, "seed of generated weights"] = 0
    threads: Annotated[int, "threads of the numpy and torch engines"] = 1
    delay_ms_per_request: Annotated[float, "known delay added to each request in the engine"] = 0.0
    delay_ms_per_input: Annotated[float, "known delay added for each input in the engine"] = 0.0
    max_batch: Annotated[int, "most inputs in a request; more is answered 400"] = 2048
    max_model_len: Annotated[
        int | None, "most tokens in an input; more is answered 400; default: the model's own limit"
    ] = None
    max_batched_tokens: Annotated[int, "most tokens in one forward pass (torch)"] = 32768
    max_body_mb: Annotated[float, "largest request body; more is answered 413"] = 64.0
    max_hop_mb: Annotated[float, "largest message between worker and frontend"] = 2048.0
    load_format: Annotated[
        LoadFormat, "dummy: seeded random weights in place of the model's own (torch)"
    ] = "auto"
    dtype: Annotated[Dtype, "arithmetic of the torch and vllm engines"] = "float32"
    device: Annotated[str, "device of the torch engine, such as cpu or cuda:0"] = "cpu"
    layout: Annotated[Layout, "packed: no padding; padded: to the longest (torch)"] = "packed"
    engine_args: Annotated[str, "further AsyncEngineArgs as a JSON object (vllm)"] = "{}"
    shm_dir: Annotated[str, "folder of shared-memory segments"] = "/dev/shm"
    worker_shm_dir: Annotated[
        str | None,
        "the worker's own shm_dir, to try a worker that shares no memory with the frontend",
    ] = None
    shm_max_age_s: Annotated[float, "age at which an uncollected segment is removed"] = 60.0
    start_timeout_s: Annotated[float, "longest start of the worker"] = 1800.0
    shutdown_s: Annotated[float, "grace for requests in flight after SIGTERM"] = 5.0
    log_level: Annotated[LogLevel, "least severity that is logged"] = "info"

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            choices, value = _choices(kind), getattr(self, name)
            if choices and value not in choices and not (value is None and _optional(kind)):
                raise ConfigError(f"{name}: {value!r} is not one of {', '.join(map(str, choices))}")
        at_least: dict[str, float] = {
            "port": 0,
            "seed": 0,
            "threads": 1,
            "delay_ms_per_request": 0,
            "delay_ms_per_input": 0,
            "max_batch": 1,
            "max_model_len": 1,
            "max_batched_tokens": 1,
            "max_body_mb": 0,
            "max_hop_mb": 0,
            "shm_max_age_s": 0,
            "start_timeout_s": 0,
            "shutdown_s": 0,
        }
        for name, least in at_least.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ConfigError(f"{name}: {value} is below {least:g}")
        if not _is_json_object(self.engine_args):
            raise ConfigError(f"engine_args: {self.engine_args} is not a JSON object")
        if self.port > 65535:
            raise ConfigError(f"port: {self.port} is above 65535")
        if self.max_hop_mb > 4095:
            raise ConfigError(
                f"max_hop_mb: {self.max_hop_mb:g} is above 4095, what a frame can say"
            )

    def to_argv(self) -> list[str]:
        """The command line that makes these options again, without what is a default."""
        argv: list[str] = []
        for option in fields(self):
            value = getattr(self, option.name)
            flag = "--" + option.name.replace("_", "-")
            if value == option.default:
                continue
            if isinstance(value, bool):
                argv.append(flag if value else flag.replace("--", "--no-", 1))
            else:
                argv += [flag, str(value)]
        return argv


def _choices(kind: Any) -> tuple[Any, ...]:
    """The values of a Literal, optional or not; nothing for any other type."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(value for part in get_args(kind) for value in _choices(part))


def _optional(kind: Any) -> bool:
    return type(None) in get_args(kind)


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def parser(prog: str) -> argparse.ArgumentParser:
    """A command line with one flag an option, made from the dataclass."""
    result = argparse.ArgumentParser(
        prog=prog,
        usage="%(prog)s [options]",
        description="An OpenAI-compatible embedding server of one or two processes.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    hints = get_type_hints(ServeOptions)
    texts = get_type_hints(ServeOptions, include_extras=True)
    for option in fields(ServeOptions):
        flag, text = "--" + option.name.replace("_", "-"), texts[option.name].__metadata__[0]
        kind, choices = hints[option.name], _choices(hints[option.name])
        if kind is bool:
            action = argparse.BooleanOptionalAction
            result.add_argument(flag, default=option.default, action=action, help=text)
            continue
        value_type = type(choices[0]) if choices else get_args(kind)[0] if get_args(kind) else kind
        result.add_argument(
            flag, default=option.default, type=value_type, choices=choices or None, help=text
        )
    return result


def parse_command(argv: Sequence[str], prog: str) -> tuple[ServeOptions, int | None]:
    """Options of a command line, and the inherited connection that makes the process a worker.

    Exits with 2 on unknown flags, raises ConfigError on values that cannot be served.
    """
    commands = parser(prog)
    commands.add_argument("--hop-fd", type=int, help=argparse.SUPPRESS)
    values = vars(commands.parse_args(argv))
    hop_fd: int | None = values.pop("hop_fd")
    return ServeOptions(**values), hop_fd

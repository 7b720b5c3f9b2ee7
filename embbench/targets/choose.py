"""Without a config: which servers, which model, and one line that says so.

In: what the command line names, and what this machine has. Out: a `Choice`, keys that go over the
built-in defaults. `decide` is pure; `choose_targets` looks around first.
"""

import os
import sys
from dataclasses import dataclass
from typing import Any, Final

from embbench.machine import gpu
from embbench.targets.environment import VARIABLE, ServerEnvironment, look
from embbench.targets.models import GENERATED, QWEN, local_copy

ON_A_CPU: Final[dict[str, Any]] = {
    # bfloat16 is emulated on CPUs, about ten times slower; compiling takes over a minute.
    "engine_args": {"dtype": "float32", "enforce_eager": True},
    # A rate that two cores can serve: beyond it, an open loop shows nothing but its queue.
    "batches": [1, 15],
    "loads": [
        {"rate_rps": 1, "requests": 20, "warmup": 3, "max_batch": 15},
        {"concurrency": 1, "requests": 5, "warmup": 1, "min_batch": 16},
    ],
}
"""What a run of the real servers takes over where there is no GPU."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Config keys, and the line that says what was chosen, why, and how to change it."""

    overrides: dict[str, Any]
    line: str


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the choice depends on."""

    environment: ServerEnvironment
    has_gpu: bool
    has_qwen: bool


def choose_targets(*, model: str | None = None, server_python: str | None = None) -> Choice:
    """The targets for this machine. Raises `ConfigError` if ``server_python`` does not run."""
    return decide(look_around(server_python), model)


def look_around(named: str | None = None) -> Surroundings:
    """What there is here; a named interpreter is the only one that is looked at.

    The environment of ``scripts/cpu_stack`` must be named: that tests were run on a machine once
    does not make it the one to measure servers on.
    """
    python = named or os.environ.get(VARIABLE) or sys.executable
    return Surroundings(look(python), bool(gpu.gpus()), local_copy(QWEN) is not None)


def decide(here: Surroundings, model: str | None = None) -> Choice:
    """Real servers where there are any, else the reference servers."""
    environment = here.environment
    if environment.vllm is None:
        return Choice(
            {},
            f"targets: the reference servers, because {environment.python} has no vLLM "
            f"(change: --server-python PYTHON or {VARIABLE}, scripts/cpu_stack, or --config FILE)",
        )
    targets: dict[str, Any] = {"vllm": {"kind": "vllm"}}
    if environment.dynamo is not None:
        targets["dynamo"] = {"kind": "dynamo"}
    chosen, why = _model(here, model)
    overrides: dict[str, Any] = {
        "targets": targets,
        "floor": "vllm",
        "model": chosen,
        "server_python": environment.python,
    }
    if not here.has_gpu:
        overrides |= ON_A_CPU
    servers = f"vLLM {environment.vllm}"
    servers += f" and Dynamo {environment.dynamo}" if environment.dynamo else " (no Dynamo there)"
    where = "on the GPU" if here.has_gpu else "on the CPU"
    return Choice(
        overrides,
        f"targets: {servers} from {environment.python}, {where}, model {chosen} ({why}) "
        "(change: --server-python, --model, or --config FILE)",
    )


def _model(here: Surroundings, model: str | None) -> tuple[str, str]:
    if model is not None:
        return model, "as given"
    if here.has_gpu and here.has_qwen:
        return QWEN, "its local copy"
    if here.has_gpu:
        return GENERATED, f"no local copy of {QWEN}"
    return GENERATED, "no GPU"

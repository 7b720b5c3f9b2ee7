"""What a kind of target has to say: which processes to start, and where they will answer.

In: one target of the config, free ports, the run's settings. Out: a `Recipe`, a plain value. A
kind is one function that makes it; starting, waiting and ending are the same for all kinds.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embbench.config.schema import Launch
from embbench.targets.ports import Ports
from embbench.targets.processes import ProcessSpec


@dataclass(frozen=True, slots=True)
class Context:
    """What bring-up needs of the run, beyond the target itself."""

    log_dir: Path
    batches: tuple[int, ...] = (1,)
    """All batch sizes of the run: ready means that the smallest and the largest are answered."""
    model: str | None = None
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    server_python: str | None = None
    """Interpreter of the environment that has the real servers."""
    cpus: tuple[int, ...] | None = None
    """The CPUs that all processes of the target are held to; None: any."""
    on_progress: Callable[[str], None] = lambda _: None
    """Called about once a second while something is awaited."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Processes to start, in order, and the endpoint that they will form."""

    specs: tuple[ProcessSpec, ...]
    base_url: str
    model: str | None = None
    """None: the first model that the server lists."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    metrics_url: str | None = None
    worker_metrics_urls: tuple[str, ...] = ()
    scratch: tuple[Path, ...] = ()
    """Folders made for this launch, removed when it is over."""


Kind = Callable[[str, Any, Ports, Context], Recipe]
"""(target name, its config, ports to draw from, context) -> recipe. Raises ConfigError or
TargetError when the target cannot be started as configured."""


def launch_env(launch: Launch, *, pythonpath: str | None = None) -> dict[str, str]:
    """The environment that the config adds, with ``pythonpath`` put in front of PYTHONPATH."""
    env = dict(launch.env)
    inherited = env.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
    parts = [part for part in (launch.pythonpath, pythonpath, inherited) if part]
    if launch.pythonpath or pythonpath:
        env["PYTHONPATH"] = os.pathsep.join(parts)
    return env

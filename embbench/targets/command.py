"""Kind `command`: any argv that starts an OpenAI-compatible server.

In arguments and environment, ``{port}`` becomes a free loopback port, ``{port:8000}`` that very
port, ``{port.NAME}`` a further free port under a name of your own, ``{python}`` the target's
interpreter.
"""

import re
import sys

from embbench.config.schema import CommandTarget
from embbench.errors import ConfigError
from embbench.targets.ports import LOOPBACK, Ports
from embbench.targets.processes import ProcessSpec
from embbench.targets.recipe import Context, Recipe, launch_env

_PLACEHOLDER = re.compile(r"\{port(?:\.(?P<name>\w+))?(?::(?P<number>\d+))?\}")


def recipe(name: str, config: CommandTarget, ports: Ports, context: Context) -> Recipe:
    """One process tree; the unnamed port answers HTTP."""
    held: dict[str, int] = {}

    def hold(match: re.Match[str]) -> str:
        port_name, number = match["name"] or "", match["number"]
        if port_name not in held:
            held[port_name] = ports.fixed(int(number)) if number else ports.free()
        return str(held[port_name])

    def fill_in(text: str) -> str:
        return _PLACEHOLDER.sub(hold, text.replace("{python}", config.python or sys.executable))

    argv = tuple(fill_in(word) for word in (*config.argv, *config.args))
    env = {key: fill_in(value) for key, value in launch_env(config).items()}
    if "" not in held:
        raise ConfigError(
            f"targets.{name}: neither argv nor env says '{{port}}'; write it where the server is "
            "told its port, or '{port:8000}' for port 8000"
        )
    main = held.pop("")
    base_path = config.base_path.strip("/")
    origin = f"http://{LOOPBACK}:{main}"
    spec = ProcessSpec(
        role="server",
        argv=argv,
        env=env,
        cwd=config.cwd,
        ports=(main, *held.values()),
        stop_grace_s=config.stop_grace_s,
    )
    return Recipe(
        specs=(spec,),
        base_url=f"{origin}/{base_path}" if base_path else origin,
        model=config.model or context.model,
        metrics_url=f"{origin}/metrics",
    )

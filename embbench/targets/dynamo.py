"""Kind `dynamo`: NVIDIA Dynamo's HTTP frontend and its vLLM embedding worker, two process trees.

They find each other through files in a fresh folder and talk TCP on loopback, so neither etcd nor
NATS is needed and nothing is reachable from other machines. Each side may come from another
environment or checkout: two branches of a pull request are two targets.
"""

import tempfile
from pathlib import Path
from typing import Final

from embbench.config.schema import DynamoTarget, Launch
from embbench.errors import TargetError
from embbench.targets.environment import require, server_python
from embbench.targets.models import resolve_model, served_name
from embbench.targets.ports import LOOPBACK, Ports
from embbench.targets.processes import ProcessSpec
from embbench.targets.recipe import Context, Recipe
from embbench.targets.vllm import engine_arguments, named_model, pooling_argv, server_env

SYSTEM_PORT_MAX: Final = 32_767
"""Dynamo reads DYN_SYSTEM_PORT as a 16-bit signed number."""
_TRIES: Final = 100

_LOOPBACK_ENV: Final = {
    "DYN_REQUEST_PLANE": "tcp",
    "DYN_EVENT_PLANE": "zmq",
    "DYN_DISCOVERY_BACKEND": "file",
    "DYN_TCP_RPC_HOST": LOOPBACK,
    "DYN_TCP_RESPONSE_STREAM_HOST": LOOPBACK,
    "DYN_EVENT_PLANE_HOST": LOOPBACK,
    "DYN_HTTP_HOST": LOOPBACK,
    "DYN_SYSTEM_HOST": LOOPBACK,
    "DYN_SDK_DISABLE_ANSI_LOGGING": "1",
    # Requests in flight are over when a target is taken down; there is nothing to wait for.
    "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "0",
}


def recipe(name: str, config: DynamoTarget, ports: Ports, context: Context) -> Recipe:
    """Frontend first: it waits for the worker, which takes long."""
    frontend, worker = _part(config, config.frontend), _part(config, config.worker)
    environments = [
        require(name, "dynamo", server_python(part.python, context.server_python), part.pythonpath)
        for part in (frontend, worker)
    ]
    model_name = named_model(name, config, context)
    model = resolve_model(model_name, environments[1].python)
    arguments = engine_arguments(name, config, context)
    count = config.embedding_worker_processes or 1
    http_port = ports.free()
    system_port = _system_ports(ports, count)
    scratch = Path(tempfile.mkdtemp(prefix="embbench-dynamo-"))
    discovery = scratch / "discovery"
    discovery.mkdir()
    common = _LOOPBACK_ENV | {"DYN_FILE_KV": str(discovery)}
    if Path(model).is_dir():
        common["HF_HUB_OFFLINE"] = "1"
    processes = config.embedding_worker_processes
    specs = (
        ProcessSpec(
            role="frontend",
            argv=(
                environments[0].python,
                *("-m", "dynamo.frontend", "--http-port", str(http_port)),
                *frontend.args,
            ),
            env=common | {"DYN_SYSTEM_PORT": "-1"} | server_env(environments[0], frontend, scratch),
            cwd=frontend.cwd,
            ports=(http_port,),
            stop_grace_s=config.stop_grace_s,
        ),
        ProcessSpec(
            role="worker",
            argv=(
                environments[1].python,
                *("-m", "dynamo.vllm", "--model", model, "--embedding-worker"),
                *(("--embedding-worker-processes", str(processes)) if processes else ()),
                *(
                    ("--embedding-frontend-tokenization",)
                    if config.embedding_frontend_tokenization
                    else ()
                ),
                *pooling_argv(model_name, arguments),
                *config.args,
                *worker.args,
            ),
            env=common
            | {"DYN_SYSTEM_PORT": str(system_port)}
            | server_env(environments[1], worker, scratch),
            cwd=worker.cwd,
            ports=tuple(range(system_port, system_port + count)),
            stop_grace_s=config.stop_grace_s,
        ),
    )
    origin = f"http://{LOOPBACK}:{http_port}"
    return Recipe(
        specs=specs,
        base_url=f"{origin}/v1",
        model=served_name(model_name),
        metrics_url=f"{origin}/metrics",
        worker_metrics_urls=tuple(f"http://{LOOPBACK}:{p}/metrics" for p in specs[1].ports),
        scratch=(scratch,),
    )


def _part(config: DynamoTarget, part: Launch) -> Launch:
    """One side's launch settings: its own, and the target's where it has none."""
    return Launch(
        python=part.python or config.python,
        env={**config.env, **part.env},
        cwd=part.cwd or config.cwd,
        pythonpath=part.pythonpath or config.pythonpath,
        args=part.args,
    )


def _system_ports(ports: Ports, count: int) -> int:
    """The first of ``count`` ports for the worker's status servers, low enough for Dynamo."""
    for _ in range(_TRIES):
        first = ports.free(count)
        if first + count - 1 <= SYSTEM_PORT_MAX:
            return first
        ports.release(range(first, first + count))
    raise TargetError(f"no {count} free consecutive loopback ports up to {SYSTEM_PORT_MAX}")

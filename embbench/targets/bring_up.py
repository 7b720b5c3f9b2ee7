"""Bring one target up, keep watch, take it down: the same for every kind.

In: a target's config. Out: an `Endpoint`, ready by real embeddings that came from our own
processes, for the length of an ``async with``. Several may be up at once.
"""

import asyncio
import contextlib
import functools
import itertools
import re
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from embbench.config.schema import TargetConfig
from embbench.errors import TargetError
from embbench.findings import Finding
from embbench.machine import gpu
from embbench.targets import command, dynamo, external, reference, vllm
from embbench.targets.endpoint import Endpoint, unless_dead
from embbench.targets.ports import Ports, PortTakenError, describe_pid, foreign_listener, listeners
from embbench.targets.processes import ProcessTree, last_line, log_tail, to_the_end
from embbench.targets.readiness import Probe, Seen, wait_ready
from embbench.targets.recipe import Context, Kind, Recipe

KINDS: Final[dict[str, Kind]] = {
    "reference": reference.recipe,
    "command": command.recipe,
    "external": external.recipe,
    "vllm": vllm.recipe,
    "dynamo": dynamo.recipe,
}

LAUNCH_TRIES: Final = 3
"""A free port can be lost in the moment of the launch; then everything is started anew."""
PORTS_FREE_S: Final = 10.0
PROGRESS_S: Final = 1.0


@contextlib.asynccontextmanager
async def bring_up(name: str, config: TargetConfig, context: Context) -> AsyncIterator[Endpoint]:
    """The target, up and ready. Everything it started is gone when the block is left.

    Raises `TargetError` when the target does not start, dies, never gets ready, is not the one
    that answers, or leaves GPU memory occupied; `ConfigError` when it cannot be started as asked.
    """
    memory_before = gpu.memory_used()
    for tries_left in reversed(range(LAUNCH_TRIES)):
        launch = _Launch(name, config, context)
        try:
            endpoint = await launch.start()
            break
        except PortTakenError as exc:
            await to_the_end(launch.stop())
            if exc.asked or not tries_left:
                raise
            context.on_progress(f"{name}: {exc}; starting again on other ports")
        except BaseException:
            await to_the_end(launch.stop())
            raise
    try:
        yield endpoint
    except BaseException as exc:
        await to_the_end(launch.stop())
        if isinstance(exc, Exception) and launch.trees:  # the next target needs a free GPU, too
            with contextlib.suppress(TargetError):
                await gpu.wait_memory_back(memory_before, on_progress=context.on_progress)
        raise
    await to_the_end(launch.stop())
    if launch.trees:
        await launch.check_gone()
        await gpu.wait_memory_back(memory_before, on_progress=context.on_progress)


class _Launch:
    """One try to start a target."""

    def __init__(self, name: str, config: TargetConfig, context: Context) -> None:
        self.name = name
        self.config = config
        self.context = context
        self.ports = Ports()
        self.recipe: Recipe | None = None
        self.trees: list[ProcessTree] = []
        self.stopping = False
        self.ready = False
        self.model = ""
        self.death: asyncio.Future[TargetError] = asyncio.get_running_loop().create_future()

    async def start(self) -> Endpoint:
        """Start all processes and wait until they answer."""
        began = time.monotonic()
        self.recipe = recipe = KINDS[self.config.kind](
            self.name, self.config, self.ports, self.context
        )
        for spec in recipe.specs:
            self.ports.release(spec.ports)
            self.context.on_progress(f"{self.name}: starting {spec.role}")
            log = _new_log(self.context.log_dir, f"{self.name}-{spec.role}")
            try:
                tree = await ProcessTree.start(spec, log, recipe.scratch, self.context.cpus)
            except TargetError as exc:
                raise TargetError(f"target '{self.name}': {exc}") from exc
            self.trees.append(tree)
            tree.death.add_done_callback(functools.partial(self._note_death, tree))
        findings = await self._wait_ready(recipe)
        self.ready = True
        for tree in self.trees:
            tree.note()
        return Endpoint(
            target=self.name,
            base_url=recipe.base_url,
            model=self.model,
            headers=dict(recipe.headers),
            processes=tuple(tree.describe() for tree in self.trees),
            metrics_url=recipe.metrics_url,
            worker_metrics_urls=recipe.worker_metrics_urls,
            ready_after_s=time.monotonic() - began,
            findings=findings,
            death=self.death,
        )

    async def stop(self) -> None:
        """End everything; the last process to be started goes first."""
        self.stopping = True
        self.ports.close()
        results = await asyncio.gather(
            *(tree.stop() for tree in reversed(self.trees)), return_exceptions=True
        )
        for folder in self.recipe.scratch if self.recipe else ():
            shutil.rmtree(folder, ignore_errors=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
            for pid, process_name in result.killed:
                self._say(f"{process_name} (pid {pid}) did not obey SIGTERM and was killed")
            if result.left:
                pid, process_name = result.left[0]
                raise TargetError(
                    f"target '{self.name}': {process_name} (pid {pid}) cannot be ended, not even "
                    "by SIGKILL; look at its state with ps before the next run"
                )

    async def check_gone(self) -> None:
        """Wait until nobody listens on the target's ports any more."""
        deadline = time.monotonic() + PORTS_FREE_S
        while still := listeners(self._all_ports()):
            if time.monotonic() > deadline:
                raise TargetError(f"target '{self.name}' is down, but {still[0]} still listens")
            await asyncio.sleep(0.1)

    async def _wait_ready(self, recipe: Recipe) -> tuple[Finding, ...]:
        probe = Probe(
            base_url=recipe.base_url,
            model=recipe.model,
            batches=self.context.batches,
            timeout_s=self.config.start_timeout_s,
            headers=recipe.headers,
            already_up=not recipe.specs,
        )
        seen = Seen()
        progress = asyncio.ensure_future(self._show_progress(seen))
        try:
            ready = await unless_dead(wait_ready(probe, seen), self.death)
        except TargetError as exc:
            self._raise_if_foreign(recipe)
            if exc.args[0].startswith("target "):
                raise
            raise TargetError(
                f"target '{self.name}' {exc}{self._port_state(recipe)}{self._tails()}"
            ) from exc
        finally:
            progress.cancel()
        self._raise_if_foreign(recipe)
        self.model = ready.model
        return (*ready.findings, *self._open_listeners())

    def _raise_if_foreign(self, recipe: Recipe) -> None:
        """An answer counts only if it comes from our own processes."""
        members = self._members()
        if recipe.specs and (other := foreign_listener(self._all_ports(), members)):
            raise PortTakenError(
                f"target '{self.name}': {other} listens on the target's port and is none of its "
                "processes",
                asked=self.ports.was_asked(other.port),
            )

    def _open_listeners(self) -> tuple[Finding, ...]:
        """Sockets of ours that other machines can reach."""
        members = self._members()
        return tuple(
            Finding(
                "listener",
                "warn",
                f"{each} is reachable from other machines",
                "tell the server to listen on 127.0.0.1",
                self.name,
            )
            for each in (listeners() if members else ())
            if each.pid in members and not each.on_loopback
        )

    def _members(self) -> set[int]:
        return {pid for tree in self.trees for pid in tree.members()}

    def _all_ports(self) -> tuple[int, ...]:
        return tuple(
            port for spec in (self.recipe.specs if self.recipe else ()) for port in spec.ports
        )

    def _note_death(self, tree: ProcessTree, how: "asyncio.Future[str]") -> None:
        if self.stopping or self.death.done() or how.cancelled():
            return
        when = "" if self.ready else " before it was ready"
        self.death.set_result(
            TargetError(
                f"target '{self.name}' ({tree.spec.role}) {how.result()}{when}{_tail_of(tree)}"
            )
        )

    def _port_state(self, recipe: Recipe) -> str:
        if not recipe.specs:
            return ""
        states = [
            "; ".join(f"port {port} open ({describe_pid(on.pid)})" for on in listeners([port]))
            or f"nobody listens on port {port}"
            for port in self._all_ports()
        ]
        return "; " + "; ".join(states)

    def _tails(self) -> str:
        return "".join(_tail_of(tree) for tree in self.trees)

    async def _show_progress(self, seen: Seen) -> None:
        for waited_s in itertools.count():
            lines = "".join(f" | {tree.spec.role}: {last_line(tree.log)}" for tree in self.trees)
            self._say(f"waiting, {waited_s} s: {seen}{lines}")
            await asyncio.sleep(PROGRESS_S)

    def _say(self, text: str) -> None:
        self.context.on_progress(f"{self.name}: {text}")


def _tail_of(tree: ProcessTree) -> str:
    return f"; last lines of {tree.log}:\n{log_tail(tree.log)}\n".rstrip()


def _new_log(folder: Path, stem: str) -> Path:
    """A log file of its own for every start, never an old one."""
    safe = re.sub(r"[^\w.+-]+", "_", stem)
    folder.mkdir(parents=True, exist_ok=True)
    names = itertools.chain([f"{safe}.log"], (f"{safe}-{n}.log" for n in itertools.count(2)))
    return next(path for path in map(folder.joinpath, names) if not path.exists())

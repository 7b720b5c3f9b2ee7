"""The conductor: brings targets up, passes them through the gate, drives their trials, writes.

In: a config and its plan. Out: a run directory, trial by trial; what is measured and found goes
there and nowhere else. It launches and waits; what a number means is for the readers.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from embbench.config.plan import Episode, Plan, Trial, Work
from embbench.config.schema import DynamoTarget, ReferenceTarget, RunConfig, VllmTarget
from embbench.errors import ConfigError, TargetError
from embbench.findings import Finding
from embbench.inputs import (
    Recipe,
    TextSource,
    calibrate,
    demands,
    open_tokenizer,
    recipe_from_tokenizer,
)
from embbench.machine.gpu import gpus
from embbench.machine.metadata import python_versions
from embbench.machine.telemetry import write_telemetry
from embbench.payload.ask import Asker
from embbench.payload.gate import GatePlan, GateResult, run_gate
from embbench.payload.identity import Pair, Sketches, compare_sketches, compare_targets
from embbench.payload.verify import verify_pool
from embbench.payload.wire import WireError
from embbench.results.rundir import Run, RunWriter, is_driven
from embbench.run.load_setup import calibration_of, load_processes, pinning
from embbench.run.trial import TrialContext, run_trial
from embbench.targets.bring_up import bring_up
from embbench.targets.endpoint import Endpoint, while_alive
from embbench.targets.environment import server_python
from embbench.targets.models import GENERATED, model_digest, resolve_model
from embbench.targets.parity import Setting, parity_findings, parity_table, read_settings
from embbench.targets.recipe import Context

_GATE_TEXTS_A_ROUND = 64

_DEATH_TOLD_S = 1.0
"""A server that refuses because it is dying has died by then, which is the better reason."""


class Progress(Protocol):
    """Where the conductor tells how far it is."""

    def step(self, text: str) -> None:
        """What is going on now."""

    def say(self, text: str) -> None:
        """Something that the user should still see afterwards."""

    def trial_done(self) -> None:
        """One more trial is on disk."""


async def run_sweep(
    config: RunConfig, plan: Plan, writer: RunWriter, run: Run | None, progress: Progress
) -> None:
    """Drive every trial of ``plan`` that ``run``, an earlier part of it, does not hold yet.

    Raises `TargetError` when a target does not come up or dies, `LoadError` when the load
    generator fails; what was measured until then is on disk.
    """
    async with AsyncExitStack() as stack:
        load = await stack.enter_async_context(load_processes(config))
        pool = stack.enter_context(verify_pool(config.checks.processes))
        calibration = await calibration_of(config, plan, load, writer, progress.step)
        context = TrialContext(config, load, pool, calibration, writer)
        conductor = _Conductor(config, plan, writer, progress, context)
        for launch, episode in enumerate(plan.episodes):
            todo = [t for t in episode.trials if run is None or not is_driven(run, t)]
            for _ in range(len(episode.trials) - len(todo)):
                progress.trial_done()
            if todo:
                await conductor.drive(launch, episode, todo)


class _Conductor:
    """What is known so far in a run, and the steps that add to it."""

    def __init__(
        self,
        config: RunConfig,
        plan: Plan,
        writer: RunWriter,
        progress: Progress,
        context: TrialContext,
    ) -> None:
        self.config, self.plan, self.writer, self.progress = config, plan, writer, progress
        self.context = context
        self.source: TextSource | None = None
        self.gates: dict[str, GateResult] = {}
        self.first_gates: dict[str, GateResult] = {}
        self.settings: dict[str, dict[str, Setting]] = {}
        self.sketches: dict[tuple[Work, int], dict[str, Sketches]] = {}

    async def drive(self, launch: int, episode: Episode, trials: Sequence[Trial]) -> None:
        """Bring the targets of an episode up, drive its trials, take everything down."""
        up: dict[str, Endpoint] = {}
        async with AsyncExitStack() as stack:
            for name in episode.targets:
                up[name] = await stack.enter_async_context(
                    bring_up(name, self.config.all_targets[name], self._context(name, launch))
                )
                await self._record_launch(launch, up[name])
            await while_alive(self._prepare(up, trials[0].index), *up.values())
            for trial in trials:
                if self.gates[trial.target].passed:
                    await while_alive(self._one(launch, trial, up[trial.target]), *up.values())
                self.progress.trial_done()

    async def _prepare(self, up: dict[str, Endpoint], round_index: int) -> None:
        """Texts, once a run; the gate, once a launch."""
        if self.source is None:
            self.progress.step("calibrating texts")
            self.source = await self._texts(next(iter(up.values())))
        for name, endpoint in up.items():
            self.progress.step(f"{name}: checking answers before load")
            gate = await run_gate(endpoint, self.source, self._gate_plan(name, round_index))
            if not gate.passed and self.gates.get(name, gate).passed:
                worst = next(row for row in gate.rows if row.status == "FAIL")
                self.progress.say(f"{name} is INVALID: {worst.what}")
            self.writer.add_findings(gate.findings)
            self.gates[name] = gate
            if round_index == 0:
                self.first_gates[name] = gate
        self.writer.update(agreement=[pair.to_json() for pair in self._agreement()])

    async def _one(self, launch: int, trial: Trial, endpoint: Endpoint) -> None:
        assert self.source is not None
        self.progress.step(f"{trial.target}: {trial.work.slug}, trial {trial.index}")
        gate = self.gates[trial.target]
        outcome = await run_trial(trial, launch, endpoint, gate, self.source, self.context)
        findings = [*outcome.findings, *self._against_others(trial, outcome.sketches)]
        self.writer.add_findings(findings)
        telemetry = self.writer.folder / outcome.record.telemetry_path
        await asyncio.to_thread(write_telemetry, telemetry, outcome.readings)
        self.writer.add_trial(outcome.record, outcome.samples)

    async def _texts(self, endpoint: Endpoint) -> TextSource:
        """The run's texts: from the recipe of an earlier part, the tokenizer, or the server."""
        stored = self.writer.meta.get("text_recipe")
        if stored is not None:
            recipe = Recipe.from_json(stored)
        elif (folder := tokenizer_folder(self.config)) is not None:
            recipe = await recipe_from_tokenizer(folder, self.config.isl, self.config.seed)
        else:
            recipe = await self._calibrate(endpoint)
        self.writer.update(text_recipe=recipe.to_json())
        return TextSource(recipe, self.config.seed, demands(self.plan))

    async def _calibrate(self, endpoint: Endpoint) -> Recipe:
        try:
            async with Asker(endpoint) as asker:
                return await calibrate(asker.count_tokens, self.config.isl, self.config.seed)
        except WireError as exc:
            await asyncio.sleep(_DEATH_TOLD_S)
            raise TargetError(f"target '{endpoint.target}': calibrating texts: {exc}") from exc

    def _engine_args(self) -> dict[str, Any]:
        """The run's block; targets that are up together share the GPU's memory."""
        shared = {"gpu_memory_utilization": round(0.9 / len(self.config.all_targets), 3)}
        alone = self.config.placement == "exclusive" or not gpus()
        return {**({} if alone else shared), **self.config.engine_args}

    def _gate_plan(self, target: str, round_index: int) -> GatePlan:
        """Each round has texts of its own: an external server is not started anew."""
        first_text = round_index * _GATE_TEXTS_A_ROUND
        return replace(gate_plan(self.config, target), first_text=first_text)

    def _context(self, target: str, launch: int) -> Context:
        pinned = pinning(self.config.generator)
        return Context(
            log_dir=self.writer.log_folder(target, launch),
            batches=tuple(self.config.batches),
            model=self.config.model,
            engine_args=self._engine_args(),
            server_python=self.config.server_python,
            on_progress=self.progress.step,
            cpus=pinned.server if pinned else None,
        )

    async def _record_launch(self, launch: int, endpoint: Endpoint) -> None:
        """What was started, and what it says of itself, into run.json."""
        name = endpoint.target
        settings = await read_settings(
            endpoint, self.config.all_targets[name], self._context(name, launch)
        )
        if name not in self.settings:
            self.writer.add_findings(parity_findings(name, settings))
        self.settings[name] = settings
        self.writer.add_findings(endpoint.findings)
        entry = {
            "launch": launch,
            "target": name,
            "model": endpoint.model,
            "base_url": endpoint.base_url,
            "ready_after_s": round(endpoint.ready_after_s, 3),
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "processes": [process.to_json() for process in endpoint.processes],
            **await asyncio.to_thread(self._software, name),
        }
        self.writer.update(
            launches=[*self.writer.meta["launches"], entry], parity=parity_table(self.settings)
        )

    def _software(self, target: str) -> dict[str, Any]:
        """Versions of the target's own environment, and which model it was given."""
        config = self.config.all_targets[target]
        match config:
            case VllmTarget() | DynamoTarget() | ReferenceTarget(engine="torch" | "vllm"):
                python = config.python or self.config.server_python or server_python()
            case _:
                return {}
        found: dict[str, Any] = {"versions": python_versions(python)}
        with suppress(ConfigError):  # a built-in shape has no files; all else was up by now
            folder = Path(resolve_model(config.model or self.config.model or GENERATED, python))
            found["model_digest"] = model_digest(folder) if folder.is_dir() else None
        return found

    def _agreement(self) -> list[Pair]:
        """The first round's gate texts, the same for all, on every pair that has passed."""
        passed = {name: gate for name, gate in self.first_gates.items() if gate.passed}
        return compare_targets(
            {name: gate.reference for name, gate in passed.items()},
            {name: gate.reference_tokens for name, gate in passed.items()},
            cosine_min=self.config.checks.cosine_min,
            norm_tolerance=self.config.checks.norm_tolerance,
        )

    def _against_others(self, trial: Trial, sketches: Sketches) -> list[Finding]:
        """The trial's vectors against the first target's that met the same texts."""
        same = self.sketches.setdefault((trial.work, trial.index), {})
        first = next(iter(same), None)
        same.setdefault(trial.target, sketches)
        if first is None:
            return []
        return compare_sketches(
            first,
            same[first],
            trial.target,
            sketches,
            cosine_min=self.config.checks.cosine_min,
            cell=trial.work.slug,
            trial=trial.index,
        )


def tokenizer_folder(config: RunConfig) -> Path | None:
    """The folder of the model's tokenizer, where the config names one."""
    if config.tokenizer is None:
        return None
    return Path(resolve_model(config.tokenizer, server_python(config.server_python)))


def gate_plan(config: RunConfig, target: str) -> GatePlan:
    """What the gate asks of a target of this run."""
    checks, folder = config.checks, tokenizer_folder(config)
    tokenizer = None if folder is None else open_tokenizer(folder)
    return GatePlan(
        isls=config.isl,
        batches=config.batches,
        encodings=config.encoding,
        normalised=config.all_targets[target].normalised,
        norm_tolerance=checks.norm_tolerance,
        cosine_min=checks.cosine_min,
        sample=checks.content_texts,
        dimensions=checks.dimensions,
        tokenize=None if tokenizer is None else lambda text: list(tokenizer.encode(text).ids),
    )

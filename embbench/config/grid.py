"""From a `RunConfig` to its `Plan`: the cells, the balanced order of trials, a guess of the time.

Order: rounds come in pairs, a row of a Williams square and then the same row reversed, so that
within each pair every target has the same mean position and a drift that is linear in time falls
on all alike; over the rows each target follows each other one equally often (E. J. Williams,
"Experimental designs balanced for the estimation of residual effects of treatments", 1949).
For two targets this gives ABBA BAAB. The work within a launch is turned in the same way.
"""

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from embbench.config.plan import ClosedLoop, Episode, OpenLoop, Plan, Trial, Work
from embbench.config.schema import RunConfig
from embbench.errors import ConfigError

T = TypeVar("T")

# Guesses, for the estimate alone.
SECONDS_PER_TOKEN = {"reference": 7e-6, "vllm": 2e-4, "dynamo": 2e-4}
SECONDS_TO_START = {"reference": 3.0, "vllm": 90.0, "dynamo": 120.0}


def build_plan(config: RunConfig) -> Plan:
    """All cells and trials of a run in the order in which they are driven.

    Raises `ConfigError` if two loads make the same cell.
    """
    work = tuple(
        Work(batch, isl, encoding, load.loop, load.requests, load.warmup)
        for isl in config.isl
        for encoding in config.encoding
        for batch in config.batches
        for load in config.loads
        if load.covers(batch)
    )
    slugs = [w.slug for w in work]
    for slug in slugs:
        if slugs.count(slug) > 1:
            raise ConfigError(f"cell {slug} is asked for twice; make its batches or loads differ")
    targets = tuple(config.all_targets)
    target_rounds = balanced_order(targets, config.rounds, config.seed)
    work_rounds = balanced_order(work, config.rounds, config.seed)
    episodes: list[Episode] = []
    for index, (up, cells) in enumerate(zip(target_rounds, work_rounds, strict=True)):
        if config.placement == "co-resident":
            trials = [Trial(target, cell, index) for cell in cells for target in up]
            episodes.append(Episode(up, tuple(trials)))
        else:
            episodes += [
                Episode((target,), tuple(Trial(target, cell, index) for cell in cells))
                for target in up
            ]
    return Plan(targets, work, tuple(episodes))


def balanced_order(items: Sequence[T], rounds: int, seed: int) -> list[tuple[T, ...]]:
    """One order of ``items`` a round, balanced against drift and carry-over as told above."""
    count = len(items)
    names = np.random.default_rng(seed).permutation(count)
    first = [(step + 1) // 2 if step % 2 else -(step // 2) for step in range(count)]
    orders = []
    for index in range(rounds):
        row = [items[names[(place + index // 2) % count]] for place in first]
        orders.append(tuple(row if index % 2 == 0 else reversed(row)))
    return orders


def estimate_s(config: RunConfig, plan: Plan) -> float:
    """A guess of the run's wall time in seconds, from what a token costs at each kind of target."""
    total_s = 0.0
    for episode in plan.episodes:
        for name in episode.targets:
            total_s += SECONDS_TO_START.get(config.all_targets[name].kind, 3.0)
        for trial in episode.trials:
            kind = config.all_targets[trial.target].kind
            total_s += trial_s(trial.work, SECONDS_PER_TOKEN.get(kind, 7e-6))
    return total_s


def trial_s(work: Work, seconds_per_token: float) -> float:
    """A guess of one trial's time in seconds: a serial server, or the schedule if longer."""
    service_s = 0.003 + work.batch * work.isl * seconds_per_token
    drive_s = work.requests * service_s
    match work.load:
        case OpenLoop(rate_rps=rate_rps):
            drive_s = max(drive_s, work.requests / rate_rps)
        case ClosedLoop(concurrency=clients, think_time_s=think_s):
            drive_s += math.ceil(work.requests / clients) * think_s
    verify_s = work.requests * work.batch * 4e-5
    return 0.3 + work.warmup * service_s + drive_s + verify_s

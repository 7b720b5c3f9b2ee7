"""A plan in words: in a config and its plan, out the lines that `plan` and `sweep` print."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embbench.config.plan import Plan
    from embbench.config.schema import RunConfig


def plan_text(config: "RunConfig", plan: "Plan") -> str:
    """The plan for a reader: the config as YAML, then what will be driven."""
    import yaml

    from embbench.config.grid import estimate_s

    resolved = config.model_dump(mode="json", exclude_none=True)
    lines = [yaml.safe_dump(resolved, sort_keys=False, width=100)]
    requests = sum(w.requests for w in plan.work) * config.rounds * len(plan.targets)
    lines.append(f"{len(plan.targets)} targets x {len(plan.work)} cells x {config.rounds} trials:")
    lines += [
        f"  {w.slug}: {w.requests} requests + {w.warmup} warm-up a trial, "
        f"{w.requests * config.rounds} measured requests a target"
        for w in plan.work
    ]
    lines.append("order of launches:")
    lines += [f"  {i}: {', '.join(e.targets)}" for i, e in enumerate(plan.episodes)]
    lines += outlook_lines(config, plan)
    minutes = estimate_s(config, plan) / 60
    lines.append(f"{requests} measured requests; about {minutes:.1f} minutes, as a guess")
    return "\n".join(lines)


def outlook_lines(config: "RunConfig", plan: "Plan") -> list[str]:
    """What the plan will be able to say: which percentiles it carries, which difference it sees."""
    from embbench.analysis.power import outlook

    targets = len(plan.targets)
    pairs = max(1, 2 * targets - 3) if targets > 1 else 0
    lines = []
    for requests in dict.fromkeys(work.requests for work in plan.work):
        cells = [work.slug for work in plan.work if work.requests == requests]
        seen = outlook(config.rounds, requests, comparisons=pairs * 3 * len(plan.work))
        carried = ", ".join(f"p{p:g}" for p in seen.closed) or "no percentile"
        told = f"{', '.join(cells)}: will carry {carried}"
        if seen.open:
            told += "; " + ", ".join(f"p{p:g} needs {n} requests a trial" for p, n in seen.open)
        lines.append(told)
    if pairs and seen.detectable is None:
        lines.append(
            f"{config.rounds} trials are too few for any verdict; 5 are the least (--trials 5)"
        )
    elif pairs:
        lines.append(
            f"{config.rounds} trials will usually show a slowdown of {seen.detectable:.0%} or "
            "more, if starts differ as on the machines that this was tried on"
        )
    return lines

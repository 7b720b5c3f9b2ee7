"""Parity: what each target was asked to use, and what it really uses where it tells.

In: a target that is up, its logs, its /metrics and /v1/models. Out: settings by name, and the table
of all targets for ``run.json``; a comparison of unlike settings compares unlike things.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import orjson

from embbench.config.schema import DynamoTarget, ReferenceTarget, TargetConfig, VllmTarget
from embbench.findings import Finding
from embbench.targets.endpoint import Endpoint
from embbench.targets.recipe import Context
from embbench.targets.vllm import engine_arguments

SETTINGS: Final = (
    "engine",
    "dtype",
    "pooling",
    "normalised",
    "max_model_len",
    "prefix caching",
    "max_num_batched_tokens",
    "max_num_seqs",
    "enforce_eager",
    "load_format",
    "API processes",
    "worker processes",
    "tokenization",
    "hop",
)
"""The rows of the table, in order."""

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_ENGINE = re.compile(r"Initializing a \S+ LLM engine \(v([^)]+)\) with config: (.*)")
_ENGINE_VALUES: Final = {
    "dtype": re.compile(r"\bdtype=(?:torch\.)?(\w+)"),
    "max_model_len": re.compile(r"\bmax_seq_len=(\d+)"),
    "prefix caching": re.compile(r"\benable_prefix_caching=(\w+)"),
    "enforce_eager": re.compile(r"\benforce_eager=(\w+)"),
    "load_format": re.compile(r"\bload_format=(?:LoadFormat\.)?(\w+)"),
    "pooling": re.compile(r"\b(?:seq_)?pooling_type='(\w+)'"),
    "normalised": re.compile(r"\b(?:use_activation|normalize)=(True|False)"),
    "max_num_batched_tokens": re.compile(
        r"'compile_(?:ranges_endpoints|ranges_split_points)': \[(?:\d+, )*(\d+)\]"
    ),
}
_RESOLVED = re.compile(
    r"Resolved pooling config: pooling_type=(\w+)\(.*?\buse_activation=(\w+)\(", re.ASCII
)
_BATCHED = re.compile(r"max_num_batched_tokens=(\d+)")
_API_OF_SEVERAL = re.compile(r"\(ApiServer_(\d+) pid=\d+\)")
_ENDPOINT = re.compile(r"Registered endpoint '")
_SAMPLE = re.compile(r"^(\w[\w:]*)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_HTTP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of one target. ``used`` is None where the server does not tell."""

    asked: str | None = None
    used: str | None = None
    source: str = ""

    @property
    def shown(self) -> str | None:
        """What to believe: what is used where it is told, else what was asked."""
        if self.used is None:
            return self.asked
        if self.asked is None or self.asked.lower() == self.used.lower():
            return self.used
        return f"{self.used} (asked {self.asked})"


async def read_settings(
    endpoint: Endpoint, config: TargetConfig, context: Context
) -> dict[str, Setting]:
    """All settings of one target that is up, by their names in `SETTINGS`."""
    told: dict[str, tuple[str, str]] = {}
    for process in endpoint.processes:
        log = await asyncio.to_thread(process.log.read_text, "utf-8", "replace")
        told |= {key: (value, "startup log") for key, value in from_log(log).items()}
    timeout = aiohttp.ClientTimeout(total=_HTTP_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, headers=dict(endpoint.headers)) as session:
        models = await fetch(session, f"{endpoint.base_url}/models")
        told |= {key: (value, "/v1/models") for key, value in from_models(models).items()}
        if endpoint.metrics_url is not None:
            page = await fetch(session, endpoint.metrics_url)
            told |= {key: (value, "/metrics") for key, value in from_metrics(page).items()}
    asked = asked_settings(endpoint.target, config, context)
    return {
        name: Setting(asked.get(name), *told.get(name, (None, "")))
        for name in SETTINGS
        if name in asked or name in told
    }


def parity_table(by_target: Mapping[str, Mapping[str, Setting]]) -> list[dict[str, Any]]:
    """One JSON-ready row a setting: its value on each target, and where each value comes from."""
    rows = []
    for name in SETTINGS:
        settings = {target: own[name] for target, own in by_target.items() if name in own}
        if settings:
            rows.append(
                {
                    "setting": name,
                    "values": {target: each.shown for target, each in settings.items()},
                    "sources": {
                        target: each.source or "as asked" for target, each in settings.items()
                    },
                }
            )
    return rows


def parity_findings(target: str, settings: Mapping[str, Setting]) -> list[Finding]:
    """A warning for each setting that the server did not take as it was asked to."""
    return [
        Finding(
            "parity",
            "warn",
            f"{name} is {each.used} ({each.source}), though {each.asked} was asked for",
            "read the server's log; this target does not run what the config says",
            target,
        )
        for name, each in settings.items()
        if each.used is not None
        and each.asked is not None
        and each.used.lower() != each.asked.lower()
    ]


def asked_settings(target: str, config: TargetConfig, context: Context) -> dict[str, str]:
    """What the config asks for, in the table's words; what it leaves open is left out."""
    match config:
        case VllmTarget() | DynamoTarget():
            arguments = engine_arguments(target, config, context)
        case ReferenceTarget():
            arguments = {
                key.replace("-", "_"): value
                for key, value in {**context.engine_args, **config.engine_args}.items()
            }
        case _:
            return {}
    asked = {
        key: _word(arguments[key])
        for key in ("dtype", "max_model_len", "max_num_batched_tokens", "max_num_seqs")
        if arguments.get(key) not in (None, "auto")
    }
    engine_is_vllm = not isinstance(config, ReferenceTarget) or config.engine == "vllm"
    for key in ("enforce_eager", "load_format"):
        if key in arguments and engine_is_vllm:
            asked[key] = _word(arguments[key])
    pooler = arguments.get("pooler_config") or {}
    pool = pooler.get("pooling_type") or pooler.get("seq_pooling_type") or arguments.get("pool")
    normalise = pooler.get("use_activation", arguments.get("normalise"))
    if pool is not None:
        asked["pooling"] = str(pool).lower()
    asked["normalised"] = _word(config.normalised if normalise is None else normalise)
    match config:
        case VllmTarget():
            asked["prefix caching"] = _word(arguments["enable_prefix_caching"])
            asked["API processes"] = str(config.api_server_count)
            asked |= {"worker processes": "0", "tokenization": "engine"}
        case DynamoTarget():
            asked["prefix caching"] = _word(arguments["enable_prefix_caching"])
            asked["API processes"] = "1"
            asked["worker processes"] = str(config.embedding_worker_processes or 1)
            asked["tokenization"] = (
                "frontend" if config.embedding_frontend_tokenization else "engine"
            )
        case ReferenceTarget():
            asked |= {"API processes": "1", "tokenization": "engine"}
            if config.engine != "vllm":  # its log tells the version instead
                asked["engine"] = config.engine
            if config.pooling == "token":
                asked |= {"pooling": "token", "normalised": "off"}
            asked["worker processes"] = str(config.processes - 1)
            if config.processes > 1:
                asked["hop"] = config.hop
    return asked


def from_log(text: str) -> dict[str, str]:
    """What a server's start-up log tells. vLLM prints its whole configuration, others nothing."""
    plain = _ANSI.sub("", text)
    told: dict[str, str] = {}
    if engine := _last(_ENGINE, plain):
        version, values = engine.groups()
        told["engine"] = f"vLLM {version}"
        for name, pattern in _ENGINE_VALUES.items():
            if found := pattern.search(values):
                told[name] = _word(found[1])
    if batched := _last(_BATCHED, plain):
        told["max_num_batched_tokens"] = batched[1]
    if resolved := _last(_RESOLVED, plain):
        told |= {"pooling": resolved[1].lower(), "normalised": _word(resolved[2])}
    if several := set(_API_OF_SEVERAL.findall(plain)):
        told["API processes"] = str(len(several))
    elif "(APIServer pid=" in plain:
        told["API processes"] = "1"
    if endpoints := _ENDPOINT.findall(plain):
        told["worker processes"] = str(len(endpoints))
    return told


def from_models(payload: str) -> dict[str, str]:
    """What the model list tells: the longest input, under one name or another."""
    try:
        first = orjson.loads(payload)["data"][0]
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError):
        return {}
    limit = first.get("max_model_len", first.get("context_window"))
    return {} if limit is None else {"max_model_len": str(limit)}


def from_metrics(page: str) -> dict[str, str]:
    """What the metrics tell beside counters: Dynamo's limits, the reference server's options."""
    told: dict[str, str] = {}
    for name, labels, value in samples(page):
        match name:
            case "dynamo_frontend_model_max_num_batched_tokens":
                told["max_num_batched_tokens"] = f"{value:.0f}"
            case "dynamo_frontend_model_context_length":
                told["max_model_len"] = f"{value:.0f}"
            case "embbench_info":
                told |= _from_info(labels)
    return told


def samples(page: str) -> Iterable[tuple[str, dict[str, str], float]]:
    """Name, labels and value of each sample on a page in Prometheus' text form."""
    for found in _SAMPLE.finditer(page):
        try:
            value = float(found[3])
        except ValueError:
            continue
        yield found[1], dict(_LABEL.findall(found[2] or "")), value


def _from_info(labels: Mapping[str, str]) -> dict[str, str]:
    """The reference server's own description of itself."""
    told = {key: labels[key] for key in ("dtype", "hop", "max_model_len") if key in labels}
    if labels.get("engine") in ("numpy", "torch"):  # vLLM tells its version in the log
        told["engine"] = labels["engine"]
    if labels.get("processes") == "1":
        told.pop("hop", None)
    if labels.get("pooling") == "token":
        return told | {"pooling": "token", "normalised": "off"}
    if "pool" in labels:
        told["pooling"] = labels["pool"]
    if "normalise" in labels:
        told["normalised"] = _word(labels["normalise"])
    return told


def _word(value: Any) -> str:
    """A value as the table shows it: on and off, lower case."""
    return {"true": "on", "false": "off"}.get(str(value).lower(), str(value).lower())


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(reversed([*pattern.finditer(text)]), None)


async def fetch(session: aiohttp.ClientSession, url: str) -> str:
    """A page's text; empty where there is none."""
    try:
        async with session.get(url) as response:
            return await response.text(errors="replace") if response.ok else ""
    except (aiohttp.ClientError, TimeoutError, OSError):
        return ""

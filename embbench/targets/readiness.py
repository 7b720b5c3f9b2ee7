"""Ready means: real, validated embeddings came back, several in a row, of both batch extremes.

In: where a target should answer. Out: the model's name and what was odd. An open port, a health
check or a model list is never enough. The payload itself is judged by the gate, later: a server
that answers steadily, but wrongly, is let through to it with a finding.
"""

import asyncio
import base64
import binascii
import itertools
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import numpy as np
import orjson

from embbench.errors import TargetError
from embbench.findings import Finding

SMALL_ANSWERS: Final = 3
LARGE_ANSWERS: Final = 2
SETTLE_S: Final = 10.0
"""How long the same refusal or the same wrong payload must last to be taken as final."""
ANSWER_TIMEOUT_S: Final = 60.0
PAUSE_S: Final = (0.05, 0.5)

NOT_YET: Final = frozenset({404, 408, 425, 429, *range(500, 600)})
"""What servers answer while they come up; any other answer can be final."""
NOT_ALLOWED: Final = frozenset({401, 403, 405, 415})
"""No request will ever be answered. Other refusals are for the gate and the cells to show."""
DEFAULT_MODEL: Final = "default"
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Probe:
    """What is asked, and for how long. ``model`` None: the first one that the server lists."""

    base_url: str
    model: str | None
    batches: tuple[int, ...]
    timeout_s: float
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    settle_s: float = SETTLE_S
    already_up: bool = False
    """Nothing is starting: any answer that lasts for ``settle_s`` is final."""

    @property
    def steps(self) -> tuple[int, ...]:
        """Batch sizes that must be answered well, one after the other."""
        small, large = min(self.batches), max(self.batches)
        return (small,) * SMALL_ANSWERS + ((large,) * LARGE_ANSWERS if large > small else ())


@dataclass(frozen=True, slots=True)
class Ready:
    """The target is up: its model's name, and what was odd on the way."""

    model: str
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """One try. ``problem`` is empty for a good answer; ``final`` if waiting will not mend it."""

    batch: int
    status: int | None
    problem: str = ""
    final: bool = False


@dataclass(slots=True)
class Seen:
    """What was seen last, for progress and for the error."""

    models: str = "/v1/models not asked yet"
    embeddings: str = "no embeddings asked yet"

    def __str__(self) -> str:
        return f"{self.models}; {self.embeddings}"


def embedding_problem(payload: bytes, count: int) -> str:
    """Why this body is not ``count`` finite vectors; empty if it is.

    Their lengths may differ, and rows may be nested: per-token output is for the gate to diagnose.
    """
    try:
        items = orjson.loads(payload)["data"]
        indices = sorted(item.get("index", i) for i, item in enumerate(items))
        if indices != list(range(count)):
            return f"{len(items)} of {count} embeddings, or wrong indices"
        for number, item in enumerate(items):
            vector = _vector(item["embedding"])
            if vector.ndim == 0 or vector.size == 0 or not np.isfinite(vector).all():
                return f"embedding {number} is empty or not finite"
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as exc:
        return f"not an embeddings answer ({type(exc).__name__}: {exc})"[:_SHOWN]
    return ""


def _vector(value: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    if isinstance(value, str):
        return np.frombuffer(base64.b64decode(value, validate=True), "<f4")
    with np.errstate(over="ignore"):  # too large for float32 becomes infinite, and is seen
        return np.asarray(value, np.float32)


def probe_texts(batch: int, attempt: int) -> list[str]:
    """Short texts that differ from the first character on and between attempts."""
    return [f"{number} of {attempt}" for number in range(batch)]


async def wait_ready(probe: Probe, seen: Seen) -> Ready:
    """Return when the target has answered all steps of ``probe`` in a row.

    ``seen`` is kept up to date, for whoever shows progress meanwhile. Raises `TargetError` when the
    server refuses for good, and when ``probe.timeout_s`` is over; it says what was missing.
    """
    connector = aiohttp.TCPConnector(force_close=True)  # the server may restart in between
    timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
    try:
        async with (
            asyncio.timeout(probe.timeout_s) as limit,
            aiohttp.ClientSession(
                connector=connector, timeout=timeout, headers=dict(probe.headers)
            ) as session,
        ):
            return await _ask_until_ready(session, probe, seen)
    except TimeoutError:
        if not limit.expired():
            raise
    raise TargetError(f"was not ready after {probe.timeout_s:g} s: {seen}")


async def _ask_until_ready(session: aiohttp.ClientSession, probe: Probe, seen: Seen) -> Ready:
    steps = probe.steps
    pause_s = PAUSE_S[0]
    good = 0
    trouble: dict[int, tuple[int | None, float]] = {}  # batch -> status and when it began
    for attempt in itertools.count():
        model = await _served_model(session, probe, seen)
        if model is not None:
            answer = await _ask(session, probe.base_url, model, steps[good], attempt)
            seen.embeddings = _in_words(answer, good)
        if model is not None and not answer.problem:
            trouble.pop(answer.batch, None)
            good += 1
            if good == len(steps):
                return Ready(model)
            continue
        if model is not None:
            status, since = trouble.get(answer.batch, (None, 0.0))
            if status != answer.status or not since:
                trouble[answer.batch] = (answer.status, time.monotonic())
            elif (
                answer.final or (probe.already_up and answer.status)
            ) and time.monotonic() - since >= probe.settle_s:
                return _ready_after_all(answer, model)
        good = 0
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, PAUSE_S[1])
    raise AssertionError("unreachable")


def _ready_after_all(answer: Answer, model: str) -> Ready:
    """The same answer came for long enough: a lasting refusal, or a lasting wrong payload."""
    if answer.status in NOT_ALLOWED:
        raise TargetError(f"does not let us in: batch {answer.batch} {answer.problem}")
    what = f"batch {answer.batch} {answer.problem}, again and again during start-up"
    do = "requests of this size will fail; look at the server's limits and its log"
    return Ready(model, (Finding("readiness", "warn", what, do),))


async def _served_model(session: aiohttp.ClientSession, probe: Probe, seen: Seen) -> str | None:
    """The model to ask for; None while the server does not list it. No list is no obstacle."""
    try:
        async with session.get(f"{probe.base_url}/models") as response:
            payload = await response.read()
            if response.status != HTTPStatus.OK:
                seen.models = f"/v1/models answers {response.status}"
                return probe.model or DEFAULT_MODEL
        names = [str(each["id"]) for each in orjson.loads(payload)["data"]]
    except (aiohttp.ClientError, TimeoutError, OSError) as exc:
        seen.models = f"/v1/models: {_brief(exc)}"
        seen.embeddings = "embeddings not asked"
        return None
    except (KeyError, TypeError, ValueError) as exc:
        seen.models = f"/v1/models is no model list ({type(exc).__name__})"
        return probe.model or DEFAULT_MODEL
    listed = ", ".join(names) or "no model"
    if probe.model is None:
        seen.models = f"/v1/models lists {listed}"
        return names[0] if names else None
    if probe.model in names:
        seen.models = f"/v1/models lists {probe.model}"
        return probe.model
    seen.models = f"/v1/models lists {listed}, not the model asked for, {probe.model}"
    return None


async def _ask(
    session: aiohttp.ClientSession, base_url: str, model: str, batch: int, attempt: int
) -> Answer:
    body = orjson.dumps({"model": model, "input": probe_texts(batch, attempt)})
    headers = {"Content-Type": "application/json"}
    status = None
    try:
        async with session.post(f"{base_url}/embeddings", data=body, headers=headers) as response:
            status = response.status
            payload = await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as exc:
        answered = status is not None or isinstance(exc, aiohttp.ClientResponseError)
        return Answer(batch, status, f"got no answer ({_brief(exc)})", final=answered)
    if status != HTTPStatus.OK:
        said = " ".join(payload[:_SHOWN].decode(errors="replace").split())
        return Answer(batch, status, f"answered {status}: {said}", final=status not in NOT_YET)
    problem = embedding_problem(payload, batch)
    return Answer(batch, status, problem and f"answered 200 with {problem}", final=bool(problem))


def _in_words(answer: Answer, good: int) -> str:
    before = f"{good} good answers, then " if good else ""
    return f"embeddings: {before}batch {answer.batch} {answer.problem or 'answered well'}"


def _brief(exc: Exception) -> str:
    if isinstance(exc, TimeoutError):
        return "time-out"
    if isinstance(exc, aiohttp.ClientConnectorError):
        number = exc.os_error.errno
        return f"cannot connect ({os.strerror(number) if number else exc.os_error})"
    return f"{type(exc).__name__}: {exc}"[:_SHOWN]

"""Request bodies, encoded before any clock starts.

In: a `TextSource` and the plan's `Work`. Out: JSON bodies one by one, so that a million of them
never lie in memory; standard keys of ``/v1/embeddings`` only.
"""

from collections.abc import Iterator

import orjson

from embbench.config.plan import Plan, Work
from embbench.inputs.texts import Demand, TextSource
from embbench.results.samples import MEASURED, WARMUP

_BLOCK_TEXTS = 4096


def namespace(work: Work, trial: int, phase: int) -> str:
    """The name of one trial's texts; no target in it, so that all meet the same ones."""
    return f"{work.slug}/trial{trial}/{'warmup' if phase == WARMUP else 'measured'}"


def demands(plan: Plan) -> Iterator[Demand]:
    """What a whole run needs of its `TextSource`."""
    trials = {
        (trial.work, trial.index): None for episode in plan.episodes for trial in episode.trials
    }
    for work, index in trials:
        for phase in (WARMUP, MEASURED):
            count = request_count(work, phase) * work.batch
            if count:
                yield Demand(namespace(work, index, phase), work.isl, count)


def request_count(work: Work, phase: int) -> int:
    """Requests of one phase of one trial."""
    return work.warmup if phase == WARMUP else work.requests


def request_texts(source: TextSource, work: Work, trial: int, phase: int, seq: int) -> list[str]:
    """The texts of one request, to ask for again what a body held."""
    return source.texts(work.isl, namespace(work, trial, phase), seq * work.batch, work.batch)


def request_bodies(
    source: TextSource,
    work: Work,
    trial: int,
    phase: int,
    model: str,
    dimensions: int | None = None,
) -> Iterator[bytes]:
    """The bodies of one phase of one trial, in order of ``seq``."""
    name, count = namespace(work, trial, phase), request_count(work, phase)
    block = max(1, _BLOCK_TEXTS // work.batch)
    for first in range(0, count, block):
        requests = min(block, count - first)
        texts = source.texts(work.isl, name, first * work.batch, requests * work.batch)
        for at in range(0, len(texts), work.batch):
            yield encode_body(model, texts[at : at + work.batch], work.encoding, dimensions)


def encode_body(
    model: str, texts: list[str], encoding: str, dimensions: int | None = None
) -> bytes:
    """One request body. ``dimensions`` is sent only when asked for."""
    body: dict[str, object] = {"model": model, "input": texts, "encoding_format": encoding}
    if dimensions is not None:
        body["dimensions"] = dimensions
    return orjson.dumps(body)

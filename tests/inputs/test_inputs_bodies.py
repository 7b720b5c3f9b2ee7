"""Request bodies: what is in them, that targets share them, and that memory stays flat."""

import json
import tracemalloc
from collections.abc import Iterator

from embbench.config.plan import ClosedLoop, Episode, OpenLoop, Plan, Trial, Work
from embbench.inputs import (
    Recipe,
    TextSource,
    demands,
    encode_body,
    request_bodies,
    request_texts,
)
from embbench.inputs.words import OPENERS, WORDS
from embbench.results.samples import MEASURED, WARMUP

RECIPE = Recipe(
    "server", dict.fromkeys(OPENERS, 2), {f" {w}": 1 for w in WORDS}, closers={}, probes=0
)
SMALL = Work(batch=15, isl=80, encoding="float", load=OpenLoop(10.0), requests=600, warmup=3)
LARGE = Work(batch=64, isl=80, encoding="base64", load=ClosedLoop(1), requests=5, warmup=0)


def plan_of(*work: Work, targets: tuple[str, ...] = ("bare", "shm"), trials: int = 2) -> Plan:
    episodes = tuple(
        Episode((target,), tuple(Trial(target, w, index) for w in work))
        for index in range(trials)
        for target in targets
    )
    return Plan(targets, work, episodes)


def bodies(source: TextSource, work: Work, trial: int, phase: int) -> Iterator[bytes]:
    return request_bodies(source, work, trial, phase, "some/model")


def test_a_body_has_the_standard_keys_only() -> None:
    raw = json.loads(encode_body("m", ["a b", "c d"], "base64"))
    assert raw == {"model": "m", "input": ["a b", "c d"], "encoding_format": "base64"}
    assert json.loads(encode_body("m", ["a"], "float", 256))["dimensions"] == 256


def test_a_phase_has_its_requests_in_the_cells_own_batch_shape() -> None:
    source = TextSource(RECIPE, 0, demands(plan_of(SMALL, LARGE)))
    for work, phase, count in [(SMALL, WARMUP, 3), (SMALL, MEASURED, 600), (LARGE, WARMUP, 0)]:
        decoded = [json.loads(body) for body in bodies(source, work, 0, phase)]
        assert len(decoded) == count
        for seq, body in enumerate(decoded):
            assert body["model"] == "some/model"
            assert body["encoding_format"] == work.encoding
            assert len(body["input"]) == work.batch
            assert {len(text.split()) for text in body["input"]} == {79}  # one special token
            assert body["input"] == request_texts(source, work, 0, phase, seq)


def test_no_text_of_a_plan_is_sent_twice() -> None:
    plan = plan_of(SMALL, LARGE, trials=3)
    source = TextSource(RECIPE, 0, demands(plan))
    sent = [
        text
        for work in plan.work
        for trial in range(3)
        for phase in (WARMUP, MEASURED)
        for body in bodies(source, work, trial, phase)
        for text in json.loads(body)["input"]
    ]
    assert len(sent) == 3 * (15 * 603 + 64 * 5)
    assert len(set(sent)) == len(sent)


def test_plans_with_other_targets_or_cells_meet_the_same_texts() -> None:
    one = TextSource(RECIPE, 7, demands(plan_of(SMALL, targets=("bare",))))
    many = TextSource(RECIPE, 7, demands(plan_of(LARGE, SMALL, targets=("x", "bare", "y"))))
    assert list(bodies(one, SMALL, 1, MEASURED)) == list(bodies(many, SMALL, 1, MEASURED))


def test_memory_does_not_grow_with_the_number_of_bodies() -> None:
    work = Work(batch=1, isl=20, encoding="float", load=ClosedLoop(1), requests=10**9, warmup=0)
    source = TextSource(RECIPE, 0, demands(plan_of(work, targets=("bare",), trials=1)))
    stream = bodies(source, work, 0, MEASURED)
    next(stream)
    tracemalloc.start()
    for _ in range(30_000):  # about 4 MB of bodies
        next(stream)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 30 * 2**20

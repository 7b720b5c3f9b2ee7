"""The fault catalogue: every fault of the scripted server, in every place where it may sit.

``run(name, encoding, where)`` gives an `Outcome`: was it caught, and in which words. A place is
one of `PLACES`: at the gate; late in a trial of batch 15; on one item of 1024; on one target of
two. Used by tests/payload/test_fault_catalogue.py and by scripts/bench/fault_table.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import orjson
from scripted_faults import FAULTS, ODDITIES, Fault
from scripted_server import ScriptedServer

from embbench.config.plan import Encoding
from embbench.load.kept_bodies import KeptBody
from embbench.payload.ask import Asker, known_vectors
from embbench.payload.checks import Expectation, Flaw
from embbench.payload.gate import GatePlan, run_gate
from embbench.payload.identity import Known, compare_sketches, compare_targets
from embbench.payload.verify import Verification, verify_trial
from embbench.results.samples import MEASURED, RECORD, Samples
from embbench.targets.endpoint import Endpoint

Found = tuple[str, int | None, int | None]
Place = Literal["gate", "late", "one of 1024", "one target of two"]
PLACES: tuple[Place, ...] = get_args(Place)

ISL, DIMENSION, BATCH, REQUESTS, LATE_FROM = 80, 1024, 15, 8, 5
ITEM, MANY = 517, 1024

OF_ANOTHER_MODEL = frozenset(
    {"negated", "reversed-components", "tail-zeroed", "half-dimension", "one-short", "one-long"}
)
"""Right for some other model, if done to every answer: only another target can tell."""
NEED_COMPANY = frozenset(
    {"swapped", "random", "noisy", "negated", "reversed-components", "tail-zeroed"}
)
"""On single items of a large batch, seen for certain only beside another target."""
OF_WHOLE_ANSWERS = frozenset(
    {"renumbered", "stale", "batch-leaks", "all-the-same", "constant-vector", "gzip-bomb"}
)
"""Not done to single items of 1024; a bomb is only one beside a small answer."""
OTHER_VECTORS = frozenset({"whole-zeros", "minus-zeros"})
"""Oddities that change the vectors, and so are faults beside a target without them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One fault in one place. ``caught``: in the right words; for an oddity, that it passed."""

    fault: str
    encoding: Encoding
    place: Place
    caught: bool
    words: str
    request: int | None = None
    item: int | None = None


class Words:
    """Texts of words that the scripted server counts exactly; all different."""

    def at_least(self, tokens: int) -> int:
        return max(2, tokens)

    def texts(self, tokens: int, namespace: str, start: int, count: int) -> list[str]:
        salt = sum(namespace.encode()) * 1_000_003
        return [
            " ".join(f"w{(start + i) * 7919 + salt + k * 131 + tokens}" for k in range(tokens - 1))
            for i in range(count)
        ]


def places_of(name: str) -> list[Place]:
    """Where a fault can sit."""
    if name == "unknown-coding":  # the load client's own business, before any check
        return ["gate"]
    places: list[Place] = ["gate", "late"]
    if name not in OTHER_VECTORS:
        places.append("one target of two")
    if name not in OF_WHOLE_ANSWERS:
        places.append("one of 1024")
    return places


async def run(name: str, encoding: Encoding, place: Place, server: ScriptedServer) -> Outcome:
    """Put the fault there, and look whether it is found."""
    match place:
        case "gate":
            return await _gate(name, encoding, server)
        case "late":
            return await _late(name, encoding, server)
        case "one of 1024":
            return await _one_item(name, encoding, server)
        case "one target of two":
            return await _one_target(name, encoding, server)


def _endpoint(server: ScriptedServer, target: str = "stub") -> Endpoint:
    return Endpoint(target, server.url, "scripted")


def _judge(name: str, encoding: Encoding, place: Place, found: Sequence[Found]) -> Outcome:
    """Whether one of the sentences found is the right one."""
    pattern = FAULTS[name].says
    if name in ODDITIES:
        return Outcome(name, encoding, place, not found, "; ".join(f[0] for f in found))
    right = [each for each in found if re.search(pattern, each[0])]
    words, request, item = (right or list(found) or [("", None, None)])[0]
    return Outcome(name, encoding, place, bool(right), words, request, item)


async def _gate(name: str, encoding: Encoding, server: ScriptedServer) -> Outcome:
    """All answers are faulty, from the first on."""
    plan = GatePlan([ISL], [BATCH], ["float", encoding])
    server.script(fault=None)
    good = await run_gate(_endpoint(server, "good"), Words(), plan)
    server.script(fault=name, fault_from=0, fault_item=None, fault_request=None)
    result = await run_gate(_endpoint(server), Words(), plan)
    found: list[Found] = [(row.what, None, None) for row in result.rows if row.status != "PASS"]
    if name in ("gzip-answer", "float-rounded"):  # told as a warning, and no fault
        found = [each for each in found if not re.search("compressed|are rounded", each[0])]
    if name in OF_ANOTHER_MODEL and result.passed:
        pairs = compare_targets(
            {"good": good.reference, "stub": result.reference},
            {"good": good.reference_tokens, "stub": result.reference_tokens},
            cosine_min=plan.cosine_min,
            norm_tolerance=plan.norm_tolerance,
        )
        found = [(pair.what, None, None) for pair in pairs if not pair.same_work]
    return _judge(name, encoding, "gate", found)


async def _late(name: str, encoding: Encoding, server: ScriptedServer) -> Outcome:
    """The fault starts in the middle of a trial, and stays."""
    start = 0 if name in ODDITIES else LATE_FROM
    server.script(fault=name, fault_from=start, fault_item=None, fault_request=None)
    _, found = await _trial(server, encoding, BATCH, REQUESTS, ask_again=True)
    return _judge(name, encoding, "late", found)


async def _one_item(name: str, encoding: Encoding, server: ScriptedServer) -> Outcome:
    """Two requests of 1024; one item of the second is faulty. Beside a good target if need be."""
    item = None if name == "swapped" else ITEM  # which takes two
    server.script(fault=name, fault_from=0, fault_item=item, fault_request=1)
    verification, found = await _trial(server, encoding, MANY, 2)
    if name in NEED_COMPANY:
        found += _between(await _good(server, encoding, MANY, 2), verification)
    return _judge(name, encoding, "one of 1024", found)


async def _one_target(name: str, encoding: Encoding, server: ScriptedServer) -> Outcome:
    """Both targets get the same texts; nothing is asked again."""
    good = await _good(server, encoding, BATCH, REQUESTS)
    server.script(fault=name, fault_from=LATE_FROM, fault_item=None, fault_request=None)
    bad, found = await _trial(server, encoding, BATCH, REQUESTS)
    return _judge(name, encoding, "one target of two", [*found, *_between(good, bad)])


_GOOD: dict[tuple[Encoding, int, int], Verification] = {}


async def _good(
    server: ScriptedServer, encoding: Encoding, batch: int, requests: int
) -> Verification:
    """The trial of a target without faults; once is enough."""
    key = (encoding, batch, requests)
    if key not in _GOOD:
        server.script(fault=None)
        _GOOD[key], found = await _trial(server, encoding, batch, requests)
        assert not found
    return _GOOD[key]


def _between(good: Verification, bad: Verification) -> list[tuple[str, int | None, int | None]]:
    findings = compare_sketches(
        "good", good.sketches, "stub", bad.sketches, cosine_min=0.999, cell="cell", trial=0
    )
    return [(f.what, f.request, f.item) for f in findings]


async def _trial(
    server: ScriptedServer,
    encoding: Encoding,
    batch: int,
    requests: int,
    *,
    ask_again: bool = False,
) -> tuple[Verification, list[Found]]:
    """Requests one after the other; their bodies verified as those of a trial."""
    words = Words()
    texts = [words.texts(ISL, "trial", seq * batch, batch) for seq in range(requests)]
    expect = Expectation(batch, ISL, encoding, DIMENSION, "scripted")
    known: tuple[Known, ...] = ()
    again: tuple[Flaw, ...] = ()
    kept: list[KeptBody] = []
    rows = np.zeros(requests, RECORD)
    async with Asker(_endpoint(server)) as asker:
        for seq in range(requests):
            reply = await asker.ask(texts[seq], encoding)
            gzip = reply.coding == "gzip"
            kept.append(
                KeptBody(
                    seq, MEASURED, reply.status, memoryview(reply.body), gzip, reply.content_type
                )
            )
            entry, row = server.log[seq], rows[seq]
            row["seq"], row["status"], row["phase"] = seq, reply.status, MEASURED
            row["intended_start_ns"] = row["start_ns"] = entry.arrival_ns
            row["end_ns"] = entry.sent_ns
        if ask_again:
            known, again = await known_vectors(
                asker,
                lambda seq: orjson.dumps({"input": texts[seq]}),
                requests=requests,
                batch=batch,
                encoding=encoding,
                dimension=DIMENSION,
                seed=1,
                singles=24,
            )
    verification = verify_trial(
        kept,
        expect,
        target="stub",
        cell="cell",
        trial=0,
        requests=requests,
        samples=Samples(rows),
        known=known,
    )
    found = [
        (f.what, f.request, f.item) for f in verification.findings if f.severity in ("fail", "warn")
    ]
    return verification, [*found, *((flaw.what, None, None) for flaw in again)]


def kind(fault: Fault) -> str:
    """The fault's stage in words, for the table."""
    return {
        "vectors": "vector",
        "value": "one value",
        "items": "items",
        "answer": "answer",
        "bytes": "bytes",
        "http": "HTTP",
        "texts": "text",
    }[fault.stage]

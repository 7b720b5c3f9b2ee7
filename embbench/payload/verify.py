"""Verification of a trial: every kept body, after its clock has stopped.

In: the `KeptBodies` of a trial and the `Expectation` of its cell. Out: a `Verification`, with one
finding a kind of fault: where it was first seen, how often, and when. Bodies are read in
processes of their own (`verify_pool`) or in this one.

Memory: each process decodes one body at a time, in less than four times its size (measured: 3.3
for float answers, 2.8 for base64). The bodies themselves lie in the load
processes' arena, whose size is the budget of `keep_mask`. Of a verified answer there stay 8 bytes
a vector, and sketches of about `SKETCHED_VECTORS_MAX` vectors a trial.
"""

import math
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Final

import numpy as np
from numpy.typing import NDArray

from embbench.findings import Finding
from embbench.load.kept_bodies import KeptBodies, KeptBody
from embbench.payload.answer import Checked, check_body, decode_body
from embbench.payload.checks import Expectation
from embbench.payload.identity import SKETCH_WIDTH, Known, Sketches, by_request, sketch_every
from embbench.payload.onset import Dated, add_repeats
from embbench.payload.wire import Decoded
from embbench.results.samples import MEASURED, Samples

_TASK_BYTES: Final = 32 << 20
_TASKS_OUT: Final = 64


@dataclass(frozen=True, slots=True)
class Verification:
    """The outcome for one trial. ``checked`` holds (phase, seq) of every body that was read.

    ``verified`` and ``failed`` count measured answers: all that were read, and those with a wrong
    payload. ``refused`` counts those whose status was an error; they are not among them.
    """

    findings: tuple[Finding, ...]
    checked: NDArray[np.int64]  # [verified, 2]
    verified: int
    failed: int
    refused: int
    body_bytes: int
    gzip: int
    norm_min: float | None
    norm_max: float | None
    prompt_tokens: int | None  # of all verified answers together; None if any did not tell
    sketches: Sketches


def keep_mask(
    requests: int, response_bytes: int, budget_bytes: int, seed: int
) -> NDArray[np.bool_]:
    """Which requests' bodies to keep when each takes ``response_bytes``: all, if they fit.

    Otherwise a seeded share, one of each of equally long stretches of the trial, so that a fault
    that starts in the middle is still dated. The first and the last are always kept.
    """
    fits = budget_bytes // max(1, response_bytes)
    if fits >= requests:
        return np.ones(requests, np.bool_)
    mask = np.zeros(requests, np.bool_)
    if fits > 0 and requests:
        edges = np.linspace(0, requests, int(fits) + 1).astype(np.int64)
        picks = np.random.default_rng(seed).integers(edges[:-1], edges[1:])
        picks[0] = 0
        picks[-1] = requests - 1
        mask[picks] = True
    return mask


def verify_pool(processes: int) -> ProcessPoolExecutor:
    """Processes for `verify_trial`; started when first used, gone with ``shutdown``."""
    return ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=_leave_with, initargs=(os.getpid(),)
    )


def _leave_with(parent: int) -> None:
    """In a verifying process: Ctrl-C is for the parent, and without a parent there is no work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def verify_trial(
    kept: KeptBodies | Iterable[KeptBody],
    expect: Expectation,
    *,
    target: str,
    cell: str,
    trial: int,
    requests: int,
    samples: Samples | None = None,
    known: Sequence[Known] = (),
    pool: ProcessPoolExecutor | None = None,
) -> Verification:
    """Check every kept body. ``requests`` is the number of measured requests in the trial.

    ``samples`` dates the findings and tells how many answers there were. With a ``pool``, bodies
    are read in its processes (`KeptBodies` only). Blocks: call it in a thread.
    """
    expect, every = _known_dimension(kept, expect), sketch_every(requests, expect.batch)
    of_requests = by_request(known)
    crash: Finding | None = None
    checked: list[Checked] = []
    try:
        if pool is not None and isinstance(kept, KeptBodies):
            for part in _in_pool(pool, kept, expect, of_requests, every):
                checked += part
        else:
            checked += check_bodies(kept, expect, of_requests, every)
    except BrokenExecutor:
        what = f"a verifying process died after {len(checked)} answers"
        crash = Finding("verify", "fail", what, "is there enough memory?", target, cell, trial)
    add_repeats(checked)
    dated = Dated(target, cell, trial, samples, len(checked))
    unkept = kept.unkept if isinstance(kept, KeptBodies) else 0
    findings = dated.findings(checked)
    findings += [crash] if crash else dated.share(checked, unkept)
    return _summary(checked, findings)


def _known_dimension(kept: Iterable[KeptBody], expect: Expectation) -> Expectation:
    """The dimension of the first readable answer, where the gate did not tell."""
    if expect.dimension is not None:
        return expect
    for body in kept:
        answer = decode_body(body, expect)
        if isinstance(answer, Decoded):
            return replace(expect, dimension=answer.matrix.shape[1])
    return expect


def _in_pool(
    pool: ProcessPoolExecutor,
    kept: KeptBodies,
    expect: Expectation,
    known: Mapping[int, Sequence[Known]],
    every: int,
) -> Iterator[list[Checked]]:
    """Results in order; a bounded number of tasks is out at a time."""
    out: deque[Future[list[Checked]]] = deque()
    for part in _tasks(kept):
        mine = {seq: known[seq] for seq in known.keys() & set(part.index["seq"].tolist())}
        out.append(pool.submit(check_bodies, part, expect, mine, every))
        if len(out) >= _TASKS_OUT:
            yield out.popleft().result()
    while out:
        yield out.popleft().result()


def _tasks(kept: KeptBodies) -> Iterator[KeptBodies]:
    """Stretches of the trial, and not the whole index with each."""
    ends = np.cumsum(kept.index["length"])
    start = 0
    while start < len(ends):
        begun = ends[start - 1] if start else 0
        stop = 1 + int(np.searchsorted(ends, begun + _TASK_BYTES))
        yield kept.part(start, stop)
        start = stop


def check_bodies(
    kept: Iterable[KeptBody],
    expect: Expectation,
    known: Mapping[int, Sequence[Known]],
    every: int,
) -> list[Checked]:
    """The task of a verifying process: some bodies of a trial."""
    return [check_body(body, expect, known, every) for body in kept]


def _summary(checked: Sequence[Checked], findings: Sequence[Finding]) -> Verification:
    measured = [each for each in checked if each.phase == MEASURED]
    refused = [each for each in measured if each.refused]
    norms = np.asarray([each.norms for each in measured if not math.isnan(each.norms[0])])
    tokens = [each.prompt_tokens for each in measured if len(each.keys)]
    sketched = [(each.seq, each.sketch) for each in measured if each.sketch is not None]
    shapes = {values.shape for _, values in sketched}
    values = (
        np.stack([values for _, values in sketched])
        if len(shapes) == 1
        else np.zeros((0, 0, SKETCH_WIDTH), np.float32)
    )
    seqs = [seq for seq, _ in sketched] if len(shapes) == 1 else []
    return Verification(
        findings=tuple(findings),
        checked=np.asarray([(c.phase, c.seq) for c in checked], np.int64).reshape(-1, 2),
        verified=len(measured) - len(refused),
        failed=sum(not each.ok for each in measured),
        refused=len(refused),
        body_bytes=sum(each.body_bytes for each in measured),
        gzip=sum(each.gzip for each in measured),
        norm_min=float(norms[:, 0].min()) if len(norms) else None,
        norm_max=float(norms[:, 1].max()) if len(norms) else None,
        prompt_tokens=sum(t or 0 for t in tokens) if tokens and None not in tokens else None,
        sketches=Sketches(np.asarray(seqs, np.int64), values),
    )

"""Verification of a trial: every kept body, after its clock has stopped.

In: the `KeptBodies` of a trial and the `Expectation` of its cell. Out: a `Verification`, with one
finding a kind of fault: where it was first seen, how often, and when. Bodies are read in
processes of their own (`verify_pool`) or in this one.

Memory: a body is decoded alone, at about 25 times its size for a float answer (simdjson keeps a
tape of it) and little more than once for base64, in each process; bodies themselves lie in the
load processes' arena, whose size is the budget of `keep_mask`. Per vector, 8 bytes and at most
`SKETCHED_VECTORS_MAX` sketches stay.
"""

import os
import signal
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Final

import numpy as np
from numpy.typing import NDArray

from embbench.bodies import KeptBodies, KeptBody
from embbench.checks import Expectation, Flaw, check_content, check_response, norms_of, row_keys
from embbench.content import SKETCH_WIDTH, Known, Sketches, sketch, sketch_every
from embbench.findings import Finding, Severity
from embbench.samples import MEASURED, Samples
from embbench.wire import Decoded, Matrix, WireError, decode

_TASK_BYTES: Final = 32 << 20
_TASKS_OUT: Final = 64
_OK: Final = 200


@dataclass(frozen=True, slots=True)
class Checked:
    """What is kept of one verified answer."""

    phase: int
    seq: int
    flaws: tuple[Flaw, ...]
    keys: NDArray[np.uint64]
    sketch: NDArray[np.float32] | None
    norms: tuple[float, float]
    prompt_tokens: int | None
    body_bytes: int
    gzip: bool

    @property
    def ok(self) -> bool:
        return all(flaw.severity != "fail" for flaw in self.flaws)


@dataclass(frozen=True, slots=True)
class Verification:
    """The outcome for one trial. ``checked`` holds (phase, seq) of every body that was read.

    ``failed`` counts answers with a wrong payload, ``refused`` those whose status was not 200.
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
    crash: Finding | None = None
    checked: list[Checked] = []
    try:
        if pool is not None and isinstance(kept, KeptBodies):
            for part in _in_pool(pool, kept, expect, known, every):
                checked += part
        else:
            checked += [_check(body, expect, known, every) for body in kept]
    except BrokenExecutor:
        what = f"a verifying process died after {len(checked)} answers"
        crash = Finding("verify", "fail", what, "is there enough memory?", target, cell, trial)
    _add_repeats(checked)
    dated = _Dated(target, cell, trial, samples, len(checked))
    findings = [*([crash] if crash else []), *dated.findings(checked)]
    findings += dated.share(kept, checked)
    return _summary(checked, findings)


def _known_dimension(kept: Iterable[KeptBody], expect: Expectation) -> Expectation:
    """The dimension of the first readable answer, where the gate did not tell."""
    if expect.dimension is not None:
        return expect
    for body in kept:
        answer = _decode(body, expect)
        if isinstance(answer, Decoded):
            return replace(expect, dimension=answer.matrix.shape[1])
    return expect


def _in_pool(
    pool: ProcessPoolExecutor,
    kept: KeptBodies,
    expect: Expectation,
    known: Sequence[Known],
    every: int,
) -> Iterator[list[Checked]]:
    """Results in order; a bounded number of tasks is out at a time."""
    out: deque[Future[list[Checked]]] = deque()
    for places in _tasks(kept):
        out.append(pool.submit(check_bodies, kept, places, expect, known, every))
        if len(out) >= _TASKS_OUT:
            yield out.popleft().result()
    while out:
        yield out.popleft().result()


def _tasks(kept: KeptBodies) -> Iterator[list[tuple[int, int]]]:
    places: list[tuple[int, int]] = []
    size = 0
    for row in kept.index:
        places.append((int(row["phase"]), int(row["seq"])))
        size += int(row["length"])
        if size >= _TASK_BYTES:
            yield places
            places, size = [], 0
    if places:
        yield places


def check_bodies(
    kept: KeptBodies,
    places: Sequence[tuple[int, int]],
    expect: Expectation,
    known: Sequence[Known],
    every: int,
) -> list[Checked]:
    """The task of a verifying process: some bodies of a trial."""
    return [_check(kept[place], expect, known, every) for place in places]


def _decode(body: KeptBody, expect: Expectation) -> Decoded | WireError:
    try:
        return decode(
            body.payload,
            count=expect.batch,
            dimension=expect.dimension,
            status=body.status,
            content_type=body.content_type,
            gzip=body.gzip,
        )
    except WireError as error:
        return error


def _check(body: KeptBody, expect: Expectation, known: Sequence[Known], every: int) -> Checked:
    answer = _decode(body, expect)
    flaws = check_response(answer, expect)
    keys, short, norms, tokens = np.zeros(0, np.uint64), None, (np.nan, np.nan), None
    if isinstance(answer, Decoded):
        matrix = answer.matrix
        of_rows = norms_of(matrix)
        norms, tokens = (float(of_rows.min()), float(of_rows.max())), answer.prompt_tokens
        if all(flaw.check not in ("zero", "distinct") for flaw in flaws):
            keys = row_keys(matrix)
            flaws += _check_known(body, matrix, expect, known)
        if body.phase == MEASURED and body.seq % every == 0:
            short = sketch(matrix)
    return Checked(
        body.phase,
        body.seq,
        tuple(flaws),
        keys,
        short,
        norms,
        tokens,
        len(body.payload),
        body.gzip,
    )


def _check_known(
    body: KeptBody, matrix: Matrix, expect: Expectation, known: Sequence[Known]
) -> list[Flaw]:
    """The known texts of this request, if there are any."""
    flaws: list[Flaw] = []
    for each in known if body.phase == MEASURED else ():
        texts = each.of_request(body.seq)
        if texts is not None:
            flaws += check_content(
                matrix, texts.item, texts.vectors, expect.cosine_min, texts.source
            )
    return flaws


def _add_repeats(checked: list[Checked]) -> None:
    """Vectors that came in two answers: no text is sent twice, so one of them is wrong."""
    keys = np.concatenate([each.keys for each in checked] or [np.zeros(0, np.uint64)])
    values, first, counts = np.unique(keys, return_index=True, return_counts=True)
    if len(values) == len(keys):
        return
    sizes = np.asarray([len(each.keys) for each in checked])
    starts = np.cumsum(sizes) - sizes
    original = dict(zip(values[counts > 1].tolist(), first[counts > 1].tolist(), strict=True))
    for at, each in enumerate(checked):
        repeated = np.flatnonzero(np.isin(each.keys, values[counts > 1]))
        later = [i for i in repeated if original[int(each.keys[i])] != starts[at] + i]
        if not later:
            continue
        item = int(later[0])
        source = original[int(each.keys[item])]
        where = int(np.searchsorted(starts, source, "right")) - 1
        other = checked[where]
        name = "request" if other.phase == MEASURED else "warm-up request"
        what = (
            f"same vector for different texts: input {item} has the vector of input "
            f"{source - starts[where]} of {name} {other.seq}"
        )
        flaw = Flaw("distinct", "fail", what, item=item)
        checked[at] = replace(each, flaws=(*each.flaws, flaw))


@dataclass(frozen=True, slots=True)
class _Dated:
    """Turns flaws into findings of one trial, one a kind, with where, how often and when."""

    target: str
    cell: str
    trial: int
    samples: Samples | None
    total: int

    def findings(self, checked: Sequence[Checked]) -> list[Finding]:
        kinds: dict[tuple[str, str], list[tuple[Checked, Flaw]]] = defaultdict(list)
        for each in checked:
            once: set[tuple[str, str]] = set()
            for flaw in each.flaws:
                kind = (flaw.check, flaw.severity)
                if kind not in once:
                    kinds[kind].append((each, flaw))
                    once.add(kind)
        return [self._finding(found) for found in kinds.values()]

    def _finding(self, found: list[tuple[Checked, Flaw]]) -> Finding:
        found.sort(key=lambda pair: (-pair[0].phase, pair[0].seq))
        first, flaw = found[0]
        time_ns, into_s = self._time(first)
        phase = "request" if first.phase == MEASURED else "warm-up request"
        what = f"{flaw.what}; first in {phase} {first.seq}"
        what += f", {into_s:.2f} s into the trial" if into_s is not None else ""
        if self.total > 1:
            what += f"; {len(found)} of {self.total} answers"
            what += f", the last in request {found[-1][0].seq}" if len(found) > 1 else ""
        severity = flaw.severity
        if severity == "fail" and first.phase != MEASURED:
            severity = "warn"  # nothing measured is wrong
        return Finding(
            check=flaw.check,
            severity=severity,
            what=what,
            do=flaw.do,
            target=self.target,
            cell=self.cell,
            trial=self.trial,
            request=first.seq,
            item=flaw.item,
            time_ns=time_ns,
        )

    def _time(self, where: Checked) -> tuple[int | None, float | None]:
        if self.samples is None:
            return None, None
        rows = self.samples.rows
        measured = rows["phase"] == MEASURED
        mine = rows[(rows["phase"] == where.phase) & (rows["seq"] == where.seq)]
        if not len(mine) or not measured.any():
            return None, None
        end_ns = int(mine["end_ns"][0])
        return end_ns, (end_ns - int(rows["intended_start_ns"][measured].min())) / 1e9

    def share(
        self, kept: KeptBodies | Iterable[KeptBody], checked: Sequence[Checked]
    ) -> list[Finding]:
        """Say so where not all answers could be read."""
        if self.samples is None:
            return []
        answers = int(((self.samples.rows["status"] == _OK) & self._measured()).sum())
        read = sum(each.phase == MEASURED for each in checked)
        if read >= answers:
            return []
        what = f"{read} of {answers} answers verified ({read / answers:.0%}), a seeded share"
        if isinstance(kept, KeptBodies) and kept.unkept:
            what += f"; {kept.unkept} more were to be kept and did not fit"
        do = "raise checks.budget_mib to verify all of them"
        severity: Severity = "info" if read else "fail"
        return [Finding("verified", severity, what, do, self.target, self.cell, self.trial)]

    def _measured(self) -> NDArray[np.bool_]:
        assert self.samples is not None
        mask: NDArray[np.bool_] = self.samples.rows["phase"] == MEASURED
        return mask


def _summary(checked: Sequence[Checked], findings: Sequence[Finding]) -> Verification:
    measured = [each for each in checked if each.phase == MEASURED]
    refused = [each for each in measured if any(f.check == "refused" for f in each.flaws)]
    norms = np.asarray([each.norms for each in measured if not np.isnan(each.norms[0])])
    tokens = [each.prompt_tokens for each in measured]
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
        verified=len(measured),
        failed=sum(not each.ok for each in measured),
        refused=len(refused),
        body_bytes=sum(each.body_bytes for each in measured),
        gzip=sum(each.gzip for each in measured),
        norm_min=float(norms[:, 0].min()) if len(norms) else None,
        norm_max=float(norms[:, 1].max()) if len(norms) else None,
        prompt_tokens=sum(t or 0 for t in tokens) if tokens and None not in tokens else None,
        sketches=Sketches(np.asarray(seqs, np.int64), values),
    )

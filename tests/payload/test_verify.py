"""Verification of whole trials: dated findings, repeats, shares, pools, and pairs of targets."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import orjson
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_faults import Context, Scope, render, vectors_of

from embbench.load.kept_bodies import KEPT, KeptBodies, KeptBody, create_arena
from embbench.payload.checks import Expectation
from embbench.payload.identity import Known, compare_sketches, compare_targets, sketch_every
from embbench.payload.verify import Verification, _tasks, keep_mask, verify_pool, verify_trial
from embbench.results.samples import MEASURED, RECORD, WARMUP, Samples

EXPECT = Expectation(15, 80, "float", 1024, "m")


def texts_of(seq: int, batch: int = 15) -> list[tuple[int, ...]]:
    return [(seq, i, 1) for i in range(batch)]


def body_of(
    seq: int, fault: str | None = None, item: int | None = None, batch: int = 15
) -> tuple[int, bytes, dict[str, str]]:
    texts = texts_of(seq, batch)
    context = Context(
        texts,
        seq,
        "float",
        "m",
        80 * batch,
        "float32",
        Scope(fault, item),
        np.zeros((0, 0), np.float32),
    )
    return render(vectors_of(texts, 1024), context)


def kept_of(faults: dict[int, str], count: int = 12, item: int | None = None) -> list[KeptBody]:
    """Bodies of measured requests, some of them faulty."""
    kept = []
    for seq in range(count):
        status, body, headers = body_of(seq, faults.get(seq), item)
        gzip = headers.get("Content-Encoding") == "gzip"
        kept.append(
            KeptBody(seq, MEASURED, status, memoryview(body), gzip, headers["Content-Type"])
        )
    return kept


def samples_of(count: int, status: int = 200) -> Samples:
    rows = np.zeros(count, RECORD)
    rows["seq"], rows["status"], rows["error"] = np.arange(count), status, -1
    rows["phase"] = MEASURED
    rows["intended_start_ns"] = rows["start_ns"] = 10**9 + np.arange(count) * 10**8
    rows["end_ns"] = rows["start_ns"] + 5 * 10**7
    return Samples(rows)


def verify(kept: Any, count: int = 12, **more: Any) -> Verification:
    return verify_trial(
        kept, more.pop("expect", EXPECT), target="t", cell="c", trial=2, requests=count, **more
    )


def test_a_good_trial_has_no_findings_and_its_facts() -> None:
    result = verify(kept_of({}), samples=samples_of(12))
    assert result.findings == ()
    assert (result.verified, result.failed, result.refused) == (12, 0, 0)
    assert result.prompt_tokens == 12 * 15 * 80
    assert result.norm_min == pytest.approx(1, abs=1e-6)
    assert result.norm_max == pytest.approx(1, abs=1e-6)
    assert result.body_bytes == sum(len(body_of(seq)[1]) for seq in range(12))
    assert result.checked.tolist() == [[MEASURED, seq] for seq in range(12)]
    assert result.sketches.values.shape == (12, 15, 16)


def test_a_fault_in_the_middle_is_dated() -> None:
    faults = dict.fromkeys(range(7, 12), "null")
    result = verify(kept_of(faults, item=3), samples=samples_of(12))
    (finding,) = result.findings
    assert finding.what == (
        "null in vector 3 (component 512); first in request 7, 0.75 s into the trial; "
        "5 of 12 answers, the last in request 11"
    )
    assert (finding.severity, finding.request, finding.item) == ("fail", 7, 3)
    assert (finding.target, finding.cell, finding.trial) == ("t", "c", 2)
    assert finding.time_ns == 10**9 + 7 * 10**8 + 5 * 10**7
    assert result.failed == 5


def test_every_kind_of_fault_is_told_once() -> None:
    faults = {2: "null", 3: "one-item", 5: "null", 8: "zero", 9: "one-item"}
    findings = verify(kept_of(faults)).findings
    assert [(f.check, f.request) for f in findings] == [
        ("not-a-number", 2),
        ("count", 3),
        ("zero", 8),
    ]
    assert "2 of 12 answers, the last in request 9" in findings[1].what


def test_a_vector_that_came_before_is_found_across_requests() -> None:
    kept = kept_of({})
    kept[9] = KeptBody(9, MEASURED, 200, kept[4].payload, False, "application/json")
    (finding,) = verify(kept).findings
    assert finding.what.startswith(
        "same vector for different texts: input 0 has the vector of input 0 of request 4; "
        "first in request 9"
    )


def test_a_fault_of_the_warm_up_is_a_warning() -> None:
    status, body, headers = body_of(100, "zero")
    warm = KeptBody(0, WARMUP, status, memoryview(body), False, headers["Content-Type"])
    result = verify([warm, *kept_of({})])
    (finding,) = result.findings
    assert (finding.severity, result.failed, result.verified) == ("warn", 0, 12)
    assert "first in warm-up request 0" in finding.what


def test_refusals_are_told_once_in_the_words_of_the_server() -> None:
    refusal = memoryview(b'{"error": {"message": "input must be a string"}}')
    kept = [KeptBody(s, MEASURED, 400, refusal, False, "application/json") for s in range(3)]
    result = verify(kept, 3)
    (finding,) = result.findings
    assert finding.what.startswith("status 400: input must be a string; first in request 0; 3 of 3")
    assert (finding.severity, result.refused, result.failed) == ("warn", 3, 0)


def test_the_dimension_of_the_first_answer_holds_for_all() -> None:
    unknown = Expectation(15, 80, "float")
    (finding,) = verify(kept_of({6: "half-dimension"}), expect=unknown).findings
    assert finding.what.startswith("vector 0 has dimension 512, expected 1024; first in request 6")


def test_known_texts_are_found_wherever_they_went() -> None:
    places = [(seq, item) for seq in range(12) for item in (4, 11)]
    vectors = np.concatenate([vectors_of([texts_of(s)[i]], 1024) for s, i in places])
    seqs, items = np.asarray(places).T
    known = (Known(seqs, items, vectors),)
    assert verify(kept_of({}), known=known).findings == ()
    (finding,) = verify(kept_of({8: "swapped"}), known=known).findings
    assert finding.what.startswith("vectors permuted: input 4 came back as 9")
    assert (finding.request, finding.item) == (8, 4)


def test_the_share_that_was_read_is_told() -> None:
    kept = kept_of({})[::3]
    (finding,) = verify(kept, samples=samples_of(12)).findings
    assert finding.what == "4 of 12 answers verified (33%), a seeded share"
    assert finding.severity == "info"
    (nothing,) = verify([], samples=samples_of(12)).findings
    assert nothing.severity == "fail"
    assert verify([], samples=samples_of(12, status=503)).findings == ()


# --- bodies in shared memory, read in processes


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with verify_pool(2) as executor:
        yield executor


def arena_of(bodies: Sequence[KeptBody]) -> KeptBodies:
    fd, path = create_arena("test", sum(len(body.payload) for body in bodies))
    index = np.zeros(len(bodies), KEPT)
    offset = 0
    for row, body in zip(index, bodies, strict=True):
        os.pwrite(fd, body.payload, offset)
        row["seq"], row["phase"], row["status"] = body.seq, body.phase, body.status
        row["offset"], row["length"] = offset, len(body.payload)
        offset += len(body.payload)
    return KeptBodies([path], index, ["application/json"], owned=[fd])


def test_a_pool_finds_what_one_process_finds(pool: ProcessPoolExecutor) -> None:
    bodies = kept_of({3: "norms-vary", 9: "double-index"})
    with arena_of(bodies) as kept:
        alone, together = verify(kept), verify(kept, pool=pool)
    assert together.findings == alone.findings
    assert len(alone.findings) == 2
    assert (together.checked == alone.checked).all()
    assert (together.sketches.values == alone.sketches.values).all()


def test_a_trial_is_read_in_stretches_that_meet(
    pool: ProcessPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In tasks of one body or a few, each body is read once, and known texts go with theirs."""
    places = [(seq, 4) for seq in range(12)]
    vectors = np.concatenate([vectors_of([texts_of(s)[i]], 1024) for s, i in places])
    seqs, items = np.asarray(places).T
    known = (Known(seqs, items, vectors),)
    with arena_of(kept_of({8: "swapped"})) as kept:
        alone = verify(kept, known=known)
        for size in (1, 400_000, 1 << 40):
            monkeypatch.setattr("embbench.payload.verify._TASK_BYTES", size)
            together = verify(kept, known=known, pool=pool)
            assert together.checked.tolist() == alone.checked.tolist()
            assert together.findings == alone.findings
        assert [len(part) for part in _tasks(kept.part(0, 0))] == []
    assert len(alone.findings) == 1
    assert alone.checked.tolist() == [[MEASURED, seq] for seq in range(12)]


def test_a_dead_verifying_process_is_a_finding_and_no_crash() -> None:
    with arena_of(kept_of({})) as kept, verify_pool(1) as doomed:
        doomed.submit(os.getpid).result()
        for process in psutil.Process().children(recursive=True):
            if process.pid in doomed._processes:
                process.kill()
        result = verify(kept, pool=doomed, samples=samples_of(12))
    (finding,) = result.findings
    assert (finding.check, finding.severity) == ("verify", "fail")


# --- budget


@given(st.integers(0, 3000), st.integers(1, 10**7), st.integers(0, 10**9), st.integers(0, 99))
def test_what_is_kept_fits_and_is_spread(count: int, size: int, budget: int, seed: int) -> None:
    mask = keep_mask(count, size, budget, seed)
    assert mask.sum() * size <= budget or not count
    assert mask.sum() == min(count, budget // size)
    assert (mask == keep_mask(count, size, budget, seed)).all()
    kept = np.flatnonzero(mask)
    if len(kept) >= 2:
        assert kept[0] == 0
        assert kept[-1] == count - 1
        assert np.diff(kept).max() <= 2 * -(-count // len(kept))


def test_sketches_of_a_long_trial_are_bounded() -> None:
    assert sketch_every(20, 15) == 1
    for requests, batch in ((10**5, 1024), (10**6, 1), (65, 1024)):
        assert requests // sketch_every(requests, batch) * batch <= 1 << 16


# --- between targets


def sketches(faults: dict[int, str]) -> Verification:
    return verify(kept_of(faults))


def test_a_permutation_on_one_target_of_two_is_named() -> None:
    good, bad = sketches({}), sketches({8: "swapped"})
    same = compare_sketches(
        "a", good.sketches, "b", sketches({}).sketches, cosine_min=0.999, cell="c", trial=0
    )
    assert same == []
    (finding,) = compare_sketches(
        "a", good.sketches, "b", bad.sketches, cosine_min=0.999, cell="c", trial=0
    )
    assert finding.what == (
        "vectors permuted between a and b: input 4 came back as 9; 2 of 180 vectors, the first "
        "in request 8"
    )
    assert (finding.request, finding.item, finding.target) == (8, 4, "b")


def test_rounding_to_bfloat16_is_the_same_work_and_noise_is_not() -> None:
    good = sketches({}).sketches
    rounded = sketches(dict.fromkeys(range(12), "bf16-rounded")).sketches
    noisy = sketches({5: "noisy"}).sketches
    arguments = {"cosine_min": 0.999, "cell": "c", "trial": 0}
    assert compare_sketches("a", good, "b", rounded, **arguments) == []  # type: ignore[arg-type]
    (finding,) = compare_sketches("a", good, "b", noisy, **arguments)  # type: ignore[arg-type]
    assert "b gives input 0 another vector than a: cosine about 0.9" in finding.what


def test_pairs_of_targets_are_compared_on_the_same_texts() -> None:
    vectors = vectors_of(texts_of(0, 8), 1024)
    tilted = vectors.copy()
    tilted[3] = 0.8 * vectors[3] + 0.6 * vectors[4]
    pairs = compare_targets(
        {"bare": vectors, "same": vectors, "tilted": tilted, "long": vectors * 1.5},
        {"bare": 640, "same": 640, "tilted": 648, "long": None},
        cosine_min=0.999,
        norm_tolerance=1e-3,
    )
    by_name = {(pair.a, pair.b): pair for pair in pairs}
    assert len(pairs) == 6
    same = by_name["bare", "same"]
    assert same.same_work
    assert same.finding() is None
    assert same.cosine_min == pytest.approx(1)
    assert same.norm_difference_max == 0
    other = by_name["bare", "tilted"]
    true = float(vectors[3] @ tilted[3] / np.linalg.norm(tilted[3]))
    assert other.cosine_min == pytest.approx(true, abs=1e-5)
    assert other.usage_difference == 8
    assert other.what.startswith("not the same work: tilted against bare: cosine 0.")
    assert "+8 tokens on 8 texts" in other.what
    assert "norms differ by 0.5" in by_name["bare", "long"].what
    assert by_name["bare", "long"].usage_difference is None
    (shape,) = compare_targets(
        {"a": vectors, "b": vectors[:, :512]}, {}, cosine_min=0.9, norm_tolerance=1
    )
    assert shape.what == "not the same work: b returns dimension 512, a 1024"
    assert orjson.dumps(shape.to_json())

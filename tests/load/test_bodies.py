"""Bodies at rest: what goes in comes out, whole files only, and memory without a name."""

import multiprocessing
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embbench.errors import RunError
from embbench.load.arena import Arena
from embbench.load.kept_bodies import KEPT, KeptBodies, create_arena
from embbench.load.request_bodies import BodyFile, BodyFileWriter
from embbench.results.samples import MEASURED, WARMUP


@given(st.lists(st.binary(max_size=200), max_size=30))
def test_bodies_come_back_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("bodies") / "some.bodies"
    with BodyFileWriter(path) as writer:
        assert [writer.append(body) for body in bodies] == list(range(len(bodies)))
    with BodyFile(path) as file:
        assert len(file) == len(bodies)
        for index in reversed(range(len(bodies))):
            assert file[index] == bodies[index]
        for step in (1, 2, 3):
            assert list(file.read(range(0, len(bodies), step))) == bodies[::step]
        for index in (-1, len(bodies)):
            with pytest.raises(IndexError):
                file[index]


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "some.bodies"
    writer = BodyFileWriter(path)
    writer.append(b"one")
    assert not path.exists()
    with pytest.raises(RunError, match="cannot read request bodies"):
        BodyFile(path)
    writer.close()
    writer.close()
    assert path.exists()
    whole = path.read_bytes()
    for cut in (b"", whole[:-1], whole[:10], whole[1:], b"x" * 100):
        path.write_bytes(cut)
        if cut == whole[1:]:  # the end is whole: sizes no longer fit
            continue
        with pytest.raises(RunError, match="not a complete file"):
            BodyFile(path)


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError), BodyFileWriter(tmp_path / "some.bodies") as writer:
        writer.append("one")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def kept_bodies() -> KeptBodies:
    """Three bodies in two arenas: measured 0 and 5, and warm-up 5."""
    arenas = [create_arena(f"test-{n}", 4096) for n in range(2)]
    os.pwrite(arenas[0][0], b"..five..", 0)
    os.pwrite(arenas[1][0], b"zero WARM", 100)
    index = np.array(
        [
            (5, 2, 4, 0, 200, 1, MEASURED, 1),
            (5, 105, 4, 1, 413, -1, WARMUP, 0),
            (0, 100, 4, 1, 200, 0, MEASURED, 0),
        ],
        KEPT,
    )
    kinds = ("application/json", "text/html")
    return KeptBodies([path for _, path in arenas], index, kinds, 3, [fd for fd, _ in arenas])


def test_kept_bodies_by_place_and_in_order() -> None:
    with kept_bodies() as kept:
        assert (len(kept), kept.unkept, kept.bytes) == (3, 3, 12)
        told = [(b.phase, b.seq, bytes(b.payload), b.status, b.gzip, b.content_type) for b in kept]
        assert told == [
            (WARMUP, 5, b"WARM", 413, False, ""),
            (MEASURED, 0, b"zero", 200, False, "application/json"),
            (MEASURED, 5, b"five", 200, True, "text/html"),
        ]
        assert [body.seq for body in kept.measured] == [0, 5]
        assert bytes(kept[MEASURED, 5].payload) == b"five"
        assert (WARMUP, 5) in kept
        for missing in ((WARMUP, 0), (MEASURED, 1), (MEASURED, 6), (2, 0)):
            assert missing not in kept
            with pytest.raises(KeyError, match="was not kept"):
                kept[missing]


def _payloads(kept: KeptBodies) -> list[bytes]:
    return [bytes(body.payload) for body in kept]


def test_kept_bodies_in_another_process() -> None:
    with kept_bodies() as kept, multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_payloads, (kept,)) == [b"WARM", b"zero", b"five"]


def test_the_memory_goes_with_its_last_user() -> None:
    kept = kept_bodies()
    assert all("memfd:test" in str(Path(path).readlink()) for path in kept._arenas)
    kept.close()
    kept.close()
    assert not any(Path(path).exists() for path in kept._arenas)


def test_an_arena_hands_out_slots_until_it_is_full() -> None:
    fd, path = create_arena("test", 1_000_000)
    arena = Arena(path, 300_000 - 2000)
    *spans, full = [arena.take() for _ in range(4)]
    assert full == (-1, -1)
    assert all(begin >= 0 and end - begin >= 298_000 for begin, end in spans)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    begin, end = spans[2]
    arena.give_back(begin, end, 1000)
    again, again_end = arena.take(200_000)
    assert begin + 1000 <= again < begin + 1100
    assert again_end - again >= 298_000  # no less than the largest so far
    arena.view[again : again + 4] = b"here"
    assert os.pread(fd, 4, again) == b"here"
    arena.close()
    os.close(fd)


def test_an_arena_without_room() -> None:
    for path in (None, create_arena("test", 0)[1]):
        arena = Arena(path)
        assert arena.take() == (-1, -1)
        arena.prefault(10)


def test_prefault_takes_the_pages_and_leaves_the_bytes() -> None:
    fd, path = create_arena("test", 8 << 20)
    arena = Arena(path, 1 << 20)
    begin, _ = arena.take()
    arena.view[begin : begin + 5] = b"whole"
    arena.prefault(4)
    taken = os.fstat(fd).st_blocks * 512
    assert 4 << 20 <= taken <= 6 << 20  # in huge pages of 2 MiB, where allowed
    assert bytes(arena.view[begin : begin + 5]) == b"whole"
    arena.prefault(1000)  # no more than there is
    assert 6 << 20 <= os.fstat(fd).st_blocks * 512 <= 8 << 20
    os.close(fd)

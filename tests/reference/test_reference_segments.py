"""Shared-memory segments: forged handles are refused, and nothing is left in the folder."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embbench.reference.segments import (
    Handle,
    HandleError,
    SegmentStore,
    answer_probe,
    collect,
    live,
    offer_probe,
    prefix_of,
    remove_all,
    remove_stale,
)

ROWS = [np.arange(8, dtype=np.float32) + row for row in range(3)]


@pytest.fixture
def prefix() -> str:
    return prefix_of(os.getpid())


@pytest.fixture
def store(tmp_path: Path, prefix: str) -> SegmentStore:
    return SegmentStore(tmp_path, prefix)


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_segment_is_raw_floats_for_this_user_alone(store: SegmentStore, tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        handle = store.create(ROWS)
    finally:
        os.umask(old)
    path = tmp_path / handle.name
    assert (handle.count, handle.dim) == (3, 8)
    assert path.stat().st_mode == 0o100600
    assert path.read_bytes() == b"".join(row.astype("<f4").tobytes() for row in ROWS)


def test_collecting_reads_and_removes(store: SegmentStore, tmp_path: Path, prefix: str) -> None:
    vectors = collect(tmp_path, prefix, store.create(ROWS), 3)
    assert np.array_equal(vectors, np.stack(ROWS))
    assert names(tmp_path) == []


def test_a_second_collection_is_refused(store: SegmentStore, tmp_path: Path, prefix: str) -> None:
    handle = store.create(ROWS)
    collect(tmp_path, prefix, handle, 3)
    with pytest.raises(HandleError, match="cannot be opened"):
        collect(tmp_path, prefix, handle, 3)


FORGED: dict[str, Callable[[Handle], Handle]] = {
    "another prefix": lambda handle: replace(handle, name="embbench-1-1-1-" + "0" * 16),
    "a path upwards": lambda handle: replace(handle, name=f"../{handle.name}"),
    "a path below": lambda handle: replace(handle, name=f"{handle.name}/x"),
    "a path after the prefix": lambda handle: replace(handle, name=handle.name[:-16] + "../passwd"),
    "a trailing newline": lambda handle: replace(handle, name=handle.name + "\n"),
    "no name": lambda handle: replace(handle, name=""),
    "more vectors": lambda handle: replace(handle, count=4),
    "fewer vectors": lambda handle: replace(handle, count=2, dim=12),
    "a larger dimension": lambda handle: replace(handle, dim=9),
    "a smaller dimension": lambda handle: replace(handle, dim=7),
    "no dimension": lambda handle: replace(handle, dim=0),
    "a negative dimension": lambda handle: replace(handle, dim=-8),
    "a fraction": lambda handle: replace(handle, dim=8.0),  # type: ignore[arg-type]
    "true for one": lambda handle: replace(handle, count=True),
}


@pytest.mark.parametrize("case", FORGED)
def test_forged_handles_are_refused(
    store: SegmentStore, tmp_path: Path, prefix: str, case: str
) -> None:
    outside = tmp_path.parent / "outside"
    outside.write_bytes(bytes(96))
    handle = FORGED[case](store.create(ROWS))
    with pytest.raises(HandleError):
        collect(tmp_path, prefix, handle, 3)
    assert outside.exists()
    assert remove_all(tmp_path, prefix) in (0, 1)


def test_a_segment_of_another_process_is_refused_and_stays(
    store: SegmentStore, tmp_path: Path, prefix: str
) -> None:
    foreign = SegmentStore(tmp_path, prefix_of(os.getppid())).create(ROWS)
    with pytest.raises(HandleError, match="not a segment of the worker"):
        collect(tmp_path, prefix, foreign, 3)
    assert names(tmp_path) == [foreign.name]


def test_files_that_are_not_the_workers_segment_are_refused(
    store: SegmentStore, tmp_path: Path, prefix: str
) -> None:
    handle = store.create(ROWS)
    path = tmp_path / handle.name
    target = tmp_path / "target"
    target.write_bytes(path.read_bytes())
    target.chmod(0o600)

    path.chmod(0o640)
    with pytest.raises(HandleError, match="mode 640"):
        collect(tmp_path, prefix, handle, 3)
    path.symlink_to(target)
    with pytest.raises(HandleError, match="cannot be opened"):
        collect(tmp_path, prefix, handle, 3)
    path.unlink()
    path.hardlink_to(target)
    with pytest.raises(HandleError, match="2 links"):
        collect(tmp_path, prefix, handle, 3)
    os.mkfifo(path, 0o600)
    with pytest.raises(HandleError, match="plain file"):
        collect(tmp_path, prefix, handle, 3)
    assert target.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_segment_of_another_user_is_refused(
    store: SegmentStore, tmp_path: Path, prefix: str
) -> None:
    handle = store.create(ROWS)
    os.chown(tmp_path / handle.name, 12345, -1)
    with pytest.raises(HandleError, match="user 12345"):
        collect(tmp_path, prefix, handle, 3)


def test_rows_of_different_length_make_no_segment(store: SegmentStore, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="length"):
        store.create([ROWS[0], ROWS[1][:4]])
    assert names(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small folder")
def test_a_full_folder_leaves_nothing_behind(tmp_path: Path, prefix: str) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(OSError, match="No space"):
            SegmentStore(tmp_path, prefix).create([np.zeros(1 << 20, np.float32)])
        assert names(tmp_path) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_the_reaper_takes_old_segments_only(
    store: SegmentStore, tmp_path: Path, prefix: str
) -> None:
    old, collected = store.create(ROWS), store.create(ROWS)
    collect(tmp_path, prefix, collected, 3)
    time.sleep(0.2)
    young = store.create(ROWS)
    store.reap(0.15)
    assert store.reaped == 1
    assert names(tmp_path) == [young.name] != [old.name]


def test_removing_all_takes_one_process_only(store: SegmentStore, tmp_path: Path) -> None:
    store.create(ROWS)
    other = tmp_path / ("embbench-1-1-1-" + "0" * 16)
    other.touch()
    assert remove_all(tmp_path, store.prefix) == 1
    assert names(tmp_path) == [other.name]


def test_segments_of_the_dead_are_stale_and_no_others(store: SegmentStore, tmp_path: Path) -> None:
    kept = store.create(ROWS).name
    code = (
        "import sys, os, numpy as np; from pathlib import Path\n"
        "from embbench.reference.segments import SegmentStore, prefix_of\n"
        "store = SegmentStore(Path(sys.argv[1]), prefix_of(os.getpid()))\n"
        "print(store.create([np.zeros(4, np.float32)]).name)"
    )
    dead = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout.strip()
    _, namespace, pid, ticks, token = kept.split("-")
    pid_given_out_again = f"embbench-{namespace}-{pid}-{int(ticks) + 1}-{token}"
    elsewhere = f"embbench-{int(namespace) + 1}-{dead.split('-', 2)[2]}"
    for name in (pid_given_out_again, elsewhere, "embbench-notes.txt", "other"):
        (tmp_path / name).touch()
    assert dead in names(tmp_path)
    assert remove_stale(tmp_path) == 2
    assert sorted(names(tmp_path)) == sorted([kept, elsewhere, "embbench-notes.txt", "other"])
    assert live(tmp_path, store.prefix) == [tmp_path / kept]


def test_a_probe_is_answered_only_where_the_memory_is_shared(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    probe, secret = offer_probe(tmp_path)
    assert len(secret) == 64
    assert answer_probe(tmp_path, probe.name) == secret
    assert answer_probe(other, probe.name) is None
    (tmp_path / "secrets.txt").write_text("x")
    assert answer_probe(tmp_path, "secrets.txt") is None

"""Memory that does not grow with a trial: rows on disk, pieces, and what pyarrow would bring in."""

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embbench.analysis.summary import trial_summary
from embbench.errors import LoadError
from embbench.load.merge import RawFile, in_flight_max, merge_rows
from embbench.load.recorder import RAW
from embbench.load.request_bodies import BodyFile, BodyFileWriter
from embbench.results.arrow import texts_to_arrow, to_arrow, to_numpy
from embbench.results.ondisk import let_go, rows_on_disk
from embbench.results.pieces import sample_batches
from embbench.results.samples import MEASURED, RECORD, Samples, read_samples, write_samples

FEW, MANY = 50_000, 450_000

CONDUCT = """
import json, sys
from pathlib import Path
from embbench.load.job import ShardResult, TrialJob
from embbench.load.merge import merge_trial
from embbench.config.plan import OpenLoop
from embbench.results.samples import write_samples
from embbench.run.record import median_ns, tally

class Shard:
    def __init__(self, rows): self.rows = rows

folder, count = Path(sys.argv[1]), int(sys.argv[2])
job = TrialJob("", range(count), OpenLoop(rate_rps=1.0), folder)
result = ShardResult(("one", "two"), (), 0, (), 0.0, 0, 0)
merged = merge_trial(job, [Shard(folder / "shard-0.rows")], [result], [], 0, "buffered")
total = tally(merged.samples)
p50_ns = median_ns(merged.samples, lambda ok: ok.response_time_ns)
write_samples(folder / "trial.parquet", merged.samples, {})
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(json.dumps({
    "kib": int(status["VmHWM"].split()[0]),
    "pandas": "pandas" in sys.modules,
    "ok": total.ok,
    "errors": total.errors,
    "response_bytes": total.response_bytes,
    "p50_ns": p50_ns,
    "in_flight_max": merged.health.in_flight_max,
    "lag_max_ns": merged.health.send_lag_max_ns,
}))
"""
"""What the conductor does with a trial once its clock has stopped."""


def raw_trial(folder: Path, count: int) -> np.ndarray:
    """One shard's raw file, in the order of the answers; the rows in the order of the requests."""
    random = np.random.default_rng(count)
    raw = np.zeros(count, RAW)
    rows = raw["record"]
    rows["seq"] = np.arange(count)
    rows["intended_start_ns"] = np.cumsum(random.integers(1, 100, count))
    rows["start_ns"] = rows["intended_start_ns"] + random.integers(0, 50, count)
    rows["end_ns"] = rows["start_ns"] + random.integers(100, 1000, count)
    rows["response_bytes"] = random.integers(1, 9000, count)
    rows["error"] = np.where(random.random(count) < 0.01, random.integers(0, 2, count), -1)
    rows["phase"], raw["kept_at"], raw["content_type"] = MEASURED, -1, -1
    raw[np.argsort(rows["end_ns"], kind="stable")].tofile(folder / "shard-0.rows")
    (folder / "shard-0.errors").write_text("one\ntwo\n")
    return rows


def most_at_once(start_ns: np.ndarray, end_ns: np.ndarray) -> int:
    """Counted event by event; an end comes before a start of the same moment."""
    events = sorted([*((t, 1) for t in start_ns.tolist()), *((t, -1) for t in end_ns.tolist())])
    return int(np.cumsum([step for _, step in events]).max())


def conducted(folder: Path, count: int) -> float:
    """Peak memory in bytes of a conductor of so many requests, whose figures are all right."""
    folder.mkdir()
    rows = raw_trial(folder, count)
    done = subprocess.run(
        [sys.executable, "-c", CONDUCT, str(folder), str(count)],
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    ok = rows["error"] < 0
    codes, counts = np.unique(rows["error"][~ok], return_counts=True)
    named = {("one", "two")[code]: n for code, n in zip(codes, counts.tolist(), strict=True)}
    lag_ns = rows["start_ns"] - rows["intended_start_ns"]
    assert told == {
        "kib": told["kib"],
        "pandas": False,
        "ok": ok.sum(),
        "errors": named,
        "response_bytes": rows["response_bytes"][ok].sum(),
        "p50_ns": np.median((rows["end_ns"] - rows["intended_start_ns"])[ok]),
        "in_flight_max": most_at_once(rows["start_ns"], rows["end_ns"]),
        "lag_max_ns": lag_ns.max(),
    }
    written = read_samples(folder / "trial.parquet")
    assert written.error_names == ("one", "two")
    assert (written.rows == rows).all()
    assert sorted(path.name for path in folder.iterdir()) == ["trial.parquet"]
    return float(told["kib"] * 1024)


def test_a_conductor_hardly_grows_with_its_trial(tmp_path: Path) -> None:
    growth = conducted(tmp_path / "many", MANY) - conducted(tmp_path / "few", FEW)
    assert growth / (MANY - FEW) < 40  # 16 by design; rows take 70 each time they are held


def summarised(folder: Path, count: int) -> tuple[int, int]:
    """Peak memory in bytes while a report reads so many requests: our own, and Arrow's."""
    folder.mkdir()
    rows = raw_trial(folder, count)
    path = folder / "trial.parquet"
    write_samples(path, Samples(rows, ("one", "two")), {})
    before = arrow = pa.total_allocated_bytes()

    def pieces() -> Iterator[Samples]:
        nonlocal arrow
        for piece in sample_batches(path):
            arrow = max(arrow, pa.total_allocated_bytes())
            yield piece

    tracemalloc.start()
    try:
        summary = trial_summary(pieces(), time="response")
        own = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    ok = rows["error"] < 0
    expected_ns = np.median((rows["end_ns"] - rows["intended_start_ns"])[ok])
    assert summary.percentiles[0].value_ns == expected_ns
    return own, arrow - before


def test_a_report_keeps_two_times_a_request(tmp_path: Path) -> None:
    summarised(tmp_path / "first", FEW)  # what is imported on the way is not of interest
    few, many = summarised(tmp_path / "few", FEW), summarised(tmp_path / "many", MANY)
    assert 14 < (many[0] - few[0]) / (MANY - FEW) < 24
    assert (many[1] - few[1]) / (MANY - FEW) < 3  # rows are decoded a group at a time


def test_body_files_take_no_memory_of_their_own(tmp_path: Path) -> None:
    count = 100_000
    tracemalloc.start()
    try:
        with BodyFileWriter(tmp_path / "some.bodies") as writer:
            for number in range(count):
                writer.append(b"%d" % number)
        with BodyFile(tmp_path / "some.bodies") as bodies:
            assert len(bodies) == count
            assert all(bodies[n] == b"%d" % n for n in range(0, count, 3))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * count  # an offset takes 8 bytes


def test_rows_on_disk_outlive_their_folder_and_being_let_go(tmp_path: Path) -> None:
    rows = rows_on_disk(tmp_path, 100_000, RECORD)
    assert not rows["seq"].any()
    rows["seq"] = np.arange(100_000)
    for part in (rows, rows[500:], rows[::2]["seq"]):
        let_go(part)
    assert list(tmp_path.iterdir()) == []
    tmp_path.rmdir()
    assert (rows["seq"] == np.arange(100_000)).all()
    assert len(rows_on_disk(tmp_path, 0, RECORD)) == 0


def test_other_arrays_are_never_let_go(tmp_path: Path) -> None:
    np.zeros(5000).tofile(tmp_path / "file")
    copied = np.memmap(tmp_path / "file", np.float64, "c")  # what is changed is in memory only
    for array in (np.zeros(5000), copied, np.frombuffer(bytearray(40_000))):
        array[:] = 1.0
        let_go(array)
        assert (array == 1.0).all()


def test_no_room_for_the_rows_is_said(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"no room for \d+ samples"):
        merge_rows([], 0, 2**56, tmp_path)


def test_pieces_are_all_of_it_and_can_be_changed() -> None:
    whole = Samples(np.zeros(1000, RECORD), ("one",))
    whole.rows["seq"] = np.arange(1000)
    pieces = list(whole.pieces(300))
    assert [len(piece) for piece in pieces] == [300, 300, 300, 100]
    assert np.concatenate([piece.rows["seq"] for piece in pieces]).tolist() == list(range(1000))
    pieces[3].rows["flags"][5] = 4
    assert np.flatnonzero(whole.rows["flags"]).tolist() == [905]
    assert list(Samples(whole.rows[:0]).pieces()) == []


def test_shards_of_many_pieces_are_merged_by_seq(tmp_path: Path) -> None:
    rows = raw_trial(tmp_path, 60_000)
    raw = np.fromfile(tmp_path / "shard-0.rows", RAW)
    files = []
    for shard in range(3):
        own = raw[raw["record"]["seq"] % 3 == shard]
        own.tofile(tmp_path / f"part-{shard}")
        names = (("one", "two"), ("two", "one"), ("one", "two"))[shard]
        if shard == 1:  # this shard met the errors in the other order
            own["record"]["error"] = np.array([1, 0, -1], np.int16)[own["record"]["error"]]
            own.tofile(tmp_path / "part-1")
        files.append(RawFile(tmp_path / f"part-{shard}", names))
    merged, kept, _ = merge_rows(files, 0, 60_000, tmp_path)
    assert merged.error_names == ("one", "two")
    assert (merged.rows == rows).all()
    assert len(kept) == 0
    with pytest.raises(LoadError, match=f"{60_000 // 3} missing"):
        merge_rows(files[1:], 0, 60_000, tmp_path)


def test_most_in_flight_over_many_pieces() -> None:
    random = np.random.default_rng(1)
    start_ns = random.integers(0, 100_000, 50_000)
    end_ns = start_ns + random.integers(1, 50, 50_000)
    expected = most_at_once(start_ns, end_ns)
    assert in_flight_max(start_ns, end_ns) == expected > 10


@given(st.lists(st.one_of(st.none(), st.integers(-(2**15), 2**15 - 1))), st.integers(0, 9))
def test_numbers_go_to_arrow_and_back(values: list[int | None], skip: int) -> None:
    numbers = np.array([value or 0 for value in values], np.int16)
    valid = np.array([value is not None for value in values], np.bool_)
    ours = to_arrow(numbers, valid)
    ours.validate(full=True)
    assert ours.equals(pa.array(values, pa.int16()))
    back = to_numpy(ours[skip:], np.int16, null=-1).tolist()
    assert back == [-1 if value is None else value for value in values[skip:]]
    assert to_numpy(to_arrow(numbers)[skip:], np.int64).tolist() == numbers[skip:].tolist()


@given(st.lists(st.text()))
def test_texts_go_to_arrow(texts: list[str]) -> None:
    ours = texts_to_arrow(texts)
    ours.validate(full=True)
    assert ours.equals(pa.array(texts, pa.string()))

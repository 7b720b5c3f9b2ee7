"""Run directories: what is written is read back, nothing is overwritten, damage is named."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from embbench.errors import RunError
from embbench.findings import Finding
from embbench.results.rundir import RunWriter, TrialRecord, load_run
from embbench.results.samples import MEASURED, RECORD, WARMUP, Samples, read_samples

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
META = {"targets": ["bare"], "cells": ["b1"]}


def record(index: int = 0) -> TrialRecord:
    return TrialRecord(
        target="bare",
        cell="b1",
        index=index,
        launch=0,
        batch=1,
        isl=80,
        encoding="float",
        load={"concurrency": 1},
        requests=3,
        started_at="2026-01-02T03:04:05+00:00",
        origin_ns=5,
        wall_s=1.0,
        asked_rps=None,
        achieved_rps=3.0,
        in_flight_max=1,
        send_lag_p50_ns=1,
        send_lag_p99_ns=2,
        send_lag_max_ns=3,
    )


def samples() -> Samples:
    rows = np.zeros(4, RECORD)
    rows["seq"] = [0, 0, 1, 2]
    rows["phase"] = [WARMUP, MEASURED, MEASURED, MEASURED]
    rows["intended_start_ns"] = [10, 100, 200, 300]
    rows["start_ns"] = [10, 101, 202, 303]
    rows["end_ns"] = [20, 150, 260, 2**62]
    rows["error"] = [-1, -1, 1, 0]
    return Samples(rows, ("timeout", "http-503"))


def test_a_trial_comes_back_as_it_was_written(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path, "quick", META, NOW)
    finding = Finding("count", "fail", "1 of 15 vectors", target="bare", cell="b1", request=0)
    writer.add_trial(record(), samples())
    writer.add_findings([finding])
    run = load_run(writer.folder)
    assert run.trials == (record(),)
    assert run.findings == run.cell_findings("bare", "b1") == (finding,)
    read = run.samples(run.trials[0])
    assert np.array_equal(read.rows, samples().rows)
    assert read.measured.error_counts() == {"http-503": 1, "timeout": 1}
    assert read.measured.ok.service_time_ns.tolist() == [49]
    assert read.measured.ok.response_time_ns.tolist() == [50]
    assert read.send_lag_ns.tolist() == [0, 1, 2, 3]


def test_an_interrupted_trial_is_kept_apart_and_driven_again(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path, "quick", META, NOW)
    writer.add_trial(replace(record(), partial=True), samples().select(np.arange(4) < 2))
    run = load_run(writer.folder)
    assert run.trials == run.cell_trials("bare", "b1") == ()
    assert [len(run.samples(trial)) for trial in run.partials] == [2]
    writer.add_trial(record(), samples())
    run = load_run(writer.folder)
    assert run.trials == (record(),)
    assert [len(run.samples(trial)) for trial in (*run.trials, *run.partials)] == [4, 2]


def test_two_runs_of_one_second_do_not_share_a_directory(tmp_path: Path) -> None:
    first = RunWriter.create(tmp_path, "quick", META, NOW)
    second = RunWriter.create(tmp_path, "quick", META, NOW)
    assert first.folder != second.folder


def test_samples_can_be_had_as_a_frame() -> None:
    frame = samples().to_frame()
    assert frame["error"].isna().tolist() == [True, True, False, False]
    assert frame["error"].tolist()[2:] == ["http-503", "timeout"]
    assert frame["service_time_ns"].tolist()[:3] == [10, 49, 58]
    assert frame["response_time_ns"].tolist()[:3] == [10, 50, 60]


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path, "quick", META, NOW)
    writer.add_trial(record(0), samples())
    with (writer.folder / "trials.jsonl").open("a") as file:
        file.write('{"target": "bare", "ce')
    assert [t.index for t in load_run(writer.folder).trials] == [0]
    resumed, _ = RunWriter.reopen(writer.folder)
    resumed.add_trial(record(1), samples())
    assert [t.index for t in load_run(writer.folder).trials] == [0, 1]


def test_an_unwritable_output_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot write results there .*--output"):
        RunWriter.create(tmp_path / "file", "quick", META, NOW)


def test_another_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"schema_version": 99}))
    with pytest.raises(RunError, match="a run of schema 99, this embbench reads 1"):
        load_run(tmp_path)


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_what_is_not_a_run_is_named(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunError, match=r"run\.json"):
        load_run(tmp_path)


def test_samples_cut_short_are_named(tmp_path: Path) -> None:
    path = tmp_path / "trial-00.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(RunError, match="not readable as samples"):
        read_samples(path)


def test_published_figures_keep_their_digits(tmp_path: Path) -> None:
    meta = {"schema_version": 1, "kind": "published", **META}
    (tmp_path / "run.json").write_text(json.dumps(meta))
    (tmp_path / "published.csv").write_text(
        "target,batch,load,requests,statistic,value_ms\nbare,15,rate10,200,p50,28.30\n"
    )
    value = load_run(tmp_path).published[0]
    assert str(value.value_ms) == "28.30"
    assert value.value_ms == Decimal("28.3")

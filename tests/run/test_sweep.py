"""Whole sweeps: what is measured, what is refused, and that nothing is left behind.

The oracle is a scripted server with its own record, or what the operating system says.
"""

import json
import os
import signal
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import psutil
import pytest
from commands import (
    embbench,
    marked,
    only_run,
    orphans,
    scripted,
    start,
    wait_for,
    write_config,
)
from scripted_server import scripted_process

pytestmark = pytest.mark.e2e

SMALL: dict[str, Any] = {
    "isl": 16,
    "trials": 1,
    # what is tested is not how busy this machine is
    "generator": {"calibrate": False, "send_lag_p99_limit_ms": 1000},
    "output": "out",
}
CLOSED = {"concurrency": 1, "requests": 6, "warmup": 2}


def test_a_sweep_of_two_reference_servers(tmp_path: Path) -> None:
    config = write_config(
        tmp_path,
        **SMALL,
        batches=[3, 20],
        loads=[
            {"rate_rps": 20, "max_batch": 3, "requests": 8, "warmup": 2},
            {**CLOSED, "min_batch": 4},
        ],
        targets={
            "bare": {"kind": "reference", "processes": 1},
            "shm": {"kind": "reference", "processes": 2, "hop": "shm"},
        },
    )
    done = embbench("sweep", "--config", config, cwd=tmp_path, mark="two")
    assert done.code == 0, done.err
    assert "4 of 4 cells VALID; 0 of 28 measured requests failed" in done.out
    assert "\x1b" not in done.out + done.err
    run = only_run(tmp_path / "out")
    assert run.meta["status"] == "complete"
    assert len(run.trials) == 4
    for trial in run.trials:
        samples = run.samples(trial)
        assert len(samples.measured) == trial.requests == (8 if trial.batch == 3 else 6)
        assert len(samples) == trial.requests + 2
        assert trial.verified_share == 1
        assert trial.dimension == 1024
        assert trial.tokens_per_request == 16 * trial.batch
    assert {p.name for p in run.folder.iterdir()} >= {"report.md", "p50.csv", "p90.csv", "p99.csv"}
    assert (run.folder / "report.md").read_text() == done.out
    assert {pair["same_work"] for pair in run.meta["agreement"]} == {True}
    assert not marked("two")
    assert not orphans()


def test_latencies_are_those_of_the_servers_own_record(tmp_path: Path) -> None:
    with scripted_process(delay_s=0.030, slow_every=10, slow_s=0.200) as server:
        config = write_config(
            tmp_path,
            **SMALL,
            batches=[2],
            loads=[{"concurrency": 1, "requests": 40, "warmup": 5}],
            targets={"scripted": scripted(server.url)},
        )
        done = embbench("sweep", "--config", config, cwd=tmp_path)
        assert done.code == 0, done.err + done.out
        record = server.oracle()
    run = only_run(tmp_path / "out")
    samples = run.samples(run.trials[0]).measured
    served = np.array(
        [
            entry["answer_ns"] - entry["arrival_ns"]
            for row in samples.rows
            for entry in record["log"]
            if row["start_ns"] <= entry["arrival_ns"] <= row["end_ns"]
        ]
    )
    assert len(served) == 40
    slower = samples.service_time_ns - served
    assert (slower > 0).all()  # a client cannot be quicker than the server
    assert np.median(slower) < 20e6
    assert sorted(samples.service_time_ns)[-4] >= 230e6  # 4 of 40 are slower by 200 ms


def test_no_text_is_sent_twice_and_every_target_meets_the_same(tmp_path: Path) -> None:
    with scripted_process() as one, scripted_process() as other:
        config = write_config(
            tmp_path,
            **SMALL,
            batches=[4, 5],
            loads=[CLOSED],
            targets={"one": scripted(one.url), "other": scripted(other.url)},
        )
        done = embbench("sweep", "--config", config, "--trials", "2", cwd=tmp_path)
        assert done.code == 0, done.err + done.out
        records = one.oracle(), other.oracle()
    run = only_run(tmp_path / "out")
    sent = []
    for target, record in zip(("one", "other"), records, strict=True):
        rows = [row for t in run.trials if t.target == target for row in run.samples(t).rows]
        entries = [
            entry
            for row in rows
            for entry in record["log"]
            if row["start_ns"] <= entry["arrival_ns"] <= row["end_ns"]
        ]
        assert len(entries) == len(rows) == 2 * 2 * (6 + 2)
        assert sum(entry["repeated"] for entry in entries) == 0
        sent.append({entry["texts"] for entry in entries})
    assert sent[0] == sent[1]
    assert len(sent[0]) == 2 * 2 * (6 + 2)


def test_a_caching_server_gains_nothing(tmp_path: Path) -> None:
    with scripted_process(delay_s=0.020, cache=True, cached_delay_s=0.001) as server:
        config = write_config(
            tmp_path,
            **SMALL,
            batches=[2, 3],
            loads=[CLOSED],
            targets={"caching": scripted(server.url)},
        )
        done = embbench("sweep", "--config", config, "--trials", "2", cwd=tmp_path)
        assert done.code == 0, done.err + done.out
    run = only_run(tmp_path / "out")
    for trial in run.trials:
        assert run.samples(trial).service_time_ns.min() >= 20e6


def test_per_token_output_has_no_latency(tmp_path: Path) -> None:
    config = write_config(
        tmp_path,
        **{**SMALL, "isl": 80},
        batches=[2],
        loads=[CLOSED],
        targets={
            "bare": {"kind": "reference", "processes": 1},
            "token": {"kind": "reference", "processes": 2, "pooling": "token"},
        },
    )
    done = embbench("sweep", "--config", config, cwd=tmp_path)
    assert done.code == 3
    reason = "dimension grows with input length (2048 for 2 tokens, 81920 for 80)"
    assert f"{reason}: per-token output, no pooling" in done.out
    rows = [line for line in done.out.splitlines() if line.startswith("| 2 | closed, 1 client")]
    matrix_rows = [row.split("|")[1:-1] for row in rows][:3]
    assert all(row[-1].strip() == "INVALID (1)" for row in matrix_rows)
    assert not [t for t in only_run(tmp_path / "out").trials if t.target == "token"]


def test_a_cell_that_is_refused_does_not_stop_the_others(tmp_path: Path) -> None:
    with scripted_process(batch_limit=4) as server:
        config = write_config(
            tmp_path,
            **SMALL,
            batches=[2, 8],
            loads=[CLOSED],
            targets={"limited": scripted(server.url)},
        )
        done = embbench("sweep", "--config", config, cwd=tmp_path)
    assert done.code == 3
    run = only_run(tmp_path / "out")
    assert [t.batch for t in run.trials if len(run.samples(t).measured.ok)] == [2]
    (refused,) = [t for t in run.trials if t.batch == 8]
    assert run.samples(refused).measured.error_counts() == {"http-422": 6}
    assert "1 of 2 cells VALID, 1 INVALID" in done.out


def test_a_server_that_refuses_work_is_not_a_fast_one(tmp_path: Path) -> None:
    with scripted_process(delay_s=0.020, error_share=0.4, error_from=150) as server:
        config = write_config(
            tmp_path,
            **SMALL,
            batches=[1],
            loads=[{"concurrency": 2, "requests": 300, "warmup": 0}],
            targets={"refusing": scripted(server.url)},
        )
        done = embbench("sweep", "--config", config, cwd=tmp_path)
    assert done.code == 3
    run = only_run(tmp_path / "out")
    measured = run.samples(run.trials[0]).measured
    assert measured.ok.service_time_ns.min() >= 20e6
    assert measured.error_counts() == {"http-503": len(measured.failed)}
    assert 30 <= len(measured.failed) <= 150
    assert f"{len(measured.failed)} of 300 requests failed" in done.out


def test_two_runs_are_two_directories(tmp_path: Path) -> None:
    with scripted_process() as server:
        config = write_config(
            tmp_path, **SMALL, batches=[1], loads=[CLOSED], targets={"s": scripted(server.url)}
        )
        for _ in range(2):
            assert embbench("sweep", "--config", config, cwd=tmp_path).code == 0
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_ctrl_c_keeps_what_was_measured_and_resume_does_the_rest(tmp_path: Path) -> None:
    config = write_config(
        tmp_path,
        **SMALL,
        batches=[1, 2, 3],
        loads=[{"rate_rps": 10, "requests": 30, "warmup": 1}],
        targets={
            "bare": {"kind": "reference", "processes": 1},
            "shm": {"kind": "reference", "processes": 2, "hop": "shm"},
        },
    )
    process = start("sweep", "--config", config, cwd=tmp_path, mark="ctrl-c")
    lines = tmp_path / "out"
    wait_for(lambda: [p for p in lines.glob("*/trials.jsonl") if p.read_text().count("\n") >= 3])
    wait_for(lambda: list(lines.glob("*/.trial-*/*.rows")))
    sleep(1.0)  # of the three that the trial takes
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert not marked("ctrl-c")
    assert not orphans()
    run = only_run(lines)
    assert run.meta["status"] == "interrupted"
    finished = len(run.trials)
    assert 3 <= finished < 6
    (partial,) = run.partials
    assert 0 < len(run.samples(partial).measured) < partial.requests
    assert "This run is interrupted" in out
    assert f"--resume {run.folder.relative_to(tmp_path)}" in err
    done = embbench("sweep", "--resume", str(run.folder), cwd=tmp_path)
    assert done.code == 0, done.err
    run = only_run(lines)
    assert run.meta["status"] == "complete"
    assert sorted((t.target, t.batch) for t in run.trials) == sorted(
        (target, batch) for target in ("bare", "shm") for batch in (1, 2, 3)
    )


@pytest.mark.parametrize("who", ["embbench", "worker"])
def test_kill_9_leaves_nothing_but_what_was_measured(tmp_path: Path, who: str) -> None:
    config = write_config(
        tmp_path,
        **SMALL,
        batches=[1, 200],
        loads=[
            {"rate_rps": 20, "max_batch": 1, "requests": 5, "warmup": 1},
            {"concurrency": 1, "min_batch": 2, "requests": 500, "warmup": 1},
        ],
        targets={"shm": {"kind": "reference", "processes": 2, "hop": "shm"}},
        seed=3,
    )
    process = start("sweep", "--config", config, cwd=tmp_path, mark=f"kill-{who}")
    lines = tmp_path / "out"
    wait_for(lambda: list(lines.glob("*/run.json")))
    wait_for(lambda: json.loads(next(lines.glob("*/run.json")).read_text())["launches"])
    launch = json.loads(next(lines.glob("*/run.json")).read_text())["launches"][0]
    if who == "embbench":
        victim = process.pid
    else:
        server = psutil.Process(launch["processes"][0]["pid"])
        victim = server.children(recursive=True)[-1].pid
    os.kill(victim, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    wait_for(lambda: not marked(f"kill-{who}"))
    wait_for(lambda: not orphans())
    run = only_run(lines)
    assert run.meta["launches"]
    if who == "worker":
        assert process.returncode == 1
        assert "target 'shm'" in err
        assert run.meta["status"] == "failed"


def test_a_target_that_dies_at_start_is_named_with_its_last_words(tmp_path: Path) -> None:
    config = write_config(
        tmp_path,
        **SMALL,
        batches=[1],
        loads=[CLOSED],
        targets={
            "dying": {
                "kind": "command",
                "argv": ["sh", "-c", "echo no such model >&2; exit 7", "{port}"],
            }
        },
    )
    done = embbench("sweep", "--config", config, cwd=tmp_path, mark="dying")
    assert done.code == 1
    assert "target 'dying'" in done.err
    assert "exited with code 7" in done.err
    assert "no such model" in done.err
    assert "Traceback" not in done.err
    assert not marked("dying")


def test_a_target_that_never_gets_ready_says_what_was_missing(tmp_path: Path) -> None:
    config = write_config(
        tmp_path,
        **SMALL,
        batches=[1],
        loads=[CLOSED],
        targets={
            "sleepy": {"kind": "command", "argv": ["sleep", "300", "{port}"], "start_timeout_s": 2}
        },
    )
    # `sleep 300 PORT` sleeps for the sum of both, and listens nowhere
    done = embbench("sweep", "--config", config, cwd=tmp_path, mark="sleepy")
    assert done.code == 1
    assert "was not ready after 2 s" in done.err
    assert "nobody listens on port" in done.err
    assert not marked("sleepy")


@pytest.mark.parametrize(
    ("args", "code", "complaint"),
    [
        (["--targets", "bear"], 2, "no target 'bear'; did you mean 'bare'?"),
        (["--batches", "0"], 2, "--batches '0': 0 must be above 0"),
        (["--batches", "many"], 2, "--batches 'many': 'many' is not a number"),
        (["--batches", "1,,2"], 2, "--batches '1,,2': an item is empty"),
        (["--batches", ""], 2, "--batches '': an item is empty"),
        (["--rate", "0"], 2, "--rate '0': 0 must be above 0"),
        (["--rate", "nan"], 2, "--rate 'nan': nan must be above 0"),
        (["--isl", "-1"], 2, "--isl '-1': -1 must be above 0"),
        (["--encoding", "double"], 2, "encoding[0]: input should be 'float' or 'base64'"),
        (["--config", "none.yaml"], 2, "none.yaml: no such config file"),
        (["--set", "generator.procesess=2"], 2, "did you mean 'processes'?"),
        (["--pin", "0,1"], 2, "generator: pin names 2 cores for 1 processes"),
        (["--pin", "99"], 2, "generator.pin: (99,): cannot be had of the cores"),
        (
            ["--set", "loads=[{rate_rps: 1, arrival: trace, trace: none.txt}]"],
            2,
            "none.txt: cannot read this trace of offsets",
        ),
        (["--resume", "nowhere"], 1, "nowhere: not a run directory"),
    ],
)
def test_bad_input_is_one_clear_line(
    tmp_path: Path, args: list[str], code: int, complaint: str
) -> None:
    config = [] if "--config" in args else ["--config", "quick"]
    done = embbench("sweep", *config, *args, cwd=tmp_path)
    assert done.code == code
    assert complaint in done.complaint
    assert done.out == ""
    assert not list(tmp_path.iterdir())


def test_an_unwritable_output_is_named_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = embbench("sweep", "--config", "quick", "--output", "file", cwd=tmp_path)
    assert done.code == 1
    assert "file: cannot write results there" in done.complaint

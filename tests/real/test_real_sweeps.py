"""Whole sweeps over the real servers: every cell valid, all engines agree, nothing left."""

from typing import Any

import pytest

from real.watched import Watched

LOADS: list[dict[str, Any]] = [
    {"rate_rps": 2, "max_batch": 1, "requests": 6, "warmup": 2},
    {"concurrency": 1, "requests": 4, "warmup": 1},
]
BASE: dict[str, Any] = {
    "isl": 40,
    "batches": [1, 6],
    "loads": LOADS,
    "trials": 1,
    "engine_args": {"dtype": "float32", "enforce_eager": True, "max_model_len": 256},
    "generator": {"calibrate": False},
}
CELLS = 3  # batch 1 in both loops, batch 6 in the closed one


def engine(name: str, **more: Any) -> dict[str, Any]:
    return {"kind": "reference", "engine": name, "start_timeout_s": 300, **more}


@pytest.mark.parametrize(
    ("model", "dimension", "targets"),
    [
        (
            "generated",
            1024,
            {
                "vllm": {"kind": "vllm"},
                "dynamo": {"kind": "dynamo"},
                "torch": engine("torch", hop="base64-struct"),
                "worker": engine("vllm", hop="shm"),
            },
        ),
        (
            "minilm",
            384,
            {
                "vllm": {"kind": "vllm"},
                "dynamo": {"kind": "dynamo"},
                "torch": engine("torch", hop="json"),
            },
        ),
    ],
)
def test_real_servers_are_valid_and_agree(
    watched: Watched, model: str, dimension: int, targets: dict[str, Any]
) -> None:
    watched.start("sweep", "--quiet", config={**BASE, "model": model, "targets": targets})
    code, report = watched.finish(780)
    assert code == 0, watched.words()
    run = watched.run()
    assert run.meta["status"] == "complete"
    fails = [finding for finding in run.findings if finding.severity == "fail"]
    assert fails == []
    assert len(run.trials) == CELLS * len(targets)
    assert len(run.cells) == CELLS
    assert all(trial.dimension == dimension for trial in run.trials)

    agreed = {(row["base"], row["candidate"]): row for row in run.meta["agreement"]}
    assert len(agreed) == len(targets) * (len(targets) - 1) // 2
    for row in agreed.values():
        assert row["cosine_min"] >= 0.999, row
        assert row["usage_difference"] == 0, row

    parity = {row["setting"]: row["values"] for row in run.meta["parity"]}
    for setting, value in {
        "dtype": "float32",
        "normalised": "on",
        "pooling": "last" if model == "generated" else "mean",
        "max_model_len": "256",
        "prefix caching": "off",
    }.items():
        for target in ("vllm", "dynamo"):
            assert parity[setting][target] == value, (setting, target)
    assert "Parity of the targets" in report
    assert "Agreement of the answers" in report


def test_a_worker_that_does_not_pool_is_invalid_with_its_real_dimensions(watched: Watched) -> None:
    target = engine("vllm", processes=2, hop="base64-numpy", pooling="token")
    config = {**BASE, "model": "generated", "targets": {"token": target}}
    watched.start("sweep", "--quiet", config=config)
    code, report = watched.finish(400)
    assert code == 3, watched.words()
    run = watched.run()
    fails = [finding for finding in run.findings if finding.severity == "fail"]
    assert any(str(1024 * 40) in finding.what for finding in fails), fails
    assert any("grows with input length" in finding.what for finding in fails), fails
    assert "INVALID" in report
    assert not run.trials, "a target that fails the gate is never driven"

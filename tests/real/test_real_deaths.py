"""Real servers that are killed, or that are never to come up: all is said, and nothing is left."""

import signal
import time
from typing import Any

import pytest

from real.test_real_sweeps import BASE
from real.watched import Watched

LONG: dict[str, Any] = {
    **BASE,
    "model": "generated",
    "batches": [6],
    "loads": [{"concurrency": 2, "requests": 5000, "warmup": 1}],
}
VLLM: dict[str, Any] = {"bare": {"kind": "vllm"}}
DYNAMO: dict[str, Any] = {"split": {"kind": "dynamo"}}


@pytest.mark.parametrize("targets", [VLLM, DYNAMO], ids=["vllm", "dynamo"])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_killed_half_way_through_the_start_up(
    watched: Watched, targets: dict[str, Any], how: signal.Signals
) -> None:
    watched.start("sweep", config={**LONG, "targets": targets})
    watched.wait("engine process", lambda: bool(watched.named("VLLM::EngineCore")), 240)
    assert watched.process is not None
    watched.process.send_signal(how)
    code, _ = watched.finish(120)
    assert code == (130 if how == signal.SIGINT else -signal.SIGKILL), watched.words()


def test_a_worker_that_is_killed_under_load_ends_the_run_with_its_last_words(
    watched: Watched,
) -> None:
    watched.start("sweep", config={**LONG, "targets": DYNAMO})
    # written when the answers have passed their checks; the load follows at once
    watched.wait("load", lambda: "agreement" in watched.meta(), 400)
    time.sleep(3)
    (worker, *_) = watched.named("dynamo.vllm")
    worker.kill()
    code, _ = watched.finish(120)
    assert code == 1, watched.words()
    words = watched.words()
    assert "target 'split' (worker) was killed by SIGKILL" in words
    assert "last lines of" in words
    assert "Traceback" not in words
    assert watched.run().meta["status"] == "failed"


@pytest.mark.parametrize("targets", [VLLM, DYNAMO], ids=["vllm", "dynamo"])
def test_an_engine_argument_that_the_server_does_not_know(
    watched: Watched, targets: dict[str, Any]
) -> None:
    unknown = {**BASE["engine_args"], "no_such_argument": 1}
    watched.start("sweep", config={**LONG, "targets": targets, "engine_args": unknown})
    code, _ = watched.finish(240)
    assert code == 1
    assert "before it was ready" in watched.words()
    assert "--no-such-argument" in watched.words()

"""What may be compared, and what is said where it may not."""

from typing import Any

import pytest

from embbench.analysis.likeness import FACTS, allowed, check_allowed, differences, refusal
from embbench.errors import ConfigError

ALIKE: dict[str, Any] = {
    "schema": 1,
    "host": "node-a",
    "cpu": "EPYC, 8 cores",
    "gpu": ["GPU-1"],
    "driver": "580.1",
    "model": "sha256:aa",
    "engine": {"dtype": "float32", "prefix_caching": False},
    "versions": {"vllm": "0.32.0", "torch": "2.9"},
    "batch": 15,
    "isl": 80,
    "encoding": "float",
    "load": "rate10",
    "request_bytes": 6100.0,
    "payload": 190_000.0,
    "texts": "seed 1",
}


def test_alike_is_alike() -> None:
    assert differences(ALIKE, dict(ALIKE)) == ()
    assert refusal(()) == ""
    assert differences({}, {}) == ()


@pytest.mark.parametrize(
    ("fact", "other"),
    [
        ("schema", 2),
        ("host", "node-b"),
        ("cpu", "EPYC, 2 cores"),
        ("gpu", ["GPU-2"]),
        ("driver", "570.2"),
        ("model", "sha256:bb"),
        ("batch", 64),
        ("isl", 81),
        ("encoding", "base64"),
        ("load", "closed1"),
        ("request_bytes", 7000.0),
        ("payload", 15_200_000.0),
        ("texts", "seed 2"),
    ],
)
def test_each_fact_that_differs_refuses_and_is_named_and_can_be_allowed(
    fact: str, other: Any
) -> None:
    found = differences(ALIKE, {**ALIKE, fact: other})
    assert [d.fact for d in found] == [fact]
    why = refusal(found)
    assert FACTS[fact] in why
    assert f"--allow {fact}" in why
    assert refusal(found, ["versions"]) == why
    assert refusal(found, [fact]) == ""
    assert FACTS[fact] in allowed(found, [fact])
    assert allowed(found, []) == ""


def test_every_fact_is_looked_at() -> None:
    assert set(ALIKE) == set(FACTS)


def test_arguments_and_versions_are_named_one_by_one() -> None:
    other = {
        **ALIKE,
        "engine": {"dtype": "bfloat16", "prefix_caching": False, "max_model_len": 2048},
        "versions": {"vllm": "0.31.0", "torch": "2.9"},
    }
    found = differences(ALIKE, other)
    assert [d.fact for d in found] == ["engine.dtype", "engine.max_model_len", "versions.vllm"]
    assert "engine arguments, dtype: float32 against bfloat16" in refusal(found)
    assert "not known against 2048" in refusal(found)
    assert refusal(found, ["engine"]).count("--allow") == 1
    assert refusal(found, ["engine", "versions"]) == ""


def test_a_longer_way_to_print_the_same_vectors_is_told_and_not_refused() -> None:
    found = differences(ALIKE, {**ALIKE, "payload": 190_000.0 * 1.7})
    assert [d.fact for d in found] == ["payload"]
    assert refusal(found) == ""
    assert differences(ALIKE, {**ALIKE, "payload": 190_500.0}) == ()


def test_unknown_is_not_equal() -> None:
    other = {k: v for k, v in ALIKE.items() if k != "host"}
    assert "host: node-a against not known" in refusal(differences(ALIKE, other))


def test_a_name_that_allow_does_not_know_is_an_error_that_names_the_nearest() -> None:
    check_allowed(["host", "engine"])
    with pytest.raises(ConfigError, match="did you mean 'host'"):
        check_allowed(["hots"])
    with pytest.raises(ConfigError, match="known: schema, host"):
        check_allowed(["xyzzy"])

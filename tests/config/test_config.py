"""Configuration: defaults, overrides, and errors that name the key and the nearest one."""

from pathlib import Path

import pytest

from embbench.config.files import DEFAULT, read_config, ready_made, resolve
from embbench.config.schema import ReferenceTarget, RunConfig
from embbench.errors import ConfigError


@pytest.mark.parametrize("name", ready_made())
def test_every_ready_made_config_is_valid(name: str) -> None:
    assert read_config(name).targets


def test_the_default_config_is_the_schema_defaults() -> None:
    written_out = read_config(DEFAULT).model_dump(exclude={"name", "description", "trials"})
    assert written_out == RunConfig().model_dump(exclude={"name", "description", "trials"})


def test_one_value_stands_for_a_list() -> None:
    config = resolve({"isl": 80, "batches": 15, "encoding": "base64"}, "c.yaml")
    assert (config.isl, config.batches, config.encoding) == ([80], [15], ["base64"])


def test_overrides_and_settings_win_over_the_file() -> None:
    config = resolve(
        {"batches": [1], "seed": 3},
        "c.yaml",
        overrides={"batches": [2]},
        settings=["seed=0", "targets.bare.args=[--threads, '2']", "generator.processes=2"],
    )
    assert (config.batches, config.seed, config.generator.processes) == ([2], 0, 2)
    bare = config.targets["bare"]
    assert isinstance(bare, ReferenceTarget)
    assert (bare.args, bare.processes) == (("--threads", "2"), 1)


def test_a_setting_can_reach_every_load() -> None:
    config = resolve({}, "c.yaml", settings=["loads.*.requests=7"])
    assert [load.requests for load in config.loads] == [7, 7]


def test_targets_are_chosen_in_the_order_asked() -> None:
    config = resolve({"floor": "bare"}, "c.yaml", only_targets=["shm", "opt-2"])
    assert list(config.targets) == ["shm", "opt-2"]
    assert (config.floor_name, config.baseline_name) == ("shm", "opt-2")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"batchs": [1]}, "c.yaml: batchs: unknown key; did you mean 'batches'?"),
        ({"batches": [0]}, "c.yaml: batches[0]: input should be greater than 0, not 0"),
        (
            {"batches": "many"},
            "c.yaml: batches[0]: input should be a valid integer, not 'many'",
        ),
        (
            {"targets": {"a": {"kind": "reference", "hopp": "shm"}}},
            "c.yaml: targets.a.hopp: unknown key; did you mean 'hop'?",
        ),
        (
            {"targets": {"a": {"kind": "dynamo", "worker": {"pyton": "p"}}}},
            "c.yaml: targets.a.worker.pyton: unknown key; did you mean 'python'?",
        ),
        ({"targets": {"a": {"kind": "vlm"}}}, "c.yaml: targets.a.kind: did you mean 'vllm'?"),
        (
            {"targets": {"a": {}}},
            "c.yaml: targets.a: key 'kind' is missing; "
            "kinds are: reference, command, external, vllm, dynamo",
        ),
        (
            {"loads": [{"rate_rsp": 1}]},
            "c.yaml: loads[0].rate_rsp: unknown key; did you mean 'rate_rps'?",
        ),
        ({"loads": [{"rate_rps": 0}]}, "c.yaml: loads[0].rate_rps: input should be greater than 0"),
        (
            {"loads": [{"rate_rps": 1, "concurrency": 1}]},
            "c.yaml: loads[0]: give either rate_rps (open loop) or concurrency (closed loop)",
        ),
        (
            {"loads": [{"rate_rps": 1, "max_batch": 64}]},
            "c.yaml: no load covers batch 1024; widen min_batch or max_batch of one of them",
        ),
        (
            {"floor": "bear"},
            "c.yaml: floor names no target 'bear'; targets are: bare, baseline, opt-2, shm",
        ),
    ],
)
def test_a_wrong_key_or_value_is_named(raw: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(raw, "c.yaml")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("seed", "--set seed: write key=value"),
        ("loads.7.requests=3", "--set loads.7.requests=3: '7' is not one of 0 to 1"),
        ("generator.processes.x=1", "--set generator.processes.x=1: 'generator.processes' holds"),
        ("description.x=1", "--set description.x=1: 'description' holds a value, not keys"),
    ],
)
def test_a_wrong_setting_is_named(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"--set") as caught:
        resolve({}, "c.yaml", settings=[setting])
    assert str(caught.value).startswith(message)


def test_a_target_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("targets:\n  a: {kind: reference}\n  a: {kind: reference}\n")
    with pytest.raises(ConfigError, match="line 3: 'a' stands twice"):
        read_config(str(path))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("none.yaml", "no such config file"),
        ("quik", "did you mean 'quick'"),
    ],
)
def test_a_missing_config_is_named(source: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(source)


def test_a_file_that_is_not_a_mapping_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "list.yaml"
    path.write_text("- 1\n")
    with pytest.raises(ConfigError, match="a config is a mapping"):
        read_config(str(path))

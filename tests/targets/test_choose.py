"""The choice of targets without a config, over everything that it depends on."""

import itertools
import sys

import pytest

from embbench.config.files import read_config
from embbench.errors import ConfigError
from embbench.targets.choose import Surroundings, choose_targets, decide
from embbench.targets.environment import ServerEnvironment
from embbench.targets.models import QWEN

NONE = ServerEnvironment("/py")
VLLM = ServerEnvironment("/py", vllm="0.21.0")
BOTH = ServerEnvironment("/py", vllm="0.21.0", dynamo="1.6.1")


@pytest.mark.parametrize(
    ("here", "model", "targets", "chosen"),
    [
        (Surroundings(NONE, False, False), None, None, None),
        (Surroundings(NONE, True, True), QWEN, None, None),
        (Surroundings(VLLM, False, False), None, ["vllm"], "generated"),
        (Surroundings(BOTH, False, True), None, ["vllm", "dynamo"], "generated"),
        (Surroundings(BOTH, True, False), None, ["vllm", "dynamo"], "generated"),
        (Surroundings(BOTH, True, True), None, ["vllm", "dynamo"], QWEN),
        (Surroundings(BOTH, True, True), "minilm", ["vllm", "dynamo"], "minilm"),
        (Surroundings(VLLM, False, False), "/a/model", ["vllm"], "/a/model"),
    ],
)
def test_the_choice(
    here: Surroundings, model: str | None, targets: list[str] | None, chosen: str | None
) -> None:
    choice = decide(here, model)
    assert list(choice.overrides.get("targets", {})) == (targets or [])
    assert choice.overrides.get("model") == chosen


def test_every_choice_is_a_config_and_its_line_says_what_why_and_how_to_change_it() -> None:
    for environment, gpu, qwen in itertools.product((NONE, VLLM, BOTH), (0, 1), (0, 1)):
        choice = decide(Surroundings(environment, bool(gpu), bool(qwen)))
        config = read_config("quick", overrides=choice.overrides)
        assert config.all_targets
        assert "\n" not in choice.line
        assert "/py" in choice.line
        assert "change: --server-python" in choice.line


def test_on_a_cpu_the_arithmetic_is_float32_and_on_a_gpu_the_servers_own() -> None:
    on_cpu = decide(Surroundings(BOTH, has_gpu=False, has_qwen=False))
    on_gpu = decide(Surroundings(BOTH, has_gpu=True, has_qwen=False))
    assert on_cpu.overrides["engine_args"]["dtype"] == "float32"
    assert "engine_args" not in on_gpu.overrides


def test_a_named_interpreter_without_vllm_means_the_reference_servers() -> None:
    choice = choose_targets(server_python=sys.executable)
    assert choice.overrides == {}
    assert "reference servers" in choice.line
    with pytest.raises(ConfigError, match="no such program"):
        choose_targets(server_python="/no/such/python")

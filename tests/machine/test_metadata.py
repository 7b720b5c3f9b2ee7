"""Facts of the machine, compared with what the system's own tools say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from embbench.machine import metadata
from embbench.machine.metadata import (
    as_ranges,
    environment_metadata,
    git_state,
    host_metadata,
    installed_versions,
    python_versions,
    versions,
)
from embbench.results.redact import redact_argv, redact_env


def test_host_facts_agree_with_the_system() -> None:
    facts = host_metadata()
    assert facts["kernel"] == os.uname().release
    assert facts["hostname"] == os.uname().nodename
    assert facts["cores"] == os.cpu_count()
    kib = int(next(x for x in Path("/proc/meminfo").read_text().splitlines()).split()[1])
    assert facts["memory"] == f"{kib / 2**20:.1f} GiB"
    assert facts["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_the_whole_is_json_and_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_do_not_print_me")
    whole = json.dumps(environment_metadata())
    assert "do_not_print_me" not in whole
    assert set(json.loads(whole)) == {"host", "gpu", "versions", "git"}


def test_versions_name_every_dependency() -> None:
    found = versions()
    assert {"python", "embbench", "numpy", "aiohttp", "pydantic", "psutil"} <= found.keys()
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert installed_versions(["numpy", "no-such-package"]) == {"numpy": found["numpy"]}


def test_another_interpreter_is_asked() -> None:
    found = python_versions(sys.executable, ["numpy", "no-such-package"])
    assert found == {"python": versions()["python"], "numpy": versions()["numpy"]}
    assert python_versions("/no/such/python") == {}
    assert python_versions("/bin/false") == {}


def test_git_state(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        name = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *name, *words], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert git_state(tmp_path) is None
    git("init", "-q", "-b", "topic")
    file = tmp_path / "file"
    file.write_text("one")
    assert git_state(tmp_path) is None  # nothing of this folder belongs to the checkout yet
    git("add", "file")
    git("commit", "-q", "-m", "one")
    assert git_state(tmp_path) == {
        "commit": git("rev-parse", "HEAD"),
        "branch": "topic",
        "dirty": False,
    }
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv/untracked").write_text("")
    assert git_state(tmp_path / "venv") is None
    file.write_text("two")
    state = git_state(tmp_path)
    assert state is not None
    assert state["dirty"] is True


def test_ranges() -> None:
    assert as_ranges([]) == ""
    assert as_ranges({5, 0, 2, 1}) == "0-2,5"


@pytest.mark.parametrize(
    ("files", "cpus", "memory"),
    [
        ({"a/b/cpu.max": "150000 100000", "a/b/memory.max": "1073741824"}, 1.5, 2**30),
        (
            {"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000", "memory.max": "max"},
            0.5,
            None,
        ),
        ({"a/b/memory.max": "max", "a/memory.max": "4096"}, None, 4096),
        ({}, None, None),
    ],
)
def test_limits_of_control_groups(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    cpus: float | None,
    memory: int | None,
) -> None:
    """The nearest group with a limit counts; a group without one looks upwards."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    folders = [tmp_path / "a/b", tmp_path / "a", tmp_path]
    monkeypatch.setattr(metadata, "_cgroup_folders", lambda controller: folders)
    assert metadata.cgroup_cpus() == cpus
    assert metadata.cgroup_memory() == memory


def test_limits_of_control_groups_of_version_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.cfs_quota_us").write_text("200000")
    (tmp_path / "cpu.cfs_period_us").write_text("100000")
    (tmp_path / "memory.limit_in_bytes").write_text("9223372036854771712")
    monkeypatch.setattr(metadata, "_cgroup_folders", lambda controller: [tmp_path])
    assert metadata.cgroup_cpus() == 2
    assert metadata.cgroup_memory() is None


def test_secrets_are_masked_and_the_rest_is_not() -> None:
    env = {"HF_TOKEN": "a", "OPENAI_API_KEY": "b", "MAX_TOKENS": "5", "DB_PASSWORD": "c", "X": "d"}
    assert redact_env(env) == {
        "HF_TOKEN": "***",
        "OPENAI_API_KEY": "***",
        "MAX_TOKENS": "5",
        "DB_PASSWORD": "***",
        "X": "d",
    }
    argv = [
        "serve",
        "--api-key",
        "a",
        "--hf-token=b",
        "--max-num-batched-tokens",
        "512",
        "--port",
        "1",
    ]
    shown = ("serve", "--api-key", "***", "--hf-token=***", *argv[4:])
    assert redact_argv(argv) == shown
    argv = ["--tokenizer", "dir", "--tokenizer-mode", "auto", "--embedding-frontend-tokenization"]
    assert redact_argv(argv) == tuple(argv)

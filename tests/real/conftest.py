"""The real servers for tests: the environment of scripts/cpu_stack, and who watches over tear-down.

Where the environment is missing these tests are skipped on a desk, and fail in CI: a green CI that
never saw a real server would prove nothing. EMBBENCH_REQUIRE_REAL=1 asks for the same elsewhere.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from real.watched import Watched

ROOT = Path(__file__).parent.parent.parent
REQUIRED = os.environ.get("CI") == "true" or os.environ.get("EMBBENCH_REQUIRE_REAL") == "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.real)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def server_python() -> str:
    """The python of the servers' environment; CI builds it, a desk must have it."""
    argv = [sys.executable, str(ROOT / "scripts" / "cpu_stack")]
    argv += [] if REQUIRED else ["--find"]
    found = subprocess.run(argv, capture_output=True, text=True, check=False)
    if found.returncode:
        said = found.stderr.strip()
        if REQUIRED:
            pytest.fail(f"scripts/cpu_stack: {said}")
        pytest.skip(f"{said}; run scripts/cpu_stack once, or set EMBBENCH_REQUIRE_REAL=1")
    return found.stdout.strip()


@pytest.fixture
def watched(tmp_path: Path, server_python: str) -> Iterator[Watched]:
    """Runs embbench, and proves afterwards that nothing of what it started is left."""
    watched = Watched(tmp_path, server_python)
    yield watched
    watched.end()

"""Data moves one way: who may import whom, who may print, and what the command line loads."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import embbench

PACKAGE = Path(embbench.__file__).parent

VALUES = {"", "arrow", "errors", "findings", "ondisk", "plan", "redact", "samples"}
"""Values without behaviour that everything may use."""

STATISTICS = {
    *("bootstrap", "compare", "diagnose", "evidence", "gating", "knee", "likeness", "overhead"),
    *("power", "questions", "stats", "summary"),
}
CONFIG = {"config", "configfile", "planning"}
READERS = STATISTICS | {"batches", "rundir", "report", "plots", "comparing", "reviewing"}
CHECKING = {"wire", "checks", "content", "answers", "dating", "verify"}
DRIVING = {"bodies", "inputs", "load"}
LAUNCHING = {"targets", "gpu", "metadata", "telemetry", "doctor"}
GATE = {"asking", "gate"}

MAY_IMPORT: dict[str, set[str]] = {
    **dict.fromkeys(VALUES, VALUES),
    "reference": {"errors"},
    **dict.fromkeys(STATISTICS, VALUES | STATISTICS),
    **dict.fromkeys(CONFIG, VALUES | CONFIG),
    **dict.fromkeys(READERS, VALUES | CONFIG | READERS),
    **dict.fromkeys(DRIVING, VALUES | DRIVING),
    **{name: VALUES | CHECKING | {"bodies"} for name in CHECKING},
    **{name: VALUES | CONFIG | LAUNCHING | {"reference"} for name in LAUNCHING},
    **{name: VALUES | GATE | CHECKING | {"inputs", "targets"} for name in GATE},
}
"""For each part of the package, the parts that it may use besides itself.

Readers never import what drives or launches; nothing but the conductor and the command line sees
both sides. The reference servers run in other environments, and use nothing of the package.
"""
CONDUCTOR = {"sweep", "trialrun", "trialrecord", "loadsetup", "cli", "__main__"}
PROGRAMS = {"load/nullserver.py", "load/worker.py"}
"""Run in processes of their own and tell their parent by what they print."""


def part(path: Path) -> str:
    """The module or package right below ``embbench``; "" is embbench itself."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(tree: ast.AST) -> Iterator[str]:
    """Parts that are imported anywhere in a module, also inside functions."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            names = [node.module]
            if node.module == "embbench":
                names = [f"embbench.{alias.name}" for alias in node.names]
        for name in names:
            first, *rest = name.split(".")
            if first == "embbench":
                inner = rest[0] if rest else ""
                is_module = (PACKAGE / f"{inner}.py").exists() or (PACKAGE / inner).is_dir()
                yield inner if is_module else ""


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_follow_the_layers(path: Path) -> None:
    own = part(path)
    if own in CONDUCTOR:
        return
    assert own in MAY_IMPORT, f"say in this test where '{own}' belongs"
    unwanted = set(imports(ast.parse(path.read_text()))) - MAY_IMPORT[own] - {own}
    assert not unwanted, f"{own} must not import {', '.join(sorted(unwanted))}"


def test_nothing_imports_the_command_line() -> None:
    users = {part(p) for p in sources() if "cli" in set(imports(ast.parse(p.read_text())))}
    assert users <= {"cli", "__main__"}


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_the_command_line_prints(path: Path) -> None:
    if part(path) == "cli" or str(path.relative_to(PACKAGE)) in PROGRAMS:
        return
    calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
    assert not [n for n in calls if isinstance(n.func, ast.Name) and n.func.id == "print"]


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, embbench.cli\n"
        "heavy = 'aiohttp numpy pandas pyarrow scipy matplotlib torch pydantic uvloop'.split()\n"
        "print(*[name for name in heavy if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []

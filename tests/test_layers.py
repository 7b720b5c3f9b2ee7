"""Data moves one way: which room may import which, who may print, and what starting up loads."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from embbench import version

PACKAGE = Path(version.__file__).parent
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

BASE = ("errors", "findings", "version")
VALUES = (*BASE, "config", "results")
ROOMS: dict[str, tuple[str, ...]] = {
    "config": BASE,
    "results": (*BASE, "config"),
    "analysis": VALUES,
    "report": (*VALUES, "analysis"),
    "inputs": VALUES,
    "load": VALUES,
    "machine": (*BASE, "results"),
    "reference": BASE,
    "targets": (*VALUES, "machine", "reference"),
    "payload": (*VALUES, "inputs", "load", "targets"),
    "doctor": (*BASE, "machine", "targets"),
    "run": (*VALUES, "inputs", "load", "machine", "targets", "payload", "doctor"),
}
"""Each room and the rooms that it may use; all of them stand above it, so that no import runs back.

Readers (`analysis`, `report`) never import what launches or drives. The reference servers run in
other environments, and use nothing of the package but its errors. `cli` may use everything.
"""
STARTS_FAST = {
    "__init__.py",
    "load/open_client.py",
    "reference/load_engine.py",
    "reference/main.py",
}
"""These import parts of the package only when they are needed, as `cli` does: some are heavy."""

PROGRAMS = {"load/nullserver.py", "load/worker.py"}
"""Run in processes of their own and tell their parent by what they print."""


def room(module: str) -> str:
    """The folder or file right below ``embbench``; "" is ``embbench/__init__.py``."""
    return [*module.split("."), ""][1]


def inside(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def module_of(name: str) -> str:
    """The module that a dotted name is of, which may end in a function or class."""
    while name not in MODULES:
        name = name.rpartition(".")[0]
    return name


def imports(tree: ast.AST) -> Iterator[str]:
    """Modules of the package that are imported anywhere in this tree, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (module_of(name) for name in names if name.split(".")[0] == "embbench")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def test_every_room_uses_only_rooms_above_it() -> None:
    known = [*BASE, *ROOMS]
    for own, used in ROOMS.items():
        assert set(used) <= set(known[: known.index(own)]), own


@pytest.mark.parametrize("module", MODULES)
def test_imports_follow_the_rooms(module: str) -> None:
    own = room(module)
    if own in ("", "__main__", "cli"):
        return
    used = {room(name) for name in imports(tree(MODULES[module]))} - {own}
    allowed = set() if own in BASE else set(ROOMS[own])
    assert used <= allowed, f"{own} must not import {', '.join(sorted(used - allowed))}"


def test_no_circle_of_files() -> None:
    graph = {name: set(imports(tree(path))) - {name} for name, path in MODULES.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES)


def test_nothing_imports_the_command_line_or_the_front_door() -> None:
    users = {
        (name, used)
        for name, path in MODULES.items()
        for used in imports(tree(path))
        if room(used) in ("", "cli") and room(name) not in ("cli", "__main__")
    }
    assert not users


@pytest.mark.parametrize("module", MODULES)
def test_imports_stand_at_the_top_unless_starting_up_must_be_fast(module: str) -> None:
    path = MODULES[module]
    if room(module) == "cli" or inside(path) in STARTS_FAST:
        return
    functions = [
        node
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert not [name for function in functions for name in imports(function)]


@pytest.mark.parametrize("module", MODULES)
def test_only_the_command_line_prints(module: str) -> None:
    path = MODULES[module]
    if room(module) == "cli" or inside(path) in PROGRAMS:
        return
    calls = [n for n in ast.walk(tree(path)) if isinstance(n, ast.Call)]
    assert not [n for n in calls if isinstance(n.func, ast.Name) and n.func.id == "print"]


def loaded_by(code: str) -> list[str]:
    """Which of the heavy libraries are loaded once ``code`` has run."""
    heavy = "aiohttp numpy pandas pyarrow scipy matplotlib torch pydantic uvloop"
    code += f"\nimport sys; print(*[name for name in '{heavy}'.split() if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return found.stdout.split()


@pytest.mark.parametrize("name", ["embbench", "embbench.cli"])
def test_help_and_the_front_door_load_nothing_heavy(name: str) -> None:
    assert loaded_by(f"import {name}") == []


def test_the_front_door_offers_what_it_says() -> None:
    import embbench

    assert {"compare", "load_run", "__version__"} == set(embbench.__all__)
    assert all(getattr(embbench, name) for name in embbench.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nobody'"):
        _ = embbench.nobody

"""``pytest -m quick`` touches every room, and what it lists is there."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from quick import FILES, QUICK, TESTS

ROOT = TESTS.parent


def rooms() -> list[str]:
    """Every package of trnrt, the rooms of the server, the kernels and the benchmarks."""
    names = {path.parent.name for path in (ROOT / "trnrt").glob("*/__init__.py")}
    server = {f"serve.{path.parent.name}" for path in (ROOT / "serve").glob("*/__init__.py")}
    return [*sorted(f"trnrt.{name}" for name in names | server | {"kernels"}), "benchmarks"]


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def imports(path: Path) -> set[str]:
    """What a file imports; a name of ``from p import n`` may be the module p.n."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


BENCHMARKS = {"benchmarks", *(path.stem for path in (ROOT / "benchmarks").rglob("*.py"))}


@cache
def imported() -> set[str]:
    """What all quick files import."""
    return {name for file in FILES if (TESTS / file).exists() for name in imports(TESTS / file)}


@pytest.mark.parametrize("room", rooms())
def test_a_quick_test_imports_every_room(room: str) -> None:
    # The folders of benchmarks/ are no packages: their modules are imported by their own names.
    tops = BENCHMARKS if room == "benchmarks" else {room}
    assert [name for name in imported() for top in tops if name == top or name.startswith(f"{top}.")]


def test_the_list_names_tests_that_are_there() -> None:
    gone = [name for name in QUICK if not (TESTS / name.partition("::")[0]).exists()]
    assert gone == []
    single = [name.split("::") for name in QUICK if "::" in name]
    assert [(file, test) for file, test in single if test not in functions(TESTS / file)] == []
    assert [file for file, _ in single if file in QUICK] == []


def test_listed_tests_have_the_mark(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("quick") is not None

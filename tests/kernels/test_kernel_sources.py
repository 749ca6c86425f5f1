"""Every kernel file stays in what NKI 0.6 takes, and imports nothing but the seam to it and other kernel files."""

from __future__ import annotations

import ast
import importlib
from collections import defaultdict
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from trnrt.kernels.common import insert_item
from trnrt.nki.sim.kernel import Kernel
from trnrt.nki.sim.subset import check_api, check_source, load_api
from trnrt.nki.sim.subset_methods import METHODS

KERNELS = Path(__file__).parents[2] / "kernels"
FILES = sorted(KERNELS.rglob("*.py"))
# What a kernel file may import besides trnrt.nki and its siblings: nothing that exists when the kernel runs.
FOR_PYTHON_ONLY = {"__future__", "dataclasses", "enum", "math", "typing"}


def test_there_are_kernel_files() -> None:
    assert FILES, f"no kernel file in {KERNELS}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_kernel_file_is_nki(path: Path) -> None:
    assert check_source(path.read_text(encoding="utf-8"), str(path), all_functions=True) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_kernel_file_uses_the_api_as_it_is(path: Path) -> None:
    assert check_api(path.read_text(encoding="utf-8"), str(path), load_api()) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_kernel_file_imports_only_kernels_and_the_seam(path: Path) -> None:
    modules = imported(path.read_text(encoding="utf-8"))
    siblings = {module for module in modules if module.startswith("trnrt.kernels.")}
    assert modules - siblings - FOR_PYTHON_ONLY <= {"trnrt.nki"}


def test_kernels_call_only_methods_that_nki_has() -> None:
    """Also on what only the caller knows to be a list: no tensor has a method of such a name."""
    of_python = {name for kind in (list, dict, tuple, str) for name in dir(kind)}
    taken = {name for methods in METHODS.values() for name in methods}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in of_python:
                assert node.func.attr in taken, f"{path}:{node.lineno}: {node.func.attr}()"


def test_a_constant_has_one_value_in_all_kernel_files() -> None:
    """The parser of NKI 0.6 knows the constants of all files that a kernel reaches by their names alone."""
    values: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for path in FILES:
        module = ".".join(("trnrt.kernels", *path.relative_to(KERNELS).with_suffix("").parts))
        for name, value in vars(importlib.import_module(module)).items():
            if not name.startswith("__") and not isinstance(value, (ModuleType, FunctionType, type, Kernel)):
                values[name][module] = repr(value)
    assert len(values) > 100
    assert {name: found for name, found in values.items() if len(set(found.values())) > 1} == {}


def test_a_function_or_class_is_defined_in_one_kernel_file() -> None:
    """The same parser may take a function of one file for that of another; nor is a constant called like one."""
    places: defaultdict[str, set[str]] = defaultdict(set)
    for path in FILES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            for name in defined_names(node):
                places[name].add(f"{path.relative_to(KERNELS)}:{type(node).__name__}")
    called = {name: found for name, found in places.items() if any("Def" in place for place in found)}
    assert len(called) > 300
    assert {name: found for name, found in called.items() if len(found) > 1} == {}


def test_a_list_takes_an_item_at_any_place() -> None:
    for place in range(4):
        items = [1, 2, 3]
        insert_item(items, place, 0)
        assert items == [*[1, 2, 3][:place], 0, *[1, 2, 3][place:]]


def defined_names(node: ast.stmt) -> list[str]:
    """The names that a statement of a module defines: a function, a class or constants."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    return []


def imported(source: str) -> set[str]:
    """The modules that a file imports; a relative import is its dots and name."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            modules.add("." * node.level + (node.module or ""))
    return modules

"""Every kernel file stays in what NKI 0.6 takes, and imports nothing but the seam to it and other kernel files."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from trnrt.nki.sim.subset import check_api, check_source, load_api

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


def imported(source: str) -> set[str]:
    """The modules that a file imports; a relative import is its dots and name."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            modules.add("." * node.level + (node.module or ""))
    return modules

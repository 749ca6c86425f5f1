"""The tree keeps its shape: who imports whom, how long files and functions are, and what a wheel would hold."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from trnrt.cache.code import PLANS

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES = 500
FUNCTION_LINES = 50
KERNEL_LINES = 80

# What each room may import of trnrt besides itself; the first name that fits a module is its room. Arrows go one way.
ROOMS: dict[str, tuple[str, ...]] = {
    "trnrt.errors": (),
    "trnrt.nki": ("trnrt.errors",),
    "trnrt.kernels": ("trnrt.nki",),
    "trnrt.importer": ("trnrt.errors",),
    "trnrt.planner": ("trnrt.errors", "trnrt.importer", "trnrt.kernels", "trnrt.nki", "trnrt.operators"),
    "trnrt.operators": (
        "trnrt.errors",
        "trnrt.importer",
        "trnrt.kernels",
        "trnrt.nki",
        "trnrt.planner.lowering",
        "trnrt.planner.placing",
        "trnrt.planner.plan",
        "trnrt.planner.naming",
        "trnrt.planner.steps",
    ),
    "trnrt.cache": ("trnrt.errors", "trnrt.importer", "trnrt.inputs.npz", "trnrt.nki", "trnrt.planner"),
    "trnrt.capacity": ("trnrt.errors", "trnrt.nki", "trnrt.planner", "trnrt.running.buckets"),
    "trnrt.bench": ("trnrt.capacity", "trnrt.errors", "trnrt.kernels", "trnrt.nki", "trnrt.planner", "trnrt.session"),
    "trnrt.report": (
        "trnrt.bench",
        "trnrt.capacity",
        "trnrt.errors",
        "trnrt.importer",
        "trnrt.inputs.npz",
        "trnrt.neuron",
        "trnrt.nki",
        "trnrt.planner",
        "trnrt.session",
        "trnrt.validate",
    ),
    "trnrt.inputs": ("trnrt.errors", "trnrt.importer", "trnrt.nki", "trnrt.report.text"),
    "trnrt.validate": (
        "trnrt.backends",
        "trnrt.cache",
        "trnrt.errors",
        "trnrt.importer",
        "trnrt.inputs.npz",
        "trnrt.nki",
        "trnrt.operators",
        "trnrt.planner",
        "trnrt.running",
        "trnrt.session",
    ),
    "trnrt.running": (
        "trnrt.backends",
        "trnrt.cache",
        "trnrt.errors",
        "trnrt.importer",
        "trnrt.inputs.drawing",
        "trnrt.nki",
        "trnrt.planner",
    ),
    "trnrt.backends": ("trnrt.errors", "trnrt.neuron", "trnrt.nki", "trnrt.planner"),
    "trnrt.neuron.doctor": ("trnrt.cache", "trnrt.errors", "trnrt.neuron", "trnrt.nki"),
    "trnrt.neuron.selftest": (
        "trnrt.cache",
        "trnrt.errors",
        "trnrt.kernels",
        "trnrt.neuron",
        "trnrt.nki",
        "trnrt.session",
        "trnrt.validate",
    ),
    "trnrt.neuron": ("trnrt.backends", "trnrt.errors", "trnrt.nki", "trnrt.planner"),
    "trnrt.interfaces": ("trnrt.errors", "trnrt.session"),
    "trnrt.predict": (
        "trnrt.backends",
        "trnrt.cache",
        "trnrt.errors",
        "trnrt.importer",
        "trnrt.inputs",
        "trnrt.neuron",
        "trnrt.nki",
        "trnrt.planner",
        "trnrt.report",
        "trnrt.running.buckets",
        "trnrt.session",
    ),
}
# What nothing but the files named imports.
PRIVATE = {"trnrt.cli": ("trnrt.__main__",), "trnrt.commands": ("trnrt.cli", "trnrt.commands"), "trnrt.__main__": ()}


def python_files(*folders: str) -> list[Path]:
    """Every Python file, once: not what is reached through a link."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if path.resolve() == path)


def sources() -> dict[str, Path]:
    """Module name -> file, of everything that can be imported as trnrt."""
    found = {}
    for folder, package in (("trnrt", "trnrt"), ("kernels", "trnrt.kernels"), ("serve", "trnrt.serve")):
        for path in python_files(folder):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            found[".".join((package, *parts))] = path
    return found


SOURCES = sources()


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def room_of(module: str) -> str | None:
    return next((room for room in ROOMS if within(module, room)), None)


@cache
def imports(module: str) -> list[tuple[str, int]]:
    """(module, line) of what a file imports of trnrt, at its top or anywhere below; ``from p import m`` may be p.m."""
    path = SOURCES[module]
    found: list[tuple[str, int]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = resolved(module, path, node)
            names = [f"{base}.{a.name}" if f"{base}.{a.name}" in SOURCES else base for a in node.names]
        else:
            continue
        found += [(name, node.lineno) for name in names if within(name, "trnrt")]
    return found


def resolved(module: str, path: Path, node: ast.ImportFrom) -> str:
    """The absolute module of a ``from`` import."""
    if not node.level:
        return node.module or ""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    parts = package[: len(package) - node.level + 1]
    return ".".join([*parts, *([node.module] if node.module else [])])


def test_the_tree_is_found() -> None:
    assert {"trnrt", "trnrt.errors", "trnrt.nki.sim.isa", "trnrt.kernels.common"} <= set(SOURCES)
    assert not [name for name in SOURCES if name.count("kernels") > 1]


@pytest.mark.parametrize("room", ROOMS)
def test_arrows_go_one_way(room: str) -> None:
    allowed = (room, *ROOMS[room])
    wrong = [
        f"{SOURCES[module].relative_to(ROOT)}:{line} imports {name}"
        for module in SOURCES
        if room_of(module) == room
        for name, line in imports(module)
        if not any(within(name, package) for package in allowed)
    ]
    assert wrong == []


@pytest.mark.parametrize("package", PRIVATE)
def test_nothing_imports_the_command_line(package: str) -> None:
    wrong = [
        f"{SOURCES[module].relative_to(ROOT)}:{line} imports {name}"
        for module in SOURCES
        if not any(within(module, user) for user in PRIVATE[package])
        for name, line in imports(module)
        if within(name, package)
    ]
    assert wrong == []


def test_the_key_of_a_cached_plan_covers_all_that_plans() -> None:
    """Else an edit would leave old plans in the cache."""
    rooms = [f"trnrt.{room.removesuffix('.py').replace('/', '.')}" for room in PLANS]
    assert all(any(within(module, room) for module in SOURCES) for room in rooms)
    beside = {"trnrt", "trnrt.errors", "trnrt.cache", "trnrt.backends", "trnrt.neuron"}  # keep, run and report plans
    wrong = [
        f"{module} imports {name}"
        for module in SOURCES
        if any(within(module, room) for room in rooms)
        for name, _ in imports(module)
        if not any(within(name, room) for room in rooms) and ".".join(name.split(".")[:2]) not in beside
    ]
    assert wrong == []


def test_the_machine_does_not_know_the_api() -> None:
    """Inside the simulator, too: the machine runs programs, whoever traced them."""
    machine = [module for module in SOURCES if within(module, "trnrt.nki.machine")]
    assert len(machine) > 10
    assert [module for module in machine for name, _ in imports(module) if within(name, "trnrt.nki.sim")] == []


def test_the_errors_import_nothing() -> None:
    tree = ast.parse(SOURCES["trnrt.errors"].read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules <= {"__future__", "dataclasses"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import)]


def functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """(name, line, number of lines) of every function of a file, its docstring included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1


FILES = python_files("trnrt", "kernels", "serve", "models", "benchmarks", "tests")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sizes(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= FILE_LINES
    limit = KERNEL_LINES if "kernels" in path.relative_to(ROOT).parts[:2] else FUNCTION_LINES
    assert [f"{name} at line {line}: {size} lines" for name, line, size in functions(path) if size > limit] == []


# What a wheel holds: one package, whatever folders stand beside it.
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_wheel_has_one_top_level_name() -> None:
    setuptools = CONFIG["tool"]["setuptools"]
    assert setuptools["packages"]["find"] == {"include": ["trnrt*"]}
    assert "py-modules" not in setuptools
    assert "package-dir" not in setuptools
    beside = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert beside <= {"trnrt"}


def test_data_files_are_in_the_wheel() -> None:
    patterns = CONFIG["tool"]["setuptools"]["package-data"]["*"]
    data = {
        path
        for path in (ROOT / "trnrt").rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc") and "kernels" not in path.relative_to(ROOT).parts
    }
    assert (ROOT / "trnrt" / "py.typed") in data
    assert [path for path in data if not any(path.match(pattern) for pattern in patterns)] == []


@pytest.mark.parametrize("folder", ["kernels", "serve"])
def test_folders_at_the_top_are_reached_through_links(folder: str) -> None:
    """As trnrt.kernels and trnrt.serve; a package of PyPI owns the name `kernels` at the top."""
    if not (ROOT / folder).exists():
        pytest.skip(f"there is no {folder}/ yet")
    assert not (ROOT / folder / "__init__.py").exists()
    link = ROOT / "trnrt" / folder
    assert link.is_symlink()
    assert link.readlink() == Path("..") / folder


def test_every_module_says_what_it_is_for() -> None:
    silent = [name for name, path in SOURCES.items() if ast.get_docstring(ast.parse(path.read_text("utf-8"))) is None]
    assert silent == []


def test_test_files_have_names_of_their_own() -> None:
    """One process imports them all by their name alone."""
    names = [path.name for path in python_files("tests")]
    twice = {name for name in names if names.count(name) > 1 and name not in ("conftest.py", "__init__.py")}
    assert twice == set()
    assert not {name.removesuffix(".py") for name in names} & set(sys.stdlib_module_names)

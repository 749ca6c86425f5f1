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
    "trnrt.errors": ("trnrt.nki.errors",),
    "trnrt.text": ("trnrt.nki.machine.timing", "trnrt.nki.units"),
    "trnrt.nki": (),
    "trnrt.kernels": ("trnrt.nki",),
    "trnrt.importer": ("trnrt.errors", "trnrt.operators.record", "trnrt.text"),
    "trnrt.planner": ("trnrt.errors", "trnrt.importer", "trnrt.kernels", "trnrt.nki", "trnrt.operators", "trnrt.text"),
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
        "trnrt.text",
    ),
    "trnrt.cache": (
        "trnrt.errors",
        "trnrt.importer",
        "trnrt.inputs.npz",
        "trnrt.nki",
        "trnrt.planner",
        "trnrt.text",
        "trnrt.version",
    ),
    "trnrt.capacity": ("trnrt.errors", "trnrt.nki", "trnrt.planner", "trnrt.running.buckets", "trnrt.text"),
    "trnrt.calibration": ("trnrt.errors", "trnrt.neuron.selftest", "trnrt.nki", "trnrt.text"),
    "trnrt.report": (
        "trnrt.calibration",
        "trnrt.capacity",
        "trnrt.errors",
        "trnrt.importer",
        "trnrt.inputs.npz",
        "trnrt.inputs.ultralytics",
        "trnrt.neuron",
        "trnrt.nki",
        "trnrt.planner",
        "trnrt.quantise",
        "trnrt.session",
        "trnrt.validate",
        "trnrt.text",
    ),
    "trnrt.vision": ("trnrt.errors", "trnrt.importer", "trnrt.inputs", "trnrt.text"),
    "trnrt.inputs": ("trnrt.errors", "trnrt.importer", "trnrt.nki", "trnrt.text"),
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
        "trnrt.text",
    ),
    "trnrt.running": (
        "trnrt.backends",
        "trnrt.cache",
        "trnrt.errors",
        "trnrt.importer",
        "trnrt.inputs",
        "trnrt.nki",
        "trnrt.planner",
        "trnrt.text",
    ),
    "trnrt.backends": ("trnrt.errors", "trnrt.neuron", "trnrt.nki", "trnrt.planner", "trnrt.text"),
    "trnrt.neuron.doctor": ("trnrt.cache", "trnrt.errors", "trnrt.neuron", "trnrt.nki", "trnrt.text"),
    "trnrt.neuron.selftest": (
        "trnrt.backends",
        "trnrt.cache",
        "trnrt.errors",
        "trnrt.kernels",
        "trnrt.neuron",
        "trnrt.nki",
        "trnrt.planner",
        "trnrt.running",
        "trnrt.session",
        "trnrt.validate",
        "trnrt.text",
    ),
    "trnrt.neuron": ("trnrt.backends", "trnrt.errors", "trnrt.nki", "trnrt.planner", "trnrt.text"),
    "trnrt.quantise": (
        "trnrt.errors",
        "trnrt.importer",
        "trnrt.inputs",
        "trnrt.operators",
        "trnrt.planner",
        "trnrt.predict",
        "trnrt.running",
        "trnrt.session",
        "trnrt.validate",
        "trnrt.text",
    ),
    "trnrt.interfaces": ("trnrt.errors", "trnrt.session"),
    "trnrt.capi": ("trnrt.errors", "trnrt.ort"),
    "trnrt.hf": ("trnrt.cache", "trnrt.errors", "trnrt.session", "trnrt.text"),
    "trnrt.ort": (
        "trnrt.errors",
        "trnrt.importer",
        "trnrt.inputs",
        "trnrt.neuron",
        "trnrt.nki",
        "trnrt.planner",
        "trnrt.report",
        "trnrt.running",
        "trnrt.text",
    ),
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
        "trnrt.running",
        "trnrt.session",
        "trnrt.text",
    ),
}
# What nothing but the files named imports.
PRIVATE = {
    "trnrt.cli": ("trnrt.__main__",),
    "trnrt.commands": ("trnrt.cli", "trnrt.commands", "benchmarks"),
    "trnrt.__main__": (),
    "benchmarks": ("benchmarks",),
}


def python_files(*folders: str) -> list[Path]:
    """Every Python file, once: not what is reached through a link."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if path.resolve() == path)


def sources() -> dict[str, Path]:
    """Module name -> file, of everything that can be imported as trnrt, and of the benchmarks beside it."""
    found = {}
    places = {"trnrt": "trnrt", "kernels": "trnrt.kernels", "serve": "trnrt.serve", "benchmarks": "benchmarks"}
    for folder, package in places.items():
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
def parsed(path: Path) -> ast.Module:
    """A file's syntax tree: several tests look at each."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(module: str) -> list[tuple[str, int]]:
    """(module, line) of what a file imports of trnrt or the benchmarks, at its top or anywhere below.

    ``from p import m`` may be p.m.
    """
    path = SOURCES[module]
    found: list[tuple[str, int]] = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = resolved(module, path, node)
            names = [f"{base}.{a.name}" if f"{base}.{a.name}" in SOURCES else base for a in node.names]
        else:
            continue
        found += [(name, node.lineno) for name in names if name.partition(".")[0] in ("trnrt", "benchmarks")]
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
def test_private_packages_are_imported_by_their_users_only(package: str) -> None:
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


@pytest.mark.parametrize(("module", "base"), [("trnrt.nki.errors", set()), ("trnrt.errors", {"trnrt.nki.errors"})])
def test_the_errors_import_nothing(module: str, base: set[str]) -> None:
    tree = parsed(SOURCES[module])
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules <= {"__future__", "dataclasses"} | base
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import)]


def test_the_simulator_stands_alone() -> None:
    """It could be a distribution of its own: no import of the rest of trnrt, nor a deferred one, nor one for types."""
    simulator = [module for module in SOURCES if within(module, "trnrt.nki")]
    assert len(simulator) > 100
    outside = {
        f"{SOURCES[module].relative_to(ROOT)}:{line} imports {name}"
        for module in simulator
        for name, line in imports(module)
        if not within(name, "trnrt.nki")
    }
    assert outside == set()


# Circles of imports that are still there; mend one and strike it off.
CIRCLES = [{"trnrt.calibration.cases", "trnrt.calibration.published"}]


def circles() -> list[set[str]]:
    """Modules that import each other, directly or through others: deferred imports and those for types count, too."""
    graph = {module: {name for name, _ in imports(module) if name in SOURCES} - {module} for module in SOURCES}
    while leaves := {module for module, imported in graph.items() if not imported & set(graph)}:
        graph = {module: imported for module, imported in graph.items() if module not in leaves}
    reached = {module: reachable(graph, module) for module in graph}
    found = {frozenset(one for one in graph if one in reached[module] and module in reached[one]) for module in graph}
    return [set(circle) for circle in found if circle]


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """What ``start`` imports, and what that does in turn; itself only where it is in a circle."""
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        new = graph.get(ahead.pop(), set()) - seen
        seen |= new
        ahead += new
    return seen


def test_no_new_circle_of_imports() -> None:
    assert sorted(map(sorted, circles())) == sorted(map(sorted, CIRCLES))


def functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """(name, line, number of lines) of every function of a file, its docstring included."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1


PARAMETERS = 12
# The language and the instructions of NKI have AWS's signatures.
AWS_SIGNATURES = ("trnrt.nki.sim", "trnrt.nki.legacy")


def parameters(path: Path) -> Iterator[tuple[str, int]]:
    """(name, number of parameters, ``self`` among them) of every function of a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            yield node.name, len(named) + sum(rest is not None for rest in (node.args.vararg, node.args.kwarg))


def test_functions_take_few_parameters() -> None:
    """Verbs are left out, whose parameters are their flags, and kernels."""
    free = ("trnrt.kernels", *AWS_SIGNATURES)
    long = [
        f"{module}.{name}: {count}"
        for module, path in SOURCES.items()
        if not any(within(module, package) for package in free)
        for name, count in parameters(path)
        if count > PARAMETERS and not name.endswith("_command")
    ]
    assert long == []


FILES = python_files("trnrt", "kernels", "serve", "models", "benchmarks", "examples", "tests")


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
    assert beside <= {"trnrt", "benchmarks"}


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
    silent = [name for name, path in SOURCES.items() if ast.get_docstring(parsed(path)) is None]
    assert silent == []


def test_test_files_have_names_of_their_own() -> None:
    """One process imports them all by their name alone."""
    names = [path.name for path in python_files("tests")]
    twice = {name for name in names if names.count(name) > 1 and name not in ("conftest.py", "__init__.py")}
    assert twice == set()
    assert not {name.removesuffix(".py") for name in names} & set(sys.stdlib_module_names)

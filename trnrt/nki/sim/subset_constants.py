"""Find what NKI 0.6's parser may take for one another: constants, functions or classes of one name in two files.

NKI 0.7 runs kernels as Python, where each file has its own names. KLR (interop/klr/gather.c at 7ccd18c, ``add_global``)
keeps the module-level constants of all functions that a kernel reaches by their names alone, and the first one that it
meets stays. It keeps functions and classes by their modules' names, and once more by the plain name that the code uses
(``add_work``); a later use of a plain name that is known already is not looked up again (``reference``).
"""

from __future__ import annotations

import ast
import operator
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from trnrt.nki.sim.subset_source import Definition, Finding, SourceFile, check_parsed, finding_at, names_used, read

# A function, class or value of the module level, with its file.
Place = tuple[SourceFile, Definition | ast.expr]
Constant = tuple[SourceFile, ast.expr]

_NOT_KERNELS = frozenset(["neuronxcc", "nki", "numpy", *sys.stdlib_module_names])
_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}


def check_constants(source: str, filename: str, entries: Collection[int] = ()) -> list[Finding]:
    """Find one name of different constants, functions or classes, in the code that each kernel of ``source`` reaches.

    Functions of other files are followed where the imported module is there as source: beside the file, or on the
    path of this Python. ``entries``: see ``check_source``. A finding stands at the kernel and names both files.
    """
    return check_parsed(source, filename, _check_kernels, entries)


def _check_kernels(file: SourceFile) -> Iterator[Finding]:
    sources = _Sources(Path(file.filename).parent)
    for kernel in file.kernels:
        first: dict[str, Constant] = {}
        defined: dict[str, tuple[SourceFile, Definition]] = {}
        for name, (home, found) in sources.names_reached(file, kernel):
            if isinstance(found, ast.expr):
                known = first.setdefault(name, (home, found))
                if known[1] is not found and _differ(sources, known, (home, found)):
                    message = f"the constant {name} is {_describe(known)}, but {_describe((home, found))}"
                    instead = "Rename one of them: the parser of NKI 0.6 knows constants by their names alone"
                    yield finding_at(file, kernel, "constant-name", message, instead)
                continue
            other, same = defined.setdefault(name, (home, found))
            if other is not home and ast.dump(same) != ast.dump(found):
                message = f"{name} is defined in {_line_of(other, same)}, and otherwise in {_line_of(home, found)}"
                instead = "Rename one of them: the parser of NKI 0.6 may take one for the other"
                yield finding_at(file, kernel, "constant-name", message, instead)


def _differ(sources: _Sources, known: Constant, constant: Constant) -> bool:
    try:
        return sources.value(*known) != sources.value(*constant)
    except (ArithmeticError, TypeError, RecursionError):  # such as a complex power, or a name that stands for itself
        return ast.unparse(known[1]) != ast.unparse(constant[1])


def _describe(constant: Constant) -> str:
    file, value = constant
    return f"{ast.unparse(value)} in {_line_of(file, value)}"


def _line_of(file: SourceFile, node: Definition | ast.expr) -> str:
    return f"{file.filename}:{node.lineno}"


class _Sources:
    """The files that a checked one imports from; ``folder`` is where it stands."""

    def __init__(self, folder: Path) -> None:
        self._folders = [folder, *map(Path, sys.path)]
        self._modules: dict[tuple[str, Path], SourceFile | None] = {}

    def names_reached(self, file: SourceFile, kernel: Definition) -> Iterator[tuple[str, Place]]:
        """The plain names in the code of a kernel and of all functions that it reaches, and what each stands for."""
        found: dict[ast.AST, None] = {kernel: None}
        work: list[Place] = [(file, kernel)]
        while work:
            here, root = work.pop(0)
            named = [(name, self.definition(here, name)) for name in dict.fromkeys(names_used(here, root))]
            # Python has evaluated the names in a module-level value: they are none of the kernel's.
            for name, target in named if not isinstance(root, ast.expr) else ():
                if target is not None:
                    yield name, target
            for target in [*(target for _, target in named), *self._attributes(here, root)]:
                if target is not None and target[1] not in found:
                    found[target[1]] = None
                    work.append(target)

    def _attributes(self, file: SourceFile, root: ast.AST) -> Iterator[Place | None]:
        """The names that ``root`` takes from imported modules as their attributes, ``module.function``."""
        for node in ast.walk(root):
            if isinstance(node, ast.Attribute):
                module, _, name = file.path_of(node).rpartition(".")
                other = self._module(module, file)
                yield self.definition(other, name) if other is not None else None

    def definition(self, file: SourceFile, name: str) -> Place | None:
        """The function, class or value that a name of the module level stands for, in the file that defines it."""
        other: SourceFile | None = file
        for _ in range(10):  # imports of imports
            if other is None:
                return None
            if name in other.functions or name in other.classes:
                return other, other.functions.get(name) or other.classes[name]
            if name in other.values:
                return other, _assigned_value(other, name)
            module, _, name = other.imports.get(name, "").rpartition(".")
            other = self._module(module, other)
        return None

    def value(self, file: SourceFile, value: ast.expr) -> float | str:
        """The number that an expression is, or its text where it is no arithmetic of numbers and constants."""
        if isinstance(value, ast.Constant) and isinstance(value.value, (int, float)):
            return value.value
        if isinstance(value, ast.Name):
            target = self.definition(file, value.id)
            if target is not None and isinstance(target[1], ast.expr):
                return self.value(target[0], target[1])
        if isinstance(value, ast.BinOp) and type(value.op) in _OPERATORS:
            left, right = self.value(file, value.left), self.value(file, value.right)
            if not isinstance(left, str) and not isinstance(right, str):
                return float(_OPERATORS[type(value.op)](left, right))
        return ast.unparse(value)

    def _module(self, name: str, importer: SourceFile) -> SourceFile | None:
        """The source of an imported module; None if it isn't there as source, or holds no code of kernels."""
        inner = name.lstrip(".")
        if not inner or inner.partition(".")[0] in _NOT_KERNELS or f"{inner}.".startswith("trnrt.nki."):
            return None
        package = Path(importer.filename).parent if inner != name else Path()
        key = name, package
        if key not in self._modules:
            level = len(name) - len(inner)
            folders = [[package, *package.resolve().parents][level - 1]] if level else self._folders
            self._modules[key] = _find_source(inner, folders)
        return self._modules[key]


def _assigned_value(file: SourceFile, name: str) -> ast.expr:
    """The value that a name is assigned at module level, also where a tuple of names is assigned a tuple."""
    value = file.values[name]
    for target in getattr(file.parents[value], "targets", []):
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for part, element in zip(target.elts, value.elts, strict=True):
                if isinstance(part, ast.Name) and part.id == name:
                    return element
    return value


def _find_source(module: str, folders: Iterable[Path]) -> SourceFile | None:
    for path in (folder.joinpath(*module.split(".")) for folder in folders):
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.is_file():
                return _parse(candidate, candidate.stat().st_mtime_ns)
    return None


@lru_cache(maxsize=256)
def _parse(path: Path, mtime_ns: int) -> SourceFile | None:
    try:
        return read(path.read_text(encoding="utf-8"), str(path))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None

"""``python -m benchmarks.nki_library.census FOLDER COMMIT``: the Python and the names of `nki` in AWS's own kernels.

``FOLDER`` is the `src` of nki-library. Prints JSON with counts, for ``tests/data/nki_library_census.json``. Counted is
the code that the compiler sees: of each function with ``@nki.jit``, and of every function and class of the library that
one of these names, in any file.
"""

from __future__ import annotations

import ast
import builtins
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.nki_library.families import REPOSITORY
from trnrt.nki.sim.subset_source import Definition, SourceFile, code_children, decorator_path, read

Place = tuple[SourceFile, Definition]
_CONTAINERS = (list, dict, tuple, str)


def count_all(folder: Path, commit: str) -> dict[str, object]:
    """The counts of the library below ``folder``, and of the files that could be read."""
    files, unreadable = read_files(folder)
    reached = list(reach(files))
    constructs, names = Counter[str](), Counter[str]()
    for file, root in reached:
        nodes = [*_code(root), *(root.decorator_list if isinstance(root, ast.ClassDef) else ())]
        constructs.update(_constructs(file, root, nodes))
        names.update(path for node in nodes if (path := _nki_path(file, node)) is not None)
    return {
        "source": f"{REPOSITORY}, commit {commit}",
        "files": len(files),
        "unreadable": unreadable,
        "kernels": sum(len(file.kernels) for file in files),
        "definitions": len(reached),
        "constructs": dict(sorted(constructs.items())),
        "names": dict(sorted(names.items())),
    }


def read_files(folder: Path) -> tuple[list[SourceFile], list[str]]:
    """The parsed files below ``folder``, and the names of those that are not Python."""
    files, unreadable = [], []
    for path in sorted(folder.rglob("*.py")):
        try:
            files.append(read(path.read_text(encoding="utf-8"), str(path)))
        except SyntaxError:
            unreadable.append(path.relative_to(folder).as_posix())
    return files, unreadable


def reach(files: Iterable[SourceFile]) -> Iterator[Place]:
    """Each kernel, and each function and class that code of one names, by its name alone."""
    known: defaultdict[str, list[Place]] = defaultdict(list)
    work: list[Place] = []
    for file in files:
        for name, definition in {**file.functions, **file.classes}.items():
            known[name].append((file, definition))
        work += [(file, kernel) for kernel in file.kernels]
    found = {definition for _, definition in work}
    while work:
        file, root = work.pop()
        yield file, root
        for name in dict.fromkeys(_names(root)):
            new = [place for place in known[name] if place[1] not in found]
            found.update(definition for _, definition in new)
            work += new


def _code(root: Definition) -> Iterator[ast.AST]:
    """The nodes that the compiler evaluates."""
    work: list[ast.AST] = [root]
    while work:
        node = work.pop()
        yield node
        work.extend(code_children(node) if not isinstance(node, ast.ClassDef) else node.body)


def _names(root: Definition) -> Iterator[str]:
    for node in _code(root):
        if isinstance(node, (ast.Name, ast.Attribute)):
            yield node.id if isinstance(node, ast.Name) else node.attr


def _nki_path(file: SourceFile, node: ast.AST) -> str | None:
    """The name of `nki` that a node stands for, without the attributes of what has the name."""
    path = file.path_of(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
    inside = isinstance(file.parents[node], ast.Attribute)
    module = next((m for m in ("nki.language", "nki.isa", "nki") if path.startswith(f"{m}.")), None)
    if module is None or path in ("nki.language", "nki.isa"):
        return None
    is_name_itself = path.count(".") == module.count(".") + 1
    return path if is_name_itself else None if inside else ".".join(path.split(".")[: module.count(".") + 2])


def _constructs(file: SourceFile, root: Definition, nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Kinds of statements and expressions, comparisons, decorators, base classes, built-ins, containers' methods."""
    for node in nodes:
        if isinstance(node, (ast.stmt, ast.expr)):
            yield type(node).__name__
        if isinstance(node, ast.Compare):
            none = isinstance(node.comparators[-1], ast.Constant) and node.comparators[-1].value is None
            yield from (f"{type(op).__name__}{' None' if none else ''}" for op in node.ops)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield from (f"@{decorator_path(file, d).rpartition('.')[2]}" for d in node.decorator_list)
            yield from _definition(file, root, node)
        elif isinstance(node, ast.For):
            yield f"for over {file.path_of(node.iter.func) if isinstance(node.iter, ast.Call) else 'a value'}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and hasattr(builtins, node.func.id):
            yield f"{node.func.id}()"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_method(node.func.attr):
            yield f".{node.func.attr}()"


def _is_method(name: str) -> bool:
    return any(hasattr(kind, name) for kind in _CONTAINERS)


def _definition(file: SourceFile, root: Definition, node: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    if isinstance(node, ast.ClassDef):
        yield from (f"class({file.path_of(base).rpartition('.')[2]})" for base in node.bases)
        return
    if node is not root and not isinstance(file.parents[node], ast.ClassDef):
        yield "nested function"
    arguments = node.args
    yield from ("*args" for _ in [arguments.vararg] if arguments.vararg)
    yield from ("**kwargs" for _ in [arguments.kwarg] if arguments.kwarg)
    yield from ("keyword-only parameter" for _ in arguments.kwonlyargs)


if __name__ == "__main__":
    print(json.dumps(count_all(Path(sys.argv[1]), sys.argv[2]), indent=1))

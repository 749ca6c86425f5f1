"""The imports of a file, and what their names mean."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from trnrt.nki.porting.marks import PREFIX

OLD = "neuronxcc"


def is_old(tree: ast.Module, source: str) -> bool:
    """True if a file imports the old namespace, other than in lines that an earlier port left and marked."""
    above = ["", *source.split("\n")]
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    unmarked = [node for node in nodes if not above[node.lineno - 1].strip().startswith(PREFIX)]
    return any(module.split(".")[0] == OLD for node in unmarked for module, _, _ in find_imports(node))


def find_lines(tree: ast.Module) -> dict[str, int]:
    """The line where each module is imported first."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    found = [(module, node.lineno) for node in nodes for module, _, _ in find_imports(node)]
    return dict(reversed(found))


def find_imports(tree: ast.AST) -> Iterator[tuple[str, str | None, str]]:
    """(module, name of it or None, name in the file) of each import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None, alias.asname or alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield node.module, alias.name, alias.asname or alias.name


def find_import_lines(code: str) -> list[tuple[int, int]]:
    """The first and the last line of each import at the top level."""
    nodes = [node for node in ast.parse(code).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    return [(node.lineno, node.end_lineno or node.lineno) for node in nodes]


def aliases(tree: ast.Module) -> dict[str, str]:
    """The modules behind the file's names, of AWS and numpy, as in {"nl": "nki.language"}."""
    found = {}
    for module, name, alias in find_imports(tree):
        top = module.split(".")[0]
        if top not in (OLD, "numpy", "nki"):
            continue
        if name is None and alias == top and module != top:  # import neuronxcc.nki: the name is the top one
            found[alias] = top
            continue
        path = module if name is None else f"{module}.{name}"
        found[alias] = path.removeprefix(f"{OLD}.")
    return found | _allocators(tree, found)


def _allocators(tree: ast.Module, known: dict[str, str]) -> dict[str, str]:
    """Names for the allocators of nki.compiler, as in ``mod = ncc.sbuf.mod_alloc``."""
    found = {}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Attribute)
            and isinstance(node.targets[0], ast.Name)
        ):
            text = ast.unparse(node.value)
            top = text.split(".")[0]
            path = f"{known.get(top, top)}{text.removeprefix(top)}".removeprefix(f"{OLD}.")
            if path.startswith("nki.compiler."):
                found[node.targets[0].id] = path
    return found


def names_allocator(node: ast.stmt, meanings: Mapping[str, str]) -> bool:
    """True for ``mod = ncc.sbuf.mod_alloc``: nothing needs it today."""
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return False
    named = isinstance(node.value, ast.Attribute) and "alloc" in node.value.attr
    return named and meanings.get(node.targets[0].id, "").startswith("nki.compiler.")

"""The methods that NKI's lists and dictionaries have. Its tuples and strings have none."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from trnrt.nki.sim.subset_find import Place
from trnrt.nki.sim.subset_source import Scope

# Of each type, the methods and how many arguments they take at most: by KLR's Trace/Term.lean, which names them, and
# Trace/Python.lean, which defines them. Left out are list.sort, which is named but not defined, and list.count, which
# takes no argument there and returns the length.
METHODS: dict[str, dict[str, int]] = {
    "list": {"append": 1, "clear": 0, "copy": 0, "extend": 1, "index": 3, "pop": 0, "remove": 1, "reverse": 0},
    "dict": {"clear": 0, "copy": 0, "get": 2, "items": 0, "keys": 0, "pop": 2, "setdefault": 2, "values": 0},
    "tuple": {},
    "str": {},
}
_TYPES: dict[str, type] = {"list": list, "dict": dict, "tuple": tuple, "str": str}
_DISPLAYS = {ast.List: "list", ast.ListComp: "list", ast.Dict: "dict", ast.DictComp: "dict", ast.Tuple: "tuple"}


def missing_method(node: ast.Attribute, scope: Scope) -> Iterator[Place]:
    """A method that the type of a container or string does not have, or with more arguments than it takes.

    The type has to be certain: that of a literal, or of a name to which nothing else is assigned. The rule
    "string-operation" finds the methods of string literals.
    """
    call = scope.file.parents[node]
    given = len(call.args) + len(call.keywords) if isinstance(call, ast.Call) and call.func is node else 0
    refused = [kind for kind, methods in METHODS.items() if given > methods.get(node.attr, -1)]
    possible = [kind for kind in refused if hasattr(_TYPES[kind], node.attr)]
    if not possible or isinstance(node.value, (ast.Constant, ast.JoinedStr)):
        return
    kind = _name_type(node.value.id, scope) if isinstance(node.value, ast.Name) else _value_type(node.value, scope)
    if kind in possible:
        too_many = f" with {given} argument{'s' if given > 1 else ''}" if node.attr in METHODS[kind] else ""
        yield node, f"{kind}.{node.attr}(){too_many}"


def _name_type(name: str, scope: Scope) -> str | None:
    """The type of all values that a name of the function or module is assigned, if it is one."""
    nodes: Iterator[ast.AST] = iter(())
    if name in scope.local and scope.root is not None:
        nodes = ast.walk(scope.root)
    elif name in scope.file.values and name not in scope.outer and name not in scope.file.rebound:
        nodes = (node for node in ast.walk(scope.file.tree) if not _is_in_function(node, scope))
    kinds = {_bound_type(node, scope) for node in nodes if _binds(node, name)}
    return kinds.pop() if len(kinds) == 1 else None


def _is_in_function(node: ast.AST, scope: Scope) -> bool:
    return any(isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef)) for around in scope.file.ancestors(node))


def _binds(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Name):
        return node.id == name and not isinstance(node.ctx, ast.Load)
    names = [getattr(node, field, None) for field in ("arg", "name", "asname")]
    return name in names and not isinstance(node, ast.keyword)


def _bound_type(node: ast.AST, scope: Scope) -> str | None:
    statement = scope.file.parents.get(node)
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and statement.value is not None:
        return _value_type(statement.value, scope)
    return None


def _value_type(value: ast.expr, scope: Scope) -> str | None:
    if isinstance(value, ast.JoinedStr) or (isinstance(value, ast.Constant) and isinstance(value.value, str)):
        return "str"
    if isinstance(value, ast.BinOp):
        return _value_type(value.left, scope) or _value_type(value.right, scope)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in METHODS:
        name = value.func.id
        return name if scope.is_foreign(name) and name not in scope.file.module_names() | scope.outer else None
    return _DISPLAYS.get(type(value))

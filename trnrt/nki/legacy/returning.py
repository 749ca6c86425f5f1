"""Returns inside loops. AWS's compiler runs a loop's body once, so that a ``return`` at its end ends no loop early.

The SDK's own examples have such returns (2.26.1, nki/examples/prof-kernel.py). Here each trip runs the body: the return
is moved behind the loop, and a loop that is left early in another way is an error.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Iterator
from textwrap import dedent
from types import CodeType, FunctionType
from typing import Any

_LOOPS = ("affine_range", "sequential_range")


def hoist_returns(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with each return that ends a loop's body behind that loop; the function itself if it has none."""
    if not isinstance(function, FunctionType):
        return function
    try:
        tree = ast.parse(dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):  # it was made without a file
        return function
    node = tree.body[0]
    if not isinstance(node, ast.FunctionDef) or not _hoist(node.body):
        return function
    node.decorator_list = []
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    return _rebuild(function, node)


def _hoist(statements: list[ast.stmt]) -> bool:
    """Move the returns in a list of statements, the innermost first; True if one was moved."""
    moved = False
    for at, statement in reversed(list(enumerate(statements))):
        for inner in _bodies(statement):
            moved = _hoist(inner) or moved
        if isinstance(statement, ast.For) and _is_traced_once(statement) and isinstance(statement.body[-1], ast.Return):
            *rest, last = statement.body
            statement.body = rest or [ast.copy_location(ast.Pass(), last)]
            statements[at + 1 :] = [last]
            moved = True
    return moved


def _bodies(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The lists of statements inside one, but for those of functions and classes."""
    if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        for name in ("body", "orelse", "finalbody"):
            yield getattr(statement, name, [])


def _is_traced_once(loop: ast.For) -> bool:
    call = loop.iter
    name = call.func if isinstance(call, ast.Call) else None
    return (name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")) in _LOOPS


def _rebuild(function: FunctionType, node: ast.FunctionDef) -> Callable[..., Any]:
    """A function of this definition with the globals, the defaults and the closure of another."""
    names = function.__code__.co_freevars
    around = ast.parse(f"def around({', '.join(names)}): pass").body[0]
    assert isinstance(around, ast.FunctionDef)
    around.body = [node]
    module = ast.fix_missing_locations(ast.Module([around], []))
    (outer,) = _codes(compile(module, function.__code__.co_filename, "exec"))
    (code,) = (one for one in _codes(outer) if one.co_name == node.name)
    cells = dict(zip(names, function.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in code.co_freevars)
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(made, function)


def _codes(around: CodeType) -> list[CodeType]:
    """The codes of functions that are defined in one."""
    return [one for one in around.co_consts if isinstance(one, CodeType)]

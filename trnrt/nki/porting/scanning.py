"""A first pass over a function, before its statements are ported: its tensors, outputs and accumulators."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from trnrt.nki.porting.changes import stored_names
from trnrt.nki.porting.scope import File, Scope
from trnrt.nki.porting.tensors import Tensor

_PRODUCTS = ("nki.isa.nc_matmul", "nki.language.matmul")


def uses_nki(file: File, node: ast.FunctionDef) -> bool:
    """True if a function computes with ``nl`` or ``nisa``, or is decorated as a kernel."""
    calls = (child.func for child in ast.walk(node) if isinstance(child, ast.Call))
    paths = [file.resolve(func) or "" for func in calls]
    decorated = [file.resolve(_function(decorator)) or "" for decorator in node.decorator_list]
    return any(path.startswith(("nki.language.", "nki.isa.")) for path in paths) or any(
        path.startswith("nki.") for path in decorated
    )


def find_indexes(file: File, tree: ast.Module) -> frozenset[str]:
    """The names of the indexes that a file makes outside of its functions."""
    lines = [node for node in tree.body if isinstance(node, ast.Assign)]
    return frozenset(name for line in lines if makes_index(file, line) for name in stored_names(line))


def makes_index(file: File, node: ast.AST) -> bool:
    """True if a statement calls ``nl.arange``, or slices ``nl.mgrid``."""
    return any(file.resolve(n) in _INDEXES for n in ast.walk(node) if isinstance(n, (ast.Attribute, ast.Name)))


_INDEXES = ("nki.language.arange", "nki.language.mgrid")


def _function(decorator: ast.expr) -> ast.expr:
    return decorator.func if isinstance(decorator, ast.Call) else decorator


def scan(file: File, node: ast.FunctionDef, outer: Scope | None = None) -> Scope:
    """The scope of a function at its start; ``outer``: that of the function that it stands in, whose names it reads."""
    taken = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
    taken |= {argument.arg for argument in _arguments(node)} | set(file.aliases)
    own = frozenset(stored_names(node) | {argument.arg for argument in _arguments(node)})
    scope = Scope(file, taken, own=own, outputs=_outputs(node), accumulators=_accumulators(file, node))
    if outer is not None:
        scope.held = outer.held.copy()
        for name in own:
            scope.forget(name)
    jit = any((file.resolve(_function(d)) or "").startswith("nki.") for d in node.decorator_list)
    tensors = _tensor_names(file, node)
    for argument in _arguments(node):
        if argument.arg in tensors:
            scope.values[argument.arg] = Tensor(argument.arg, "hbm" if jit else "", whole=True)
    return scope


def _arguments(node: ast.FunctionDef) -> list[ast.arg]:
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def _tensor_names(file: File, node: ast.FunctionDef) -> set[str]:
    """The names that are used as tensors: a shape, a dtype, brackets, an argument of a function on tensors."""
    found = set()
    for child in ast.walk(node):
        if (
            isinstance(child, ast.Attribute) and child.attr in ("shape", "dtype", "reshape", "broadcast_to")
        ) or isinstance(child, ast.Subscript):
            found |= _names(child.value)
        elif isinstance(child, ast.Call):
            path = file.resolve(child.func) or ""
            if path.startswith("nki.isa.") or path in ("nki.language.load", "nki.language.store"):
                keywords = [k.value for k in child.keywords if k.arg in _TENSOR_ARGUMENTS]
                for argument in [*child.args[:1], *keywords]:
                    found |= _names(argument)
    return found


_TENSOR_ARGUMENTS = ("src", "dst", "data", "data1", "data2", "stationary", "moving", "value")


def _names(node: ast.expr) -> set[str]:
    return {node.id} if isinstance(node, ast.Name) else set()


def _outputs(node: ast.FunctionDef) -> frozenset[str]:
    """The names that are returned, and those that they are views of."""
    found = set()
    for child in ast.walk(node):
        if isinstance(child, ast.Return) and child.value is not None:
            items = child.value.elts if isinstance(child.value, (ast.Tuple, ast.List)) else [child.value]
            found |= {name for item in items for name in find_roots(item)}
    for child in ast.walk(node):
        if isinstance(child, ast.Assign) and isinstance(child.targets[0], ast.Name) and child.targets[0].id in found:
            found |= set(find_roots(child.value))
    return frozenset(found)


def find_roots(node: ast.expr) -> Iterator[str]:
    """The name that views are made of, as in ``out.reshape(shape)``."""
    while isinstance(node, (ast.Call, ast.Attribute, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    if isinstance(node, ast.Name):
        yield node.id


def _accumulators(file: File, node: ast.FunctionDef) -> frozenset[str]:
    """The names of tiles that nothing is written into but sums of matrix products."""
    summed, written = set[str](), set[str]()
    for child in ast.walk(node):
        if isinstance(child, ast.AugAssign):
            names = set(find_roots(child.target))
            call = child.value.func if isinstance(child.value, ast.Call) else None
            product = call is not None and file.resolve(call) in _PRODUCTS and isinstance(child.op, ast.Add)
            (summed if product else written).update(names)
        elif isinstance(child, ast.Assign) and isinstance(child.targets[0], ast.Subscript):
            written |= set(find_roots(child.targets[0]))
    return frozenset(summed - written)

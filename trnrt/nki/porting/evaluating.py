"""Expressions: from the old namespace's syntax to today's, with what is known of the values."""

from __future__ import annotations

import ast
from copy import copy as copy_node
from typing import Any

from trnrt.nki.porting import operators
from trnrt.nki.porting.indexes import AFFINE, Grid, Index, combine, grid, negative, place
from trnrt.nki.porting.marks import UntranslatedError
from trnrt.nki.porting.scope import NUMPY_OPERATORS, Scope, Value
from trnrt.nki.porting.tensors import Bounds, Plain, Tensor, plus
from trnrt.nki.porting.views import Key, Slice, size_of, view

_GRID_NAMES = {"p": 0, "x": 1, "y": 2, "z": 3}


def evaluate(scope: Scope, node: ast.expr, bounds: Bounds | None = None) -> Value:
    """The value of an expression; ``bounds``: what the mask of the call around it leaves of its operands."""
    if isinstance(node, ast.Name):
        return scope.look_up(node.id) or _name_today(scope, node)
    if isinstance(node, ast.Attribute):
        return _attribute(scope, node)
    if isinstance(node, ast.Subscript):
        return _subscript(scope, node, bounds or {})
    if isinstance(node, ast.BinOp):
        return _binary(scope, node, bounds)
    if isinstance(node, ast.UnaryOp):
        return _unary(scope, node)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _compare(scope, node)
    if isinstance(node, ast.Call):
        assert scope.file.call is not None
        return scope.file.call(scope, node)
    return Plain(_Rewriter(scope).rewrite_children(node))


def text_of(scope: Scope, node: ast.expr) -> str:
    """The text of an expression in the ported file."""
    return ast.unparse(as_node(scope, evaluate(scope, node)))


def as_node(scope: Scope, value: Value, hint: str = "tile") -> ast.expr:
    """A value as an expression; a result without a tensor gets one."""
    if isinstance(value, Plain):
        return value.node
    if isinstance(value, Tensor):
        text = value.text if value.text is not None else scope.bind(value, hint).text
        return ast.parse(str(text), mode="eval").body
    raise UntranslatedError("an index of nl.arange or nl.mgrid is used outside of a tensor's brackets", AFFINE)


class _Rewriter(ast.NodeTransformer):
    """Rewrites the expressions inside another."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def rewrite_children(self, node: ast.expr) -> ast.expr:
        if isinstance(node, (ast.Lambda, ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.SetComp, ast.JoinedStr)):
            _check_inner(self.scope, node)
            return node
        copy = copy_node(node)
        for name, value in ast.iter_fields(copy):
            setattr(copy, name, self._rewrite(value))
        return copy

    def _rewrite(self, value: Any) -> Any:
        if isinstance(value, ast.expr):
            return as_node(self.scope, evaluate(self.scope, value))
        if isinstance(value, list):
            return [self._rewrite(item) for item in value]
        if isinstance(value, ast.keyword):
            return ast.keyword(value.arg, self._rewrite(value.value))
        return value


def _check_inner(scope: Scope, node: ast.expr) -> None:
    """A lambda, a comprehension or an f-string stays as it is: it must not compute with tiles or indexes."""
    kind = {ast.Lambda: "a lambda", ast.JoinedStr: "an f-string"}.get(type(node), "a comprehension")
    apart = {id(child.value) for child in ast.walk(node) if isinstance(child, ast.Attribute)}  # as in x.shape
    apart |= {id(child.iter) for child in ast.walk(node) if isinstance(child, ast.comprehension)}  # a list, not a tile
    for child in ast.walk(node):
        path = (scope.file.resolve(child.func) or "") if isinstance(child, ast.Call) else ""
        held = scope.look_up(child.id) if isinstance(child, ast.Name) and id(child) not in apart else None
        computes = path.startswith(("nki.language.", "nki.isa.")) or isinstance(held, Tensor)
        if isinstance(held, (Index, Grid)) or (computes and not isinstance(node, ast.JoinedStr)):
            raise UntranslatedError(f"{kind} with tiles or indexes", "write a loop, or compute it in statements before")


def rewrite_children(scope: Scope, node: ast.expr) -> ast.expr:
    """The expression with the parts of it rewritten."""
    return _Rewriter(scope).rewrite_children(node)


def _name_today(scope: Scope, node: ast.expr) -> Plain:
    """A name of a module, by what it is called today."""
    path = scope.file.resolve(node)
    if path is not None and path.startswith("numpy.") and path[6:] in NUMPY_OPERATORS:
        return Plain(_parse(scope.nl(NUMPY_OPERATORS[path[6:]])))
    if path is not None and path.startswith(("nki.language.", "nki.isa.")):
        return _spell_today(scope, path)
    return Plain(node)


_RENAMED = {"fp32": "float32", "float8e4": "float8_e4m3", "float8e5": "float8_e5m2"}
_LIMITS = {"nki.language.fp32.min": "-3.4028235e+38", "nki.language.fp32.max": "3.4028235e+38"}


def _spell_today(scope: Scope, path: str) -> Plain:
    if path in _LIMITS:
        return Plain(_parse(_LIMITS[path]))
    module, _, name = path.rpartition(".")
    if module in ("nki.language", "nki.isa"):
        return Plain(_parse(scope.file.spell(f"{module}.{_RENAMED.get(name, name)}")))
    outer, _, inner = module.rpartition(".")
    return (
        Plain(_parse(f"{scope.file.spell(f'{outer}.{inner}')}.{name}"))
        if outer in ("nki.language", "nki.isa")
        else (Plain(_parse(path)))
    )


def _parse(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _attribute(scope: Scope, node: ast.Attribute) -> Value:
    path = scope.file.resolve(node)
    if path is not None:
        return _name_today(scope, node)
    base = evaluate(scope, node.value)
    if isinstance(base, Grid) and node.attr in _GRID_NAMES and _GRID_NAMES[node.attr] < len(base.indexes):
        return base.indexes[_GRID_NAMES[node.attr]]
    if isinstance(base, (Grid, Index)):
        raise UntranslatedError(f".{node.attr} of an index of nl.arange or nl.mgrid", AFFINE)
    if isinstance(base, Tensor) and node.attr == "shape" and base.partition:
        raise UntranslatedError(
            "the shape of a tensor whose partition dimension moved to the front", "name the sizes that it was made of"
        )
    return Plain(ast.Attribute(as_node(scope, base), node.attr, ast.Load()))


def _subscript(scope: Scope, node: ast.Subscript, bounds: Bounds) -> Value:
    keys = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
    if scope.file.resolve(node.value) == "nki.language.mgrid":
        return grid(keys)
    if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
        size = _size_of_block(scope, node.value, node.slice)
        if size is not None:
            return size
    base = evaluate(scope, node.value)
    if isinstance(base, Grid):
        at = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if isinstance(at, int) and 0 <= at < len(base.indexes):
            return base.indexes[at]
        raise UntranslatedError("nl.mgrid is indexed by something but a number", AFFINE)
    if isinstance(base, Index):
        return place(base, keys)
    if isinstance(base, Tensor):
        return view(scope.bind(base, "tile"), [parse_key(scope, key) for key in keys], bounds)
    return Plain(rewrite_children(scope, node))


def _size_of_block(scope: Scope, attribute: ast.Attribute, key: ast.expr) -> Plain | None:
    """``t.shape[1]`` of a tensor whose partition dimension moved: the size that it means now."""
    base = evaluate(scope, attribute.value)
    if not isinstance(base, Tensor) or not base.partition or not isinstance(key, ast.Constant):
        return None
    return Plain(_parse(base.size(base.new_dim(int(str(key.value))))))


def parse_key(scope: Scope, key: ast.expr) -> Key | None:
    """A key of a tensor's brackets; None for an ellipsis."""
    if isinstance(key, ast.Constant) and key.value is Ellipsis:
        return None
    if isinstance(key, ast.Constant) and key.value is None:
        raise UntranslatedError("None in a tensor's brackets", "write .expand_dim(dim)")
    if isinstance(key, ast.Slice):
        start, stop, step = (
            None if part is None else text_of(scope, part) for part in (key.lower, key.upper, key.step)
        )
        return Slice(start, stop, step, size_of(start, stop, step))
    if isinstance(key, ast.Call) and scope.file.resolve(key.func) == "nki.language.ds":
        start, size = (text_of(scope, argument) for argument in key.args)
        return Slice(start, plus(start, size), None, size)
    value = evaluate(scope, key)
    if isinstance(value, Index):
        return value
    if isinstance(value, Tensor):
        raise UntranslatedError(
            "a tile of run-time numbers indexes a tensor",
            "gather by DMA: tensor.ap(pattern, vector_offset=tile, indirect_dim=0)",
        )
    return ast.unparse(as_node(scope, value))


def _binary(scope: Scope, node: ast.BinOp, bounds: Bounds | None) -> Value:
    left, right = evaluate(scope, node.left), evaluate(scope, node.right)
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return operators.binary(scope, node.op, left, right)
    if isinstance(left, Index) or isinstance(right, Index):
        return combine(_operand(scope, left), node.op, _operand(scope, right))
    return Plain(ast.BinOp(as_node(scope, left), node.op, as_node(scope, right)))


def _operand(scope: Scope, value: Value) -> Index | ast.expr:
    return value if isinstance(value, Index) else as_node(scope, value)


def _unary(scope: Scope, node: ast.UnaryOp) -> Value:
    value = evaluate(scope, node.operand)
    if isinstance(value, Tensor):
        return operators.unary(scope, node.op, value)
    if isinstance(value, Index) and isinstance(node.op, ast.USub):
        return negative(value)
    return Plain(ast.UnaryOp(node.op, as_node(scope, value)))


def _compare(scope: Scope, node: ast.Compare) -> Value:
    left, right = evaluate(scope, node.left), evaluate(scope, node.comparators[0])
    identity = isinstance(node.ops[0], (ast.Is, ast.IsNot, ast.In, ast.NotIn))
    if not identity and (isinstance(left, Tensor) or isinstance(right, Tensor)):
        return operators.binary(scope, node.ops[0], left, right)
    if isinstance(left, Index) or isinstance(right, Index):
        raise UntranslatedError("a comparison of indexes is a tile of truths", "use nisa.affine_select or nisa.iota")
    return Plain(ast.Compare(as_node(scope, left), node.ops, [as_node(scope, right)]))

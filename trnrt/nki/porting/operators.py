"""Arithmetic on tiles: Python's operators and the functions of ``nl`` that they mean.

Today's ``nl.add(x, y)`` takes tiles of one shape, or a tile and a number. What the old namespace repeated by itself,
dimensions of size 1, is repeated by views here: where the sizes can't be read, by the helper ``spread``.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from trnrt.nki.porting.marks import UntranslatedError
from trnrt.nki.porting.scope import Scope, Value
from trnrt.nki.porting.tensors import Bound, Make, Plain, Tensor, narrow, same

OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.Pow: "power",
    ast.BitAnd: "bitwise_and",
    ast.BitOr: "bitwise_or",
    ast.BitXor: "bitwise_xor",
    ast.LShift: "left_shift",
    ast.RShift: "right_shift",
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
}
_POWERS = {"2": "square", "0.5": "sqrt", "-0.5": "rsqrt", "-1": "reciprocal"}
_REMAINDER = "write x - y * nl.floor(x / y), with nl.multiply and nl.reciprocal for the quotient"
_INSTEAD: dict[type[ast.AST], str] = {
    ast.Mod: _REMAINDER,
    ast.FloorDiv: "write nl.floor(nl.multiply(x, nl.reciprocal(y)))",
    ast.MatMult: "write nisa.nc_matmul",
}


def binary(scope: Scope, operator: ast.AST, left: Value, right: Value, *, in_place: bool = False) -> Tensor:
    """An operator of Python whose operands have a tile among them."""
    name = OPERATORS.get(type(operator))
    if name is None:
        instead = _INSTEAD.get(type(operator), "write it with functions of nl")
        raise UntranslatedError(f"{type(operator).__name__} of tiles has no instruction", instead)
    return apply(scope, name, left, right, in_place=in_place)


def unary(scope: Scope, operator: ast.AST, value: Tensor) -> Tensor:
    if isinstance(operator, ast.UAdd):
        return value
    if not isinstance(operator, ast.USub):
        raise UntranslatedError("~ or not of a tile", "write nl.invert(x) or nl.logical_not(x)")
    value = scope.bind(value, "tile")
    return replace(_result(value), text=f"{scope.nl('negative')}({value.text})")


def apply(
    scope: Scope,
    name: str,
    left: Value,
    right: Value,
    dtype: str | None = None,
    bounds: dict[int, Bound] | None = None,
    parts: tuple[Value, Value] | None = None,
    *,
    in_place: bool = False,
) -> Tensor:
    """``nl.<name>(left, right)`` in a form that the hardware accepts.

    ``bounds``: what a mask leaves; ``parts``: that part of the operands, if their own slices say it. ``in_place``: the
    result has the shape of ``left``.
    """
    x, y = (scope.bind(v, name) if isinstance(v, Tensor) else v for v in map(scope.refresh, (left, right)))
    if name in ("mod", "fmod"):
        raise UntranslatedError(f"nl.{name} fails on hardware", _REMAINDER)
    if name == "divide":
        return _divide(scope, x, y, dtype, bounds, parts)
    whole = _common(x, y)
    if bounds:
        x, y = parts or (narrow(v, bounds) if isinstance(v, Tensor) else v for v in (x, y))
    if name == "power":
        return replace(_power(scope, x, y, dtype), shape=whole.shape, root=_root(whole))
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        spread = _spread(scope, x, y, cut=bool(bounds))
        x, y = (x, spread[1]) if in_place else spread
    first, second = _text(x), _text(y)
    option = f", dtype={dtype}" if dtype else ""
    text = f"{scope.nl(name)}({first}, {second}{option})"
    made = _instruction(scope, name, x, y)
    bounded = tuple((bounds or {}).items())
    return Tensor(text, "sbuf", whole.shape, dtype, make=made, root=_root(whole), bounds=bounded)


def _root(x: Tensor) -> str | None:
    return x.root or (x.text if x.whole and x.shape is None else None)


def _common(x: Value, y: Value) -> Tensor:
    """The result's shape and dtype as far as they are known: those of the operand with fewer dimensions of size 1."""
    tensors = [value for value in (x, y) if isinstance(value, Tensor)]
    assert tensors
    if len(tensors) == 1 or (tensors[0].root is not None and tensors[0].root == tensors[1].root):
        return tensors[0]
    one, other = tensors[0].shape, tensors[1].shape
    if one is None or other is None or len(one) != len(other):
        return replace(tensors[0], shape=None, root=None)
    sizes = tuple(b if a == "1" else a if b == "1" or a is not None else b for a, b in zip(one, other, strict=True))
    return replace(tensors[0], shape=sizes, root=None)


def _instruction(scope: Scope, name: str, x: Value, y: Value) -> Make | None:
    """The instruction that writes the result into an existing tensor; None if only a copy can."""
    nisa, op = scope.nisa, scope.nl(name)
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        if "sbuf" not in (x.space, y.space):
            return None
        tensor = nisa("tensor_tensor")
        return lambda dst: f"{tensor}(dst={dst}, data1={x.text}, data2={y.text}, op={op})"
    data, number, reverse = (x, y, "") if isinstance(x, Tensor) else (y, x, ", reverse0=True")
    assert isinstance(data, Tensor) and isinstance(number, Plain)
    if not isinstance(number.node, (ast.Constant, ast.UnaryOp)):
        return None
    scalar = nisa("tensor_scalar")
    return lambda dst: f"{scalar}(dst={dst}, data={data.text}, op0={op}, operand0={_text(number)}{reverse})"


def _spread(scope: Scope, x: Tensor, y: Tensor, *, cut: bool) -> tuple[Tensor, Tensor]:
    """Both with their dimensions of size 1 repeated, as far as the other has more; ``cut``: a mask leaves a part."""
    if x.shape is not None and y.shape is not None and len(x.shape) == len(y.shape):
        if all(same(a, b) for a, b in zip(x.shape, y.shape, strict=True)):
            return x, y
        known = [_repeats(a, b) for a, b in zip(x.shape, y.shape, strict=True)]
        if all(verdict is not None for verdict in known):
            return _repeat(scope, x, y, known, 0, cut), _repeat(scope, y, x, known, 1, cut)
    if x.text == y.text or (_root(x) is not None and _root(x) == _root(y)):
        return x, y
    spread = scope.helper("spread")
    return replace(x, text=f"{spread}({x.text}, {y.text})"), replace(y, text=f"{spread}({y.text}, {x.text})")


def _repeats(a: str | None, b: str | None) -> int | None:
    """The size that is repeated: 0 for the first, 1 for the second, 2 for neither; None if their text doesn't say."""
    if same(a, b):
        return 2
    if a is None or b is None or "1" not in (a, b):
        return None
    return 0 if a == "1" else 1


def _repeat(scope: Scope, x: Tensor, like: Tensor, known: list[int | None], which: int, cut: bool) -> Tensor:
    """``x`` with the dimensions repeated that ``known`` says: views of free ones, one copy of its partition."""
    dims = [dim for dim, verdict in enumerate(known) if verdict == which]
    if not dims:
        return x
    text = str(x.text)
    if 0 in dims:
        sizes = [_size(like, 0, cut), *[_size(x, dim, cut) for dim in range(1, len(known))]]
        text = f"{scope.nl('broadcast_to')}({text}, ({', '.join(sizes)}))"
    for dim in dims:
        if dim:
            text += f".broadcast({dim}, {_size(like, dim, cut)})"
    return replace(x, text=text, space="sbuf" if 0 in dims else x.space)


def _size(tensor: Tensor, dim: int, cut: bool) -> str:
    """A size; of a part of a tensor the one that it has when the kernel is traced."""
    return f"{tensor.text}.shape[{dim}]" if cut else tensor.size(dim)


def _divide(
    scope: Scope,
    x: Value,
    y: Value,
    dtype: str | None,
    bounds: dict[int, Bound] | None,
    parts: tuple[Value, Value] | None,
) -> Tensor:
    """A quotient: the hardware has reciprocals and products only."""
    if isinstance(y, Plain):
        inverse = Plain(ast.BinOp(ast.Constant(1), ast.Div(), y.node))
        return apply(scope, "multiply", x, inverse, dtype, bounds, parts and (parts[0], inverse))
    assert isinstance(y, Tensor)
    y = scope.bind(y, "divisor")
    inverse_tile = replace(_result(y), text=f"{scope.nl('reciprocal')}({y.text})", dtype=y.dtype)
    if isinstance(x, Plain) and isinstance(x.node, ast.Constant) and x.node.value == 1 and not bounds:
        return inverse_tile
    made = scope.bind(inverse_tile, "inverse")
    return apply(scope, "multiply", x, made, dtype, bounds, parts and (parts[0], narrow(made, bounds or {})))


def _power(scope: Scope, x: Value, y: Value, dtype: str | None) -> Tensor:
    if isinstance(x, Tensor) and isinstance(y, Plain):
        function = _POWERS.get(ast.unparse(y.node))
        if function is None:
            raise UntranslatedError("a power by a number fails on hardware", "write products, or nl.exp and nl.log")
        option = f", dtype={dtype}" if dtype else ""
        return replace(_result(x), text=f"{scope.nl(function)}({x.text}{option})")
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return replace(_result(x), text=f"{scope.nl('power')}({x.text}, {y.text})")
    raise UntranslatedError("a number to the power of a tile fails on hardware", "write nl.exp(y * log(x))")


def _result(x: Tensor) -> Tensor:
    return Tensor(None, "sbuf", x.shape, root=_root(x))


def _text(value: Value) -> str:
    if isinstance(value, Tensor):
        return str(value.text)
    if isinstance(value, Plain):
        return ast.unparse(value.node)
    raise UntranslatedError("an index of nl.arange or nl.mgrid as an operand of tiles", "make a tile of it: nisa.iota")


def spread_all(scope: Scope, given: dict[str, Tensor], *, cut: bool) -> dict[str, Tensor]:
    """The two operands of an instruction, repeated where one is smaller; ``cut``: a mask leaves a part of them."""
    (first, x), (second, y) = given.items()
    left, right = _spread(scope, x, y, cut=cut)
    return {first: left, second: right}

"""Simple statements: assignments, accumulations, calls and returns, as statements of today's NKI."""

from __future__ import annotations

import ast
from dataclasses import replace

from trnrt.nki.porting import operators
from trnrt.nki.porting.changes import outdate, stored_names
from trnrt.nki.porting.evaluating import as_node, evaluate, parse_key, text_of
from trnrt.nki.porting.indexes import Grid, Index
from trnrt.nki.porting.marks import UntranslatedError
from trnrt.nki.porting.scanning import find_roots
from trnrt.nki.porting.scope import Scope, Value
from trnrt.nki.porting.tensors import Bounds, Plain, Tensor, narrow, replace_text
from trnrt.nki.porting.views import view


def port_statement(scope: Scope, node: ast.stmt) -> list[str]:
    """The statements that take the place of one; none if it is needed no more.

    Raises:
        UntranslatedError: if it has no translation.
    """
    _check_leaving(scope, node)
    scope.before, held, names = [], scope.held.copy(), stored_names(node)
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        last = _assign(scope, node.targets[0], node.value)
    elif isinstance(node, ast.Assign):
        last = _assign_in_turn(scope, node)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        last = _annotate(node, _assign(scope, node.target, node.value))
    elif isinstance(node, ast.AugAssign):
        last = _accumulate(scope, node)
    elif isinstance(node, ast.Expr):
        last = _expression(scope, node)
    elif isinstance(node, ast.Return) and node.value is not None:
        value = evaluate(scope, node.value)
        last = [f"return {ast.unparse(as_node(scope, value, 'result'))}"]
    else:
        last = [_rewritten(scope, node)]
    lines = [*scope.before, *last]
    _check_builtins(scope, lines)
    outdate(scope, names, held)
    return lines


def _check_leaving(scope: Scope, node: ast.stmt) -> None:
    """A statement that leaves a loop is refused if the old compiler ran the body's Python once, for all trips."""
    is_left = any(scope.loops) if isinstance(node, ast.Return) else scope.loops[-1:] == [True]
    if is_left and isinstance(node, (ast.Return, ast.Break)):
        word, instead = (
            ("return", "write it behind the loop") if isinstance(node, ast.Return) else ("break", "stop at its bound")
        )
        raise UntranslatedError(f"a {word} leaves a loop that AWS traced once, for all trips", instead)


def _annotate(node: ast.AnnAssign, lines: list[str]) -> list[str]:
    """The annotation stays with what is assigned as it was; the type of an old tile has no meaning today."""
    name, value = ast.unparse(node.target), ast.unparse(node.value) if node.value else ""
    return [ast.unparse(node)] if lines == [f"{name} = {value}"] else lines


def _assign_in_turn(scope: Scope, node: ast.Assign) -> list[str]:
    """``a = b = value``: the first name, and then the others by it."""
    first, *others = node.targets
    if not isinstance(first, ast.Name):
        return [_rewritten(scope, node)]
    lines = _assign(scope, first, node.value)
    for target in others:
        lines += _assign(scope, target, ast.Name(first.id))
    return lines


def _check_builtins(scope: Scope, lines: list[str]) -> None:
    """Slices are written with min and max: the function must not have variables of those names."""
    for line in lines:
        called = {child.func.id for child in _calls(line) if isinstance(child.func, ast.Name)}
        for name in sorted(called & scope.own & {"min", "max"}):
            raise UntranslatedError(f"a variable of the function is called {name}", "give it another name")


def _calls(line: str) -> list[ast.Call]:
    return [child for child in ast.walk(ast.parse(line)) if isinstance(child, ast.Call)]


def _rewritten(scope: Scope, node: ast.stmt) -> str:
    """Another statement, with its expressions rewritten."""
    for name, value in ast.iter_fields(node):
        if isinstance(value, ast.expr) and name != "target":
            setattr(node, name, as_node(scope, evaluate(scope, value)))
    return ast.unparse(node)


def _expression(scope: Scope, node: ast.Expr) -> list[str]:
    value = evaluate(scope, node.value)
    if isinstance(value, Tensor) and value.text is None:
        scope.bind(value, "unused")
        return []
    made = as_node(scope, value)
    is_docstring = isinstance(made, ast.Constant) and made.value is not None
    return [] if isinstance(made, ast.Constant) and not is_docstring else [ast.unparse(made)]


def _assign(scope: Scope, target: ast.expr, node: ast.expr) -> list[str]:
    if isinstance(target, ast.Subscript) and isinstance(evaluate(scope, target.value), Tensor):
        value = evaluate(scope, node)
        place = _destination(scope, target, dict(value.bounds) if isinstance(value, Tensor) else {})
        assert place is not None
        return _write(scope, place, value)
    if isinstance(target, ast.Tuple):
        return _unpack(scope, target, node)
    if not isinstance(target, ast.Name):
        return [f"{text_of(scope, target)} = {text_of(scope, node)}"]
    mask = _mask_of(scope, node)
    if mask is not None:
        scope.forget(target.id)
        scope.held.masks[target.id] = mask
        return _drop(scope, target.id, f"{target.id} = {ast.unparse(node)}")
    value = evaluate(scope, node)
    if isinstance(value, (Index, Grid)):
        scope.forget(target.id)
        scope.values[target.id] = value
        return _drop(scope, target.id, f"{target.id} = {ast.unparse(node)}")
    return _name(scope, target.id, value)


def _drop(scope: Scope, name: str, text: str) -> list[str]:
    """Leave out an index or a mask, unless a marked statement needs it still."""
    scope.dropped.add(name)
    if name not in scope.kept:
        return []
    scope.missed |= {child.id for child in ast.walk(ast.parse(text)) if isinstance(child, ast.Name)}
    return [text]


def _mask_of(scope: Scope, node: ast.expr) -> ast.expr | None:
    """A comparison of indexes, or several that hold together, without names of other masks; else None."""
    if isinstance(node, ast.Name) and node.id in scope.held.masks:
        scope.check_stale(node.id)
        return scope.held.masks[node.id]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
        left, right = _mask_of(scope, node.left), _mask_of(scope, node.right)
        if left is None and right is None:
            return None
        return ast.BinOp(left or node.left, node.op, right or node.right)
    if not isinstance(node, ast.Compare):
        return None
    before = list(scope.before)
    values = [evaluate(scope, side) for side in (node.left, *node.comparators)]
    scope.before = before
    return node if any(isinstance(value, Index) for value in values) else None


def _name(scope: Scope, name: str, value: Value) -> list[str]:
    """``name = value``. A result that reads the tile of that name needs another tile first."""
    if isinstance(value, Plain):
        scope.forget(name)
        return [f"{name} = {ast.unparse(value.node)}"]
    assert isinstance(value, Tensor)
    if value.text is None:
        assert value.make is not None
        used = {n.id for n in ast.walk(ast.parse(value.make(name + "_"))) if isinstance(n, ast.Name)}
        used |= {n.id for n in ast.walk(ast.parse(value.shape_text())) if isinstance(n, ast.Name)}
        if name in used:
            made = scope.bind(value, f"{name}_new")
            scope.values[name] = replace_text(made, name)
            return [f"{name} = {made.text}"]
        scope.make(value, name)
        _hold(scope, name, value)
        return []
    text = value.text
    if name in scope.accumulators and not text.startswith((scope.nl("zeros"), scope.nl("ndarray"))):
        scope.accumulators -= {name}  # it starts with other numbers
    if name in scope.accumulators and value.space == "psum" and text.startswith(scope.nl("zeros")):
        text = scope.nl("ndarray") + text.removeprefix(scope.nl("zeros"))
    if name in scope.outputs and value.whole:
        text = text.replace(f"buffer={scope.nl('private_hbm')}", f"buffer={scope.nl('shared_hbm')}")
    _hold(scope, name, value)
    return [f"{name} = {text}"]


def _hold(scope: Scope, name: str, value: Tensor) -> None:
    if value.root == name:
        value = replace(value, root=None)
    scope.forget(name)
    scope.values[name] = replace(replace_text(value, name), dtype=f"{name}.dtype")


def _unpack(scope: Scope, target: ast.Tuple, node: ast.expr) -> list[str]:
    """``a, b = ...``: of nl.mgrid, of a shape, of several values."""
    names = [item.id if isinstance(item, ast.Name) else None for item in target.elts]
    if isinstance(node, ast.Attribute) and node.attr == "shape":
        base = evaluate(scope, node.value)
        if isinstance(base, Tensor) and isinstance(node.value, ast.Name) and base.shape is None:
            scope.values[node.value.id] = replace(base, shape=tuple(names))
    if isinstance(node, ast.Tuple) and len(node.elts) == len(target.elts) and None not in names:
        return _assign_each(scope, [str(name) for name in names], node.elts)
    value = evaluate(scope, node)
    if isinstance(value, Grid):
        pairs = zip(names, value.indexes, strict=False)
        lines = [line for name, index in pairs for line in _hold_index(scope, name, index, node)]
        return [f"{ast.unparse(target)} = {ast.unparse(node)}"] if lines else []
    for name in names:
        if name is not None:
            scope.forget(name)
            if isinstance(value, Tensor):
                scope.values[name] = Tensor(name)
    return [f"{ast.unparse(target)} = {ast.unparse(as_node(scope, value))}"]


def _assign_each(scope: Scope, names: list[str], nodes: list[ast.expr]) -> list[str]:
    """``a, b = x, y``, one after the other; together, if a name is on both sides or none is of a tile."""
    values = [evaluate(scope, node) for node in nodes]
    if all(isinstance(value, (Index, Grid)) for value in values):
        each = zip(names, values, nodes, strict=True)
        return [line for name, value, source in each for line in _hold_index(scope, name, value, source)]
    read = {child.id for node in nodes for child in ast.walk(node) if isinstance(child, ast.Name)}
    if all(isinstance(value, Plain) for value in values) or read & set(names):
        held = [scope.bind(value, "tile") if isinstance(value, Tensor) else value for value in values]
        texts = [ast.unparse(as_node(scope, value)) for value in held]
        for name, value in zip(names, held, strict=True):
            scope.forget(name)
            if isinstance(value, Tensor):
                _hold(scope, name, value)
        return [f"{', '.join(names)} = {', '.join(texts)}"]
    for name, value, source in zip(names, values, nodes, strict=True):
        if isinstance(value, (Index, Grid)):
            scope.before += _hold_index(scope, name, value, source)
        else:
            scope.before += _name(scope, name, value)
    return []


def _hold_index(scope: Scope, name: str | None, value: Value, source: ast.expr) -> list[str]:
    if name is None:
        return []
    scope.forget(name)
    scope.values[name] = value
    return _drop(scope, name, f"{name} = {ast.unparse(source)}")


def _destination(scope: Scope, target: ast.Subscript, bounds: Bounds) -> Tensor | None:
    """The view that a subscript on the left is, if it is one of a tensor; cut to what a mask leaves."""
    base = evaluate(scope, target.value)
    if not isinstance(base, Tensor):
        return None
    keys = list(target.slice.elts) if isinstance(target.slice, ast.Tuple) else [target.slice]
    place = view(scope.bind(base, "tile"), [parse_key(scope, key) for key in keys], bounds)
    return narrow(place, bounds) if place.whole else place


def _write(scope: Scope, place: Tensor, value: Value) -> list[str]:
    """``place[...] = value``: the instruction writes there, or a copy does."""
    if isinstance(value, Plain):
        return _fill(scope, place, value)
    if not isinstance(value, Tensor):
        raise UntranslatedError("an index of nl.arange is assigned to a tile", "write nisa.iota(dst=...)")
    if value.space == "psum" and place.space != "psum" and value.text is None:
        value = replace(scope.bind(replace(value, bounds=()), "product"), bounds=value.bounds)
    if place.space == "hbm" and not (value.make is not None and "dma_copy" in value.make("d")):
        value = scope.bind(value, "stored")
        return [f"{scope.nisa('dma_copy')}(dst={place.text}, src={value.text})"]
    if value.make is not None:
        made = value.make(str(place.text))
        return [made[:-1] + ", accumulate=False)" if value.matmul and "accumulate" not in made else made]
    return [f"{scope.nisa('tensor_copy')}(dst={place.text}, src={narrow(value, dict(value.bounds)).text})"]


def _accumulates(scope: Scope, place: Tensor) -> bool:
    """True if the tensor engine adds up there: in PSUM, where nothing but products is written.

    The first product overwrites. Of a tile that a function is given nothing is known: it is taken for such a one.
    """
    root = next(iter(find_roots(ast.parse(str(place.text), mode="eval").body)), "")
    return place.space == "" or (place.space == "psum" and root in scope.accumulators)


def _fill(scope: Scope, place: Tensor, value: Plain) -> list[str]:
    number = isinstance(value.node, (ast.Constant, ast.UnaryOp))
    if isinstance(value.node, ast.Call) or place.space == "hbm":
        text = ast.unparse(value.node)
        copy = "dma_copy" if place.space == "hbm" else "tensor_copy"
        return [f"{scope.nisa(copy)}(dst={place.text}, src={text})"]
    if not number and not isinstance(value.node, (ast.Name, ast.BinOp)):
        raise UntranslatedError("an assignment to a part of a tile", "write nisa.tensor_copy or nisa.memset")
    return [f"{scope.nisa('memset')}(dst={place.text}, value={ast.unparse(value.node)})"]


def _accumulate(scope: Scope, node: ast.AugAssign) -> list[str]:
    """``place += value``."""
    if isinstance(node.target, ast.Subscript):
        place = _destination(scope, node.target, {})
    else:
        held = evaluate(scope, node.target) if isinstance(node.target, ast.Name) else None
        place = held if isinstance(held, Tensor) else None
        if isinstance(held, (Index, Grid)):
            raise UntranslatedError("an index of nl.arange changes in place", "give the sum a new name")
    value = evaluate(scope, node.value)
    if place is None:
        operator = ast.unparse(ast.AugAssign(node.target, node.op, ast.Constant(0))).rpartition("=")[0]
        return [f"{operator}= {ast.unparse(as_node(scope, value))}"]
    if isinstance(value, Tensor) and value.matmul and isinstance(node.op, ast.Add) and _accumulates(scope, place):
        assert value.make is not None
        return [value.make(str(place.text))]
    if isinstance(value, Tensor):
        value = scope.bind(value, "addend")
    name = operators.OPERATORS.get(type(node.op), "")
    result = operators.binary(scope, node.op, place, value, in_place=True)
    if result.make is not None and name != "divide":
        return [result.make(str(place.text))]
    result = scope.bind(result, f"{name}_result")
    return [f"{scope.nisa('tensor_copy')}(dst={place.text}, src={result.text})"]

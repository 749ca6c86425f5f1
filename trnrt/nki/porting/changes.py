"""Names that change. An index or a mask is written out where it is used, by the names that it was made of.

So it can't be used once one of those has changed: after ``ix = base + nl.arange(128)[:, None]`` and ``base = 128``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace

from trnrt.nki.porting.indexes import Grid, Index
from trnrt.nki.porting.scope import Held, Scope, Value
from trnrt.nki.porting.tensors import Tensor


def stored_names(node: ast.AST) -> set[str]:
    """The names that a statement assigns."""
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store)}


def outdate(scope: Scope, names: set[str], before: Held) -> None:
    """These names hold something else now: of what they held ``before``, the indexes and masks that were made of them
    can't be used any more, and the sizes are unknown."""
    for name, used in _indexes_and_masks(scope):
        changed = sorted(used & names - {name})
        if changed and _is_unchanged(scope, name, before):
            scope.held.stale[name] = f"{name} was made of {changed[0]}, which has changed"
    values = scope.held.values
    for name, value in values.items():
        if isinstance(value, Tensor) and value.shape is not None and _is_unchanged(scope, name, before):
            shape = tuple(None if size is None or _names(size) & names else size for size in value.shape)
            values[name] = value if shape == value.shape else replace(value, shape=shape)


def _is_unchanged(scope: Scope, name: str, before: Held) -> bool:
    held = scope.held
    return held.values.get(name) is before.values.get(name) and held.masks.get(name) is before.masks.get(name)


def enter_loop(scope: Scope, names: set[str]) -> None:
    """A loop that assigns these names begins: from its second turn on, they are not what they are now."""
    outdate(scope, names, scope.held)
    for name, _ in _indexes_and_masks(scope):
        if name in names:
            scope.held.stale[name] = f"{name} changes in the loop"


def merge_branches(scope: Scope, ends: Sequence[Held]) -> None:
    """After the branches of an ``if``: what holds at the end of each of them."""
    if not ends:
        return
    merged = ends[-1].copy()
    for end in ends:
        merged.stale |= end.stale
    for name in sorted({name for end in ends for name in (*end.values, *end.masks)}):
        found = [end.values.get(name) or end.masks.get(name) for end in ends]
        known = [value for value in found if value is not None]
        tensors = [value for value in known if isinstance(value, Tensor)]
        if len(tensors) == len(known) and len({tensor.partition for tensor in tensors}) == 1:
            merged.values[name] = _merge_tensors(name, tensors)
        elif any(value != found[0] for value in found):
            merged.stale[name] = f"{name} is not the same after each branch of an if"
    scope.held = merged


def _merge_tensors(name: str, tensors: Sequence[Tensor]) -> Tensor:
    """The tensor that a name holds after branches, as far as they agree."""
    if all(tensor == tensors[0] for tensor in tensors):
        return tensors[0]
    shapes = [tensor.shape for tensor in tensors]
    if any(shape is None or len(shape) != len(shapes[0] or ()) for shape in shapes):
        return replace(tensors[-1], shape=None, root=name, origin=None)
    known = [shape for shape in shapes if shape is not None]
    sizes = tuple(same[0] if len(set(same)) == 1 else None for same in zip(*known, strict=True))
    origins = {tensor.origin for tensor in tensors}
    return replace(tensors[-1], shape=sizes, root=None, origin=origins.pop() if len(origins) == 1 else None)


def _indexes_and_masks(scope: Scope) -> Iterator[tuple[str, set[str]]]:
    """(name, the names that it was made of) of each index and mask."""
    for name, value in scope.held.values.items():
        if isinstance(value, (Index, Grid)):
            yield name, _names_of(value)
    for name, mask in scope.held.masks.items():
        yield name, {child.id for child in ast.walk(mask) if isinstance(child, ast.Name)}


def _names_of(value: Value) -> set[str]:
    if isinstance(value, Grid):
        return {name for index in value.indexes for name in _names_of(index)}
    assert isinstance(value, Index)
    return {name for text in (value.start, *_texts(value)) for name in _names(text)}


def _texts(index: Index) -> Iterator[str]:
    for axis, factor in index.axes:
        yield from (axis.size, factor)


def _names(text: str) -> set[str]:
    return {child.id for child in ast.walk(ast.parse(text, mode="eval")) if isinstance(child, ast.Name)}

"""Windows on tensors by the index expressions of the old namespace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.indexing import Index, RunTimeIndex
from trnrt.nki.legacy.slicing import as_expressions, leaves
from trnrt.nki.sim.tensor import NkiTensor, resolve_index

Beyond = tuple[int, int, int, tuple[int, ...]]
"""A dimension of the tensor that a window leaves: its number and size, the first index, the step of each dimension."""

Window = tuple[NkiTensor, tuple[Beyond, ...]]
"""A view, and the dimensions of its tensor that it leaves."""


ALL = slice(None)


def select(view: NkiTensor, key: Any) -> Window:
    """The window that integers, slices, index expressions and ``...`` select.

    Index expressions are broadcast to one shape, as numpy does it: the window has that shape where they stand. A tile
    of indices selects a row of a tensor in HBM for each partition.
    """
    if isinstance(key, tuple) and len(key) == view.ndim and _is_common(key):
        return _select_by_expressions(view, key)
    _check_style(view, key if isinstance(key, tuple) else (key,))
    keys = _expand(key, view.ndim)
    keys = [item.base if isinstance(item, Index) and not item.shape else item for item in keys]
    known = [at for at, item in enumerate(keys) if _is_run_time(view, item)]
    if known:
        return _select_at_run_time(view, keys, known)
    rows = [at for at, item in enumerate(keys) if isinstance(item, NkiTensor)]
    if rows:
        return _select_rows(view, keys, rows)
    if any(leaves(item, size) for item, size in zip(keys, view.shape, strict=True)):
        keys = as_expressions(view, keys)
    if not any(isinstance(item, Index) for item in keys):
        return view[tuple(keys)], ()
    return _select_by_expressions(view, keys)


def _is_common(keys: tuple[Any, ...]) -> bool:
    """True if the keys are integers and index expressions of two or more dimensions, at least one of them."""
    found = False
    for item in keys:
        if isinstance(item, Index):
            if len(item.shape) < 2:
                return False
            found = True
        elif not isinstance(item, int):
            return False
    return found


def _check_style(view: NkiTensor, keys: tuple[Any, ...]) -> None:
    """KernelError for index expressions of one dimension, and for those beside slices.

    Source: SDK 2.26.1, nki/api/nki.errors.rst, err_1d_arange_not_supported and
    err_unsupported_mixing_basic_advanced_tensor_indexing.
    """
    expressions = [item for item in keys if isinstance(item, Index) and item.shape]
    if any(item.ndim == 1 for item in expressions):
        raise KernelError(
            f"an index of {view.storage} is an nl.arange of one dimension; a tile has two or more",
            hint="write nl.arange(n)[:, None] for partitions and nl.arange(n)[None, :] for elements of each",
        )
    if expressions and any(isinstance(item, slice) for item in keys):
        raise KernelError(
            f"indices of {view.storage} are slices and index expressions at once; they must be one or the other",
            hint="write nl.arange(n)[None, :] in the place of a slice, in the dimension that it should have",
        )


def _expand(key: Any, ndim: int) -> list[Any]:
    keys = list(key) if isinstance(key, tuple) else [key]
    dots = next((at for at, item in enumerate(keys) if item is Ellipsis), None)
    if dots is not None:
        keys[dots : dots + 1] = [slice(None)] * (ndim - len(keys) + 1)
    if len(keys) > ndim:
        raise KernelError(f"{len(keys)} indices for a tensor of {ndim} dimensions")
    return keys + [slice(None)] * (ndim - len(keys))


def _select_by_expressions(view: NkiTensor, keys: Sequence[Any]) -> Window:
    places = [k for k, item in enumerate(keys) if isinstance(item, Index)]
    grid = _broadcast([keys[k].shape for k in places])
    at = places[0]
    adjacent = not any(isinstance(item, slice) for item in keys[at : places[-1]])
    offset, beyond = view.offset, list[Beyond]()
    strides, before, after = [0] * len(grid), list[tuple[int, int]](), list[tuple[int, int]]()
    for dim, (item, size, stride) in enumerate(zip(keys, view.shape, view.strides, strict=True)):
        if isinstance(item, Index):
            steps = _affine_steps(item, len(grid), view)
            first, end = item.span()
            if first < 0 or end >= size:
                beyond.append((dim, size, item.base, steps))
            offset += item.base * stride
            for k, step in enumerate(steps):
                if step:
                    strides[k] += step * stride
        elif isinstance(item, int) and 0 <= item < size:
            offset += item * stride
        elif isinstance(item, slice) and item == ALL:
            (before if dim < at and adjacent else after).append((size, stride))
        elif isinstance(item, slice):
            part = view[(slice(None),) * dim + (item,)]
            offset += part.offset - view.offset
            (before if dim < at and adjacent else after).append((part.shape[dim], part.strides[dim]))
        else:
            offset += resolve_index(item, dim, size) * stride
    if not before and not after:
        return (_on_chip_window if view.on_chip else _window)(view, grid, tuple(strides), offset, beyond)
    shape = (*(size for size, _ in before), *grid, *(size for size, _ in after))
    steps = (*(step for _, step in before), *strides, *(step for _, step in after))
    pad = len(before), len(after)
    found = [(d, n, first, (*(0,) * pad[0], *own, *(0,) * pad[1])) for d, n, first, own in beyond]
    return (
        _on_chip_window(view, shape, steps, offset, found)
        if view.on_chip
        else _window(view, shape, steps, offset, found)
    )


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that these are broadcast to, as numpy does it."""
    grid = shapes[0]
    for shape in shapes[1:]:
        if len(shape) != len(grid):
            return np.broadcast_shapes(*shapes)
        if shape != grid:
            for one, other in zip(grid, shape, strict=True):
                if one != other and 1 not in (one, other):
                    return np.broadcast_shapes(*shapes)
            grid = tuple([max(one, other) for one, other in zip(grid, shape, strict=True)])
    return grid


def _affine_steps(item: Index, ndim: int, view: NkiTensor) -> tuple[int, ...]:
    if item.steps is None:
        raise KernelError(
            f"an index of {view.storage} does not grow by constant steps: {item.values.ravel()[:8].tolist()} ...",
            hint="index expressions are sums of nl.arange times integers; // and % of them must leave constant steps",
        )
    return item.steps if item.ndim == ndim else (0,) * (ndim - item.ndim) + item.steps


def _window(
    view: NkiTensor, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, beyond: Sequence[Beyond]
) -> Window:
    if not shape:
        shape, strides = (1,), (1,)
        beyond = [(d, n, first, (0,)) for d, n, first, _ in beyond]
    made = NkiTensor(view.storage, shape, strides, offset, view.cast, view.dynamic)
    return made if made.stays_inside() else replace(made, bounded=False), tuple(beyond)


def _on_chip_window(
    view: NkiTensor, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, beyond: Sequence[Beyond]
) -> Window:
    """A window whose first dimension runs along the partitions; a single partition becomes a dimension of its own."""
    row = view.partition_elements
    along = bool(shape) and (shape[0] == 1 or (strides[0] % row == 0 and strides[0] != 0))
    for step, size in zip(strides[1:], shape[1:], strict=True):
        if size > 1 and step and step % row == 0 and row > 1:
            raise KernelError(
                f"the partitions of {view.storage} are indexed along dimension 1 or later of the index expressions; "
                "they must be along the first one",
                hint="write the partitions' nl.arange as nl.arange(n)[:, None]",
            )
    if not along:
        shape, strides = (1, *shape), (row, *strides)
        beyond = [(d, n, first, (0, *steps)) for d, n, first, steps in beyond]
    elif shape[0] == 1:
        strides = (row, *strides[1:])
    if len(shape) == 1:
        shape, strides = (*shape, 1), (*strides, 1)
        beyond = [(d, n, first, (*steps, 0)) for d, n, first, steps in beyond]
    return _window(view, shape, strides, offset, beyond)


def _select_rows(view: NkiTensor, keys: list[Any], rows: list[int]) -> Window:
    """Rows of a tensor in HBM that a tile of indices selects, one for each partition."""
    if not view.on_chip and all(isinstance(item, int) for item in keys[: rows[0]]):
        view, keys, rows = view[tuple(keys[: rows[0]])], keys[rows[0] :], [at - rows[0] for at in rows]
    if rows != [0] or view.on_chip:
        raise KernelError(
            f"a tile is an index of dimension {rows[-1]} of {view}: indices that the device knows select rows of a "
            "tensor in HBM, along its dimension 0"
        )
    chosen = view.vector_select(0, keys[0])
    rest = [slice(None), *keys[1:]]
    if not any(isinstance(item, Index) for item in rest):
        return chosen[tuple(rest)], ()
    expressions = [item[0] if isinstance(item, Index) and item.shape[:1] == (1,) else item for item in rest]
    return _select_by_expressions(chosen, expressions)


def _is_run_time(view: NkiTensor, item: Any) -> bool:
    return isinstance(item, RunTimeIndex) or (isinstance(item, NkiTensor) and view.on_chip)


def _select_at_run_time(view: NkiTensor, keys: list[Any], known: list[int]) -> Window:
    """A window that starts at an index of one dimension which the device knows: a tile of one element."""
    at = known[0]
    item = keys[at] if isinstance(keys[at], RunTimeIndex) else RunTimeIndex(keys[at], 1, Index(0, (), ()))
    least, most = item.rest.span()
    if len(known) > 1 or least < 0 or item.factor < 1:
        raise KernelError(
            f"dimensions {known} of {view} are indexed by values that the device knows; one can be, from 0 on upward"
        )
    chosen = view.expand_dim(view.ndim).select(at, item.start).dynamic
    assert chosen is not None
    limit = (view.shape[at] - 1 - most) // item.factor + 1
    window, beyond = _select_by_expressions(view, [*keys[:at], item.rest, *keys[at + 1 :]])
    return replace(window, dynamic=replace(chosen, stride=chosen.stride * item.factor, limit=limit)), beyond


def repeat(view: NkiTensor, shape: tuple[int, ...]) -> NkiTensor:
    """A view of ``shape`` with dimensions of size 1 repeated; KernelError if sizes don't fit."""
    if view.shape == shape:
        return view
    if view.free_size == 1 and view.shape[0] == shape[0]:
        return replace(view, shape=shape, strides=(view.strides[0], *(0,) * (len(shape) - 1)))
    if view.ndim != len(shape) or any(a not in (1, b) for a, b in zip(view.shape, shape, strict=True)):
        raise KernelError(f"a tile of shape {view.shape} can't be repeated to {shape}: only sizes of 1 can")
    strides = tuple(0 if a != b else s for a, b, s in zip(view.shape, shape, view.strides, strict=True))
    return replace(view, shape=shape, strides=strides)


def is_same_window(one: NkiTensor, other: NkiTensor) -> bool:
    """True if both are the same elements of one tensor, in the same order and format."""
    if one.storage is not other.storage:
        return False
    return (one.shape, one.strides, one.offset, one.cast) == (other.shape, other.strides, other.offset, other.cast)


def are_plain(keys: tuple[Any, ...], shape: tuple[int, ...]) -> bool:
    """True if keys are integers, and slices that stay inside: most of those in an unrolled kernel."""
    for one, size in zip(keys, shape, strict=False):
        if isinstance(one, slice):
            stop = one.stop
            if stop is not None and (not isinstance(stop, int) or stop > size):
                return False
        elif not isinstance(one, int):
            return False
    return len(keys) <= len(shape)


def require_inside(view: NkiTensor, beyond: Sequence[Beyond]) -> None:
    """KernelError if a window leaves its tensor; ``beyond``: the dimensions that its indices leave."""
    for dim, size, first, steps in beyond:
        if not size:
            raise KernelError("an operand whose own mask, x[mask], is False is used", hint="give mask= as well")
        last = first + sum(max(0, (n - 1) * step) for n, step in zip(view.shape, steps, strict=True))
        least = first + sum(min(0, (n - 1) * step) for n, step in zip(view.shape, steps, strict=True))
        if least < 0 or last >= size:
            raise KernelError(
                f"indices {least} to {last} of dimension {dim} leave {view.storage}: it has {size} elements",
                hint="cut them off by mask=(index < size) in the load, the store and the instructions between",
            )

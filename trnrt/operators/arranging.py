"""Weights in the layout that a kernel reads: prepared on the host if they are constant, else by DMA."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from trnrt.kernels.common import COUNTED
from trnrt.planner.lowering.moving import move_step
from trnrt.planner.lowering.views import View
from trnrt.planner.lowering.walk import Blocked, Lowering, node_name
from trnrt.planner.plan import Array
from trnrt.planner.steps import Operand, SourceName, Step, WeightName


def arrange_parameter(
    lowering: Lowering, node: ir.Node, value: ir.Value, prepare: Callable[[Array], Array], what: str, dtype: str = ""
) -> Array | Operand:
    """``prepare`` a weight: an array if the weight is constant, else a tensor that a movement step makes.

    ``prepare`` may only move elements and pad with zeros. It is applied to the elements' numbers, which shows where DMA
    must bring each. ``what`` ("weight", "bias") goes into the tensor's name. ``dtype`` is the dtype of a computed
    tensor, if not the session's.
    """
    constant = lowering.constant(value)
    if constant is not None:
        return prepare(constant.astype(np.float32))
    source = lowering.operand(value)
    size = prod(source.shape)
    if size >= COUNTED:
        raise Blocked(f"a computed {what} of {size} elements; up to {COUNTED - 1} can be rearranged")
    numbers = prepare(np.arange(1, size + 1, dtype=np.float32).reshape(source.shape)).astype(np.int64)
    name = lowering.spare_name(f"{node_name(node)}.{what}")
    whole = View.whole(name, numbers.shape)
    parts = []
    for region in affine_regions(numbers):
        put = whole
        for axis, (start, count) in enumerate(zip(region.corner, region.shape, strict=True)):
            put = put.slice(axis, start, count)
        parts.append((View(source.value, region.shape, region.strides, region.offset, size), put))
    step = move_step(name, name, numbers.shape, parts, fill=0.0 if np.any(numbers == 0) else None)
    step.dtype = dtype
    lowering.add(step, [node], f"the computed {what} in the kernel's layout, by DMA", place="dma")
    return Operand(name, numbers.shape)


def parameter_name(step: Step, key: str, parameter: Array | Operand) -> WeightName | SourceName:
    """The name of ``arrange_parameter``'s result in the step's call: the weight ``key``, or one of its sources."""
    return SourceName(step.sources.index(parameter)) if isinstance(parameter, Operand) else WeightName(key)


class Region(NamedTuple):
    """A box of element numbers: its corner and shape, and the access pattern that gives the numbers."""

    corner: tuple[int, ...]
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]


def affine_regions(numbers: Array, corner: tuple[int, ...] | None = None) -> Iterator[Region]:
    """Split an array of element numbers (from 1; 0 is padding) into boxes that one access pattern each can read."""
    corner = corner or (0,) * numbers.ndim
    filled = np.nonzero(numbers)
    if not filled[0].size:
        return
    first, last = [int(d.min()) for d in filled], [int(d.max()) + 1 for d in filled]
    box = numbers[tuple(slice(a, b) for a, b in zip(first, last, strict=True))]
    corner = tuple(c + a for c, a in zip(corner, first, strict=True))
    start = int(box[(0,) * box.ndim])
    strides = tuple(int(np.take(box, 1, axis=d).flat[0]) - start if size > 1 else 0 for d, size in enumerate(box.shape))
    expected = start + sum(
        (np.arange(size) * stride).reshape([-1 if k == d else 1 for k in range(box.ndim)])
        for d, (size, stride) in enumerate(zip(box.shape, strides, strict=True))
    )
    if start and np.array_equal(np.broadcast_to(expected, box.shape), box):
        yield Region(corner, box.shape, start - 1, strides)
        return
    axis = min((d for d, size in enumerate(box.shape) if size > 1), key=lambda d: box.shape[d])
    for k in range(box.shape[axis]):
        inner = tuple(c + (k if d == axis else 0) for d, c in enumerate(corner))
        yield from affine_regions(np.take(box, [k], axis=axis), inner)

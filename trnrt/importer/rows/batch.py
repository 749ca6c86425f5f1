"""The place of a model's batch in a tensor, and helpers for the rules about it, which are in the operators' records.

A tensor is laid out row-major; ``(element // stride) % rows`` is an element's row. So the stride says where the batch
is, whatever the tensor's shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
import onnx_ir as ir

from trnrt.importer.values import constant_array, input_at, slice_ranges

Shape = tuple[int, ...]


class Mixes(Exception):
    """Raised if rows are mixed, or may be."""


@dataclass(frozen=True)
class Batch:
    """Where the batch lies in a tensor of ``shape``: ``rows`` rows, ``stride`` elements apart."""

    shape: Shape
    stride: int
    rows: int

    @property
    def axis(self) -> int:
        """The dimension that holds the batch. Mixes if it is spread over several."""
        for axis, size in enumerate(self.shape):
            inner = prod(self.shape[axis + 1 :])
            if inner and inner <= self.stride and self.stride * self.rows <= inner * size and self.stride % inner == 0:
                return axis
        raise Mixes("the batch is spread over several dimensions")

    @property
    def row_step(self) -> int:
        """Steps along the batch's dimension from one row to the next."""
        return self.stride // prod(self.shape[self.axis + 1 :])

    def move_to(self, shape: Shape, axis: int) -> Batch:
        """The same batch, if its dimension is dimension ``axis`` of another shape."""
        if shape[axis] != self.shape[self.axis]:
            raise Mixes(f"dimension {axis} of {shape} is not the batch's any more")
        return Batch(shape, self.row_step * prod(shape[axis + 1 :]), self.rows)


def constant_integers(node: ir.Node, position: int, what: str) -> list[int] | None:
    """The constant integers of an input; None if it is left out. Mixes if they are computed."""
    value = input_at(node, position)
    if value is None:
        return None
    array = constant_array(value)
    if array is None:
        raise Mixes(f"its {what} are computed")
    return [int(number) for number in array.reshape(-1)]


def is_same_for_rows(array: np.ndarray | None, axis: int, rows: int) -> bool:
    """True if a constant whose dimension ``axis`` is the batch is the same for each row."""
    if array is None or array.shape[axis] % rows:
        return False
    if not array.size or not array.strides[axis]:
        return True
    by_row = np.moveaxis(array, axis, 0).reshape(rows, -1)
    return bool((by_row == by_row[:1]).all())


def ranges(node: ir.Node, rank: int) -> list[tuple[int, int, int, int]]:
    """(axis, start, end, step) of a Slice. Mixes if they are computed."""
    return slice_ranges(node, rank, partial(constant_integers, node))

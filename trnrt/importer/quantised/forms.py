"""The knowledge of a value while quantised operators are rewritten: whole numbers, and a zero point or a scale."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trnrt.importer.rewriting.editing import Array
from trnrt.importer.values import static_shape

Number = Array | ir.Value
"""float32 numbers: a constant, or a tensor that the model computes. Constants of int32 that float32 doesn't hold, such
as large biases, are float64."""

# Lowest and highest number of a type.
LIMITS = {
    ir.DataType.INT4: (-8, 7),
    ir.DataType.UINT4: (0, 15),
    ir.DataType.INT8: (-128, 127),
    ir.DataType.UINT8: (0, 255),
    ir.DataType.INT32: (-(2**31), 2**31 - 1),
}
ZERO = np.zeros((), np.float32)
BYTES = (ir.DataType.INT8, ir.DataType.UINT8)
LEFT = "trnrt.left"
"""A node's metadata: why it was left as it is."""


class Left(Exception):
    """Raised if a node is left as it is; the reason is shown if the node is refused."""


@dataclass(frozen=True)
class Whole:
    """An integer tensor of the model: ``numbers + zero``, both whole. ``low`` and ``high`` limit ``numbers``."""

    numbers: Number
    zero: Number
    low: float
    high: float


@dataclass(frozen=True)
class Scaled:
    """A float tensor of the model: ``numbers * scale``, then limited to [``least``, ``most``]; ``numbers`` are whole.

    ``low`` and ``high`` limit ``numbers``, infinite for sums of products. ``scale`` broadcasts to ``numbers``. ``kind``
    is the tensor's type.
    """

    numbers: Number
    scale: Number
    low: float = -np.inf
    high: float = np.inf
    kind: ir.DataType = ir.DataType.FLOAT
    least: float = -np.inf
    most: float = np.inf

    @property
    def is_sum(self) -> bool:
        """True for sums of products, which an operator with a scale of its own requantises."""
        return bool(np.isinf(self.low) or np.isinf(self.high))

    @property
    def is_limited(self) -> bool:
        """True if a Relu or Clip is still to be done."""
        return self.least > -np.inf or self.most < np.inf


Form = Whole | Scaled


def are_equal(one: Number, other: Number) -> bool:
    """True if two numbers are certainly the same."""
    if isinstance(one, ir.Value) or isinstance(other, ir.Value):
        return one is other
    return np.array_equal(one.reshape(-1), other.reshape(-1)) if one.size == 1 else np.array_equal(one, other)


def shape_of(value: ir.Value | None) -> tuple[int, ...]:
    """The shape of an input. Left if it is not known."""
    shape = static_shape(value)
    if shape is None:
        raise Left("the shape of an input is not known")
    return shape


def count(number: Number) -> int:
    """The number of elements; 0 if it is not known."""
    if not isinstance(number, ir.Value):
        return int(number.size)
    dims = [dim if isinstance(dim, int) else 0 for dim in number.shape or ()]
    return int(np.prod(dims, dtype=np.int64)) if number.shape is not None else 0


def one_number(number: Number) -> Number:
    """A scale or zero point that is one for all elements. Left if it isn't."""
    if count(number) != 1:
        raise Left("several scales or zero points; one for all elements is supported")
    return number if isinstance(number, ir.Value) else number.reshape(())


def rank(number: Number) -> int:
    """The number of dimensions."""
    return number.ndim if not isinstance(number, ir.Value) else len(number.shape or ())

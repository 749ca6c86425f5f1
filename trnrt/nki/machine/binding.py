"""Helpers for the meaning of instructions on numpy arrays.

An instruction is bound once: its views become arrays, its meaning a call without arguments. What can be decided then
(shapes, rounding, copies) is not decided again at replay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from trnrt.nki.machine.dtypes import Array, DType, rounder
from trnrt.nki.machine.operators import Operator
from trnrt.nki.machine.program import Instruction, View
from trnrt.nki.machine.windows import copy_call

_RANGES = "NKI API reference, nki.api.shared, Supported Activation Functions: Valid Input Range"


class Arrays(Protocol):
    """The memory that a program is bound to."""

    def __call__(self, view: View) -> Array:
        """The numpy window of the view."""

    def scratch(self, use: str, shape: tuple[int, ...]) -> Array:
        """A temporary float32 array, shared by all instructions with this shape and use."""

    def warn(self, instruction: Instruction, message: str) -> None:
        """Warn about an instruction; once per run for each operation on a line of the kernel."""


def view_array(view: View, held: Array) -> Array:
    """The numpy window of a view on the flat array that holds its storage."""
    size = held.itemsize
    strides = tuple([stride * size for stride in view.strides])
    # The constructor checks that the window lies within the array, and is several times faster than as_strided.
    return np.ndarray(view.shape, held.dtype, held, view.offset * size, strides)


def writer(view: View, array: Array) -> Callable[[Array], None]:
    """A function that rounds a result to the view's dtype and stores it, reshaping where shapes differ."""
    rounded = rounder(view.dtype)
    shape = array.shape

    def write(values: Array) -> None:
        if rounded is not None:
            values = rounded(values)
        array[...] = values if values.shape == shape else values.reshape(shape)

    return write


def copier(dst: View, src: View, arrays: Arrays) -> Callable[[], None]:
    """``dst = src`` in the shape of dst: bit for bit if the dtypes are equal, else through float32."""
    target = arrays(dst)
    take = in_shape(arrays(src), target.shape)
    if dst.dtype == src.dtype or (exact(dst) and src.dtype.is_float):
        if dst.shape == src.shape:
            return copy_call(target, arrays(src))

        def move() -> None:
            target[...] = take()

        return move
    write = writer(dst, target)
    return lambda: write(as_float32(take()))


def constant(value: float, dtype: DType) -> Array:
    """A number as a ``(1,)`` array, in the format that holds ``dtype``; integers do not pass through float32."""
    wide = np.asarray([value], np.float32 if dtype.is_float else np.float64)
    rounded = rounder(dtype)
    return wide if rounded is None else rounded(wide)


def exact(view: View) -> bool:
    """True if float32 results can be computed directly into the view's array, without rounding."""
    return rounder(view.dtype) is None


def within_range(instruction: Instruction, arrays: Arrays) -> Callable[[Array], Array] | None:
    """The function of an activation, which warns of inputs outside of its valid range; None if it takes two inputs."""
    op: Operator = instruction["op"]
    function, valid = op.activation, op.valid
    if function is None or valid is None:
        return function

    def compute(x: Array) -> Array:
        outside = valid.outliers(x)
        if outside is not None:
            many = f" and {outside.size - 1} more of {x.size} values" if outside.size > 1 else ""
            said = f"{op!r} of {outside[0]:g}{many}; its valid input range is {valid}: {valid.beyond}"
            arrays.warn(instruction, f"{said} ({_RANGES})")
        result: Array = function(x)
        return result

    return compute


def in_shape(array: Array, shape: tuple[int, ...]) -> Callable[[], Array]:
    """A function that returns ``array`` in ``shape``: a view if numpy can make one, else a copy at each call."""
    reshaped = array.reshape(shape)
    if np.may_share_memory(reshaped, array):
        return lambda: reshaped
    return lambda: array.reshape(shape)


def matrix(view: View, arrays: Arrays, use: str) -> Callable[[], Array]:
    """A float tile as (partitions, free elements) for BLAS, copied to scratch if its strides do not allow a view."""
    array = arrays(view)
    rows = array.shape[0]
    flat = array.reshape(rows, -1)
    if np.may_share_memory(flat, array):
        return lambda: flat
    scratch = arrays.scratch(use, array.shape)
    flat, copy = scratch.reshape(rows, -1), copy_call(scratch, array)

    def copy_array() -> Array:
        copy()
        return flat

    return copy_array


def as_float32(array: Array) -> Array:
    """The array as an engine computes with it: integers are cast to float32."""
    return array if array.dtype == np.float32 else array.astype(np.float32)


def column(operand: Any, arrays: Arrays, ndim: int) -> Callable[[], Any]:
    """A ``[P, 1]`` tile or a number, as float32 that broadcasts over ``ndim`` dimensions; None as 0."""
    if not isinstance(operand, View):
        number = np.float32(0 if operand is None else operand)
        return lambda: number
    array = arrays(operand)
    take = in_shape(array, (array.shape[0],) + (1,) * (ndim - 1))
    return take if operand.dtype.is_float else lambda: as_float32(take())

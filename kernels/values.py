"""Values of an element-wise program: numbers, columns and tiles, and instructions on any mixture of them.

A value is a number (a Python float), or a tile (P, G, W) in SBUF; G or W may be 1 where the result has more, and then
it repeats. A tile (P, 1, 1) is a column, one float32 number per partition, which instructions take as an operand.
"""

from typing import Any

from trnrt.nki import nisa, nl


def is_number(value: Any) -> bool:
    """True if a value is known when the kernel is compiled."""
    return isinstance(value, float)


def is_column(value: Any) -> bool:
    """True if a value is one number per partition."""
    return not is_number(value) and value.shape[1] == 1 and value.shape[2] == 1


def fresh(shape: tuple[int, ...]) -> nl.NkiTensor:
    """A float32 tile."""
    return nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)


def column(number: float, like: nl.NkiTensor) -> nl.NkiTensor:
    """A number on every partition of ``like``."""
    column_sb = fresh((like.shape[0], 1, 1))
    nisa.memset(dst=column_sb, value=number)
    return column_sb


def wide(tile: nl.NkiTensor, shape: tuple[int, ...]) -> nl.NkiTensor:
    """A view of a tile that repeats along a G or W of 1 to reach ``shape``."""
    for dim in range(1, 3):
        if tile.shape[dim] == 1 and shape[dim] > 1:
            tile = tile.broadcast(dim, shape[dim])
    return tile


def as_float32(tile: nl.NkiTensor) -> nl.NkiTensor:
    """The tile, or a copy of it, in float32."""
    if tile.dtype == nl.float32:
        return tile
    copy_sb = fresh(tile.shape)
    nisa.tensor_copy(dst=copy_sb, src=tile)
    return copy_sb


def settle(dst: nl.NkiTensor, result: nl.NkiTensor) -> None:
    """dst = result, which already is dst if dst is float32."""
    if dst.dtype != nl.float32:
        nisa.tensor_copy(dst=dst, src=result)


def result_shape(values: list[Any]) -> tuple[int, int, int]:
    """The shape of an operator's result on these values; (0, 1, 1) if all are numbers."""
    partitions, groups, width = 0, 1, 1
    for value in values:
        if not is_number(value):
            partitions = value.shape[0]
            groups = max(groups, value.shape[1])
            width = max(width, value.shape[2])
    return partitions, groups, width


def apply(dst: nl.NkiTensor, x: Any, y: Any, op: Any) -> None:
    """dst = x <op> y on the vector engine; the GpSimd engine computes powers of two tiles."""
    if not is_number(x) and (is_number(y) or is_column(y)):
        nisa.tensor_scalar(dst=dst, data=wide(x, dst.shape), op0=op, operand0=y)
    elif is_number(x) or is_column(x):
        nisa.tensor_scalar(dst=dst, data=wide(y, dst.shape), op0=op, operand0=x, reverse0=True)
    elif op == nl.power:
        left, right = wide(x, dst.shape), wide(y, dst.shape)
        nisa.tensor_tensor(dst=dst, data1=left, data2=right, op=op, engine=nisa.engine.gpsimd)
    else:
        nisa.tensor_tensor(dst=dst, data1=wide(x, dst.shape), data2=wide(y, dst.shape), op=op)


def apply_two(dst: nl.NkiTensor, x: nl.NkiTensor, op0: Any, number: float, op1: Any, y: Any) -> None:
    """dst = (x <op0> number) <op1> y."""
    data = wide(x, dst.shape)
    if is_number(y) or is_column(y):
        nisa.tensor_scalar(dst=dst, data=data, op0=op0, operand0=number, op1=op1, operand1=y)
    else:
        other = wide(y, dst.shape)
        nisa.scalar_tensor_tensor(dst=dst, data=data, op0=op0, operand0=number, op1=op1, operand1=other)

"""How numbers that mean nothing spread: which elements of an instruction's results depend on which of its inputs.

Elements are marked with small integers: 0 means nothing is wrong with it. A result gets the largest mark of what it
depends on. Instructions that are not in the table choose what they read by masks or indices; their results count as
good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.program import Instruction
from trnrt.nki.machine.rules.transfer import TRANSPOSE_AXES

Marks = Mapping[str, Array]  # by argument, in the shape of its view; arguments without marks are left out
Spread = Callable[[Instruction, Marks], dict[str, Array]]


def _elements(instruction: Instruction, marks: Marks) -> dict[str, Array]:
    """Each element of dst from the same elements of the inputs; columns and numbers meet every element of their row."""
    dst = instruction["dst"]
    rows, size = (dst.partitions, dst.free_size) if dst.storage.on_chip else (1, dst.size)
    total = np.zeros((rows, size), np.int32)
    for mark in marks.values():
        np.maximum(total, mark.reshape(rows, -1), out=total)
    return {"dst": total.reshape(dst.shape)} | _reduced(instruction, total)


def _running(instruction: Instruction, marks: Marks) -> dict[str, Array]:
    """Each element of dst from those up to it in its row."""
    found = _elements(instruction, marks)
    dst = found["dst"]
    return found | {"dst": np.maximum.accumulate(dst.reshape(dst.shape[0], -1), axis=1).reshape(dst.shape)}


def _rows(instruction: Instruction, marks: Marks) -> dict[str, Array]:
    """Each row of dst from the same row of the inputs."""
    data = instruction["data"] if "data" in instruction.args else instruction["src"]
    if "data" in marks and instruction.operation.name == "tensor_reduce":
        kept = data.ndim - len(instruction["axis"])
        reduced = marks["data"].reshape(*data.shape[:kept], -1).max(axis=-1)
        return {"dst": reduced.reshape(instruction["dst"].shape)}
    total = np.zeros((data.partitions, 1), np.int32)
    for mark in marks.values():
        np.maximum(total, mark.reshape(data.partitions, -1).max(axis=1, keepdims=True), out=total)
    dst = instruction["dst"]
    return {"dst": np.broadcast_to(total, (dst.partitions, dst.free_size)).reshape(dst.shape)}


def _reduced(instruction: Instruction, total: Array) -> dict[str, Array]:
    """What an instruction reduces its rows to."""
    result = instruction.args.get("reduce_res")
    return {} if result is None else {"reduce_res": total.max(axis=1).reshape(result.shape)}


def _product(instruction: Instruction, marks: Marks) -> dict[str, Array]:
    """Rows of dst from columns of the stationary operand, its columns from those of the moving one."""
    dst = instruction["dst"]
    if instruction["passes_through"]:
        return {}
    total = np.zeros((dst.partitions, dst.free_size), np.int32)
    for arg, across in (("stationary", (-1, 1)), ("moving", (1, -1))):
        if arg in marks:
            mark = marks[arg]
            outer = 2 if instruction["double_row"] else 1  # dimensions that the product runs over
            columns = mark.reshape(*mark.shape[:outer], -1).max(axis=tuple(range(outer)))
            np.maximum(total, columns.reshape(across), out=total)
    return {"dst": total.reshape(dst.shape)}


def _transposed(instruction: Instruction, marks: Marks) -> dict[str, Array]:
    data = marks["data"]
    return {"dst": data.reshape(data.shape[0], -1).T.reshape(instruction["dst"].shape)}


def _dma_transposed(instruction: Instruction, marks: Marks) -> dict[str, Array]:
    src = marks["src"]
    return {"dst": src.transpose(TRANSPOSE_AXES[src.ndim]).reshape(instruction["dst"].shape)}


SPREADS: dict[str, Spread] = {
    "dma_copy": _elements,
    "dma_compute": _elements,
    "dma_transpose": _dma_transposed,
    "tensor_copy": _elements,
    "tensor_tensor": _elements,
    "tensor_scalar": _elements,
    "scalar_tensor_tensor": _elements,
    "reciprocal": _elements,
    "activation": _elements,
    "activate2": _elements,
    "exponential": _elements,
    "tensor_scalar_reduce": _elements,
    "tensor_scalar_cumulative": _running,
    "tensor_tensor_scan": _running,
    "tensor_reduce": _rows,
    "max8": _rows,
    "bn_stats": _rows,
    "bn_aggr": _rows,
    "nc_matmul": _product,
    "nc_transpose": _transposed,
}

"""The spread of unwritten values: which elements of an instruction's results depend on which of its inputs.

Elements have small integers as marks; 0 is a good element. A result gets the largest mark of the elements that it
depends on. A declaration's ``spreads`` is one of these functions, or one of its own.
"""

from __future__ import annotations

import numpy as np

from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.program import Instruction, Marks


def elements(instruction: Instruction, marks: Marks) -> dict[str, Array]:
    """Each element of dst from the same elements of the inputs; columns and numbers affect every element of a row."""
    dst = instruction["dst"]
    rows, size = (dst.partitions, dst.free_size) if dst.storage.on_chip else (1, dst.size)
    total = np.zeros((rows, size), np.int32)
    for mark in marks.values():
        np.maximum(total, mark.reshape(rows, -1), out=total)
    return {"dst": total.reshape(dst.shape)} | _reduce_marks(instruction, total)


def running(instruction: Instruction, marks: Marks) -> dict[str, Array]:
    """Each element of dst from the elements up to it in its row."""
    found = elements(instruction, marks)
    dst = found["dst"]
    return found | {"dst": np.maximum.accumulate(dst.reshape(dst.shape[0], -1), axis=1).reshape(dst.shape)}


def rows(instruction: Instruction, marks: Marks) -> dict[str, Array]:
    """Each row of dst from the same row of the inputs."""
    data = instruction["data"] if "data" in instruction.args else instruction["src"]
    total = np.zeros((data.partitions, 1), np.int32)
    for mark in marks.values():
        np.maximum(total, mark.reshape(data.partitions, -1).max(axis=1, keepdims=True), out=total)
    dst = instruction["dst"]
    return {"dst": np.broadcast_to(total, (dst.partitions, dst.free_size)).reshape(dst.shape)}


def _reduce_marks(instruction: Instruction, total: Array) -> dict[str, Array]:
    """The marks of the reduction of each row."""
    result = instruction.args.get("reduce_res")
    return {} if result is None else {"reduce_res": total.max(axis=1).reshape(result.shape)}

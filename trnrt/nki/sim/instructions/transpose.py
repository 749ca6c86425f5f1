"""Transposes on the tensor engine or the vector engine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trnrt.nki.machine import costs
from trnrt.nki.machine.binding import Arrays, as_float32, in_shape, writer
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.program import Engine, Instruction, Marks, MemoryRegion
from trnrt.nki.machine.rules import access, operands
from trnrt.nki.machine.rules.checks import check_memory
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target
from trnrt.nki.sim.declaring import Args, declare
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import active_tracer

__all__ = ["nc_transpose"]

_TRANSPOSE_MAX = {Engine.tensor: 128, Engine.vector: 32}


@rule("transpose-memory", "a tensor-engine transpose reads SBUF and writes PSUM", "nki.isa nc_transpose, Memory types")
def transpose_memory(instruction: Instruction, target: Target) -> str | None:
    if instruction.engine is not Engine.tensor:
        return None
    return check_memory(instruction, MemoryRegion.sbuf, "data") or check_memory(instruction, MemoryRegion.psum, "dst")


@rule("transpose-shape", "dst is the 2-D transpose of data", "nki.isa nc_transpose, Layout")
def transpose_shape(instruction: Instruction, target: Target) -> str | None:
    dst, data = instruction["dst"], instruction["data"]
    if (dst.partitions, dst.free_size) != (data.free_size, data.partitions):
        wanted = f"{data.free_size} x {data.partitions}"
        return (
            f"data is {data.partitions} x {data.free_size}, dst {dst.partitions} x {dst.free_size}; it must be {wanted}"
        )
    return None


@rule("transpose-size", "a transpose is at most 128x128, on the vector engine 32x32", "nki.isa nc_transpose, Tile size")
def transpose_size(instruction: Instruction, target: Target) -> str | None:
    data, limit = instruction["data"], _TRANSPOSE_MAX[instruction.engine]
    if data.partitions > limit or data.free_size > limit:
        size = f"{data.partitions} x {data.free_size}"
        return f"data is {size}; the limit of the {instruction.engine.name} engine is {limit} x {limit}"
    return None


def _transpose(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = data.T`` with the free dimensions flattened. If the tensor engine multiplies with an identity (trn1), NaN
    and infinity spread over the row of the result, as in hardware."""
    dst, data = instruction["dst"], instruction["data"]
    target = arrays(dst)
    take = in_shape(arrays(data), (data.partitions, data.free_size))
    if instruction["bit_accurate"]:

        def transpose() -> None:
            target[...] = take().T.reshape(target.shape)

        return transpose
    write = writer(dst, target)
    identity = np.eye(data.partitions, dtype=np.float32)
    return lambda: write(as_float32(take()).T @ identity)


def _marks_transposed(instruction: Instruction, marks: Marks) -> dict[str, Array]:
    data = marks["data"]
    return {"dst": data.reshape(data.shape[0], -1).T.reshape(instruction["dst"].shape)}


@declare(
    engines=(Engine.tensor, Engine.vector),
    writes=("dst",),
    reads=("data",),
    rules=(
        access.on_chip,
        *access.PATTERN,
        transpose_memory,
        transpose_size,
        transpose_shape,
        operands.kept_dtype,
        access.psum_bank,
    ),
    meaning=_transpose,
    cycles=costs.transposition,
    spreads=_marks_transposed,
    silent=True,
)
def nc_transpose(dst: NkiTensor, data: NkiTensor, engine: Engine = Engine.unknown, name: str | None = None) -> Args:
    """``dst = data.T``, free dimensions flattened, on the tensor engine (SBUF to PSUM) or the vector engine.

    With no named engine, the tensor engine, or the vector engine if only that one reaches the memories.
    """
    if engine is Engine.unknown and isinstance(dst, NkiTensor) and isinstance(data, NkiTensor):
        tensor_engine = data.buffer is MemoryRegion.sbuf and dst.buffer is MemoryRegion.psum
        small = max(data.partitions, data.free_size) <= _TRANSPOSE_MAX[Engine.vector]
        engine = Engine.vector if small and not tensor_engine else Engine.tensor
    exact = active_tracer("nisa.nc_transpose").target.bit_accurate_transpose or engine is Engine.vector
    return {"dst": dst, "data": data, "bit_accurate": exact, "engine": engine, "name": name}

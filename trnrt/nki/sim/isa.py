"""Our ``nki.isa`` (`nisa`): one function an instruction, with NKI 0.6's names, argument order and defaults.

Each function names its arguments and appends the instruction; what it may do and what it means stands in
``machine/instructions``.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from trnrt.errors import KernelError
from trnrt.nki.machine.instructions import OPERATIONS
from trnrt.nki.machine.operators import OPERATORS, Operator
from trnrt.nki.machine.program import Engine, Instruction
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import active_tracer

engine = Engine


class nc_version(IntEnum):  # noqa: N801 - NKI's name
    """NeuronCore generations; ordered, because kernels compare them with ``>=``."""

    gen2 = 2
    gen3 = 3
    gen4 = 4


def get_nc_version() -> nc_version:
    """The generation of the target that the kernel is traced for."""
    return nc_version(active_tracer("nisa.get_nc_version").target.generation)


def _emit(operation: str, args: dict[str, Any], on: Engine = Engine.unknown, name: str | None = None) -> Instruction:
    return active_tracer(f"nisa.{operation}").emit(OPERATIONS[operation], args, on, name)


def dma_copy(dst: NkiTensor, src: NkiTensor, name: str | None = None) -> Instruction:
    """``dst = src`` between HBM and SBUF, through float32 where the dtypes differ."""
    return _emit("dma_copy", {"dst": dst, "src": src}, name=name)


def tensor_copy(
    dst: NkiTensor, src: NkiTensor, engine: Engine = Engine.unknown, name: str | None = None
) -> Instruction:
    """``dst = src`` on chip."""
    return _emit("tensor_copy", {"dst": dst, "src": src}, engine, name)


def memset(dst: NkiTensor, value: float, engine: Engine = Engine.unknown, name: str | None = None) -> Instruction:
    """``dst = value``."""
    return _emit("memset", {"dst": dst, "value": value}, engine, name)


def tensor_copy_predicated(
    dst: NkiTensor, src: float | NkiTensor, predicate: NkiTensor, reverse_pred: bool = False, name: str | None = None
) -> Instruction:
    """``dst = src`` where ``predicate`` is not zero; elsewhere ``dst`` stays."""
    args = {"dst": dst, "src": src, "predicate": predicate, "reverse_pred": reverse_pred}
    return _emit("tensor_copy_predicated", args, name=name)


def nc_matmul(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    name: str | None = None,
) -> Instruction:
    """``dst = stationary.T @ moving`` on the tensor engine, contraction along the partitions.

    ``accumulate``: True adds to ``dst``, False overwrites it, None overwrites the elements that no matmul has
    written since the tile was allocated and adds to the others.
    """
    tracer = active_tracer("nisa.nc_matmul")
    args: dict[str, Any] = {"dst": dst, "stationary": stationary, "moving": moving}
    accumulates, found = tracer.psum_state(dst) if accumulate is not False else (False, "matmul")
    if accumulate is True:
        found = "uninitialised" if accumulates is not True else found
    elif accumulates is False:
        found = "matmul"
    return tracer.emit(
        OPERATIONS["nc_matmul"],
        {**args, "accumulates": accumulates, "accumulates_on": found},
        Engine.unknown,
        name,
    )


def nc_transpose(
    dst: NkiTensor, data: NkiTensor, engine: Engine = Engine.unknown, name: str | None = None
) -> Instruction:
    """``dst = data.T``, free dimensions flattened, on the tensor engine (SBUF to PSUM) or the vector engine."""
    target = active_tracer("nisa.nc_transpose").target
    exact = target.bit_accurate_transpose or engine is Engine.vector
    return _emit("nc_transpose", {"dst": dst, "data": data, "bit_accurate": exact}, engine, name)


def tensor_tensor(
    dst: NkiTensor,
    data1: NkiTensor,
    data2: NkiTensor,
    op: Operator,
    engine: Engine = Engine.unknown,
    name: str | None = None,
) -> Instruction:
    """``dst = data1 <op> data2``, element by element, in float32."""
    return _emit("tensor_tensor", {"dst": dst, "data1": data1, "data2": data2, "op": op}, engine, name)


def tensor_scalar(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Operator,
    operand0: float | NkiTensor,
    reverse0: bool = False,
    op1: Operator | None = None,
    operand1: float | NkiTensor | None = None,
    reverse1: bool = False,
    engine: Engine = Engine.unknown,
    name: str | None = None,
) -> Instruction:
    """``dst = (data <op0> operand0) <op1> operand1``; operands are numbers or float32 ``[P, 1]`` tiles."""
    args = {"dst": dst, "data": data, "op0": op0, "operand0": operand0, "reverse0": reverse0}
    return _emit("tensor_scalar", {**args, "op1": op1, "operand1": operand1, "reverse1": reverse1}, engine, name)


def scalar_tensor_tensor(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Operator,
    operand0: float | NkiTensor,
    op1: Operator,
    operand1: NkiTensor,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> Instruction:
    """``dst = (data <op0> operand0) <op1> operand1``; ``operand0`` broadcasts, ``operand1`` is a tile."""
    args = {"dst": dst, "data": data, "op0": op0, "operand0": operand0, "op1": op1, "operand1": operand1}
    return _emit("scalar_tensor_tensor", {**args, "reverse0": reverse0, "reverse1": reverse1}, name=name)


def tensor_reduce(
    dst: NkiTensor,
    op: Operator,
    data: NkiTensor,
    axis: int | Sequence[int],
    negate: bool = False,
    keepdims: bool = False,
    name: str | None = None,
) -> Instruction:
    """``dst = op.reduce(data, axis)`` over the last free axes; times -1 with ``negate``."""
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    axes = tuple(a + data.ndim if a < 0 else a for a in axes)
    return _emit("tensor_reduce", {"dst": dst, "data": data, "op": op, "axis": axes, "negate": negate}, name=name)


def activation(
    dst: NkiTensor,
    op: Operator,
    data: NkiTensor,
    bias: float | NkiTensor | None = None,
    scale: float | NkiTensor = 1.0,
    name: str | None = None,
) -> Instruction:
    """``dst = op(data * scale + bias)`` on the scalar engine."""
    args = {"dst": dst, "data": data, "op": op, "bias": bias, "scale": scale}
    return _emit("activation", {**args, "reduce_res": None}, name=name)


def activation_reduce(
    dst: NkiTensor,
    op: Operator,
    data: NkiTensor,
    reduce_op: Operator,
    reduce_res: NkiTensor,
    bias: float | NkiTensor | None = None,
    scale: float | NkiTensor = 1.0,
    name: str | None = None,
) -> Instruction:
    """``activation``, and the sum of each partition's results into ``reduce_res`` ``[P, 1]``."""
    if reduce_op is not OPERATORS["add"]:
        raise KernelError(f"activation_reduce: reduce_op={reduce_op!r}; the scalar engine sums only (nl.add)")
    args = {"dst": dst, "data": data, "op": op, "bias": bias, "scale": scale}
    return _emit("activation", {**args, "reduce_res": reduce_res}, name=name)


def reciprocal(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> Instruction:
    """``dst = 1 / data`` on the vector engine."""
    return _emit("reciprocal", {"dst": dst, "data": data}, name=name)


def max8(dst: NkiTensor, src: NkiTensor, name: str | None = None) -> Instruction:
    """The 8 largest values of each partition, descending."""
    return _emit("max8", {"dst": dst, "src": src}, name=name)


def nc_find_index8(dst: NkiTensor, data: NkiTensor, vals: NkiTensor, name: str | None = None) -> Instruction:
    """Where each of 8 values stands in its partition: first places first, all ones where it is not found."""
    return _emit("nc_find_index8", {"dst": dst, "data": data, "vals": vals}, name=name)

"""Our ``nki.isa`` (`nisa`): one function an instruction, with NKI 0.6's names, argument order and defaults.

Each function names its arguments and appends the instruction; what it may do and what it means stands in
``machine/instructions``.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from operator import index
from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.machine import modes
from trnrt.nki.machine.instructions import OPERATIONS
from trnrt.nki.machine.instructions.elementwise import integers_only
from trnrt.nki.machine.operators import OPERATORS, Operator
from trnrt.nki.machine.program import Engine, Instruction, MemoryRegion
from trnrt.nki.sim.calls.accumulating import (
    activate2,
    exponential,
    tensor_scalar_cumulative,
    tensor_scalar_reduce,
    tensor_tensor_scan,
)
from trnrt.nki.sim.calls.array import array_modes
from trnrt.nki.sim.calls.control import VirtualRegister as VirtualRegister
from trnrt.nki.sim.calls.control import register_alloc as register_alloc
from trnrt.nki.sim.calls.control import register_load as register_load
from trnrt.nki.sim.calls.control import register_move as register_move
from trnrt.nki.sim.calls.control import register_store as register_store
from trnrt.nki.sim.calls.cores import core_barrier as core_barrier
from trnrt.nki.sim.calls.cores import sendrecv as sendrecv
from trnrt.nki.sim.calls.left_out import nc_matmul_mx as nc_matmul_mx
from trnrt.nki.sim.calls.left_out import quantize_mx as quantize_mx
from trnrt.nki.sim.calls.random import dropout, rand2, rand_get_state, rand_set_state, rng, set_rng_seed
from trnrt.nki.sim.calls.selection import affine_select, iota, nc_match_replace8, range_select, select_reduce
from trnrt.nki.sim.calls.shuffle import local_gather, nc_n_gather, nc_stream_shuffle, nonzero_with_count, topk
from trnrt.nki.sim.calls.statistics import bn_aggr, bn_stats, sequence_bounds, tensor_partition_reduce
from trnrt.nki.sim.calls.transfer import dma_compute, dma_transpose
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import active_tracer

__all__ = [
    "VirtualRegister",
    "activate2",
    "activation",
    "activation_reduce",
    "affine_select",
    "bn_aggr",
    "bn_stats",
    "core_barrier",
    "dge_mode",
    "dma_compute",
    "dma_copy",
    "dma_engine",
    "dma_transpose",
    "dropout",
    "engine",
    "exponential",
    "get_nc_version",
    "iota",
    "local_gather",
    "matmul_perf_mode",
    "max8",
    "memset",
    "nc_find_index8",
    "nc_match_replace8",
    "nc_matmul",
    "nc_n_gather",
    "nc_stream_shuffle",
    "nc_transpose",
    "nc_version",
    "nonzero_with_count",
    "oob_mode",
    "rand2",
    "rand_get_state",
    "rand_set_state",
    "range_select",
    "reciprocal",
    "reduce_cmd",
    "register_alloc",
    "register_load",
    "register_move",
    "register_store",
    "rng",
    "scalar_tensor_tensor",
    "select_reduce",
    "sendrecv",
    "sequence_bounds",
    "set_rng_seed",
    "tensor_copy",
    "tensor_copy_predicated",
    "tensor_partition_reduce",
    "tensor_reduce",
    "tensor_scalar",
    "tensor_scalar_cumulative",
    "tensor_scalar_reduce",
    "tensor_tensor",
    "tensor_tensor_scan",
    "topk",
]

engine = Engine
tensor_engine = Engine.tensor
vector_engine = Engine.vector
scalar_engine = Engine.scalar
gpsimd_engine = Engine.gpsimd
unknown_engine = Engine.unknown
NkiInstruction = Instruction
NkiValidationError = KernelError
reduce_cmd = modes.reduce_cmd
dge_mode = modes.dge_mode
oob_mode = modes.oob_mode
matmul_perf_mode = modes.matmul_perf_mode
dma_engine = modes.dma_engine

_VECTOR_TRANSPOSE_MAX = 32


class nc_version(IntEnum):  # noqa: N801 - NKI's name
    """NeuronCore generations; ordered, because kernels compare them with ``>=``."""

    gen2 = 2
    gen3 = 3
    gen4 = 4


def get_nc_version() -> nc_version:
    """The generation of the target that the kernel is traced for."""
    return nc_version(active_tracer("nisa.get_nc_version").target.generation)


def get_nc_sub_version() -> int:
    """The silicon revision within the generation: always the first one, 0."""
    active_tracer("nisa.get_nc_sub_version")
    return 0


def _emit(operation: str, args: dict[str, Any], on: Engine = Engine.unknown, name: str | None = None) -> Instruction:
    return active_tracer(f"nisa.{operation}").emit(OPERATIONS[operation], args, on, name)


def dma_copy(
    dst: NkiTensor,
    src: NkiTensor,
    priority: int | None = None,
    oob_mode: modes.oob_mode = modes.oob_mode.error,
    dge_mode: modes.dge_mode = modes.dge_mode.unknown,
    engine: Engine = Engine.unknown,
    name: str | None = None,
) -> Instruction:
    """``dst = src`` between HBM and SBUF, through float32 where the dtypes differ.

    ``oob_mode`` concerns indices that are known at run time only; views of this simulator have none.
    """
    descriptors = modes.as_dge_mode(dge_mode)
    args = {"dst": dst, "src": src, "priority": priority, "oob_mode": oob_mode, "dge_mode": descriptors}
    args["engine"] = engine
    return _emit("dma_copy", args, name=name)


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
    tile_position: tuple[int, ...] = (),
    tile_size: tuple[int, ...] = (),
    perf_mode: modes.matmul_perf_mode = modes.matmul_perf_mode.none,
    name: str | None = None,
) -> Instruction:
    """``dst = stationary.T @ moving`` on the tensor engine, contraction along the partitions.

    ``accumulate``: True adds to ``dst``, False overwrites it, None overwrites the elements that no matmul has
    written since the tile was allocated and adds to the others. ``is_..._onezero`` change the timing only, and so do
    ``tile_position`` and ``tile_size``: the tile of the array that is used. ``is_transpose`` passes stationary through,
    bit for bit (trn1: multiplies); ``perf_mode`` double_row contracts along the first free dimension, of 2, too.
    """
    tracer = active_tracer("nisa.nc_matmul")
    used = array_modes(is_transpose, tile_position, tile_size, perf_mode, tracer.target)
    wanted = None if accumulate is None else bool(accumulate)
    known = isinstance(dst, NkiTensor) and dst.bounded
    accumulates, found = tracer.psum.accumulation(dst, wanted) if known else (False, "")
    args = {
        "dst": dst,
        "stationary": stationary,
        "moving": moving,
        "is_stationary_onezero": is_stationary_onezero,
        "is_moving_onezero": is_moving_onezero,
        "accumulates": accumulates,
        "accumulates_on": found,
        **used,
    }
    return _emit("nc_matmul", args, name=name)


def nc_transpose(
    dst: NkiTensor, data: NkiTensor, engine: Engine = Engine.unknown, name: str | None = None
) -> Instruction:
    """``dst = data.T``, free dimensions flattened, on the tensor engine (SBUF to PSUM) or the vector engine.

    An unnamed engine means the tensor engine, or the vector engine where only that one reaches the memories.
    """
    target = active_tracer("nisa.nc_transpose").target
    if engine is Engine.unknown and isinstance(dst, NkiTensor) and isinstance(data, NkiTensor):
        tensor_engine = data.buffer is MemoryRegion.sbuf and dst.buffer is MemoryRegion.psum
        small = data.partitions <= _VECTOR_TRANSPOSE_MAX and data.free_size <= _VECTOR_TRANSPOSE_MAX
        engine = Engine.vector if small and not tensor_engine else Engine.tensor
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
    """``dst = data1 <op> data2``, element by element, in float32.

    32-bit integers in SBUF mean the GpSimd engine, and its integer arithmetic, where no engine is named; so does
    ``nl.power``. Bitvec operators work on the bit patterns of integers.
    """
    args = {"dst": dst, "data1": data1, "data2": data2, "op": op}
    if engine is Engine.unknown and op is OPERATORS["power"]:
        engine = Engine.gpsimd
    elif engine is Engine.unknown and integers_only(args) and not (isinstance(op, Operator) and op.bitvec):
        in_sbuf = all(tile.buffer is MemoryRegion.sbuf for tile in (dst, data1, data2))
        engine = Engine.gpsimd if in_sbuf else Engine.vector
    return _emit("tensor_tensor", args, engine, name)


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
    try:
        axes = tuple(index(a) for a in (axis if isinstance(axis, Sequence) else (axis,)))
    except TypeError:
        raise KernelError(f"tensor_reduce: axis={axis!r}; it must be an integer or a sequence of integers") from None
    if isinstance(data, NkiTensor):
        axes = tuple(a + data.ndim if a < 0 else a for a in axes)
    return _emit("tensor_reduce", {"dst": dst, "data": data, "op": op, "axis": axes, "negate": negate}, name=name)


def activation(
    dst: NkiTensor,
    op: Operator,
    data: NkiTensor,
    bias: float | NkiTensor | None = None,
    scale: float | NkiTensor = 1.0,
    reduce_op: Operator | None = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: modes.reduce_cmd = modes.reduce_cmd.idle,
    name: str | None = None,
) -> Instruction:
    """``dst = op(data * scale + bias)`` on the scalar engine.

    ``reduce_cmd`` clears the engine's accumulator registers, adds each partition's results to them, or both;
    ``reduce_res`` ``[P, 1]`` gets a copy of them afterwards.
    """
    tracer = active_tracer("nisa.activation")
    uses_registers = reduce_res is not None or reduce_cmd is not modes.reduce_cmd.idle
    args = {
        "dst": dst,
        "data": data,
        "op": op,
        "bias": bias,
        "scale": scale,
        "reduce_op": reduce_op,
        "reduce_res": reduce_res,
        "reduce_cmd": reduce_cmd,
        "reduce_regs": tracer.accumulators(Engine.scalar, data) if uses_registers else None,
    }
    return _emit("activation", args, name=name)


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
    return activation(dst, op, data, bias, scale, reduce_op, reduce_res, modes.reduce_cmd.reset_reduce, name)


def reciprocal(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> Instruction:
    """``dst = 1 / data`` on the vector engine."""
    return _emit("reciprocal", {"dst": dst, "data": data}, name=name)


def max8(dst: NkiTensor, src: NkiTensor, name: str | None = None) -> Instruction:
    """The 8 largest values of each partition, descending."""
    return _emit("max8", {"dst": dst, "src": src}, name=name)


def nc_find_index8(dst: NkiTensor, data: NkiTensor, vals: NkiTensor, name: str | None = None) -> Instruction:
    """Where each of 8 values stands in its partition: first places first, all ones where it is not found."""
    return _emit("nc_find_index8", {"dst": dst, "data": data, "vals": vals}, name=name)

"""Selections of `nisa`: by ranges, predicates and affine patterns; iota; match and replace."""

from __future__ import annotations

from collections.abc import Sequence

from trnrt.nki.machine import modes
from trnrt.nki.machine.instructions import selection
from trnrt.nki.machine.operators import OPERATORS, Operator
from trnrt.nki.machine.program import Engine, Instruction, Register
from trnrt.nki.machine.rules.selection import FLOAT32_MIN
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import active_tracer

Pattern = Sequence[Sequence[int]]

_MAXIMUM, _EQUAL = OPERATORS["maximum"], OPERATORS["equal"]


def range_select(
    dst: NkiTensor,
    on_true_tile: NkiTensor,
    comp_op0: Operator,
    comp_op1: Operator,
    bound0: NkiTensor,
    bound1: NkiTensor,
    reduce_cmd: modes.reduce_cmd = modes.reduce_cmd.reset_reduce,
    reduce_res: NkiTensor | None = None,
    reduce_op: Operator = _MAXIMUM,
    range_start: int = 0,
    on_false_value: float = FLOAT32_MIN,
    name: str | None = None,
) -> Instruction:
    """``dst = on_true_tile`` where ``range_start`` + place passes both comparisons, else the least float32.

    The maximum of each partition's results goes to the vector engine's registers, and to ``reduce_res`` ``[P, 1]``.
    """
    tracer = active_tracer("nisa.range_select")
    args = {
        "dst": dst,
        "on_true_tile": on_true_tile,
        "comp_op0": comp_op0,
        "comp_op1": comp_op1,
        "bound0": bound0,
        "bound1": bound1,
        "reduce_cmd": reduce_cmd,
        "reduce_res": reduce_res,
        "reduce_op": reduce_op,
        "range_start": range_start,
        "on_false_value": on_false_value,
        "reduce_regs": tracer.accumulators(Engine.vector, on_true_tile),
    }
    return tracer.emit(selection.RANGE_SELECT, args, Engine.unknown, name)


def select_reduce(
    dst: NkiTensor,
    predicate: NkiTensor,
    on_true: NkiTensor,
    on_false: float | NkiTensor,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: modes.reduce_cmd = modes.reduce_cmd.idle,
    reduce_op: Operator = _MAXIMUM,
    reverse_pred: bool = False,
    name: str | None = None,
) -> Instruction:
    """``dst = on_true`` where ``predicate`` is not zero, else ``on_false``; the maximum of each partition's results.

    With ``idle`` the reference says that the registers may be modified: they read as NaN afterwards.
    """
    tracer = active_tracer("nisa.select_reduce")
    args = {
        "dst": dst,
        "predicate": predicate,
        "on_true": on_true,
        "on_false": on_false,
        "reduce_res": reduce_res,
        "reduce_cmd": reduce_cmd,
        "reduce_op": reduce_op,
        "reverse_pred": reverse_pred,
        "reduce_regs": tracer.accumulators(Engine.vector, on_true),
    }
    return tracer.emit(selection.SELECT_REDUCE, args, Engine.unknown, name)


def affine_select(
    dst: NkiTensor,
    pattern: Pattern,
    channel_multiplier: int,
    on_true_tile: NkiTensor,
    on_false_value: float,
    cmp_op: Operator = _EQUAL,
    offset: int | Register = 0,
    name: str | None = None,
) -> Instruction:
    """``dst = on_true_tile`` where the affine value (see ``iota``) compares with 0, else ``on_false_value``."""
    args = {
        "dst": dst,
        "pattern": pattern,
        "channel_multiplier": channel_multiplier,
        "on_true_tile": on_true_tile,
        "on_false_value": on_false_value,
        "cmp_op": cmp_op,
        "offset": offset,
    }
    return active_tracer("nisa.affine_select").emit(selection.AFFINE_SELECT, args, Engine.unknown, name)


def iota(
    dst: NkiTensor, pattern: Pattern, offset: int | Register = 0, channel_multiplier: int = 0, name: str | None = None
) -> Instruction:
    """``dst`` = ``offset`` + partition * ``channel_multiplier`` + index * step for each ``[step, num]`` of ``pattern``.

    Values are int32; ``offset`` may be a register. KernelError where an integer dtype of ``dst`` does not hold them:
    what is written then is not documented.
    """
    args = {"dst": dst, "pattern": pattern, "offset": offset, "channel_multiplier": channel_multiplier}
    issued = active_tracer("nisa.iota").emit(selection.IOTA, args, Engine.unknown, name)
    if not dst.dtype.is_float and not isinstance(offset, Register):
        selection.check_fit(*selection.affine_span(dst.partitions, pattern, offset, channel_multiplier), dst)
    return issued


def nc_match_replace8(
    dst: NkiTensor,
    data: NkiTensor,
    vals: NkiTensor,
    imm: float,
    dst_idx: NkiTensor | None = None,
    name: str | None = None,
) -> Instruction:
    """``dst = data`` with the first element equal to each of 8 ``vals`` replaced by ``imm``; ``dst_idx``: their places.

    Equal values get successive elements, the last of them the first element; a value that is not found all ones.
    """
    args = {"dst": dst, "data": data, "vals": vals, "imm": imm, "dst_idx": dst_idx}
    return active_tracer("nisa.nc_match_replace8").emit(selection.NC_MATCH_REPLACE8, args, Engine.unknown, name)

"""The `nisa` functions that reduce into their engine's accumulator registers, and the vector engine's scan."""

from __future__ import annotations

from trnrt.nki.machine import modes
from trnrt.nki.machine.instructions import accumulating
from trnrt.nki.machine.operators import OPERATORS, Operator
from trnrt.nki.machine.program import Engine, Instruction
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import active_tracer


def tensor_scalar_reduce(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Operator,
    operand0: float | NkiTensor,
    reduce_op: Operator,
    reduce_res: NkiTensor | None = None,
    reverse0: bool = False,
    reduce_cmd: modes.reduce_cmd = modes.reduce_cmd.reset_reduce,
    reduce_init: float | NkiTensor | None = None,
    reduce_res_negate: bool = False,
    name: str | None = None,
) -> Instruction:
    """``dst = data <op0> operand0``, and ``reduce_op`` over each partition's results into ``reduce_res`` ``[P, 1]``.

    ``reduce_cmd`` starts the vector engine's registers anew, from ``reduce_init`` (``load_reduce``), or goes on with
    them; ``reduce_res_negate`` negates what is read out, not the registers.
    """
    tracer = active_tracer("nisa.tensor_scalar_reduce")
    args = {
        "dst": dst,
        "data": data,
        "op0": op0,
        "operand0": operand0,
        "reverse0": reverse0,
        "reduce_op": reduce_op,
        "reduce_res": reduce_res,
        "reduce_cmd": reduce_cmd,
        "reduce_init": reduce_init,
        "reduce_res_negate": reduce_res_negate,
        "reduce_regs": tracer.accumulators(Engine.vector, data),
    }
    return tracer.emit(accumulating.TENSOR_SCALAR_REDUCE, args, Engine.unknown, name)


def tensor_scalar_cumulative(
    dst: NkiTensor,
    src: NkiTensor,
    op0: Operator,
    op1: Operator,
    imm0: float | NkiTensor,
    imm1: float | NkiTensor | None = None,
    reduce_cmd: modes.reduce_cmd = modes.reduce_cmd.reset_reduce,
    name: str | None = None,
) -> Instruction:
    """``register = (src <op0> imm0) <op1> register`` along each partition; ``dst`` gets every state of the register.

    It starts from ``op1``'s identity, from what the register holds (``reduce``), or from ``imm1`` (``load_reduce``).
    """
    tracer = active_tracer("nisa.tensor_scalar_cumulative")
    args = {
        "dst": dst,
        "src": src,
        "op0": op0,
        "op1": op1,
        "imm0": imm0,
        "imm1": imm1,
        "reduce_cmd": reduce_cmd,
        "reduce_regs": tracer.accumulators(Engine.vector, src),
    }
    return tracer.emit(accumulating.TENSOR_SCALAR_CUMULATIVE, args, Engine.unknown, name)


def tensor_tensor_scan(
    dst: NkiTensor,
    data0: NkiTensor,
    data1: NkiTensor,
    initial: float | NkiTensor,
    op0: Operator,
    op1: Operator,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> Instruction:
    """``state = (data0 <op0> state) <op1> data1`` along each partition from ``initial`` on; ``dst`` gets each state."""
    args = {"dst": dst, "data0": data0, "data1": data1, "initial": initial, "op0": op0, "op1": op1}
    args |= {"reverse0": reverse0, "reverse1": reverse1}
    return active_tracer("nisa.tensor_tensor_scan").emit(accumulating.TENSOR_TENSOR_SCAN, args, Engine.unknown, name)


def exponential(
    dst: NkiTensor,
    src: NkiTensor,
    max_value: float | NkiTensor = 0.0,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: modes.reduce_cmd = modes.reduce_cmd.idle,
    reduce_init: float | NkiTensor = 0.0,
    name: str | None = None,
) -> Instruction:
    """``dst = exp(src - max_value)`` on the vector engine of NeuronCore-v4, and the sum of each partition's results.

    With ``idle`` the reference calls the registers' state unknown afterwards: they read as NaN.
    """
    tracer = active_tracer("nisa.exponential")
    args = {
        "dst": dst,
        "src": src,
        "max_value": max_value,
        "reduce_res": reduce_res,
        "reduce_cmd": reduce_cmd,
        "reduce_init": reduce_init,
        "reduce_regs": tracer.accumulators(Engine.vector, src),
    }
    return tracer.emit(accumulating.EXPONENTIAL, args, Engine.unknown, name)


def activate2(
    dst: NkiTensor,
    op: Operator,
    data: NkiTensor,
    imm0: float | NkiTensor,
    imm1: float | NkiTensor,
    op0: Operator,
    op1: Operator,
    relu_param: float | NkiTensor = 0.0,
    reverse0: bool = False,
    reverse1: bool = False,
    reduce_op: Operator | None = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: modes.reduce_cmd = modes.reduce_cmd.idle,
    name: str | None = None,
) -> Instruction:
    """``dst = op((data <op0> imm0) <op1> imm1)`` on the scalar engine of NeuronCore-v4, and its reduction.

    ``relu_param`` is the slope of ``nl.prelu``; None stands for ``nl.bypass``.
    """
    tracer = active_tracer("nisa.activate2")
    uses_registers = reduce_res is not None or reduce_cmd is not modes.reduce_cmd.idle
    args = {
        "dst": dst,
        "op": op,
        "data": data,
        "imm0": imm0,
        "imm1": imm1,
        "op0": OPERATORS["bypass"] if op0 is None else op0,
        "op1": OPERATORS["bypass"] if op1 is None else op1,
        "relu_param": relu_param,
        "reverse0": reverse0,
        "reverse1": reverse1,
        "reduce_op": reduce_op,
        "reduce_res": reduce_res,
        "reduce_cmd": reduce_cmd,
        "reduce_regs": tracer.accumulators(Engine.scalar, data) if uses_registers else None,
    }
    return tracer.emit(accumulating.ACTIVATE2, args, Engine.unknown, name)

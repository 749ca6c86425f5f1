"""Functions of the scalar engine."""

from __future__ import annotations

from typing import Any

from trnrt.nki.legacy.instructions.issuing import instruction, parts_of, require_one_range, require_result
from trnrt.nki.legacy.lang.common import as_operator, require_operand, require_tile, result_format
from trnrt.nki.legacy.tiles import Pending
from trnrt.nki.machine import modes
from trnrt.nki.sim import isa
from trnrt.nki.sim.tensor import NkiTensor

__all__ = ["activation", "activation_reduce"]


@instruction
def activation(
    op: Any,
    data: Any,
    *,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: Any = None,
    reduce_cmd: Any = modes.reduce_cmd.idle,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> Pending:
    """``op(data * scale + bias)``; the engine's registers add up the results as ``reduce_cmd`` says."""
    what = "nisa.activation"
    data, op = require_tile(what, data, "data"), as_operator(op)
    scale = require_operand(what, scale, "scale")
    bias = None if bias is None else require_operand(what, bias, "bias")
    result = require_result(what, reduce_res, "reduce_res")
    more = {"reduce_op": None if reduce_op is None else as_operator(reduce_op), "reduce_cmd": reduce_cmd}

    def emit(dst: NkiTensor, a: NkiTensor, b: Any, factor: Any, total: Any) -> None:
        isa.activation(dst, op, a, b, factor, reduce_res=total, **more)

    sources = (data, bias, scale, result)
    once = reduce_cmd in (modes.reduce_cmd.reduce, modes.reduce_cmd.load_reduce)
    made = Pending(data.shape, result_format(dtype, data), emit, sources, mask=mask, converts=True, once=once)
    if reduce_cmd not in (modes.reduce_cmd.idle, modes.reduce_cmd.reduce):
        require_one_range(what, parts_of(made))
    return made


def activation_reduce(
    op: Any, data: Any, *, reduce_op: Any, reduce_res: Any, bias: Any = None, scale: Any = 1.0, **options: Any
) -> Pending:
    """``op(data * scale + bias)``; its sum over all free axes goes to ``reduce_res``, ``[P, 1]``."""
    options["reduce_cmd"] = modes.reduce_cmd.reset_reduce
    return activation(op, data, bias=bias, scale=scale, reduce_op=reduce_op, reduce_res=reduce_res, **options)

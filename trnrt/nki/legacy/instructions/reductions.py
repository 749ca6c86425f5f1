"""Reductions along the free axes and over the partitions, statistics of partitions."""

from __future__ import annotations

from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.instructions.issuing import (
    as_column,
    instruction,
    parts_of,
    require_one_range,
    require_result,
    row_bounds,
)
from trnrt.nki.legacy.lang.common import as_operator, require_operand, require_tile, result_format
from trnrt.nki.legacy.lang.reductions import reduce_tile
from trnrt.nki.legacy.tiles import Pending
from trnrt.nki.sim import isa
from trnrt.nki.sim.tensor import NkiTensor

__all__ = ["bn_aggr", "bn_stats", "tensor_partition_reduce", "tensor_reduce", "tensor_scalar_reduce"]

_STATISTICS = 6
_MOMENTS = 2


@instruction
def tensor_reduce(
    op: Any,
    data: Any,
    axis: Any,
    *,
    mask: Any = None,
    dtype: Any = None,
    negate: bool = False,
    keepdims: bool = False,
    **_: Any,
) -> Pending:
    """``op`` over free axes."""
    return reduce_tile(
        "nisa.tensor_reduce", as_operator(op), data, axis, dtype=dtype, mask=mask, keepdims=keepdims, negate=negate
    )


@instruction
def tensor_scalar_reduce(
    *,
    data: Any,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: Any,
    reverse0: bool = False,
    dtype: Any = None,
    mask: Any = None,
    **_: Any,
) -> Pending:
    """``data <op0> operand0``; its reduction over all free axes goes to ``reduce_res``, ``[P, 1]``."""
    what = "nisa.tensor_scalar_reduce"
    data, operand0 = require_tile(what, data, "data"), require_operand(what, operand0, "operand0")
    result = require_result(what, reduce_res, "reduce_res")
    op, reduces = as_operator(op0), as_operator(reduce_op)

    def emit(dst: NkiTensor, a: NkiTensor, b: Any, total: NkiTensor) -> None:
        isa.tensor_scalar_reduce(dst, a, op, as_column(b, op), reduces, total, reverse0)

    sources = (data, operand0, result)
    made = Pending(data.shape, result_format(dtype, data), emit, sources, mask=mask, converts=True)
    require_one_range(what, parts_of(made))
    return made


@instruction
def tensor_partition_reduce(op: Any, data: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Pending:
    """``op`` over the partitions, on the GpSimd engine: ``[1, ...]``."""
    data, op = require_tile("nisa.tensor_partition_reduce", data, "data"), as_operator(op)
    made = Pending(
        (1, *data.shape[1:]),
        result_format(dtype, data),
        lambda dst, a: isa.tensor_partition_reduce(dst, op, a),
        (data,),
        mask=mask,
        iteration=data.shape,
        bounds_of=lambda bounds: ((0, 1), *bounds[1:]),
    )
    if len({bounds for _, bounds in made.parts}) != len(made.parts):
        raise KernelError("nisa.tensor_partition_reduce: the mask leaves partitions that are no single range")
    return made


@instruction
def bn_stats(data: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Pending:
    """Count, mean, and variance times count of the even and of the odd elements of each partition: ``[P, 6]``."""
    data = require_tile("nisa.bn_stats", data, "data")
    return _statistics("nisa.bn_stats", data, isa.bn_stats, _STATISTICS, mask, dtype)


@instruction
def bn_aggr(data: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Pending:
    """Mean and variance of each partition from the results of ``bn_stats``: ``[P, 2]``."""
    data = require_tile("nisa.bn_aggr", data, "data")
    return _statistics("nisa.bn_aggr", data, isa.bn_aggr, _MOMENTS, mask, dtype)


def _statistics(what: str, data: Any, emit: Any, size: int, mask: Any, dtype: Any) -> Pending:
    made = Pending(
        (data.shape[0], size),
        result_format(dtype, data),
        emit,
        (data,),
        mask=mask,
        iteration=data.shape,
        bounds_of=row_bounds(size),
    )
    require_one_range(what, parts_of(made))
    return made

"""Boundary nodes, which the host computes: casts and look-ups of final indices and labels, and of integer inputs.

No arithmetic on activations runs on the host.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from trnrt.errors import ModelFileError
from trnrt.operators import batch
from trnrt.operators.elementwise import add_cast, add_float
from trnrt.operators.movement import add_take, copying, moves
from trnrt.operators.record import CHEAP, COUNTS, NEVER, Index
from trnrt.planner.lowering.blocked import WRONG
from trnrt.planner.lowering.host import host_function
from trnrt.planner.lowering.walk import FLOATS, INTEGERS, Blocked, Lowering, attribute
from trnrt.planner.plan import Array


@copying({"Cast": (6, 9, 13, 19, 21, 23, 24, 25, 28)}, values=(), folds=CHEAP | COUNTS)
def lower_cast(lowering: Lowering, node: ir.Node) -> None:
    """Casts between floats take no step: all are stored in the session's dtype. The host casts final indices."""
    source = node.inputs[0]
    assert source is not None
    target = ir.DataType(attribute(node, "to", 1))
    native, kind = {*FLOATS, ir.DataType.BOOL}, source.dtype
    widens = kind in INTEGERS and target in INTEGERS and np.can_cast(kind.numpy(), target.numpy())
    # Doubles that the core made are in the session's dtype, too; nothing computes with them.
    computed = not lowering.is_input(source)
    from_double = kind is ir.DataType.DOUBLE and computed and target in FLOATS
    to_double = target is ir.DataType.DOUBLE and (kind in native or (kind in INTEGERS and computed))
    if (
        lowering.moves_indices
        and kind in {*FLOATS, ir.DataType.DOUBLE}
        and target in (ir.DataType.INT32, ir.DataType.INT64)
    ):
        lowering.view(node, source, "indices: the host truncates them")
    elif lowering.is_on_host(source):
        lowering.run_on_host(node, partial(_cast, dtype=target.numpy()), "converts a final index on the host")
    elif ir.DataType.STRING in (source.dtype, target):
        raise Blocked(
            "a cast from or to strings", "the NeuronCore has no strings: convert them before or after the model"
        )
    elif target in FLOATS and lowering.dtype != "float32" and lowering.is_wide(source):
        add_float(lowering, node)
    elif widens or from_double or to_double or (target in FLOATS and (not computed or kind in native | INTEGERS)):
        lowering.view(node, source, "the session's dtype holds it as it is")
    elif _holds(lowering, source, target):
        lowering.view(node, source, "whole numbers of this type already")
        lowering.mark_whole_numbers(node.outputs[0])
    elif (kind in native and target in INTEGERS) or (kind in native | INTEGERS and target is ir.DataType.BOOL):
        add_cast(lowering, node, target)
    else:
        kinds = f"{kind.name if kind else '?'} to {target.name}"
        raise Blocked(f"a cast from {kinds} between computed tensors")


def _holds(lowering: Lowering, source: ir.Value, target: ir.DataType) -> bool:
    """True if the source has whole numbers on the device, all of which an integer type holds."""
    if target not in INTEGERS:
        return False
    if source.dtype in INTEGERS:
        lowering.place_view(source)  # blocks others
    limits, held = lowering.wholes.limits_of(source), np.iinfo(target.numpy())
    return limits is not None and held.min <= limits.low and limits.high <= held.max


@host_function
def _cast(values: Array, dtype: np.dtype[Any]) -> Array:
    return values.astype(dtype)


@moves({"ArrayFeatureExtractor": (1,)}, domain="ai.onnx.ml", batch=batch.extract, values=Index(1), folds=NEVER)
def lower_feature_extractor(lowering: Lowering, node: ir.Node) -> None:
    """Columns of a constant table at final indices (a label look-up), or of a tensor at constant indices."""
    table, picks = lowering.constant(node.inputs[0]), lowering.constant(node.inputs[1])
    if picks is not None and (table is None or table.dtype.kind == "f"):
        view = lowering.view_of(node.inputs[0])
        if len(view.shape) == 1:
            view = view.broadcast((1, *view.shape))
        if np.any(picks < 0) or np.any(picks >= view.shape[-1]):
            raise Blocked(f"an index outside the {view.shape[-1]} columns of its input", WRONG)
        add_take(lowering, node, view, len(view.shape) - 1, picks.reshape(-1), "constant columns: access patterns")
        return
    if table is None or (picks is None and not lowering.is_on_host(node.inputs[1])):
        raise Blocked("only the look-up of a constant by a final index (ArgMax), or of constant columns, is supported")
    lowering.run_on_host(node, _extract, "looks labels up on the host")


@host_function
def _extract(table: Array, indices: Array) -> Array:
    """ONNX-ML: columns of the last dimension; a one-dimensional table gives one row."""
    rows = table.reshape(1, -1) if table.ndim == 1 else table
    if indices.size and not 0 <= indices.min() <= indices.max() < rows.shape[-1]:
        wrong = indices.max() if indices.min() >= 0 else indices.min()
        raise ModelFileError(
            f"the model looks up number {wrong} in a table of {rows.shape[-1]} labels",
            hint="The table of labels belongs to another model: export the model again.",
        )
    return rows[..., indices.reshape(-1)]

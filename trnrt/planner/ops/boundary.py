"""The boundary nodes: what the host does with final indices and labels, and with integer inputs.

This is the whole list of what does not run on the NeuronCore. None of it is arithmetic on activations.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from trnrt.planner.lowering import FLOATS, Blocked, Lowering, attribute, lowers
from trnrt.planner.plan import Array


@lowers("Cast")
def lower_cast(lowering: Lowering, node: ir.Node) -> None:
    """Between floats: nothing, all of them are the session's dtype. Of a final index: on the host."""
    source = node.inputs[0]
    assert source is not None
    target = ir.DataType(attribute(node, "to", 1))
    if lowering.on_host(source):
        lowering.to_host(node, partial(_cast, dtype=target.numpy()), "converts a final index on the host")
    elif lowering.is_input(source) and target in FLOATS and source.dtype is not ir.DataType.STRING:
        lowering.view(node, source, "the host converts the input to the session's dtype")
    elif source.dtype in FLOATS and target in FLOATS:
        lowering.view(node, source, "floats are the session's dtype throughout")
    else:
        kinds = f"{source.dtype.name if source.dtype else '?'} to {target.name}"
        raise Blocked(f"a cast from {kinds} between computed tensors")


def _cast(values: Array, dtype: np.dtype[Any]) -> Array:
    return values.astype(dtype)


@lowers("ArrayFeatureExtractor", domain="ai.onnx.ml")
def lower_feature_extractor(lowering: Lowering, node: ir.Node) -> None:
    """A label look-up: columns of a constant table by final indices."""
    table = lowering.constant(node.inputs[0])
    if table is None or not lowering.on_host(node.inputs[1]):
        raise Blocked("only the look-up of a constant by a final index (ArgMax) is supported")
    lowering.to_host(node, _extract, "looks labels up on the host")


def _extract(table: Array, indices: Array) -> Array:
    """ONNX-ML: columns of the last dimension; a one-dimensional table gives one row."""
    rows = table.reshape(1, -1) if table.ndim == 1 else table
    return rows[..., indices.reshape(-1)]

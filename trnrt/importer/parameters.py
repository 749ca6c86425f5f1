"""Parameters: inputs that are really attributes, as operators read them only as shapes, axes, counts or limits.

A plan needs their values, not only their shapes, so they are bound as constants: each new value needs a new plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trnrt.errors import InputError
from trnrt.importer.records import ReadModel
from trnrt.importer.values import has_subgraph
from trnrt.operators.record import COUNTS, Index, record_of
from trnrt.text import quote

_MOST_NUMBERS = 4096


def find_parameters(graph: ir.Graph) -> tuple[str, ...]:
    """Names of the inputs whose values a plan needs."""
    found = _Found(_find_constants(graph))
    for node in reversed(list(graph)):
        record = record_of(node)
        if record is not None and COUNTS in record.folds and all(_is_by_value(v, found) for v in node.outputs):
            found.by_value.update(node.outputs)
    return tuple(value.name or "" for value in graph.inputs if _is_parameter(value, found))


@dataclass
class _Found:
    """Values that are constants, and those that are read only as parameters or to compute parameters."""

    constants: set[ir.Value]
    by_value: set[ir.Value] = field(default_factory=set)


def _find_constants(graph: ir.Graph) -> set[ir.Value]:
    """The values that no input of the model changes: a table may be a Constant node, or be dequantised."""
    found = set(graph.initializers.values())
    for node in graph:
        if not has_subgraph(node) and all(value is None or value in found for value in node.inputs):
            found.update(node.outputs)
    return found


def _is_parameter(value: ir.Value, found: _Found) -> bool:
    if value.dtype is None or value.shape is None or not value.uses() or not _is_by_value(value, found):
        return False
    of_any_rank = all(_is_index(node, index) for node, index in value.uses())
    if of_any_rank:
        return value.dtype in (ir.DataType.INT32, ir.DataType.INT64)
    return len(value.shape) <= 1


def _is_by_value(value: ir.Value, found: _Found) -> bool:
    """True if the value is read, and only as a parameter or to compute parameters."""
    uses = list(value.uses())
    return bool(uses) and not value.is_graph_output() and all(_takes_value(n, i, found) for n, i in uses)


def _takes_value(node: ir.Node, index: int, found: _Found) -> bool:
    if node.outputs and node.outputs[0] in found.by_value:
        return True
    if _is_index(node, index):
        # Indices into a constant table are data: each sentence would need a new plan.
        return node.inputs[0] is not None and node.inputs[0] not in found.constants
    record = record_of(node)
    return record is not None and not isinstance(record.values, Index) and index in record.values


def _is_index(node: ir.Node, index: int) -> bool:
    record = record_of(node)
    return record is not None and record.values == Index(index)


def check_values(
    imported: ReadModel, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """The values of all parameters, as arrays.

    Raises:
        InputError: if one is missing, or is not what the shapes or the model say.
    """
    checked = {}
    for info in imported.inputs:
        if info.name not in imported.parameters:
            continue
        start = f"input {quote(info.name)}"
        if info.name not in values:
            raise InputError(
                f"{start}: the plan depends on its value, and none is given",
                hint="It sets what an operator does (a shape, axes, a count): run and validate take it from --input; "
                "or export the model with it as a constant.",
            )
        array, shape = np.asarray(values[info.name]), shapes[info.name]
        if array.shape != shape or array.dtype.name != info.dtype:
            wanted = f"{info.dtype} of shape {shape}"
            raise InputError(f"{start}: expected {wanted}, got {array.dtype.name} of shape {array.shape}")
        if array.size > _MOST_NUMBERS:
            raise InputError(
                f"{start} has {array.size} numbers; as the plan depends on each of them, it takes at most "
                f"{_MOST_NUMBERS}",
                hint="Export the model with it as a constant.",
            )
        checked[info.name] = array
    return checked


def bind_values(graph: ir.Graph, values: Mapping[str, NDArray[Any]]) -> None:
    """Turn inputs into constants."""
    for value in [value for value in graph.inputs if value.name in values]:
        array = np.array(values[value.name or ""])
        value.const_value = ir.tensor(array, name=value.name)
        graph.inputs.remove(value)
        graph.register_initializer(value)

"""Row numbers: indices that an input of the model holds. The host prepares them, and the device looks rows up."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trnrt.errors import InputError
from trnrt.importer.indexing import MOVING
from trnrt.planner.host import host_function
from trnrt.planner.plan import Array


def index_nodes(graph: ir.Graph) -> set[str]:
    """Names of the nodes that only move integers of the model's inputs to where they are indices of a Gather."""
    moving: set[ir.Node] = set()
    for node in reversed(list(graph)):
        uses = [use for value in node.outputs for use in value.uses()]
        if node.op_type in MOVING and uses and all(_is_integral(value) for value in node.outputs):
            as_index = [_is_index(reader, at) or (reader in moving and at == 0) for reader, at in uses]
            if all(as_index) and not any(value.is_graph_output() for value in node.outputs):
                moving.add(node)
    known = set(graph.inputs)
    names = set()
    for node in graph:
        if node in moving and node.inputs[0] in known:
            known |= set(node.outputs)
            names.add(node.name or "")
    return names


def _is_integral(value: ir.Value) -> bool:
    return value.dtype is not None and not value.dtype.is_string() and value.dtype.numpy().kind in "iu"


def _is_index(reader: ir.Node, position: int) -> bool:
    return reader.op_type == "Gather" and position == 1


@host_function
def row_numbers(
    values: Array, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, size: int, what: str, reader: str
) -> Array:
    """The elements of ``values`` that a view reads, as int32 (R, 1), counted from the front.

    ``size``: how many rows there are; InputError for a number that is none of them, naming the input ``what`` and the
    node ``reader``.
    """
    places = np.full(shape, offset, np.int64)
    for axis, stride in enumerate(strides):
        steps = np.arange(shape[axis], dtype=np.int64) * stride
        places += steps.reshape([-1 if d == axis else 1 for d in range(len(shape))])
    numbers = values.reshape(-1)[places.reshape(-1)].astype(np.int64)
    wrong = numbers[(numbers < -size) | (numbers >= size)]
    if wrong.size:
        raise InputError(
            f"input {what} holds {wrong[0]}, and {reader} looks up one of {size} rows by it",
            hint=f"numbers from 0 to {size - 1} are taken, and from {-size} to -1, which count from the end",
        )
    return (numbers % size).astype(np.int32).reshape(-1, 1)

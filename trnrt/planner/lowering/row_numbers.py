"""Row numbers: indices in an input of the model. The host prepares them, and the device looks rows up."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trnrt.errors import InputError
from trnrt.importer.rows.indexing import GATHERING, MOVING
from trnrt.planner.lowering.host import host_function
from trnrt.planner.plan import Array


def index_nodes(graph: ir.Graph) -> set[str]:
    """Names of the nodes that only carry numbers from the model's inputs to the indices of a Gather, or labels to an
    encoder.

    The numbers may be floats until a Cast makes them integers.
    """
    moving: set[ir.Node] = set()
    for node in reversed(list(graph)):
        uses = [use for value in node.outputs for use in value.uses()]
        kinds = "iu" if node.op_type == "Cast" else "iufs"
        if node.op_type in MOVING and uses and all(_kind(value) in kinds for value in node.outputs):
            as_index = [_is_index(reader, at) or (reader in moving and at == 0) for reader, at in uses]
            if all(as_index) and not any(value.is_graph_output() for value in node.outputs):
                moving.add(node)
    known = {value for value in graph.inputs if _kind(value) in "iufs"}
    names = set()
    for node in graph:
        if node in moving and node.inputs[0] in known:
            known |= set(node.outputs)
            names.add(node.name or "")
    return names


def _kind(value: ir.Value) -> str:
    """numpy's letter for the kind of dtype, "s" for strings; "?" for dtypes that numpy doesn't have (bfloat16)."""
    if value.dtype is None or value.dtype.is_string():
        return "?" if value.dtype is None else "s"
    return value.dtype.numpy().kind.replace("V", "?")


def _is_index(reader: ir.Node, position: int) -> bool:
    encodes = reader.domain == "ai.onnx.ml" and reader.op_type in ("LabelEncoder", "OneHotEncoder")
    return encodes or (reader.op_type in GATHERING and position == 1)


def read_view(values: Array, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Array:
    """The elements of ``values`` that a view with these strides reads."""
    places = np.full(shape, offset, np.int64)
    for axis, stride in enumerate(strides):
        steps = np.arange(shape[axis], dtype=np.int64) * stride
        places += steps.reshape([-1 if d == axis else 1 for d in range(len(shape))])
    found: Array = np.ascontiguousarray(values).reshape(-1)[places]
    return found


@host_function
def row_numbers(
    values: Array, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, size: int, what: str, reader: str
) -> Array:
    """The elements of ``values`` that a view reads, as int32 of its shape, counted from the front.

    Floats are truncated.

    ``size`` is the number of rows. A number out of range raises an InputError that names the input ``what`` and the
    node ``reader``.
    """
    found = read_view(values, shape, strides, offset).reshape(-1)
    with np.errstate(invalid="ignore"):  # NaN and infinity become the least integer, which is no row
        numbers = found.astype(np.int64)
    wrong = found[(numbers < -size) | (numbers >= size)]
    if wrong.size:
        raise InputError(
            f"input {what} holds {wrong[0]}, and {reader} looks up one of {size} rows by it",
            hint=f"numbers from 0 to {size - 1} are taken, and from {-size} to -1, which count from the end",
        )
    return (numbers % size).astype(np.int32).reshape(shape or (1,))

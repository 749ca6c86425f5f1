"""Writes ONNX's operators in the place of one of onnxruntime's, and infers ranks and types with open dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from trnrt.importer.quantised.forms import Left
from trnrt.importer.rewriting.editing import Array, Editor
from trnrt.importer.values import constant_array, is_used, static_size

# Elements of the largest constant that onnx's inference gets: shapes and axes are small.
_SMALL = 64
FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)
_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)


class Writer:
    """Writes nodes before ``node``, the one that is being rewritten. ``notes``: what users should know of it."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.editor = Editor(model)
        self.opset = self.editor.opset
        self.node = ir.node("None", [])
        self.notes: list[str] = []
        self._made: set[ir.Value] = set()

    def apply(
        self, operator: str, *inputs: ir.Value | Array | None, name: str = "", outputs: int = 1, **attributes: Any
    ) -> ir.Value:
        """The first output of a new node; arrays become constants. ``name`` is the node's."""
        return self.insert(operator, inputs, outputs, name, attributes)[0]

    def insert(
        self, operator: str, inputs: Sequence[ir.Value | Array | None], outputs: int, name: str, attributes: Any
    ) -> list[ir.Value]:
        """All outputs of a new node."""
        like = f"{self.node.outputs[0].name}_{operator.lower()}"
        values = [self.constant(x, like) if isinstance(x, np.ndarray) else x for x in inputs]
        made = [ir.val(self.editor.spare_name(like)) for _ in range(outputs)]
        name = name or self.editor.node_name(f"{self.node.name or self.node.outputs[0].name}_{operator.lower()}")
        node = ir.node(operator, values, attributes, outputs=made, name=name)
        self.editor.graph.insert_before(self.node, node)
        infer_open(node, self.model)
        self._made.update(made)
        return made

    def split(self, value: ir.Value, sizes: Sequence[int], axis: int) -> list[ir.Value]:
        """Parts of a tensor along an axis."""
        if self.opset < 13:
            return self.insert("Split", [value], len(sizes), "", {"axis": axis, "split": list(sizes)})
        return self.insert("Split", [value, np.array(sizes, np.int64)], len(sizes), "", {"axis": axis})

    def slice(self, value: ir.Value, count: int, axis: int) -> ir.Value:
        """The first elements along an axis."""
        if self.opset < 10:
            return self.apply("Slice", value, starts=[0], ends=[count], axes=[axis])
        return self.apply("Slice", value, *(np.array([number], np.int64) for number in (0, count, axis)))

    def reshape(self, value: ir.Value, *shape: int, name: str = "") -> ir.Value:
        """The value in another shape, in which 0 stands for the size that the dimension has."""
        return self.apply("Reshape", value, np.array(shape, np.int64), name=name)

    def transpose(self, value: ir.Value | None, *order: int, name: str = "") -> ir.Value:
        """The value with its axes in another order."""
        return self.apply("Transpose", value, name=name, perm=list(order))

    def unsqueeze(self, value: ir.Value, *axes: int) -> ir.Value:
        """The value with more axes of size 1, at these places of the result."""
        if self.opset < 13:
            return self.apply("Unsqueeze", value, axes=list(axes))
        return self.apply("Unsqueeze", value, np.array(axes, np.int64))

    def squeeze(self, value: ir.Value, axis: int) -> ir.Value:
        """The value without an axis of size 1."""
        if self.opset < 13:
            return self.apply("Squeeze", value, axes=[axis])
        return self.apply("Squeeze", value, np.array([axis], np.int64))

    def constant(self, array: Array, like: str) -> ir.Value:
        """A new constant."""
        return self.editor.constant(array, f"{like}_constant")

    def finish(self, *results: ir.Value | None) -> None:
        """Put the results in the places of the node's outputs, whose names they take, and remove the node.

        Left if an output is used for which there is no result.
        """
        for k, old in enumerate(self.node.outputs):
            if is_used(old) and (k >= len(results) or results[k] is None):
                raise Left(f"its output {k} is used, which isn't supported")
        for old, new in zip(self.node.outputs, results, strict=False):
            if new is not None and is_used(old):
                self._replace(old, new)
        self.editor.remove(self.node)

    def _replace(self, old: ir.Value, new: ir.Value) -> None:
        if new not in self._made:
            if not old.is_graph_output():
                old.replace_all_uses_with(new)
                return
            new = self.apply("Identity", new)
        self._made.discard(new)
        name = old.name or ""
        old.name = self.editor.spare_name(f"{name}_before")
        new.name = name
        old.replace_all_uses_with(new, replace_graph_outputs=True)

    # -- what is known of values -------------------------------------------------------------------------

    def rank(self, value: ir.Value | None) -> int:
        """The number of dimensions. Left if it isn't known."""
        if value is None or value.shape is None:
            raise Left(f"the number of dimensions of its input {value.name if value else ''!r} is not known")
        return len(value.shape)

    def size(self, value: ir.Value | None, axis: int) -> int:
        """One dimension. Left if it isn't known."""
        self.rank(value)
        assert value is not None and value.shape is not None
        dim = value.shape[axis]
        if not isinstance(dim, int):
            raise Left(f"dimension {axis} of its input {value.name!r} is not known")
        return dim

    def number(self, value: float, like: ir.Value | None) -> Array:
        """A number of the float type of ``like``. Left if that isn't known."""
        if like is None or like.dtype not in FLOATS:
            raise Left(f"the type of its input {like.name if like else ''!r} is not known")
        return np.asarray(value, like.dtype.numpy())

    def array(self, value: ir.Value | None, what: str) -> Array:
        """A constant input. Left if it is computed."""
        found = constant_array(value)
        if found is None:
            raise Left(f"{what} is not a constant")
        return found


def uncast(value: ir.Value | None) -> ir.Value | None:
    """The integers that a Cast to other integers was given: optimizers write it for indices and masks."""
    source = None if value is None else value.producer()
    while source is not None and source.op_type == "Cast" and source.domain == "":
        before = source.inputs[0]
        if before is None or before.dtype not in _INTEGERS or source.outputs[0].dtype not in _INTEGERS:
            break
        value, source = before, before.producer()
    return value


def infer_open(node: ir.Node, model: ir.Model) -> None:
    """Set the types and shapes of a node's outputs, as far as onnx infers them from types with open dimensions."""
    found = _ask_onnx(node, model)
    for value in node.outputs:
        proto = found.get(value.name or "")
        if proto is not None and proto.HasField("tensor_type"):
            value.type = ir.serde.deserialize_type_proto_for_type(proto)
            value.shape = ir.serde.deserialize_type_proto_for_shape(proto)
    if node.op_type == "Reshape" and node.domain == "" and node.outputs[0].shape is None:
        size = static_size(node.inputs[1]) if len(node.inputs) > 1 else None
        if size is not None:
            node.outputs[0].shape = ir.Shape([None] * size)


def _ask_onnx(node: ir.Node, model: ir.Model) -> dict[str, onnx.TypeProto]:
    values = [value for value in node.inputs if value is not None]
    if node.op_type in ("LayerNormalization", "SimplifiedLayerNormalization") and node.domain == "" and values:
        # onnxruntime writes them in opsets that don't have them.
        return {node.outputs[0].name or "": ir.serde.serialize_value(values[0]).type}
    if any(value.type is None for value in values) or any(map(_is_negative, values)):
        return {}
    constants = {value.name: value.const_value for value in values}
    small = {name: tensor for name, tensor in constants.items() if tensor is not None and tensor.size <= _SMALL}
    try:
        schema = onnx.defs.get_schema(node.op_type, model.opset_imports.get(node.domain, 0), node.domain)
        types = {value.name: ir.serde.serialize_value(value).type for value in values}
        data = {name: ir.serde.serialize_tensor(tensor) for name, tensor in small.items()}
        found: dict[str, onnx.TypeProto] = onnx.shape_inference.infer_node_outputs(
            schema, ir.serde.serialize_node(node), types, data
        )
    except Exception:  # an operator that onnx doesn't know, or a contradiction, which is reported later
        return {}
    return found


def _is_negative(value: ir.Value) -> bool:
    """True if a dimension is negative: then onnx's inference of a Slice may crash."""
    return value.shape is not None and any(isinstance(dim, int) and dim < 0 for dim in value.shape)

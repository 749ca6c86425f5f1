"""Normalisations with the sums before them: SkipLayerNormalization, EmbedLayerNormalization, GroupNorm."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trnrt.importer.fused.writing import Writer, uncast
from trnrt.importer.quantised.forms import Left
from trnrt.importer.values import attribute, input_at

# onnxruntime's default of its own operators; ONNX's is 1e-5.
_EPSILON = 1e-12


def write_skip_layer_norm(writer: Writer, node: ir.Node) -> None:
    """LayerNormalization of input + skip + bias; the fourth output is that sum."""
    total, gamma = writer.apply("Add", *node.inputs[:2]), node.inputs[2]
    if node.op_type == "SkipLayerNormalization":
        beta, bias = input_at(node, 3), input_at(node, 4)
    else:
        beta, bias = None, input_at(node, 3)
    if bias is not None:
        total = writer.apply("Add", total, bias)
    made = _normalise(writer, node, total, gamma, beta, simplified=node.op_type != "SkipLayerNormalization")
    writer.finish(made, None, None, total)


def _normalise(
    writer: Writer,
    node: ir.Node,
    total: ir.Value,
    gamma: ir.Value | None,
    beta: ir.Value | None,
    *,
    simplified: bool = False,
) -> ir.Value:
    operator = "SimplifiedLayerNormalization" if simplified else "LayerNormalization"
    given = [total, gamma] if beta is None else [total, gamma, beta]
    epsilon = float(attribute(node, "epsilon", _EPSILON))
    return writer.apply(operator, *given, name=node.name or "", axis=-1, epsilon=epsilon)


def write_embedding(writer: Writer, node: ir.Node) -> None:
    """LayerNormalization of the sum of word, position and segment embeddings. The second output has the length of each
    row of the mask, the third is the sum."""
    words, positions, kinds, gamma, beta = node.inputs[2:7]
    ids, segments, mask, places = (uncast(input_at(node, place)) for place in (0, 1, 7, 8))
    total = writer.apply("Gather", words, ids, axis=0)
    if places is not None:
        at = writer.apply("Gather", positions, places, axis=0)
    else:
        at = _first_rows(writer, positions, ids)
    total = writer.apply("Add", total, at)
    if segments is not None:
        total = writer.apply("Add", total, writer.apply("Gather", kinds, segments, axis=0))
    made = _normalise(writer, node, total, gamma, beta)
    writer.finish(made, None if mask is None else _lengths(writer, node, mask), total)


def _first_rows(writer: Writer, table: ir.Value | None, ids: ir.Value | None) -> ir.Value:
    """The rows of a table for positions 0, 1, 2 ... of ids (B, S)."""
    if writer.opset < 10:
        raise Left(f"opset {writer.opset}; with position_ids left out, opset 10 and later are supported")
    one, zero = np.array([1], np.int64), np.array([0], np.int64)
    count = writer.apply("Gather", writer.apply("Shape", ids), one, axis=0)
    return writer.apply("Slice", table, zero, count, zero)


def _lengths(writer: Writer, node: ir.Node, mask: ir.Value) -> ir.Value:
    """The number of ones in each row of a mask, int32."""
    if attribute(node, "mask_index_type", 1) == 0:
        raise Left("mask_index_type=0")
    numbers = writer.apply("Cast", mask, to=ir.DataType.FLOAT)
    if writer.opset < 13:
        sums = writer.apply("ReduceSum", numbers, axes=[1], keepdims=0)
    else:
        sums = writer.apply("ReduceSum", numbers, np.array([1], np.int64), keepdims=0)
    return writer.apply("Cast", sums, to=ir.DataType.INT32)


def write_group_norm(writer: Writer, node: ir.Node) -> None:
    """Normalises groups of channels, which are last unless channels_last=0, then SiLU if activation=1."""
    image, gamma, beta = node.inputs[:3]
    assert image is not None
    last, activation = attribute(node, "channels_last", 1), attribute(node, "activation", 0)
    groups = attribute(node, "groups", 0)
    if activation not in (0, 1) or writer.rank(image) != 4 or groups < 1:
        raise Left(f"activation={activation}, groups={groups} on a tensor of {writer.rank(image)} dimensions")
    channels = writer.size(gamma, 0)
    inner = writer.transpose(image, 0, 3, 1, 2) if last else image
    parts = writer.reshape(inner, 0, groups, -1)
    one, zero = (writer.constant(np.full(groups, x, np.float32), f"{image.name}_groups") for x in (1, 0))
    epsilon = float(attribute(node, "epsilon", 1e-5))
    flat = writer.apply("InstanceNormalization", parts, one, zero, name=node.name or "", epsilon=epsilon)
    shape = writer.apply("Shape", inner)
    made = writer.apply("Reshape", flat, shape)
    scale, shift = (writer.reshape(_match_type(writer, x, image), 1, channels, 1, 1) for x in (gamma, beta))
    made = writer.apply("Add", writer.apply("Mul", made, scale), shift)
    if activation:
        made = writer.apply("Mul", made, writer.apply("Sigmoid", made))
    writer.finish(writer.transpose(made, 0, 2, 3, 1) if last else made)


def _match_type(writer: Writer, value: ir.Value | None, like: ir.Value) -> ir.Value:
    """A coefficient in the type of the tensor: onnxruntime has them in float32."""
    assert value is not None
    if value.dtype == like.dtype or like.dtype is None:
        return value
    return writer.apply("Cast", value, to=like.dtype)

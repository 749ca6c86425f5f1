"""Products with more than themselves in one node: FusedConv, FusedGemm, FusedMatMul; and what reads images whose
channels are last."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from trnrt.importer.fused.activations import activate
from trnrt.importer.fused.writing import Writer
from trnrt.importer.quantised.forms import Left
from trnrt.importer.values import attribute, input_at

_OF_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_OF_POOL = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")
_OF_GEMM = ("alpha", "beta", "transA", "transB")


def _copy_attributes(node: ir.Node, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: node.attributes[name].value for name in names if name in node.attributes}


def write_conv(writer: Writer, node: ir.Node) -> None:
    """Conv, plus Z, then the activation."""
    made = writer.apply("Conv", *node.inputs[:3], name=node.name or "", **_copy_attributes(node, _OF_CONV))
    writer.finish(_end(writer, node, made, input_at(node, 3)))


def _end(writer: Writer, node: ir.Node, made: ir.Value, added: ir.Value | None) -> ir.Value:
    """The result of a convolution, plus another tensor, then the activation."""
    total = made if added is None else writer.apply("Add", made, added)
    return activate(writer, total, attribute(node, "activation", ""), attribute(node, "activation_params", ()))


def write_conv_channels_last(writer: Writer, node: ir.Node) -> None:
    """Conv of images whose channels are last, plus Z, then the activation."""
    image = writer.transpose(node.inputs[0], 0, 3, 1, 2)
    made = writer.apply("Conv", image, *node.inputs[1:3], name=node.name or "", **_copy_attributes(node, _OF_CONV))
    writer.finish(_end(writer, node, writer.transpose(made, 0, 2, 3, 1), input_at(node, 3)))


def write_quantised_conv(writer: Writer, node: ir.Node) -> None:
    """ONNX's QLinearConv; of images whose channels are last if channels_last=1."""
    dims = writer.rank(input_at(node, 3))
    _write_channels_first(writer, node, "QLinearConv", _OF_CONV, dims if attribute(node, "channels_last", 0) else 0)


def write_max_pool_channels_last(writer: Writer, node: ir.Node) -> None:
    """MaxPool of images whose channels are last."""
    _write_channels_first(writer, node, "MaxPool", _OF_POOL, len(attribute(node, "kernel_shape", ())) + 2)


def _write_channels_first(writer: Writer, node: ir.Node, operator: str, names: tuple[str, ...], dims: int) -> None:
    """ONNX's operator. The image and the result have ``dims`` dimensions, with channels last; 0: channels are second.

    Ranks come from weights and windows: between such nodes are others whose results onnx can't infer.
    """
    image = node.inputs[0]
    if dims:
        image = writer.transpose(image, 0, dims - 1, *range(1, dims - 1))
    made = writer.apply(operator, image, *node.inputs[1:], name=node.name or "", **_copy_attributes(node, names))
    writer.finish(writer.transpose(made, 0, *range(2, dims), 1) if dims else made)


def write_gemm(writer: Writer, node: ir.Node) -> None:
    """Gemm, then the activation."""
    made = writer.apply("Gemm", *node.inputs, name=node.name or "", **_copy_attributes(node, _OF_GEMM))
    numbers = [attribute(node, f"activation_{letter}", None) for letter in ("alpha", "beta", "gamma")]
    given = [number for number in numbers if number is not None]
    writer.finish(activate(writer, made, attribute(node, "activation", ""), given))


def write_matmul(writer: Writer, node: ir.Node) -> None:
    """MatMul of two tensors, which may be transposed, times alpha."""
    first, second = (_turn(writer, node, place, letter) for place, letter in enumerate("AB"))
    made = writer.apply("MatMul", first, second, name=node.name or "")
    alpha = float(attribute(node, "alpha", 1.0))
    writer.finish(made if alpha == 1 else writer.apply("Mul", made, writer.number(alpha, made)))


def _turn(writer: Writer, node: ir.Node, place: int, letter: str) -> ir.Value | None:
    """An input, transposed as the attributes say: ``transBatch`` moves the first axis before the last one, ``trans``
    swaps the last two."""
    value = node.inputs[place]
    turns, moves = (attribute(node, f"{name}{letter}", 0) for name in ("trans", "transBatch"))
    if not turns and not moves:
        return value
    rank = writer.rank(value)
    if rank < 2:
        return value
    if writer.rank(node.inputs[1 - place]) < 2:
        raise Left("a transposed matrix with a vector, for which onnxruntime doesn't transpose")
    order = [*range(1, rank - 1), 0, rank - 1] if moves else list(range(rank))
    if turns:
        order[-2:] = order[:-3:-1]
    return writer.transpose(value, *order)

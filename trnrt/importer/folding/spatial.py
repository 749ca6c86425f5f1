"""Sizes of resized and pooled images, for which onnxruntime and ONNX's inference differ.

onnxruntime multiplies a size by its scale in float32 and rounds down. A window larger than its image, by less than the
stride, has one place. ``auto_pad`` of pools ignores dilations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trnrt.importer.values import constant_array, input_at, opset_of, static_shape

Shape = tuple[int, ...]

POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})
SIZED = POOLS | {"ConvTranspose", "Resize", "Upsample"}


def result_shape(node: ir.Node) -> Shape | None:
    """The shape of the node's first output in onnxruntime; None if it isn't known, or ONNX's inference is right."""
    shape = static_shape(node.inputs[0]) if node.domain == "" and node.op_type in SIZED and node.inputs else None
    if shape is None:
        return None
    if node.op_type in POOLS:
        spans = pool_spans(node, shape[2:]) if len(shape) > 2 else None
        return None if spans is None else (*shape[:2], *(span.count for span in spans))
    return _conv_transpose_shape(node, shape) if node.op_type == "ConvTranspose" else _resize_shape(node, shape)


def is_open(node: ir.Node) -> bool:
    """True if the node's result is not known yet, and ONNX's inference alone might get it wrong."""
    return node.domain == "" and node.op_type in SIZED and static_shape(node.outputs[0]) is None


# -- windows ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Span:
    """Windows along one axis: the padding ``before`` and ``after``, and the number of windows."""

    before: int
    after: int
    count: int


def pool_spans(node: ir.Node, sizes: Shape) -> list[Span] | None:
    """The windows of a pooling node over images of ``sizes``; None if its attributes don't fit them."""
    rank = len(sizes)
    ones = [1] * rank
    kernel = list(node.attributes.get_ints("kernel_shape", []))
    strides, dilations = (list(node.attributes.get_ints(name, ones)) for name in ("strides", "dilations"))
    pads = list(node.attributes.get_ints("pads", [0] * (2 * rank)))
    if not len(kernel) == len(strides) == len(dilations) == rank or len(pads) != 2 * rank or min(strides) < 1:
        return None
    rule, ceil = node.attributes.get_string("auto_pad", "NOTSET"), bool(node.attributes.get_int("ceil_mode", 0))
    spans = []
    for axis, size in enumerate(sizes):
        before, after = pads[axis], pads[axis + rank]
        if rule != "NOTSET":
            before, after = _named_padding(rule, size, kernel[axis], strides[axis])
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        spans.append(Span(before, after, _windows(size + before + after - reach, size + before, strides[axis], ceil)))
    return spans


def _named_padding(rule: str, size: int, kernel: int, stride: int) -> tuple[int, int]:
    """The padding of auto_pad, which may be negative; half of an odd number is rounded towards zero."""
    if rule not in ("SAME_UPPER", "SAME_LOWER"):
        return 0, 0
    total = ((size + stride - 1) // stride - 1) * stride + kernel - size
    before = int((total + (rule == "SAME_LOWER")) / 2)
    return before, total - before


def _windows(room: int, end: int, stride: int, ceil: bool) -> int:
    """The number of windows that start within ``room``; with ``ceil`` one more may start, but before ``end``."""
    if not ceil:
        return int(room / stride) + 1
    count = -(-room // stride) + 1
    return count - 1 if (count - 1) * stride >= end else count


def _conv_transpose_shape(node: ir.Node, shape: Shape) -> Shape | None:
    weight = static_shape(input_at(node, 1))
    if weight is None or len(weight) != len(shape) or len(shape) < 3:
        return None
    rank = len(shape) - 2
    ones, zeros = [1] * rank, [0] * rank
    wanted = node.attributes.get_ints("output_shape", [])
    rule = node.attributes.get_string("auto_pad", "NOTSET")
    strides, dilations = (node.attributes.get_ints(name, ones) for name in ("strides", "dilations"))
    more, pads = node.attributes.get_ints("output_padding", zeros), node.attributes.get_ints("pads", zeros + zeros)
    if not len(strides) == len(dilations) == len(more) == rank or len(pads) != 2 * rank:
        return None
    sizes = list(wanted[-rank:])
    for axis in range(rank) if not wanted else ():
        size = (shape[axis + 2] - 1) * strides[axis] + more[axis] + (weight[axis + 2] - 1) * dilations[axis] + 1
        if rule in ("SAME_UPPER", "SAME_LOWER"):
            size = min(size, shape[axis + 2] * strides[axis])
        sizes.append(size if rule != "NOTSET" else size - pads[axis] - pads[axis + rank])
    return (shape[0], weight[1] * node.attributes.get_int("group", 1), *sizes)


# -- scales ----------------------------------------------------------------------------------------------


def _resize_shape(node: ir.Node, shape: Shape) -> Shape | None:
    rank, policy = len(shape), node.attributes.get_string("keep_aspect_ratio_policy", "stretch")
    axes = [axis % rank for axis in node.attributes.get_ints("axes", range(rank))]
    scales, sizes = given_scales(node), _input(node, 3)
    wanted = scales if scales is not None else sizes
    if wanted is None or len(wanted) != len(axes):
        return None
    lengths = np.array([shape[axis] for axis in axes], np.float32)
    if scales is not None:
        counts = scales.astype(np.float32) * lengths
    elif policy in ("not_larger", "not_smaller"):
        ratios = wanted.astype(np.float32) / lengths
        counts = np.floor((ratios.min() if policy == "not_larger" else ratios.max()) * lengths + np.float32(0.5))
    else:
        counts = wanted
    result = list(shape)
    for axis, count in zip(axes, counts, strict=True):
        result[axis] = int(count)
    return tuple(result)


def given_scales(node: ir.Node) -> np.ndarray | None:
    """The scales if they are given and constant."""
    if "scales" in node.attributes:
        return np.array(node.attributes["scales"].as_floats(), np.float32)
    return _input(node, 1 if node.op_type == "Upsample" or opset_of(node) < 11 else 2)


def _input(node: ir.Node, position: int) -> np.ndarray | None:
    """A constant input that has elements."""
    array = constant_array(input_at(node, position))
    return array.reshape(-1) if array is not None and array.size else None

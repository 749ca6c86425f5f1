"""Checks of a node's input shapes that onnx's inference lacks: a rule returns the contradiction, or None."""

from __future__ import annotations

import math

import onnx_ir as ir

from trnrt.importer.folding.spatial import given_scales, pool_spans
from trnrt.importer.values import opset_of

Shape = tuple[int, ...]
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def by_onnx(_node: ir.Node, _shapes: list[Shape | None]) -> str | None:
    """No check: onnx's inference does it, or the operator takes any shapes."""
    return None


def _broadcasts_to(shape: Shape, wanted: Shape) -> bool:
    """True if ``shape`` broadcasts to ``wanted``."""
    tail = wanted[len(wanted) - len(shape) :]
    return len(shape) <= len(wanted) and all(a in (1, b) for a, b in zip(shape, tail, strict=True))


def gemm(node: ir.Node, shapes: list[Shape | None]) -> str | None:
    a, b, c = [*shapes, None, None][:3]
    if a is None or b is None:
        return None
    if len(a) != 2 or len(b) != 2:
        return f"it multiplies tensors of shape {a} and {b}, which are not matrices"
    for name in ("alpha", "beta"):
        factor = node.attributes.get_float(name, 1.0)
        if not math.isfinite(factor):
            return f"its {name} is {factor}"
    rows, inner = reversed(a) if node.attributes.get_int("transA", 0) else a
    other, columns = reversed(b) if node.attributes.get_int("transB", 0) else b
    if inner != other:
        return f"it multiplies matrices of shape {(rows, inner)} and {(other, columns)}"
    if c is not None and not _broadcasts_to(c, (rows, columns)):
        return f"it adds a tensor of shape {c} to a product of shape {(rows, columns)}"
    return None


def conv(node: ir.Node, shapes: list[Shape | None]) -> str | None:
    """Conv (weights: output channels first) and ConvTranspose (weights: input channels first)."""
    data, weight, bias = [*shapes, None, None][:3]
    group = node.attributes.get_int("group", 1)
    if data is None or weight is None:
        return None
    if len(data) < 3 or len(weight) != len(data):
        return f"it has an input of shape {data} and weights of shape {weight}"
    kernel, turned = tuple(node.attributes.get_ints("kernel_shape", weight[2:])), node.op_type == "ConvTranspose"
    if kernel != weight[2:]:
        return f"it has the kernel_shape {kernel}, and weights of shape {weight}"
    read, divided = (weight[0], data[1]) if turned else (weight[1] * group, weight[0])
    if group < 1 or read != data[1] or divided % group:
        return f"it has {data[1]} channels in {group} groups and weights of shape {weight}"
    if bias is not None and bias != (weight[1] * group if turned else weight[0],):
        return f"it has weights of shape {weight} in {group} groups and a bias of shape {bias}"
    return _transposed_window(node, data[2:], weight[2:]) if turned else _double_padding(node)


def _double_padding(node: ir.Node) -> str | None:
    rule, pads = node.attributes.get_string("auto_pad", "NOTSET"), list(node.attributes.get_ints("pads", []))
    return f"it has auto_pad={rule} and pads={pads}" if rule != "NOTSET" and any(pads) else None


def _transposed_window(node: ir.Node, sizes: Shape, kernel: Shape) -> str | None:
    """A result size from which no convolution with this window gives the input size."""
    rank, wanted = len(sizes), list(node.attributes.get_ints("output_shape", []))
    if (problem := _double_padding(node)) is not None:
        return problem
    strides, dilations, more = (
        list(node.attributes.get_ints(name, [default] * rank))
        for name, default in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    pads = list(node.attributes.get_ints("pads", [0, 0] * rank))
    given = f"strides={strides}, dilations={dilations}, output_padding={more}, pads={pads}"
    if not len(strides) == len(dilations) == len(more) == rank or len(pads) != 2 * rank:
        return f"it has {given} for images of {sizes}"
    if min([*strides, *dilations], default=1) < 1 or min(more, default=0) < 0:
        return f"it has {given}, not all positive"
    if wanted and len(wanted) not in (rank, rank + 2):
        return f"it has output_shape={wanted} for images of {sizes}"
    for axis, size in enumerate(sizes):
        reach, stride = (kernel[axis] - 1) * dilations[axis] + 1, strides[axis]
        whole = (size - 1) * stride + reach + more[axis]
        if more[axis] >= max(stride, dilations[axis]):
            return f"output_padding={more} must be less than the larger of strides={strides} and dilations={dilations}"
        made = max(whole, wanted[axis - rank]) if wanted else whole
        if (made - reach) // stride + 1 != size:
            asked = f"output_shape={wanted}" if wanted else given
            return f"{asked} is for {(made - reach) // stride + 1} elements along an axis of {size}"
    return None


def pooling(node: ir.Node, shapes: list[Shape | None]) -> str | None:
    """Windows that onnxruntime refuses, too: they would see padding only, or have no definite place."""
    data, kernel = shapes[0] or (), node.attributes.get_ints("kernel_shape", ())
    sizes, ones = data[2:], [1] * len(kernel)
    if len(sizes) != len(kernel):
        return f"it has an input of shape {data} and a window of {tuple(kernel)}"
    strides, dilations = (node.attributes.get_ints(name, ones) for name in ("strides", "dilations"))
    pads = node.attributes.get_ints("pads", [0, 0] * len(kernel))
    if not len(strides) == len(dilations) == len(kernel) or len(pads) != 2 * len(kernel):
        given = f"strides={list(strides)}, dilations={list(dilations)}, pads={list(pads)}"
        return f"it has {given} for a window of {list(kernel)}"
    if min([*strides, *dilations, *kernel], default=1) < 1:
        given = f"strides={list(strides)}, dilations={list(dilations)}, kernel_shape={list(kernel)}"
        return f"it has {given}, not all positive"
    if any(pad >= size for pad, size in zip(pads, [*kernel, *kernel], strict=True)):
        return f"it pads by {list(pads)}, and a window of {list(kernel)} must be larger than each of its paddings"
    spans = pool_spans(node, sizes) or []
    # onnxruntime's second kernel, for MaxPool of other dtypes or with dilations, takes any padding.
    dtype = node.inputs[0].dtype if node.inputs[0] is not None else None
    plain = node.op_type == "MaxPool" and max(dilations) == 1 and dtype in (None, *_FLOATS)
    cuts = all(node.attributes.get_int(name, 0) for name in ("ceil_mode", "count_include_pad"))
    plain |= node.op_type == "AveragePool" and opset_of(node) < 19 and not cuts
    if plain and any(min(span.before, span.after) < 0 for span in spans):
        return f"auto_pad finds negative padding for a window of {list(kernel)} with strides={list(strides)}"
    return None


def upsample(node: ir.Node, _shapes: list[Shape | None]) -> str | None:
    scales = given_scales(node)
    return None if scales is None or scales.min() >= 1 else f"it can't shrink, and its scales are {scales.tolist()}"


def split(node: ir.Node, shapes: list[Shape | None]) -> str | None:
    data, count = shapes[0] or (), node.attributes.get_int("num_outputs", 0)
    axis = node.attributes.get_int("axis", 0)
    if count < 1 or not -len(data) <= axis < len(data):
        return None
    size = data[axis]
    # All parts but the last have the same size, rounded up.
    fits = -(-size // count) * (count - 1) <= size
    return None if fits else f"it can't divide {size} elements into {count} parts"


def blocks(node: ir.Node, shapes: list[Shape | None]) -> str | None:
    data, block = shapes[0] or (), node.attributes.get_int("blocksize", 0)
    if len(data) != 4 or block < 1:
        return f"it has an input of shape {data} and blocksize={block}"
    if node.op_type == "SpaceToDepth" and (data[2] % block or data[3] % block):
        return f"{data[2]} rows and {data[3]} columns are not whole blocks of {block}"
    if node.op_type == "DepthToSpace" and data[1] % (block * block):
        return f"{data[1]} channels are not whole blocks of {block} x {block}"
    return None


def lrn(node: ir.Node, _shapes: list[Shape | None]) -> str | None:
    size = node.attributes.get_int("size", 1)
    return f"it has the size {size}" if size < 1 else None


def by_channel(node: ir.Node, shapes: list[Shape | None]) -> str | None:
    data = shapes[0] or ()
    if not node.attributes.get_int("spatial", 1):
        return None
    wanted = (data[1] if len(data) > 1 else 1,)
    wrong = next((shape for shape in shapes[1:] if shape is not None and shape != wanted), None)
    return None if wrong is None else f"it has an input of shape {data} and parameters of shape {wrong}"


def broadcast(node: ir.Node, shapes: list[Shape | None]) -> str | None:
    data = shapes[0] or ()
    if node.op_type == "PRelu" and opset_of(node) < 7:
        return None
    wrong = next((shape for shape in shapes[1:] if shape is not None and not _broadcasts_to(shape, data)), None)
    return None if wrong is None else f"it has an input of shape {data} and parameters of shape {wrong}"

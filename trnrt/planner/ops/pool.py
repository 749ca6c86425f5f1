"""Pooling over images: MaxPool, AveragePool, and both over whole images."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from trnrt.planner.lowering import Blocked, Lowering, attribute, lowers, node_name, value_name
from trnrt.planner.ops.windows import Window, read_window
from trnrt.planner.plan import Layout
from trnrt.planner.steps import Call, Step, Tensors


@dataclass(kw_only=True)
class PoolStep(Step):
    """The maxima of windows."""

    window: Window

    def reads(self, position: int, shapes: Tensors) -> tuple[Layout, ...]:
        same = shapes.shape(self.sources[0].value) == self.sources[0].shape
        return (Layout.CHANNELS, Layout.HBM) if same else (Layout.HBM,)

    def writes(self) -> tuple[Layout, ...]:
        return (Layout.CHANNELS, Layout.HBM)

    def call(self, tensors: Tensors) -> Call:
        window = self.window
        return Call(
            module="pool2d",
            kernel="max_pool2d",
            args=(),
            options={
                "channels": self.shape[1],
                "kernel": window.kernel,
                "stride": window.stride,
                "pads": window.pads,
                "dilation": window.dilation,
            },
        )


@dataclass(kw_only=True)
class AveragePoolStep(PoolStep):
    """The averages of windows; ``ends`` is the padding (bottom, right)."""

    ends: tuple[int, int]
    count_include_pad: bool

    def call(self, tensors: Tensors) -> Call:
        call = super().call(tensors)
        pads = {"pads": (*self.window.pads, *self.ends), "count_include_pad": self.count_include_pad}
        return Call("pool2d", "avg_pool2d", (), call.options | pads)


def read_pool(lowering: Lowering, node: ir.Node) -> Window:
    """The window of a MaxPool or AveragePool node; blocks what the kernels do not do."""
    shape = _image_shape(lowering, node)
    if len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output()):
        raise Blocked("the output Indices", "export the model without return_indices")
    kernel = attribute(node, "kernel_shape", ())
    result = lowering.shape(node.outputs[0])[2:]
    window = read_window(node, (int(kernel[0]), int(kernel[1])), shape[2:], result)
    for size, count, stride, pad in zip(shape[2:], result, window.stride, window.pads, strict=True):
        if (count - 1) * stride - pad >= size:
            # ONNX's operators up to opset 21 don't say whether such windows count; onnxruntime leaves them out.
            raise Blocked(
                f"ceil_mode={attribute(node, 'ceil_mode', 0)}: the last window would start beyond the image",
                "convert the model to opset 22, which leaves such windows out",
            )
    return window


def _image_shape(lowering: Lowering, node: ir.Node) -> tuple[int, ...]:
    """The shape of what a node pools."""
    source = node.inputs[0]
    assert source is not None
    shape = lowering.shape(source)
    if len(shape) != 4:
        raise Blocked(f"{node.op_type} over {len(shape) - 2} dimensions; only images (N, C, H, W) are supported")
    return shape


@lowers("MaxPool")
def lower_max_pool(lowering: Lowering, node: ir.Node) -> None:
    """The maxima of sliding windows."""
    _add_pool(lowering, node, read_pool(lowering, node))


@lowers("AveragePool")
def lower_average_pool(lowering: Lowering, node: ir.Node) -> None:
    """The averages of sliding windows, with or without the padding."""
    window = read_pool(lowering, node)
    ends = _ends(node, window, _image_shape(lowering, node)[2:], lowering.shape(node.outputs[0])[2:])
    _add_average(lowering, node, window, ends, bool(attribute(node, "count_include_pad", 0)))


@lowers("GlobalMaxPool")
def lower_global_max_pool(lowering: Lowering, node: ir.Node) -> None:
    """The maximum of each channel."""
    _add_pool(lowering, node, _whole(lowering, node))


@lowers("GlobalAveragePool")
def lower_global_average_pool(lowering: Lowering, node: ir.Node) -> None:
    """The average of each channel."""
    _add_average(lowering, node, _whole(lowering, node), (0, 0), True)


def _whole(lowering: Lowering, node: ir.Node) -> Window:
    """The window that is all of an image."""
    _, _, height, width = _image_shape(lowering, node)
    return Window((height, width), (1, 1), (1, 1), (0, 0))


def _ends(node: ir.Node, window: Window, image: tuple[int, ...], result: tuple[int, ...]) -> tuple[int, int]:
    """The padding (bottom, right): as it is given, or what auto_pad adds."""
    auto = attribute(node, "auto_pad", "NOTSET")
    if auto == "NOTSET":
        pads = attribute(node, "pads", (0, 0, 0, 0))
        return int(pads[2]), int(pads[3])
    ends = [
        (result[d] - 1) * window.stride[d] + (window.kernel[d] - 1) * window.dilation[d] + 1 - image[d] - window.pads[d]
        for d in (0, 1)
    ]
    return max(0, ends[0]), max(0, ends[1])


def _add_pool(lowering: Lowering, node: ir.Node, window: Window) -> None:
    """A step of maxima."""
    step = PoolStep(
        name=node_name(node),
        nodes=[node_name(node)],
        sources=[lowering.operand(node.inputs[0])],
        output=value_name(node.outputs[0]),
        shape=lowering.shape(node.outputs[0]),
        window=window,
    )
    lowering.add(step, [node], "window maxima on the vector engine")


def _add_average(
    lowering: Lowering, node: ir.Node, window: Window, ends: tuple[int, int], count_include_pad: bool
) -> None:
    """A step of averages."""
    step = AveragePoolStep(
        name=node_name(node),
        nodes=[node_name(node)],
        sources=[lowering.operand(node.inputs[0])],
        output=value_name(node.outputs[0]),
        shape=lowering.shape(node.outputs[0]),
        window=window,
        ends=ends,
        count_include_pad=count_include_pad,
    )
    lowering.add(step, [node], "window sums on the vector engine, divided by how many elements count")

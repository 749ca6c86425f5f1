"""MaxPool over images."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from trnrt.kernels import pool2d
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


def read_pool(lowering: Lowering, node: ir.Node) -> Window:
    """The window of a MaxPool node; blocks what the kernels do not do."""
    source = node.inputs[0]
    assert source is not None
    shape = lowering.shape(source)
    if len(shape) != 4:
        raise Blocked(f"MaxPool over {len(shape) - 2} dimensions; only images (N, C, H, W) are supported")
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


@lowers("MaxPool")
def lower_max_pool(lowering: Lowering, node: ir.Node) -> None:
    """The maxima of sliding windows."""
    window = read_pool(lowering, node)
    shape = lowering.shape(node.outputs[0])
    if not pool2d.max_pool_fits(shape[3], window.kernel, window.stride, window.dilation):
        raise Blocked(f"the rows of one window, {window.kernel[0]} of {shape[3]} results, do not fit SBUF")
    step = PoolStep(
        name=node_name(node),
        nodes=[node_name(node)],
        sources=[lowering.operand(node.inputs[0])],
        output=value_name(node.outputs[0]),
        shape=shape,
        window=window,
    )
    lowering.add(step, [node], "window maxima on the vector engine")

"""Windows of convolutions and pooling, read from ONNX's attributes."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from trnrt.planner.lowering.walk import Blocked, attribute

Pair = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """A sliding window over an image; pairs are (rows, columns), ``pads`` is (top, left)."""

    kernel: Pair
    stride: Pair
    dilation: Pair
    pads: Pair

    @property
    def options(self) -> dict[str, Pair]:
        """The options of a kernel's call."""
        return {"kernel": self.kernel, "stride": self.stride, "pads": self.pads, "dilation": self.dilation}


def read_pair(node: ir.Node, name: str, dimensions: int) -> Pair:
    """Strides or dilations, by default 1; (1, n) for rows of pixels."""
    values = attribute(node, name, (1,) * dimensions)
    if len(values) != dimensions:
        raise Blocked(f"{name}={list(values)}: {dimensions} numbers are expected")
    return (int(values[0]), int(values[1])) if dimensions == 2 else (1, int(values[0]))


def read_window(node: ir.Node, kernel: Pair, dimensions: int) -> Window:
    """The window of a Conv over images (H, W), or rows (W,). The importer has written ``auto_pad`` out as ``pads``.

    The kernel knows from the result's size how far windows reach beyond the bottom and right edges: pads at the end
    don't count.
    """
    stride, dilation = read_pair(node, "strides", dimensions), read_pair(node, "dilations", dimensions)
    pads = attribute(node, "pads", (0, 0, 0, 0))
    if dimensions == 1:
        pads = (0, pads[0])
    if any(p < 0 for p in pads):
        raise Blocked(f"pads={list(pads)}: negative padding", "slice the image before the node")
    return Window(kernel, stride, dilation, (int(pads[0]), int(pads[1])))


def read_transposed(node: ir.Node, kernel: Pair, image: tuple[int, ...], result: tuple[int, ...]) -> Window:
    """The window of a ConvTranspose; its pads are how many results are cut off before the first.

    If output_shape or auto_pad state the result's size, the excess is cut off on both sides: if it is odd, one more at
    the end for SAME_UPPER, else at the beginning.
    """
    dimensions = len(image)
    stride, dilation = read_pair(node, "strides", dimensions), read_pair(node, "dilations", dimensions)
    extra = attribute(node, "output_padding", (0,) * dimensions)
    auto = attribute(node, "auto_pad", "NOTSET")
    begins = tuple(int(p) for p in attribute(node, "pads", (0,) * (2 * dimensions))[:dimensions])
    if dimensions == 1:
        image, result, extra, begins = (1, *image), (1, *result), (0, *extra), (0, *begins)
    if "output_shape" in node.attributes or auto in ("SAME_UPPER", "SAME_LOWER"):
        whole = [(image[d] - 1) * stride[d] + (kernel[d] - 1) * dilation[d] + 1 + int(extra[d]) for d in (0, 1)]
        totals = [max(0, whole[d] - result[d]) for d in (0, 1)]
        begins = tuple(total // 2 if auto == "SAME_UPPER" else total - total // 2 for total in totals)
    elif auto == "VALID":
        begins = (0, 0)
    return Window(kernel, stride, dilation, (begins[0], begins[1]))

"""Window arithmetic that convolution and pooling share: strides, paddings, and the forms ONNX writes them in."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from trnrt.planner.lowering.walk import Blocked, attribute


@dataclass(frozen=True)
class Window:
    """A sliding window over an image; pairs are (rows, columns), ``pads`` is (top, left)."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pads: tuple[int, int]

    @property
    def moves(self) -> bool:
        """Whether the window does anything at all."""
        return self.kernel != (1, 1) or self.stride != (1, 1)


def read_pair(node: ir.Node, name: str, dimensions: int) -> tuple[int, int]:
    """Strides or dilations, 1 where there are none; those of a row of pixels move along it only."""
    values = attribute(node, name, (1,) * dimensions)
    if len(values) != dimensions:
        raise Blocked(f"{name}={list(values)}: {dimensions} numbers are expected")
    return (int(values[0]), int(values[1])) if dimensions == 2 else (1, int(values[0]))


def read_window(node: ir.Node, kernel: tuple[int, int], image: tuple[int, ...], result: tuple[int, ...]) -> Window:
    """The window of a Conv over images (H, W), or rows (W,), that gives results (OH, OW) or (OW,).

    What the window needs beyond the bottom and right edges follows from the result's size, so that pads at the end
    need no further care.
    """
    dimensions = len(image)
    stride = read_pair(node, "strides", dimensions)
    dilation = read_pair(node, "dilations", dimensions)
    pads = attribute(node, "pads", (0, 0, 0, 0))
    if dimensions == 1:
        image, result, pads = (1, *image), (1, *result), (0, pads[0])
    if any(p < 0 for p in pads):
        raise Blocked(f"pads={list(pads)}: negative padding", "slice the image before the node")
    auto = attribute(node, "auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        begin = [
            _same_pad(image[d], result[d], kernel[d], stride[d], dilation[d], lower=auto == "SAME_LOWER")
            for d in (0, 1)
        ]
        return Window(kernel, stride, dilation, (begin[0], begin[1]))
    if auto == "VALID":
        return Window(kernel, stride, dilation, (0, 0))
    return Window(kernel, stride, dilation, (int(pads[0]), int(pads[1])))


def _same_pad(size: int, result: int, kernel: int, stride: int, dilation: int, *, lower: bool) -> int:
    """Padding before the first element under auto_pad SAME_UPPER or SAME_LOWER."""
    total = max(0, (result - 1) * stride + (kernel - 1) * dilation + 1 - size)
    return -(-total // 2) if lower else total // 2


def read_transposed(node: ir.Node, kernel: tuple[int, int], image: tuple[int, ...], result: tuple[int, ...]) -> Window:
    """The window of a ConvTranspose; its pads say how many results are cut off before the first.

    Where output_shape or auto_pad say how large the result is, what is too many is cut off on both sides, one more
    at the end with SAME_UPPER, else at the beginning.
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

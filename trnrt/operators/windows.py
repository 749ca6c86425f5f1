"""Windows of convolutions and pooling, read from ONNX's attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from trnrt.planner.lowering.blocked import WRONG
from trnrt.planner.lowering.walk import Blocked, attribute

Pair = tuple[int, int]
Triple = tuple[int, int, int]


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


@dataclass(frozen=True)
class VolumeWindow:
    """A sliding window over volumes; triples are (depth, rows, columns), ``pads`` is (front, top, left)."""

    kernel: Triple
    stride: Triple
    dilation: Triple
    pads: Triple

    @property
    def options(self) -> dict[str, Triple]:
        """The options of a kernel's call."""
        return {"kernel": self.kernel, "stride": self.stride, "pads": self.pads, "dilation": self.dilation}

    @property
    def plane(self) -> Window:
        """The window over one slice."""
        kernel, stride, dilation, pads = self.kernel, self.stride, self.dilation, self.pads
        return Window(kernel[1:], stride[1:], dilation[1:], pads[1:])

    @property
    def is_deep(self) -> bool:
        """True if each result sees one pixel of a slice, that at its own place if its plane has no other size."""
        return self.plane == Window((1, 1), (1, 1), self.plane.dilation, (0, 0))


def pixel_rows(shape: Sequence[int]) -> Pair:
    """(rows, columns) of images (N, C, H, W); if they don't have two dimensions, all pixels are one row."""
    return (shape[2], shape[3]) if len(shape) == 4 else (1, prod(shape[2:]))


def image_size(shape: Sequence[int]) -> Pair:
    """(rows, columns) of images or of rows of pixels; a volume (N, C, D, H, W) is an image of D rows."""
    return (shape[2], shape[3] * shape[4]) if len(shape) == 5 else pixel_rows(shape)


def read_numbers(node: ir.Node, name: str, dimensions: int) -> tuple[int, ...]:
    """Strides or dilations, by default 1."""
    values = attribute(node, name, (1,) * dimensions)
    if len(values) != dimensions:
        raise Blocked(f"{name}={list(values)}: {dimensions} numbers are expected", WRONG)
    return tuple(map(int, values))


def read_pair(node: ir.Node, name: str, dimensions: int) -> Pair:
    """Strides or dilations of images; (1, n) for rows of pixels."""
    values = read_numbers(node, name, dimensions)
    return (values[0], values[1]) if dimensions == 2 else (1, values[0])


def _read_pads(node: ir.Node, dimensions: int) -> tuple[int, ...]:
    """The padding before each axis of a Conv. The importer has written ``auto_pad`` out as ``pads``.

    The kernel knows from the result's size how far windows reach beyond the ends: pads there don't count.
    """
    pads = attribute(node, "pads", (0, 0) * dimensions)
    if any(p < 0 for p in pads):
        raise Blocked(f"pads={list(pads)}: negative padding", WRONG)
    return tuple(map(int, pads[:dimensions]))


def read_window(node: ir.Node, kernel: Pair, dimensions: int) -> Window:
    """The window of a Conv over images (H, W), or rows (W,)."""
    stride, dilation = read_pair(node, "strides", dimensions), read_pair(node, "dilations", dimensions)
    pads = _read_pads(node, dimensions)
    return Window(kernel, stride, dilation, (pads[0], pads[1]) if dimensions == 2 else (0, pads[0]))


def read_volume_window(node: ir.Node, kernel: tuple[int, ...]) -> VolumeWindow:
    """The window of a Conv over volumes (D, H, W), or over images, which are volumes of depth 1."""
    numbers = [kernel, *(read_numbers(node, name, len(kernel)) for name in ("strides", "dilations"))]
    numbers.append(_read_pads(node, len(kernel)))
    if len(kernel) < 3:
        numbers = [(*[fill] * (3 - len(kernel)), *values) for fill, values in zip((1, 1, 1, 0), numbers, strict=True)]
    return VolumeWindow(*((values[0], values[1], values[2]) for values in numbers))


def read_transposed(node: ir.Node, kernel: Pair, image: tuple[int, ...], result: tuple[int, ...]) -> Window:
    """The window of a ConvTranspose over images or rows; its pads are how many results are cut off before the first."""
    dimensions = len(image)
    stride, dilation = read_pair(node, "strides", dimensions), read_pair(node, "dilations", dimensions)
    begins = _cut_before(node, kernel[2 - dimensions :], image, result)
    return Window(kernel, stride, dilation, (begins[0], begins[1]) if dimensions == 2 else (0, begins[0]))


def read_transposed_volume(
    node: ir.Node, kernel: Triple, volume: tuple[int, ...], result: tuple[int, ...]
) -> VolumeWindow:
    """``read_transposed`` over volumes."""
    strides, dilations = (read_numbers(node, name, 3) for name in ("strides", "dilations"))
    begins = _cut_before(node, kernel, volume, result)
    return VolumeWindow(kernel, *((values[0], values[1], values[2]) for values in (strides, dilations, begins)))


def _cut_before(
    node: ir.Node, kernel: tuple[int, ...], image: tuple[int, ...], result: tuple[int, ...]
) -> tuple[int, ...]:
    """How many results of a ConvTranspose are cut off before the first of each axis.

    If output_shape or auto_pad state the result's size, the excess is cut off on both sides: if it is odd, one more at
    the end for SAME_UPPER, else at the beginning.
    """
    dimensions = len(image)
    stride, dilation = read_numbers(node, "strides", dimensions), read_numbers(node, "dilations", dimensions)
    extra = attribute(node, "output_padding", (0,) * dimensions)
    auto = attribute(node, "auto_pad", "NOTSET")
    if "output_shape" in node.attributes or auto in ("SAME_UPPER", "SAME_LOWER"):
        spans = [(kernel[d] - 1) * dilation[d] + 1 + int(extra[d]) for d in range(dimensions)]
        totals = [max(0, (image[d] - 1) * stride[d] + spans[d] - result[d]) for d in range(dimensions)]
        return tuple(total // 2 if auto == "SAME_UPPER" else total - total // 2 for total in totals)
    if auto == "VALID":
        return (0,) * dimensions
    return tuple(int(p) for p in attribute(node, "pads", (0,) * (2 * dimensions))[:dimensions])

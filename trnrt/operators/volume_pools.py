"""Pooling over volumes (N, C, D, H, W) as pooling over images, twice: the planes, then the depth.

A window over a volume is a box, so its maximum is that of its planes' maxima. Its sum, and how many of its elements
count, also separate. The slices of a volume (N, C*D, H, W), and its columns of depth (N, C, D, H*W), lie in HBM as
images do: nothing moves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from trnrt.importer.folding.spatial import pool_spans
from trnrt.operators.pool_steps import AveragePoolStep, PoolStep
from trnrt.operators.windows import Window, read_numbers
from trnrt.planner.lowering.blocked import WRONG
from trnrt.planner.lowering.walk import Blocked, Lowering, node_name, value_name
from trnrt.planner.steps import Operand

Shape = tuple[int, ...]


@dataclass(frozen=True)
class PoolAxis:
    """The windows along an axis of ``size`` elements: ``before`` is the padding before the first, ``end`` that after
    the last which counts in averages, ``count`` their number."""

    kernel: int
    stride: int
    dilation: int
    before: int
    end: int
    size: int
    count: int

    @property
    def is_idle(self) -> bool:
        """True if each window is an element."""
        return self.kernel == self.stride == 1 and self.before == 0 and self.count == self.size

    @property
    def end_padding(self) -> int:
        """The padding that the last window sees."""
        last = (self.count - 1) * self.stride + (self.kernel - 1) * self.dilation + 1
        return max(0, last - self.before - self.size)


@dataclass(frozen=True)
class Averages:
    """How to divide sums; ``dtype`` of the averages if not the session's."""

    count_include_pad: bool
    dtype: str = ""


def read_axes(lowering: Lowering, node: ir.Node, *, needed: bool = False) -> list[PoolAxis]:
    """The axes of a pooling node; ``needed``: all padding that windows see counts, not only what the node declares."""
    sizes, made = lowering.shape(node.inputs[0])[2:], lowering.shape(node.outputs[0])[2:]
    kernel = tuple(map(int, node.attributes.get_ints("kernel_shape", ())))
    spans = pool_spans(node, sizes)
    if spans is None or len(kernel) != len(sizes):
        raise Blocked(f"kernel_shape, strides, dilations and pads don't fit {len(sizes)} dimensions", WRONG)
    strides, dilations = (read_numbers(node, name, len(sizes)) for name in ("strides", "dilations"))
    axes = [
        PoolAxis(kernel[d], strides[d], dilations[d], span.before, span.after, sizes[d], made[d])
        for d, span in enumerate(spans)
    ]
    return [replace(axis, end=axis.end_padding) for axis in axes] if needed else axes


def pool_volumes(
    lowering: Lowering, node: ir.Node, source: Operand, axes: list[PoolAxis], averages: Averages | None = None
) -> Operand:
    """Add the steps that pool volumes (N, C, D, H, W): their maxima, or averages. Return the pooled ones."""
    images, channels, depth, height, width = source.shape
    deep, high, wide = axes
    still = PoolAxis(1, 1, 1, 0, 0, 1, 1)
    planes = Operand(source.value, (images, channels * depth, height, width))
    pooled = (images, channels * depth, high.count, wide.count)
    if not (high.is_idle and wide.is_idle) or deep.is_idle:
        # Averages of averages are rounded once, at the end.
        more = averages if averages is None or deep.is_idle else Averages(averages.count_include_pad, "float32")
        planes = _add_pass(lowering, node, planes, pooled, (high, wide), more, "planes")
    if not deep.is_idle:
        columns = Operand(planes.value, (images, channels, depth, high.count * wide.count))
        pooled = (images, channels, deep.count, high.count * wide.count)
        planes = _add_pass(lowering, node, columns, pooled, (deep, still), averages, "depth")
    return Operand(planes.value, lowering.shape(node.outputs[0]))


def _add_pass(
    lowering: Lowering,
    node: ir.Node,
    source: Operand,
    shape: Shape,
    axes: tuple[PoolAxis, PoolAxis],
    averages: Averages | None,
    along: str,
) -> Operand:
    """Add a step that pools images along their rows and columns; ``along``: the parts of the volumes that these are."""
    output = lowering.spare_name(f"{value_name(node.outputs[0])}.{along}")
    down, across = axes
    window = Window(
        (down.kernel, across.kernel),
        (down.stride, across.stride),
        (down.dilation, across.dilation),
        (down.before, across.before),
    )
    name = lowering.spare_name(f"{node_name(node)}.{along}")
    what = "window maxima" if averages is None else "window sums"
    why = f"{what} on the vector engine: of volumes, first over the planes, then over the depth"
    if averages is None:
        step = PoolStep(name=name, sources=[source], output=output, shape=shape, window=window)
    else:
        step = AveragePoolStep(
            name=name,
            sources=[source],
            output=output,
            shape=shape,
            dtype=averages.dtype,
            window=window,
            ends=(max(0, down.end), max(0, across.end)),
            count_include_pad=averages.count_include_pad,
        )
    lowering.add(step, [node], why)
    return Operand(output, shape)

"""GridSample: images sampled at places that another tensor has, which the device looks up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
import onnx_ir as ir

from trnrt.kernels.common import COUNTED
from trnrt.operators import batch, order, shapes
from trnrt.operators.bounds.case import Array, Case
from trnrt.operators.bounds.rounding import operation_bound
from trnrt.operators.record import NEVER, Declaration
from trnrt.planner.lowering.blocked import FALLBACK
from trnrt.planner.lowering.views import View
from trnrt.planner.lowering.walk import Blocked, Lowering, attribute, node_name, value_name
from trnrt.planner.steps import Call, Operand, Step, Tensors

# Opset 16 calls two modes by other names.
_MODES = {"bilinear": "linear", "linear": "linear", "nearest": "nearest"}
_PADDINGS = ("zeros", "border")


@dataclass(kw_only=True)
class SampleStep(Step):
    """Rows (N, R, C) of pixels of ``sources[0]`` (N*H*W, C) at the places in ``sources[1]`` (N, R, 2)."""

    size: tuple[int, int]
    mode: str
    border: bool
    align_corners: bool

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        return self.shape if position is None else self.sources[position].shape

    def call(self, tensors: Tensors) -> Call:
        return Call("sampling", "sample_images", (self.size, self.mode, self.border, self.align_corners))


def bound_sample(case: Case) -> list[Array]:
    """The errors of the pixels, and how far their values can change within the errors of the places."""
    spread, size, grid = case.first(case.e), case.size, np.abs(case.required_input(1)) + case.error(1)
    sizes = np.array(size.shape[:1:-1], np.float32)
    # Coordinates take four operations; those outside the image are limited.
    moved = sizes * (case.error(1) / 2 + 4 * operation_bound() * (np.minimum(grid, 2) + 1))
    steps = np.minimum(moved, 1).sum(axis=-1)[:, None]
    if _MODES.get(str(case.attribute("mode", "linear"))) == "nearest":
        # onnxruntime computes the same coordinates of the same grid; of another, the nearest pixel may be another.
        steps = np.where(np.any(case.error(1) > 0), np.float32(1), np.float32(0))
    largest = size.max(axis=(1, 2, 3), keepdims=True)
    return [spread + case.sums(5) * case.first(size) + 2 * steps * largest]


_sampling = partial(Declaration, batch=batch.sample, order=order.keep_order, values=(), folds=NEVER)


@_sampling({"GridSample": (16, 20, 22)}, bound=bound_sample, shapes=shapes.by_onnx)
def lower_grid_sample(lowering: Lowering, node: ir.Node) -> None:
    """Pixels at computed places, the nearest or interpolated between four: DMA looks them up by computed numbers."""
    image, made = lowering.view_of(node.inputs[0]), node.outputs[0]
    mode, padding = attribute(node, "mode", "linear"), attribute(node, "padding_mode", "zeros")
    if len(image.shape) != 4:
        raise Blocked(
            f"GridSample of a tensor of {len(image.shape)} dimensions", f"images (N, C, H, W) are supported; {FALLBACK}"
        )
    if mode not in _MODES:
        raise Blocked(f"mode={mode}", f"export the model with linear or nearest sampling; {FALLBACK}")
    if padding not in _PADDINGS:
        raise Blocked(f"padding_mode={padding}", f"export the model with zeros or border; {FALLBACK}")
    images, channels, height, width = image.shape
    if images * height * width > COUNTED:
        raise Blocked(
            f"{images} images of {height} x {width} pixels; the kernel counts to {COUNTED}",
            f"use fewer rows or smaller images; {FALLBACK}",
        )
    table = lowering.operand_of(image.permute((0, 2, 3, 1)))
    grid = lowering.operand(node.inputs[1])
    count, rows, columns, _ = grid.shape
    step = SampleStep(
        name=node_name(node),
        sources=[
            Operand(table.value, (images * height * width, channels)),
            Operand(grid.value, (count, prod((rows, columns)), 2)),
        ],
        output=lowering.spare_name(f"{value_name(made)}.rows"),
        shape=(count, rows * columns, channels),
        size=(height, width),
        mode=_MODES[mode],
        border=padding == "border",
        align_corners=bool(attribute(node, "align_corners", 0)),
    )
    lowering.add(step, [node], "DMA looks pixels up by numbers that the vector engine computes")
    lowering.set_view(made, View.whole(step.output, (count, rows, columns, channels)).permute((0, 3, 1, 2)))

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
_MODES = {"bilinear": "linear", "linear": "linear", "nearest": "nearest", "bicubic": "cubic", "cubic": "cubic"}
# Along an axis, the pixels that a result is made of; the most that their weights add up to, signs apart; the most that
# it changes within a pixel, of pixels of size 1.
_TAPS = {"nearest": (1, 1.0, 2.0), "linear": (2, 1.0, 2.0), "cubic": (4, 1.375, 4.0)}


@dataclass(kw_only=True)
class SampleStep(Step):
    """Rows (N, R, C) of pixels of ``sources[0]`` (N*H*W, C) at the places in ``sources[1]`` (N, R, 2), or 3-D."""

    size: tuple[int, ...]
    mode: str
    padding: str
    align_corners: bool

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        return self.shape if position is None else self.sources[position].shape

    def call(self, tensors: Tensors) -> Call:
        return Call("sampling", "sample_images", (self.size, self.mode, self.padding, self.align_corners))


def bound_sample(case: Case) -> list[Array]:
    """The errors of the pixels, and how far their values can change within the errors of the places."""
    size, grid = case.size, np.abs(case.required_input(1)) + case.error(1)
    sizes, mode = np.array(size.shape[:1:-1], np.float32), _MODES[str(case.attribute("mode", "linear"))]
    taps, most, change = _TAPS[mode]
    # Coordinates take four operations; those outside the image are limited, or reflected with the error that they have.
    far = np.inf if str(case.attribute("padding_mode", "zeros")) == "reflection" else 2
    moved = sizes * (case.error(1) / 2 + 4 * operation_bound() * (np.minimum(grid, far) + 1))
    steps = np.minimum(moved, 1).sum(axis=-1)[:, None]
    if mode == "nearest":
        # onnxruntime computes the same coordinates of the same grid; of another, the nearest pixel may be another.
        steps = np.where(np.any(case.error(1) > 0), np.float32(1), np.float32(0))
    largest, spread = (x.max(axis=tuple(range(1, x.ndim)), keepdims=True) for x in (size, case.e))
    # Weights of both signs may hide in a sum what each brings; the others' are shares.
    values, errors = (largest, spread) if mode == "cubic" else (case.first(size), case.first(case.e))
    weighed = np.float32(most ** len(sizes))
    rounding = case.sums(taps ** len(sizes) + 1) * weighed * values
    return [weighed * errors + rounding + np.float32(change) * weighed * steps * largest]


_sampling = partial(Declaration, batch=batch.sample, order=order.keep_order, values=(), folds=NEVER)


@_sampling({"GridSample": (16, 20, 22)}, bound=bound_sample, shapes=shapes.by_onnx)
def lower_grid_sample(lowering: Lowering, node: ir.Node) -> None:
    """Pixels at computed coordinates, the nearest ones or interpolated: DMA looks them up by computed indices."""
    image, made = lowering.view_of(node.inputs[0]), node.outputs[0]
    mode, padding = attribute(node, "mode", "linear"), attribute(node, "padding_mode", "zeros")
    if len(image.shape) not in (4, 5) or (len(image.shape) == 5 and _MODES[mode] == "cubic"):
        raise Blocked(
            f"mode={mode} of a tensor of {len(image.shape)} dimensions",
            "images (N, C, H, W) are supported, and (N, C, D, H, W) with linear or nearest sampling",
        )
    images, channels, *size = image.shape
    if images * prod(size) > COUNTED:
        raise Blocked(
            f"{images} images of {' x '.join(map(str, size))} pixels; the kernel counts to {COUNTED}",
            f"use fewer rows or smaller images; {FALLBACK}",
        )
    table = lowering.operand_of(image.permute((0, *range(2, len(image.shape)), 1)))
    grid = lowering.operand(node.inputs[1])
    count, *places, _ = grid.shape
    step = SampleStep(
        name=node_name(node),
        sources=[
            Operand(table.value, (images * prod(size), channels)),
            Operand(grid.value, (count, prod(places), len(size))),
        ],
        output=lowering.spare_name(f"{value_name(made)}.rows"),
        shape=(count, prod(places), channels),
        size=tuple(size),
        mode=_MODES[mode],
        padding=padding,
        align_corners=bool(attribute(node, "align_corners", 0)),
    )
    lowering.add(step, [node], "DMA looks pixels up by numbers that the vector engine computes")
    last = len(places) + 1
    whole = View.whole(step.output, (count, *places, channels))
    lowering.set_view(made, whole.permute((0, last, *range(1, last))))

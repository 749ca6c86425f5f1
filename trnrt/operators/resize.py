"""Resize and Upsample: nearest pixels are moved; linear and cubic ones are sums along one axis after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np
import onnx_ir as ir

from trnrt.kernels.resize import MAX_SIZE, images_together
from trnrt.operators import batch, order, shapes
from trnrt.operators.bounds import sums
from trnrt.operators.matmul import product_step
from trnrt.operators.movement import add_takes, constant_numbers
from trnrt.operators.programs import Program, add_compute
from trnrt.operators.record import NEVER, Declaration
from trnrt.planner.lowering.blocked import WRONG
from trnrt.planner.lowering.interpolation import (
    MODES,
    ROUNDINGS,
    Axis,
    interpolation_matrix,
    nearest_indices,
    outside_mask,
)
from trnrt.planner.lowering.views import View
from trnrt.planner.lowering.walk import Blocked, Lowering, attribute, node_name, value_name
from trnrt.planner.plan import Array, Layout
from trnrt.planner.steps import WORKING_BYTES, Call, Operand, Step, Tensors, WeightName

Shape = tuple[int, ...]


@dataclass(kw_only=True)
class ResizeStep(Step):
    """``rows.T @ image @ columns`` for all images; ``images`` are (N, C, H, W) and ``size`` (OH, OW)."""

    images: tuple[int, int, int, int]
    size: tuple[int, int]
    rows: Array
    columns: Array

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        return (*self.images[:2], *self.size) if position is None else self.images

    def call(self, tensors: Tensors) -> Call:
        together = min(self.images[1], images_together(self.images[3], self.size[1]))
        weights = {"rows": self.rows, "columns": np.kron(np.eye(together, dtype=np.float32), self.columns)}
        return Call("resize", "resize", (WeightName("rows"), WeightName("columns")), weights=weights)


@dataclass(kw_only=True)
class RepeatStep(Step):
    """Each row of ``width`` pixels repeated ``times[0]`` times, and each of its pixels ``times[1]`` times."""

    width: int
    times: tuple[int, int]

    def reads(self, position: int, shapes: Tensors) -> tuple[Layout, ...]:
        source = self.sources[0]
        is_image = len(self.shape) == 4 and shapes.shape(source.value) == source.shape
        return (Layout.CHANNELS, Layout.HBM) if is_image else (Layout.HBM,)

    def same_layout(self) -> bool:
        return True

    def fills_window(self, first: int) -> bool:
        return True

    def part(self, images: int) -> RepeatStep | None:
        if len(self.shape) != 4:
            return None
        return replace(self, shape=(images, *self.shape[1:]), sources=[self.sources[0].part(images)])

    def working_bytes(self, tensors: Tensors, *, held: bool) -> int:
        return WORKING_BYTES if tensors.layout(self.output) is Layout.HBM else 0

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        rows = prod(self.sources[0].shape) // self.width
        return (rows, self.times[0], self.width, self.times[1]) if position is None else (rows, self.width)

    def call(self, tensors: Tensors) -> Call:
        if tensors.layout(self.output) is not Layout.HBM:
            return Call("resize", "repeat_images", (self.shape[1], self.times))
        return Call("resize", "repeat_pixels", ())


_resizing = partial(Declaration, batch=batch.resize, order=order.keep_order, bound=sums.resize, folds=NEVER)


@_resizing({"Resize": (10, 11, 13, 18, 19)}, values=(1, 2, 3), shapes=shapes.by_onnx)
@_resizing({"Upsample": (6, 7, 9)}, values=(1,), shapes=shapes.upsample)
def lower_resize(lowering: Lowering, node: ir.Node) -> None:
    """Resizes some axes, interpolated or not; the scales or sizes are constants."""
    mode = attribute(node, "mode", "nearest")
    if mode not in ("nearest", "linear", "cubic"):
        raise Blocked(f"mode={mode}; ONNX knows nearest, linear and cubic", WRONG)
    axes = _axes(lowering, node)
    if all(axis.size == axis.result for axis in axes):
        # Then onnxruntime copies, whatever the scales and the roi are.
        source = node.inputs[0]
        assert source is not None
        lowering.view(node, source, "nothing changes its size")
    elif mode == "nearest":
        _add_nearest(lowering, node, axes)
    else:
        _add_sums(lowering, node, axes)


def _axes(lowering: Lowering, node: ir.Node) -> list[Axis]:
    """The resizing along each axis."""
    source = node.inputs[0]
    assert source is not None
    shape, result = lowering.shape(source), lowering.shape(node.outputs[0])
    rank = len(shape)
    old = node.op_type == "Upsample" or lowering.opset < 11
    mode = "asymmetric" if old else attribute(node, "coordinate_transformation_mode", "half_pixel")
    if mode not in MODES:
        raise Blocked(f"coordinate_transformation_mode={mode}; ONNX knows {', '.join(MODES)}", WRONG)
    named = [axis % rank for axis in attribute(node, "axes", tuple(range(rank)))]
    scales = _scales(lowering, node, shape, named)
    roi = _numbers(lowering, node, 1, "roi") if mode == "tf_crop_and_resize" else None
    axes = []
    for d in range(rank):
        k = named.index(d) if d in named else -1
        crop = (float(roi[k]), float(roi[k + len(named)])) if roi is not None and k >= 0 else (0.0, 1.0)
        axes.append(Axis(shape[d], result[d], float(scales[k]) if k >= 0 else 1.0, mode, crop))
    return axes


def _scales(lowering: Lowering, node: ir.Node, shape: Shape, named: list[int]) -> Array:
    """The scale of each of the axes ``named``: as given, or the ratio of the sizes."""
    if node.op_type == "Upsample" and lowering.opset < 9:
        return np.array(attribute(node, "scales", (1.0,) * len(shape)), np.float32)
    position = 1 if node.op_type == "Upsample" or lowering.opset < 11 else 2
    scales = _numbers(lowering, node, position, "scales")
    if scales is not None:
        if len(scales) != len(named):
            raise Blocked(f"{len(scales)} scales for {len(named)} axes", WRONG)
        return scales.astype(np.float32)
    sizes = _numbers(lowering, node, 3, "sizes")
    if sizes is None or len(sizes) != len(named):
        raise Blocked("neither scales nor sizes are given for its axes", WRONG)
    policy = attribute(node, "keep_aspect_ratio_policy", "stretch")
    ratios = sizes.astype(np.float32) / np.array([shape[d] for d in named], np.float32)
    if policy == "stretch":
        return ratios
    return np.full(len(named), ratios.min() if policy == "not_larger" else ratios.max())


def _numbers(lowering: Lowering, node: ir.Node, position: int, name: str) -> Array | None:
    """A constant input, None if it is left out or empty; blocks a computed one."""
    numbers = constant_numbers(lowering, node, position, name)
    return numbers if numbers is not None and numbers.size else None


# -- nearest --------------------------------------------------------------------------------------------


def _add_nearest(lowering: Lowering, node: ir.Node, axes: list[Axis]) -> None:
    """Repeat pixels on chip if each is repeated equally often, else let DMA take them, axis by axis."""
    rounding = attribute(node, "nearest_mode", "round_prefer_floor")
    if node.op_type == "Upsample" or lowering.opset < 11:
        rounding = "simple"
    if rounding not in ROUNDINGS:
        raise Blocked(f"nearest_mode={rounding}; ONNX knows {', '.join(ROUNDINGS[:-1])}", WRONG)
    indices = {d: nearest_indices(axis, rounding) for d, axis in enumerate(axes) if axis.moves}
    times = {d: _whole_times(indices[d], axes[d].size) for d in indices}
    if set(indices) <= {len(axes) - 2, len(axes) - 1} and all(times.values()):
        source = lowering.operand(node.inputs[0], short_integers=True)
        step = RepeatStep(
            name=node_name(node),
            sources=[source],
            output=value_name(node.outputs[0]),
            shape=lowering.shape(node.outputs[0]),
            width=axes[-1].size,
            times=(times.get(len(axes) - 2, 1), times.get(len(axes) - 1, 1)),
        )
        lowering.add(step, [node], "pixels repeated by the vector and scalar engines", place="dma")
        lowering.mark_whole_numbers(node.outputs[0])
        return
    _take_nearest(lowering, node, indices)


def _whole_times(indices: Array, size: int) -> int:
    """The number of times that ``indices`` repeats each element, if it repeats all equally often and in order; else
    0."""
    times = len(indices) // size
    return times if np.array_equal(indices, np.repeat(np.arange(size), times)) else 0


def _take_nearest(lowering: Lowering, node: ir.Node, indices: dict[int, Array]) -> None:
    """Take the nearest elements along one axis after the other, first along the one that shrinks most."""
    view = lowering.view_of(node.inputs[0], short_integers=True)
    value = float(attribute(node, "extrapolation_value", 0.0))
    picks = {d: indices[d] for d in sorted(indices, key=lambda d: len(indices[d]) / view.shape[d])}
    add_takes(lowering, node, view, picks, "the nearest elements are taken by DMA", value)


# -- linear and cubic -----------------------------------------------------------------------------------


def _add_sums(lowering: Lowering, node: ir.Node, axes: list[Axis]) -> None:
    """Resize rows and columns of images by one kernel, other axes by a product with a constant matrix each."""
    options = bool(attribute(node, "antialias", 0)), bool(attribute(node, "exclude_outside", 0))
    cubic = float(attribute(node, "cubic_coeff_a", -0.75)) if attribute(node, "mode", "nearest") == "cubic" else None
    found = {d: interpolation_matrix(axis, *options, cubic) for d, axis in enumerate(axes) if axis.moves}
    matrices = {d: matrix for d, matrix in found.items() if not np.array_equal(matrix, np.eye(axes[d].size))}
    made, shape = value_name(node.outputs[0]), lowering.shape(node.outputs[0])
    masks = [outside_mask(axis) for axis in axes]
    value = float(attribute(node, "extrapolation_value", 0.0))
    fills = value != 0.0 and any(mask.any() for mask in masks)
    output = lowering.spare_name(f"{made}.inside") if fills else made
    name = lowering.spare_name(f"{output}.step") if fills else node_name(node)
    rank = len(axes)
    if set(matrices) <= {rank - 2, rank - 1} and max(axis.size for axis in axes[-2:]) <= MAX_SIZE:
        step: Step = _images_step(lowering.operand(node.inputs[0]), axes, matrices, name, output, shape)
        lowering.add(step, [node], "sums along rows, then columns, on the tensor engine")
    else:
        _add_products(lowering, node, matrices, name, output)
    if fills:
        mask = np.zeros(shape, bool)
        for d, beyond in enumerate(masks):
            mask |= beyond.reshape([-1 if k == d else 1 for k in range(rank)])
        program = Program()
        condition = program.source(mask.astype(np.float32))
        program.apply("where", condition, value, program.source(Operand(output, shape)))
        add_compute(lowering, node, program, "the extrapolation_value where a result lies outside")


def _images_step(
    source: Operand, axes: list[Axis], matrices: dict[int, Array], name: str, output: str, shape: Shape
) -> ResizeStep:
    """The step that resizes rows and columns only."""
    rank = len(axes)
    height, width = (1, *source.shape)[-2:]
    rows = matrices.get(rank - 2, np.eye(height, dtype=np.float32))
    columns = matrices.get(rank - 1, np.eye(width, dtype=np.float32))
    leading = source.shape[:-2]
    return ResizeStep(
        name=name,
        sources=[source],
        output=output,
        shape=shape,
        images=(leading[0] if leading else 1, prod(leading[1:]), height, width),
        size=(len(rows), len(columns)),
        rows=np.ascontiguousarray(rows.T),
        columns=np.ascontiguousarray(columns.T),
    )


def _add_products(lowering: Lowering, node: ir.Node, matrices: dict[int, Array], name: str, output: str) -> None:
    """Append a product for each axis: a constant matrix times matrices whose rows lie along the axis."""
    view = lowering.view_of(node.inputs[0])
    order = sorted(matrices, key=lambda d: matrices[d].shape[0] / matrices[d].shape[1])
    for axis in order:
        is_last = axis == order[-1]
        made = output if is_last else lowering.spare_name(f"{output}.axis{axis}")
        matrix = lowering.constant_operand(f"{node_name(node)}.axis{axis}", matrices[axis])
        shape = (*view.shape[:axis], len(matrices[axis]), *view.shape[axis + 1 :])
        left = View.whole(matrix.value, matrix.shape)
        if axis == len(shape) - 1:
            step = product_step(lowering, made, view, left.permute((1, 0)), made, shape)
        else:
            dense = lowering.operand_of(view)
            groups = (prod(shape[:axis]), view.shape[axis], prod(shape[axis + 1 :]))
            step = product_step(lowering, made, left, View.whole(dense.value, groups), made, shape)
        step.name = name if is_last else lowering.spare_name(f"{made}.step")
        lowering.add(step, [node], "sums along an axis, on the tensor engine")
        view = View.whole(made, shape)

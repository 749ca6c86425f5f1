"""Normalisations: by constant statistics (BatchNormalization), by those of rows, and across channels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
import onnx_ir as ir

from trnrt.importer.rewriting.orders import CHANNELS_FIRST, CHANNELS_LAST
from trnrt.importer.values import input_at, is_used
from trnrt.kernels.normalize import MAX_COLUMNS
from trnrt.kernels.normalize_channels import MAX_CHANNELS
from trnrt.kernels.normalize_features import MAX_WIDTH
from trnrt.operators import batch, order, shapes
from trnrt.operators.bounds import normalize as bounds
from trnrt.operators.movement import reshape_view
from trnrt.operators.normalize_steps import (
    ChannelsStep,
    Coefficient,
    EncoderNormalizeStep,
    InverseDeviationStep,
    NormalizeStep,
)
from trnrt.operators.programs import Program, Register, add_compute, add_program
from trnrt.operators.record import NEVER, Declaration
from trnrt.operators.reduce import L1, L2, Reduction, add_reduce, add_statistic, checked_axes, nonempty_shape
from trnrt.planner.lowering.blocked import FALLBACK, WRONG
from trnrt.planner.lowering.views import View
from trnrt.planner.lowering.walk import Blocked, Lowering, attribute, node_name, value_name
from trnrt.planner.plan import Array, Layout
from trnrt.planner.steps import Call, Operand, Step, Tensors

Shape = tuple[int, ...]


# -- BatchNormalization -------------------------------------------------------------------------------


_normalization = partial(Declaration, order=order.keep_order, values=(), folds=NEVER)
_by_image = partial(_normalization, batch=batch.by_image)


@_by_image({"BatchNormalization": (6, 7, 9, 14, 15)}, bound=bounds.batch, shapes=shapes.by_channel)
def lower_batch_normalization(lowering: Lowering, node: ir.Node) -> None:
    """``x * scale + shift`` with a scale and a shift for each channel, which the host folds if they are constant."""
    _check_inference(lowering, node)
    source = lowering.operand(node.inputs[0])
    channels = _channels(source)
    per_element = lowering.opset < 9 and not attribute(node, "spatial", 1)
    shape = source.shape[1:] if per_element else (channels, *(1,) * (len(source.shape) - 2))
    eps = float(attribute(node, "epsilon", 1e-5))
    for name, value in zip(("scale", "B", "mean", "var"), node.inputs[1:5], strict=True):
        _check_size(lowering, value, prod(shape), name)
    constants = [lowering.constant(value) for value in node.inputs[1:5]]
    known = [constant.astype(np.float64).reshape(shape) for constant in constants if constant is not None]
    program = Program()
    x = program.source(source)
    if len(known) == 4:
        scale, bias, mean, variance = known
        factor = scale / np.sqrt(variance + eps)
        shift = bias - mean * factor
        scaled = program.apply("multiply", x, program.source(factor.astype(np.float32)))
        program.apply("add", scaled, program.source(shift.astype(np.float32)))
        add_compute(lowering, node, program, "a scale and a shift for each channel, folded when the plan was made")
        return
    operands = [_reshape_operand(lowering, value, shape) for value in node.inputs[1:5]]
    rates = Program()
    root = rates.apply("sqrt", rates.apply("add", rates.source(operands[3]), eps))
    rates.apply("divide", rates.source(operands[0]), root)
    rate = add_program(lowering, node, rates, lowering.spare_name(f"{value_name(node.outputs[0])}.rate"), shape)
    centred = program.apply("subtract", x, program.source(operands[2]))
    program.apply("add", program.apply("multiply", centred, program.source(rate)), program.source(operands[1]))
    add_compute(lowering, node, program, "its statistics are computed: scale and shift of each channel on the core")


def _channels(source: Operand) -> int:
    """The number of channels of images (N, C, ...)."""
    if len(source.shape) < 2:
        raise Blocked(f"a tensor of {len(source.shape)} dimensions; there must be a batch and channels")
    return source.shape[1]


def _check_size(lowering: Lowering, value: ir.Value | None, size: int, name: str) -> None:
    """Block an input that doesn't have ``size`` numbers."""
    given = None if value is None else lowering.shape(value)
    if given is None or prod(given) != size:
        raise Blocked(f"{name} of shape {given}; it must have {size} numbers", WRONG)


def _check_inference(lowering: Lowering, node: ir.Node) -> None:
    """Block training, which computes the statistics of the batch."""
    hint = (
        "export the model in inference mode (model.eval()); a layer that takes the statistics of its input there, too, "
        "must be an InstanceNormalization or LayerNormalization"
    )
    if attribute(node, "training_mode", 0):
        raise Blocked("training_mode=1", hint)
    if lowering.opset < 7 and not attribute(node, "is_test", 0):
        raise Blocked("is_test=0, which is training", hint)
    for made in node.outputs[1:]:
        if is_used(made):
            raise Blocked(f"the output {made.name!r}: statistics of the batch, which only training computes", hint)


def _reshape_operand(lowering: Lowering, value: ir.Value | None, shape: Shape) -> Operand:
    """A tensor in another shape."""
    return _dense_operand(lowering, lowering.view_of(value), shape)


def _dense_operand(lowering: Lowering, view: View, shape: Shape) -> Operand:
    """A view in another shape, dense."""
    return lowering.operand_of(reshape_view(lowering, view, shape))


# -- rows ---------------------------------------------------------------------------------------------


def _add_rows(
    lowering: Lowering,
    node: ir.Node,
    source: Operand,
    rows: int,
    scale: Coefficient,
    bias: Coefficient,
    *,
    eps: float,
    output: str = "",
    kernel: str = "normalize_rows",
) -> Operand:
    """Append the step that normalises ``source`` as ``rows`` rows."""
    columns = prod(nonempty_shape(source.shape)) // rows
    if columns > MAX_COLUMNS:
        raise Blocked(f"rows of {columns} elements; the kernel takes {MAX_COLUMNS}")
    name, output = (
        lowering.spare_name(f"{output}.step") if output else node_name(node),
        output or value_name(node.outputs[0]),
    )
    computed = list(dict.fromkeys(c for c in (scale, bias) if isinstance(c, Operand)))
    step = NormalizeStep(
        name=name,
        sources=[source, *computed],
        output=output,
        shape=source.shape,
        rows=rows,
        scale=scale,
        bias=bias,
        eps=eps,
        kernel=kernel,
    )
    by_column = all(c is None or c.size == columns for c in (scale, bias) if not isinstance(c, Operand))
    if kernel == "normalize_rows" and not computed and by_column and columns <= MAX_WIDTH:
        fields = vars(step) | {"shape": (rows, columns), "together": max(1, rows // (source.shape or (1,))[0])}
        step = EncoderNormalizeStep(**fields)
    lowering.add(step, [node], "a row a partition: differences to a number near the mean, their variance, scaling")
    return Operand(step.output, source.shape)


@_normalization(
    # SimplifiedLayerNormalization is onnxruntime's name for RMSNormalization, in ONNX's own domain.
    {"LayerNormalization": (17,), "RMSNormalization": (23,), "SimplifiedLayerNormalization": (1,)},
    batch=batch.normalize,
    bound=bounds.layer,
    shapes=shapes.broadcast,
)
def lower_layer_normalization(lowering: Lowering, node: ir.Node) -> None:
    """Normalises rows of all dimensions from the axis on; each element of a row has a scale and a bias of its own."""
    if node.op_type == "LayerNormalization" and _add_channels(lowering, node):
        return
    source = lowering.operand(node.inputs[0])
    rank = len(source.shape)
    axis = checked_axes((attribute(node, "axis", -1),), rank)[0]
    rows = prod(source.shape[:axis])
    eps = float(attribute(node, "epsilon", 1e-5))
    scale = _column_coefficients(lowering, input_at(node, 1), source.shape[axis:], "Scale")
    if node.op_type != "LayerNormalization":
        if any(map(is_used, node.outputs[1:])):
            raise Blocked("its second output, the inverse deviation, is used", "export the model again without it")
        _add_rows(lowering, node, source, rows, scale, None, eps=eps, kernel="normalize_rows_rms")
        return
    mean, inverse = [*node.outputs[1:], None, None][:2]
    if mean is not None and is_used(mean):
        axes, shape = tuple(range(axis, rank)), lowering.shape(mean)
        add_reduce(lowering, node, source, axes, Reduction("add", is_mean=True), value_name(mean), shape)
    if inverse is not None and is_used(inverse):
        step = InverseDeviationStep(
            name=lowering.spare_name(f"{value_name(inverse)}.step"),
            sources=[source],
            output=value_name(inverse),
            shape=lowering.shape(inverse),
            eps=eps,
        )
        lowering.add(step, [node], "the variance of rows once more, for the output in use")
    bias = _column_coefficients(lowering, input_at(node, 2), source.shape[axis:], "B")
    _add_rows(lowering, node, source, rows, scale, bias, eps=eps)


def _add_channels(lowering: Lowering, node: ir.Node) -> bool:
    """Append the step of a LayerNormalization over the channels of images that are stored channels first, if it is
    one; its result is stored alike."""
    view = lowering.view_of(node.inputs[0])
    if len(view.shape) != 4 or view.is_whole or any(map(is_used, node.outputs[1:])):
        return False
    images, axis = view.permute(CHANNELS_FIRST), attribute(node, "axis", -1)
    given = ((input_at(node, 1), 1.0), (input_at(node, 2), 0.0))
    scale, bias = (_channel_numbers(lowering, value, view.shape[3], default) for value, default in given)
    if not images.is_whole or axis not in (-1, 3) or scale is None or bias is None or view.shape[3] > MAX_CHANNELS:
        return False
    made = node.outputs[0]
    step = ChannelsStep(
        name=node_name(node),
        sources=[Operand(images.root, images.shape)],
        output=value_name(made),
        shape=images.shape,
        scale=scale,
        bias=bias,
        eps=float(attribute(node, "epsilon", 1e-5)),
    )
    lowering.add(step, [node], "channels first, as its images are stored: the tensor engine sums over the channels")
    lowering.set_view(made, View.whole(step.output, step.shape).permute(CHANNELS_LAST))
    return True


def _channel_numbers(lowering: Lowering, value: ir.Value | None, channels: int, default: float) -> Array | None:
    """A constant with one number per channel, ``default`` each if it is left out; None if it is anything else."""
    if value is None:
        return np.full(channels, default, np.float32)
    constant = lowering.constant(value)
    if constant is None or constant.shape[-1:] not in ((1,), (channels,)) or constant.size != constant.shape[-1]:
        return None
    return np.broadcast_to(constant.reshape(-1).astype(np.float32), (channels,))


def _column_coefficients(lowering: Lowering, value: ir.Value | None, shape: Shape, what: str) -> Coefficient:
    """One number for each element of a row of ``shape``, as (1, columns)."""
    if value is None:
        return None
    given = lowering.shape(value)
    while len(given) > len(shape) and given[0] == 1:
        given = given[1:]
    if len(given) > len(shape) or any(n not in (1, size) for n, size in zip(given[::-1], shape[::-1], strict=False)):
        raise Blocked(
            f"{what} of shape {lowering.shape(value)} for rows of {shape}", f"apply it by a Mul and an Add; {FALLBACK}"
        )
    constant = lowering.constant(value)
    if constant is not None:
        return np.broadcast_to(constant.reshape(given), shape).reshape(1, -1)
    view = lowering.view_of(value).reshape(given)
    assert view is not None
    return _dense_operand(lowering, view.broadcast(shape), (1, prod(shape)))


def _row_coefficients(lowering: Lowering, value: ir.Value | None, images: int) -> Coefficient:
    """One number per row, as (rows, 1): the numbers of one image, repeated for each image."""
    if value is None:
        return None
    constant = lowering.constant(value)
    if constant is not None:
        return np.tile(constant.reshape(-1), images).reshape(-1, 1)
    each = prod(lowering.shape(value))
    view = View.whole(_reshape_operand(lowering, value, (each,)).value, (each,))
    return _dense_operand(lowering, view.broadcast((images, each)), (images * each, 1))


@_by_image({"InstanceNormalization": (6, 22)}, bound=bounds.instance, shapes=shapes.by_channel)
def lower_instance_normalization(lowering: Lowering, node: ir.Node) -> None:
    """Normalises each channel of each image."""
    source = lowering.operand(node.inputs[0])
    images, channels = source.shape[0], _channels(source)
    for name, value in zip(("scale", "B"), node.inputs[1:3], strict=True):
        _check_size(lowering, value, channels, name)
    scale, bias = (_row_coefficients(lowering, value, images) for value in node.inputs[1:3])
    eps = float(attribute(node, "epsilon", 1e-5))
    _add_rows(lowering, node, source, images * channels, scale, bias, eps=eps)


@_by_image({"GroupNormalization": (21,)}, bound=bounds.group, shapes=shapes.by_onnx)
def lower_group_normalization(lowering: Lowering, node: ir.Node) -> None:
    """Normalises each group of channels of each image, with a scale and a bias for each channel.

    In opset 18 there was one of them for each group; that version is deprecated, and onnx's checker refuses it.
    """
    source = lowering.operand(node.inputs[0])
    images, channels = source.shape[0], _channels(source)
    groups = int(attribute(node, "num_groups", 0))
    if groups < 1 or channels % groups:
        raise Blocked(f"num_groups={groups} of {channels} channels", WRONG)
    for what, value in zip(("scale", "bias"), node.inputs[1:3], strict=True):
        _check_size(lowering, value, channels, what)
    eps = float(attribute(node, "epsilon", 1e-5))
    name = lowering.spare_name(f"{value_name(node.outputs[0])}.rows")
    rows = _add_rows(lowering, node, source, images * groups, None, None, eps=eps, output=name)
    per_channel = (channels, *(1,) * (len(source.shape) - 2))
    program = Program()
    factor, shift = (_channel_source(lowering, program, value, per_channel) for value in node.inputs[1:3])
    program.apply("add", program.apply("multiply", program.source(rows), factor), shift)
    add_compute(lowering, node, program, "rows of groups are normalised; then a scale and a shift for each channel")


def _channel_source(lowering: Lowering, program: Program, value: ir.Value | None, shape: Shape) -> Register:
    """One number per channel as a source that broadcasts."""
    constant = lowering.constant(value)
    if constant is not None:
        return program.source(constant.astype(np.float32).reshape(shape))
    return program.source(_reshape_operand(lowering, value, shape))


@_normalization({"LpNormalization": (6, 22)}, batch=batch.along_axis, bound=bounds.lp, shapes=shapes.by_onnx)
def lower_lp_normalization(lowering: Lowering, node: ir.Node) -> None:
    """Rows along an axis, divided by their 1- or 2-norm; rows of zeros stay zero."""
    p = attribute(node, "p", 2)
    if p not in (1, 2):
        raise Blocked(f"p={p}; ONNX knows 1 and 2", WRONG)
    source = lowering.operand(node.inputs[0])
    axes = checked_axes((attribute(node, "axis", -1),), len(source.shape))
    divide_by_norm(lowering, node, source, axes, L1 if p == 1 else L2)


def divide_by_norm(lowering: Lowering, node: ir.Node, source: Operand, axes: Shape, norm: Reduction) -> None:
    """Append the steps of the node's output: ``source`` over its norm, and ``source`` where that is 0."""
    program = Program()
    divisor = program.source(add_statistic(lowering, node, source, axes, norm, "norm"))
    divisor = program.apply("where", program.apply("equal", divisor, 0.0), 1.0, divisor)
    program.apply("divide", program.source(source), divisor)
    add_compute(lowering, node, program, "rows over their norms")


@_normalization({"MeanVarianceNormalization": (9, 13)}, batch=batch.centre, bound=bounds.centre, shapes=shapes.by_onnx)
def lower_mean_variance_normalization(lowering: Lowering, node: ir.Node) -> None:
    """``(x - mean) / (deviation + 1e-9)`` over any axes: the mean first, then the variance of the differences."""
    source = lowering.operand(node.inputs[0])
    axes = checked_axes(attribute(node, "axes", (0, 2, 3)), len(source.shape))
    mean = add_statistic(lowering, node, source, axes, Reduction("add", is_mean=True), "mean")
    program = Program()
    program.apply("subtract", program.source(source), program.source(mean))
    name = lowering.spare_name(f"{value_name(node.outputs[0])}.differences")
    differences = add_program(lowering, node, program, name, source.shape)
    squares = Reduction("add", before="square", after="sqrt", is_mean=True)
    deviation = add_statistic(lowering, node, differences, axes, squares, "deviation")
    program = Program()
    rate = program.apply("add", program.source(deviation), 1e-9)
    program.apply("divide", program.source(differences), rate)
    add_compute(lowering, node, program, "the mean, the variance of the differences to it, and the quotient")


# -- across channels ----------------------------------------------------------------------------------


@dataclass(kw_only=True)
class LrnStep(Step):
    """Local response normalisation of images."""

    size: int
    alpha: float
    beta: float
    bias: float

    def reads(self, position: int, shapes: Tensors) -> tuple[Layout, ...]:
        on_chip = len(self.shape) == 4 and shapes.shape(self.sources[0].value) == self.shape
        return (Layout.CHANNELS, Layout.HBM) if on_chip else (Layout.HBM,)

    def writes(self) -> tuple[Layout, ...]:
        return (Layout.CHANNELS, Layout.HBM) if len(self.shape) == 4 else (Layout.HBM,)

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        return (*self.shape[:2], prod(self.shape[2:]))

    def call(self, tensors: Tensors) -> Call:
        options = {"size": self.size, "alpha": self.alpha, "beta": self.beta, "bias": self.bias}
        return Call("lrn", "lrn", (self.shape[1],), options)


@_by_image({"LRN": (6, 13)}, bound=bounds.local_response, shapes=shapes.lrn)
def lower_lrn(lowering: Lowering, node: ir.Node) -> None:
    """Each element divided by a power of the sum of squares in a window of channels."""
    source = lowering.operand(node.inputs[0])
    if len(nonempty_shape(source.shape)) < 3:
        raise Blocked(f"a tensor of {len(source.shape)} dimensions; there must be batch, channels and positions", WRONG)
    step = LrnStep(
        name=node_name(node),
        sources=[source],
        output=value_name(node.outputs[0]),
        shape=source.shape,
        size=int(attribute(node, "size", 1)),
        alpha=float(attribute(node, "alpha", 0.0001)),
        beta=float(attribute(node, "beta", 0.75)),
        bias=float(attribute(node, "bias", 1.0)),
    )
    lowering.add(step, [node], "windows of channels summed by the tensor engine, a power by the vector engine")

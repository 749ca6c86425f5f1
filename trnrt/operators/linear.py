"""Gemm and MatMul: by the linear kernels if the weights are constant, else by the kernel of two computed factors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from math import prod

import numpy as np
import onnx_ir as ir

from trnrt.importer.values import input_at
from trnrt.kernels import linear
from trnrt.kernels.linear import MAX_FEATURES
from trnrt.operators import batch, order, shapes
from trnrt.operators.bounds import sums
from trnrt.operators.fusing import following_sum, next_activation
from trnrt.operators.matmul import product_step
from trnrt.operators.programs import Program, Register, add_compute, term
from trnrt.operators.record import SMALL, Declaration
from trnrt.planner.lowering import weights
from trnrt.planner.lowering.blocked import WRONG
from trnrt.planner.lowering.views import View
from trnrt.planner.lowering.walk import Blocked, Lowering, attribute, node_name, value_name
from trnrt.planner.lowering.weights import PARTITIONS
from trnrt.planner.plan import Array, Layout
from trnrt.planner.steps import WORKING_BYTES, Call, Operand, SourceName, Step, Tensors, WeightName

# Bytes per partition of a bias that is loaded ahead for every row of the batch: as much as one transfer of weights
# (prefetching.PIECE_BYTES), as the first product waits for it. The kernel itself spreads a wider bias over the rows.
_BIAS_BYTES = 8 * 1024
# Bytes per partition of a load that the search tries beside the kernel's own LOAD_BYTES: twice, half and a quarter of
# it. Each costs a trial: search the networks again when they change (docs/kernels.md, Tuned numbers).
_LOAD_BYTES = (32768, 8192, 4096)


@dataclass(kw_only=True)
class LinearStep(Step):
    """``act(source @ weight + bias)`` with weight (F, O) and bias (O,), plus the second source, if there is one.

    ``prepared``: weights in the kernels' layout, by step and positions; laying out large ones takes seconds.
    """

    weight: Array
    bias: Array
    act: str
    prepared: dict[tuple[str, int], Array] = field(default_factory=dict)
    outputs: range | None = None  # those of the whole layer that a share of it makes
    added: bool = False  # the last source is added to the result

    def _image(self, tensors: Tensors) -> tuple[int, int]:
        """(channels, positions) of a flattened image, (F, 1) of plain features."""
        stored = tensors.shape(self.sources[0].value)
        if len(stored) == 4 and (stored[0], prod(stored[1:])) == (self.shape[0], self.weight.shape[0]):
            return stored[1], stored[2] * stored[3]
        return self.weight.shape[0], 1

    def reads(self, position: int, shapes: Tensors) -> tuple[Layout, ...]:
        stored = shapes.shape(self.sources[position].value)
        if self.added and position == len(self.sources) - 1 and position:
            return (Layout.FEATURES, Layout.HBM) if stored == self.shape else (Layout.HBM,)
        if stored == (self.shape[0], self.weight.shape[0]):
            return (Layout.FEATURES, Layout.HBM)
        if len(stored) == 4 and (stored[0], prod(stored[1:])) == (self.shape[0], self.weight.shape[0]):
            return (Layout.CHANNELS, Layout.HBM)
        return (Layout.HBM,)

    def writes(self) -> tuple[Layout, ...]:
        return (Layout.FEATURES, Layout.ROWS, Layout.HBM)

    def multiplied_sources(self) -> list[Operand]:
        return self.sources[:1]

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        return (self.shape[0], self.weight.shape[0]) if position == 0 else self.shape

    def on_chip_view(self, name: str, layout: Layout, stored: tuple[int, ...]) -> str:
        """The kernels read (P, B, S, N): one position of plain features, or the pixels of a flattened image."""
        if layout is Layout.FEATURES:
            return f"{name}.expand_dim(2)"
        return f"{name}.flatten_dims(3, 4).permute((0, 1, 3, 2))"

    def call(self, tensors: Tensors) -> Call:
        features, positions = self.weight.shape[0], 1
        if tensors.layout(self.sources[0].value) is Layout.CHANNELS:
            features, positions = self._image(tensors)
        by_features = tensors.layout(self.output) is Layout.FEATURES
        bias = weights.columns(self.bias) if by_features else weights.rows(self.bias, self._bias_rows())
        return Call(
            module="linear",
            kernel="linear_features" if by_features else "linear_rows",
            args=(SourceName(0), WeightName("w"), WeightName("b")),
            options={"features": features}
            | ({"outputs": self.weight.shape[1]} if by_features else {})
            | ({"act": self.act} if self.act != "none" else {})
            | ({"added": SourceName(len(self.sources) - 1)} if self.added else {})
            | self.tuned,
            weights={"w": self._prepare_weight(positions)},
            biases={"b": bias},
            held=("w", "b") if by_features or self._bias_rows() == self.shape[0] else ("w",),
        )

    def _prepare_weight(self, positions: int) -> Array:
        known = " ".join(filter(None, (self.name, str(self.outputs or ""), self.float8))), positions
        if known not in self.prepared:
            self.prepared[known] = weights.linear_weight(self.weight, positions)
        return self.prepared[known]

    def share(self, number: int, count: int) -> LinearStep | None:
        outputs = self.shape[1] // count
        if self.shape[1] % count or self.added:
            return None
        own = range(number * outputs, (number + 1) * outputs)
        weight, bias = self.weight[:, own.start : own.stop], self.bias[own.start : own.stop]
        return replace(self, shape=(self.shape[0], outputs), weight=weight, bias=bias, outputs=own)

    def tunable(self) -> dict[str, tuple[int | str, ...]]:
        """The size of loads, if the weights need several."""
        each = linear.linear_weight_bytes(
            self.weight.shape[0], self.weight.shape[1], 2
        )  # in 16 bits: the offer must not depend on the dtype
        sizes = tuple(size for size in _LOAD_BYTES if size < each)
        return {"load_bytes": sizes} if each > linear.LOAD_BYTES else {}

    def _bias_rows(self) -> int:
        """Partitions that hold the bias if the batch is on the partitions: those of all rows, if that takes little."""
        rows, outputs = self.shape
        return rows if rows <= PARTITIONS and outputs * 4 <= _BIAS_BYTES else 1

    def working_bytes(self, tensors: Tensors, *, held: bool) -> int:
        load = int(self.tuned.get("load_bytes", linear.LOAD_BYTES))
        on_chip = all(tensors.layout(source.value) is not Layout.HBM for source in self.sources)
        in_place = tensors.layout(self.output) is not Layout.HBM
        return min(WORKING_BYTES, linear.linear_tile_bytes(self.shape[0], on_chip, held, load, in_place))


def _bias_row(bias: Array, outputs: int) -> Array | None:
    """A bias with one number per output, as (O,); None for any other shape."""
    if bias.size == 1:
        return np.full(outputs, bias.reshape(()), np.float32)
    if bias.shape[-1:] == (outputs,) and bias.size == outputs:
        return bias.reshape(outputs).astype(np.float32)
    return None


_product = partial(Declaration, values=(), folds=SMALL)


@_product({"Gemm": (6, 7, 9, 11, 13)}, order=order.keep_order, batch=batch.gemm, bound=sums.gemm, shapes=shapes.gemm)
def lower_gemm(lowering: Lowering, node: ir.Node) -> None:
    """Y = alpha * A @ B + beta * C; a separate step adds C if the product's kernel can't."""
    alpha, beta = float(attribute(node, "alpha", 1.0)), float(attribute(node, "beta", 1.0))
    left = _matrix(lowering, node, 0, "transA")
    added = input_at(node, 2)
    constant, factor = lowering.constant(node.inputs[1]), lowering.constant(added)
    row = None
    if constant is not None:
        weight = (constant.T if attribute(node, "transB", 0) else constant).astype(np.float32, copy=False)
        # A copy may take half a gigabyte.
        weight = weight if alpha == 1.0 else weight * np.float32(alpha)
        row = np.zeros(weight.shape[1], np.float32) if added is None else None
        if factor is not None:
            row = _bias_row(factor.astype(np.float32) * np.float32(beta), weight.shape[1])
        if row is not None:
            _add_linear(lowering, [node], lowering.operand_of(left), weight, row)
            return
        product = lowering.spare_name(f"{value_name(node.outputs[0])}.product")
        row = np.zeros(weight.shape[1], np.float32)
        step: Step = linear_step(node, lowering.operand_of(left), product, weight, row)
        alpha = 1.0
    else:
        right = _matrix(lowering, node, 1, "transB")
        if added is None and alpha == 1.0:
            _add_product(lowering, node, left, right)
            return
        product = lowering.spare_name(f"{value_name(node.outputs[0])}.product")
        step = product_step(lowering, node_name(node), left, right, product, (left.shape[0], right.shape[1]))
    lowering.add(step, [node], "")
    _add_scaled(lowering, node, Operand(product, lowering.shape(node.outputs[0])), alpha, added, beta)
    name = lowering.reports[node_name(node)].step
    why = f"a matrix product on the tensor engine; step {name} scales it, or adds what is no constant row"
    lowering.report(node, "core", why, step=step.name)


def _matrix(lowering: Lowering, node: ir.Node, position: int, turned: str) -> View:
    """A or B of a Gemm, transposed if the attribute says so."""
    view = lowering.view_of(node.inputs[position])
    if len(view.shape) != 2:
        raise Blocked(f"{'AB'[position]} has {len(view.shape)} dimensions; Gemm takes matrices", WRONG)
    return view.permute((1, 0)) if attribute(node, turned, 0) else view


def _add_scaled(
    lowering: Lowering, node: ir.Node, product: Operand, alpha: float, added: ir.Value | None, beta: float
) -> None:
    """Append the step that makes the node's output alpha * product + beta * added."""
    program = Program()
    total = program.source(product)
    if alpha != 1.0 or added is None:
        total = program.apply("multiply", total, alpha)
    if added is not None:
        other = term(lowering, program, added)
        if beta != 1.0:
            other = program.apply("multiply", other, beta) if isinstance(other, Register) else other * beta
        program.apply("add", total, other)
    add_compute(lowering, node, program, name=lowering.spare_name(f"{node_name(node)}.sum"))


@_product({"MatMul": (6, 9, 13)}, order=order.product, batch=batch.matmul, bound=sums.matmul, shapes=shapes.by_onnx)
def lower_matmul(lowering: Lowering, node: ir.Node) -> None:
    """A @ B. If B is a constant matrix, a following Add of a constant row becomes the bias."""
    weight = lowering.constant(node.inputs[1])
    if weight is not None and lowering.constant(node.inputs[0]) is None and prod(weight.shape[:-2]) == 1:
        matrix = weight.reshape(weight.shape[-2:]) if weight.ndim > 1 else weight[:, None]
        matrix = matrix.astype(np.float32)
        source = lowering.operand(node.inputs[0])
        bias, adding = _following_bias(lowering, node, matrix.shape[1])
        _add_linear(lowering, [node, *adding], source, matrix, bias)
        return
    left, right = lowering.view_of(node.inputs[0]), lowering.view_of(node.inputs[1])
    # A vector on the left is a row, one on the right a column.
    if len(left.shape) == 1:
        left = left.broadcast((1, *left.shape))
    if len(right.shape) == 1:
        right = right.broadcast((1, *right.shape)).permute((1, 0))
    _add_product(lowering, node, left, right)


def _add_product(lowering: Lowering, node: ir.Node, left: View, right: View) -> None:
    """Append the step of a product of two computed tensors, with the activation that follows it."""
    act, activation = next_activation(lowering, node.outputs[0], node)
    nodes = [node, *activation]
    made = nodes[-1].outputs[0]
    step = product_step(lowering, node_name(node), left, right, value_name(made), lowering.shape(made), act)
    lowering.add(step, nodes, "products of matrices on the tensor engine")


def _following_bias(lowering: Lowering, node: ir.Node, outputs: int) -> tuple[Array, list[ir.Node]]:
    """The bias that an Add after ``node`` adds, and that Add; a note says why one is not fused."""
    product = node.outputs[0]
    follower, why_not = lowering.sole_consumer(product)
    for reader, _ in product.uses():
        row = _added_row(lowering, reader, product, outputs)
        if row is None:
            continue
        if follower is not None:
            return row, [follower]
        lowering.notes.append(
            f"Add {node_name(reader)!r} is not fused into MatMul {node_name(node)!r} as its bias: {why_not}"
        )
    return np.zeros(outputs, np.float32), []


def _added_row(lowering: Lowering, node: ir.Node, product: ir.Value, outputs: int) -> Array | None:
    """The constant that ``node`` adds to ``product``, if it has one number per output."""
    if node.op_type != "Add" or node.domain != "":
        return None
    other = node.inputs[1] if node.inputs[0] is product else node.inputs[0]
    constant = lowering.constant(other)
    if constant is None or lowering.shape(node.outputs[0]) != lowering.shape(product):
        return None
    return _bias_row(constant, outputs)


def _add_linear(lowering: Lowering, nodes: list[ir.Node], source: Operand, weight: Array, bias: Array) -> None:
    act, more = next_activation(lowering, nodes[-1].outputs[0], nodes[0])
    added, adding = following_sum(lowering, (nodes + more)[-1])
    nodes = nodes + more + adding
    step = linear_step(nodes[0], source, value_name(nodes[-1].outputs[0]), weight, bias, act)
    step.prepared = lowering.prepared
    if added is not None:
        step.sources, step.added = [source, added], True
    lowering.add(step, nodes, "a matrix product on the tensor engine")


def linear_step(
    node: ir.Node, source: Operand, output: str, weight: Array, bias: Array, act: str = "none"
) -> LinearStep:
    """The step that multiplies the rows of ``source`` by a constant weight."""
    if weight.shape[0] > MAX_FEATURES:
        raise Blocked(f"rows of {weight.shape[0]} features; the kernel holds {MAX_FEATURES}")
    return LinearStep(
        name=node_name(node),
        sources=[source],
        output=output,
        shape=(prod(source.shape[:-1]), weight.shape[1]),
        weight=weight,
        bias=bias,
        act=act,
    )

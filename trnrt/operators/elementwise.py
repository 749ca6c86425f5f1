"""Element-wise operators: each adds to a small program of the ``compute`` kernel, and neighbours become one program."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from trnrt.kernels import compute_tiles
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.planner.lowering import weights
from trnrt.planner.lowering.views import View
from trnrt.planner.lowering.walk import INTEGERS, Blocked, Lowering, attribute, lowers, node_name, value_name
from trnrt.planner.placing.placement import tile_shape
from trnrt.planner.plan import Array, Layout
from trnrt.planner.steps import WORKING_BYTES, Call, Operand, SourceName, Step, Tensors, WeightName

# Dimensions of the kernel's operands in HBM.
_GROUPS = 4


@dataclass(frozen=True)
class Register:
    """An operand of a program: source number ``index``, or the result of operation number ``index``."""

    index: int
    is_source: bool = False


# A register, or a number that every element is combined with.
Term = Register | float
Operation = tuple[str, tuple[Term, ...]]


@dataclass
class Program:
    """Operations on whole tensors in order; the last one's result is the program's. ``sources`` are computed tensors
    or constants, in the ONNX shape in which they broadcast."""

    sources: list[Operand | Array] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)

    def position(self, operand: Operand) -> int:
        """The number of a source that is a computed tensor."""
        return next(k for k, s in enumerate(self.sources) if isinstance(s, Operand) and s == operand)

    @property
    def operands(self) -> list[Operand]:
        """The sources that are computed tensors."""
        return [source for source in self.sources if isinstance(source, Operand)]

    def apply(self, name: str, *terms: Term) -> Register:
        """Append an operation."""
        self.operations.append((name, terms))
        return Register(len(self.operations) - 1)

    def source(self, source: Operand | Array) -> Register:
        """A tensor to compute with; the same computed tensor is brought in once."""
        if isinstance(source, Operand) and source in self.operands:
            return Register(self.position(source), True)
        self.sources.append(source)
        return Register(len(self.sources) - 1, True)

    def absorb(self, other: Program, value: str) -> Program:
        """The program with its source ``value`` computed by ``other`` in place."""
        merged = Program(list(other.sources), list(other.operations))
        result = Register(len(other.operations) - 1)
        terms: dict[Register, Register] = {}
        for k, source in enumerate(self.sources):
            mine = isinstance(source, Operand) and source.value == value
            terms[Register(k, True)] = result if mine else merged.source(source)
        for k, (name, operands) in enumerate(self.operations):
            terms[Register(k)] = merged.apply(name, *(terms[t] if isinstance(t, Register) else t for t in operands))
        return merged

    def rendered(self) -> tuple[Any, ...]:
        """The operations as the kernel takes them: operands are indices, sources first, or numbers."""
        count = len(self.sources)

        def term(operand: Term) -> int | float:
            if isinstance(operand, Register):
                return operand.index if operand.is_source else count + operand.index
            return float(operand)

        return tuple((name, *(term(t) for t in terms)) for name, terms in self.operations)


@dataclass(kw_only=True)
class ComputeStep(Step):
    """A program on the elements of tensors that broadcast to ``shape``."""

    program: Program

    def reads(self, position: int, shapes: Tensors) -> tuple[Layout, ...]:
        rank = {2: (Layout.FEATURES, Layout.ROWS), 4: (Layout.CHANNELS,)}.get(len(self.shape), ())
        stored = all(shapes.shape(s.value) == s.shape and s.shape in (self.shape, self._gate()) for s in self.sources)
        on_chip = [layout for layout in rank if stored and all(self._fits(c, layout) for c in self._constants())]
        return (*on_chip, Layout.HBM)

    def same_layout(self) -> bool:
        return True

    def _gate(self) -> tuple[int, ...]:
        """The shape of one number an image and channel, if the result is images."""
        return (*self.shape[:2], 1, 1) if len(self.shape) == 4 else self.shape

    def _constants(self) -> list[Array]:
        return [s for s in self.program.sources if not isinstance(s, Operand)]

    def _fits(self, constant: Array, layout: Layout) -> bool:
        """Whether a constant is one number a partition in a layout: one a channel, or one a feature."""
        shape = (1,) * (len(self.shape) - constant.ndim) + constant.shape
        return layout in (Layout.CHANNELS, Layout.FEATURES) and shape[1] == self.shape[1] == constant.size

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        views = self._views()
        if position is None:
            return views[-1]
        return views[self.program.position(self.sources[position])]

    def _views(self) -> tuple[tuple[int, ...], ...]:
        views = collapse_broadcast([s.shape for s in self.program.sources], self.shape)
        assert views is not None
        return views

    def call(self, tensors: Tensors) -> Call:
        on_chip = tensors.layout(self.output) is not Layout.HBM
        names: list[SourceName | WeightName] = []
        held: dict[str, Array] = {}
        for k, source in enumerate(self.program.sources):
            if isinstance(source, Operand):
                names.append(SourceName(self.sources.index(source)))
                continue
            key = f"c{len(held)}"
            names.append(WeightName(key))
            column = source.astype(np.float32)
            held[key] = weights.columns(column.reshape(-1)) if on_chip else column.reshape(self._views()[k])
        weights_held, biases = ({}, held) if on_chip else (held, {})
        args = (tuple(names), self.program.rendered())
        return Call("elementwise", "compute", args, weights=weights_held, biases=biases, held=tuple(biases))

    def working_bytes(self, tensors: Tensors, *, held: bool) -> int:
        """The tiles of a piece, and of the next one."""
        sources, operations = len(self.program.sources), self.program.rendered()
        tiles = compute_tiles.tiles_at_once(sources, operations)
        columns = compute_tiles.columns_of_a_piece(sources, operations)
        layout = tensors.layout(self.output)
        if layout is not Layout.HBM:
            columns = min(columns, prod(tile_shape(layout, self.shape)[1:]))
        return min(WORKING_BYTES, 2 * tiles * columns * 4)


def collapse_broadcast(shapes: list[tuple[int, ...]], result: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | None:
    """The operands' shapes and the result's as four dimensions, neighbours that broadcast alike merged.

    None where four are not enough.
    """
    rank = len(result)
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    groups: list[tuple[tuple[bool, ...], int]] = []
    for d in range(rank):
        if result[d] == 1:
            continue
        pattern = tuple(s[d] == 1 for s in padded)
        if groups and groups[-1][0] == pattern:
            groups[-1] = (pattern, groups[-1][1] * result[d])
        else:
            groups.append((pattern, result[d]))
    if len(groups) > _GROUPS:
        return None
    if len(groups) <= 1:
        # One dense run: give it as many partitions as divide it.
        pattern, size = groups[0] if groups else ((False,) * len(shapes), 1)
        rows = max(r for r in range(1, 129) if size % r == 0)
        groups = [(pattern, rows), (pattern, size // rows)]
    groups = [((False,) * len(shapes), 1)] * (_GROUPS - len(groups)) + groups
    operands = [tuple(1 if pattern[k] else size for pattern, size in groups) for k in range(len(shapes))]
    return (*operands, tuple(size for _, size in groups))


def add_compute(
    lowering: Lowering,
    node: ir.Node,
    program: Program,
    why: str = "element by element on the vector and scalar engines",
    *,
    name: str = "",
) -> None:
    """Append the step that makes ``node``'s first output by a program (called ``name`` if not after the node)."""
    made = node.outputs[0]
    add_program(lowering, node, program, value_name(made), lowering.shape(made), why, name=name or node_name(node))
    if made.dtype in INTEGERS:
        lowering.mark_whole_numbers(made)


def add_program(
    lowering: Lowering,
    node: ir.Node,
    program: Program,
    output: str,
    shape: tuple[int, ...],
    why: str = "element by element on the vector and scalar engines",
    *,
    name: str = "",
    dtype: str = "",
) -> Operand:
    """Append a step of ``node`` that makes the tensor ``output`` by a program; ``name`` is the step's, if given.

    ``dtype`` is the output's where it is not the session's.
    """
    _expand_sources(lowering, program, shape)
    step = ComputeStep(
        name=name or lowering.spare_name(f"{output}.step"),
        nodes=[node_name(node)],
        sources=program.operands,
        output=output,
        shape=shape,
        dtype=dtype,
        program=program,
    )
    if not step.sources:
        raise Blocked("all its inputs are constants, too large to be computed when the model is read")
    lowering.add(step, [node], why)
    return Operand(output, shape)


def _expand_sources(lowering: Lowering, program: Program, shape: tuple[int, ...]) -> None:
    """Write sources out in full, one after the other, until the rest broadcasts in as many groups as the kernel has."""
    for k, source in enumerate(program.sources):
        if collapse_broadcast([s.shape for s in program.sources], shape) is not None:
            return
        if isinstance(source, Operand):
            program.sources[k] = lowering.operand_of(View.whole(source.value, source.shape).broadcast(shape))
        else:
            program.sources[k] = np.broadcast_to(source, shape)


def term(lowering: Lowering, program: Program, value: ir.Value | None, *, integers: bool = False) -> Term:
    """An input of a node as an operand: a number where it is one that is constant, else a source."""
    constant = lowering.constant(value)
    if constant is not None and constant.dtype != object:
        numbers = _held(lowering, constant)
        # Infinity can't be written as a number in a kernel module.
        return (
            float(numbers.reshape(())) if numbers.size == 1 and np.isfinite(numbers).all() else program.source(numbers)
        )
    return program.source(lowering.operand(value, short_integers=integers))


def _held(lowering: Lowering, constant: Array) -> Array:
    """A constant as float32; blocks integers that the session's dtype would round."""
    numbers: Array = constant.astype(np.float32)
    if constant.dtype.kind not in "iu":
        return numbers
    dtype = "float32" if constant.size == 1 else lowering.dtype  # one number is written into the kernel as float32
    held = numbers.astype(as_dtype(dtype).numpy).astype(np.float64)
    if not (held == constant.astype(np.float64)).all() or (np.abs(held) > 2.0**53).any():
        wrong = int(constant.reshape(-1)[np.argmax((held != constant).reshape(-1))])
        raise Blocked(f"the integer {wrong} in a constant, which {dtype} does not hold", "use floats, or dtype float32")
    return numbers


# -- operators of one input ---------------------------------------------------------------------------

_UNARY = {
    "Relu": "relu",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Exp": "exp",
    "Log": "log",
    "Sqrt": "sqrt",
    "Reciprocal": "reciprocal",
    "Abs": "abs",
    "Neg": "neg",
    "Sign": "sign",
    "Floor": "floor",
    "Ceil": "ceil",
    "Round": "round",
    "Erf": "erf",
    "Softplus": "softplus",
    "Softsign": "softsign",
    "Mish": "mish",
    "HardSwish": "hard_swish",
    "Not": "not",
    "IsNaN": "is_nan",
    "Sin": "sin",
    "Cos": "cos",
}
# Operator -> operation and (attribute, ONNX's default) in the order of its parameters.
_PARAMETRIC: dict[str, tuple[str, tuple[tuple[str, float], ...]]] = {
    "LeakyRelu": ("leaky_relu", (("alpha", 0.01),)),
    "Elu": ("elu", (("alpha", 1.0),)),
    "Celu": ("celu", (("alpha", 1.0),)),
    "Selu": ("selu", (("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875))),
    "HardSigmoid": ("hard_sigmoid", (("alpha", 0.2), ("beta", 0.5))),
}


@lowers(*_UNARY, *_PARAMETRIC)
def lower_unary(lowering: Lowering, node: ir.Node) -> None:
    """A function of each element."""
    name, parameters = _PARAMETRIC.get(node.op_type) or (_UNARY[node.op_type], ())
    if node.op_type == "Celu" and attribute(node, "alpha", 1.0) == 0:
        raise Blocked("alpha=0, which Celu divides by")
    program = Program()
    source = program.source(lowering.operand(node.inputs[0]))
    program.apply(name, source, *(float(attribute(node, key, default)) for key, default in parameters))
    add_compute(lowering, node, program)


@lowers("Gelu")
def lower_gelu(lowering: Lowering, node: ir.Node) -> None:
    """Gelu, exact or approximated with tanh."""
    program = Program()
    source = program.source(lowering.operand(node.inputs[0]))
    program.apply("gelu_tanh" if attribute(node, "approximate", "none") == "tanh" else "gelu", source)
    add_compute(lowering, node, program)


@lowers("Swish")
def lower_swish(lowering: Lowering, node: ir.Node) -> None:
    """x * sigmoid(alpha * x)."""
    program = Program()
    source = program.source(lowering.operand(node.inputs[0]))
    alpha = float(attribute(node, "alpha", 1.0))
    if alpha == 1.0:
        program.apply("silu", source)
    else:
        program.apply("multiply", source, program.apply("sigmoid", program.apply("multiply", source, alpha)))
    add_compute(lowering, node, program)


@lowers("ThresholdedRelu")
def lower_thresholded_relu(lowering: Lowering, node: ir.Node) -> None:
    """x where it is greater than alpha, else 0."""
    program = Program()
    source = program.source(lowering.operand(node.inputs[0]))
    greater = program.apply("greater", source, float(attribute(node, "alpha", 1.0)))
    program.apply("where", greater, source, 0.0)
    add_compute(lowering, node, program)


@lowers("Clip")
def lower_clip(lowering: Lowering, node: ir.Node) -> None:
    """Limits from below and above, each of which may be left out; before opset 11 they are attributes."""
    program = Program()
    value: Term = program.source(lowering.operand(node.inputs[0], short_integers=True))
    if lowering.opset < 11:
        low, high = (float(attribute(node, key, default)) for key, default in (("min", -np.inf), ("max", np.inf)))
        limits: list[Term | None] = [low if np.isfinite(low) else None, high if np.isfinite(high) else None]
    else:
        limits = [
            term(lowering, program, node.inputs[k], integers=True)
            if k < len(node.inputs) and node.inputs[k] is not None
            else None
            for k in (1, 2)
        ]
    for name, limit in zip(("maximum", "minimum"), limits, strict=True):
        if limit is not None:
            value = program.apply(name, value, limit)
    if not program.operations:
        program.apply("copy", value)
    add_compute(lowering, node, program)


# -- operators of several inputs ----------------------------------------------------------------------

_BINARY = {
    "Add": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "Div": "divide",
    "Pow": "power",
    "PRelu": "prelu",
}
# These compare, choose and combine truth: exact for short integers, too.
_CHOOSING = {
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Equal": "equal",
    "And": "and",
    "Or": "or",
    "Xor": "xor",
}
_VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add", "Mean": "add"}


@lowers(*_BINARY, *_CHOOSING)
def lower_binary(lowering: Lowering, node: ir.Node) -> None:
    """An operation on two tensors, with ONNX's broadcasting."""
    integers = node.op_type in _CHOOSING
    program = Program()
    left, right = (term(lowering, program, _broadcastable(lowering, node, k), integers=integers) for k in (0, 1))
    if not isinstance(left, Register) and not isinstance(right, Register):
        raise Blocked("both sides are constants")
    name = (_BINARY | _CHOOSING)[node.op_type]
    program.apply(name, left, right)
    add_compute(lowering, node, program)


def _broadcastable(lowering: Lowering, node: ir.Node, position: int) -> ir.Value | None:
    """An input; blocks the broadcasting along ``axis`` that opset 6 had."""
    if lowering.opset < 7 and position == 1 and attribute(node, "broadcast", 0) and "axis" in node.attributes:
        raise Blocked("broadcast=1 with an axis, as before opset 7", "convert the model to opset 7 or later")
    return node.inputs[position]


@lowers(*_VARIADIC)
def lower_variadic(lowering: Lowering, node: ir.Node) -> None:
    """The sum, mean, largest or smallest of any number of tensors."""
    integers = node.op_type in ("Max", "Min")
    program = Program()
    terms = [term(lowering, program, value, integers=integers) for value in node.inputs]
    # A number on either side of an operation, but not on both: tensors come first.
    result, *others = sorted(terms, key=lambda each: not isinstance(each, Register))
    for other in others:
        result = program.apply(_VARIADIC[node.op_type], result, other)
    if node.op_type == "Mean":
        program.apply("multiply", result, 1.0 / len(terms))
    elif len(terms) == 1:
        program.apply("copy", result)
    add_compute(lowering, node, program)


@lowers("Where")
def lower_where(lowering: Lowering, node: ir.Node) -> None:
    """One tensor where a condition holds, another elsewhere."""
    program = Program()
    condition, x, y = (term(lowering, program, node.inputs[k], integers=True) for k in range(3))
    program.apply("where", condition, x, y)
    add_compute(lowering, node, program)


@lowers("Mod")
def lower_mod(lowering: Lowering, node: ir.Node) -> None:
    """The rest of a division of floats, with the sign of the dividend."""
    if not attribute(node, "fmod", 0):
        raise Blocked("fmod=0, which is for integers", "the NeuronCore computes in floats")
    program = Program()
    left, right = (term(lowering, program, node.inputs[k]) for k in (0, 1))
    program.apply("fmod", left, right)
    add_compute(lowering, node, program)


def add_cast(lowering: Lowering, node: ir.Node, target: ir.DataType) -> None:
    """A cast of a computed float: to a whole number, towards zero, or to truth."""
    program = Program()
    source = program.source(lowering.operand(node.inputs[0], short_integers=True))
    if target is ir.DataType.BOOL:
        program.apply("not_equal", source, 0.0)
    else:
        below = program.apply("ceil", source)
        program.apply("where", program.apply("less", source, 0.0), below, program.apply("floor", source))
    add_compute(lowering, node, program)

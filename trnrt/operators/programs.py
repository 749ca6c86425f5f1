"""Small programs of the ``compute`` kernel: operations on whole tensors, element by element. The planner merges
neighbouring ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from trnrt.kernels import compute_ops, compute_tiles
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.planner.lowering import weights
from trnrt.planner.lowering.blocked import use_float32
from trnrt.planner.lowering.views import View
from trnrt.planner.lowering.walk import Blocked, Lowering, node_name, value_name
from trnrt.planner.lowering.weights import PARTITIONS
from trnrt.planner.placing.placement import tile_shape
from trnrt.planner.plan import Array, Layout
from trnrt.planner.steps import WORKING_BYTES, Call, Operand, SourceName, Step, Tensors, WeightName


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
        """The index of a computed tensor among the sources."""
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
        """Add a source, unless it is a computed tensor that is one already."""
        if isinstance(source, Operand) and source in self.operands:
            return Register(self.position(source), True)
        self.sources.append(source)
        return Register(len(self.sources) - 1, True)

    def absorb(self, other: Program, value: str) -> Program:
        """The program with ``other``, which computes its source ``value``, in place of that source."""
        merged = Program(list(other.sources), list(other.operations))
        result = Register(len(other.operations) - 1)
        terms: dict[Register, Register] = {}
        for k, source in enumerate(self.sources):
            mine = isinstance(source, Operand) and source.value == value
            terms[Register(k, True)] = result if mine else merged.source(source)
        for k, (name, operands) in enumerate(self.operations):
            terms[Register(k)] = merged.apply(name, *(terms[t] if isinstance(t, Register) else t for t in operands))
        return merged

    def kernel_operations(self) -> tuple[Any, ...]:
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

    def fills_window(self, first: int) -> bool:
        # Of several instructions the result may be an operand, whose partitions must be those of the others.
        if len(self.shape) == 4 and self._needs_no_tiles():
            return True
        # All partitions of all blocks are written.
        return first % PARTITIONS == 0 and (self.shape[1] < PARTITIONS or self.shape[1] % PARTITIONS == 0)

    def _gate(self) -> tuple[int, ...]:
        """The shape with one number for each image and channel, if the result is images."""
        return (*self.shape[:2], 1, 1) if len(self.shape) == 4 else self.shape

    def _constants(self) -> list[Array]:
        return [s for s in self.program.sources if not isinstance(s, Operand)]

    def _fits(self, constant: Array, layout: Layout) -> bool:
        """True if a constant has one number per partition in a layout: one per channel, or one a feature."""
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
        constants: dict[str, Array] = {}
        for k, source in enumerate(self.program.sources):
            if isinstance(source, Operand):
                names.append(SourceName(self.sources.index(source)))
                continue
            key = f"c{len(constants)}"
            names.append(WeightName(key))
            column = source.astype(np.float32)
            constants[key] = weights.columns(column.reshape(-1)) if on_chip else column.reshape(self._views()[k])
        from_hbm, biases = ({}, constants) if on_chip else (constants, {})
        args = (tuple(names), self.program.kernel_operations())
        return Call("elementwise", "compute", args, weights=from_hbm, biases=biases, held=tuple(biases))

    def _needs_no_tiles(self) -> bool:
        """True if one instruction of the vector engine reads all sources in SBUF and writes the result: images of one
        block of channels."""
        operators = self.program.kernel_operations()
        whole = all(isinstance(s, Operand) and s.shape == self.shape for s in self.program.sources)
        return whole and self.shape[1] <= PARTITIONS and len(operators) == 1 and operators[0][0] in compute_ops.VECTOR

    def working_bytes(self, tensors: Tensors, *, held: bool) -> int:
        layout = tensors.layout(self.output)
        if layout is Layout.CHANNELS and self._needs_no_tiles():
            return 0
        elements = compute_tiles.COLUMNS if layout is Layout.HBM else prod(tile_shape(layout, self.shape)[1:])
        taken = compute_tiles.compute_tile_bytes(len(self.program.sources), self.program.kernel_operations(), elements)
        return min(WORKING_BYTES, taken)


def collapse_broadcast(shapes: list[tuple[int, ...]], result: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | None:
    """The operands' shapes and the result's as four dimensions: neighbours that broadcast alike are merged.

    None if four are not enough.
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
    if len(groups) > compute_tiles.DIMENSIONS:
        return None
    if len(groups) <= 1:
        # One dense run: give it as many partitions as divide it.
        pattern, size = groups[0] if groups else ((False,) * len(shapes), 1)
        rows = max(r for r in range(1, PARTITIONS + 1) if size % r == 0)
        groups = [(pattern, rows), (pattern, size // rows)]
    groups = [((False,) * len(shapes), 1)] * (compute_tiles.DIMENSIONS - len(groups)) + groups
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
    """Append the step, called ``name`` if not like the node, that makes the node's first output by a program."""
    made = node.outputs[0]
    add_program(lowering, node, program, value_name(made), lowering.shape(made), why, name=name or node_name(node))
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
    """Append a step that makes the tensor ``output`` by a program; ``dtype`` is the output's, if not the session's."""
    _expand_sources(lowering, program, shape)
    step = ComputeStep(
        name=name or lowering.spare_name(f"{output}.step"),
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
    """Broadcast sources to ``shape``, one after the other, until the kernel's dimensions are enough for the rest."""
    for k, source in enumerate(program.sources):
        if collapse_broadcast([s.shape for s in program.sources], shape) is not None:
            return
        if isinstance(source, Operand):
            program.sources[k] = lowering.operand_of(View.whole(source.value, source.shape).broadcast(shape))
        else:
            program.sources[k] = np.broadcast_to(source, shape)


def term(lowering: Lowering, program: Program, value: ir.Value | None, *, integers: bool = False) -> Term:
    """A node's input as an operand: a number if it is a constant with one finite element, else a source."""
    constant = lowering.constant(value)
    if constant is not None and constant.dtype != object:
        numbers = _exact_constant(lowering, constant)
        # Infinity can't be written as a number in a kernel module.
        return (
            float(numbers.reshape(())) if numbers.size == 1 and np.isfinite(numbers).all() else program.source(numbers)
        )
    return program.source(lowering.operand(value, short_integers=integers))


def _exact_constant(lowering: Lowering, constant: Array) -> Array:
    """A constant as float32; blocks integers that the session's dtype would round."""
    numbers: Array = constant.astype(np.float32)
    if constant.dtype.kind not in "iu":
        return numbers
    dtype = "float32" if constant.size == 1 else lowering.dtype  # one number is written into the kernel as float32
    stored = numbers.astype(as_dtype(dtype).numpy).astype(np.float64)
    if not (stored == constant.astype(np.float64)).all() or (np.abs(stored) > 2.0**53).any():
        wrong = int(constant.reshape(-1)[np.argmax((stored != constant).reshape(-1))])
        raise Blocked(f"the integer {wrong} in a constant, which {dtype} does not hold", use_float32(dtype))
    return numbers

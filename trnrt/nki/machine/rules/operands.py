"""The operands of vector, scalar and gpsimd instructions: sizes, dtypes, operators."""

from __future__ import annotations

from trnrt.nki.machine.operators import Operator
from trnrt.nki.machine.program import Instruction, MemoryRegion, View
from trnrt.nki.machine.rules.access import ENGINE_ACCESS
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target

# Pairs of inputs of an instruction; PSUM can deliver only one of them.
_PSUM_PAIRS = (
    ("data1", "data2"),
    ("data", "operand1"),
    ("src", "predicate"),
    ("data0", "data1"),
    ("on_true", "predicate"),
)


@rule("same-partitions", "operands span as many partitions as the destination", "nki.isa, Tile size and Layout")
def same_partitions(instruction: Instruction, target: Target) -> str | None:
    dst: View = instruction[instruction.operation.writes[0]]
    for arg, view in instruction.operands:
        if view.shape[0] != dst.shape[0]:
            return f"{arg} spans {view.partitions} partitions, dst {dst.partitions}; they must be equal"
    return None


@rule("same-free-size", "operands hold as many elements a partition as the destination", "nki.isa, Tile size")
def same_free_size(instruction: Instruction, target: Target) -> str | None:
    size = instruction[instruction.operation.writes[0]].free_size
    columns = instruction.operation.columns
    for arg, view in instruction.operands:
        if arg not in columns and view.free_size != size:
            return f"{arg} holds {view.free_size} elements a partition, dst {size}; they must be equal"
    return None


ELEMENTWISE = (*ENGINE_ACCESS, same_partitions, same_free_size)


@rule("column-operands", "broadcast operands hold one element a partition", "nki.isa tensor_scalar, activation: [P, 1]")
def column_operands(instruction: Instruction, target: Target) -> str | None:
    columns = instruction.operation.columns
    for arg, view in instruction.operands:
        if arg in columns and view.free_size != 1:
            return f"{arg} holds {view.free_size} elements a partition; it must hold 1"
    return None


@rule(
    "float32-operands",
    "scalar operand tiles and an activation's scale are float32",
    "nki.isa tensor_scalar, activation",
)
def float32_operands(instruction: Instruction, target: Target) -> str | None:
    op0 = instruction.args.get("op0")
    if isinstance(op0, Operator) and op0.bitvec:
        return None
    for arg, view in instruction.operands:
        if arg in ("operand0", "operand1", "scale") and view.dtype.name != "float32":
            return f"{arg} is {view.dtype}; it must be float32"
    return None


@rule(
    "one-psum-input",
    "at most one of an instruction's two inputs is in PSUM",
    "nki.isa tensor_tensor, scalar_tensor_tensor, tensor_copy_predicated, tensor_tensor_scan, select_reduce",
)
def one_psum_input(instruction: Instruction, target: Target) -> str | None:
    in_psum = {arg for arg, view in instruction.operands if view.buffer is MemoryRegion.psum}
    for one, other in _PSUM_PAIRS:
        if one in in_psum and other in in_psum:
            return f"{one} and {other} are both in psum; copy one to sbuf first"
    return None


@rule(
    "same-start-partition",
    "two inputs in SBUF start at the same partition",
    "AWS's compiler, error NCC_IBIR297 (aws-neuron-sdk, issue 1362); nki-library, core/embeddings/rope.py",
)
def same_start_partition(instruction: Instruction, target: Target) -> str | None:
    starts = unequal_starts(instruction)
    return None if starts is None else f"{starts}; they must be equal: copy one of them first (nisa.tensor_copy)"


@rule(
    "other-start-partition",
    "two inputs in SBUF start at the same partition, in instructions that no document lists",
    "AWS's compiler, error NCC_IBIR297 (aws-neuron-sdk, issue 1362): for specific instructions",
    refuses=False,
)
def other_start_partition(instruction: Instruction, target: Target) -> str | None:
    starts = unequal_starts(instruction)
    if starts is None:
        return None
    return f"{starts}; AWS's own kernels copy one first, and no document says that this instruction needs none"


def unequal_starts(instruction: Instruction) -> str | None:
    """Two inputs in SBUF that start at different partitions, as text; None if all are equal."""
    operation = instruction.operation
    first: tuple[str, int] | None = None
    for arg, view in instruction.operands:
        if arg in operation.writes or view.storage.buffer is not MemoryRegion.sbuf:
            continue
        start = view.first_partition
        if first is None:
            first = arg, start
        elif start != first[1]:
            return f"{first[0]} starts at partition {first[1]}, {arg} at {start}, both in SBUF"
    return None


@rule("vector-operator", "vector instructions take operators of the ALU", "API reference, Supported Math Operators")
def vector_operator(instruction: Instruction, target: Target) -> str | None:
    for arg in ("op", "op0", "op1"):
        op = instruction.args.get(arg)
        if op is not None and not (isinstance(op, Operator) and (op.binary or op.unary)):
            return f"{arg}={op!r} is not an operator of the vector engine"
    return None


@rule(
    "operand-given",
    "a binary operator has an operand; for a unary one it is None or 0, for a missing one None",
    "nki.isa tensor_scalar, operand0 and op1",
)
def operand_given(instruction: Instruction, target: Target) -> str | None:
    for arg, op_arg in (("operand0", "op0"), ("operand1", "op1")):
        operand, op = instruction.args.get(arg), instruction.args.get(op_arg)
        if op is None and operand is not None:
            return f"{arg} is {operand!s} but {op_arg} is None; both are given or both are None"
        if op is None or (isinstance(op, Operator) and not op.binary):
            if operand is not None and (isinstance(operand, View) or operand != 0):
                return f"{arg} is {operand!s}; it must be None or 0, because {op_arg}={op!r} takes no operand"
        elif operand is None:
            return f"{arg} is None; {op_arg}={op!r} needs one"
    return None


@rule(
    "kept-dtype",
    "an instruction that moves data keeps its dtype",
    "nki.isa nc_transpose, tensor_copy_predicated, dropout",
)
def kept_dtype(instruction: Instruction, target: Target) -> str | None:
    dst = instruction["dst"]
    for arg in ("src", "src_buffer", "data"):
        moved = instruction.args.get(arg)
        if isinstance(moved, View) and moved.dtype != dst.dtype:
            return f"{arg} is {moved.dtype}, dst {dst.dtype}; they must be equal"
    return None

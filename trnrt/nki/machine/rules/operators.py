"""The operators of an instruction, and their requirements on its tiles: bitvec operators need integers."""

from __future__ import annotations

from trnrt.nki.machine.operators import Operator
from trnrt.nki.machine.program import Instruction, View
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target

_ARGUMENTS = ("op", "op0", "op1")
_NARROW_SIGNED = ("int8", "int16")
_LEAST_PATTERN, _GREATEST_PATTERN = -(1 << 31), (1 << 32) - 1


def is_bitvec(op: object) -> bool:
    return isinstance(op, Operator) and op.bitvec


def operators_of(instruction: Instruction) -> list[tuple[str, object]]:
    """The operators of an instruction, by argument."""
    return [(arg, instruction.args[arg]) for arg in _ARGUMENTS if arg in instruction.args]


@rule(
    "arithmetic-operator",
    "instructions that compute only in float32 take no bitvec operators",
    "nki.isa scalar_tensor_tensor, tensor_scalar_reduce, tensor_scalar_cumulative",
)
def arithmetic_operator(instruction: Instruction, target: Target) -> str | None:
    for arg, op in operators_of(instruction):
        if is_bitvec(op):
            return f"{arg}={op!r} is a bitvec operator; it must be an arithmetic one"
    return None


@rule(
    "operator-generation",
    "the vector engine has abs_max, abs_min, square and relu from NeuronCore-v4 on",
    "release notes, NKI 0.4.0; API reference, nki.language.abs_max",
)
def operator_generation(instruction: Instruction, target: Target) -> str | None:
    for arg, op in operators_of(instruction):
        if isinstance(op, Operator) and op.since > target.generation:
            return f"{arg}={op!r}; the vector engine of {target.name} lacks it: it needs a NeuronCore-v{op.since}"
    return None


@rule("bitvec-dtypes", "bitvec operators take and give integers", "API reference, Supported Math Operators")
def bitvec_dtypes(instruction: Instruction, target: Target) -> str | None:
    bitvec = next((op for _, op in operators_of(instruction) if is_bitvec(op)), None)
    if bitvec is None:
        return None
    for arg, view in instruction.operands:
        if view.dtype.is_float:
            return f"{arg} is {view.dtype}; {bitvec!r} works on bit patterns: it must be an integer dtype"
    for arg in instruction.operation.numbers:
        value = instruction[arg]
        if value is None or isinstance(value, View):
            continue
        if not float(value).is_integer() or not _LEAST_PATTERN <= int(value) <= _GREATEST_PATTERN:
            return f"{arg} is {value!s}; {bitvec!r} works on bit patterns: it must be an integer of 32 bits"
    return None


@rule(
    "bitvec-sign",
    "bitvec operators do not widen signed integers",
    "API reference, Supported Math Operators: no casting",
)
def bitvec_sign(instruction: Instruction, target: Target) -> str | None:
    if not any(is_bitvec(op) for _, op in operators_of(instruction)):
        return None
    written = instruction.operation.writes
    width = max(view.dtype.itemsize for _, view in instruction.operands)
    for arg, view in instruction.operands:
        if arg not in written and view.dtype.name in _NARROW_SIGNED and view.dtype.itemsize < width:
            return f"{arg} is {view.dtype}, another operand has {8 * width} bits; its sign would have to be extended"
    return None


BITVEC = (bitvec_dtypes, bitvec_sign)

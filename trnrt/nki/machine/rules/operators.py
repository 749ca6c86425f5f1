"""Which operators an instruction takes, and what they ask of its tiles: bitvec operators want integers."""

from __future__ import annotations

from trnrt.nki.machine.operators import OPERATORS, Operator
from trnrt.nki.machine.program import Engine, Instruction, View
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target

_ARGUMENTS = ("op", "op0", "op1")
_NARROW_SIGNED = ("int8", "int16")
_V2 = 2
_LEAST_PATTERN, _GREATEST_PATTERN = -(1 << 31), (1 << 32) - 1


def is_bitvec(op: object) -> bool:
    return isinstance(op, Operator) and op.bitvec


def _operators(instruction: Instruction) -> list[tuple[str, object]]:
    return [(arg, instruction.args[arg]) for arg in _ARGUMENTS if arg in instruction.args]


@rule(
    "arithmetic-operator",
    "instructions that compute in float32 only take no bitvec operators",
    "nki.isa scalar_tensor_tensor, tensor_scalar_reduce, tensor_scalar_cumulative",
)
def arithmetic_operator(instruction: Instruction, target: Target) -> str | None:
    for arg, op in _operators(instruction):
        if is_bitvec(op):
            return f"{arg}={op!r} is a bitvec operator; it must be an arithmetic one"
    return None


@rule(
    "operator-generation",
    "the vector engine has abs_max, abs_min, square and relu from NeuronCore-v4 on",
    "release notes, NKI 0.4.0; API reference, nki.language.abs_max",
)
def operator_generation(instruction: Instruction, target: Target) -> str | None:
    for arg, op in _operators(instruction):
        if isinstance(op, Operator) and op.since > target.generation:
            return f"{arg}={op!r}; the vector engine of {target.name} has it not: it takes a NeuronCore-v{op.since}"
    return None


@rule("bitvec-dtypes", "bitvec operators take and give integers", "API reference, Supported Math Operators")
def bitvec_dtypes(instruction: Instruction, target: Target) -> str | None:
    bitvec = next((op for _, op in _operators(instruction) if is_bitvec(op)), None)
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
    if not any(is_bitvec(op) for _, op in _operators(instruction)):
        return None
    written = instruction.operation.writes
    width = max(view.dtype.itemsize for _, view in instruction.operands)
    for arg, view in instruction.operands:
        if arg not in written and view.dtype.name in _NARROW_SIGNED and view.dtype.itemsize < width:
            return f"{arg} is {view.dtype}, another operand has {8 * width} bits; its sign would have to be extended"
    return None


BITVEC = (bitvec_dtypes, bitvec_sign)


@rule(
    "one-kind-of-operator",
    "op0 and op1 are both bitvec operators or both arithmetic ones",
    "nki.isa tensor_scalar",
)
def one_kind_of_operator(instruction: Instruction, target: Target) -> str | None:
    op0, op1 = instruction["op0"], instruction["op1"]
    if op1 is None or is_bitvec(op0) == is_bitvec(op1):
        return None
    return f"op0={op0!r}, op1={op1!r}; one of them is a bitvec operator and one an arithmetic one"


@rule("bitvec-engine", "tensor_scalar runs bitvec operators on the vector engine", "nki.isa tensor_scalar")
def bitvec_engine(instruction: Instruction, target: Target) -> str | None:
    if instruction.engine is Engine.vector or not is_bitvec(instruction["op0"]):
        return None
    return f"engine={instruction.engine!r} with op0={instruction['op0']!r}; it must be vector"


@rule("bitvec-negate", "only arithmetic reductions can be negated", "nki.isa tensor_reduce, negate")
def bitvec_negate(instruction: Instruction, target: Target) -> str | None:
    if instruction["negate"] and is_bitvec(instruction["op"]):
        return f"negate=True with op={instruction['op']!r}; a bitvec operator's result can't be negated"
    return None


@rule("power-engine", "tensor_tensor raises to powers on the GpSimd engine", "nki.isa tensor_tensor, op")
def power_engine(instruction: Instruction, target: Target) -> str | None:
    if instruction["op"] is OPERATORS["power"] and instruction.engine is not Engine.gpsimd:
        return f"engine={instruction.engine!r} with op=nl.power; it must be gpsimd"
    return None


@rule(
    "scan-operators",
    "a scan's operators are arithmetic ones of two inputs",
    "nki.isa tensor_tensor_scan, op0 and op1",
)
def scan_operators(instruction: Instruction, target: Target) -> str | None:
    for arg, op in _operators(instruction):
        if not (isinstance(op, Operator) and op.binary and not op.bitvec):
            return f"{arg}={op!r} is not an arithmetic operator of two inputs"
    return None


@rule(
    "reciprocal-bias",
    "on trn1 an activation with nl.reciprocal has no bias",
    "API reference, NKI Engine Selection: NeuronCore-v2",
)
def reciprocal_bias(instruction: Instruction, target: Target) -> str | None:
    if target.generation > _V2 or instruction["op"] is not OPERATORS["reciprocal"] or instruction["bias"] is None:
        return None
    return f"bias is {instruction['bias']!s} with op=nl.reciprocal; on {target.name} it must be None"

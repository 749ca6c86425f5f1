"""Rules of the instructions that reduce into their engine's accumulator registers, and of scans."""

from __future__ import annotations

from trnrt.nki.machine.modes import reduce_cmd
from trnrt.nki.machine.operators import OPERATORS, Operator
from trnrt.nki.machine.program import Instruction, View
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target

_FROM_V3, _FROM_V4 = 3, 4

# What each accumulating instruction takes as reduce_cmd and as the operator that reduces.
_COMMANDS = {
    "tensor_scalar_reduce": (reduce_cmd.reset_reduce, reduce_cmd.reduce, reduce_cmd.load_reduce),
    "tensor_scalar_cumulative": (reduce_cmd.reset_reduce, reduce_cmd.reduce, reduce_cmd.load_reduce),
    "exponential": (reduce_cmd.idle, reduce_cmd.reset_reduce, reduce_cmd.reduce, reduce_cmd.load_reduce),
    "range_select": (reduce_cmd.idle, reduce_cmd.reset, reduce_cmd.reset_reduce, reduce_cmd.reduce),
    "select_reduce": (reduce_cmd.idle, reduce_cmd.reset_reduce, reduce_cmd.reduce),
    "activate2": (reduce_cmd.idle, reduce_cmd.reset, reduce_cmd.reset_reduce, reduce_cmd.reduce),
}
_REDUCTIONS = {
    "tensor_scalar_reduce": ("reduce_op", ("add", "multiply", "maximum", "minimum")),
    "tensor_scalar_cumulative": ("op1", ("add", "subtract", "multiply", "maximum", "minimum")),
    "range_select": ("reduce_op", ("maximum",)),
    "select_reduce": ("reduce_op", ("maximum",)),
    "activate2": ("reduce_op", ("add", "maximum", "minimum", "abs_max", "abs_min")),
}
# What an instruction loads its registers from, and whether it must be left out where it loads nothing.
_LOADED = {
    "tensor_scalar_reduce": ("reduce_init", (None,)),
    "exponential": ("reduce_init", (None, 0.0)),
    "tensor_scalar_cumulative": ("imm1", ()),
}
_FLOAT32_COLUMNS = ("operand0", "imm0", "imm1", "max_value", "reduce_init", "bound0", "bound1")
_NOT_CUMULATIVE = frozenset({"int32", "uint32", "tfloat32"})
_EXPONENTIAL_RESULTS = frozenset(["float8_e4m3", "float8_e5m2", "float16", "bfloat16", "float32", "tfloat32"])
_EXPONENTIAL_DTYPES = {
    "dst": _EXPONENTIAL_RESULTS | frozenset(["int8", "int16", "int32", "uint8", "uint16"]),
    "src": (_EXPONENTIAL_RESULTS - {"tfloat32"}) | frozenset(["int8", "int16", "int32", "uint8", "uint16", "uint32"]),
    "reduce_res": _EXPONENTIAL_RESULTS,
}
_EXPONENTIAL_DIMENSIONS = 4
_PIPELINES = (
    ("multiply", "add"),
    ("multiply", "subtract"),
    ("multiply", "bypass"),
    ("add", "bypass"),
    ("subtract", "bypass"),
    ("bypass", "bypass"),
)


@rule("from-v3", "range_select exists from NeuronCore-v3 on", "nki.isa range_select")
def from_v3(instruction: Instruction, target: Target) -> str | None:
    if target.generation >= _FROM_V3:
        return None
    return f"{target.name} has a NeuronCore-v{target.generation}; it must be v{_FROM_V3} or newer"


@rule("from-v4", "exponential and activate2 exist from NeuronCore-v4 on", "nki.isa exponential, activate2")
def from_v4(instruction: Instruction, target: Target) -> str | None:
    if target.generation >= _FROM_V4:
        return None
    return f"{target.name} has a NeuronCore-v{target.generation}; it must be v{_FROM_V4} or newer"


@rule(
    "reduce-command",
    "an accumulating instruction does with its registers what it can do",
    "nki.isa tensor_scalar_reduce, tensor_scalar_cumulative, exponential, range_select, select_reduce, activate2",
)
def reduce_command(instruction: Instruction, target: Target) -> str | None:
    legal = _COMMANDS[instruction.operation.name]
    command = instruction["reduce_cmd"]
    if command in legal:
        return None
    return f"reduce_cmd={command!r}; it must be {' or '.join(c.name for c in legal)}"


@rule(
    "accumulated-operator",
    "an accumulating instruction reduces with the operators that it can reduce with",
    "nki.isa tensor_scalar_reduce, tensor_scalar_cumulative, range_select, select_reduce, activate2",
)
def accumulated_operator(instruction: Instruction, target: Target) -> str | None:
    arg, legal = _REDUCTIONS[instruction.operation.name]
    op = instruction[arg]
    if op is None and instruction["reduce_cmd"] is reduce_cmd.idle:
        return None
    if isinstance(op, Operator) and op.name in legal:
        return None
    return f"{arg}={op!r}; it must be {' or '.join(f'nl.{name}' for name in legal)}"


@rule(
    "loaded-value",
    "load_reduce has the value that it loads, other commands have none",
    "nki.isa tensor_scalar_reduce and exponential, reduce_init; tensor_scalar_cumulative, imm1",
)
def loaded_value(instruction: Instruction, target: Target) -> str | None:
    arg, left_out = _LOADED[instruction.operation.name]
    value, command = instruction[arg], instruction["reduce_cmd"]
    if command is reduce_cmd.load_reduce:
        return f"{arg} is None; reduce_cmd={command!r} needs it" if value is None else None
    if not left_out or (not isinstance(value, View) and value in left_out):
        return None
    return f"{arg} is {value!s} with reduce_cmd={command!r}; only {reduce_cmd.load_reduce!r} takes it"


@rule(
    "float32-columns",
    "tiles that broadcast to an accumulating instruction are float32",
    "nki.isa tensor_scalar_reduce, tensor_scalar_cumulative, exponential, range_select",
)
def float32_columns(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.operands:
        if arg in _FLOAT32_COLUMNS and view.dtype.name != "float32":
            return f"{arg} is {view.dtype}; it must be float32"
    return None


@rule("reduce-reverse", "tensor_scalar_reduce can't reverse its operands yet", "nki.isa tensor_scalar_reduce, reverse0")
def reduce_reverse(instruction: Instruction, target: Target) -> str | None:
    return f"reverse0={instruction['reverse0']!r}; it must be False" if instruction["reverse0"] else None


@rule(
    "cumulative-dtypes",
    "tensor_scalar_cumulative takes floats and integers of up to 16 bits",
    "nki.isa tensor_scalar_cumulative, Operation constraints",
)
def cumulative_dtypes(instruction: Instruction, target: Target) -> str | None:
    for arg in ("dst", "src"):
        dtype = instruction[arg].dtype
        if dtype.name in _NOT_CUMULATIVE:
            return f"{arg} is {dtype}; it must be float32, bfloat16, float16, float8 or an integer of 8 or 16 bits"
    return None


@rule("exponential-dtypes", "exponential's tiles have dtypes that it supports", "nki.isa exponential, Supported dtypes")
def exponential_dtypes(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.operands:
        legal = _EXPONENTIAL_DTYPES.get(arg)
        if legal is not None and view.dtype.name not in legal:
            return f"{arg} is {view.dtype}; it must be one of {', '.join(sorted(legal))}"
    return None


@rule("exponential-dimensions", "exponential's tiles have at most 4 dimensions", "nki.isa exponential, Constraints")
def exponential_dimensions(instruction: Instruction, target: Target) -> str | None:
    for arg in ("dst", "src"):
        if instruction[arg].ndim > _EXPONENTIAL_DIMENSIONS:
            return f"{arg} has {instruction[arg].ndim} dimensions; the limit is {_EXPONENTIAL_DIMENSIONS}"
    return None


@rule("activate2-operators", "activate2 has six pairs of op0 and op1", "nki.isa activate2")
def activate2_operators(instruction: Instruction, target: Target) -> str | None:
    op0, op1 = instruction["op0"], instruction["op1"]
    pair = tuple(op.name if isinstance(op, Operator) else None for op in (op0, op1))
    if pair in _PIPELINES:
        return None
    legal = ", ".join(f"({first}, {second})" for first, second in _PIPELINES)
    return f"op0={op0!r}, op1={op1!r}; it must be one of {legal}"


@rule("activate2-function", "activate2's op is a function of the scalar engine", "nki.isa activate2, op")
def activate2_function(instruction: Instruction, target: Target) -> str | None:
    op = instruction["op"]
    if isinstance(op, Operator) and (op.activation or op.parametric):
        return None
    return f"op={op!r} is not an activation function of the scalar engine"


@rule("activate2-reverse", "activate2 reverses the operands of an operation that it has", "nki.isa activate2")
def activate2_reverse(instruction: Instruction, target: Target) -> str | None:
    for reverse, arg in (("reverse0", "op0"), ("reverse1", "op1")):
        if instruction[reverse] and instruction[arg] is OPERATORS["bypass"]:
            return f"{reverse}=True; {arg} is nl.bypass, there is nothing to reverse"
    return None


@rule("activate2-immediates", "activate2's immediates have one dtype if both are tiles", "nki.isa activate2")
def activate2_immediates(instruction: Instruction, target: Target) -> str | None:
    imm0, imm1 = instruction["imm0"], instruction["imm1"]
    if isinstance(imm0, View) and isinstance(imm1, View) and imm0.dtype != imm1.dtype:
        return f"imm0 is {imm0.dtype}, imm1 {imm1.dtype}; they must be equal"
    return None

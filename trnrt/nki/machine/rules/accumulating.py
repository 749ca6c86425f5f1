"""Rules of the instructions that reduce into their engine's accumulator registers, as their `Reduction` says."""

from __future__ import annotations

from trnrt.nki.machine.modes import reduce_cmd
from trnrt.nki.machine.operators import Operator
from trnrt.nki.machine.program import Instruction, Reduction, View
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target


def _reduction(instruction: Instruction) -> Reduction:
    reduces = instruction.operation.reduces
    assert reduces is not None
    return reduces


@rule(
    "reduce-command",
    "an accumulating instruction takes only its own reduce commands",
    "nki.isa tensor_scalar_reduce, tensor_scalar_cumulative, exponential, range_select, select_reduce, activate2",
)
def reduce_command(instruction: Instruction, target: Target) -> str | None:
    legal, command = _reduction(instruction).commands, instruction["reduce_cmd"]
    if command in legal:
        return None
    return f"reduce_cmd={command!r}; it must be {' or '.join(c.name for c in legal)}"


@rule(
    "accumulated-operator",
    "an accumulating instruction takes only its own reduction operators",
    "nki.isa tensor_scalar_reduce, tensor_scalar_cumulative, range_select, select_reduce, activate2",
)
def accumulated_operator(instruction: Instruction, target: Target) -> str | None:
    reduces = _reduction(instruction)
    arg, legal = reduces.operator, reduces.operators
    if not arg:
        return None
    op = instruction[arg]
    if op is None and instruction["reduce_cmd"] is reduce_cmd.idle:
        return None
    if isinstance(op, Operator) and op.name in legal:
        return None
    return f"{arg}={op!r}; it must be {' or '.join(f'nl.{name}' for name in legal)}"


@rule(
    "loaded-value",
    "load_reduce needs a value to load; other commands take none",
    "nki.isa tensor_scalar_reduce and exponential, reduce_init; tensor_scalar_cumulative, imm1",
)
def loaded_value(instruction: Instruction, target: Target) -> str | None:
    reduces = _reduction(instruction)
    arg, unused = reduces.loads, reduces.unused
    if not arg:
        return None
    value, command = instruction[arg], instruction["reduce_cmd"]
    if command is reduce_cmd.load_reduce:
        return f"{arg} is None; reduce_cmd={command!r} needs it" if value is None else None
    if not unused or (not isinstance(value, View) and value in unused):
        return None
    return f"{arg} is {value!s} with reduce_cmd={command!r}; only {reduce_cmd.load_reduce!r} takes it"


@rule(
    "float32-columns",
    "broadcast tiles of an accumulating instruction are float32",
    "nki.isa tensor_scalar_reduce, tensor_scalar_cumulative, exponential, range_select",
)
def float32_columns(instruction: Instruction, target: Target) -> str | None:
    operation = instruction.operation
    for arg, view in instruction.operands:
        if arg in operation.columns and arg not in operation.writes and view.dtype.name != "float32":
            return f"{arg} is {view.dtype}; it must be float32"
    return None


REDUCTION = (reduce_command, accumulated_operator, loaded_value)

"""Common checks of many rules: dtypes, generations, memories, elements per partition of an operand."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from trnrt.nki.machine.dtypes import DTYPES
from trnrt.nki.machine.program import Instruction, MemoryRegion, Rule, View
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target

FLOATS = tuple(dtype.name for dtype in DTYPES.values() if dtype.is_float)
NOT_32_BIT_INTEGERS = tuple(name for name in DTYPES if name not in ("int32", "uint32", "tfloat32"))


def dtype_rule(name: str, says: str, source: str, **legal: Collection[str]) -> Rule:
    """A rule that each argument in ``legal`` has one of its dtypes, if it is a tensor."""

    def check(instruction: Instruction, target: Target) -> str | None:
        for arg, names in legal.items():
            view = instruction.args.get(arg)
            if isinstance(view, View) and view.dtype.name not in names:
                return f"{arg} is {view.dtype}; it must be {join_choices(names)}"
        return None

    return rule(name, says, source)(check)


def generation_rule(name: str, says: str, source: str, first: int) -> Rule:
    """A rule that an instruction exists from NeuronCore-v``first`` on."""

    def check(instruction: Instruction, target: Target) -> str | None:
        if target.generation >= first:
            return None
        operation = instruction.operation.name
        return f"{target.name} has a NeuronCore-v{target.generation}; {operation} takes v{first} or newer"

    return rule(name, says, source)(check)


def check_memory(instruction: Instruction, wanted: MemoryRegion, *args: str) -> str | None:
    """The first of ``args`` in another memory."""
    for arg in args:
        buffer = instruction[arg].buffer
        if buffer is not wanted:
            return f"{arg} is in {buffer.value}; it must be in {wanted.value}"
    return None


def check_size(instruction: Instruction, wanted: int, *args: str) -> str | None:
    """The first of ``args`` that is given and doesn't hold ``wanted`` elements per partition."""
    for arg in args:
        view = instruction[arg]
        if view is not None and view.free_size != wanted:
            return f"{arg} holds {view.free_size} elements a partition; it must hold {wanted}"
    return None


def check_size_limit(instruction: Instruction, limit: int, arg: str) -> str | None:
    """``arg`` if it holds more than ``limit`` elements per partition."""
    size = instruction[arg].free_size
    return f"{arg} holds {size} elements a partition; the limit is {limit}" if size > limit else None


def check_dimensions(instruction: Instruction, limit: int, *args: str) -> str | None:
    """The first of ``args`` that has more than ``limit`` dimensions."""
    for arg in args:
        dimensions = instruction[arg].ndim
        if dimensions > limit:
            return f"{arg} has {dimensions} dimensions; the limit is {limit}"
    return None


def join_choices(choices: Iterable[object]) -> str:
    """``8, 16 or 32``."""
    *most, last = map(str, choices)
    return f"{', '.join(most)} or {last}" if most else last

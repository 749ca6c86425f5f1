"""Registers."""

from __future__ import annotations

from trnrt.nki.machine.program import Instruction, MemoryRegion, View
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target


@rule("register-writable", "a loop's counter is written by the loop alone", "language guide, Dynamic Control Flow")
def register_writable(instruction: Instruction, target: Target) -> str | None:
    return "dst is the counter of a device loop, which can't be written" if instruction["dst"].frozen else None


@rule(
    "register-tile", "registers are loaded from and stored to a 1x1 SBUF tile", "nki.isa register_load, register_store"
)
def register_tile(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.operands:
        assert isinstance(view, View)
        if view.buffer is not MemoryRegion.sbuf or view.size != 1:
            return f"{arg} is {view.shape} in {view.buffer.value}; it must be one element in SBUF"
    return None

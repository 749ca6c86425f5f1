"""Device loops: how often each runs, and a program's size with and without them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from trnrt.nki.machine.program import Instruction, Loop, Program


class InstructionCounts(NamedTuple):
    """The size of a program in instructions.

    ``compiled``: the body of a device loop counts once, as in what AWS's compiler is given. ``unrolled``: it counts
    once a trip; None if a loop's trips are known only at run time. The loops' own counters and branches don't count.
    """

    compiled: int
    unrolled: int | None


def is_loop_barrier(instruction: Instruction) -> bool:
    """True for the markers of a device loop: all engines meet at its entry and at the end of each trip."""
    return "loop" in instruction.args


def count_trips(loop: Loop) -> int | None:
    """How often a device loop's body runs; None if that is known only at run time."""
    if loop.counter is None or not isinstance(loop.start, int) or not isinstance(loop.stop, int):
        return None
    return max(0, -(-(loop.stop - loop.start) // loop.step))


def count_instructions(program: Program) -> InstructionCounts:
    """The instructions of a program, as compiled and unrolled. Bodies of nested loops count the product of trips."""
    begins = {begin for begin, _ in program.loops()}
    ends = {end for _, end in program.loops()}
    compiled, unrolled, unknown = 0, 0, False
    times: list[int | None] = [1]
    for position, instruction in enumerate(program.instructions):
        if position in begins:
            times.append(_multiply(times[-1], count_trips(instruction["loop"])))
        elif position in ends:
            times.pop()
        else:
            compiled += 1
            unrolled += times[-1] or 0
            unknown = unknown or times[-1] is None
    return InstructionCounts(compiled, None if unknown else unrolled)


def add_counts(counts: Iterable[InstructionCounts]) -> InstructionCounts:
    """The size of several programs together."""
    compiled, unrolled = 0, list[int | None]()
    for one in counts:
        compiled += one.compiled
        unrolled.append(one.unrolled)
    known = [count for count in unrolled if count is not None]
    return InstructionCounts(compiled, sum(known) if len(known) == len(unrolled) else None)


def _multiply(outer: int | None, trips: int | None) -> int | None:
    """Trips of a loop in a loop: 0 if either never runs, even where the other is unknown."""
    if outer == 0 or trips == 0:
        return 0
    return None if outer is None or trips is None else outer * trips

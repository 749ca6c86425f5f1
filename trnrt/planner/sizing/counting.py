"""Count the instructions of a program, and of each step in it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from trnrt.nki.machine.program import Loop, Program
from trnrt.planner.plan import KernelSize


def count_instructions(program: Program) -> KernelSize:
    """The size of a traced kernel. A device loop whose trips only the data tell counts as one trip."""
    compiled = len(program.instructions)
    unrolled, most = compiled, 1
    inner: dict[int, int] = {}  # instructions that a loop adds when it is unrolled, by where it begins
    for first, last in program.loops():  # inner loops first
        loop: Loop = program.instructions[first]["loop"]
        trips = _trips(loop)
        nested = sum(more for begin, more in inner.items() if first < begin < last)
        inner = {begin: more for begin, more in inner.items() if not first < begin < last}
        inner[first] = (last - first - 1 + nested) * trips - (last - first - 1)
        most = max(most, trips)
    return KernelSize(unrolled + sum(inner.values()), compiled, most)


def count_steps(program: Program, lines: Sequence[tuple[int, int]]) -> list[int]:
    """The instructions of each step; ``lines`` are the first and last line of their calls, in order.

    Those of other lines count for the step that follows: they load its weights.
    """
    counts = [0] * len(lines)
    ends = [last for _, last in lines]
    for instruction in program.instructions:
        at = bisect_right(ends, instruction.line - 1)
        counts[min(at, len(lines) - 1)] += 1
    return counts


def _trips(loop: Loop) -> int:
    if loop.counter is None or not isinstance(loop.start, int) or not isinstance(loop.stop, int):
        return 1
    return max(0, -(-(loop.stop - loop.start) // loop.step))

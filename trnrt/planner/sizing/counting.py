"""Count the instructions of a kernel module, and of each step in it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from trnrt.nki.machine.loops import count_instructions
from trnrt.nki.machine.program import Program
from trnrt.planner.plan import KernelSize


def measure_size(program: Program, trips: int = 1) -> KernelSize:
    """The size of a traced kernel module that loops ``trips`` times over the batch. All trips of loops are known."""
    counts = count_instructions(program)
    return KernelSize(counts.unrolled or counts.compiled, counts.compiled, trips)


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

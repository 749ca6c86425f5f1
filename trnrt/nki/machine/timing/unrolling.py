"""The order in which instructions are issued: the program's own, with the bodies of device loops once an iteration."""

from __future__ import annotations

from itertools import accumulate

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.program import Loop, Program

MOST_ISSUES = 2_000_000


def issue_order(program: Program, notes: list[str]) -> list[int]:
    """Indices of instructions in the order of their issue; assumptions are added to ``notes``.

    Raises KernelError if device loops make too many.
    """
    ends = dict(program.loops())
    if not ends:
        return list(range(len(program.instructions)))
    order: list[int] = []
    _unroll(program, 0, len(program.instructions), ends, order, notes)
    return order


def _unroll(program: Program, start: int, stop: int, ends: dict[int, int], order: list[int], notes: list[str]) -> None:
    position = start
    while position < stop:
        end = ends.get(position)
        if end is None:
            order.append(position)
            position += 1
            continue
        iterations = _iterations(program, position, notes)
        begin = len(order)
        _unroll(program, position + 1, end, ends, order, notes)
        body = order[begin:]
        if len(order) + len(body) * iterations > MOST_ISSUES:
            source = program.instructions[position].source
            raise KernelError(
                f"the device loop at {source} runs {iterations} times {len(body)} instructions; timing goes up to "
                f"{MOST_ISSUES} in all",
                hint="profile a shorter loop",
            )
        del order[begin:]
        for _ in range(iterations):
            order.extend(body)
        position = end + 1


def loop_rounds(program: Program, order: list[int]) -> list[int]:
    """For each issue, the number of iterations of device loops that began or ended before it."""
    edges = [edge for loop in program.loops() for edge in loop]
    if not edges:
        return [0] * len(order)
    passed = [0] * (len(program.instructions) + 1)
    for edge in edges:
        passed[edge] = 1
    passed = list(accumulate(passed))
    rounds, count = [], 0
    for before, index in zip([-1, *order], order, strict=False):
        count += index <= before or passed[before] != passed[index]
        rounds.append(count)
    return rounds


def _iterations(program: Program, position: int, notes: list[str]) -> int:
    """The number of iterations of a device loop: 1 if it is known only at run time."""
    instruction = program.instructions[position]
    loop: Loop = instruction["loop"]
    if loop.counter is not None and isinstance(loop.start, int) and isinstance(loop.stop, int):
        return max(0, -(-(loop.stop - loop.start) // loop.step))
    note = f"how often the device loop at {instruction.source} runs is known at run time only: timed as one iteration"
    if note not in notes:
        notes.append(note)
    return 1

"""The order in which instructions are issued: the program's own, with the bodies of device loops once a trip.

A device loop is a barrier of all engines at its entry and one at the end of each trip. Its markers in the program stand
for them: they are issued there.
"""

from __future__ import annotations

from collections.abc import Sequence

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.loops import count_trips, is_loop_barrier
from trnrt.nki.machine.program import Instruction, Program

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
    meetings = sum(is_loop_barrier(program.instructions[position]) for position in order)
    charge = program.target.timing.loop_barrier_ns / 1000
    notes.append(
        f"device loops: all engines meet {meetings} times, at each loop's entry and after each trip, and then wait "
        f"{charge:g} us (measured by third parties on trn1 only)"
    )
    return order


def _unroll(program: Program, start: int, stop: int, ends: dict[int, int], order: list[int], notes: list[str]) -> None:
    position = start
    while position < stop:
        order.append(position)
        end = ends.get(position)
        if end is None:
            position += 1
            continue
        trips = _trips(program, position, notes)
        begin = len(order)
        _unroll(program, position + 1, end, ends, order, notes)
        body = [*order[begin:], end]
        if begin + len(body) * trips > MOST_ISSUES:
            source = program.instructions[position].source
            raise KernelError(
                f"the device loop at {source} runs {trips} times {len(body) - 1} instructions; timing goes up to "
                f"{MOST_ISSUES} in all",
                hint="profile a shorter loop",
            )
        del order[begin:]
        for _ in range(trips):
            order.extend(body)
        position = end + 1


def loop_rounds(instructions: Sequence[Instruction]) -> list[int]:
    """For each issue, the number of loops' barriers up to it, given the instructions of all issues."""
    rounds, count = [], 0
    for instruction in instructions:
        count += is_loop_barrier(instruction)
        rounds.append(count)
    return rounds


def _trips(program: Program, position: int, notes: list[str]) -> int:
    """The number of trips of a device loop: 1 if it is known only at run time."""
    instruction = program.instructions[position]
    trips = count_trips(instruction["loop"])
    if trips is not None:
        return trips
    note = f"how often the device loop at {instruction.source} runs is known at run time only: timed as one iteration"
    if note not in notes:
        notes.append(note)
    return 1

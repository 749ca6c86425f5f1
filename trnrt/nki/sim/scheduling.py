"""``kernel.with_schedule``: edges between named instructions, which the order of a program has to keep.

An edge says that one instruction runs after another. If the kernel issues them the other way round, the earlier one
moves forward, with all that it needs; an edge that the data contradicts is refused. The timing model waits at each
edge, as at a semaphore.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.program import Instruction, Program, Register, View
from trnrt.nki.machine.regions import region_of

Edge = tuple[str, str]  # (the waiting instruction, the one that it waits for), by name
_WRITES_REGISTER = frozenset({"register_move", "register_load", "scalar_load", "scalar_arithmetic"})


def schedule_edges(schedule: Any) -> tuple[Edge, ...]:
    """The edges of a schedule: pairs of a name and the name, or names, that it waits for."""
    if not isinstance(schedule, (list, tuple)):
        raise KernelError(f"with_schedule takes a list of pairs of names, not a {type(schedule).__name__}")
    edges: list[Edge] = []
    for pair in schedule:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise KernelError(f"with_schedule: {pair!r} is no pair (instruction, the one or those that it waits for)")
        later, earlier = pair
        names = [earlier] if isinstance(earlier, str) else earlier
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in [later, *names]):
            raise KernelError(f"with_schedule: {pair!r} must hold names of instructions, given by name=")
        edges += [(later, name) for name in names]
    return tuple(dict.fromkeys(edges))


def check_names(programs: Sequence[Program], edges: Sequence[Edge]) -> None:
    """Raise KernelError if no instruction, or more than one of a core's program, has the name that an edge uses."""
    counts = [Counter(i.name for i in program.instructions if i.name is not None) for program in programs]
    for name in dict.fromkeys(name for edge in edges for name in edge):
        found = max(count[name] for count in counts)
        if found > 1:
            raise KernelError(f"with_schedule: {found} instructions are called {name!r}; a name that it uses is unique")
        if not found:
            known = ", ".join(sorted({str(known) for count in counts for known in count})) or "none"
            raise KernelError(f"with_schedule: no instruction is called {name!r}; those with a name are: {known}")


def apply(program: Program, edges: Sequence[Edge]) -> None:
    """Reorder the instructions to respect every edge, and make the later one wait for the earlier one."""
    named = {instruction.name: instruction for instruction in program.instructions if instruction.name is not None}
    known = [(named[later], named[earlier]) for later, earlier in edges if later in named and earlier in named]
    for later, earlier in known:
        if later is earlier:
            raise KernelError(f"with_schedule: {later.name!r} can't wait for itself")
        later.depends_on(earlier)
        _order(program, later, earlier)


def _order(program: Program, later: Instruction, earlier: Instruction) -> None:
    """Move ``earlier``, with its dependences, before ``later`` if it comes after it."""
    blocks = _blocks(program, later, earlier)
    first = next(number for number, block in enumerate(blocks) if any(i is later for i in block))
    last = next(number for number, block in enumerate(blocks) if any(i is earlier for i in block))
    if last <= first:
        return
    needed = [blocks[last]]
    for block in reversed(blocks[first + 1 : last]):
        if any(_must_follow(after, block) for after in needed):
            needed.insert(0, block)
    if any(_must_follow(block, blocks[first]) for block in needed):
        raise KernelError(
            f"with_schedule: {later.name!r} can't wait for {earlier.name!r}, which has to run after it: "
            "it uses what it makes, or another edge or device loop says so\n"
            f"  {later.name!r} at {later.source}\n  {earlier.name!r} at {earlier.source}"
        )
    moved = {id(block) for block in needed}
    ordered = [*blocks[:first], *needed, blocks[first], *(b for b in blocks[first + 1 :] if id(b) not in moved)]
    program.instructions[:] = [instruction for block in ordered for instruction in block]


def _blocks(program: Program, one: Instruction, other: Instruction) -> list[list[Instruction]]:
    """The program in pieces that can change places: single instructions, and whole device loops unless they contain
    both instructions."""
    instructions, loops = program.instructions, program.loops()
    places = [number for number, instruction in enumerate(instructions) if instruction is one or instruction is other]
    whole = [(begin, end) for begin, end in loops if not begin < places[0] < places[1] < end]
    ends = {b: e for b, e in whole if not any(begin < b < end for begin, end in whole)}
    blocks: list[list[Instruction]] = []
    at = 0
    while at < len(instructions):
        after = ends.get(at, at) + 1
        blocks.append(instructions[at:after])
        at = after
    return blocks


def _must_follow(after: list[Instruction], before: list[Instruction]) -> bool:
    """True if a block has to stay after another one."""
    return any(_conflict(a, b) for a in after for b in before)


def _conflict(after: Instruction, before: Instruction) -> bool:
    """True if memory, a register, an edge or a meeting of cores fixes the order of two instructions."""
    if before in after.after or after.operation.meets or before.operation.meets:
        return True
    return _registers_conflict(after, before) or any(
        _share_bytes(written, touched)
        for one, other in ((after, before), (before, after))
        for written in one.writes()
        for touched in other.touches()
    )


def _share_bytes(one: View, other: View) -> bool:
    if one.storage is other.storage:
        return region_of(one).overlaps(region_of(other))
    return one.buffer is other.buffer and one.storage.pinned and other.storage.pinned  # they may overlap


def _registers_conflict(one: Instruction, other: Instruction) -> bool:
    written = [i["dst"] for i in (one, other) if i.operation.name in _WRITES_REGISTER]
    return any(register in _registers(one) and register in _registers(other) for register in written)


def _registers(instruction: Instruction) -> list[Register]:
    """The registers that an instruction names: as arguments, in addresses, and as bounds of a loop."""
    found = [value for value in instruction.args.values() if isinstance(value, Register)]
    found += [
        view.dynamic.scalar
        for _, view in instruction.operands
        if view.dynamic is not None and isinstance(view.dynamic.scalar, Register)
    ]
    loop = instruction.args.get("loop")
    if loop is not None:
        found += [v for v in (loop.counter, loop.start, loop.stop, loop.condition) if isinstance(v, Register)]
    return found

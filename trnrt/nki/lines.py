"""The cost of a kernel by source line: the engines' time, and the part of the critical path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import NamedTuple

from trnrt.nki.machine.loops import is_loop_barrier
from trnrt.nki.machine.program import Instruction, Program
from trnrt.nki.machine.timing.issues import ENGINES
from trnrt.nki.machine.timing.path import Segment
from trnrt.nki.machine.timing.steps import Named
from trnrt.nki.machine.timing.timeline import PS_PER_US, Timeline

DMA = "dma"


class Line(NamedTuple):
    """A line of a Python file."""

    file: str
    line: int


@dataclass(frozen=True, slots=True)
class LineUse(Named):
    """The cost of a source line, in microseconds.

    A line of a helper has the instructions that it issues; a line of the kernel's own function also those of the
    helpers that it calls. ``busy_us``: for each engine (``dma``: all DMA engines) the time in which an instruction of
    the line runs there, each moment once. ``path_us``: its part of the critical path; ``share``: the same over the
    whole path, without the launch.
    """

    file: str
    line: int
    function: str
    instructions: int
    busy_us: dict[str, float]
    path_us: float
    share: float

    @property
    def place(self) -> Line:
        """The file and the number."""
        return Line(self.file, self.line)


@dataclass(slots=True)
class _Tally:
    """The counts of one line, picoseconds. ``covered``: engine -> the time up to which its work is counted."""

    function: str
    instructions: int = 0
    path: int = 0
    busy: Counter[str] = field(default_factory=Counter)
    covered: dict[str, int] = field(default_factory=dict)


def lines_of(program: Program, instruction: Instruction) -> tuple[Line, ...]:
    """The line that issued an instruction and, if a helper did, the line of the kernel's function that called it."""
    own = Line(instruction.source.file, instruction.source.line)
    called = Line(program.file, instruction.line)
    return (own,) if own == called or not instruction.line else (own, called)


def line_uses(timeline: Timeline, segments: Iterable[Segment]) -> tuple[LineUse, ...]:
    """The cost of each line with instructions, by file (the kernel's own first) and number.

    ``segments`` are those of the critical path.
    """
    program = timeline.program
    tallies: dict[Line, _Tally] = {}
    owners = [_tallies(program, instruction, tallies) for instruction in program.instructions]
    instructions = timeline.instruction
    for number in instructions:
        issued = not is_loop_barrier(program.instructions[number])
        for tally in owners[number]:
            tally.instructions += issued
    for issue, engine, begin, end in _runs(timeline):
        for tally in owners[instructions[issue]]:
            covered = tally.covered.get(engine, 0)
            if end > covered:
                tally.busy[engine] += end - max(begin, covered)
                tally.covered[engine] = end
    for segment in segments:
        for tally in owners[instructions[segment.issue]]:
            tally.path += segment.end - segment.start
    order = sorted(tallies, key=lambda line: (line.file != program.file, line))
    used = [(line, tallies[line]) for line in order if tallies[line].busy or tallies[line].path]
    return tuple(_use(line, tally, timeline.duration) for line, tally in used)


def _tallies(program: Program, instruction: Instruction, known: dict[Line, _Tally]) -> Sequence[_Tally]:
    names = (instruction.source.function, program.kernel)
    lines = lines_of(program, instruction)
    return [known.setdefault(line, _Tally(name)) for line, name in zip(lines, names, strict=False)]


def _runs(timeline: Timeline) -> Iterator[tuple[int, str, int, int]]:
    """(issue, engine, begin, end) of all that runs on engines, in the order of their starts: no barriers of loops."""
    start, end, lane, lanes = timeline.start, timeline.end, timeline.lane, timeline.lanes
    engines = [name if name in ENGINES else DMA for name in lanes]
    waits = {k for k, instruction in enumerate(timeline.program.instructions) if is_loop_barrier(instruction)}
    for issue in sorted(range(len(start)), key=start.__getitem__):
        if timeline.instruction[issue] not in waits:
            yield issue, engines[lane[issue]], start[issue], end[issue]


def _use(line: Line, tally: _Tally, total: int) -> LineUse:
    busy = {name: tally.busy[name] / PS_PER_US for name in (*ENGINES, DMA) if tally.busy[name]}
    share = tally.path / max(1, total)
    return LineUse(*line, tally.function, tally.instructions, busy, tally.path / PS_PER_US, share)


def match_lines(
    first: Sequence[str], second: Sequence[str], alike: float = 0.0
) -> Iterator[tuple[int | None, int | None]]:
    """The positions of lines of two texts side by side, in the order of the second, as a diff shows them.

    As many lines in the place of others are edited ones, if each is at least as much like its own as ``alike``
    (``SequenceMatcher.ratio``). None where a line has no partner.
    """
    for tag, i0, i1, j0, j1 in SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        is_same = tag == "equal" or (i1 - i0 == j1 - j0 and _are_alike(first[i0:i1], second[j0:j1], alike))
        if is_same:
            yield from zip(range(i0, i1), range(j0, j1), strict=True)
        else:
            yield from ((i, None) for i in range(i0, i1))
            yield from ((None, j) for j in range(j0, j1))


def _are_alike(first: Sequence[str], second: Sequence[str], least: float) -> bool:
    """True if each line is so much like the one in its place."""
    return all(SequenceMatcher(None, a, b).ratio() >= least for a, b in zip(first, second, strict=True))

"""A timeline as a run: our side of a comparison, in the same record and words as a measured one.

A profiler shows the trigger of a transfer with software descriptors after gpsimd has made them, and as a short
instruction. So does our run; in the timeline gpsimd is busy with them from the beginning.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.timing.traces.record import NONE, Event, Run, Transfer
from trnrt.nki.machine.program import Instruction, MemoryRegion, View
from trnrt.nki.machine.timing import Timeline
from trnrt.nki.machine.timing import Transfer as Moved
from trnrt.nki.machine.timing.tensor_engine import PRODUCTS
from trnrt.nki.machine.timing.transfers import Start, Starts

_PS_PER_NS = 1000
_SHOWN_NS = 44
"""A trigger's duration in a profiler, with software descriptors: 31 to 75 ns in the public traces, mostly 43 or 44."""
_KINDS = {"tensor_copy": "copy", "tensor_reduce": "reduce", "tensor_scalar": "scalar", "tensor_tensor": "tensor"}
_OPERATORS = ("op", "op0")
_SHORT = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}


def run_of(timeline: Timeline) -> Run:
    """The run predicted by a timeline, with the profiler's head and tail."""
    return _Converter(timeline).run()


class _Converter:
    def __init__(self, timeline: Timeline) -> None:
        self.timeline, self.timing = timeline, timeline.timing
        self.head = round(self.timing.head_ns)
        self.moved = {moved.issue: moved for moved in timeline.transfers}
        starts = Starts(replace(timeline.program.target, timing=timeline.timing))
        self.starts = {issue: starts.get(self._instruction(issue)) for issue in self.moved}
        self.sources = _sources(timeline.program.instructions)

    def run(self) -> Run:
        line = self.timeline
        order = sorted(range(len(line.instruction)), key=lambda issue: (self._span(issue)[0], issue))
        place = {issue: number for number, issue in enumerate(order)}
        end = self.head + _ns(line.duration)
        return Run(
            name=line.program.kernel,
            events=tuple(self._event(issue, place) for issue in order),
            total=end + round(self.timing.tail_ns),
            first=self.head,
            last=end,
            active={engine: _ns(busy) for engine, busy in line.busy.items()},
            notes=line.notes,
        )

    def _span(self, issue: int) -> tuple[int, int]:
        """The span during which its engine is busy with it, nanoseconds: a transfer's trigger, not its data."""
        moved = self.moved.get(issue)
        if moved is not None:
            begin = self.head + _ns(moved.triggered) + self._preparing(issue)
            return begin, begin + _SHOWN_NS if self.starts[issue].software else self.head + _ns(moved.trigger_end)
        return self.head + _ns(self.timeline.start[issue]), self.head + _ns(self.timeline.end[issue])

    def _preparing(self, issue: int) -> int:
        """The time that its engine spends on preparing an event, nanoseconds."""
        start: Start | None = self.starts.get(issue)
        return round(self.timing.dma.prepare_software_ns) if start is not None and start.software else 0

    def _engine(self, issue: int) -> str:
        moved = self.moved.get(issue)
        return self.timeline.lanes[moved.lane if moved else self.timeline.lane[issue]]

    def _event(self, issue: int, place: dict[int, int]) -> Event:
        line, instruction = self.timeline, self._instruction(issue)
        (start, end), engine = self._span(issue), self._engine(issue)
        moved = self.moved.get(issue)
        producer = line.waited_for[issue]
        seen = self.head + _ns(line.seen[producer]) if producer >= 0 else None
        wait = round(getattr(self.timing, engine).wait_ns)
        begun = start - self._preparing(issue)
        if seen is not None and self._engine(producer) == engine and abs(begun - seen - wait) > 1:
            seen = None  # its engine's previous instruction, not a semaphore
        kind, size, where = _describe(instruction)
        return Event(
            engine=engine,
            kind=_direction(instruction) if moved else kind,
            size=_size(moved) if moved else size,
            start=start,
            end=end,
            place="" if moved else where,
            source=self.sources.get(line.instruction[issue], ""),
            name=str(instruction.source),
            seen=self.head + _ns(line.seen[issue]),
            ready=seen,
            waited_for=place[producer] if seen is not None else NONE,
            slow=issue in line.slowed,
            transfer=self._transfer(moved, instruction) if moved else None,
        )

    def _transfer(self, moved: Moved, instruction: Instruction) -> Transfer:
        line, issue = self.timeline, moved.issue
        return Transfer(
            queue=line.lanes[line.lane[issue]],
            mode=self.starts[issue].mode,
            direction=_direction(instruction),
            size=_size(moved),
            start=self.head + _ns(line.start[issue]),
            end=self.head + _ns(line.end[issue]),
            seen=self.head + _ns(line.seen[issue]),
        )

    def _instruction(self, issue: int) -> Instruction:
        return self.timeline.program.instructions[self.timeline.instruction[issue]]


def _sources(instructions: list[Instruction]) -> dict[int, str]:
    """A copy's place in the program -> the kind of instruction that wrote its source tile."""
    writers: dict[int, str] = {}
    sources = {}
    for number, instruction in enumerate(instructions):
        kind = _describe(instruction)[0]
        if kind == "copy":
            sources[number] = writers.get(instruction.operands[-1][1].storage.index, "")
        for view in instruction.writes():
            writers[view.storage.index] = kind
    return sources


def _ns(picoseconds: int) -> int:
    return round(picoseconds / _PS_PER_NS)


def _size(moved: Moved) -> int:
    """The bytes on the HBM side: a transfer that casts has fewer bytes on one side."""
    return min(moved.payload, moved.hbm_bytes) or moved.payload


def _direction(instruction: Instruction) -> str:
    dst, *sources = (view for _, view in instruction.operands)
    here, there = dst.storage.on_chip, all(view.storage.on_chip for view in sources)
    return "move" if here == there else "load" if here else "store"


def _describe(instruction: Instruction) -> tuple[str, int, str]:
    """Kind, size and place of an instruction, in the words of a measured one."""
    name = instruction.operation.name
    views: list[View] = [view for _, view in instruction.operands]
    dst, sources = views[0] if views else None, views[1:]
    if name in PRODUCTS and dst is not None:
        turned = name == "nc_transpose"
        first: View = instruction["data" if turned else "stationary"]
        return ("transpose", first.partitions, _dtype(first)) if turned else ("product", dst.free_size, _dtype(first))
    operator = next((instruction.args.get(arg) for arg in _OPERATORS if instruction.args.get(arg) is not None), None)
    operator_name = getattr(operator, "name", "")
    kind = _KINDS.get(name, name)
    if name.startswith("activation"):
        kind = "copy" if operator_name in ("copy", "identity") else f"activate {operator_name}"
    elif operator_name:
        kind = f"{kind} {operator_name}"
    views = [view for view in (*sources[:1], dst) if view is not None]
    return kind, views[0].free_size if views else 0, " to ".join(_side(view) for view in views)


def _side(view: View) -> str:
    return f"{'P' if view.buffer is MemoryRegion.psum else 'S'} {_dtype(view)}"


def _dtype(view: View) -> str:
    return _SHORT.get(view.dtype.name, view.dtype.name)

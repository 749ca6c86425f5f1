"""What the event loop has to know of each issue before it starts: which stream issues it, and what it waits for."""

from __future__ import annotations

from bisect import bisect_left
from copy import copy
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from trnrt.nki.machine.pace import Timing
from trnrt.nki.machine.program import Engine, Instruction, MemoryRegion, Program
from trnrt.nki.machine.targets import Target
from trnrt.nki.machine.timing.hazards import Hazards, Waits
from trnrt.nki.machine.timing.tensor_engine import PRODUCTS, Work, work_of
from trnrt.nki.machine.timing.transfers import Start, Starts
from trnrt.nki.machine.timing.unrolling import issue_order

_PLAIN = frozenset({"copy", "identity", "relu", "square", "abs", "sign"})
"""Functions of the scalar engine that need no table."""

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync")


@dataclass(slots=True)
class Stream:
    """Instructions that are issued in order: an engine's, or the triggers of an engine's DMA queue.

    ``number`` orders streams whose heads may start at the same time; ``lane`` is the engine's place in the timeline's
    lanes; ``wait`` is from a semaphore to a start, ``second_wait`` for each further one that it waits for, ``signal``
    from an end to the semaphore, picoseconds; ``moves``: whether its instructions are DMA transfers.
    """

    number: int
    lane: int
    engine: str
    triggers: bool
    wait: int
    second_wait: int
    signal: int
    moves: bool
    issues: list[int] = field(default_factory=list)
    position: int = 0
    free: int = 0


class Facts(NamedTuple):
    """What all issues of one instruction have in common. ``ports``: the memories it takes turns on; ``function``: what
    the scalar engine needs a table for, "" where it needs none.

    ``order``: issues of one order begin and end in the order of the program. An engine's has the number of its lane;
    loads and stores have one each, even where they share a queue. ``cycles`` are those of an instruction's data path,
    ``work`` is the tensor engine's.
    """

    instruction: Instruction
    stream: Stream
    lane: int
    start: Start | None
    ports: tuple[str, ...]
    order: int
    function: str
    cycles: float = 0
    work: Work | None = None


class Issues:
    """All issues of a program, sorted into streams, with what each waits for."""

    def __init__(self, program: Program) -> None:
        self.program, self.target = program, program.target
        self.notes: list[str] = []
        self.order = issue_order(program, self.notes)
        self.lanes = list(ENGINES)
        self.streams: list[Stream] = []
        self.facts: list[Facts] = []
        self.waits: list[Waits] = []
        self._by_name: dict[str, Stream] = {}
        self._known: dict[int, Facts] = {}
        self._shared, self._starts = _shared_ports(self.target), Starts(self.target)
        self._same_work = True
        self._sort()

    def rewind(self) -> None:
        """Have the streams ready for another run."""
        for stream in self.streams:
            stream.position = stream.free = 0

    def retime(self, timing: Timing) -> Issues:
        """The same issues with other numbers of the target, ready for a run; what waits for what stays as it is."""
        other = copy(self)
        other.target = replace(self.target, timing=timing)
        other.lanes, other.streams, other.facts = list(ENGINES), [], []
        other._by_name, other._known, other._starts = {}, {}, Starts(other.target)
        other._same_work = _decides_work(timing) == _decides_work(self.target.timing)
        for number, index in enumerate(self.order):
            facts = other._known.get(index)
            if facts is None:
                facts = other._known[index] = other._retime(self._known[index])
            other.facts.append(facts)
            facts.stream.issues.append(number)
        return other

    def _retime(self, facts: Facts) -> Facts:
        """The facts of an instruction that other numbers may change."""
        if facts.start is not None:
            return self._of_transfer(facts.instruction)
        if not self._same_work:
            return self._facts(facts.instruction)
        return facts._replace(stream=self._stream(facts.stream.engine, facts.stream.engine, triggers=False))

    def _sort(self) -> None:
        hazards = Hazards(self.program)
        instructions = self.program.instructions
        asked: list[tuple[int, Instruction]] = []
        for number, index in enumerate(self.order):
            facts = self._known.get(index)
            if facts is None:
                facts = self._known[index] = self._facts(instructions[index])
            self.facts.append(facts)
            facts.stream.issues.append(number)
            self.waits.append(hazards.issue(facts.instruction, facts.order, one_by_one=facts.start is None))
            if facts.instruction.after:
                asked.append((number, facts.instruction))
        if asked:
            self._wait_as_asked(asked)

    def _wait_as_asked(self, asked: list[tuple[int, Instruction]]) -> None:
        """Waits that the kernel wants besides those that memory demands."""
        wanted = {id(producer) for _, instruction in asked for producer in instruction.after}
        places: dict[int, list[int]] = {}
        for number, facts in enumerate(self.facts):
            if id(facts.instruction) in wanted:
                places.setdefault(id(facts.instruction), []).append(number)
        for number, instruction in asked:
            for producer in instruction.after:
                found = places.get(id(producer))
                if found is not None:
                    # The last one before it; in a device loop each iteration's. One that only comes later never does.
                    earlier = found[max(0, bisect_left(found, number) - 1)]
                    self.waits[number].add(self.facts[earlier].order, (earlier,))

    def _facts(self, instruction: Instruction) -> Facts:
        if not _moves(instruction):
            engine = "sync" if instruction.engine is Engine.dma else instruction.engine.name
            stream = self._stream(engine, engine, triggers=False)
            ports = tuple(port for port in self._shared.get(stream.engine, ()) if _uses(instruction, port))
            product = stream.engine == "tensor" and instruction.operation.name in PRODUCTS
            work = work_of(instruction, self.target) if product else None
            cycles = 0 if product else instruction.operation.cycles(instruction, self.target)
            function = function_of(instruction)
            return Facts(instruction, stream, stream.lane, None, ports, stream.lane, function, cycles, work)
        return self._of_transfer(instruction)

    def _of_transfer(self, instruction: Instruction) -> Facts:
        start = self._starts.get(instruction)
        stream = self._stream(start.stream, start.engine, triggers=start.stream != start.engine)
        if start.queue not in self.lanes:
            self.lanes.append(start.queue)
        order = len(ENGINES) + stream.number
        return Facts(instruction, stream, self.lanes.index(start.queue), start, (), order, "")

    def _stream(self, name: str, engine: str, *, triggers: bool) -> Stream:
        if name not in self._by_name:
            timing = getattr(self.target.timing, engine)
            wait, second, signal = (
                round(ns * 1000) for ns in (timing.wait_ns, timing.second_wait_ns, timing.signal_ns)
            )
            stream = Stream(
                len(self.streams), ENGINES.index(engine), engine, triggers, wait, second, signal, moves=engine != name
            )
            self.streams.append(stream)
            self._by_name[name] = stream
        return self._by_name[name]


def _decides_work(timing: Timing) -> tuple[object, ...]:
    """The numbers that an instruction's cycles and the tensor engine's work depend on."""
    tensor = timing.tensor
    loading = tensor.load_latency_ns, tensor.load_interval_cycles, tensor.interval_cycles, tensor.hidden_stride_bytes
    intervals = timing.vector.interval_cycles, timing.scalar.interval_cycles, timing.gpsimd.interval_cycles
    return timing.wide_stride_factor, timing.vector_modes, *loading, *intervals


def function_of(instruction: Instruction) -> str:
    """The function that an instruction looks up in a table of the scalar engine; "" where it is none."""
    if instruction.engine is not Engine.scalar or not instruction.operation.name.startswith("activation"):
        return ""
    name = getattr(instruction.args.get("op"), "name", "")
    return "" if name in _PLAIN else name


def _moves(instruction: Instruction) -> bool:
    """Whether an instruction is a DMA transfer (a print of the device's is none that is modelled)."""
    writes = bool(instruction.operands) and instruction.operands[0][0] in instruction.operation.writes
    return writes and (instruction.engine is Engine.dma or instruction.operation.name == "sendrecv")


def _shared_ports(target: Target) -> dict[str, tuple[str, ...]]:
    """Engine -> the memories that it can't use at the same time as another."""
    ports: dict[str, tuple[str, ...]] = {}
    if target.timing.exclusive_psum:
        ports |= {"vector": ("psum",), "scalar": ("psum",)}
    if target.timing.exclusive_sbuf:
        ports["vector"] = (*ports.get("vector", ()), "sbuf")
        ports["gpsimd"] = ("sbuf",)
    return ports


def _uses(instruction: Instruction, port: str) -> bool:
    region = MemoryRegion.psum if port == "psum" else MemoryRegion.sbuf
    return any(view.buffer is region for _, view in instruction.operands)

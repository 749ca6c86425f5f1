"""The inputs of the event loop: the stream that issues each instruction, and the issues that it waits for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from trnrt.nki.machine.loops import is_loop_barrier
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

    ``number`` orders streams whose heads may start at the same time. ``lane``: the engine's place in the timeline's
    lanes. Picoseconds: ``wait`` from a semaphore to a start, ``second_wait`` for each further semaphore, ``signal``
    from an end to its semaphore. ``moves``: its instructions are DMA transfers.
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
    """The common properties of all issues of one instruction.

    ``ports``: the memories that its engine shares with another. ``function``: the function that needs a table of the
    scalar engine, or "". ``order``: issues of one order begin and end in the order of the program. An engine's order is
    the number of its lane; loads and stores have one each, even if they share a queue. ``cycles``: of the instruction's
    data path; ``work``: of the tensor engine. ``barrier``: all engines meet here, at the edge of a device loop's trip.
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
    barrier: bool = False


class Issues:
    """All issues of a program, sorted into streams, with the issues that each waits for."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.notes: list[str] = []
        self.order = issue_order(program, self.notes)
        self._reset(program.target)
        self._collect(lambda index: self._facts(program.instructions[index]))
        self.waits = self._find_waits()

    def _reset(self, target: Target) -> None:
        self.target = target
        self.lanes = list(ENGINES)
        self.streams: list[Stream] = []
        self.facts: list[Facts] = []
        self._by_name: dict[str, Stream] = {}
        self._known: dict[int, Facts] = {}
        self._shared, self._starts = _shared_ports(target), Starts(target)

    def _collect(self, facts_of: Callable[[int], Facts]) -> None:
        """Sort all issues into streams, with the facts of each instruction."""
        for number, index in enumerate(self.order):
            facts = self._known.get(index)
            if facts is None:
                facts = self._known[index] = facts_of(index)
            self.facts.append(facts)
            facts.stream.issues.append(number)

    def rewind(self) -> None:
        """Reset the streams for another run."""
        for stream in self.streams:
            stream.position = stream.free = 0

    def retime(self, timing: Timing) -> Issues:
        """The same issues with other timing, ready for a run; each waits for the same issues."""
        other = copy(self)
        other._reset(replace(self.target, timing=timing))
        same_work = _work_numbers(timing) == _work_numbers(self.target.timing)

        def retime_facts(index: int) -> Facts:
            facts = self._known[index]
            if facts.start is not None or not same_work:
                return other._facts(facts.instruction)
            engine = facts.stream.engine
            return facts._replace(stream=other._stream(engine, engine, triggers=False))

        other._collect(retime_facts)
        return other

    def _find_waits(self) -> list[Waits]:
        """The waits of each issue: for memory, and for the instructions that the kernel names."""
        hazards = Hazards(self.program)
        waits = [hazards.issue(one.instruction, one.order, one_by_one=one.start is None) for one in self.facts]
        edges = [(number, one.instruction) for number, one in enumerate(self.facts) if one.instruction.after]
        producers = {id(producer) for _, instruction in edges for producer in instruction.after}
        places: dict[int, list[int]] = {}
        for number, facts in enumerate(self.facts if edges else ()):
            if id(facts.instruction) in producers:
                places.setdefault(id(facts.instruction), []).append(number)
        for number, instruction in edges:
            for producer in instruction.after:
                found = places.get(id(producer))
                if found is not None:
                    # In a device loop, the issue of the same iteration. Waiting for a later one is a deadlock.
                    earlier = found[max(0, bisect_left(found, number) - 1)]
                    waits[number].add(self.facts[earlier].order, (earlier,))
        self._meet_at_barriers(waits)
        return waits

    def _meet_at_barriers(self, waits: list[Waits]) -> None:
        """At a device loop's barriers, wait for all issues since the previous one; after it, wait for the barrier."""
        if not any(facts.barrier for facts in self._known.values()):
            return
        last, since = -1, dict[int, list[int]]()
        for number, facts in enumerate(self.facts):
            if facts.barrier:
                for order, issues in since.items():
                    waits[number].add(order, tuple(issues))
                last, since = number, {}
            elif last >= 0:
                waits[number].add(self.facts[last].order, (last,))
            since.setdefault(facts.order, []).append(number)

    def _facts(self, instruction: Instruction) -> Facts:
        if not _is_transfer(instruction):
            engine = "sync" if instruction.engine is Engine.dma else instruction.engine.name
            stream = self._stream(engine, engine, triggers=False)
            ports = tuple(port for port in self._shared.get(engine, ()) if _uses_port(instruction, port))
            product = engine == "tensor" and instruction.operation.name in PRODUCTS
            work = work_of(instruction, self.target) if product else None
            cycles = 0 if product else instruction.operation.cycles(instruction, self.target)
            function = function_of(instruction)
            barrier = is_loop_barrier(instruction)
            return Facts(instruction, stream, stream.lane, None, ports, stream.lane, function, cycles, work, barrier)
        start = self._starts.get(instruction)
        stream = self._stream(start.stream, start.engine, triggers=start.stream != start.engine)
        if start.queue not in self.lanes:
            self.lanes.append(start.queue)
        order = len(ENGINES) + stream.number
        return Facts(instruction, stream, self.lanes.index(start.queue), start, (), order, "")

    def _stream(self, name: str, engine: str, *, triggers: bool) -> Stream:
        if name not in self._by_name:
            timing = getattr(self.target.timing, engine)
            times = timing.wait_ns, timing.second_wait_ns, timing.signal_ns
            wait, second, signal = (round(ns * 1000) for ns in times)
            number, lane = len(self.streams), ENGINES.index(engine)
            stream = Stream(number, lane, engine, triggers, wait, second, signal, moves=engine != name)
            self.streams.append(stream)
            self._by_name[name] = stream
        return self._by_name[name]


def _work_numbers(timing: Timing) -> tuple[object, ...]:
    """The numbers that an instruction's cycles and the tensor engine's work depend on."""
    tensor = timing.tensor
    loading = tensor.load_latency_ns, tensor.load_interval_cycles, tensor.interval_cycles, tensor.hidden_stride_bytes
    intervals = timing.vector.interval_cycles, timing.scalar.interval_cycles, timing.gpsimd.interval_cycles
    return timing.wide_stride_factor, timing.vector_modes, *loading, *intervals


def function_of(instruction: Instruction) -> str:
    """The function that an instruction looks up in a table of the scalar engine, or ""."""
    if instruction.engine is not Engine.scalar or not instruction.operation.name.startswith("activation"):
        return ""
    name = getattr(instruction.args.get("op"), "name", "")
    return "" if name in _PLAIN else name


def _is_transfer(instruction: Instruction) -> bool:
    """True if an instruction is a DMA transfer (printing on the device is not modelled as one)."""
    writes = bool(instruction.operands) and instruction.operands[0][0] in instruction.operation.writes
    return writes and (instruction.engine is Engine.dma or instruction.operation.name == "sendrecv")


def _shared_ports(target: Target) -> dict[str, tuple[str, ...]]:
    """Engine -> the memories that it can't use at the same time as another engine."""
    ports: dict[str, tuple[str, ...]] = {}
    if target.timing.exclusive_psum:
        ports |= {"vector": ("psum",), "scalar": ("psum",)}
    if target.timing.exclusive_sbuf:
        ports["vector"] = (*ports.get("vector", ()), "sbuf")
        ports["gpsimd"] = ("sbuf",)
    return ports


def _uses_port(instruction: Instruction, port: str) -> bool:
    region = MemoryRegion.psum if port == "psum" else MemoryRegion.sbuf
    return any(view.buffer is region for _, view in instruction.operands)

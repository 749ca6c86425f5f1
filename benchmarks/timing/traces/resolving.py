"""From a report's tables to a run: find the event behind each value of a semaphore, and the packets of each trigger."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from benchmarks.timing.traces.reading import Instruction, RawPacket, Report, read_report
from benchmarks.timing.traces.record import NONE, Event, Packet, Pass, Run, Transfer, Window

_PRODUCTS = ("LDWEIGHTS", "MATMUL")
_WAITS = ("EVENT_SEMAPHORE", "NOP")
_KINDS = {
    "COPY": "copy",
    "CAST": "copy",
    "ACTIVATE": "activate",
    "TENSOR_REDUCE": "reduce",
    "TENSOR_SCALAR": "scalar",
    "TENSOR_TENSOR": "tensor",
    "ACT_TABLE_LOAD": "table load",
}
_DETAILS = {"max": "maximum", "min": "minimum", "mult": "multiply", "sub": "subtract"}


class _Group(NamedTuple):
    """The instructions of one event, by their place in the report; a product has several."""

    members: list[int]
    extra: list[tuple[int, int]]  # the waits of preceding instructions that only wait


def read_run(path: Path) -> Run:
    """The run in a profiler's JSON report; InputError if the file isn't one."""
    return _Resolver(read_report(path)).run()


class _Resolver:
    """``values`` has each semaphore's (value, time) in order, ``counted`` the (value, event) of the events that set it.

    ``brings`` is the semaphore and value that an event sets; ``ends`` when the product before one had ended.
    """

    def __init__(self, report: Report) -> None:
        self.report, self.notes = report, list(report.notes)
        self.instructions = report.instructions
        self.first = min(instruction.start for instruction in self.instructions)
        self.last = max(instruction.end for instruction in self.instructions)
        self.groups = self._group_instructions()
        self.values = self._values()
        self.counted, self.brings = self._count_semaphores()
        self.ends = self._product_ends()
        self.windows = self._windows()
        self.own_queues: dict[int, str] = {}
        self.transfers = self._transfers()

    def run(self) -> Run:
        events = tuple(self._event(number) for number in range(len(self.groups)))
        foreign: dict[str, int] = defaultdict(int)
        for packet in self.report.packets:
            if packet.queue not in self.own_queues:
                foreign[self.report.queues.get(packet.queue, f"queue {packet.queue}")] += 1
        spans = self.report.foreign
        return Run(
            name=self.report.name,
            events=events,
            total=self.report.total,
            first=self.first,
            last=max([self.last, *(event.seen or 0 for event in events)]),
            windows=tuple(self.windows),
            foreign=dict(foreign),
            before=sum(end <= self.first for _, end in spans),
            after=sum(start >= self.last for start, _ in spans),
            active=self.report.active,
            facts=self.report.facts,
            notes=tuple(self.notes),
        )

    def _group_instructions(self) -> list[_Group]:
        """Group the instructions of each event: the passes of a product, and the waits that precede it on its
        engine."""
        groups: list[_Group] = []
        products: dict[str, _Group] = {}  # the latest product of each name: weights load ahead of earlier products
        pending: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for number, instruction in enumerate(self.instructions):
            engine, name = instruction.engine, instruction.name
            if name in products and self._belongs(instruction, products[name]):
                products[name].members.append(number)
                continue
            extra, pending[engine] = pending[engine], []
            groups.append(_Group([number], extra))
            if instruction.opcode in _PRODUCTS:
                products[name] = groups[-1]
            elif instruction.opcode in _WAITS:
                pending[engine] = [*extra, *instruction.waits]
        return groups

    def _belongs(self, instruction: Instruction, group: _Group) -> bool:
        """True if an instruction is another part of a product, not the product of a loop's next round."""
        places = {self.instructions[number].place for number in group.members}
        return instruction.opcode in _PRODUCTS and instruction.place not in places

    def _values(self) -> dict[int, list[tuple[int, int]]]:
        """Semaphore -> (value, time) while the kernel runs, up to its reset."""
        values: dict[int, list[tuple[int, int]]] = defaultdict(list)
        closed = set()
        for update in self.report.updates:
            if update.time < self.first or update.semaphore in closed:
                continue
            known = values[update.semaphore]
            if known and update.value < known[-1][0]:
                closed.add(update.semaphore)
            else:
                known.append((update.value, update.time))
        return values

    def _count_semaphores(self) -> tuple[dict[int, list[tuple[int, int]]], dict[int, tuple[int, int]]]:
        """Semaphore -> (new value, event) of the events that set it, in order; event -> the value that it sets."""
        counted: dict[int, list[tuple[int, int]]] = defaultdict(list)
        brings: dict[int, tuple[int, int]] = {}
        for number, group in enumerate(self.groups):
            for member in group.members:
                instruction = self.instructions[member]
                trigger = instruction.trigger
                semaphore, step = (trigger.semaphore, trigger.increment) if trigger else (instruction.sets, 1)
                if semaphore >= 0:
                    known = counted[semaphore]
                    known.append(((known[-1][0] if known else 0) + step, number))
                    brings[number] = semaphore, known[-1][0]
        return counted, brings

    def _time_of_value(self, semaphore: int, value: int) -> int | None:
        """The time at which a semaphore reached at least a value."""
        known = self.values.get(semaphore, [])
        at = bisect_left(known, (value, 0))
        return known[at][1] if at < len(known) else None

    def _product_ends(self) -> dict[int, int]:
        """Event -> the end of the preceding product, if there is one."""
        ends: dict[int, int] = {}
        latest = 0
        for number, group in enumerate(self.groups):
            products = [self.instructions[n].end for n in group.members if self.instructions[n].opcode == "MATMUL"]
            if products:
                ends[number], latest = latest, products[-1]
        return ends

    def _windows(self) -> list[Window]:
        """The clock's windows; before the first one the clock had the other rate."""
        windows = [Window(*window) for window in self.report.clock]
        if windows and windows[0].start > 0:
            windows.insert(0, Window(0, windows[0].start, not windows[0].full))
        return windows

    def _transfers(self) -> dict[int, Transfer]:
        """Event -> its transfer: a queue's packets belong to its triggers, in order; marks end each."""
        labels = {update.semaphore: update.label for update in self.report.updates if update.label}
        numbers = {name: number for number, name in self.report.queues.items()}
        triggers: dict[str, list[int]] = defaultdict(list)
        for number, group in enumerate(self.groups):
            trigger = self.instructions[group.members[0]].trigger
            if trigger is not None:
                triggers[labels.get(trigger.semaphore, "")].append(number)
        found: dict[int, Transfer] = {}
        for name, events in triggers.items():
            queue = numbers.get(name)
            packets = [packet for packet in self.report.packets if packet.queue == queue]
            if queue is None or not packets:
                self.notes.append(f"nothing is known of the packets of {len(events)} triggers of {name or 'no queue'}")
                continue
            self.own_queues[queue] = name
            shares = _shares(packets)
            if len(shares) == len(events):
                found |= {
                    event: self._transfer(event, name, share) for event, share in zip(events, shares, strict=True)
                }
            else:
                self.notes.append(f"{name}: packets of {len(shares)} transfers, but {len(events)} triggers")
        return found

    def _transfer(self, event: int, queue: str, packets: list[RawPacket]) -> Transfer:
        trigger = self.instructions[self.groups[event].members[0]].trigger
        assert trigger is not None
        data = [packet for packet in packets if not packet.mark] or packets
        return Transfer(
            queue=queue,
            mode=packets[0].mode,
            direction=trigger.direction,
            size=trigger.size,
            start=min(packet.start for packet in data),
            end=max(packet.end for packet in data),
            seen=self._time_of_value(*self.brings[event]),
            packets=tuple(
                Packet(queue, packet.engine, packet.start, packet.end, packet.size, packet.mark) for packet in packets
            ),
        )

    def _event(self, number: int) -> Event:
        group = self.groups[number]
        members = [self.instructions[member] for member in group.members]
        first, transfer = members[0], self.transfers.get(number)
        passes = _passes(members)
        ready, waited_for = self._last_wait(
            number, [*group.extra, *(wait for member in members for wait in member.waits)]
        )
        kind, size, place = _describe(members)
        start = self._product_start(number, passes) if passes else first.start
        return Event(
            engine=first.engine,
            kind=kind,
            size=size,
            start=start,
            end=max(member.end for member in members),
            place=place,
            source=self._kind(waited_for) if kind == "copy" else "",
            name=first.name,
            seen=self._time_of_value(*self.brings[number]) if number in self.brings else None,
            ready=ready,
            waited_for=waited_for,
            slow=bool(passes) and self._slow(passes[0].product[0]),
            passes=passes,
            transfer=transfer,
        )

    def _product_start(self, number: int, passes: tuple[Pass, ...]) -> int:
        """The start of a product: that of its weights, without the part that loads while the preceding product still
        runs."""
        return min(passes[0].product[0], max(passes[0].load[0], self.ends[number]))

    def _last_wait(self, number: int, waits: list[tuple[int, int]]) -> tuple[int | None, int]:
        """The time at which the last semaphore reached its value, and that semaphore's event."""
        latest, producer = None, NONE
        for semaphore, value in waits:
            time = self._time_of_value(semaphore, value)
            if time is not None and (latest is None or time > latest):
                counted = self.counted.get(semaphore, [])
                at = bisect_left(counted, (value, 0))
                found = counted[at][1] if at < len(counted) else NONE
                latest, producer = time, found if found != number else NONE
        return latest, producer

    def _kind(self, number: int) -> str:
        """The kind of an event; empty for no event."""
        if number == NONE:
            return ""
        return _describe([self.instructions[member] for member in self.groups[number].members])[0]

    def _slow(self, time: int) -> bool:
        at = bisect_right(self.windows, time, key=lambda window: window.start) - 1
        return at >= 0 and not self.windows[at].full


def _shares(packets: list[RawPacket]) -> list[list[RawPacket]]:
    """The packets of each of a queue's transfers: on each engine a mark ends them; empty if engines disagree."""
    shares: dict[int, list[list[RawPacket]]] = {}
    for packet in sorted(packets, key=lambda packet: (packet.engine, packet.end, packet.mark)):
        lists = shares.setdefault(packet.engine, [[]])
        lists[-1].append(packet)
        if packet.mark:
            lists.append([])
    for lists in shares.values():
        if not lists[-1]:
            lists.pop()
    counts = {len(lists) for lists in shares.values()}
    if len(counts) != 1:
        return []
    return [[packet for lists in shares.values() for packet in lists[n]] for n in range(counts.pop())]


def _passes(members: list[Instruction]) -> tuple[Pass, ...]:
    """Each MATMUL of a product with the preceding load of its weights; one that keeps its weights has an empty load."""
    passes, load = [], None
    for member in members:
        if member.opcode == "LDWEIGHTS":
            load = member
        elif member.opcode == "MATMUL":
            loaded = (load.start, load.end) if load else (member.start, member.start)
            passes.append(Pass(loaded, (member.start, member.end)))
            load = None
    return tuple(passes)


def _describe(members: list[Instruction]) -> tuple[str, int, str]:
    """Kind, size and place of an event, in the same words as a timeline's."""
    first = members[0]
    if first.trigger is not None:
        return first.trigger.direction, first.trigger.size, ""
    if first.opcode in _PRODUCTS:
        moving = next((op for m in members if m.opcode == "MATMUL" for op in m.operands if not op.written), None)
        stationary = next((op for m in members for op in m.operands if op.dtype), None)
        kind = "transpose" if first.transposes else "product"
        return kind, moving.elements if moving else 0, _short(stationary.dtype) if stationary else ""
    if first.opcode in _WAITS:
        return "wait", 0, ""
    kind = _KINDS.get(first.opcode, first.opcode.lower().replace("_", " "))
    if kind in ("activate", "reduce", "scalar", "tensor"):
        kind = f"{kind} {_DETAILS.get(first.detail, first.detail)}".strip()
    read = [op for op in first.operands if not op.written] or list(first.operands)
    written = [op for op in first.operands if op.written]
    sides = [f"{'P' if op.in_psum else 'S'} {_short(op.dtype)}" for op in (*read[:1], *written[:1])]
    return kind, read[0].elements if read else 0, " to ".join(sides)


def _short(dtype: str) -> str:
    return {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}.get(dtype, dtype)

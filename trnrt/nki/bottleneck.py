"""The bottleneck of a kernel: the work that holds most of the critical path, its lines, and a sure way to cut it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from trnrt.nki.breakdown import holder_of
from trnrt.nki.lines import Line
from trnrt.nki.machine.program import Instruction
from trnrt.nki.machine.timing.path import Segment
from trnrt.nki.machine.timing.steps import Named, Step, steps_by_line
from trnrt.nki.machine.timing.tensor_engine import PRODUCTS
from trnrt.nki.machine.timing.timeline import PS_PER_US, Timeline
from trnrt.nki.units import size_text, time_text

DMA_LATENCY = "DMA latency"
_BY_DMA = (DMA_LATENCY, "DMA data")
_DMA_PARTS = frozenset({"DMA starts", "DMA triggers", "DMA completions"})

_PLACES = 3
"""The most places that a sentence names."""
_COVERED = 0.9
"""Enough places are named once they have this share of what all have."""
_FEW = 4
"""Fewer instructions of a kind on the path are no pattern: nothing is advised."""
_LONGEST_NAME = 60

# The kind -> the subject of its sentence, its verb, and its instructions.
_SAID = {
    DMA_LATENCY: ("The fixed latencies of DMA transfers", "hold", "transfer"),
    "DMA data": ("The data of DMA transfers", "hold", "transfer"),
    "semaphores": ("Waits for semaphores between engines", "hold", "wait"),
    "loop barriers": ("The barriers of device loops", "hold", "barrier"),
    "meetings": ("Waits for the other core", "hold", "wait"),
    "function tables": ("Loads of the scalar engine's function tables", "hold", "load"),
    "tensor engine": ("Matrix products on the tensor engine", "hold", "product"),
}


@dataclass(frozen=True, slots=True)
class Place(Named):
    """A line, or a step of a model (line 0), and its time on the critical path in microseconds."""

    name: str
    file: str
    line: int
    us: float


@dataclass(frozen=True, slots=True)
class Bottleneck(Named):
    """The work that holds most of the critical path, without the launch.

    ``kind``: ``DMA latency``, ``DMA data``, an engine's elements (``tensor engine``), its fixed costs (``tensor
    latency``), or another part of the breakdown. ``count``: its instructions on the path; ``places``: where most of
    them are, the longest first, and ``more`` other places. ``sentence`` says all this in words, and how busy the engine
    that matters is; ``advice``: what would shorten it, "" unless that is certain.
    """

    kind: str
    share: float
    us: float
    count: int
    places: tuple[Place, ...]
    more: int
    sentence: str
    advice: str


@dataclass(frozen=True, slots=True)
class _Held:
    """The segments of one kind, and the instructions that they are of, each issue once."""

    timeline: Timeline
    kind: str
    segments: list[Segment]

    @property
    def issues(self) -> list[int]:
        return list(dict.fromkeys(segment.issue for segment in self.segments))

    @property
    def time(self) -> int:
        return sum(segment.end - segment.start for segment in self.segments)

    @property
    def instructions(self) -> list[Instruction]:
        line = self.timeline
        return [line.program.instructions[line.instruction[issue]] for issue in self.issues]

    @property
    def engine(self) -> str:
        """The engine of ``tensor engine`` and ``tensor latency``."""
        return self.kind.partition(" ")[0]


def find_bottleneck(
    timeline: Timeline, segments: Sequence[Segment], steps: Sequence[Step] | None = None
) -> Bottleneck | None:
    """The bottleneck of a critical path; None if it is empty. ``steps``: those of a model, to name instead of lines."""
    by_kind: dict[str, list[Segment]] = defaultdict(list)
    for segment in segments:
        by_kind[_kind(timeline, segment)].append(segment)
    if not by_kind:
        return None
    held = max((_Held(timeline, kind, found) for kind, found in by_kind.items()), key=lambda one: one.time)
    places = _places(held, steps)
    named = _enough(places)
    more, share = len(places) - len(named), held.time / timeline.duration
    return Bottleneck(
        kind=held.kind,
        share=share,
        us=held.time / PS_PER_US,
        count=len(held.issues),
        places=named,
        more=more,
        sentence=_sentence(held, share, named, more),
        advice=_advice(held),
    )


def _kind(timeline: Timeline, segment: Segment) -> str:
    return DMA_LATENCY if segment.part in _DMA_PARTS else holder_of(timeline, segment)


def _places(held: _Held, steps: Sequence[Step] | None) -> list[Place]:
    """The places where the time is spent, the longest first."""
    timeline = held.timeline
    program = timeline.program
    name = _line_name(program.file) if steps is None else _step_name(timeline, steps)
    spent: Counter[tuple[str, str, int]] = Counter()
    for segment in held.segments:
        instruction = program.instructions[timeline.instruction[segment.issue]]
        spent[name(instruction)] += segment.end - segment.start
    return [Place(*where, time / PS_PER_US) for where, time in spent.most_common()]


def _line_name(file: str) -> Callable[[Instruction], tuple[str, str, int]]:
    def name(instruction: Instruction) -> tuple[str, str, int]:
        source = Line(*instruction.source[:2])
        text = f"line {source.line}"
        return (text if source.file == file else f"{text} of {PurePath(source.file).name}", *source)

    return name


def _step_name(timeline: Timeline, steps: Sequence[Step]) -> Callable[[Instruction], tuple[str, str, int]]:
    instructions = timeline.program.instructions
    numbers = steps_by_line(steps, [instruction.line for instruction in instructions])

    def name(instruction: Instruction) -> tuple[str, str, int]:
        number = numbers[instruction.line]
        # Lines of no step belong to the last one, if it has no lines of its own (see ``profile_plan``).
        known = number >= 0 or (len(steps) > 0 and steps[-1].lines == (0, 0))
        return (steps[number].name[:_LONGEST_NAME] if known else "no step", "", 0)

    return name


def _enough(places: Sequence[Place]) -> tuple[Place, ...]:
    """The places to name: a few, which together have almost all of the time if that is possible."""
    total, named = sum(place.us for place in places), 0.0
    for count, place in enumerate(places[:_PLACES], 1):
        named += place.us
        if named >= _COVERED * total:
            return tuple(places[:count])
    return tuple(places[:_PLACES])


def _sentence(held: _Held, share: float, places: Sequence[Place], more: int) -> str:
    what, verb, noun = _subject_of(held)
    count = len(held.issues)
    each = [f"about {time_text(held.time / count / PS_PER_US)}"]
    if held.kind in _BY_DMA:
        each.append(size_text(sum(_payloads(held)) / count))
    details = f"{count:,} {noun}{'s' * (count != 1)}, {' and '.join(each)}{' each' * (count > 1)}"
    return (
        f"{what} {_places_text(held, places, more)}{verb} {_percent(share)} of the time after the launch ({details}); "
        f"{_busy_text(held.timeline)}.{_launch_text(held.timeline)}"
    )


def _subject_of(held: _Held) -> tuple[str, str, str]:
    if held.kind in _SAID:
        return _SAID[held.kind]
    if held.kind.endswith(" latency"):
        return f"The fixed costs of the {held.engine} engine's instructions", "hold", "instruction"
    return f"The {held.engine} engine's work on elements", "holds", "instruction"


def _launch_text(timeline: Timeline) -> str:
    """A remark on a small kernel, whose start and end outweigh the rest."""
    launch = timeline.timing.benchmark_ns / 1000
    if launch * PS_PER_US <= timeline.duration:
        return ""
    return f" The program's fixed start and end take longer than all of this: {time_text(launch)}."


def _places_text(held: _Held, places: Sequence[Place], more: int) -> str:
    """``(lines 12 and 14) ``; places that share the time evenly are only counted."""
    total, named = held.time / PS_PER_US, sum(place.us for place in places)
    if named < total / 3:
        return f"({len(places) + more:,} {'lines' if places[0].line else 'steps'}) "
    names = _join_lines(places) + ([f"{more:,} more"] if named < _COVERED * total else [])
    return f"({_list_text(names)}) "


def _join_lines(places: Sequence[Place]) -> list[str]:
    """The names of places, with the lines of a file together: ``lines 12 and 14``, ``line 3 of tiles.py``."""
    of_file: dict[str, list[int]] = defaultdict(list)
    for place in places:
        of_file[place.name.partition(str(place.line))[2] if place.line else place.name.strip("()")].append(place.line)
    return [
        f"line{'s' * (len(lines) > 1)} {_list_text([str(line) for line in sorted(lines)])}{rest}" if lines[0] else rest
        for rest, lines in of_file.items()
    ]


def _list_text(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])}{' and ' if len(names) > 1 else ''}{names[-1]}"


def _busy_text(timeline: Timeline) -> str:
    """The share of the time in which the tensor engine is busy; without products, that of the busiest engine."""
    engines = {name: busy for name, busy in timeline.busy.items() if name != "sync"}
    products = any(instruction.operation.name in PRODUCTS for instruction in timeline.program.instructions)
    name = "tensor" if products else max(engines, key=lambda one: (engines[one], one))
    share = _percent(timeline.busy[name] / max(1, timeline.duration))
    if products:
        return f"the tensor engine is busy {share} of the time"
    busiest = "the busiest are the DMA engines" if name == "dma" else f"the busiest engine is {name}"
    return f"{busiest}, {share} of the time"


def _payloads(held: _Held) -> list[int]:
    sizes = {transfer.issue: transfer.payload for transfer in held.timeline.transfers}
    return [sizes.get(issue, 0) for issue in held.issues]


def _advice(held: _Held) -> str:
    """The advice that certainly helps; "" if there is none."""
    count = len(held.issues)
    if held.kind == "tensor engine":
        return _advise_dtype(held)
    if held.kind == "DMA data":
        return _advise_packets(held)
    if count < _FEW:
        return ""
    if held.kind == DMA_LATENCY:
        return _advise_sizes(held)
    if held.kind == "loop barriers":
        return "Do more work in each trip, in fewer trips, or unroll the loop with Python's range: no barriers then."
    if held.kind == "function tables":
        return "Run the activations of one function after each other: its table then stays loaded."
    if held.kind.endswith(" latency") and held.engine != "tensor":
        return _advise_tiles(held)
    return ""


def _advise_dtype(held: _Held) -> str:
    tensor = held.timeline.timing.tensor
    kinds = Counter(
        instruction["stationary"].dtype.name
        for instruction in held.instructions
        if instruction.operation.name == "nc_matmul"
    )
    gain = tensor.peak("bfloat16") / tensor.peak("float32")
    if not kinds or kinds.most_common(1)[0][0] != "float32" or gain <= 1:
        return ""
    return f"If their precision is enough, multiply in bfloat16: the engine is {gain:.3g} times as fast as in float32."


def _advise_sizes(held: _Held) -> str:
    """Larger transfers, if a latency is longer than the bytes of a transfer need at full rate."""
    dma = held.timeline.timing.dma
    size = sum(_payloads(held)) / len(held.issues)
    flows = held.time / len(held.issues) / 1000 * dma.total_gbps  # bytes: ns times GB/s
    if size >= flows:
        return ""
    return f"Make fewer, larger transfers: {size_text(flows)} could flow in the latency of each."


def _advise_packets(held: _Held) -> str:
    """Longer runs of contiguous bytes, if an engine's fixed time for each is longer than that of its bytes."""
    dma, issues = held.timeline.timing.dma, set(held.issues)
    found = [transfer for transfer in held.timeline.transfers if transfer.issue in issues]
    run = sum(one.payload for one in found) / max(1, sum(one.packets for one in found))
    if not run or run >= dma.packet_ns * dma.engine_gbps:
        return ""
    return (
        f"Make runs of contiguous bytes longer: they have {size_text(run)} on average, and each costs a DMA engine "
        f"{dma.packet_ns:.3g} ns beside its bytes."
    )


def _advise_tiles(held: _Held) -> str:
    """More partitions, or longer rows, if the instructions fill few of them."""
    partitions = held.timeline.program.target.partitions
    views = [instruction.operands[0][1] for instruction in held.instructions if instruction.operands]
    if not views:
        return ""
    used = sum(view.partitions for view in views) / len(views)
    if used > partitions / 2:
        return ""
    return f"Use more partitions in fewer instructions: these write {used:.3g} of {partitions} on average."


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 or share == 0 else f"{100 * share:.1f} %"

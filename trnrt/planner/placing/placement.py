"""Place each tensor: in SBUF, in a layout that its producer writes and all its readers read, or in HBM.

Every kernel can read and write HBM, so a tensor that doesn't fit SBUF can always be spilled there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from trnrt.nki.machine.dtypes import as_dtype
from trnrt.nki.machine.targets import Target
from trnrt.planner.choices import ASKED
from trnrt.planner.lowering.weights import PARTITIONS, blocks_of
from trnrt.planner.placing.prefetching import Rooms
from trnrt.planner.placing.sweeps import Sweep, inner_values, reduce_steps, sweep_at
from trnrt.planner.placing.windows import Window, find_windows
from trnrt.planner.plan import Layout
from trnrt.planner.steps import Step


@dataclass
class Placed:
    """The layout and the stored shape of every tensor, and the reason for its place.

    ``within`` are the values that only one of the ``sweeps`` touches, each with the sweep: some of their images are
    stored at a time. ``spilled`` are those in HBM for lack of room. ``windows`` are the values
    that are stored in parts of others. ``itemsizes``: the bytes of an element where the dtype isn't
    the session's.
    """

    shapes: dict[str, tuple[int, ...]]
    layouts: dict[str, Layout]
    reasons: dict[str, str]
    inputs: frozenset[str] = frozenset()
    sweeps: Sequence[Sweep] = ()
    within: Mapping[str, Sweep] = field(default_factory=dict)
    spilled: list[str] = field(default_factory=list)
    windows: dict[str, Window] = field(default_factory=dict)
    itemsizes: dict[str, int] = field(default_factory=dict)

    def layout(self, value: str) -> Layout:
        """The layout of ``value``."""
        return self.layouts[value]

    def shape(self, value: str) -> tuple[int, ...]:
        """The shape ``value`` is stored in, of the whole batch."""
        return self.shapes[value]

    def position(self, value: str) -> tuple[str, int]:
        """The tensor that holds a value, itself or a larger one, and the value's first channel in it."""
        window = self.windows.get(value)
        return (value, 0) if window is None else (window.root, window.first)

    def held_shape(self, value: str) -> tuple[int, ...]:
        """The shape of the part of ``value`` that is stored at a time."""
        shape = self.shapes[value]
        return (self.within[value].images, *shape[1:]) if value in self.within else shape

    def largest_in_sbuf(self) -> str | None:
        """The tensor that takes most of SBUF, if there is one."""
        held = {v for v, layout in self.layouts.items() if layout is not Layout.HBM and v not in self.windows}
        return max(held, key=lambda value: (_columns(value, self), value), default=None)

    def to_hbm(self, value: str, reason: str) -> None:
        """Move a tensor to HBM, which every kernel can read and write."""
        self.layouts[value], self.reasons[value] = Layout.HBM, reason


def tile_shape(layout: Layout, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The SBUF tile that holds a tensor of ``shape`` in ``layout``."""
    if layout is Layout.CHANNELS:
        images, channels, height, width = shape
        return min(channels, PARTITIONS), blocks_of(channels), images, height, width
    across, along = (shape[1], shape[0]) if layout is Layout.FEATURES else shape
    return min(across, PARTITIONS), blocks_of(across), along


def place(
    steps: list[Step],
    inputs: dict[str, tuple[int, ...]],
    outputs: set[str],
    target: Target,
    itemsize: int,
    in_hbm: Mapping[str, str],
    sweeps: Sequence[Sweep] = (),
) -> Placed:
    """Decide the layout of each tensor.

    ``inputs`` are the graph inputs with their shapes, ``outputs`` the values that leave the device: both live in HBM,
    as do the values ``in_hbm``, each with its reason. The steps of ``sweeps`` take some images at a time.
    """
    shapes = dict(inputs) | {step.output: step.shape for step in steps}
    placed = Placed(shapes, dict.fromkeys(inputs, Layout.HBM), dict.fromkeys(inputs, "an input of the model"))
    placed.inputs = frozenset(inputs)
    placed.itemsizes = {step.output: as_dtype(step.dtype).itemsize for step in steps if step.dtype}
    placed.sweeps, placed.within = sweeps, inner_values(steps, sweeps, frozenset(outputs))
    for step in steps:
        if step.output in in_hbm and step.output not in outputs:
            placed.to_hbm(step.output, in_hbm[step.output])
            if in_hbm[step.output] != ASKED:
                placed.spilled.append(step.output)
        else:
            _choose(step, steps, outputs, placed)
    apart, tiles = set[str](), Tiles(steps, sweeps)
    while True:
        _agree(steps, placed)
        _store_parts(steps, placed)
        placed.windows = find_windows(steps, placed, outputs, apart)
        _keep_whole(placed)
        rooms = rooms_of(steps, placed, target, itemsize, tiles)
        live = _live_tensors(steps, placed, itemsize)
        # A kernel that wants more than all of SBUF, and has no tensor beside it, makes do with less.
        full = next((index for index, room in enumerate(rooms.own) if room < 0 and live[index]), None)
        if full is None:
            _explain_windows(steps, placed)
            return placed
        alive = live[full]
        early = _early_tensors(steps[full:], placed, alive) - apart
        if early:  # before it is complete, a tensor takes more room than the parts of it that are there
            apart.add(max(early, key=lambda value: alive[value]))
            continue
        held = sum(alive.values()) + rooms.own[full]
        why = f"does not fit the {held} bytes a partition that SBUF has for tensors while step {steps[full].name} runs"
        placed.spilled.append(max(alive, key=lambda value: alive[value]))
        placed.to_hbm(placed.spilled[-1], why)


def _store_parts(steps: list[Step], placed: Placed) -> None:
    """Put what only a tensor in HBM contains there at once: it may be written to its place, without a copy later."""
    in_hbm = [set(step.joins()) if placed.layout(step.output) is Layout.HBM else set() for step in steps]
    joined = {value for values in in_hbm for value in values}
    for step, values in zip(steps, in_hbm, strict=True):
        joined -= {source.value for source in step.sources} - values
    for step in steps:
        on_chip = placed.layout(step.output) is not Layout.HBM
        if step.output in joined and on_chip and step.shape[0] == 1 and not step.same_layout():
            placed.to_hbm(step.output, "written where a tensor in HBM wants it")


def _keep_whole(placed: Placed) -> None:
    """Let a sweep store whole batches of the windows of a tensor that it stores so."""
    whole = {value for value, window in placed.windows.items() if window.root not in placed.within}
    placed.within = {value: sweep for value, sweep in placed.within.items() if value not in whole}


def _early_tensors(steps: list[Step], placed: Placed, alive: Mapping[str, int]) -> set[str]:
    """Tensors that have windows and that one of ``steps`` completes later.

    Those that already hold no parts of their own are among them where a sweep begins before the step that makes them.
    """
    roots = {window.root for window in placed.windows.values()}
    return {step.output for step in steps[1:] if step.output in roots and step.output in alive}


def _explain_windows(steps: list[Step], placed: Placed) -> None:
    """Say where each window is."""
    taken = {step.output: step.sources[0].value for step in steps if step.first_taken_channel() is not None}
    for value, window in placed.windows.items():
        reason = f"written into {window.root!r} from channel {window.first} on: nothing to copy later"
        if value in taken and placed.position(taken[value])[0] == window.root:
            reason = f"the channels of {window.root!r} from {window.first} on: read where they are"
        placed.reasons[value] = reason


class Tiles:
    """The room that each step's kernel needs beside the tensors between steps.

    Asked once for each place of the tensors that a step touches.
    """

    def __init__(self, steps: list[Step], sweeps: Sequence[Sweep]) -> None:
        self.steps = reduce_steps(steps, sweeps)
        self._known: dict[tuple[int, bool, tuple[object, ...]], int] = {}

    def working_bytes(self, placed: Placed, *, held: bool) -> list[int]:
        """The bytes per partition of each step; ``held``: its weights are in SBUF already."""
        found = []
        for number, step in enumerate(self.steps):
            values = [source.value for source in step.sources] + [step.output]
            key = (number, held, tuple((placed.layout(value), placed.position(value)) for value in values))
            if key not in self._known:
                self._known[key] = step.working_bytes(placed, held=held)
            found.append(self._known[key])
        return found


def rooms_of(steps: list[Step], placed: Placed, target: Target, itemsize: int, tiles: Tiles | None = None) -> Rooms:
    """The free room of SBUF at each step, beside the resident tensors and the kernel's tiles."""
    alive = [sum(sizes.values()) for sizes in _live_tensors(steps, placed, itemsize)]
    usable, tiles = target.sbuf_usable_bytes, tiles or Tiles(steps, placed.sweeps)
    held, own = (
        [usable - taken - own for taken, own in zip(alive, tiles.working_bytes(placed, held=has), strict=True)]
        for has in (True, False)
    )
    opening = {k for k, step in enumerate(steps) if any(s.value in placed.inputs for s in step.sources)}
    loops = tuple((sweep.first, sweep.end) for sweep in placed.sweeps)
    return Rooms(held, own, frozenset(opening), usable, loops=loops)


def _choose(step: Step, steps: list[Step], outputs: set[str], placed: Placed) -> None:
    """The first layout that the step writes and every reader reads."""
    value = step.output
    if value in outputs:
        placed.to_hbm(value, "an output of the model")
        return
    accepted = [
        reader.reads(position, placed)
        for reader in steps
        for position, source in enumerate(reader.sources)
        if source.value == value
    ]
    offered = (placed.layout(step.sources[0].value),) if step.same_layout() else step.writes()
    for layout in offered:
        if layout is not Layout.HBM and all(layout in layouts for layouts in accepted):
            placed.layouts[value], placed.reasons[value] = layout, "stays on chip: its readers take it as it is"
            return
    placed.to_hbm(value, "no layout in SBUF suits its producer and all its readers")


def _agree(steps: list[Step], placed: Placed) -> None:
    """If a step needs source and result in one layout and they differ, put both in HBM."""
    changed = True
    while changed:
        changed = False
        for step in steps:
            values = [source.value for source in step.sources] + [step.output]
            if step.same_layout() and len({placed.layout(v) for v in values}) > 1:
                for value in values:
                    if placed.layout(value) is not Layout.HBM:
                        placed.to_hbm(value, f"step {step.name} wants source and result in one memory")
                        changed = True


def _live_tensors(steps: list[Step], placed: Placed, itemsize: int) -> list[dict[str, int]]:
    """The tensors that are in SBUF at each step, with their bytes per partition."""
    spans: dict[str, tuple[int, int]] = {}
    for index, step in enumerate(steps):
        for value in [step.output, *(source.value for source in step.sources)]:
            if placed.layout(value) is not Layout.HBM:
                root = placed.position(value)[0]
                spans[root] = (spans.get(root, (index, index))[0], index)
    for value, (first, last) in spans.items():
        if value not in placed.within:
            # A value that crosses a sweep's border lives from the sweep's first images to its last.
            begins, ends = sweep_at(placed.sweeps, first), sweep_at(placed.sweeps, last)
            spans[value] = (begins.first if begins else first, ends.end - 1 if ends else last)
    alive: list[dict[str, int]] = [{} for _ in steps]
    for value, (first, last) in spans.items():
        size = _partition_bytes(value, placed, itemsize)
        for index in range(first, last + 1):
            alive[index][value] = size
    return alive


def _partition_bytes(value: str, placed: Placed, itemsize: int) -> int:
    return _columns(value, placed) * placed.itemsizes.get(value, itemsize)


def _columns(value: str, placed: Placed) -> int:
    """The elements of a value on each partition."""
    return prod(tile_shape(placed.layout(value), placed.held_shape(value))[1:])

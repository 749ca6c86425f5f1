"""Windows: tensors that are stored in a part of a larger one, so that a Concat or a Split has nothing to copy.

A Concat of channels whose inputs are written where it wants them needs no time. A value becomes a window of the
Concat's result if both have one layout, the value's producer can write there, and no other reader minds. A Concat of
windows of one tensor, in their order, is a window itself: the Concats of a dense block, each with one input more, are
all parts of the last one. Channels that a step takes from the beginning of a block are a window of its source: all
kernels read a tile from partition 0 on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trnrt.planner.lowering.weights import PARTITIONS, blocks_of
from trnrt.planner.placing.sweeps import Sweep
from trnrt.planner.plan import Layout
from trnrt.planner.steps import Step

# Channels that an engine reaches from each start in a block (arch guide trn1, Accessing SBUF/PSUM tensors).
_REACHED = {0: PARTITIONS, 32: 32, 64: 64, 96: 32}


@dataclass(frozen=True)
class Window:
    """The channels of tensor ``root`` from number ``first`` on; ``root`` is no window itself."""

    root: str
    first: int

    def code(self, root: str, layout: Layout, channels: int) -> str:
        """The expression for these ``channels`` of a tensor that is called ``root``."""
        if layout is Layout.HBM:
            return f"{root}[:, {self.first}:{self.first + channels}]"
        partition, block = self.first % PARTITIONS, self.first // PARTITIONS
        parts = min(channels, PARTITIONS)
        return f"{root}[{partition}:{partition + parts}, {block}:{block + blocks_of(channels)}]"


class Stored(Protocol):
    """The layouts and shapes of tensors, and the sweeps of those that one sweep alone touches."""

    within: Mapping[str, Sweep]

    def layout(self, value: str) -> Layout:
        """The layout of a value."""
        ...

    def shape(self, value: str) -> tuple[int, ...]:
        """The shape a value is stored in."""
        ...


def find_windows(
    steps: Sequence[Step], stored: Stored, outputs: Collection[str], apart: Collection[str]
) -> dict[str, Window]:
    """The window of each value that has one. ``outputs`` leave the device: they are no windows, but may hold some.
    ``apart`` hold none in SBUF."""
    search = _Search(steps, stored, frozenset(outputs))
    for step in reversed(steps):
        if step.joins() and (step.output not in apart or stored.layout(step.output) is Layout.HBM):
            search.add_parts(step)
    return search.add_taken(steps, search.settle())


class _Search:
    """The windows found so far, from the last step to the first."""

    def __init__(self, steps: Sequence[Step], stored: Stored, outputs: frozenset[str]) -> None:
        self._stored = stored
        self._outputs = outputs
        self._makers = {step.output: step for step in steps}
        self._readers: dict[str, list[Step]] = {}
        for step in steps:
            for value in {source.value for source in step.sources}:
                self._readers.setdefault(value, []).append(step)
        self._found: dict[str, Window] = {}

    def add_parts(self, step: Step) -> None:
        """Make windows of a step's result of the values that it joins; or of the result, if it joins windows of one
        tensor that lie as it wants them."""
        parts = step.joins()
        if step.output not in self._found:
            whole = self._common_window(step, parts)
            if whole is not None:
                self._found[step.output] = whole
                return
        own = self._found.get(step.output, Window(step.output, 0))
        for value, first in parts.items():
            window = Window(own.root, own.first + first)
            if value not in self._found and self._can_be(value, step.output, window):
                self._found[value] = window

    def _common_window(self, step: Step, parts: Mapping[str, int]) -> Window | None:
        """The window that the values a step joins fill, if that is all of its result."""
        windows = [self._found.get(source.value) for source in step.sources]
        first = windows[0] if windows else None
        if first is None or step.output in self._outputs or set(parts) != {source.value for source in step.sources}:
            return None
        whole = Window(first.root, first.first - parts[step.sources[0].value])
        wanted = [Window(whole.root, whole.first + parts[source.value]) for source in step.sources]
        return whole if windows == wanted and self._can_be(step.output, first.root, whole) else None

    def _can_be(self, value: str, whole: str, window: Window) -> bool:
        """True if a value can be stored in a window that is a part of the tensor ``whole``, too."""
        maker, shape, root = self._makers.get(value), self._stored.shape(value), window.root
        if maker is None or value in self._outputs or len(shape) != 4 or window.first < 0:
            return False
        same = (maker.dtype, self._stored.layout(value)) == (self._makers[root].dtype, self._stored.layout(root))
        held = self._stored.shape(root)
        sweep = self._stored.within.get(root)  # None: the whole batch of the root is stored
        alike = sweep is None or self._stored.within.get(value) == sweep
        if not same or not alike or (shape[0], shape[2:]) != (held[0], held[2:]):
            return False
        if self._stored.layout(value) is Layout.HBM:
            return shape[0] == 1  # else its elements are not contiguous
        return self._fits(maker, value, shape[1], window)

    def _fits(self, maker: Step, value: str, channels: int, window: Window) -> bool:
        """True if engines can write these channels of a tile, and all readers of the value read them there."""
        start = window.first % PARTITIONS
        if not maker.fills_window(window.first):
            return False
        # What starts inside of a block is read by those alone whose copy it saves.
        return start == 0 or (
            channels <= _REACHED.get(start, 0)
            and all(value in reader.joins() for reader in self._readers.get(value, []))
        )

    def settle(self) -> dict[str, Window]:
        """The windows, without those inside of a block that a step has to read after all."""
        gone = {
            value
            for value, window in self._found.items()
            if window.first % PARTITIONS and not all(self._is_joined(value, r) for r in self._readers.get(value, []))
        }
        return {value: window for value, window in self._found.items() if value not in gone}

    def add_taken(self, steps: Sequence[Step], windows: Mapping[str, Window]) -> dict[str, Window]:
        """The windows, and those that are parts of the tensors they are taken from. Such a tensor may be a window
        itself, and have such parts."""
        found = dict(windows)
        for step in steps:
            first = step.first_taken_channel()
            if first is None or step.output in found or step.output in self._outputs:
                continue
            source = step.sources[0].value
            base = found.get(source, Window(source, 0))
            window = Window(base.root, base.first + first)
            if window.first % PARTITIONS == 0 and self._shares_tile(step.output, source, base.root):
                found[step.output] = window
        return found

    def _shares_tile(self, value: str, source: str, root: str) -> bool:
        """True if a value that is taken from ``source`` can stay where that is, in the tile ``root``."""
        layouts = {self._stored.layout(one) for one in (value, source, root)}
        sweeps = {str(self._stored.within.get(one)) for one in (value, source, root)}
        maker = self._makers.get(source)
        if maker is None or layouts != {Layout.CHANNELS} or len(sweeps) > 1:
            return False
        alike = {step.dtype for step in (maker, self._makers[value], self._makers[root])}
        return len(alike) == 1 and value not in {window.root for window in self._found.values()}

    def _is_joined(self, value: str, reader: Step) -> bool:
        """True if a reader's result has the value in place."""
        whole = self._found.get(reader.output, Window(reader.output, 0))
        return self._found[value] == Window(whole.root, whole.first + reader.joins().get(value, -1))

"""Where each tensor lives: in SBUF, in a layout that its producer writes and all its readers read, or in HBM.

Every kernel can read and write HBM, so moving a tensor there is always possible; it is done to what does not fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from trnrt.nki.machine.targets import Target
from trnrt.planner.plan import Layout
from trnrt.planner.steps import Step
from trnrt.planner.weights import PARTITIONS, blocks_of

# Bytes a partition that the kernels' own tiles may take at once (the budgets at the top of the kernel files);
# what is left of SBUF may hold activations between steps.
WORKING_BYTES = 132 * 1024


@dataclass
class Placed:
    """The layout and the stored shape of every tensor, and why it lives there."""

    shapes: dict[str, tuple[int, ...]]
    layouts: dict[str, Layout]
    reasons: dict[str, str]

    def layout(self, value: str) -> Layout:
        """Where ``value`` lives."""
        return self.layouts[value]

    def shape(self, value: str) -> tuple[int, ...]:
        """The shape ``value`` is stored in."""
        return self.shapes[value]

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
    steps: list[Step], inputs: dict[str, tuple[int, ...]], outputs: set[str], target: Target, itemsize: int
) -> Placed:
    """Decide the layout of each tensor.

    ``inputs`` are the graph inputs with their shapes, ``outputs`` the values that leave the device: both in HBM.
    """
    shapes = dict(inputs) | {step.output: step.shape for step in steps}
    placed = Placed(shapes, dict.fromkeys(inputs, Layout.HBM), dict.fromkeys(inputs, "an input of the model"))
    for step in steps:
        _choose(step, steps, outputs, placed)
    budget = target.sbuf_usable_bytes - WORKING_BYTES
    while True:
        _agree(steps, placed)
        value = _largest_at_peak(steps, placed, budget, itemsize)
        if value is None:
            return placed
        placed.to_hbm(value, f"does not fit the {budget} bytes a partition that SBUF has for tensors between steps")


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
    """Where a step wants source and result in one layout and they differ, both go to HBM."""
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


def _largest_at_peak(steps: list[Step], placed: Placed, budget: int, itemsize: int) -> str | None:
    """The largest tensor alive where SBUF holds more than ``budget`` bytes a partition; None if it never does."""
    spans: dict[str, tuple[int, int]] = {}
    for index, step in enumerate(steps):
        for value in [step.output, *(source.value for source in step.sources)]:
            if placed.layout(value) is not Layout.HBM:
                spans[value] = (spans.get(value, (index, index))[0], index)
    for index in range(len(steps)):
        alive = {v: _partition_bytes(v, placed, itemsize) for v, (a, b) in spans.items() if a <= index <= b}
        if sum(alive.values()) > budget:
            return max(alive, key=lambda v: alive[v])
    return None


def _partition_bytes(value: str, placed: Placed, itemsize: int) -> int:
    return prod(tile_shape(placed.layout(value), placed.shape(value))[1:]) * itemsize

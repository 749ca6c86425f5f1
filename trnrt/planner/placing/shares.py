"""Shares: steps whose outputs the physical cores of a logical one divide, channels or features, in equal parts.

A core makes its own share of a step's outputs, with its own share of the weights. Where another step reads all of
them, the cores exchange their shares at once. A step that reads only the same share (a pool, a residual sum) needs no
exchange, and neither does a result of the model: it is in the memory that the cores share.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from trnrt.planner.lowering.weights import PARTITIONS
from trnrt.planner.placing.placement import Placed
from trnrt.planner.placing.sweeps import sweep_at
from trnrt.planner.plan import Layout
from trnrt.planner.steps import Step

CORE = "core"
"""The module's name for the number of the core that runs it."""


@dataclass(frozen=True)
class Shares:
    """The division of a module's steps over ``cores``. ``steps`` has each core's share of those that are divided, by
    the step's number; ``exchanged`` are the values of which a later step reads more than its own share."""

    cores: int = 1
    steps: dict[int, tuple[Step, ...]] = field(default_factory=dict)
    exchanged: frozenset[str] = frozenset()

    def reads_own(self, number: int, position: int, whole: Step) -> bool:
        """True if a step reads only its own share of a source."""
        shares = self.steps.get(number)
        return shares is not None and shares[0].sources[position].shape != whole.sources[position].shape

    def describe(self, number: int, output: str) -> str:
        """How a step is divided, in words; "" if it isn't."""
        if number not in self.steps:
            return ""
        made = f"each of {self.cores} cores makes {self.steps[number][0].shape[1]} of its outputs"
        return f"{made}, and they exchange them" if output in self.exchanged else f"{made}, without an exchange"


def find_shares(
    names: Collection[str], cores: int, steps: Sequence[Step], placed: Placed, results: Collection[str]
) -> Shares:
    """The division of the steps called ``names``, without those that their layouts don't allow. ``results`` leave the
    device."""
    found: dict[int, tuple[Step, ...]] = {}
    read = {source.value for step in steps for source in step.sources}
    for number, step in enumerate(steps):
        if step.name in names and sweep_at(placed.sweeps, number) is None:
            in_hbm = placed.layout(step.output) is Layout.HBM
            if in_hbm and (step.output not in results or step.output in read or step.shape[0] != 1):
                continue  # each core has its own memory for it, or a reader would have to wait for the other core
            shares = [step.share(core, cores) for core in range(cores)]
            made = tuple(share for share in shares if share is not None)
            if len(made) == cores and _fits_layouts(step, made[0], placed):
                found[number] = made
    divided = Shares(cores, found)
    outputs = {steps[number].output for number in found}
    needed = {
        source.value
        for number, step in enumerate(steps)
        for position, source in enumerate(step.sources)
        if source.value in outputs and not divided.reads_own(number, position, step)
    }
    return Shares(cores, found, frozenset(needed))


def _fits_layouts(step: Step, share: Step, placed: Placed) -> bool:
    """True if the shares of the result, and of the sources of which only a share is read, are parts of their tiles."""
    partial = [
        whole.value
        for whole, part in zip(step.sources, share.sources, strict=True)
        if whole.shape != part.shape and placed.layout(whole.value) is Layout.HBM
    ]
    layout, outputs = placed.layout(step.output), share.shape[1]
    in_blocks = layout in (Layout.HBM, Layout.ROWS) or outputs % PARTITIONS == 0
    return not partial and in_blocks


def share_code(name: str, layout: Layout, outputs: int, core: str = CORE) -> str:
    """The expression for a core's share, ``outputs`` of them, of a tensor that is called ``name``."""
    size = outputs if layout in (Layout.HBM, Layout.ROWS) else outputs // PARTITIONS
    first = core if size == 1 else f"{size} * {core}"
    before = ":, :, " if layout is Layout.ROWS else ":, "
    return f"{name}[{before}{first} : {first} + {size}]"

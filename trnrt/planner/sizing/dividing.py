"""Divide a plan's steps into kernels that keep a budget of instructions, at the cheapest tensors.

A tensor that one kernel makes and later ones read is stored to HBM once, and loaded by each of them; each further
kernel also has a fixed cost of its own. The division with the least sum is a shortest path over the places between
steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf, prod

from trnrt.nki.machine.dtypes import as_dtype
from trnrt.nki.machine.targets import Target
from trnrt.planner.plan import DeviceTensor
from trnrt.planner.rendering.draft import Material
from trnrt.planner.steps import Step


def divide(counts: Sequence[int], costs: Callable[[int], Iterable[float]], capacity: int) -> list[tuple[int, int]]:
    """The cheapest division: first step and end of each kernel.

    ``counts``: instructions of each step. ``costs(end)``: the costs of the kernels that end before step ``end``: of its
    last step alone, of its last two, and so on. No kernel has more than ``capacity`` instructions, except one of a
    single step.
    """
    least, before = [0.0] + [inf] * len(counts), [0] * (len(counts) + 1)
    for end in range(1, len(counts) + 1):
        total = 0
        for first, own in zip(range(end - 1, -1, -1), costs(end), strict=False):
            total += counts[first]
            if total > capacity and first < end - 1:
                break
            cost = least[first] + own
            if cost < least[end]:
                least[end], before[end] = cost, first
    bounds, end = [], len(counts)
    while end:
        bounds.append((before[end], end))
        end = before[end]
    return bounds[::-1]


def crossing_tensors(material: Material, at: int) -> list[DeviceTensor]:
    """The tensors that steps before number ``at`` make and later ones read."""
    made = {step.output: step for step in material.steps[:at]}
    read = dict.fromkeys(source.value for step in material.steps[at:] for source in step.sources)
    return [made_tensor(made[value], material.dtype) for value in read if value in made]


def made_tensor(step: Step, dtype: str) -> DeviceTensor:
    """A step's result in HBM; ``dtype`` is the session's."""
    return DeviceTensor(step.output, step.shape, step.dtype or dtype)


def tensor_bytes(tensors: Sequence[DeviceTensor]) -> int:
    """Bytes of tensors in HBM."""
    return sum(prod(tensor.shape) * as_dtype(tensor.dtype).itemsize for tensor in tensors)


class Traffic:
    """The tensors that a plan's kernels store for each other, and their cost in microseconds: the fixed cost of a
    program, and the bytes at the peak rate of DMA. The first kernel has no fixed cost."""

    def __init__(self, material: Material, target: Target) -> None:
        self._steps = material.steps
        self._tensors = {step.output: made_tensor(step, material.dtype) for step in material.steps}
        self._last_reader = {
            source.value: number for number, step in enumerate(material.steps) for source in step.sources
        }
        self._results = {tensor.name for tensor in material.results}
        self._fixed_us, self._gbps = target.timing.benchmark_ns / 1000, target.timing.dma.total_gbps

    def costs(self, end: int) -> Iterator[float]:
        """The costs of the kernels that end before step ``end``; see ``divide``."""
        loaded, stored = dict[str, int](), 0
        for first in range(end - 1, -1, -1):
            step = self._steps[first]
            loaded.pop(step.output, None)
            if self._last_reader.get(step.output, -1) >= end and step.output not in self._results:
                stored += self._bytes(step.output)
            # What the kernel's earlier steps make is taken out again when they are reached.
            loaded |= {s.value: self._bytes(s.value) for s in step.sources if s.value in self._tensors}
            yield self._us(stored + sum(loaded.values())) + (self._fixed_us if first else 0.0)

    def read_by(self, first: int, end: int) -> list[DeviceTensor]:
        """The tensors of earlier kernels that the kernel of these steps reads."""
        made = {step.output for step in self._steps[first:end]}
        read = dict.fromkeys(source.value for step in self._steps[first:end] for source in step.sources)
        return [self._tensors[value] for value in read if value in self._tensors and value not in made]

    def reading_us(self, read: Sequence[DeviceTensor], stored: Sequence[DeviceTensor]) -> float:
        """The cost of a further kernel that reads these, ``stored`` of which are stored for it alone or first."""
        kept = [tensor for tensor in stored if tensor.name not in self._results]
        return self._fixed_us + self._us(tensor_bytes(read) + tensor_bytes(kept))

    def _bytes(self, value: str) -> int:
        return tensor_bytes([self._tensors[value]])

    def _us(self, size: int) -> float:
        return size / (self._gbps * 1000)

"""Divide a plan's steps into kernels that keep a budget of instructions, at the cheapest tensors.

A tensor that one kernel makes and a later one reads is stored to HBM and loaded again; each further kernel also has a
fixed cost of its own. The division with the least sum of both is a shortest path over the places between steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

from trnrt.nki.machine.dtypes import as_dtype
from trnrt.nki.machine.targets import Target
from trnrt.planner.plan import DeviceTensor
from trnrt.planner.rendering.module import Material
from trnrt.planner.steps import Step


def divide(counts: Sequence[int], costs: Sequence[float], capacity: int) -> list[tuple[int, int]]:
    """The cheapest division: first step and end of each kernel.

    ``counts``: instructions of each step. ``costs[k]``: the cost of a kernel that begins at step ``k``. No kernel has
    more than ``capacity`` instructions, except one of a single step.
    """
    least, before = [0.0] + [inf] * len(counts), [0] * (len(counts) + 1)
    for end in range(1, len(counts) + 1):
        total = 0
        for first in range(end - 1, -1, -1):
            total += counts[first]
            if total > capacity and first < end - 1:
                break
            cost = least[first] + costs[first]
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


def cut_costs(material: Material, target: Target) -> list[float]:
    """The cost in microseconds of a kernel that begins at each step: the fixed cost of a program, and the time to store
    and load what crosses, at the peak rate of DMA. The first kernel costs nothing."""
    fixed, gbps = target.timing.benchmark_ns / 1000, target.timing.dma.total_gbps
    places = range(1, len(material.steps))
    return [0.0, *(fixed + 2 * tensor_bytes(crossing_tensors(material, at)) / (gbps * 1000) for at in places)]

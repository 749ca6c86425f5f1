"""The cheapest division of steps into kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning import drawn, modelled

from trnrt.importer import import_model
from trnrt.nki.machine.targets import get_target
from trnrt.planner.making import Planning
from trnrt.planner.options import PlanOptions
from trnrt.planner.sizing.dividing import Traffic, divide

STEPS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 50)), min_size=1, max_size=8)


def by_begin(costs: list[float]) -> Callable[[int], Iterator[float]]:
    """The costs of kernels that depend on their first step alone."""
    return lambda end: reversed(costs[:end])


def cost_of(bounds: list[tuple[int, int]], costs: Callable[[int], Iterable[float]]) -> float:
    return sum(list(costs(end))[end - 1 - first] for first, end in bounds)


def fits(bounds: list[tuple[int, int]], counts: list[int], capacity: int) -> bool:
    return all(end - first == 1 or sum(counts[first:end]) <= capacity for first, end in bounds)


@given(STEPS, st.integers(1, 40))
def test_no_other_division_is_cheaper(steps: list[tuple[int, int]], capacity: int) -> None:
    """Against all divisions there are."""
    counts, costs = [count for count, _ in steps], by_begin([0.0, *(float(cost) for _, cost in steps[1:])])
    found = divide(counts, costs, capacity)
    assert fits(found, counts, capacity)
    assert [first for first, _ in found] == [0, *(end for _, end in found[:-1])] and found[-1][1] == len(counts)
    inner = range(1, len(counts))
    every = [
        list(pairwise((0, *places, len(counts))))
        for number in range(len(counts))
        for places in combinations(inner, number)
    ]
    assert cost_of(found, costs) == min(cost_of(one, costs) for one in every if fits(one, counts, capacity))


def test_a_cut_avoids_the_large_tensor() -> None:
    assert divide([10, 10, 10, 10], by_begin([0.0, 9.0, 1.0, 9.0]), 30) == [(0, 2), (2, 4)]


def test_what_kernels_store_for_each_other_is_counted_once() -> None:
    """A skip connection over two cuts: stored once, loaded by each kernel that reads it."""
    model = modelled(
        "(float[1,8,16,16] x) => (float[1,8,16,16] y) {"
        "a = Conv<kernel_shape=[3,3],pads=[1,1,1,1]>(x, w)  b = Conv<kernel_shape=[3,3],pads=[1,1,1,1]>(a, w)"
        "c = Conv<kernel_shape=[3,3],pads=[1,1,1,1]>(b, w)  y = Add(c, a) }",
        {"w": drawn(8, 8, 3, 3)},
    )
    options = PlanOptions(effort=0)
    imported = import_model(model.SerializeToString())
    planning = Planning(imported, imported.bind({"x": (1, 8, 16, 16)}, {}), options, 1, None)
    material = planning.material(planning.search().choices, 1)
    target = get_target(options.target)
    traffic, count = Traffic(material, target), len(material.steps)
    assert count >= 3
    size_us = 8 * 16 * 16 * 4 / (target.timing.dma.total_gbps * 1000)
    launch_us = target.timing.benchmark_ns / 1000
    for bounds in ([(0, 1), (1, 2), (2, count)], [(0, 1), (1, count)], [(0, 2), (2, count)], [(0, count)]):
        read = [traffic.read_by(first, end) for first, end in bounds[1:]]
        values = {tensor.name for tensors in read for tensor in tensors}
        moved = len(values) + sum(map(len, read))
        wanted = (len(bounds) - 1) * launch_us + moved * size_us
        assert cost_of(bounds, traffic.costs) == pytest.approx(wanted)
        stored = set[str]()
        told = 0.0
        for tensors in read:
            new = [tensor for tensor in tensors if tensor.name not in stored]
            stored |= {tensor.name for tensor in new}
            told += traffic.reading_us(tensors, new)
        assert told == pytest.approx(wanted)

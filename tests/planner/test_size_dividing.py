"""The cheapest division of steps into kernels."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from trnrt.planner.sizing.dividing import divide

STEPS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 50)), min_size=1, max_size=8)


def cost_of(bounds: list[tuple[int, int]], costs: list[float]) -> float:
    return sum(costs[first] for first, _ in bounds)


def fits(bounds: list[tuple[int, int]], counts: list[int], capacity: int) -> bool:
    return all(end - first == 1 or sum(counts[first:end]) <= capacity for first, end in bounds)


@given(STEPS, st.integers(1, 40))
def test_no_other_division_is_cheaper(steps: list[tuple[int, int]], capacity: int) -> None:
    """Against all divisions there are."""
    counts, costs = [count for count, _ in steps], [0.0, *(float(cost) for _, cost in steps[1:])]
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
    assert divide([10, 10, 10, 10], [0.0, 9.0, 1.0, 9.0], 30) == [(0, 2), (2, 4)]

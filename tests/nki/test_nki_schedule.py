"""``kernel.with_schedule``: edges between named instructions, in the order of the program and in its timing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulating import Array, Tensor, drawn, give, load, same, tile

from trnrt.errors import KernelError
from trnrt.nki import nisa, nki, nl, simulate, trace
from trnrt.nki.machine.program import Program
from trnrt.nki.machine.timing import schedule as predicted

X = np.abs(drawn(128, 64)) + 1


@nki.jit
def kernel(t: Any) -> Any:
    """1/t + (t + 1): two instructions that don't need each other, and one that needs both."""
    x = load(t)
    a, b, c = (tile(*t.shape) for _ in range(3))
    nisa.reciprocal(dst=a, data=x, name="recip")
    nisa.tensor_scalar(dst=b, data=x, op0=nl.add, operand0=1.0, name="plus1")
    nisa.tensor_tensor(dst=c, data1=a, data2=b, op=nl.add, name="sum")
    return give(c)


@nki.jit
def exponentials(a: Any, b: Any, c: Any) -> Any:
    """Three activations that could run in any order."""
    loaded = [load(x) for x in (a, b, c)]
    made = [tile(*x.shape) for x in loaded]
    for i, (out, x) in enumerate(zip(made, loaded, strict=True)):
        nisa.activation(dst=out, data=x, op=nl.exp, name=f"act{i}")
    return tuple(give(x) for x in made)


def names(program: Program) -> list[str]:
    return [instruction.name for instruction in program.instructions if instruction.name is not None]


def expected(x: Array) -> Array:
    return simulate(kernel)(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("schedule", [[("plus1", "recip")], [("plus1", ["recip"])], (["plus1", ("recip",)],), []])
def test_edges_in_the_kernel_s_order(schedule: Any) -> None:
    scheduled = kernel.with_schedule(schedule)
    program = trace(scheduled, X)
    assert names(program) == ["recip", "plus1", "sum"]
    after = {i.name: [before.name for before in i.after] for i in program.instructions if i.after}
    assert after == ({"plus1": ["recip"]} if schedule else {})
    same(simulate(scheduled)(X), expected(X))
    same(scheduled(X), expected(X))


def test_an_edge_against_the_kernel_s_order_moves_instructions() -> None:
    scheduled = kernel.with_schedule([("recip", "plus1")])
    assert names(trace(scheduled, X)) == ["plus1", "recip", "sum"]
    same(simulate(scheduled)(X), expected(X))


def test_edges_made_by_a_program() -> None:
    inputs = [drawn(128, 64, seed=seed) for seed in range(3)]
    for edges in ([(f"act{i}", f"act{i - 1}") for i in (1, 2)], [(f"act{i}", f"act{i + 1}") for i in (0, 1)]):
        scheduled = exponentials.with_schedule(edges)
        order = names(trace(scheduled, *inputs))
        assert all(order.index(later) > order.index(earlier) for later, earlier in edges)
        for one, other in zip(simulate(scheduled)(*inputs), simulate(exponentials)(*inputs), strict=True):
            same(one, other)


def test_the_prediction_waits_at_an_edge() -> None:
    @nki.jit
    def two_engines(t: Any) -> Any:
        x = load(t)
        a, b = tile(*t.shape), tile(*t.shape)
        nisa.activation(dst=a, data=x, op=nl.exp, name="scalar")
        nisa.tensor_scalar(dst=b, data=x, op0=nl.add, operand0=1.0, name="vector", engine=nisa.engine.vector)
        return give(a), give(b)

    def waits(program: Program) -> bool:
        at = {instruction.name: number for number, instruction in enumerate(program.instructions)}
        timeline = predicted(program)
        return bool(timeline.start[at["vector"]] >= timeline.end[at["scalar"]])

    assert not waits(trace(two_engines, X))
    assert waits(trace(two_engines.with_schedule([("vector", "scalar")]), X))


def test_a_schedule_goes_with_the_kernel() -> None:
    scheduled = nki.jit(kernel.function).with_schedule([("recip", "plus1")])
    assert names(simulate(scheduled).trace(X)[0]) == ["plus1", "recip", "sum"]
    assert [names(program) for program in simulate(scheduled[2]).trace(X)] == [["plus1", "recip", "sum"]] * 2
    assert [names(program) for program in simulate(scheduled)[2].trace(X)] == [["plus1", "recip", "sum"]] * 2
    assert names(trace(scheduled[2], X)) == ["plus1", "recip", "sum"]
    assert names(trace(kernel, X)) == ["recip", "plus1", "sum"]  # the kernel itself has none
    assert names(trace(scheduled.with_schedule([]), X)) == ["recip", "plus1", "sum"]
    assert scheduled.schedule == (("recip", "plus1"),)


REFUSED: dict[str, tuple[Any, str]] = {
    "unknown": ([("plus1", "minus1")], "no instruction is called 'minus1'; those with a name are: plus1, recip, sum"),
    "itself": ([("sum", "sum")], "'sum' can't wait for itself"),
    "against the data": ([("recip", "sum")], "'recip' can't wait for 'sum', which has to run after it"),
    "a circle": ([("recip", "plus1"), ("plus1", "recip")], "'plus1' can't wait for 'recip'"),
    "text": ("plus1", "takes a list of pairs of names, not a str"),
    "one name": ([("plus1",)], "('plus1',) is no pair"),
    "a number": ([("plus1", 3)], "must hold names of instructions"),
    "names that wait": ([(["plus1", "sum"], "recip")], "must hold names of instructions"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused(name: str) -> None:
    schedule, complaint = REFUSED[name]
    with pytest.raises(KernelError) as error:
        simulate(kernel.with_schedule(schedule))(X)
    assert complaint in str(error.value)


def test_a_name_that_several_instructions_have() -> None:
    @nki.jit
    def twice(t: Any) -> Any:
        x = load(t)
        for _ in range(2):
            nisa.tensor_scalar(dst=x, data=x, op0=nl.add, operand0=1.0, name="plus")
        nisa.reciprocal(dst=x, data=x, name="recip")
        return give(x)

    with pytest.raises(KernelError, match="2 instructions are called 'plus'; a name that it uses is unique"):
        trace(twice.with_schedule([("recip", "plus")]), X)


def loops(t: Tensor) -> Tensor:
    """Three device loops on three tiles; the last one uses the counter of a register."""
    x = load(t)
    a, b, c = (tile(*t.shape) for _ in range(3))
    for made, name in ((a, "a"), (b, "b")):
        nisa.memset(dst=made, value=0)
        for _ in nl.dynamic_range(3):
            nisa.tensor_tensor(dst=made, data1=made, data2=x, op=nl.add, name=f"{name} plus")
            nisa.tensor_scalar(dst=made, data=made, op0=nl.multiply, operand0=0.5, name=f"{name} times")
    nisa.tensor_scalar(dst=c, data=x, op0=nl.add, operand0=1.0, name="c")
    nisa.tensor_tensor(dst=c, data1=c, data2=a, op=nl.add, name="c and a")
    nisa.tensor_tensor(dst=c, data1=c, data2=b, op=nl.add, name="c and b")
    return give(c)


@pytest.mark.usefixtures("level_0_6")
@pytest.mark.parametrize(
    ("edges", "order"),
    [
        ([("a plus", "b plus")], "b plus, b times, a plus, a times, c, c and a, c and b"),
        ([("a times", "b plus")], "b plus, b times, a plus, a times, c, c and a, c and b"),
        ([("a plus", "c")], "c, a plus, a times, b plus, b times, c and a, c and b"),
        ([("b times", "c and a")], "a plus, a times, c, c and a, b plus, b times, c and b"),
    ],
)
def test_device_loops_move_as_a_whole(edges: Any, order: str) -> None:
    scheduled = nki.jit(loops).with_schedule(edges)
    program = trace(scheduled, X)
    assert ", ".join(names(program)) == order
    assert len(program.loops()) == 2
    same(simulate(scheduled)(X), simulate(loops)(X))


@pytest.mark.usefixtures("level_0_6")
@pytest.mark.parametrize("edges", [[("a plus", "a times")], [("b plus", "c and b")], [("a plus", "c and a")]])
def test_device_loops_are_not_turned_round(edges: Any) -> None:
    with pytest.raises(KernelError, match="which has to run after it"):
        trace(nki.jit(loops).with_schedule(edges), X)


def by_register(t: Tensor) -> None:
    x, count = load(t), nisa.register_alloc(2)
    cell = tile(1, 1, dtype=nl.int32)
    nisa.memset(dst=cell, value=1, name="memset")
    nisa.register_load(count, cell)
    nisa.tensor_copy(dst=tile(*t.shape), src=x, name="copy")
    nisa.dma_copy(dst=t[:, 0], src=x.select(1, count), name="store")


def test_registers_keep_their_order() -> None:
    assert names(trace(nki.jit(by_register).with_schedule([("memset", "copy")]), X[:, :1]))[0] == "copy"
    with pytest.raises(KernelError, match="which has to run after it"):
        trace(nki.jit(by_register).with_schedule([("memset", "store")]), X[:, :1])


def test_meetings_of_cores_are_not_crossed() -> None:
    @nki.jit
    def meeting(t: Any) -> Any:
        x = load(t)
        out = nl.ndarray(t.shape, t.dtype, nl.shared_hbm)
        nisa.tensor_scalar(dst=x, data=x, op0=nl.add, operand0=1.0, name="before")
        nisa.core_barrier(out, (0, 1))
        nisa.tensor_copy(dst=tile(*t.shape), src=load(t), name="after")
        nisa.dma_copy(dst=out, src=x)
        return out

    with pytest.raises(KernelError, match="which has to run after it"):
        simulate(meeting.with_schedule([("before", "after")]))[2](X)


def test_a_name_of_one_core_only() -> None:
    @nki.jit
    def uneven(t: Any) -> Any:
        x, y = load(t), tile(*t.shape)
        out = nl.ndarray(t.shape, t.dtype, nl.shared_hbm)
        nisa.tensor_scalar(dst=x, data=x, op0=nl.add, operand0=1.0, name="both")
        if nl.program_id(0) == 1:
            nisa.memset(dst=y, value=0, name="second")
        if nl.program_id(0) == 0:
            nisa.dma_copy(dst=out, src=x)
        return out

    first, second = simulate(uneven.with_schedule([("both", "second")]))[2].trace(X)
    assert (names(first), names(second)) == (["both"], ["second", "both"])


@pytest.mark.parametrize("seed", range(20))
def test_random_schedules_change_no_number(seed: int) -> None:
    """Any schedule is either refused or gives the same numbers."""
    random = np.random.default_rng(seed)

    def many(t: Tensor) -> Tensor:
        x = load(t)
        tiles = [tile(*t.shape) for _ in range(4)]
        for made in tiles:
            nisa.tensor_copy(dst=made, src=x)
        for i, (dst, src) in enumerate(steps):
            half = slice(0, 32) if i % 3 else slice(0, 64)
            nisa.tensor_tensor(
                dst=tiles[dst][:, half],
                data1=tiles[dst][:, half],
                data2=tiles[src][:, half],
                op=OPS[i % 2],
                name=f"i{i}",
            )
        for made in tiles[1:]:
            nisa.tensor_tensor(dst=tiles[0], data1=tiles[0], data2=made, op=nl.add)
        return give(tiles[0])

    steps = [tuple(int(n) for n in random.integers(0, 4, 2)) for _ in range(12)]
    reference, moved = simulate(many)(X), 0
    for _ in range(10):
        edges = [tuple(f"i{n}" for n in random.choice(12, 2, replace=False)) for _ in range(2)]
        scheduled = nki.jit(many).with_schedule(edges)
        try:
            program = trace(scheduled, X)
        except KernelError as error:
            assert "has to run after it" in str(error)
            continue
        order = names(program)
        assert all(order.index(later) > order.index(earlier) for later, earlier in edges)
        moved += order != sorted(order, key=lambda name: int(name[1:]))
        same(simulate(scheduled)(X), reference)
    assert moved or seed


OPS = [nl.add, nl.subtract]

"""Scalars of NKI 0.7: loads, stores, 32-bit arithmetic, loop indices and offsets; what they can't be used for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulating import same, tile

from trnrt.errors import KernelError
from trnrt.nki import nisa, nki, nl, simulate, trace
from trnrt.nki.machine.timing import schedule

ROWS = np.arange(40, dtype=np.float32).reshape(8, 5)
MOST, LEAST = 2**31 - 1, -(2**31)


def number(value: int) -> Any:
    """An int32 tensor of one element."""
    return np.array([[value]], np.int32)


def computed(compute: Callable[[Any], Any], value: int, *, through_sbuf: bool = True) -> int:
    """A kernel's results from a scalar that it loads, and stores."""

    def kernel(src: Any) -> Any:
        out = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.shared_hbm)
        if not through_sbuf:
            nisa.scalar_store(out, compute(nisa.scalar_load(src)))
            return out
        held = tile(1, 1, dtype=nl.int32)
        nisa.dma_copy(dst=held, src=src)
        nisa.scalar_store(held, compute(nisa.scalar_load(held)))
        nisa.dma_copy(dst=out, src=held)
        return out

    return int(simulate(kernel)(number(value))[0, 0])


@pytest.mark.parametrize(
    ("compute", "value", "result"),
    [
        (lambda i: i * 4 + 1, 5, 21),
        (lambda i: 1 - i, 5, -4),
        (lambda i: i - 1, LEAST, MOST),
        (lambda i: -i, 7, -7),
        (lambda i: -i, LEAST, LEAST),
        (lambda i: +i, 7, 7),
        (lambda i: 3 + (2 * i) * i, 5, 53),
        (lambda i: i * i, 100_000, 1_410_065_408),  # the example of NkiScalar's page
        (lambda i: i + 1, MOST, LEAST),
        (lambda i: i - i, 9, 0),
    ],
)
@pytest.mark.parametrize("through_sbuf", [True, False])
def test_arithmetic_wraps_at_32_bits(
    compute: Callable[[Any], Any], value: int, result: int, through_sbuf: bool
) -> None:
    assert computed(compute, value, through_sbuf=through_sbuf) == result


def test_every_operator_makes_a_new_scalar() -> None:
    def compute(i: Any) -> Any:
        first = i
        i += 1
        assert i is not first and i.dtype is nl.int32 and isinstance(i, nisa.NkiScalar)
        return first * 10 + i

    assert computed(compute, 3) == 34


@pytest.mark.parametrize("bound", ["int", "scalar", "register"])
@pytest.mark.parametrize("level", ["0.6", "0.7"])
def test_the_index_of_a_loop(bound: str, level: str) -> None:
    """A scalar at 0.7 unless a bound is a register; either is an offset and the start of a slice."""
    kinds: list[type] = []

    def kernel(src: Any, count: Any) -> Any:
        out = nl.ndarray((8, 5), dtype=nl.float32, buffer=nl.shared_hbm)
        held = tile(1, 1, dtype=nl.int32)
        nisa.dma_copy(dst=held, src=count)
        upper: Any = 8
        if bound == "scalar":
            upper = nisa.scalar_load(held) + 1
        elif bound == "register":
            upper = nisa.register_alloc(held)

        def body(i: Any) -> None:
            kinds.append(type(i))
            row = tile(1, 5)
            nisa.dma_copy(dst=row, src=src.ap([[5, 1], [1, 5]], scalar_offset=i, indirect_dim=0))
            nisa.tensor_scalar(dst=row, data=row, op0=nl.multiply, operand0=2.0)
            nisa.dma_copy(dst=out[nl.ds(i, 1)], src=row)

        nl.fori_loop(0, upper, body)
        return out

    given = number(7 if bound == "scalar" else 8)
    if level == "0.6" and bound == "scalar":
        with pytest.raises(KernelError, match=r"nisa\.scalar_load came with NKI 0\.7"):
            simulate(kernel, nki=level)(ROWS, given)
        return
    same(simulate(kernel, nki=level)(ROWS, given), ROWS * 2)
    by_register = level == "0.6" or bound == "register"
    assert kinds == [nisa.VirtualRegister if by_register else nisa.NkiScalar]


def test_an_index_is_computed_with() -> None:
    """Rows come out in reverse order, two at a time from computed starts."""

    def kernel(src: Any) -> Any:
        out = nl.ndarray((8, 5), dtype=nl.float32, buffer=nl.shared_hbm)

        def body(i: Any) -> None:
            rows = tile(2, 5)
            nisa.dma_copy(dst=rows, src=src[nl.ds(6 - i * 2, 2), :])
            nisa.dma_copy(dst=out[nl.ds(i * 2, 2), 0:5], src=rows)

        nl.fori_loop(0, 4, body)
        return out

    same(simulate(kernel)(ROWS), ROWS.reshape(4, 2, 5)[::-1].reshape(8, 5))


def test_a_slice_from_a_scalar_stays_inside() -> None:
    def kernel(src: Any, start: Any) -> Any:
        out = nl.ndarray((8, 3), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=src[:, nl.ds(nisa.scalar_load(start), 3)])
        return out

    run = simulate(kernel)
    same(run(ROWS, number(2)), ROWS[:, 2:5])
    for outside in (3, -1):
        with pytest.raises(KernelError, match=f"index {outside} is out of bounds"):
            run(ROWS, number(outside))


def part(a: Any, i: Any) -> Any:
    return a[nl.ds(i, 1), nl.ds(i, 1)]


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "if": (lambda a, i: 1 if i else 2, "a condition"),
    "if on a comparison": (lambda a, i: 1 if i == 3 else 2, "a condition"),
    "int": (lambda a, i: int(i), "int() asks for that of scalar"),
    "range": (lambda a, i: range(i), "nl.fori_loop"),
    "index": (lambda a, i: [1, 2][i], "a Python index"),
    "arithmetic on a comparison": (lambda a, i: (i < 3) + 1, "is the result of a comparison"),
    "bound by a comparison": (lambda a, i: nl.fori_loop(0, i < 3, lambda j: None), "the stop of a device loop is"),
    "offset by a comparison": (lambda a, i: a[nl.ds(i < 3, 1)], "the index is the result of a comparison"),
    "a stored comparison": (
        lambda a, i: nisa.scalar_store(tile(1, 1, dtype=nl.int32), i >= 1),
        "is the result of a comparison",
    ),
    "floor division": (lambda a, i: i // 2, "`//` asks for that of scalar"),
    "a float": (lambda a, i: i + 0.5, "with a float; it takes an integer or an NkiScalar"),
    "too wide": (lambda a, i: i + 2**31, "does not fit the 32 bits"),
    "two run-time starts": (part, "has one run-time start at most"),
    "a slice that is too long": (lambda a, i: a[nl.ds(i, 9)], "has 8 elements, not 9"),
    "partitions of a tile": (lambda a, i: tile(8, 5)[nl.ds(i, 1)], "on the partition dimension"),
    "stored by a register's instruction": (lambda a, i: nisa.register_store(tile(1, 1), i), "must be a register"),
    "moved to a register": (lambda a, i: nisa.register_alloc(i), "must be an integer or a register"),
    "an integer stored": (lambda a, i: nisa.scalar_store(tile(1, 1, dtype=nl.int32), 1), "(nisa.memset)"),
    "loaded from two elements": (lambda a, i: nisa.scalar_load(tile(1, 2, dtype=nl.int32)), "rule scalar-tile"),
    "loaded from another dtype": (lambda a, i: nisa.scalar_load(tile(1, 1, dtype=nl.uint32)), "src is uint32 (1, 1)"),
    "loaded from PSUM": (lambda a, i: nisa.scalar_load(tile(1, 1, dtype=nl.int32, buffer=nl.psum)), "in psum"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_scalar_is_not_for(what: str) -> None:
    misuse, message = REFUSED[what]

    def kernel(a: Any, start: Any) -> Any:
        misuse(a, nisa.scalar_load(start))
        return a

    with pytest.raises(KernelError) as caught:
        trace(kernel, ROWS, number(1))
    assert message in str(caught.value)


def test_python_sees_a_type_error() -> None:
    """As AWS's tracer raises where a run-time value is asked for (its migration guide of 0.6)."""

    def kernel(a: Any, start: Any) -> Any:
        with pytest.raises(TypeError):
            range(nisa.scalar_load(start))  # type: ignore[call-overload]
        return simulate

    with pytest.raises(KernelError, match="returned function"):
        trace(kernel, ROWS, number(1))


def test_an_edge_of_the_schedule_keeps_arithmetic_in_order() -> None:
    def kernel(src: Any, start: Any) -> Any:
        out = nl.ndarray((1, 5), dtype=nl.float32, buffer=nl.shared_hbm)
        first, row = nisa.scalar_load(start), tile(1, 5)
        nisa.dma_copy(dst=row, src=src[nl.ds(first * 2 + 1, 1)], name="row")
        nisa.dma_copy(dst=out, src=row, name="out")
        return out

    scheduled = nki.jit(kernel).with_schedule([("out", "row")])
    same(simulate(scheduled)(ROWS, number(3)), ROWS[7:8])


def test_arithmetic_waits_for_its_operands_and_its_users_wait_for_it() -> None:
    """On the timeline: the load, the product, the transfer that it addresses."""

    def kernel(src: Any, start: Any) -> Any:
        out = nl.ndarray((1, 5), dtype=nl.float32, buffer=nl.shared_hbm)
        held, row = tile(1, 1, dtype=nl.int32), tile(1, 5)
        nisa.dma_copy(dst=held, src=start)
        nisa.dma_copy(dst=row, src=src[nl.ds(nisa.scalar_load(held) * 2, 1)])
        nisa.dma_copy(dst=out, src=row)
        return out

    program = trace(kernel, ROWS, number(3))
    timeline = schedule(program)
    names = [instruction.operation.name for instruction in program.instructions]
    assert names == ["dma_copy", "scalar_load", "scalar_arithmetic", "dma_copy", "dma_copy"]
    start = dict(zip(timeline.instruction, timeline.start, strict=True))
    end = dict(zip(timeline.instruction, timeline.end, strict=True))
    assert [start[later] >= end[earlier] for earlier, later in ((0, 1), (1, 2), (2, 3))] == [True] * 3

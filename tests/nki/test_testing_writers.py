"""Which instruction wrote an element, and the tolerances of the pytest plugin."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch_tensors
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from random_programs import ACTIONS, run
from simulating import trace_body
from torch_tensors import Tensor

from trnrt.nki import nisa, nki, nl
from trnrt.nki.level import Level
from trnrt.nki.machine.dtypes import DTYPES, float32
from trnrt.nki.machine.program import MemoryRegion, Source, Storage, View
from trnrt.nki.machine.staging import element_places
from trnrt.nki.sim.trace import active_tracer
from trnrt.nki.testing.comparing import Tolerance, choose_tolerance, find_mismatch
from trnrt.nki.testing.running import Run, Simulation
from trnrt.nki.testing.writers import Element, covers, element_at, find_index, last_write
from trnrt.validate.tolerances import _DEFAULTS

SIMULATE = Simulation("trn2", Level.nki_0_7)
A = np.arange(40, dtype=np.float32).reshape(8, 5) + 1


def complaint(run: Run, expected: Any) -> list[str]:
    """The lines about a result that is not as expected."""
    with pytest.raises(AssertionError) as caught:
        run.equals(expected)
    return [line.strip() for line in str(caught.value).splitlines()]


# ---- places


@st.composite
def views(draw: st.DrawFn) -> View:
    """A view with any strides, also negative ones and 0, within a storage."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    strides = tuple(draw(st.integers(-7, 7)) for _ in shape)
    lowest = sum(min(0, stride * (size - 1)) for size, stride in zip(shape, strides, strict=True))
    highest = sum(max(0, stride * (size - 1)) for size, stride in zip(shape, strides, strict=True))
    offset = draw(st.integers(0, 3)) - lowest
    storage = Storage(0, (offset + highest + 4,), float32, MemoryRegion.shared_hbm, "", Source("", 0, ""))
    return View(storage, shape, strides, offset)


@given(views())
def test_an_index_is_found_for_the_elements_of_a_view_and_no_others(view: View) -> None:
    places = element_places(view)
    for number in range(-1, view.storage.size + 2):
        index = find_index(view, number)
        assert (index is not None) == bool((places == number).any()), number
        assert index is None or places[index] == number == element_at(view, index).number


def test_a_view_of_the_bits_covers_the_elements_whose_bytes_it_has() -> None:
    storage = Storage(0, (4, 4), float32, MemoryRegion.sbuf, "", Source("", 0, ""))
    upper = View(storage, (4, 1), (8, 1), 1, cast=DTYPES["uint16"])  # the upper half of the first column
    assert [n for n in range(16) if covers(upper, Element(storage, n))] == [0, 4, 8, 12]
    assert element_at(upper, (2, 0)) == Element(storage, 8)
    narrow = Storage(1, (1, 8), DTYPES["uint8"], MemoryRegion.sbuf, "", Source("", 0, ""))
    word = View(narrow, (1, 1), (2, 1), 1, cast=float32)
    assert [n for n in range(8) if covers(word, Element(narrow, n))] == [4, 5, 6, 7]


def bytes_of(view: View) -> np.ndarray[Any, Any]:
    """The bytes of its storage that a view has, by their number."""
    size = view.dtype.itemsize
    return (element_places(view).reshape(-1, 1) * size + np.arange(size)).reshape(-1)


@settings(max_examples=60, phases=[Phase.generate])
@given(ACTIONS, st.integers(0, 10_000))
def test_the_last_write_of_any_program_is_the_last_that_reaches_the_bytes(actions: list[Any], seed: int) -> None:
    """Against a memory that notes for each byte which instruction wrote it last."""
    program = trace_body(lambda: run(actions, "trn2"))
    held = {s.index: np.full(s.size * s.dtype.itemsize, -1) for s in program.storages}
    for position, instruction in enumerate(program.instructions):
        for view in instruction.writes():
            held[view.storage.index][bytes_of(view)] = position
    rng = np.random.default_rng(seed)
    for storage in program.storages:
        size = storage.dtype.itemsize
        for number in rng.integers(0, storage.size, 4).tolist():
            write = last_write(program, Element(storage, number))
            latest = int(held[storage.index][number * size : (number + 1) * size].max())
            assert (-1 if write is None else write.position) == latest
            assert write is None or write.certain


# ---- kernels


@nki.jit
def half_each(src: Any) -> Any:
    """Each core doubles one half of src."""
    core = active_tracer("test").core
    out = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(src.shape[1:], dtype=src.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=src[core])
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out[core], src=tile)
    return out


def test_the_core_that_wrote_it() -> None:
    data = np.ones((2, 4, 4), np.float32)
    run = SIMULATE(half_each[2], data)
    run.equals(2 * data)
    wrong = 2 * data
    wrong[1, 2, 3] = 0
    lines = complaint(run, wrong)
    assert "[1, 2, 3] is 2, expected 0" in lines[1]
    assert [line for line in lines if "written by" in line] == [
        "core 1: it was written by nisa.dma_copy, instruction 3 of 3",
        "from a tile [2, 3], written by nisa.tensor_scalar, instruction 2 of 3",
    ]


@nki.jit
def scattered(src: Any, rows: Any) -> Any:
    """out[rows] = src"""
    out = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.sbuf)
    rows_sb = nl.ndarray(rows.shape, dtype=rows.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=src)
    nisa.dma_copy(dst=rows_sb, src=rows)
    where = out.ap([[src.shape[1], src.shape[0]], [1, src.shape[1]]], vector_offset=rows_sb, indirect_dim=0)
    nisa.dma_copy(dst=where, src=tile)
    return out


def test_a_run_time_address_is_only_a_perhaps() -> None:
    run = SIMULATE(scattered, A, np.arange(8, dtype=np.uint32)[::-1].reshape(8, 1))
    run.equals(A[::-1])
    lines = complaint(run, A[::-1] + np.eye(8, 5, dtype=np.float32))
    assert "it was perhaps written, at a run-time address, by nisa.dma_copy, instruction 3 of 3" in lines


@nki.jit
def looped(src: Any) -> Any:
    """2 ** 3 times src: a tile that a device loop doubles."""
    out = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.sbuf)
    before = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=src)

    def body(i: Any) -> None:
        nisa.dma_copy(dst=out, src=before)
        nisa.tensor_scalar(dst=before, data=tile, op0=nl.multiply, operand0=2.0, name="later")

    nl.fori_loop(0, 3, body)
    return out


def test_a_device_loop_may_have_written_it_in_the_round_before() -> None:
    run = SIMULATE(looped, A)
    run.equals(2 * A)
    lines = complaint(run, A)
    assert any(line.startswith("from a tile [0, 0], written by nisa.tensor_scalar 'later'") for line in lines)


@nki.jit
def reshaping(src: Any) -> Any:
    """src transposed on the way: out's columns are src's rows, in another shape."""
    out = nl.ndarray((2, 20), dtype=src.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.sbuf, name="t")
    nisa.dma_copy(dst=tile[:4], src=src[:4])
    nisa.dma_copy(dst=tile[4:], src=src[4:])
    nisa.dma_copy(dst=out, src=tile)
    return out


def test_copies_lead_back_through_other_shapes() -> None:
    run = SIMULATE(reshaping, A)
    run.equals(A.reshape(2, 20))
    wrong = A.reshape(2, 20).copy()
    wrong[1, 7] = 0
    lines = complaint(run, wrong)
    assert "from t [5, 2], written by nisa.dma_copy, instruction 2 of 3" in lines
    assert lines[-1] == "from src [5, 2], an argument"


@nki.jit
def leaves_argument(dst: Any, src: Any) -> None:
    """The first row of dst only."""
    nisa.dma_copy(dst=dst[:1], src=src[:1])


def test_an_argument_that_keeps_its_value() -> None:
    run = SIMULATE(leaves_argument, np.zeros((8, 5), np.float32), A)
    lines = complaint(run, A)
    assert lines[0].endswith("argument 'dst' is wrong in 35 of 40 elements")
    assert lines[-1] == "no instruction writes it: it still has the caller's value"


@nki.jit
def double_into(dst: Any, src: Any) -> Any:
    """dst = 2 src, and a copy of it."""
    out = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=src)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=dst, src=tile)
    nisa.dma_copy(dst=out, src=tile)
    return out


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_tensors_of_pytorch_are_compared_as_arrays(device: str) -> None:
    with torch_tensors.installed():
        dst, src = (Tensor(a.astype(ml_dtypes.bfloat16), device=device) for a in (np.zeros_like(A), A))
        run = SIMULATE(double_into, dst, src)
        assert isinstance(run.result, Tensor)
        run.equals(lambda dst, src: 2 * src + dst, writes={"dst": 2 * A})
        run.equals(run.result)
        assert "first: [0, 0] is 2, expected 1" in complaint(run, A)[1]


# ---- tolerances


def test_tolerances_are_those_of_validation() -> None:
    for name, numbers in _DEFAULTS.items():
        tolerance = choose_tolerance(DTYPES[name], None, None)
        assert (tolerance.rtol, tolerance.atol) == numbers
    for name, dtype in DTYPES.items():
        assert (choose_tolerance(dtype, None, None).rtol == 0) == (not dtype.is_float), name
    assert choose_tolerance(float32, None, 1.0) == Tolerance(0.0, 1.0)


def test_nan_and_infinity_equal_themselves_alone() -> None:
    exact = Tolerance(0.5, 0.0)
    values = np.array([np.nan, np.inf, -np.inf, 1.0])
    assert find_mismatch(values, values, exact) is None
    for at, other in ((0, 1.0), (1, -np.inf), (1, 1e30), (2, np.nan), (3, np.inf), (3, np.nan)):
        expected = values.copy()
        expected[at] = other
        for got, wanted in ((values, expected), (expected, values)):
            found = find_mismatch(got, wanted, exact)
            assert found is not None and found.count == 1 and found.first.index == (at,)


def test_the_first_and_the_worst_in_narrow_dtypes() -> None:
    expected = np.ones((3, 4), ml_dtypes.bfloat16)
    got = expected.copy()
    got[1, 3], got[2, 0], got[2, 2] = 1.5, 4, 1.01
    found = find_mismatch(got, expected, choose_tolerance(DTYPES["bfloat16"], None, None))
    assert found is not None and (found.count, found.size) == (2, 12)
    assert (found.first.index, found.worst.index, found.worst.got) == ((1, 3), (2, 0), 4.0)

"""``capacity=False``: kernels that do not fit SBUF or PSUM, run and predicted for their numbers alone."""

from __future__ import annotations

import numpy as np
import pytest
from simulating import Tensor, spec, tile, traced

from trnrt.errors import KernelError, KernelMemoryError
from trnrt.nki import nisa, nl, profile, simulate, trace
from trnrt.nki.machine.memory import overflow_notes
from trnrt.nki.machine.program import MemoryRegion


def use(*tiles: Tensor) -> None:
    """Instructions that touch the tiles, each twice, so that all live at once."""
    for one in (*tiles, *tiles):
        nisa.memset(dst=one[:, 0:1], value=0.0)


def wide(x: Tensor) -> Tensor:
    """2 * x + x, with all of it on chip at once, three times over."""
    loaded, made = tile(*x.shape), tile(*x.shape)
    nisa.dma_copy(dst=loaded, src=x)
    nisa.tensor_scalar(dst=made, data=loaded, op0=nl.multiply, operand0=2.0)
    added = tile(*x.shape)
    nisa.tensor_tensor(dst=added, data1=loaded, data2=made, op=nl.add)
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(dst=out, src=added)
    return out


def test_without_capacity_the_peak_is_what_the_tiles_need() -> None:
    x = spec(128, 30000)
    with pytest.raises(KernelMemoryError):
        trace(wide, x)
    use = trace(wide, x, capacity=False).memory
    assert use is not None and use.sbuf_peak_bytes == 3 * 30000 * 4
    assert not use.fits and use.overflowed == (MemoryRegion.sbuf,)
    fitting = trace(wide, spec(128, 300), capacity=False).memory
    assert fitting == trace(wide, spec(128, 300)).memory
    assert fitting is not None and fitting.fits


def test_without_capacity_the_numbers_are_right() -> None:
    x = np.arange(4 * 60000, dtype=np.float32).reshape(4, 60000)
    np.testing.assert_array_equal(simulate(wide, capacity=False)(x), 3 * x)


def test_without_capacity_one_tile_may_be_larger_than_the_memory() -> None:
    def body() -> None:
        use(tile(128, 60000), tile(128, 6000, buffer=nl.psum))

    with pytest.raises(KernelError, match="tile-bytes"):
        traced(body)

    def kernel() -> Tensor:
        body()
        return nl.ndarray((1,), nl.float32, nl.shared_hbm)

    program = trace(kernel, capacity=False)
    assert program.memory is not None and program.memory.overflowed == (MemoryRegion.sbuf, MemoryRegion.psum)
    sbuf, psum = overflow_notes(program)
    assert "240,000 bytes a partition of SBUF" in sbuf
    assert "24,000 bytes a partition of PSUM" in psum


def test_without_capacity_tiles_lie_one_after_the_other() -> None:
    program = trace(wide, spec(128, 30000), capacity=False)
    ends = {s.address[1]: s.address[1] + s.partition_bytes for s in program.storages if s.address is not None}
    assert sorted(ends) == [0, *sorted(ends.values())[:-1]]


def test_pinned_tiles_that_overlap_are_refused_without_capacity_too() -> None:
    def kernel() -> Tensor:
        use(tile(128, 64, address=(0, 0)), tile(128, 64, address=(0, 128)), tile(128, 60000))
        return nl.ndarray((1,), nl.float32, nl.shared_hbm)

    with pytest.raises(KernelMemoryError, match="two live tiles share"):
        trace(kernel, capacity=False)


def test_a_prediction_of_what_does_not_fit_says_so() -> None:
    found = profile(wide, spec(128, 30000), capacity=False)
    assert not found.fits and found.sbuf_peak_bytes == 360000
    assert any("360,000 bytes a partition of SBUF" in note and "spills" in note for note in found.notes)
    assert profile(wide, spec(128, 300), capacity=False).fits


def test_an_overflow_says_what_the_device_would_do() -> None:
    with pytest.raises(KernelMemoryError) as caught:
        trace(wide, spec(128, 30000))
    assert "AWS's compiler spills to HBM" in str(caught.value)
    assert "Memory Hierarchy Overview" in str(caught.value)
    hint = caught.value.hint or ""
    assert "capacity=False" in hint and "--no-capacity" in hint

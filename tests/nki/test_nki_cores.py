"""Two physical cores that run one kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trnrt.errors import KernelError
from trnrt.nki import nisa, nki, nl, simulate
from trnrt.nki.sim.trace import active_tracer

DATA = np.random.default_rng(0).standard_normal((2, 16, 8)).astype(np.float32)


def rank() -> int:
    """Which core the kernel is traced for."""
    return active_tracer("rank").core


@nki.jit
def halves(src: Any) -> Any:
    """Each core doubles one half of src."""
    out = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(src.shape[1:], dtype=src.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=src[rank()])
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out[rank()], src=tile)
    return out


def test_each_core_writes_its_half_of_shared_memory() -> None:
    np.testing.assert_array_equal(halves[2](DATA), DATA * 2)
    np.testing.assert_array_equal(simulate(halves[2])(DATA), DATA * 2)
    np.testing.assert_array_equal(simulate(halves)[2](DATA), DATA * 2)
    alone = halves(DATA)
    np.testing.assert_array_equal(alone[0], DATA[0] * 2)
    assert np.isnan(alone[1]).all()


def swapped(src: Any, barrier: bool, engine: Any) -> Any:
    """Each core writes its part to shared memory, and reads back the other one's after a barrier."""
    out = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.shared_hbm)
    between = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(src.shape[1:], dtype=src.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=src[rank()])
    nisa.dma_copy(dst=between[rank()], src=tile)
    if barrier:
        nisa.core_barrier(data=between, cores=(0, 1), engine=engine)
    nisa.dma_copy(dst=tile, src=between[1 - rank()])
    nisa.dma_copy(dst=out[rank()], src=tile)
    return out


def test_a_barrier_makes_writes_visible_and_a_missing_one_is_noticed() -> None:
    run = simulate(swapped)[2]
    np.testing.assert_array_equal(run(DATA, True, nisa.engine.gpsimd), DATA[::-1])
    without = run(DATA, False, nisa.engine.gpsimd)
    assert np.isnan(without[0]).all(), "core 0 read what core 1 had not written yet"


def exchanged(src: Any, pipes: tuple[int, int], rounds: tuple[int, int], sizes: tuple[int, int]) -> Any:
    """Each core sends its part to the other one."""
    out = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.shared_hbm)
    mine = nl.ndarray(src.shape[1:], dtype=src.dtype, buffer=nl.sbuf)
    theirs = nl.ndarray(src.shape[1:], dtype=src.dtype, buffer=nl.sbuf)
    nisa.memset(dst=theirs, value=0.0)
    nisa.dma_copy(dst=mine, src=src[rank()])
    width = sizes[rank()]
    for _ in range(rounds[rank()]):
        nisa.sendrecv(
            src=mine[:, 0:width],
            dst=theirs[:, 0:width],
            send_to_rank=1 - rank(),
            recv_from_rank=1 - rank(),
            pipe_id=pipes[rank()],
        )
    nisa.dma_copy(dst=out[rank()], src=theirs)
    return out


def test_sendrecv_exchanges_tiles() -> None:
    run = simulate(exchanged)[2]
    np.testing.assert_array_equal(run(DATA, (0, 0), (1, 1), (8, 8)), DATA[::-1])
    again = run(DATA + 1, (0, 0), (2, 2), (8, 8))
    np.testing.assert_array_equal(again, DATA[::-1] + 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((0, 1), (1, 1), (8, 8)), "in pipe 0 from core 1, which sends"),
        (((0, 0), (1, 2), (8, 8)), "wait for each other for ever at their meeting number 2: core 0: the end"),
        (((0, 0), (1, 1), (8, 4)), r"waits for a tile \(16, 8\)"),
    ],
)
def test_cores_that_would_wait_for_ever_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        simulate(exchanged)[2](DATA, *arguments)


def test_launches_that_are_refused() -> None:
    with pytest.raises(KernelError, match="can't be launched on 3 cores"):
        halves[3]
    with pytest.raises(KernelError, match="2 cores on trn1"):
        simulate(halves[2], target="trn1")
    with pytest.raises(KernelError, match="rule two-cores"):
        simulate(swapped)(DATA, True, nisa.engine.gpsimd)


def test_different_shared_tensors_are_refused() -> None:
    def kernel(src: Any) -> Any:
        return nl.ndarray((4, 4 + rank()), dtype=nl.float32, buffer=nl.shared_hbm)

    with pytest.raises(KernelError, match="do not allocate the same tensors in shared HBM"):
        simulate(kernel)[2](DATA)


@pytest.mark.parametrize("name", ["nc_matmul_mx", "quantize_mx"])
def test_what_is_left_out_says_so(name: str) -> None:
    with pytest.raises(KernelError, match=f"nisa.{name} is left out"):
        getattr(nisa, name)(*[None] * (5 if name == "nc_matmul_mx" else 3))


def test_the_revision_is_the_first() -> None:
    seen: list[int] = []

    def kernel(src: Any) -> Any:
        seen.append(nisa.get_nc_sub_version())
        return src

    simulate(kernel)(DATA)
    assert seen == [0]

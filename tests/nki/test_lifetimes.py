"""How long a tile of a device loop's body takes its memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trnrt.errors import KernelMemoryError
from trnrt.nki import nisa, nl, simulate, trace
from trnrt.nki.machine.lifetimes import find_lifetimes

ROWS = np.arange(4 * 128 * 512, dtype=np.float32).reshape(4, 128, 512)
PATTERN = [[512, 128], [1, 512]]


def chain(src: Any, tiles: int, keep: bool) -> Any:
    """Each block plus ``tiles``, through as many tiles of PSUM, each of a whole bank.

    ``keep``: the tiles are set before the loop, too, so that they live through it.
    """
    out = nl.ndarray((4, 128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    psum = [nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum) for _ in range(tiles)]
    if keep:
        for tile in psum:
            nisa.memset(dst=tile, value=0.0)

    def body(i: Any) -> None:
        block = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=block, src=src.ap(PATTERN, scalar_offset=i, indirect_dim=0))
        for tile in psum:
            nisa.tensor_scalar(dst=tile, data=block, op0=nl.add, operand0=1.0)
            block = tile
        result = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=result, src=block)
        nisa.dma_copy(dst=out.ap(PATTERN, scalar_offset=i, indirect_dim=0), src=result)

    nl.fori_loop(0, 4, body)
    return out


def test_a_body_may_have_more_tiles_than_there_is_room_for_at_once() -> None:
    """20 banks, two at a time, of eight: as in nki-library's blockwise MoE kernel."""
    np.testing.assert_array_equal(simulate(chain)(ROWS, 20, False), ROWS + 20)


def test_tiles_with_a_value_from_before_the_loop_live_through_it() -> None:
    np.testing.assert_array_equal(simulate(chain)(ROWS, 8, True), ROWS + 8)
    with pytest.raises(KernelMemoryError, match="PSUM is full"):
        trace(chain, ROWS, 9, True)


def test_a_tile_that_is_read_first_keeps_its_value() -> None:
    """A sum over the trips: its tile lives from before the loop to its end."""

    def total(src: Any) -> Any:
        out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
        found = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=found, value=0.0)

        def body(i: Any) -> None:
            block = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=block, src=src.ap(PATTERN, scalar_offset=i, indirect_dim=0))
            nisa.tensor_tensor(dst=found, data1=found, data2=block, op=nl.add)

        nl.fori_loop(0, 4, body)
        nisa.dma_copy(dst=out, src=found)
        return out

    np.testing.assert_array_equal(simulate(total)(ROWS), ROWS.sum(axis=0))
    program = trace(total, ROWS)
    ((begin, end),) = program.loops()
    spans = sorted(
        find_lifetimes(program)[storage.index] for storage in program.storages if storage.buffer.value == "sbuf"
    )
    assert spans[0][0] < begin and spans[0][1] > end
    assert begin < spans[1][0] and spans[1][1] < end

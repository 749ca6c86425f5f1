"""The further limits of rules that hold more than one: shuffles, gathers, random numbers, tiles, indirect DMA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from simulating import Tensor, tile, traced, zeros

from trnrt.errors import KernelError
from trnrt.nki import nisa, nl

DOUBLE = nisa.matmul_perf_mode.double_row


def topk(n: int = 20, k: int = 8, places: int = 8, columns: int = 2) -> Any:
    values, indices = zeros(16, k, dtype=nl.bfloat16), zeros(16, places, dtype=nl.uint32)
    return nisa.topk(values, indices, zeros(16, columns, dtype=nl.bfloat16), n)


def gather(indices: int, dst: int = 4096, partitions: int = 16) -> Any:
    index = zeros(partitions, indices, dtype=nl.uint16)
    return nisa.local_gather(tile(partitions, dst), zeros(partitions, 4), index)


def chosen(rows: int = 16, size: int = 8, indices: int = 16, **options: Any) -> Tensor:
    """Rows of HBM that a tile of indices selects."""
    table = tile(64, size, buffer=nl.shared_hbm, **{"dtype": nl.bfloat16, **options})
    return table.ap([[size, rows], [1, size]], vector_offset=zeros(indices, 1, dtype=nl.uint32))


def turned(src: Tensor, **options: Any) -> Any:
    return nisa.dma_transpose(tile(*src.shape[::-1], dtype=src.dtype, buffer=nl.shared_hbm), src, **options)


def added(dst: Tensor, *sources: Tensor) -> Any:
    return nisa.dma_compute(dst, list(sources), nl.add)


def by_register() -> Tensor:
    return tile(64, 8, buffer=nl.shared_hbm).ap([[8, 16], [1, 8]], scalar_offset=nisa.register_alloc(0))


def scattered() -> Any:
    rows = chosen()
    return added(rows, rows, tile(16, 8, buffer=nl.shared_hbm))


def one_double_row(partitions: int, columns: int, **modes: Any) -> Any:
    operand = zeros(partitions, 2, columns, dtype=nl.float8_e4m3)
    dst = tile(columns, columns, buffer=nl.psum)
    return nisa.nc_matmul(dst, operand, operand, perf_mode=DOUBLE, **modes)


BROKEN: list[tuple[str, Callable[[], Any], str]] = [
    ("trn2", lambda: nisa.nc_stream_shuffle(tile(32, 2), zeros(32, 2), [0] * 31), "has 31 elements; it must have 32"),
    ("trn2", lambda: nisa.nc_stream_shuffle(tile(32, 2), zeros(32, 2), [-1] * 32), "shuffle_mask\\[0\\] is -1"),
    ("trn2", lambda: nisa.nc_stream_shuffle(tile(96, 2), zeros(128, 2)[32:], [0] * 32), "on 96 active .* must be 0"),
    ("trn2", lambda: topk(n=7, k=1, places=1), "n=7; it must be 8 to 65535"),
    ("trn2", lambda: topk(n=65536), "n=65536"),
    ("trn2", lambda: topk(k=21, places=21), "val_dst asks for 21 elements; of n=20 it can be at most 20"),
    ("trn2", lambda: topk(places=9), "idx_dst holds 9 elements a partition, val_dst 8"),
    ("trn2", lambda: gather(257, 257 * 16), "num_valid_indices=4112; .* the limit is 4096"),
    (
        "trn2",
        lambda: nisa.local_gather(tile(16, 0 + 1), zeros(16, 4), zeros(16, 1, dtype=nl.uint16), 1, 0),
        "indices=0",
    ),
    (
        "trn2",
        lambda: nisa.nc_n_gather(tile(8, 3), zeros(8, 4), zeros(8, 2, dtype=nl.uint32)),
        "dst holds 3 elements a partition; indices holds 2",
    ),
    (
        "trn2",
        lambda: nisa.nc_n_gather(tile(8, 2, buffer=nl.psum), zeros(8, 4), zeros(8, 2, dtype=nl.uint32)),
        "dst is in PSUM, which the GpSimd engine can't access",
    ),
    ("trn3", lambda: nisa.nonzero_with_count(tile(16, 5), zeros(16, 4)), "dst is float32; it must be int32"),
    ("trn1", lambda: nisa.rand_get_state(tile(8, 6, dtype=nl.uint32)), "trn1 has no such instruction"),
    ("trn2", lambda: nisa.rand_get_state(tile(8, 6, dtype=nl.int32)), "dst is int32; it must be uint32"),
    ("trn2", lambda: nisa.rand_get_state(tile(8, 6), engine=nisa.engine.scalar), "can't run on the scalar engine"),
    ("trn2", lambda: nisa.set_rng_seed(zeros(1, 1, dtype=nl.int16)), "src_seeds is int16; it must have 32 bits"),
    ("trn2", lambda: nisa.rng(tile(8, 4, dtype=nl.int8), nisa.engine.scalar), "rng can't run on the scalar engine"),
    ("trn2", lambda: nisa.dropout(tile(8, 4), zeros(8, 4), zeros(8, 1, dtype=nl.int32)), "prob is int32; .* a float"),
    ("trn2", lambda: nisa.dropout(tile(8, 4), zeros(8, 4), zeros(8, 2)), "prob holds 2 elements a partition"),
    ("trn3", lambda: nisa.rand2(tile(8, 4), zeros(8, 1, dtype=nl.bfloat16), 1.0), "min is bfloat16"),
    ("trn2", lambda: one_double_row(65, 8, tile_position=(64, 0), tile_size=(64, 128)), "stationary is 65 x 8"),
    ("trn2", lambda: turned(chosen(rows=24, indices=32)), "src has 24 rows"),
    ("trn2", lambda: turned(chosen(rows=32, indices=16)), "src has 32 rows, 16 indices"),
    ("trn2", lambda: turned(chosen(rows=32, indices=40)), "in 40 partitions; they must be uint32 in a multiple of 16"),
    ("trn2", lambda: turned(chosen(size=129)), "rows of 129 bfloat16"),
    ("trn2", lambda: turned(chosen(dtype=nl.float32)), "rows of 8 float32"),
    ("trn2", lambda: turned(chosen(), dge_mode=nisa.dge_mode.hwdge), "an indirect transpose takes unknown or swdge"),
    (
        "trn2",
        lambda: nisa.dma_transpose(chosen(16, 16, dtype=nl.bfloat16), zeros(16, 16, dtype=nl.bfloat16)),
        "dst is selected by indices",
    ),
    ("trn2", lambda: added(zeros(16, 8), by_register(), zeros(16, 8)), "src0 has an address that the run decides"),
    ("trn2", scattered, "neither a gather .* nor a scatter"),
]


@pytest.mark.parametrize(("target", "body", "says"), BROKEN, ids=[says for _, _, says in BROKEN])
def test_a_limit_is_kept(target: str, body: Callable[[], Any], says: str) -> None:
    with pytest.raises(KernelError, match=says):
        traced(lambda: body(), target=target)


LEGAL: list[tuple[str, Callable[[], Any]]] = [
    ("trn2", lambda: nisa.nc_stream_shuffle(tile(128, 2)[64:96], zeros(128, 2)[96:97], [0] * 32)),
    ("trn1", lambda: topk(n=32, k=32, places=32)),
    ("trn2", lambda: gather(256)),
    ("trn1", lambda: nisa.set_rng_seed(zeros(1, 1, buffer=nl.psum))),
    ("trn3", lambda: nisa.rand_get_state(tile(8, 24, dtype=nl.uint32, buffer=nl.psum), nisa.engine.vector)),
    ("trn2", lambda: nisa.dropout(tile(8, 4, buffer=nl.psum), zeros(8, 4), 1.5)),
    ("trn3", lambda: nisa.rand2(tile(8, 4), zeros(8, 1), 1.0)),
    ("trn3", lambda: one_double_row(64, 128, tile_position=(64, 0), tile_size=(64, 128))),
    ("trn2", lambda: turned(chosen(rows=16, indices=128), dge_mode=nisa.dge_mode.swdge)),
]


@pytest.mark.parametrize(("target", "body"), LEGAL)
def test_what_is_legal_passes(target: str, body: Callable[[], Any]) -> None:
    traced(lambda: body(), target=target)


def test_a_number_is_the_mode_of_descriptors_that_it_means() -> None:
    mode: Any = 2
    with pytest.raises(KernelError, match=r"dge_mode is dge_mode\.hwdge; trn1 has swdge and none"):
        traced(lambda: nisa.dma_copy(tile(8, 4), zeros(8, 4), dge_mode=mode), target="trn1")

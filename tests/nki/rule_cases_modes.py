"""The rules of random numbers, and of the tensor engine's modes."""

from __future__ import annotations

from typing import Any

from rule_cases import case
from simulating import tile, zeros

from trnrt.nki import nisa, nl


@case("rng-engine", "engine=gpsimd", "on trn1 it must be vector", target="trn1")
def _(broken: bool) -> None:
    engine = nisa.engine.gpsimd if broken else nisa.engine.vector
    nisa.rng(dst=tile(8, 4, dtype=nl.uint32), engine=engine)  # here


@case("rng-dtype", "dst is float32", "int8, int16, int32, uint8, uint16 or uint32")
def _(broken: bool) -> None:
    nisa.rng(dst=tile(8, 4, dtype=nl.float32 if broken else nl.int8))  # here


@case("dropout-prob-dtype", "prob is bfloat16", "with data of int16 it must be float32")
def _(broken: bool) -> None:
    prob = zeros(8, 1, dtype=nl.bfloat16 if broken else nl.float32)
    nisa.dropout(dst=tile(8, 4, dtype=nl.int16), data=zeros(8, 4, dtype=nl.int16), prob=prob)  # here


@case("seed-shape", "src_seeds has shape (2, 1)", "must have (1, 1)")
def _(broken: bool) -> None:
    nisa.set_rng_seed(zeros(2 if broken else 1, 1, dtype=nl.int32))  # here


@case("rand-state-engine", "engine=vector", "on trn2 it must be gpsimd")
def _(broken: bool) -> None:
    engine, words = (nisa.engine.vector, 24) if broken else (nisa.engine.gpsimd, 6)
    nisa.rand_get_state(dst=tile(8, words, dtype=nl.uint32), engine=engine)  # here


@case("rand-state-shape", "src_seeds has shape (8, 24)", "for the gpsimd engine it must have (P, 6)", target="trn3")
def _(broken: bool) -> None:
    engine = nisa.engine.gpsimd if broken else nisa.engine.vector
    nisa.rand_set_state(zeros(8, 24, dtype=nl.uint32), engine=engine)  # here


@case("rand-state-memory", "src_seeds is in PSUM", "must be in SBUF", target="trn3")
def _(broken: bool) -> None:
    seeds = zeros(8, 24, dtype=nl.uint32, buffer=nl.psum if broken else nl.sbuf)
    nisa.rand_set_state(seeds, engine=nisa.engine.vector)  # here


@case("rand2-target", "trn2 has a NeuronCore-v3", "rand2 takes v4")
def _(broken: bool) -> None:
    if broken:
        nisa.rand2(dst=tile(8, 4), min=0.0, max=1.0)  # here


@case("rand2-dtype", "dst is float8_e4m3fn", "float8_e4m3, float8_e5m2", target="trn3")
def _(broken: bool) -> None:
    nisa.rand2(dst=tile(8, 4, dtype=nl.float8_e4m3fn if broken else nl.float8_e4m3), min=0.0, max=1.0)  # here


@case("rand2-bounds", "min=1.0, max=1.0", "less than", target="trn3")
def _(broken: bool) -> None:
    nisa.rand2(dst=tile(8, 4), min=1.0 if broken else 0.5, max=1.0)  # here


def matmul(
    *, rows: int = 8, dtype: object = nl.bfloat16, double: bool = False, out: object = None, **modes: Any
) -> Any:
    """The arguments of a product of 4 by 6."""
    shapes = ((rows, 2, 4), (rows, 2, 6)) if double else ((rows, 4), (rows, 6))
    stationary, moving = (zeros(*shape, dtype=dtype) for shape in shapes)
    dst = tile(4, 6, dtype=out or nl.float32, buffer=nl.psum)
    return {"dst": dst, "stationary": stationary, "moving": moving, **modes}


@case("matmul-tile", "tile_size=(128, 32)", "its column size must be 64 or 128", target="trn1")
def _(broken: bool) -> None:
    size = (128, 32 if broken else 64)
    nisa.nc_matmul(**matmul(tile_position=(0, 64), tile_size=size))  # here


@case("matmul-tile-fits", "stationary is 33 x 4", "tile_size holds 32 x 128")
def _(broken: bool) -> None:
    nisa.nc_matmul(**matmul(rows=33 if broken else 32, tile_position=(96, 0), tile_size=(32, 128)))  # here


@case("matmul-double-row", "stationary is bfloat16", "must be a float8")
def _(broken: bool) -> None:
    dtype = nl.bfloat16 if broken else nl.float8_e5m2
    nisa.nc_matmul(**matmul(dtype=dtype, double=True, perf_mode=nisa.matmul_perf_mode.double_row))  # here


@case("matmul-transpose-accumulate", "is_transpose=True on a dst that a matmul has written", "accumulate=False")
def _(broken: bool) -> None:
    arguments = matmul(dtype=nl.float32)
    nisa.nc_matmul(**arguments)
    nisa.nc_matmul(**arguments, is_transpose=True, accumulate=None if broken else False)  # here


@case("matmul-transpose-dtype", "stationary is bfloat16, dst float32")
def _(broken: bool) -> None:
    nisa.nc_matmul(**matmul(out=nl.float32 if broken else nl.bfloat16), is_transpose=True)  # here

"""Files with kernels, for the tests that load them: their functions are named so that each test can pick."""

from __future__ import annotations

ADDITIONS = """
import numpy as np
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def add(a, b, TILE=256, scale=1.0):
    rows, columns = a.shape
    assert columns % TILE == 0, f"{columns} columns are no multiple of {TILE}"
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    for c in nl.affine_range(columns // TILE):
        x = nl.ndarray((rows, TILE), dtype=a.dtype, buffer=nl.sbuf)
        y = nl.ndarray((rows, TILE), dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x, src=a[:, c * TILE : (c + 1) * TILE])
        nisa.dma_copy(dst=y, src=b[:, c * TILE : (c + 1) * TILE])
        nisa.tensor_tensor(dst=x, data1=x, data2=y, op=nl.add)
        if scale != 1.0:
            nisa.tensor_scalar(dst=x, data=x, op0=nl.multiply, operand0=scale)
        nisa.dma_copy(dst=out[:, c * TILE : (c + 1) * TILE], src=x)
    return out


@nki.jit
def huge(a, b, WIDTH=64):
    x = nl.ndarray((128, WIDTH), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=x, value=0.0)
    out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=x[:, 0:64])
    return out


def right(a, b):
    return a + b


def wrong(a, b):
    return a - b


def nothing(a, b):
    a + b


def broken(a, b):
    return a.missing
"""
CALL = "add(f32[128,1024], f32[128,1024])"

OLD_ADDITIONS = """
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl


@nki.jit
def add(a, b, TILE=256):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    rows, columns = a.shape
    part = columns // nl.num_programs(0)
    for c in nl.affine_range(part // TILE):
        i_p, i_f = nl.mgrid[0:rows, 0:TILE]
        first = nl.program_id(0) * part + c * TILE
        x, y = nl.load(a[i_p, first + i_f]), nl.load(b[i_p, first + i_f])
        nl.store(out[i_p, first + i_f], value=nl.add(x, y))
    return out


@nki.benchmark
@nki.jit
def timed(a, b):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=nl.add(nl.load(a), nl.load(b)))
    return out
"""
OLD_CALL = "add[1](f32[128,1024], f32[128,1024])"

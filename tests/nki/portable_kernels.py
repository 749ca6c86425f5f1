"""Kernels in the style of the old namespace, with their meaning in numpy: what the port is tested on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from trnrt.nki.porting import Ported, port_source

HEAD = """
import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import numpy as np
"""


@dataclass(frozen=True)
class Case:
    """The source of ``kernel``, its call as text, and what it computes.

    ``writes``: what the ported text must have. ``gone``: what it must not have.
    """

    name: str
    source: str
    call: str
    numpy: Callable[..., Any]
    writes: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return HEAD + self.source


@cache
def port_case(case: Case) -> Ported:
    """The case's ported text: made once, for all tests."""
    return port_source(case.text, "old.py")


def _softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def _normalised(x: Any, w: Any) -> Any:
    return x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5) * w


def _scan(decay: Any, x: Any) -> Any:
    result, state = np.zeros_like(x), np.zeros(x.shape[0], x.dtype)
    for column in range(x.shape[1]):
        state = decay[:, column] * state + x[:, column]
        result[:, column] = state
    return result


CASES = (
    Case(
        "loads and stores",
        """
@nki.jit
def kernel(a, b):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    rows = nl.arange(128)[:, None]
    columns = nl.arange(a.shape[1])[None, :]
    for i in nl.affine_range(a.shape[0] // 128):
        x = nl.load(a[i * 128 + rows, columns])
        y = nl.load(b[i * 128 + rows, columns])
        nl.store(out[i * 128 + rows, columns], value=nl.add(x, y))
    return out
""",
        "kernel(f32[256,64], f32[256,64])",
        lambda a, b: a + b,
        writes=("nisa.dma_copy(dst=x, src=a[i * 128:(i + 1) * 128, 0:a.shape[1]])", "for i in range("),
        gone=("arange", "nl.load", "nl.store"),
    ),
    Case(
        "block dimensions",
        """
@nki.jit
def kernel(a):
    rows, columns = a.shape
    out = nl.ndarray((rows, columns), dtype=a.dtype, buffer=nl.hbm)
    blocks = nl.ndarray((rows // 128, nl.par_dim(128), columns), dtype=a.dtype, buffer=nl.sbuf)
    i_p, i_f = nl.mgrid[0:128, 0:columns]
    for b in nl.affine_range(rows // 128):
        blocks[b, i_p, i_f] = nl.load(a[b * 128 + i_p, i_f])
    for b in nl.affine_range(rows // 128):
        blocks[b] = nl.multiply(blocks[b], blocks.shape[0])
        nl.store(out[b * 128 + i_p, i_f], blocks[b, i_p, i_f])
    return out
""",
        "kernel(f32[384,32])",
        lambda a: a * 3,
        writes=("nl.ndarray((128, rows // 128, columns)", "blocks[0:128, b, 0:columns]", "buffer=nl.shared_hbm"),
        gone=("par_dim", "mgrid"),
    ),
    Case(
        "products accumulate in PSUM",
        """
@nki.jit
def kernel(lhs_t, rhs):
    depth, rows = lhs_t.shape
    _, columns = rhs.shape
    out = nl.ndarray((rows, columns), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    left = nl.mgrid[0:128, 0:rows]
    right = nl.mgrid[0:128, 0:columns]
    total = nl.zeros((rows, columns), nl.float32, buffer=nl.psum)
    for k in nl.affine_range(depth // 128):
        x = nl.load(lhs_t[k * 128 + left.p, left.x])
        y = nl.load(rhs[k * 128 + right.p, right.x])
        total[...] += nl.matmul(x[...], y, transpose_x=True)
    nl.store(out, value=nl.copy(total, dtype=out.dtype))
    return out
""",
        "kernel(f32[384,64], f32[384,96])",
        lambda lhs_t, rhs: lhs_t.T @ rhs,
        writes=("total = nl.ndarray(", "nisa.nc_matmul(dst=total, stationary=x, moving=y)"),
        gone=("+=",),
    ),
    Case(
        "products of nisa, several tiles of PSUM",
        """
@nki.jit
def kernel(a, b):
    out = nl.ndarray((2, a.shape[1], b.shape[1]), dtype=a.dtype, buffer=nl.shared_hbm)
    x, y = nl.load(a), nl.load(b)
    for n in nl.static_range(2):
        banks = nl.zeros((2, nl.par_dim(a.shape[1]), b.shape[1]), dtype=nl.float32, buffer=nl.psum)
        for k in nl.sequential_range(n + 1):
            banks[n] += nisa.nc_matmul(x, moving=y)
        nl.store(out[n], value=banks[n])
    return out
""",
        "kernel(f32[64,32], f32[64,48])",
        lambda a, b: np.stack([a.T @ b, 2 * (a.T @ b)]),
        writes=("nisa.nc_matmul(dst=banks[:, n], stationary=x, moving=y)",),
    ),
    Case(
        "products are added to what is in PSUM",
        """
@nki.jit
def kernel(a, b, c):
    out = nl.ndarray((a.shape[1], b.shape[1]), dtype=a.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray((a.shape[1], b.shape[1]), dtype=nl.float32, buffer=nl.psum)
    total[...] = nl.copy(nl.load(c))
    total += nisa.nc_matmul(nl.load(a), nl.load(b))
    nl.store(out, value=nl.copy(total))
    return out
""",
        "kernel(f32[64,32], f32[64,48], f32[32,48])",
        lambda a, b, c: a.T @ b + c,
    ),
    Case(
        "the wider of two dtypes",
        """
@nki.jit
def kernel(a, b):
    out = nl.ndarray(a.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    x = nl.load(a, dtype=nl.bfloat16)
    y = nl.load(b, dtype=nl.float32)
    nl.store(out, value=nisa.tensor_tensor(x, nisa.tensor_copy(y), op=nl.subtract))
    return out
""",
        "kernel(f32[64,32], f32[64,32])",
        lambda a, b: a.astype(ml_dtypes.bfloat16).astype(np.float32) - b,
    ),
    Case(
        "products accumulate in SBUF",
        """
@nki.jit
def kernel(a, b):
    out = nl.ndarray((a.shape[0], b.shape[1]), dtype=a.dtype, buffer=nl.shared_hbm)
    x, y = nl.load(a), nl.load(b)
    total = nl.zeros((a.shape[0], b.shape[1]), dtype=nl.float32, buffer=nl.sbuf)
    for _ in nl.sequential_range(3):
        total += nl.matmul(x, y)
    nl.store(out, total)
    return out
""",
        "kernel(f32[32,64], f32[64,48])",
        lambda a, b: 3 * (a @ b),
        writes=("nisa.nc_transpose(", "op=nl.add"),
    ),
    Case(
        "a mask of rows",
        """
import math

@nki.jit
def kernel(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    rows, columns = a.shape
    i_p = nl.arange(nl.tile_size.pmax)[:, None]
    i_f = nl.arange(columns)[None, :]
    for i in nl.affine_range(math.ceil(rows / nl.tile_size.pmax)):
        mask = i * nl.tile_size.pmax + i_p < rows
        x = nl.load(a[i * nl.tile_size.pmax + i_p, i_f], mask=mask)
        y = nl.exp(x)
        z = nl.add(y, 1.0, mask=(i * nl.tile_size.pmax + i_p < rows))
        nl.store(out[i * nl.tile_size.pmax + i_p, i_f], value=z, mask=mask)
    return out
""",
        "kernel(f32[200,24])",
        lambda a: np.exp(a) + 1,
        writes=("min((i + 1) * nl.tile_size.pmax, rows)",),
        gone=("mask=",),
    ),
    Case(
        "a mask of both dimensions, and a condition",
        """
@nki.jit
def kernel(a):
    out = nl.ndarray((128, 64), dtype=a.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=nl.zeros((128, 64), dtype=a.dtype, buffer=nl.sbuf))
    i_p, i_f = nl.mgrid[0:128, 0:64]
    tile = nl.zeros((128, 64), dtype=a.dtype, buffer=nl.sbuf)
    for part in nl.static_range(2):
        tile[i_p, i_f] = nl.load(a[i_p, i_f], mask=(i_p < 100) & (i_f <= 49) & (part < 1))
    nl.store(out[i_p, i_f], value=tile, mask=(i_p >= 10))
    return out
""",
        "kernel(f32[128,64])",
        lambda a: np.where(
            (np.arange(128)[:, None] < 100) & (np.arange(128)[:, None] >= 10) & (np.arange(64) < 50), a, 0
        ),
        writes=("if part < 1:",),
    ),
    Case(
        "softmax, nested",
        """
@nki.jit
def kernel(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    x = nl.load(a)
    powers = nl.exp(nl.subtract(x, nl.max(x, axis=[1], keepdims=True)))
    nl.store(out, value=nl.divide(powers, nl.sum(powers, axis=1, keepdims=True)))
    return out
""",
        "kernel(f32[96,40])",
        _softmax,
        writes=("max_tile.broadcast(1, a.shape[1])",),
        gone=("nl.divide", "spread"),
    ),
    Case(
        "direct allocation",
        """
import neuronxcc.nki.compiler as ncc

@nki.compiler.skip_middle_end_transformations
@nki.jit
def kernel(a, w):
    # the caller needs it
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    x = nl.ndarray((nl.par_dim(a.shape[0]), a.shape[1]), dtype=a.dtype, buffer=ncc.sbuf.mod_alloc(base_addr=0))
    y = nl.ndarray((nl.par_dim(64), 32), dtype=nl.float32, buffer=ncc.psum.mod_alloc(base_bank=1))
    x[...] = nl.load(a)
    y[...] = nisa.nc_matmul(nl.load(w), x[...])
    x[...] = nl.copy(y[...], dtype=a.dtype)
    nl.store(out, value=x)
    return out
""",
        "kernel(f32[64,32], f32[64,64])",
        lambda a, w: w.T @ a,
        writes=("buffer=nl.psum", "accumulate=False", "# the caller needs it"),
        gone=("mod_alloc", "skip_middle_end", "compiler"),
    ),
    Case(
        "operators",
        """
@nki.jit
def kernel(a, b):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    x, y = nl.load(a), nl.load(b)
    z = (x * 2 + y / 4 - 1) * -y
    z += x
    z *= 0.5
    z -= 1.0 / (x ** 2 + 1)
    z[...] = z + (x > 0)
    nl.store(out, value=z)
    return out
""",
        "kernel(f32[100,30], f32[100,30])",
        lambda a, b: ((a * 2 + b / 4 - 1) * -b + a) * 0.5 - 1 / (a * a + 1) + (a > 0),
        writes=(
            "nisa.tensor_tensor(dst=z, data1=z, data2=spread(x, z), op=nl.add)",
            "reciprocal_tile = nl.reciprocal(",
        ),
    ),
    Case(
        "rows and columns are repeated",
        """
@nki.jit
def kernel(a, w):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    x = nl.load(a)
    row = nl.load(w.reshape((1, w.shape[0])))
    mean = nl.sum(nl.square(x), axis=[1]) / a.shape[1]
    scaled = x * nl.rsqrt(mean + 1e-5)
    nl.store(out, value=nl.multiply(scaled, row.broadcast_to((a.shape[0], a.shape[1]))))
    return out
""",
        "kernel(f32[60,48], f32[48])",
        _normalised,
        writes=("nl.broadcast_to(row,",),
    ),
    Case(
        "a row is repeated where the sizes can't be read",
        """
@nki.jit
def kernel(a, w):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    x = nl.load(a)
    row = nl.load(w)
    nl.store(out, value=x + row)
    return out
""",
        "kernel(f32[60,48], f32[1,48])",
        lambda a, w: a + w,
        writes=("def spread(x, y):", "spread(row, x)"),
    ),
    Case(
        "windows and transposes by index expressions",
        """
@nki.jit
def kernel(a, size):
    channels, height, width = a.shape
    out = nl.ndarray((channels, width // size, height // size), dtype=a.dtype, buffer=nl.shared_hbm)
    x = nl.load(a)
    i0, i1, i2, i3, i4 = nl.mgrid[0:channels, 0:height // size, 0:size, 0:width // size, 0:size]
    pooled = nl.max(x[i0, size * i1 + i2, size * i3 + i4], axis=[2, 4])
    turned = nl.ndarray((channels, (width // size) * (height // size)), dtype=a.dtype, buffer=nl.sbuf)
    j0 = nl.arange(channels)[:, None, None]
    j1 = nl.arange(height // size)[None, :, None]
    j2 = nl.arange(width // size)[None, None, :]
    turned[j0, j2 * (height // size) + j1] = nl.copy(pooled[j0, j1, j2])
    nl.store(out, value=turned.reshape((channels, width // size, height // size)))
    return out
""",
        "kernel(f32[16,6,8], 2)",
        lambda a, size: a.reshape(16, 3, 2, 4, 2).max((2, 4)).transpose(0, 2, 1),
        writes=(".reshape_dim(", ".permute("),
    ),
    Case(
        "windows that overlap",
        """
@nki.jit
def kernel(a):
    channels, height, width = a.shape
    out = nl.ndarray((channels, height - 3, width - 2), dtype=a.dtype, buffer=nl.shared_hbm)
    x = nl.load(a)
    i0, i1, i2, i3, i4 = nl.mgrid[0:channels, 0:height - 3, 0:3, 0:width - 2, 0:3]
    nl.store(out, value=nl.max(x[i0, 1 + i1 + i2, i3 + i4], axis=[2, 4]))
    return out
""",
        "kernel(f32[16,7,8])",
        lambda a: np.lib.stride_tricks.sliding_window_view(a, (3, 3), axis=(1, 2))[:, 1:].max((3, 4)),
        writes=("x.ap([[", "offset=width"),
    ),
    Case(
        "steps, and a transposed store",
        """
@nki.jit
def kernel(a):
    rows, columns = a.shape
    out = nl.ndarray((columns // 2, rows), dtype=a.dtype, buffer=nl.shared_hbm)
    x = nl.load(a)
    i_p = nl.arange(rows)[:, None]
    i_f = nl.arange(columns // 2)[None, :]
    odd = nl.copy(x[i_p, 2 * i_f + 1])
    nl.store(out[i_f, i_p], value=odd)
    return out
""",
        "kernel(f32[40,12])",
        lambda a: a[:, 1::2].T,
        writes=(".permute((1, 0))",),
    ),
    Case(
        "causal selection and counting",
        """
@nki.jit
def kernel(a):
    rows, columns = a.shape
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    i_p = nl.arange(rows)[:, None]
    i_f = nl.arange(columns)[None, :]
    kept = nisa.affine_select(pred=(i_p >= i_f), on_true_tile=nl.load(a)[i_p, i_f], on_false_value=-1.0)
    numbers = nisa.iota(i_f + 100 * i_p, dtype=nl.int32)
    nl.store(out, value=nl.add(kept, nl.copy(numbers, dtype=nl.float32)))
    return out
""",
        "kernel(f32[32,32])",
        lambda a: np.where(np.tril(np.ones_like(a)) > 0, a, -1) + np.arange(32) + 100 * np.arange(32)[:, None],
        writes=("cmp_op=nl.greater_equal", "pattern=[[1, columns]]"),
    ),
    Case(
        "instructions",
        """
@nki.jit
def kernel(a):
    out = nl.ndarray((a.shape[0], 1), dtype=a.dtype, buffer=nl.shared_hbm)
    x = nl.load(a)
    low = nisa.tensor_reduce(np.max, data=x, axis=(1,), negate=True)
    x = nisa.activation(np.exp, data=x, bias=low, scale=1.0)
    x = nisa.tensor_scalar(x, np.multiply, 2.0, op1=np.add, operand1=low)
    x = nisa.tensor_tensor(x, x, op=np.subtract)
    x = nisa.tensor_tensor(data1=x, data2=nisa.tensor_copy(low), op=np.add)
    nl.store(out, value=nisa.tensor_reduce(nl.add, x, 1))
    return out
""",
        "kernel(f32[50,20])",
        lambda a: -20 * a.max(1, keepdims=True),
        writes=("op=nl.maximum, data=x", "x = x_new"),
        gone=("np.max", "np.exp"),
    ),
    Case(
        "a scan, and the largest numbers",
        """
@nki.jit
def kernel(decay, a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    best = nl.ndarray((a.shape[0], 8), dtype=a.dtype, buffer=nl.shared_hbm)
    x = nl.load(a)
    states = nisa.tensor_tensor_scan(nl.load(decay), x, initial=0, op0=np.multiply, op1=np.add)
    nl.store(out, states)
    nisa.dma_copy(dst=best, src=nisa.max8(src=states))
    return out, best
""",
        "kernel(f32[30,16], f32[30,16])",
        lambda decay, a: (_scan(decay, a), np.sort(_scan(decay, a), axis=1)[:, ::-1][:, :8]),
        writes=("nisa.max8(dst=",),
    ),
    Case(
        "functions on tiles",
        """
def scaled(tile, factor):
    \"\"\"tile * factor.\"\"\"
    result = nl.ndarray(tile.shape, dtype=tile.dtype)
    result[...] = nl.multiply(tile, factor)
    return result


@nki.jit
def kernel(a, factor=3):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    x = scaled(nl.load(a), factor) + 1.0
    nl.store(out, value=x)
    return out
""",
        "kernel(f32[20,10], factor=4)",
        lambda a, factor: a * factor + 1,
        writes=('"""tile * factor."""',),
    ),
    Case(
        "transposed loads and tiles",
        """
from neuronxcc.nki.language import par_dim

@nki.jit
def kernel(a):
    rows, columns = a.shape
    out = nl.ndarray((rows, columns), dtype=a.dtype, buffer=nl.shared_hbm)
    turned = nl.ndarray((par_dim(columns), rows), dtype=a.dtype)
    turned[...] = nl.load_transpose2d(a) * 2.0
    back = nl.ndarray((par_dim(rows), columns), dtype=a.dtype)
    back[...] = nisa.nc_transpose(turned)
    nl.store(out, value=back)
    return out
""",
        "kernel(f32[48,24])",
        lambda a: a * 2,
        gone=("par_dim",),
    ),
)

"""More kernels in the style of the old namespace: branches, several targets, masks of masks and of parts."""

from __future__ import annotations

from typing import Any

import numpy as np
from portable_kernels import Case

FLOW = (
    Case(
        "statements after a colon, and several targets",
        """
@nki.jit
def kernel(a):
    rows: int = a.shape[0]
    out = nl.ndarray((rows, 64), dtype=a.dtype, buffer=nl.shared_hbm)
    i_p, i_f = nl.mgrid[0:128, 0:64]
    one = other = nl.zeros((128, 64), dtype=nl.float32)
    one += nl.load(a[i_p, i_f])
    for i in nl.affine_range(rows // 128): nl.store(out[i * 128 + i_p, i_f], other * i)  # each block
    return out
""",
        "kernel(f32[256,64])",
        lambda a: np.concatenate([a[:128] * 0, a[:128]]),
        writes=("# each block", "rows: int = a.shape[0]"),
    ),
    Case(
        "masks of masks",
        """
@nki.jit
def kernel(a):
    out = nl.ndarray((128, 64), dtype=a.dtype, buffer=nl.shared_hbm)
    i_p, i_f = nl.mgrid[0:128, 0:64]
    nl.store(out[i_p, i_f], nl.zeros((128, 64), dtype=a.dtype))
    mask = i_p < 100
    narrow = i_f < 50
    mask = mask & narrow
    again = mask
    nl.store(out[i_p, i_f], nl.load(a[i_p, i_f], mask=mask), mask=again)
    return out
""",
        "kernel(f32[128,64])",
        lambda a: np.pad(a[:100, :50], ((0, 28), (0, 14))),
        gone=("mask &",),
    ),
    Case(
        "a tile whose shape depends on a branch",
        """
def spread(x):
    \"\"\"A name that the port uses, too.\"\"\"
    return nl.exp(x)


@nki.jit
def kernel(a, wide):
    out = nl.ndarray((128, 64), dtype=a.dtype, buffer=nl.shared_hbm)
    i_p, i_f = nl.mgrid[0:128, 0:64]
    if wide:
        i_p = 128 + nl.arange(128)[:, None]
        factor = nl.load(a[i_p, i_f])
    else:
        factor = nl.load(a[128:256, 0:1])
    nl.store(out, nl.load(a[0:128, 0:64]) * factor)
    return out
""",
        "kernel(f32[256,64], True)",
        lambda a, wide: a[:128] * a[128:],
        writes=("def spread_(x, y)",),
    ),
    Case(
        "masks of elements beside others",
        """
@nki.jit
def kernel(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    rows, columns = a.shape
    i, j = nl.mgrid[0:rows, 0:columns]
    x = nl.load(a[i, j])
    y = nl.copy(x)
    inner = (j >= 1) & (j < columns - 1)
    z = nl.add(x[i, j - 1], x[i, j + 1], mask=inner)
    y[i, j] = nl.multiply(z, 0.5, mask=inner)
    y[i, j] = nl.power(y[i, j], 2, mask=j < 3)
    y[i, j] = nl.add(y, nl.max(x, axis=1, keepdims=True), mask=(j >= 3) & (i < 7))
    nl.store(out[i, j], value=y)
    return out
""",
        "kernel(f32[8,10])",
        lambda a: _blurred(a),
    ),
    Case(
        "a full slice says that there is a dimension",
        """
@nki.jit
def kernel(a, at):
    out = nl.ndarray((a.shape[2], a.shape[3]), dtype=a.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=nl.load(a[0, at, nl.ds(0, 16), :]))
    return out
""",
        "kernel(f32[1,2,16,8], 1)",
        lambda a, at: a[0, at],
    ),
    Case(
        "a transposed tile is multiplied",
        """
@nki.jit
def kernel(a, b):
    out = nl.ndarray((a.shape[0], b.shape[1]), dtype=a.dtype, buffer=nl.shared_hbm)
    turned = nl.transpose(nl.load(a))
    nl.store(out, value=nl.matmul(turned, nl.load(b), transpose_x=True))
    return out
""",
        "kernel(f32[32,64], f32[64,16])",
        lambda a, b: a @ b,
    ),
)


def _blurred(a: Any) -> Any:
    y = a.copy()
    y[:, 1:-1] = (a[:, :-2] + a[:, 2:]) / 2
    y[:, :3] **= 2
    y[:7, 3:] += a.max(1, keepdims=True)[:7]
    return y

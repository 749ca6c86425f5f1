"""A kernel script: the addition of two tiles of 128 x 512."""

from __future__ import annotations

import numpy as np

from trnrt.nki import nisa, nki, nl


@nki.jit
def add(a: nl.NkiTensor, b: nl.NkiTensor) -> nl.NkiTensor:
    """a + b, float32 (128, 512)."""
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    a_sb = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    b_sb = nl.ndarray(b.shape, dtype=b.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a_sb, src=a)
    nisa.dma_copy(dst=b_sb, src=b)
    nisa.tensor_tensor(dst=a_sb, data1=a_sb, data2=b_sb, op=nl.add)
    nisa.dma_copy(dst=out, src=a_sb)
    return out


if __name__ == "__main__":
    add(np.ones((128, 512), np.float32), np.ones((128, 512), np.float32))

"""A linear layer with GELU as an NKI kernel in two files, to try ``trnrt nki run``, ``check`` and ``profile`` with."""

from math import erf, sqrt

import numpy as np
from tiles import load_transposed, store_gelu

from trnrt.nki import nisa, nki, nl


@nki.jit
def linear(x: nl.NkiTensor, w: nl.NkiTensor) -> nl.NkiTensor:
    """gelu(x @ w / 8). x: (M, K), w: (K, N); M and K are multiples of 128, N of 512."""
    rows, depth = x.shape
    columns = w.shape[1]
    out = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    for m in range(rows // 128):
        x_sb = nl.ndarray((128, depth // 128, 128), dtype=x.dtype, buffer=nl.sbuf)
        for k in range(depth // 128):
            load_transposed(x_sb[:, k, :], x[m * 128 : (m + 1) * 128, k * 128 : (k + 1) * 128])
        for n in range(columns // 512):
            sums_psum = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
            for k in range(depth // 128):
                w_sb = nl.ndarray((128, 512), dtype=w.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=w_sb, src=w[k * 128 : (k + 1) * 128, n * 512 : (n + 1) * 512])
                nisa.nc_matmul(dst=sums_psum, stationary=x_sb[:, k, :], moving=w_sb, accumulate=k > 0)
            store_gelu(out[m * 128 : (m + 1) * 128, n * 512 : (n + 1) * 512], sums_psum, 0.125)
    return out


def main() -> None:
    """Compare the kernel with numpy."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((256, 512), dtype=np.float32)
    w = rng.standard_normal((512, 1024), dtype=np.float32)
    product = x @ w / 8
    expected = product * (1 + np.vectorize(erf)(product / sqrt(2))) / 2
    np.testing.assert_allclose(linear(x, w), expected, rtol=1e-3, atol=1e-4)
    print("linear agrees with numpy")


if __name__ == "__main__":
    main()

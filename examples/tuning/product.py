r"""A product with four arguments to tune. docs/tuning.md shows what it finds.

trnrt nki tune examples/tuning/product.py --call 'product(bf16[1024,1024], bf16[1024,2048])' \
        --space examples/tuning/space.toml --reference product_in_numpy
"""

from typing import Any

import numpy as np

from trnrt.nki import nisa, nki, nl


@nki.jit
def product(
    lhs_t: nl.NkiTensor,
    rhs: nl.NkiTensor,
    tiles_m: int = 1,
    tiles_n: int = 1,
    load_n: int = 1,
    copy_by: str = "vector",
) -> nl.NkiTensor:
    """lhs_t.T @ rhs, a block of tiles_m x tiles_n tiles of 128 x 512 at a time, whose sums fill a bank of PSUM each.

    lhs_t: HBM (K, M), rhs: HBM (K, N); K and M multiples of 128, N of 512, and of the block
    load_n: the tiles of rhs that one transfer brings, a divisor of tiles_n
    copy_by: the engine that takes the sums out of PSUM, "vector" or "scalar"

    numpy: lhs_t.T @ rhs
    """
    depth, rows = lhs_t.shape
    columns = rhs.shape[1]
    assert rows % (128 * tiles_m) == 0, f"{rows} rows are no multiple of {tiles_m} tiles"
    assert columns % (512 * tiles_n) == 0, f"{columns} columns are no multiple of {tiles_n} tiles"
    assert tiles_n % load_n == 0, f"a block of {tiles_n} tiles can't be loaded by {load_n}"
    out = nl.ndarray((rows, columns), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for m in range(rows // (128 * tiles_m)):
        for n in range(columns // (512 * tiles_n)):
            sums_psum = nl.ndarray((128, tiles_m * tiles_n, 512), dtype=nl.float32, buffer=nl.psum)
            for k in range(depth // 128):
                part = lhs_t[k * 128 : (k + 1) * 128, m * tiles_m * 128 : (m + 1) * tiles_m * 128]
                lhs_sb = nl.ndarray(part.shape, dtype=lhs_t.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=lhs_sb, src=part)
                for load in range(tiles_n // load_n):
                    first = (n * tiles_n + load * load_n) * 512
                    rhs_sb = nl.ndarray((128, load_n * 512), dtype=rhs.dtype, buffer=nl.sbuf)
                    nisa.dma_copy(dst=rhs_sb, src=rhs[k * 128 : (k + 1) * 128, first : first + load_n * 512])
                    for i in range(tiles_m):
                        for j in range(load_n):
                            nisa.nc_matmul(
                                dst=sums_psum[:, i * tiles_n + load * load_n + j, :],
                                stationary=lhs_sb[:, i * 128 : (i + 1) * 128],
                                moving=rhs_sb[:, j * 512 : (j + 1) * 512],
                            )
            block = out[m * tiles_m * 128 : (m + 1) * tiles_m * 128, n * tiles_n * 512 : (n + 1) * tiles_n * 512]
            store_sums(block, sums_psum, copy_by)
    return out


def store_sums(dst: nl.NkiTensor, sums_psum: nl.NkiTensor, copy_by: str) -> None:
    """Store the tiles of a block. dst: HBM (tiles_m * 128, tiles_n * 512); sums_psum: (128, tiles_m * tiles_n, 512)."""
    tiles_m, tiles_n = dst.shape[0] // 128, dst.shape[1] // 512
    for i in range(tiles_m):
        out_sb = nl.ndarray((128, tiles_n * 512), dtype=dst.dtype, buffer=nl.sbuf)
        for j in range(tiles_n):
            copied = out_sb[:, j * 512 : (j + 1) * 512]
            if copy_by == "scalar":
                nisa.activation(dst=copied, op=nl.copy, data=sums_psum[:, i * tiles_n + j, :])
            else:
                nisa.tensor_copy(dst=copied, src=sums_psum[:, i * tiles_n + j, :], engine=nisa.vector_engine)
        nisa.dma_copy(dst=dst[i * 128 : (i + 1) * 128, :], src=out_sb)


def product_in_numpy(lhs_t: Any, rhs: Any) -> Any:
    """The right numbers: sums in float32, rounded to the dtype of lhs_t."""
    return (lhs_t.astype(np.float32).T @ rhs.astype(np.float32)).astype(lhs_t.dtype)

"""Running sums along rows, by the vector engine's scan."""

from trnrt.nki import nisa, nl

# Columns that are summed at a time: two float32 tiles of them take 16 KiB a partition.
CUMSUM_CHUNK = 2048


def cumsum(dst: nl.NkiTensor, src: nl.NkiTensor, rows: int, exclusive: bool = False) -> None:
    """dst = the sum of each element of a row and those before it; ``exclusive``: of those before it only.

    dst, src: HBM (N, F) of one dtype
    rows: N

    Sums are float32, and are rounded to the dtype once. Infinity and NaN stay in all sums after them.

    numpy: np.cumsum(src, axis=1), or that minus src if exclusive
    """
    columns = src.shape[1]
    assert src.shape[0] == rows and dst.shape == src.shape, f"cumsum: {src.shape} into {dst.shape}, of {rows} rows"
    for r0 in range(0, rows, nl.tile_size.pmax):
        r1 = min(rows, r0 + nl.tile_size.pmax)
        carry_sb = nl.ndarray((r1 - r0, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=carry_sb, value=0.0)
        for c0 in range(0, columns, CUMSUM_CHUNK):
            width = min(columns - c0, CUMSUM_CHUNK)
            src_sb = nl.ndarray((r1 - r0, width), dtype=src.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=src_sb, src=src[r0:r1, c0 : c0 + width])
            ones_sb = nl.ndarray((r1 - r0, width), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=ones_sb, value=1.0)
            # The sum before the first element, and the sums after each.
            sums_sb = nl.ndarray((r1 - r0, width + 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=sums_sb[:, 0:1], src=carry_sb)
            nisa.tensor_tensor_scan(
                dst=sums_sb[:, 1 : width + 1],
                data0=ones_sb,
                data1=src_sb,
                initial=carry_sb,
                op0=nl.multiply,
                op1=nl.add,
            )
            nisa.tensor_copy(dst=carry_sb, src=sums_sb[:, width : width + 1])
            made_sb = sums_sb[:, 0:width] if exclusive else sums_sb[:, 1 : width + 1]
            if dst.dtype != nl.float32:
                rounded_sb = nl.ndarray((r1 - r0, width), dtype=dst.dtype, buffer=nl.sbuf)
                nisa.tensor_copy(dst=rounded_sb, src=made_sb)
                made_sb = rounded_sb
            nisa.dma_copy(dst=dst[r0:r1, c0 : c0 + width], src=made_sb)

"""Images of 16 bits in 8: scaled, limited to the numbers of an 8-bit float, and rounded.

The vector engine computes four numbers of 16 bits a cycle, but one of 8 bits. So for two pieces of three it scales and
limits into a tile of 16 bits, exactly, and the GpSimd engine, which is mostly idle, rounds that; the third it finishes
itself. The scalar engine is left to the convolution before, whose last results leave PSUM meanwhile.
"""

from trnrt.kernels.common import ceil_div
from trnrt.nki import nisa, nl

# Elements of a partition in a piece: two PSUM banks of the convolution before. Of ResNet-50 with 8 images on trn2,
# predicted: see docs/kernels.md; measure it when this changes.
NARROWED_COLUMNS = 1024
# Of as many pieces the vector engine finishes the last one alone. With it both engines take about 340 ns for 512
# columns; by turns, the GpSimd engine would wait, with every fourth the vector engine.
TURNS = 3
# Elements of a partition per nanosecond, for estimates.
NARROWED_PER_NS = 1.5


def narrow_tile_bytes() -> int:
    """The most bytes per partition of tiles, for planners: those of four pieces."""
    return 4 * NARROWED_COLUMNS * 2


def narrow(dst: nl.NkiTensor, src: nl.NkiTensor, factor: float, most: float, signed: bool) -> None:
    """dst = src * factor, limited to ``most`` in magnitude and rounded to dst's dtype.

    dst: SBUF ``channels`` (P, B, N, H, W), an 8-bit float
    src: the same of 16 bits
    factor: a power of two
    most: the largest number of dst's dtype
    signed: src may be negative; else it is 0 or more
    limits: NeuronCore-v3 and later

    numpy: np.clip(src.astype(np.float32) * factor, -most, most).astype(dst.dtype)
    """
    _, blocks, images, height, width = dst.shape
    n_step = max(1, NARROWED_COLUMNS // (height * width))
    r_step = max(1, NARROWED_COLUMNS // width) if n_step == 1 else height
    number = 0
    for n0 in range(0, images, n_step):
        n1 = min(images, n0 + n_step)
        for i in range(ceil_div(height, r_step) * blocks):
            block, r0 = i % blocks, i // blocks * r_step
            r1 = min(height, r0 + r_step)
            _narrow_piece(dst[:, block, n0:n1, r0:r1], src[:, block, n0:n1, r0:r1], factor, most, signed, number)
            number += 1


def _narrow_piece(dst: nl.NkiTensor, src: nl.NkiTensor, factor: float, most: float, signed: bool, number: int) -> None:
    """narrow for piece ``number``, (P, n, rows, W)."""
    alone = number % TURNS == TURNS - 1
    made_sb = dst if alone and not signed else nl.ndarray(dst.shape, dtype=src.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=made_sb,
        data=src,
        op0=nl.multiply,
        operand0=factor,
        op1=nl.minimum,
        operand1=most,
        engine=nisa.engine.vector,
    )
    if signed:
        limited_sb = dst if alone else made_sb
        nisa.tensor_scalar(dst=limited_sb, data=made_sb, op0=nl.maximum, operand0=-most, engine=nisa.engine.vector)
    if not alone:
        nisa.tensor_copy(dst=dst, src=made_sb, engine=nisa.engine.gpsimd)

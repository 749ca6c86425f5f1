"""Which of a convolution's taps stand on the partitions at once, and what of the image a band must then hold.

Products have input channels on the partitions. Where there are few, several taps of the kernel stand there, too: the
band is brought in once for each, shifted, and one product sums over (kernel rows, kernel columns) of them at a time.
Partition (j * rows + u) * channels + c then holds channel c of the image shifted by tap (u, j). Where the image needs
no padding a band holds its rows whole, so that each partition is a single piece of HBM, wherever the tap starts.
"""

from trnrt.kernels.common import Pair, ceil_div
from trnrt.nki import nl

# (channels, size, kernel, stride, pads, dilation): see conv2d.
ConvShape = tuple[int, Pair, Pair, Pair, Pair, Pair]
# (kernel rows, kernel columns) of the taps on the partitions, and the columns of an image whose rows are held whole, or
# 0. (1, 1, 0): one tap at a time.
Packing = tuple[int, int, int]


def input_extent(rows: int, cols: int, kernel: Pair, stride: Pair, dilation: Pair) -> Pair:
    """(rows, columns) of the padded image that so many rows and columns of results need."""
    return (
        (rows - 1) * stride[0] + (kernel[0] - 1) * dilation[0] + 1,
        (cols - 1) * stride[1] + (kernel[1] - 1) * dilation[1] + 1,
    )


def packing(channels: int, kernel: Pair, width: int) -> Packing:
    """As many of the kernel's taps on the partitions as find room; all rows before any two columns."""
    most = max(1, nl.tile_size.pmax // channels)
    if most < kernel[0]:
        return (ceil_div(kernel[0], ceil_div(kernel[0], most)), 1, width)
    columns = min(kernel[1], most // kernel[0])
    return (kernel[0], ceil_div(kernel[1], ceil_div(kernel[1], columns)), width)


def spread(channels: int, pack: Packing) -> int:
    """How far apart the taps' partitions are. A DMA engine serves eight partitions in a row: where few are used, zeros
    stand between them, so that all engines have some."""
    return max(1, nl.tile_size.pmax // (channels * pack[0] * pack[1])) if is_packed(pack) else 1


def is_packed(pack: Packing) -> bool:
    """Whether several taps share the partitions."""
    return pack[0] * pack[1] > 1


def band_row_step(kernel: Pair, stride: Pair, pack: Packing) -> int:
    """Rows of a band from one row of results to the next: 1 where rows between them were left out."""
    return 1 if is_packed(pack) and pack[0] == kernel[0] and pack[2] == 0 else stride[0]


def products_of(kernel: Pair, pack: Packing) -> int:
    """How many products sum up all taps of a block of channels."""
    return ceil_div(kernel[0], pack[0]) * ceil_div(kernel[1], pack[1])


def band_extent(rows: int, cols: int, kernel: Pair, stride: Pair, dilation: Pair, pack: Packing) -> Pair:
    """(rows, columns) of a band on a partition. Where a partition serves one kernel row, it has no others' rows."""
    if not is_packed(pack):
        return input_extent(rows, cols, kernel, stride, dilation)
    last_row = (ceil_div(kernel[0], pack[0]) - 1) * pack[0] * dilation[0]
    last_col = (ceil_div(kernel[1], pack[1]) - 1) * pack[1] * dilation[1]
    step = band_row_step(kernel, stride, pack)
    band_cols = (cols - 1) * stride[1] + last_col + 1
    return ((rows - 1) * step + last_row + 1, pack[2] if pack[2] > 0 else band_cols)

"""Copy channels of images between tiles in SBUF, or between SBUF and HBM: to concatenate images, select some of their
channels, or shuffle them.

Engines copy if partitions start at multiples of 32 on both sides. Other channels of tiles go through the tensor engine,
multiplied with matrices of 0 and 1; DMA could move them, but is busy with weights.
"""

from dataclasses import dataclass
from typing import Any

from trnrt.kernels.common import ceil_div, count_elements, is_hbm_tensor, keep_where
from trnrt.nki import nisa, nl

# Elements per partition that engines copy; beyond that, DMA or products are faster, despite their start of about 2 us.
ENGINE_ELEMENTS = 4096
# Copies of at least this many elements per partition are shared by the vector and the scalar engine, by their clocks on
# trn1: 1.12 and 1.4 GHz.
SHARED = 256
VECTOR_SHARE = 44  # percent
# Engines start at multiples of this many partitions.
QUADRANT = 32


@dataclass
class Run(nl.NKIObject):
    """``count`` channels of source number ``source``, from ``first`` on, ``step`` apart, that go to channels of dst
    from ``put`` on, ``put_step`` apart."""

    source: int
    first: int
    step: int
    put: int
    put_step: int
    count: int


def move_channels(dst: nl.NkiTensor, srcs: tuple[nl.NkiTensor, ...], runs: tuple[tuple[int, ...], ...]) -> None:
    """Write channels of images to channels of dst.

    dst, srcs: SBUF channels (P, B, N, H, W), at least one of them, or HBM (N, C, H, W) in any shape; of one dtype
    runs: the attributes of a Run each, in their order: a plan writes them as numbers
    limits: steps are at least 1; all images have the same N, H and W; no two runs share channels of dst

    If products move the channels, NaN or infinity in one makes others NaN at its pixel.

    numpy: for each run dst[:, put::put_step][:, :count] = srcs[source][:, first::step][:, :count]
    """
    images, pixels = _extent(dst, srcs)
    to, given = _by_channel(dst, images, pixels), []
    for src in srcs:
        given.append(_by_channel(src, images, pixels))
    blocks: list[list[Run]] = []
    for _ in range(1 if is_hbm_tensor(dst) else dst.shape[1]):
        blocks.append([])
    for run in runs:
        whole = Run(run[0], run[1], run[2], run[3], run[4], run[5])
        step, put_step = whole.step, whole.put_step
        assert step > 0 and put_step > 0, f"move_channels: steps of {run} must be at least 1"
        done = 0
        while done < whole.count:
            start, end = whole.first + done * step, whole.put + done * put_step
            size = min(
                whole.count - done,
                min(_channels_left(given[whole.source], start, step), _channels_left(to, end, put_step)),
            )
            block = 0 if is_hbm_tensor(dst) else end // nl.tile_size.pmax
            blocks[block].append(Run(whole.source, start, step, end, put_step, size))
            done = done + size
    for block in range(len(blocks)):
        if _by_products(to, given, blocks[block]):
            _select(to, given, blocks[block], block)
        else:
            for piece in blocks[block]:
                src = given[piece.source]
                part = _part(src, piece.first, piece.step, piece.count)
                _copy_partitions(_part(to, piece.put, piece.put_step, piece.count), part, _quadrants(to, src, piece))


def channel_tile_bytes(runs: int, channels: int) -> int:
    """The most bytes per partition that the tiles take, for planners, for a call that makes ``channels`` in SBUF of so
    many runs: products may need selecting matrices, one per run and block, and the sources."""
    return (2 * runs + 2) * min(channels, nl.tile_size.pmax) * 4


def _extent(dst: nl.NkiTensor, srcs: tuple[nl.NkiTensor, ...]) -> tuple[int, int]:
    """(images, pixels) of the tiles in SBUF."""
    found = (0, 0)
    for i in range(len(srcs) + 1):
        tensor = dst if i == len(srcs) else srcs[i]
        if not is_hbm_tensor(tensor):
            found = (tensor.shape[2], tensor.shape[3] * tensor.shape[4])
    assert found[0] > 0, "move_channels: all tensors are in HBM; move is for them"
    return found


def _by_channel(tensor: nl.NkiTensor, images: int, pixels: int) -> nl.NkiTensor:
    """A tile as (P, B, N, pixels), a tensor in HBM as (C, N, pixels)."""
    if not is_hbm_tensor(tensor):
        return tensor.flatten_dims(3, 4)
    size = count_elements(tensor.shape)
    return tensor.reshape((images, size // (images * pixels), pixels)).permute((1, 0, 2))


def _channels_left(tensor: nl.NkiTensor, first: int, step: int) -> int:
    """The number of channels from ``first`` on, ``step`` apart, in one block; for HBM, all of them."""
    if is_hbm_tensor(tensor):
        return ceil_div(tensor.shape[0] - first, step)
    return ceil_div(nl.tile_size.pmax - first % nl.tile_size.pmax, step)


def _part(tensor: nl.NkiTensor, first: int, step: int, count: int) -> nl.NkiTensor:
    """Channels of one block, or in HBM: (count, N, pixels)."""
    if is_hbm_tensor(tensor):
        return tensor[first : first + (count - 1) * step + 1 : step]
    low = first % nl.tile_size.pmax
    return tensor[low : low + (count - 1) * step + 1 : step, first // nl.tile_size.pmax]


def _quadrants(dst: nl.NkiTensor, src: nl.NkiTensor, piece: Run) -> int:
    """The partitions of a piece (in one block on both sides) that an engine may copy at once; 0 if engines can't, or
    would take longer."""
    size = piece.count
    if is_hbm_tensor(dst) or is_hbm_tensor(src) or (size > 1 and (piece.step > 1 or piece.put_step > 1)):
        return 0
    span = nl.tile_size.pmax
    for start in [piece.first % nl.tile_size.pmax, piece.put % nl.tile_size.pmax]:
        if start % QUADRANT != 0:
            return 0
        span = min(span, nl.tile_size.pmax - start if start % (2 * QUADRANT) == 0 else QUADRANT)
    at_once = size if size <= span else QUADRANT
    elements = dst.shape[2] * dst.shape[3] * ceil_div(size, at_once)
    return at_once if elements <= ENGINE_ELEMENTS else 0


def _by_products(dst: nl.NkiTensor, srcs: list[nl.NkiTensor], pieces: list[Run]) -> bool:
    """True if the tensor engine makes a block of dst: engines can't copy all its pieces, and products can."""
    if is_hbm_tensor(dst):
        return False
    copied, last, total = True, 0, 0
    for piece in pieces:
        src = srcs[piece.source]
        if is_hbm_tensor(src) or (piece.step > 1 and piece.put_step > 1 and piece.count > 1):
            return False
        copied = copied and _quadrants(dst, src, piece) > 0
        last = max(last, piece.put % nl.tile_size.pmax + (piece.count - 1) * piece.put_step)
        total = total + piece.count
    # All of a block is written at once.
    return not copied and total == last + 1


def _select(dst: nl.NkiTensor, srcs: list[nl.NkiTensor], pieces: list[Run], block: int) -> None:
    """A block of dst as the sum of products: pieces, as whole blocks of their sources, times selecting matrices."""
    rows = 0
    matrices = []
    for piece in pieces:
        rows = rows + piece.count
    for piece in pieces:
        matrices.append(_selection(piece, rows, dst.dtype))
    to = dst[0:rows, block].flatten_dims(1, 2)
    by_vector = True
    for p0 in range(0, to.shape[1], nl.tile_size.psum_bank_fmax):
        p1 = min(to.shape[1], p0 + nl.tile_size.psum_bank_fmax)
        sum_psum = nl.ndarray((rows, p1 - p0), dtype=nl.float32, buffer=nl.psum)
        for i in range(len(pieces)):
            piece = pieces[i]
            last = piece.first % nl.tile_size.pmax + (piece.count - 1) * piece.step + 1
            seen = srcs[piece.source][0:last, piece.first // nl.tile_size.pmax].flatten_dims(1, 2)
            nisa.nc_matmul(dst=sum_psum, stationary=matrices[i], moving=seen[:, p0:p1])
        if by_vector:
            nisa.tensor_copy(dst=to[:, p0:p1], src=sum_psum)
        else:
            nisa.activation(dst=to[:, p0:p1], op=nl.copy, data=sum_psum)
        by_vector = not by_vector


def _selection(piece: Run, rows: int, dtype: Any) -> nl.NkiTensor:
    """The matrix (source partitions up to a piece's last, ``rows``) that is 1 where one becomes the other, else 0.

    Partition k becomes row m where (k - k0) * put_step = (m - m0) * step, from k0 and m0 on.
    """
    step, put_step = piece.step, piece.put_step
    k0, m0 = piece.first % nl.tile_size.pmax, piece.put % nl.tile_size.pmax
    parts = k0 + (piece.count - 1) * step + 1
    ones_sb = nl.ndarray((parts, rows), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones_sb, value=1.0)
    equal_sb = nl.ndarray((parts, rows), dtype=dtype, buffer=nl.sbuf)
    keep_where(equal_sb, ones_sb, put_step, -step, m0 * step - k0 * put_step, nl.equal)
    if m0 == 0 or k0 == 0:
        return equal_sb
    matrix_sb = nl.ndarray((parts, rows), dtype=dtype, buffer=nl.sbuf)
    keep_where(matrix_sb, equal_sb, 0, 1, -m0, nl.greater_equal)
    return matrix_sb


def _copy_partitions(dst: nl.NkiTensor, src: nl.NkiTensor, at_once: int) -> None:
    """dst = src, at most ``at_once`` partitions at a time by two engines, or by DMA if that is 0."""
    if at_once == 0:
        nisa.dma_copy(dst=dst, src=src)
        return
    dst, src = dst.flatten_dims(1, 2), src.flatten_dims(1, 2)
    size = dst.shape[1]
    first = size if size < SHARED else ceil_div(size * VECTOR_SHARE, 100)
    for p0 in range(0, dst.shape[0], at_once):
        p1 = min(dst.shape[0], p0 + at_once)
        nisa.tensor_copy(dst=dst[p0:p1, 0:first], src=src[p0:p1, 0:first])
        if first < size:
            nisa.activation(dst=dst[p0:p1, first:size], op=nl.copy, data=src[p0:p1, first:size])

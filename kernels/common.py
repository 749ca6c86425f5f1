"""Shared by all kernels: tile arithmetic, activation names, parts of images, and loads to the partitions.

Layouts, as plans and kernels name them (P is the partition count, at most 128; B counts blocks of 128):

    rows      HBM (N, F): as ONNX stores it. In SBUF (P, B, F): row b*128 + p on partition p.
    features  SBUF (P, B, S, N): feature f = (b*128 + p)*S + s of row n. S is 1 but for a flattened image.
    images    HBM (N, C, H, W): as ONNX stores it.
    channels  SBUF (P, B, N, H, W): channel b*128 + p on partition p.
"""

from dataclasses import dataclass
from typing import Any

from trnrt.nki import nisa, nl

# (rows, columns) of a window, an image or a step.
Pair = tuple[int, int]

# float32 represents every whole number up to here exactly: a kernel that counts a row's elements in it takes no longer
# rows.
COUNTED = 16777216
# The largest finite float32, negated: smaller than anything a window can hold but -inf itself.
LOWEST = -3.4028234e38
# The scalar engine's functions for activations.
ACTIVATIONS = {
    "none": nl.copy,
    "relu": nl.relu,
    "sigmoid": nl.sigmoid,
    "tanh": nl.tanh,
    "gelu": nl.gelu,
    "gelu_tanh": nl.gelu_apprx_tanh,
    "gelu_sigmoid": nl.gelu_apprx_sigmoid,
    "silu": nl.silu,
    "mish": nl.mish,
}


@dataclass
class Rectangle(nl.NKIObject):
    """A part of images: (first, end) of the images, rows and columns."""

    images: Pair
    rows: Pair
    columns: Pair


def ceil_div(a: int, b: int) -> int:
    """The smallest integer that is at least a / b."""
    return (a + b - 1) // b


def count_elements(shape: tuple[int, ...]) -> int:
    """Elements of a tensor of this shape."""
    count = 1
    for size in shape:
        count = count * size
    return count


def insert_item(items: list[Any], place: int, item: Any) -> None:
    """Put ``item`` in the list before the one at ``place``: NKI's lists have no insert()."""
    items.append(item)
    for i in range(len(items) - 1, place, -1):
        items[i] = items[i - 1]
    items[place] = item


def block_rows(total: int, block: int) -> int:
    """The number of features or channels, out of ``total``, in block number ``block`` of 128."""
    return min(nl.tile_size.pmax, total - block * nl.tile_size.pmax)


def activation_function(name: str) -> Any:
    """The scalar engine's function for an activation's name; "none" is the identity."""
    assert name in ACTIVATIONS, f"unknown activation {name}"
    return ACTIVATIONS[name]


def item_bytes(dtype: Any) -> int:
    """Bytes of an element; 2 unless it has 4 or 1."""
    if dtype == nl.float32 or dtype == nl.tfloat32 or dtype == nl.int32 or dtype == nl.uint32:
        return 4
    if dtype == nl.int8 or dtype == nl.uint8 or dtype == nl.float8_e4m3 or dtype == nl.float8_e5m2:
        return 1
    return 2


def is_hbm_tensor(tensor: nl.NkiTensor) -> bool:
    """True if a tensor is in device memory (and so reaches the engines by DMA only)."""
    return tensor.buffer == nl.shared_hbm or tensor.buffer == nl.private_hbm


def load(src: nl.NkiTensor) -> nl.NkiTensor:
    """A copy of an HBM view in SBUF; its first dimension, at most 128, becomes the partitions."""
    copy_sb = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.sbuf)
    transfer(copy_sb, src)
    return copy_sb


def transfer(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """dst = src by DMA, with the hardware's descriptors where it makes them. For a transfer that names no mode the
    compiler may choose software's: those cost the GpSimd engine time for every row, and copies within HBM have many."""
    if nisa.get_nc_version() >= nisa.nc_version.gen3 and dst.dtype == src.dtype:
        nisa.dma_copy(dst=dst, src=src, dge_mode=nisa.dge_mode.hwdge)
    else:
        nisa.dma_copy(dst=dst, src=src)


def transpose_is_exact() -> bool:
    """True if the tensor engine transposes exactly. trn1 multiplies with an identity, which spreads NaN and infinity
    over their row."""
    return nisa.get_nc_version() >= nisa.nc_version.gen3


def image_count(images: nl.NkiTensor) -> int:
    """The number of images in a tensor, in HBM or in the ``channels`` layout."""
    return images.shape[0] if is_hbm_tensor(images) else images.shape[2]


def image_part(images: nl.NkiTensor, block: int, parts: int, place: Rectangle) -> nl.NkiTensor:
    """A view (parts, n, rows, columns) of the first ``parts`` channels of a block, of images in HBM or in SBUF."""
    (n0, n1), (r0, r1), (c0, c1) = place.images, place.rows, place.columns
    if is_hbm_tensor(images):
        first = block * nl.tile_size.pmax
        return images[n0:n1, first : first + parts, r0:r1, c0:c1].permute((1, 0, 2, 3))
    return images[0:parts, block, n0:n1, r0:r1, c0:c1]


def keep_where(dst: nl.NkiTensor, src: nl.NkiTensor, per_row: int, per_column: int, offset: int, op: Any) -> None:
    """dst (P, F) = src where per_row * p + per_column * f + offset <op> 0 at partition p and column f, else 0."""
    nisa.affine_select(
        dst=dst,
        pattern=[[per_column, dst.shape[1]]],
        channel_multiplier=per_row,
        on_true_tile=src,
        on_false_value=0.0,
        cmp_op=op,
        offset=offset,
    )

"""Convolutions of small images with natural weights, where passes of the tensor engine are far apart (trn1).

As many whole images as fit are in SBUF at once, so that the stretches of results fill their PSUM banks across images:
the fewest passes. The first images arrive in pieces, those rows first that the first stretch sees. The tensor engine
transposes no more weights than it must to start early; the vector engine transposes the others meanwhile.
"""

from trnrt.kernels.common import Pair, Rectangle, block_rows, ceil_div, image_part, insert_item, item_bytes, transfer
from trnrt.kernels.conv.conv_room import fewest_stretches
from trnrt.kernels.conv.conv_weights import (
    load_bias,
    load_weight_block,
    load_weight_rows,
    turn_weights,
    turn_weights_by_vector,
)
from trnrt.kernels.conv.convolving import Layer, Method, Pooling, Weights, accumulate, evacuate
from trnrt.kernels.conv.stretches import stretches
from trnrt.kernels.rates import is_recent
from trnrt.nki import nl

# Bytes per partition of the images that are in SBUF at once, if all of them fit, and otherwise of each group.
ALL_BYTES, GROUP_BYTES = 64 * 1024, 40 * 1024
# The most images of a group: stretches of many images have few rows of each, and their stores short packets.
GROUP_IMAGES = 12
# What a packet takes besides its bytes: 8 ns of a DMA engine's 17 bytes each.
PACKET_COST_BYTES = 136
# Pieces in which the last stretch is stored, so that the last store is short.
LAST_PIECES = 2
# The least rows of images that are loaded at once after those for the first stretch.
MORE_ROWS = 4
# Channels of the first outputs' weights in a transfer.
PIECE = 32
# Nanoseconds that the vector engine takes to transpose 128 x 128 weights, and that it is ahead of the first product.
TURN_NS, AHEAD_NS = 914, 2500
# Nanoseconds of a product of a whole bank, by the bytes of an element.
PRODUCT_NS, WIDE_PRODUCT_NS = 211, 846


def has_whole_images(src: nl.NkiTensor, layer: Layer) -> bool:
    """True if this file's way serves a layer with natural weights: on trn1, images of which a bank holds a third, so
    that several share banks, and no pooling, whose windows would have to wait for whole images."""
    if is_recent() or not layer.pooling.is_none() or layer.shape.size[1] > nl.tile_size.psum_bank_fmax:
        return False
    return _image_bytes(src) <= GROUP_BYTES


def _image_bytes(src: nl.NkiTensor) -> int:
    """Bytes per partition of an image."""
    return ceil_div(src.shape[1], nl.tile_size.pmax) * src.shape[2] * src.shape[3] * item_bytes(src.dtype)


def convolve_whole_images(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    w: nl.NkiTensor,
    w_sb: nl.NkiTensor,
    bias: nl.NkiTensor,
    outputs: Pair,
    how: Method,
) -> None:
    """dst = conv(src, w) + bias for outputs (first, end), stride 1, without padding.

    dst, src: HBM (N, O, H', W'), (N, C, H, W)
    w: HBM (O, C, T), natural; ``w_sb``: SBUF (P, B, T, o) for the same weights, transposed
    bias: HBM (O,)
    """
    pmax, groups = nl.tile_size.pmax, _groups(src, dst, how.layer.pooling)
    most = groups[0][1] - groups[0][0]
    blocks = ceil_div(src.shape[1], pmax)
    rows: list[list[nl.NkiTensor]] = []
    seen = ((0, 0), (src.shape[2], src.shape[3]))
    for images in groups:
        parts = min(src.shape[1], pmax)
        tile_sb = nl.ndarray((parts, blocks, most, src.shape[2], src.shape[3]), dtype=src.dtype, buffer=nl.sbuf)
        x_sb = tile_sb[:, :, 0 : images[1] - images[0]]
        places = _ordered(images[1] - images[0], dst.shape[2], dst.shape[3], item_bytes(dst.dtype))
        if images[0] == 0:
            tiles, bias_sb = _load_first(x_sb, src, w, bias, outputs[0], places[0])
            rows.append(tiles)
        else:
            _load_image_rows(x_sb, src, (0, blocks), images, (0, src.shape[2]))
        for o0 in range(outputs[0], outputs[1], pmax):
            o1 = min(outputs[1], o0 + pmax)
            w_block = w_sb[:, :, :, o0 - outputs[0] : o1 - outputs[0]]
            if images[0] == 0:
                if o0 > outputs[0]:
                    rows.append(load_weight_rows(w, o0, src.shape[1]))
                _turn(w_block, rows[-1], o0 == outputs[0])
            weights = Weights(w_block, (o0, o1), how, seen)
            column = bias_sb[0 : o1 - o0, o0 // pmax : o0 // pmax + 1]
            ends = images[1] == src.shape[0] and o1 == outputs[1]
            for i in range(len(places)):
                pieces = LAST_PIECES if ends and i == len(places) - 1 else 1
                _convolve_stretch(dst, x_sb, weights, column, images[0], places[i], pieces)


def _groups(src: nl.NkiTensor, dst: nl.NkiTensor, pooling: Pooling) -> list[Pair]:
    """(first, end) of the images that are in SBUF at once."""
    count, each = src.shape[0], _image_bytes(src)
    step = count
    if count * each > ALL_BYTES:
        step = fewest_stretches(
            min(GROUP_IMAGES, GROUP_BYTES // each), count, (dst.shape[2], dst.shape[3]), pooling, True
        )
    groups = []
    for n0 in range(0, count, step):
        groups.append((n0, min(count, n0 + step)))
    return groups


def _ordered(images: int, rows: int, cols: int, item: int) -> list[Rectangle]:
    """The stretches in the order in which images arrive, the first one with the first rows, and the last one such that
    it is stored soon."""
    found: list[Rectangle] = []
    for end in range(1, images + 1):
        same: list[Rectangle] = []
        for place in stretches(images, rows, cols, True):
            if place.images[1] == end:
                # High ones come last, but serve few images: those at the top are the first that can be computed.
                place = Rectangle(place.images, (rows - place.rows[1], rows - place.rows[0]), place.columns)
                at = len(same)
                while at > 0 and _store_bytes(same[at - 1], item) <= _store_bytes(place, item):
                    at -= 1
                insert_item(same, at, place)
        found = found + same
    return found


def _store_bytes(place: Rectangle, item: int) -> int:
    """The bytes per partition of a stretch's store, and for each packet, that of an image, what it takes besides."""
    (n0, n1), (r0, r1), (c0, c1) = place.images, place.rows, place.columns
    return (n1 - n0) * ((r1 - r0) * (c1 - c0) * item + PACKET_COST_BYTES)


def _load_first(
    x_sb: nl.NkiTensor, src: nl.NkiTensor, w: nl.NkiTensor, bias: nl.NkiTensor, o0: int, first: Rectangle
) -> tuple[list[nl.NkiTensor], nl.NkiTensor]:
    """Load the weights of the first outputs, ``o0``..., and x_sb (P, B, n, H, W) = the first images, in the order in
    which products need them: of each block of channels the weights, and what the ``first`` stretch sees under the
    kernel's first row; then its other rows. Returns the tiles of ``load_weight_rows``, and the
    biases."""
    count, rows, blocks = x_sb.shape[2], x_sb.shape[3], x_sb.shape[1]
    step = first.images[1]
    tiles = []
    for block in range(blocks):
        tiles.append(load_weight_block(w, o0, src.shape[1], block, PIECE if block == 0 else nl.tile_size.pmax))
        r0, r1 = 0, first.rows[1]
        while r0 < rows:
            _load_image_rows(x_sb[:, :, 0:step], src, (block, block + 1), (0, step), (r0, r1))
            r0, r1 = r1, min(rows, max(2 * r1, r1 + MORE_ROWS))
    bias_sb = load_bias(bias, True)
    for n in range(step, count, step):
        end = min(count, n + step)
        _load_image_rows(x_sb[:, :, n:end], src, (0, blocks), (n, end), (0, rows))
    return tiles, bias_sb


def _load_image_rows(x_sb: nl.NkiTensor, src: nl.NkiTensor, blocks: Pair, images: Pair, rows: Pair) -> None:
    """Load ``rows`` of x_sb (P, B, n, H, W), of these images and ``blocks`` of channels."""
    for block in range(blocks[0], blocks[1]):
        k = block_rows(src.shape[1], block)
        place = Rectangle(images, rows, (0, src.shape[3]))
        transfer(x_sb[0:k, block, :, rows[0] : rows[1]], image_part(src, block, k, place))


def _turn(w_sb: nl.NkiTensor, tiles: list[nl.NkiTensor], starts: bool) -> None:
    """w_sb (P, B, T, o) = the tiles of natural weights, transposed by the vector engine; those with which the kernel
    ``starts``, by the tensor engine, too, as far as the vector engine would be too late."""
    products = len(tiles) * w_sb.shape[2]
    by_tensor = 0
    if starts:
        each = WIDE_PRODUCT_NS if item_bytes(w_sb.dtype) == 4 else PRODUCT_NS
        by_tensor = max(0, products - (products * each + AHEAD_NS) // TURN_NS)
        turn_weights(w_sb, tiles, by_tensor)
    turn_weights_by_vector(w_sb, tiles, by_tensor)


def _convolve_stretch(
    dst: nl.NkiTensor,
    x_sb: nl.NkiTensor,
    weights: Weights,
    bias_column: nl.NkiTensor,
    n0: int,
    place: Rectangle,
    pieces: int,
) -> None:
    """A stretch of results of a group whose first image is ``n0``: products, bias, stores in ``pieces`` of its rows."""
    (i0, i1), (r0, r1), (c0, c1) = place.images, place.rows, place.columns
    outputs, height = weights.outputs[1] - weights.outputs[0], r1 - r0
    sum_psum = nl.ndarray((outputs, i1 - i0, height, c1 - c0), dtype=nl.float32, buffer=nl.psum)
    accumulate(sum_psum, x_sb[:, :, i0:i1], weights, (r0, c0))
    there = Rectangle((n0 + i0, n0 + i1), (r0, r1), (c0, c1))
    out_hbm = image_part(dst, weights.outputs[0] // nl.tile_size.pmax, outputs, there)
    step = ceil_div(height, pieces)
    for first in range(0, height, step):
        end = min(height, first + step)
        tile_sb = nl.ndarray((outputs, nl.tile_size.psum_bank_fmax), dtype=dst.dtype, buffer=nl.sbuf)
        y_sb = tile_sb[:, 0 : (i1 - i0) * (end - first) * (c1 - c0)].reshape_dim(1, (i1 - i0, end - first, c1 - c0))
        evacuate(y_sb, sum_psum[:, :, first:end], bias_column, "none", False)
        transfer(out_hbm[:, :, first:end], y_sb)

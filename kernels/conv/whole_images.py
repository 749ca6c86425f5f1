"""Convolutions of small images with natural weights, where passes of the tensor engine are far apart (trn1).

As many whole images as fit are in SBUF at once, so that the stretches of results fill their PSUM banks across images:
the fewest passes. The first images arrive in pieces, those rows first that the first stretch sees. The tensor engine
transposes no more weights than it must to start early; the vector engine transposes the others meanwhile.
"""

from trnrt.kernels.common import Pair, Rectangle, block_rows, ceil_div, image_part, insert_item, item_bytes
from trnrt.kernels.conv.conv_room import fewest_stretches
from trnrt.kernels.conv.conv_weights import (
    load_bias,
    load_weight_block,
    load_weight_rows,
    transfer_ready,
    turn_weights,
    turn_weights_by_vector,
)
from trnrt.kernels.conv.convolving import Layer, Method, Pooling, Weights, evacuate
from trnrt.kernels.conv.stretches import stretches
from trnrt.kernels.double_row import is_scaled
from trnrt.kernels.rates import FLOAT32_CYCLES, is_recent, product_ns, tensor_ghz
from trnrt.kernels.warm_up import warm_up
from trnrt.nki import nisa, nl

# Bytes per partition of the images that are in SBUF at once, if all of them fit, and otherwise of each group.
ALL_BYTES, GROUP_BYTES = 64 * 1024, 40 * 1024
# The most images of a group: stretches of many images have few rows of each, and their stores short packets.
GROUP_IMAGES = 12
# The most images for which this way is taken. With 64 of 36 x 36 by 5 x 5, the upper end of the predicted range rises
# by more than the lower one falls (256 channels, float16, trn1); with 16 both fall by 2 to 8 %.
MOST_IMAGES = 32
# What a packet takes besides its bytes: 8 ns of a DMA engine's 17 bytes each.
PACKET_COST_BYTES = 136
# Pieces in which the last stretch is stored, so that the last store is short.
LAST_PIECES = 2
# The least rows of images that are loaded at once after those for the first stretch.
MORE_ROWS = 4
# Channels of the first outputs' weights in a transfer.
PIECE = 64
# Stretches that begin with the weights that the tensor engine has transposed, while the vector engine goes on: some
# banks are left for the transposes.
EARLY_STRETCHES = 6
# Transposes of zeros while the first weights load, from trn2 on.
SOON_WARM_UP = 10
# Cycles in which the vector engine transposes 128 x 128 weights, 32 x 32 at a time, and its clock from trn2 on, and
# on trn1.
TURN_CYCLES, VECTOR_GHZ, OLD_VECTOR_GHZ = 1024, 0.96, 1.12
# Nanoseconds by which it is ahead of the first product, and between passes of the tensor engine of trn1.
AHEAD_NS, GAP_NS = 2500, 29


def has_whole_images(src: nl.NkiTensor, layer: Layer) -> bool:
    """True if this file's way serves a layer with natural weights: whole images fit, the batch isn't large, and
    nothing is pooled (windows would have to wait for whole images). From trn2 on only in float32: the products of 16
    bits are too short for the vector engine to transpose meanwhile."""
    if not layer.pooling.is_none() or layer.shape.size[1] > nl.tile_size.psum_bank_fmax:
        return False
    if src.shape[0] > MOST_IMAGES:
        return False
    if is_scaled(src.dtype) or (is_recent() and item_bytes(src.dtype) != 4):
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
    seen, products, ahead_ns = ((0, 0), (src.shape[2], src.shape[3])), blocks * w_sb.shape[2], float(AHEAD_NS)
    for images in groups:
        parts = min(src.shape[1], pmax)
        tile_sb = nl.ndarray((parts, blocks, most, src.shape[2], src.shape[3]), dtype=src.dtype, buffer=nl.sbuf)
        x_sb = tile_sb[:, :, 0 : images[1] - images[0]]
        places = _order_stretches(images[1] - images[0], dst.shape[2], dst.shape[3], item_bytes(dst.dtype))
        if images[0] == 0:
            tiles, bias_sb = _load_first(x_sb, src, w, bias, outputs[0], places[0])
            warm_up(SOON_WARM_UP)
            each_ns = _product_of_stretch_ns(places[0], item_bytes(w.dtype))
        else:
            _load_rows_of_images(x_sb, src, (0, blocks), images, (0, src.shape[2]))
        for o0 in range(outputs[0], outputs[1], pmax):
            o1 = min(outputs[1], o0 + pmax)
            w_block = w_sb[:, :, :, o0 - outputs[0] : o1 - outputs[0]]
            early = 0
            if images[0] == 0:
                if o0 > outputs[0]:
                    tiles = load_weight_rows(w, o0, src.shape[1], True)
                early = _turned_by_tensor(products, each_ns, len(places), ahead_ns)
                turn_weights(w_block, tiles, early, True)
                turn_weights_by_vector(w_block, tiles, early)
                ahead_ns += products * len(places) * each_ns - (products - early) * _turn_ns()
            weights = Weights(w_block, (o0, o1), how, seen)
            column = bias_sb[0 : o1 - o0, o0 // pmax : o0 // pmax + 1]
            ends = images[1] == src.shape[0] and o1 == outputs[1]
            _convolve_places(dst, x_sb, weights, column, images[0], places, early, ends)


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


def _order_stretches(images: int, rows: int, cols: int, item: int) -> list[Rectangle]:
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
        tiles.append(load_weight_block(w, o0, src.shape[1], block, PIECE if block == 0 else nl.tile_size.pmax, True))
        r0, r1 = 0, first.rows[1]
        while r0 < rows:
            _load_rows_of_images(x_sb[:, :, 0:step], src, (block, block + 1), (0, step), (r0, r1))
            r0, r1 = r1, min(rows, max(2 * r1, r1 + MORE_ROWS))
    bias_sb = load_bias(bias, True, True)
    for n in range(step, count, step):
        end = min(count, n + step)
        _load_rows_of_images(x_sb[:, :, n:end], src, (0, blocks), (n, end), (0, rows))
    return tiles, bias_sb


def _load_rows_of_images(x_sb: nl.NkiTensor, src: nl.NkiTensor, blocks: Pair, images: Pair, rows: Pair) -> None:
    """Load ``rows`` of x_sb (P, B, n, H, W), of these images and ``blocks`` of channels."""
    for block in range(blocks[0], blocks[1]):
        k = block_rows(src.shape[1], block)
        place = Rectangle(images, rows, (0, src.shape[3]))
        transfer_ready(x_sb[0:k, block, :, rows[0] : rows[1]], image_part(src, block, k, place), True)


def _turned_by_tensor(products: int, each_ns: float, count: int, ahead_ns: float) -> int:
    """How many weights of ``products`` the tensor engine transposes: the least with which the vector engine, which is
    ``ahead_ns`` of the first product, has the others ready in time, if the first EARLY_STRETCHES use those of the
    tensor engine before any other."""
    late_ns = products * (_turn_ns() - each_ns) - ahead_ns
    if late_ns <= 0:
        return 0
    return min(products, int(late_ns / (min(EARLY_STRETCHES, count) * each_ns + _turn_ns() - each_ns)) + 1)


def _turn_ns() -> float:
    """Nanoseconds in which the vector engine transposes 128 x 128 weights."""
    return TURN_CYCLES / (VECTOR_GHZ if is_recent() else OLD_VECTOR_GHZ)


def _product_of_stretch_ns(place: Rectangle, item: int) -> float:
    """Nanoseconds of a product of a stretch."""
    (n0, n1), (r0, r1), (c0, c1) = place.images, place.rows, place.columns
    gap = 0 if is_recent() else GAP_NS * (FLOAT32_CYCLES if item == 4 else 1)
    return product_ns((n1 - n0) * (r1 - r0) * (c1 - c0), item, tensor_ghz()) + gap


def _convolve_places(
    dst: nl.NkiTensor,
    x_sb: nl.NkiTensor,
    weights: Weights,
    bias_column: nl.NkiTensor,
    n0: int,
    places: list[Rectangle],
    early: int,
    ends: bool,
) -> None:
    """The stretches ``places`` of a group whose first image is ``n0``. The first ones begin with the ``early`` products
    of all of them. ``ends``: the last one is the kernel's last."""
    products = weights.tensor.shape[1] * weights.tensor.shape[2]
    banks = []
    for i in range(min(EARLY_STRETCHES, len(places)) if early > 0 else 0):
        banks.append(_sums(weights, places[i]))
        _multiply_taps(banks[i], x_sb, weights, places[i], (0, early))
    for i in range(len(places)):
        bank = banks[i] if i < len(banks) else _sums(weights, places[i])
        _multiply_taps(bank, x_sb, weights, places[i], (early if i < len(banks) else 0, products))
        pieces = LAST_PIECES if ends and i == len(places) - 1 else 1
        _store_stretch(dst, bank, weights, bias_column, n0, places[i], pieces)


def _sums(weights: Weights, place: Rectangle) -> nl.NkiTensor:
    """A PSUM bank (o, n, rows, columns) for a stretch."""
    (i0, i1), (r0, r1), (c0, c1) = place.images, place.rows, place.columns
    outputs = weights.outputs[1] - weights.outputs[0]
    return nl.ndarray((outputs, i1 - i0, r1 - r0, c1 - c0), dtype=nl.float32, buffer=nl.psum)


def _multiply_taps(
    sum_psum: nl.NkiTensor, x_sb: nl.NkiTensor, weights: Weights, place: Rectangle, products: Pair
) -> None:
    """Add products (first, end) of all taps of all blocks of channels to a stretch's sums."""
    (i0, i1), (r0, r1), (c0, c1) = place.images, place.rows, place.columns
    shape, w_sb = weights.how.layer.shape, weights.tensor
    taps = w_sb.shape[2]
    for number in range(products[0], products[1]):
        block, tap = number // taps, number % taps
        u, v = tap // shape.kernel[1], tap % shape.kernel[1]
        k = block_rows(shape.channels, block)
        nisa.nc_matmul(
            dst=sum_psum,
            stationary=w_sb[0:k, block, tap, :],
            moving=x_sb[0:k, block, i0:i1, r0 + u : r1 + u, c0 + v : c1 + v],
            accumulate=number > 0,
        )


def _store_stretch(
    dst: nl.NkiTensor,
    sum_psum: nl.NkiTensor,
    weights: Weights,
    bias_column: nl.NkiTensor,
    n0: int,
    place: Rectangle,
    pieces: int,
) -> None:
    """Store a stretch's sums and the bias, in ``pieces`` of its rows."""
    outputs, images, height, width = sum_psum.shape
    (i0, i1), block = place.images, weights.outputs[0] // nl.tile_size.pmax
    out_hbm = image_part(dst, block, outputs, Rectangle((n0 + i0, n0 + i1), place.rows, place.columns))
    step = ceil_div(height, pieces)
    for first in range(0, height, step):
        end = min(height, first + step)
        tile_sb = nl.ndarray((outputs, nl.tile_size.psum_bank_fmax), dtype=dst.dtype, buffer=nl.sbuf)
        y_sb = tile_sb[:, 0 : images * (end - first) * width].reshape_dim(1, (images, end - first, width))
        evacuate(y_sb, sum_psum[:, :, first:end], bias_column, "none", False)
        transfer_ready(out_hbm[:, :, first:end], y_sb, True)

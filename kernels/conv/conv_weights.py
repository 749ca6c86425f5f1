"""Load a convolution's weights and bias into SBUF: prepared on the host, or natural, as in a model."""

from trnrt.kernels.beside import SQUARE
from trnrt.kernels.common import Pair, block_rows, ceil_div, is_hbm_tensor, load, transfer
from trnrt.kernels.conv.packing import ConvShape, Packing, is_packed, spread
from trnrt.kernels.operands import copy
from trnrt.nki import nisa, nl

# Taps whose first channels are transposed before the last ones are loaded.
EARLY_TAPS = 2
# Taps that the tensor engine transposes into a PSUM bank if the vector engine transposes others meanwhile.
SOON_TAPS = 2


def weight_view(w: nl.NkiTensor, natural: bool, block: int, k: int, taps: Pair, outputs: Pair) -> nl.NkiTensor:
    """Weights (k, taps, outputs) in HBM of one block of channels.

    w: prepared (P, B, T, O), or natural (O, C, T)
    """
    if natural:
        c0 = block * nl.tile_size.pmax
        return w[outputs[0] : outputs[1], c0 : c0 + k, taps[0] : taps[1]].permute((1, 2, 0))
    return w[0:k, block, taps[0] : taps[1], outputs[0] : outputs[1]]


def load_weights(w_sb: nl.NkiTensor, w: nl.NkiTensor, natural: bool, o0: int, shape: ConvShape, pack: Packing) -> None:
    """w_sb (P, B, products, outputs) = the weights of outputs ``o0``..., by DMA."""
    channels, kernel = shape.channels, shape.kernel
    outputs = (o0, o0 + w_sb.shape[3])
    if not is_packed(pack):
        for block in range(w_sb.shape[1]):
            k = block_rows(channels, block)
            part = weight_view(w, natural, block, k, (0, w_sb.shape[2]), outputs)
            transfer(w_sb[0:k, block], part)
        return
    apart = spread(channels, pack)
    if apart > 1:
        nisa.memset(dst=w_sb, value=0.0)
    taps = weight_view(w, natural, 0, channels, (0, kernel[0] * kernel[1]), outputs)
    taps = taps.reshape_dim(1, (kernel[0], kernel[1]))
    product = 0
    for u0 in range(0, kernel[0], pack[0]):
        u1 = min(kernel[0], u0 + pack[0])
        for v0 in range(0, kernel[1], pack[1]):
            v1 = min(kernel[1], v0 + pack[1])
            part = taps[:, u0:u1, v0:v1, :].permute((2, 1, 0, 3))
            k = (v1 - v0) * (u1 - u0) * channels * apart
            transfer(w_sb[0:k:apart, 0, product], part)
            product += 1


def load_bias(bias: nl.NkiTensor, natural: bool, ready: bool = False) -> nl.NkiTensor:
    """Prepared bias (P, ceil(O/128)), or a natural one (O,) in HBM, as SBUF (P, ceil(O/128)) float32. ``ready``: see
    ``transfer_ready``."""
    if not natural:
        return load(bias) if is_hbm_tensor(bias) else bias
    outputs = bias.shape[0]
    blocks = ceil_div(outputs, nl.tile_size.pmax)
    bias_sb = nl.ndarray((min(outputs, nl.tile_size.pmax), blocks), dtype=nl.float32, buffer=nl.sbuf)
    for block in range(blocks):
        o0, count = block * nl.tile_size.pmax, block_rows(outputs, block)
        column_sb, part = bias_sb[0:count, block : block + 1], bias[o0 : o0 + count].reshape((count, 1))
        if bias.dtype == nl.float32:
            transfer_ready(column_sb, part, ready)
        else:
            raw_sb = nl.ndarray((count, 1), dtype=bias.dtype, buffer=nl.sbuf)
            transfer_ready(raw_sb, part, ready)
            # Not on the vector engine: on trn1 it transposes weights meanwhile.
            nisa.activation(dst=column_sb, op=nl.copy, data=raw_sb)
    return bias_sb


def transfer_ready(dst: nl.NkiTensor, src: nl.NkiTensor, ready: bool) -> None:
    """dst = src by DMA. ``ready``: by descriptors that are made before the kernel starts: data flows sooner, and no
    engine is held up by the trigger."""
    if ready:
        nisa.dma_copy(dst=dst, src=src, dge_mode=nisa.dge_mode.none)
    else:
        transfer(dst, src)


def load_weight_rows(w: nl.NkiTensor, o0: int, channels: int, ready: bool) -> list[nl.NkiTensor]:
    """Natural weights (O, C, T) of outputs ``o0``..., at most 128, as SBUF (o, c, T): one tile per block of
    channels. ``ready``: see ``transfer_ready``."""
    tiles = []
    for block in range(ceil_div(channels, nl.tile_size.pmax)):
        tiles.append(load_weight_block(w, o0, channels, block, nl.tile_size.pmax, ready))
    return tiles


def load_weight_block(w: nl.NkiTensor, o0: int, channels: int, block: int, step: int, ready: bool) -> nl.NkiTensor:
    """The same of one block of channels, ``step`` of them at a time. ``ready``: see ``transfer_ready``."""
    outputs = min(nl.tile_size.pmax, w.shape[0] - o0)
    c0, k = block * nl.tile_size.pmax, block_rows(channels, block)
    rows_sb = nl.ndarray((outputs, k, w.shape[2]), dtype=w.dtype, buffer=nl.sbuf)
    for first in range(0, k, step):
        end = min(k, first + step)
        transfer_ready(rows_sb[:, first:end], w[o0 : o0 + outputs, c0 + first : c0 + end, :], ready)
    return rows_sb


def turn_weights(w_sb: nl.NkiTensor, tiles: list[nl.NkiTensor], count: int, shared: bool) -> None:
    """w_sb (P, B, T, o) = the tiles of ``load_weight_rows``, transposed by the tensor engine: those of the first
    ``count`` products. ``shared``: the vector engine transposes the others meanwhile. Then the scalar engine copies
    from PSUM, and few taps at a time, so that the first product soon has its own."""
    together = SOON_TAPS if shared else nl.tile_size.psum_bank_fmax // nl.tile_size.pmax
    number = 0
    for block in range(len(tiles)):
        outputs, k, taps = tiles[block].shape
        end = min(taps, count - block * taps)
        for t0 in range(0, end, together):
            t1 = min(end, t0 + together)
            turned_psum = nl.ndarray((k, t1 - t0, outputs), dtype=w_sb.dtype, buffer=nl.psum)
            for tap in range(t0, t1):
                data = tiles[block][:, :, tap]
                nisa.nc_transpose(dst=turned_psum[:, tap - t0, :], data=data, engine=nisa.engine.tensor)
            if shared:
                nisa.activation(dst=w_sb[0:k, block, t0:t1], op=nl.copy, data=turned_psum)
            else:
                copy(w_sb[0:k, block, t0:t1], turned_psum, number)
            number += 1


def turn_weights_by_vector(w_sb: nl.NkiTensor, tiles: list[nl.NkiTensor], first: int) -> None:
    """The same for products from ``first`` on, by the vector engine, bit for bit: 32 outputs by 32 channels at a
    time."""
    for block in range(len(tiles)):
        taps = tiles[block].shape[2]
        # The channels of EARLY_TAPS are transposed as they arrive.
        t0 = max(0, first - block * taps)
        while t0 < taps:
            t1 = min(taps, t0 + EARLY_TAPS) if block * taps + t0 == first else t0 + 1
            _turn_taps(w_sb[:, block], tiles[block], (t0, t1))
            t0 = t1


def _turn_taps(w_sb: nl.NkiTensor, rows_sb: nl.NkiTensor, taps: Pair) -> None:
    """w_sb (P, T, o) = rows_sb (o, c, T), transposed: those taps, 32 channels after the other."""
    outputs, k, _ = rows_sb.shape
    for c0 in range(0, k, SQUARE):
        c1 = min(k, c0 + SQUARE)
        for tap in range(taps[0], taps[1]):
            for o0 in range(0, outputs, SQUARE):
                o1 = min(outputs, o0 + SQUARE)
                square_sb = w_sb[c0:c1, tap, o0:o1]
                nisa.nc_transpose(dst=square_sb, data=rows_sb[o0:o1, c0:c1, tap], engine=nisa.engine.vector)

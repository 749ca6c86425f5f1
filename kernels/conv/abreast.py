"""Convolutions whose weights may come late: several blocks of 128 outputs, each in a PSUM bank of its own, are summed
abreast up to the last block of channels.

Weights come block of channels by block of channels, with all outputs. If one block of outputs after the other were
computed, all but the first would wait for the last weights with all their products; so only the last block of channels
is left when these arrive. Otherwise it makes no difference: the products are the same.
"""

from typing import Any

from trnrt.kernels.common import Rectangle, image_part, is_hbm_tensor, item_bytes
from trnrt.kernels.conv.convolving import Method, Weights, accumulate, evacuate, vector_helps
from trnrt.kernels.conv.packing import products_of
from trnrt.kernels.conv.stretches import stretches
from trnrt.kernels.conv.whole_numbers import bias_columns
from trnrt.kernels.double_row import is_scaled
from trnrt.kernels.rates import is_recent
from trnrt.nki import nl

# Blocks of outputs that are summed abreast: half of the PSUM banks, so that the next ones begin while these are
# evacuated. ResNet-18 at batch 1, predicted: one at a time takes 2 % more.
ABREAST = 4
# Bytes per partition of all weights from which on it is worth it: DMA loads these in 9 us. SqueezeNet, predicted: from
# 0 on, both ends of its range are 1.5 % later.
LATE_BYTES = 24 * 1024


def goes_abreast(dst: nl.NkiTensor, w: nl.NkiTensor, place: Rectangle, how: Method, added: Any) -> bool:
    """True if ``convolve_abreast`` computes a band: of many weights in SBUF, as are the tensors, in one stretch."""
    if is_hbm_tensor(dst) or is_hbm_tensor(w) or (added is not None and is_hbm_tensor(added)):
        return False
    (n0, n1), (r0, r1), (c0, c1) = place.images, place.rows, place.columns
    late = w.shape[1] * w.shape[2] * w.shape[3] * item_bytes(w.dtype) >= LATE_BYTES
    many = late and w.shape[1] > 1 and w.shape[3] > nl.tile_size.pmax
    plain = how.layer.pooling.is_none() and not is_scaled(w.dtype) and how.layer.act != "whole"
    return many and plain and len(stretches(n1 - n0, r1 - r0, c1 - c0, not is_recent())) == 1


def convolve_abreast(
    dst: nl.NkiTensor, x_sb: nl.NkiTensor, weights: Weights, bias_sb: nl.NkiTensor, place: Rectangle, added: Any
) -> None:
    """The results at ``place`` of dst = act(conv(x_sb) + bias + added), for all outputs of ``weights``.

    dst, added: SBUF ``channels`` (P, B, N, H, W), added or None
    weights: all of them, in SBUF (P, B, T, O)
    limits: goes_abreast

    numpy: see conv2d
    """
    how, w_sb, pmax = weights.how, weights.tensor, nl.tile_size.pmax
    act, outputs, blocks = how.layer.act, w_sb.shape[3], w_sb.shape[1]
    alternate, by_vector = vector_helps(products_of(how.layer.shape.kernel, how.pack) * blocks, act), False
    for g0 in range(0, outputs, ABREAST * pmax):
        sums = []
        parts = []
        for b0 in range(g0, min(outputs, g0 + ABREAST * pmax), pmax):
            b1 = min(outputs, b0 + pmax)
            y_sb = image_part(dst, (weights.outputs[0] + b0) // pmax, b1 - b0, place)
            own = Weights(w_sb[:, :, :, b0:b1], (weights.outputs[0] + b0, weights.outputs[0] + b1), how, weights.seen)
            sum_psum = nl.ndarray(y_sb.shape, dtype=nl.float32, buffer=nl.psum)
            accumulate(sum_psum, x_sb, own, (0, 0), (0, blocks - 1))
            sums.append(sum_psum)
            parts.append((y_sb, own))
        for number in range(len(sums)):
            sum_psum, (y_sb, own) = sums[number], parts[number]
            made, block = y_sb.shape[0], own.outputs[0] // pmax
            accumulate(sum_psum, x_sb, own, (0, 0), (blocks - 1, blocks))
            more = None if added is None else image_part(added, block, made, place)
            evacuate(y_sb, sum_psum, bias_columns(bias_sb, block, made, x_sb.dtype, act), act, by_vector, more)
            by_vector = alternate and not by_vector

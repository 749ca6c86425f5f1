"""Layout work on weights: done once on the host when a plan is made, never in a kernel.

P is the partition count, at most 128; B counts blocks of 128 of them. See ``kernels/common.py`` for the layouts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from trnrt.kernels.compute_math import ROUNDER
from trnrt.kernels.conv.depthwise import Slots, block_slots
from trnrt.kernels.conv.packing import ConvShape
from trnrt.kernels.conv.row_groups import RowGroups
from trnrt.kernels.conv.stacking import APART
from trnrt.kernels.conv.volumes import phase_slices
from trnrt.kernels.linear import OUTPUTS
from trnrt.nki import nl
from trnrt.operators.bounds.rounding import ENDLESS

Array = NDArray[Any]
Prepare = Callable[[Array], Array]
"""Lay a weight out as a kernel reads it."""

LARGEST = {name: float(ml_dtypes.finfo(name).max) for name in ("bfloat16", "float16")}
"""The largest finite number of a session's dtype of 16 bits."""

PARTITIONS: int = nl.tile_size.pmax


def keep_finite(array: Array, dtype: str) -> Array:
    """The numbers that stand for infinity as the largest that a dtype of 16 bits has; infinity itself stays.

    Exporters mask by float32's lowest number, so that a row of which everything is masked still has a softmax. Rounded
    to bfloat16 it would be -inf, and the softmax NaN.
    """
    largest = LARGEST.get(dtype)
    if largest is None or array.dtype.kind != "f" or not array.size:
        return array
    if max(-float(array.min()), float(array.max())) <= largest:
        return array
    stands = np.isfinite(array) & (np.abs(array) >= max(ENDLESS, largest))
    return np.where(stands, np.copysign(largest, array), array).astype(array.dtype) if stands.any() else array


def blocks_of(total: int) -> int:
    """The number of blocks of 128 for ``total`` channels or features."""
    return -(-total // PARTITIONS)


def _block_copy(array: Array) -> Array:
    """(C, ...) -> (P, B, ...): row b*128 + p at [p, b]; the last block is filled with zeros."""
    return np.ascontiguousarray(_block_view(array))


def _block_view(array: Array) -> Array:
    """``_block_copy`` as a view, where the last block is full."""
    rows = array.shape[0]
    blocks, parts = blocks_of(rows), min(rows, PARTITIONS)
    padded = array
    if rows < blocks * parts:
        padded = np.zeros((blocks * parts, *array.shape[1:]), array.dtype)
        padded[:rows] = array
    return padded.reshape(blocks, parts, *array.shape[1:]).swapaxes(0, 1)


def linear_weight(weight: Array, positions: int = 1) -> Array:
    """(F, O) -> (P, B*S*O) for the linear kernels: the chunks (B*S) of each OUTPUTS columns one after the other.

    ``positions`` (S) is 1 for plain features; for a flattened image it is rows x columns, and feature
    ``c*S + s`` is channel c at position s.
    """
    features, outputs = weight.shape
    channels = features // positions
    blocked = _block_view(weight.reshape(channels, positions, outputs))
    parts, chunks = blocked.shape[0], blocked.shape[1] * positions
    # Each weight is copied only once, straight to its place: a VGG has half a gigabyte of them.
    laid = np.empty((parts, chunks * outputs), weight.dtype)
    for first in range(0, outputs, OUTPUTS):
        some = blocked[..., first : first + OUTPUTS]
        laid[:, chunks * first : chunks * (first + some.shape[-1])].reshape(some.shape)[...] = some
    return laid


def conv_weight(weight: Array, groups: int = 1, together: int = 1) -> Array:
    """(O, C, KH, KW) -> (P, B, KH*KW, O) for conv2d.

    With ``groups``, C is the channels of one group. ``together`` groups make one convolution: the weight is zero where
    an output doesn't see a channel. B runs over the blocks of one such convolution after the other.
    """
    outputs, channels, rows, columns = weight.shape
    each = outputs // groups
    parts = []
    for first in range(0, groups, together):
        dense = np.zeros((together, each, together, channels, rows * columns), weight.dtype)
        for group in range(first, min(groups, first + together)):
            mine = weight[group * each : (group + 1) * each]
            dense[group - first, :, group - first] = mine.reshape(each, channels, -1)
        parts.append(_block_copy(dense.reshape(together * each, together * channels, -1).transpose(1, 2, 0)))
    return np.concatenate(parts, axis=1)


def diagonals(weight: Array) -> Array:
    """A depthwise weight of ``conv_weight`` without its zeros -> (P, B, T, 1) for conv2d."""
    own = range(weight.shape[0])
    return np.ascontiguousarray(weight[own, :, :, own][..., None])


def depthwise_weight(weight: Array, shape: ConvShape, rows: tuple[int, int]) -> Array:
    """A weight of ``conv_weight``, in blocks of 128 channels -> (128, M, 128) for depthwise2d.

    Row j of a group of results sees the kernel's row u in row ``j * stride + u * dilation`` of its slots.
    """
    found = []
    for block in range(weight.shape[1]):
        slots = block_slots(shape, block, rows)
        taps = np.zeros((PARTITIONS, weight.shape[2], PARTITIONS), weight.dtype)
        taps[: weight.shape[0], :, : weight.shape[3]] = weight[:, block]
        found.append(taps if slots.rows == 1 else _slot_weight(taps.reshape(PARTITIONS, *shape.kernel, -1), slots))
    return np.concatenate(found, axis=1)


def _slot_weight(taps: Array, slots: Slots) -> Array:
    """The taps (C, KH, KW, O) of a block as the matrices of its slots, ``apart`` channels after the other."""
    shape, apart = slots.shape, slots.apart()
    pieces = []
    for first in range(0, shape.channels, apart):
        own = taps[first : first + apart, :, :, first : first + apart]
        whole = np.zeros((PARTITIONS, slots.height(), shape.kernel[1], PARTITIONS), taps.dtype)
        for j in range(slots.rows):
            for u in range(shape.kernel[0]):
                slot, row = divmod(j * shape.stride[0] + u * shape.dilation[0], slots.rows)
                whole[row * apart : (row + 1) * apart, slot, :, j * apart : (j + 1) * apart] = own[:, u]
        pieces.append(whole.reshape(PARTITIONS, -1, PARTITIONS))
    return np.concatenate(pieces, axis=1)


def stacked_weight(weight: Array, kernel: tuple[int, int]) -> Array:
    """A weight of ``conv_weight``, one group of few channels -> (32*(KH-1) + C, 1, KW, O) for conv2d_stacked."""
    channels, _, _, outputs = weight.shape
    stacked = np.zeros((APART * (kernel[0] - 1) + channels, 1, kernel[1], outputs), weight.dtype)
    for row in range(kernel[0]):
        taps = weight[:, :, row * kernel[1] : (row + 1) * kernel[1]]
        stacked[APART * row : APART * row + channels] = taps
    return stacked


def row_group_weight(weight: Array, groups: RowGroups) -> Array:
    """A weight of ``conv_weight``, one group of channels -> (P, B, T, O) of the convolution of slots (row_groups.py).

    Row j of a group of results sees the kernel's row u in row ``j * stride + u * dilation`` of its slots.
    """
    shape, apart, outputs = groups.shape, groups.outputs_apart(), weight.shape[-1]
    taps = weight.reshape(*weight.shape[:2], *shape.kernel, outputs)
    parts = weight.shape[0] if groups.seen == 1 else PARTITIONS
    whole = np.zeros((parts, weight.shape[1], groups.slots(), shape.kernel[1], groups.made * apart), weight.dtype)
    for j in range(groups.made):
        for u in range(shape.kernel[0]):
            slot, row = divmod(j * shape.stride[0] + u * shape.dilation[0], groups.seen)
            first = row * groups.channels_apart()
            whole[first : first + weight.shape[0], :, slot, :, j * apart : j * apart + outputs] = taps[:, :, u]
    return whole.reshape(parts, weight.shape[1], -1, groups.made * apart)


def columns(bias: Array, each: int = 0) -> Array:
    """(O,) -> (P, B) float32: one value per output channel, on its partition; each column has ``each`` channels."""
    each = each or bias.shape[0]
    parts = [_block_copy(bias[first : first + each].astype(np.float32)) for first in range(0, bias.shape[0], each)]
    rows = parts[0].shape[0]
    return np.concatenate([np.pad(part, ((0, rows - part.shape[0]), (0, 0))) for part in parts], axis=1)


def whole_columns(biases: Array, factors: Array, low: float, high: float) -> Array:
    """Prepared biases (P, B) with the columns that whole numbers need (kernels/conv/whole_numbers.py): (P, 5*B)."""
    limits = (np.full_like(factors, number) for number in (low, high, -ROUNDER))
    return np.concatenate([biases, *(columns(numbers) for numbers in (factors, *limits))], axis=1)


def rows(bias: Array, count: int = 1) -> Array:
    """(O,) -> (count, O) float32, all rows the same."""
    return np.repeat(bias.astype(np.float32).reshape(1, -1), count, axis=0)


def conv_transpose_weight(weight: Array, groups: int = 1, together: int = 1) -> Array:
    """(C, O of a group, KH, KW) -> (P, B, KH*KW, O) for conv_transpose2d; groups as in ``conv_weight``."""
    channels, outputs, rows, columns = weight.shape
    by_group = weight.reshape(groups, channels // groups, outputs, rows, columns).swapaxes(1, 2)
    return conv_weight(by_group.reshape(groups * outputs, channels // groups, rows, columns), groups, together)


def scaled_columns(bias: Array, scale: Array) -> Array:
    """(O,) and (O,) -> (P, 3*B) float32 for convolutions of 8-bit floats: biases, scales, and their reciprocals."""
    return np.concatenate([columns(bias), columns(scale), columns(np.float32(1) / scale.astype(np.float32))], axis=1)


def recurrent_weight(weight: Array, hidden: int) -> Array:
    """R (G*H, H) -> (128, B*B*G*128) for the recurrent kernel: the rows as ``_order_gates`` has them."""
    padded = np.pad(_order_gates(weight, hidden), ((0, 0), (0, -hidden % PARTITIONS)))
    blocks = padded.shape[1] // PARTITIONS
    return np.ascontiguousarray(
        padded.T.reshape(blocks, PARTITIONS, -1).swapaxes(0, 1).reshape(PARTITIONS, blocks * padded.shape[0])
    )


def recurrent_input_weight(weight: Array, hidden: int) -> Array:
    """W (G*H, I) -> (P, BI*B*G*128) for the recurrent kernel, as ``linear_weight``; rows in the same order."""
    return linear_weight(np.ascontiguousarray(_order_gates(weight, hidden).T))


def recurrent_columns(bias: Array, hidden: int) -> Array:
    """(G*H,) -> (128, B*G) float32: a gate's number of each hidden unit on its partition, 0 where H is padded."""
    return columns(_order_gates(bias, hidden))


def _order_gates(array: Array, hidden: int) -> Array:
    """(G*H, ...) -> (B*G*128, ...): of each block of 128 hidden units all gates; zeros behind each gate's H rows."""
    gates = array.reshape(-1, hidden, *array.shape[1:])
    padded = np.pad(gates, ((0, 0), (0, -hidden % PARTITIONS), *[(0, 0)] * (gates.ndim - 2)))
    blocks = padded.reshape(len(gates), -1, PARTITIONS, *array.shape[1:])
    return blocks.swapaxes(0, 1).reshape(-1, *array.shape[1:])


def volume_weight(weight: Array, groups: int = 1) -> Array:
    """(O, C, KD, KH, KW) -> (P, B, KD*KH*KW, O) for conv3d_streamed; with ``groups``, C and O are those of one, and B
    runs over the blocks of one group after the other."""
    return conv_weight(weight.reshape(*weight.shape[:2], -1, weight.shape[-1]), groups)


def stacked_volume_weight(weight: Array, groups: int = 1, together: int = 1) -> Array:
    """(O, C, KD, KH, KW) -> (P, B, KH*KW, O) for conv3d_stacked, where the slices that a depth tap sees are channels:
    ``conv_weight`` of KD*C channels in each group."""
    outputs, channels, depth = weight.shape[:3]
    return conv_weight(weight.swapaxes(1, 2).reshape(outputs, depth * channels, *weight.shape[3:]), groups, together)


def volume_transpose_weight(weight: Array, groups: int, size: int, stride: int, pad: int, dilation: int) -> Array:
    """(C, O of a group, KD, KH, KW) -> (P, B, KH*KW, O) for conv_transpose3d: the blocks of each of the first result
    slices, out of ``size``, whose remainders modulo the stride differ. With groups, zeros where an output doesn't see a
    channel; the other arguments are those of the depth."""
    channels, outputs = weight.shape[0] // groups, weight.shape[1]
    dense = np.zeros((groups, channels, groups, outputs, *weight.shape[2:]), weight.dtype)
    for group in range(groups):
        dense[group, :, group] = weight[group * channels : (group + 1) * channels]
    dense = dense.reshape(groups * channels, groups * outputs, *weight.shape[2:])
    found = []
    for phase in range(min(stride, size)):
        taps = [tap for tap, _ in phase_slices(phase, weight.shape[2], stride, pad, dilation)]
        stacked = np.moveaxis(dense[:, :, taps], 2, 0).reshape(-1, groups * outputs, *weight.shape[3:])
        found.append(conv_transpose_weight(stacked))
    parts = max(len(part) for part in found)
    return np.concatenate([np.pad(part, ((0, parts - len(part)), *[(0, 0)] * 3)) for part in found], axis=1)

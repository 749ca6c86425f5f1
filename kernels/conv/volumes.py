"""Convolutions over volumes as convolutions over images: the slices that the depth taps see become channels.

One volume (C, D, H, W) is D images of C channels, as it lies in HBM. A kernel of depth K makes one result slice of K of
them: their channels, one slice after the other, are the K * C channels of an image. DMA copies them so within HBM,
unless K is 1. ``conv2d`` and ``conv_transpose2d`` do the rest, with all their ways to fill the partitions.
"""

from typing import Any

from trnrt.kernels.common import ceil_div, transfer
from trnrt.kernels.conv.conv2d import conv2d
from trnrt.kernels.conv.conv_transpose import conv_transpose2d
from trnrt.kernels.conv.streaming import Triple
from trnrt.kernels.conv.taps import visible_range
from trnrt.nki import nisa, nl

# A slice that no volume has, before all others.
NOWHERE = -16777216
# Elements of zeros in SBUF, on one partition.
ZERO_COLUMNS = 4096


def conv3d_stacked(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    w: nl.NkiTensor,
    bias: nl.NkiTensor,
    kernel: Triple,
    stride: Triple = (1, 1, 1),
    pads: Triple = (0, 0, 0),
    dilation: Triple = (1, 1, 1),
    act: str = "none",
    groups: int = 1,
    added: Any = None,
) -> None:
    """dst = act(conv(src, w) + bias + added), with depth taps as channels.

    dst: HBM (N, O, OD, OH, OW)
    src: HBM (N, C, D, H, W)
    w: HBM or SBUF (P, ceil(KD*C/128), KH*KW, O), prepared for conv2d: the channels of each group are its C of depth tap
        0, then those of tap 1, and so on; the dtype of src
    bias: HBM or SBUF (P, ceil(O/128)) float32, prepared for conv2d
    kernel, stride, dilation: (depth, rows, columns)
    pads: (front, top, left); windows beyond the other ends see padding, too
    act, groups: see conv2d
    added: None, or HBM of dst's shape (without groups)
    limits: those of conv2d for KD*C channels

    numpy: y[n, o, z, i, j] = act(bias[o] + sum(w[o, c, t, u, v] * padded[n, c, z*s + t*d, i*s + u*d, j*s + v*d]) +
    added[n, o, z, i, j]); with groups, c runs over the channels of o's group
    """
    starts: list[int] = []
    for tap in range(kernel[0]):
        starts.append(tap * dilation[0] - pads[0])
    for n in range(src.shape[0]):
        images = stack_slices(src[n], starts, stride[0], dst.shape[2], groups)
        conv2d(
            dst[n].permute((1, 0, 2, 3)),
            images,
            w,
            bias,
            src.shape[1] * kernel[0],
            (dst.shape[3], dst.shape[4]),
            (kernel[1], kernel[2]),
            (stride[1], stride[2]),
            (pads[1], pads[2]),
            (dilation[1], dilation[2]),
            act,
            groups=groups,
            added=None if added is None else added[n].permute((1, 0, 2, 3)),
        )


def conv_transpose3d(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    w: nl.NkiTensor,
    bias: nl.NkiTensor,
    kernel: Triple,
    stride: Triple = (1, 1, 1),
    pads: Triple = (0, 0, 0),
    dilation: Triple = (1, 1, 1),
    act: str = "none",
) -> None:
    """dst = act(the transposed convolution of src with w + bias), slices of one remainder modulo the stride at a time.

    dst: HBM (N, O, OD, OH, OW), of any size: results that no tap reaches are act(bias)
    src: HBM (N, C, D, H, W)
    w: HBM (P, B, KH*KW, O), prepared for conv_transpose2d, for each of the first ``stride[0]`` result slices in turn:
        its channels are the C of each of the slice's ``phase_slices``, one after the other; the dtype of src
    bias: HBM or SBUF (P, ceil(O/128)) float32, prepared
    kernel, stride, dilation: (depth, rows, columns)
    pads: (front, top, left): slices, rows and columns to cut off before the first; negative ones are added
    act: see conv_transpose2d
    limits: those of conv_transpose2d for C channels times the depth taps of a slice

    numpy: y = 0; y[n, o, z*s + t*d, i*s + u*d, j*s + v*d] += src[n, c, z, i, j] * w[c, o, t, u, v] for all n, c, o, z,
    i, j, t, u, v; dst = act(y[:, :, front : front + OD, top : top + OH, left : left + OW] + bias)
    """
    block = 0
    for phase in range(min(stride[0], dst.shape[2])):
        starts: list[int] = []
        for tap in phase_slices(phase, kernel[0], stride[0], pads[0], dilation[0]):
            starts.append(tap[1])
        channels = src.shape[1] * len(starts)
        end = block + ceil_div(channels, nl.tile_size.pmax)
        for n in range(src.shape[0]):
            made = dst[n, :, phase : dst.shape[2] : stride[0]].permute((1, 0, 2, 3))
            conv_transpose2d(
                made,
                stack_slices(src[n], starts, 1, made.shape[0], 1),
                w[0 : min(channels, nl.tile_size.pmax), block:end],
                bias,
                channels,
                (kernel[1], kernel[2]),
                (stride[1], stride[2]),
                (pads[1], pads[2]),
                (dilation[1], dilation[2]),
                act,
            )
        block = end


def phase_slices(phase: int, taps: int, stride: int, pad: int, dilation: int) -> list[tuple[int, int]]:
    """(tap, the source's slice under it) of the depth taps that reach result slice ``phase``; result slice phase + j *
    stride sees the slices j further. If none reaches it: tap 0, far before the first slice."""
    found: list[tuple[int, int]] = []
    for tap in range(taps):
        distance = phase + pad - tap * dilation
        if distance % stride == 0:
            found.append((tap, distance // stride))
    return found if len(found) > 0 else [(0, NOWHERE)]


def stack_slices(volume: nl.NkiTensor, starts: list[int], step: int, count: int, groups: int) -> nl.NkiTensor:
    """Images (count, C * len(starts), H, W) in HBM of a volume (C, D, H, W): image z has the slices ``starts`` + z *
    step, those of a group's channels side by side, and zeros for slices that don't exist. A view if there is nothing to
    stack."""
    channels, depth, height, width = volume.shape
    if len(starts) == 1 and starts[0] >= 0 and starts[0] + (count - 1) * step < depth:
        return volume[:, starts[0] : starts[0] + (count - 1) * step + 1 : step].permute((1, 0, 2, 3))
    size = (count, groups, len(starts), channels // groups, height * width)
    stacked = nl.ndarray(size, dtype=volume.dtype, buffer=nl.private_hbm)
    slices = volume.flatten_dims(2, 3).reshape_dim(0, (groups, channels // groups)).permute((2, 0, 1, 3))
    zeros: Any = None
    for place in range(len(starts)):
        low, high = visible_range(starts[place], count, step, 0, depth)
        if low >= high:
            low, high = count, count
        else:
            first = starts[place] + low * step
            transfer(stacked[low:high, :, place], slices[first : first + (high - low - 1) * step + 1 : step])
        for ends in [(0, low), (high, count)]:
            if ends[0] < ends[1]:
                if zeros is None:
                    zeros = make_zeros(height * width, volume.dtype)
                missing = stacked[ends[0] : ends[1], :, place]
                sizes = [[0, missing.shape[0]], [0, groups], [0, missing.shape[2]], [1, height * width]]
                transfer(missing, zeros.ap(pattern=sizes))
    return stacked.reshape((count, channels * len(starts), height, width))


def make_zeros(count: int, dtype: Any) -> nl.NkiTensor:
    """(count,) zeros in HBM."""
    zeros = nl.ndarray((count,), dtype=dtype, buffer=nl.private_hbm)
    row = min(count, ZERO_COLUMNS)
    zeros_sb = nl.ndarray((1, row), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=zeros_sb, value=0.0, engine=nisa.engine.gpsimd)
    for first in range(0, count, row):
        end = min(count, first + row)
        transfer(zeros[first:end].reshape((1, end - first)), zeros_sb[:, 0 : end - first])
    return zeros

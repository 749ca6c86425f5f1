"""Convolutions over volumes that load their input a block of channels at a time, or only what one row of taps sees.

The sums of a box of results fill up to eight PSUM banks. Each block of 128 channels is loaded once for the box: what
all its taps see or, if that is too large, what the taps of one kernel row see, one row after the other. Its products
are added to all banks before the next block comes. So the input of a result need not fit SBUF, and depth taps add up in
PSUM like those of rows and columns. No padding is loaded: a tap is added only to results for which it sees the volume.

Images are volumes of depth 1.
"""

from dataclasses import dataclass
from typing import Any

from trnrt.kernels.common import block_rows, ceil_div, load, transfer
from trnrt.kernels.conv.convolving import evacuate, vector_helps
from trnrt.kernels.conv.taps import visible_range
from trnrt.nki import nisa, nl

# (first, end) of the volumes, slices, rows and columns of a box.
Triple = tuple[int, int, int]
Box = list[tuple[int, int]]

# PSUM banks that a box of results fills: all of them.
BOX_BANKS = 8
# Bytes per partition of what one block of channels sees, and of the weights at hand. Two of each are in work at once:
# with results, and what is added to these, they fit the planner's WORKING_BYTES (``test_budgets.py``).
SEEN_BYTES = 32 * 1024
TAP_BYTES = 16 * 1024


@dataclass
class VolumeShape(nl.NKIObject):
    """A convolution without its tensors: (depth, rows, columns) of each attribute, which is an argument of
    conv3d_streamed. ``image`` is the source's size."""

    image: Triple
    kernel: Triple
    stride: Triple
    pads: Triple
    dilation: Triple

    def seen_range(self, axis: int, results: tuple[int, int], taps: tuple[int, int]) -> tuple[int, int]:
        """(first, end) of the source's elements that some results see through some taps, without the padding."""
        low = results[0] * self.stride[axis] - self.pads[axis] + taps[0] * self.dilation[axis]
        high = (results[1] - 1) * self.stride[axis] - self.pads[axis] + (taps[1] - 1) * self.dilation[axis] + 1
        low = min(max(0, low), self.image[axis])
        return (low, max(low, min(high, self.image[axis])))

    def most_seen(self, axis: int, results: int, taps: int) -> int:
        """The most source elements that this number of results sees through this number of neighbouring taps."""
        span = (results - 1) * self.stride[axis] + (taps - 1) * self.dilation[axis] + 1
        return min(span, self.image[axis])

    def position(self, tap: int) -> Triple:
        """(slice, row, column) of the kernel's tap of that number."""
        rows, columns = self.kernel[1], self.kernel[2]
        return (tap // (rows * columns), tap // columns % rows, tap % columns)

    def lead(self, axis: int) -> int:
        """The first tap that sees the source, not the padding, for the first result."""
        return min(self.kernel[axis] - 1, ceil_div(self.pads[axis], self.dilation[axis]))


@dataclass
class Streaming(nl.NKIObject):
    """The way to compute a convolution: the size of its boxes (volumes, slices, rows, columns), the results of one bank
    of them, and whether a block of channels is loaded for each row of taps by itself."""

    box: tuple[int, int, int, int]
    bank: tuple[int, int, int, int]
    by_row: bool


def conv3d_streamed(
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
    """dst = act(conv(src, w) + bias + added), of any number of channels.

    dst: HBM (N, O, OD, OH, OW)
    src: HBM (N, C, D, H, W)
    w: HBM (P, ceil(C/128), T, O), prepared as for conv2d, tap t = (slice * kernel rows + row) * kernel columns +
        column; the dtype of src. With groups, C and O count one group; its blocks come first, then the next one's
    bias: HBM or SBUF (P, ceil(O/128)) float32, prepared. With groups: the columns of each in turn
    kernel, stride, dilation: (depth, rows, columns)
    pads: (front, top, left); windows beyond the other ends see padding, too
    act: one of ACTIVATIONS in common.py, or "relu6" (at most 6)
    groups: divides C and O
    added: None, or HBM of dst's shape (without groups)
    limits: what one kernel row sees for one result fits SEEN_BYTES: with 4-byte elements, kernel columns times their
        dilation are at most 8192 (see ``streamed_fits``)

    numpy: y[n, o, z, i, j] = act(bias[o] + sum(w[o, c, t, u, v] * padded[n, c, z*s + t*d, i*s + u*d, j*s + v*d]) +
    added[n, o, z, i, j])
    """
    channels, outputs = src.shape[1] // groups, dst.shape[1] // groups
    assert added is None or groups == 1, "conv3d_streamed: with groups nothing can be added"
    shape = VolumeShape((src.shape[2], src.shape[3], src.shape[4]), kernel, stride, pads, dilation)
    assert streamed_fits(shape), f"conv3d_streamed: what one result of {shape} needs does not fit SBUF"
    bias_sb = bias if bias.buffer == nl.sbuf else load(bias)
    blocks, columns = ceil_div(channels, nl.tile_size.pmax), ceil_div(outputs, nl.tile_size.pmax)
    how = plan_streaming((dst.shape[0], dst.shape[2], dst.shape[3], dst.shape[4]), shape)
    zeros_sb = nl.ndarray((1, nl.tile_size.psum_bank_fmax), dtype=src.dtype, buffer=nl.sbuf)
    nisa.memset(dst=zeros_sb, value=0.0, engine=nisa.engine.gpsimd)
    alternate = vector_helps(blocks * kernel[0] * kernel[1] * kernel[2], act)
    for group in range(groups):
        to = dst[:, group * outputs : (group + 1) * outputs]
        seen = src[:, group * channels : (group + 1) * channels]
        weights = w[:, group * blocks : (group + 1) * blocks]
        column = bias_sb[:, group * columns : (group + 1) * columns]
        for box in cut_boxes([(0, to.shape[0]), (0, to.shape[2]), (0, to.shape[3]), (0, to.shape[4])], how.box):
            banks = cut_boxes(box, how.bank)
            together = max(1, BOX_BANKS // len(banks)) * nl.tile_size.pmax
            for o0 in range(0, outputs, together):
                sums = _start_sums(box, banks, (o0, min(outputs, o0 + together)))
                _stream_box(seen, weights, zeros_sb, sums, shape, how)
                _finish_box(to, sums, column, act, alternate, added)


def streamed_fits(shape: VolumeShape) -> bool:
    """True if at least single results can be computed: the limits of conv3d_streamed, for planners."""
    return shape.most_seen(2, 1, shape.kernel[2]) * 4 <= SEEN_BYTES


def plan_streaming(results: tuple[int, int, int, int], shape: VolumeShape) -> Streaming:
    """The boxes of ``results`` (volumes, slices, rows, columns) that fill BOX_BANKS, as large as their input fits."""
    box = [results[0], results[1], results[2], results[3]]
    taps = shape.kernel
    for axis in range(4):
        parts = 1
        while box[axis] > 1 and not _box_fits(box, shape, (1, 1, taps[2])):
            parts += 1
            box[axis] = ceil_div(results[axis], parts)
    size = (box[0], box[1], box[2], box[3])
    return Streaming(size, _bank_size(box), not _box_fits(box, shape, taps))


def _box_fits(box: list[int], shape: VolumeShape, taps: Triple) -> bool:
    """True if results of this size fill at most BOX_BANKS, and what they see through ``taps`` fits SEEN_BYTES."""
    seen = box[0]
    for axis in range(3):
        seen = seen * shape.most_seen(axis, box[axis + 1], taps[axis])
    if seen * 4 > SEEN_BYTES:
        return False
    count = 1
    bank = _bank_size(box)
    for axis in range(4):
        count = count * ceil_div(box[axis], bank[axis])
    return count <= BOX_BANKS


def _bank_size(box: list[int]) -> tuple[int, int, int, int]:
    """The results of a box that share a bank: whole rows, slices and volumes if they fit, in parts of about equal
    size."""
    size = [1, 1, 1, 1]
    room = nl.tile_size.psum_bank_fmax
    for back in range(4):
        axis = 3 - back
        step = max(1, min(box[axis], room))
        size[axis] = ceil_div(box[axis], ceil_div(box[axis], step))
        room = room // size[axis] if size[axis] == box[axis] else 1
    return (size[0], size[1], size[2], size[3])


def cut_boxes(whole: Box, size: tuple[int, int, int, int]) -> list[Box]:
    """The boxes of at most ``size`` that ``whole`` consists of, in order."""
    boxes: list[Box] = []
    for n0 in range(whole[0][0], whole[0][1], size[0]):
        for d0 in range(whole[1][0], whole[1][1], size[1]):
            for r0 in range(whole[2][0], whole[2][1], size[2]):
                for c0 in range(whole[3][0], whole[3][1], size[3]):
                    box = [(n0, min(whole[0][1], n0 + size[0])), (d0, min(whole[1][1], d0 + size[1]))]
                    box.append((r0, min(whole[2][1], r0 + size[2])))
                    box.append((c0, min(whole[3][1], c0 + size[3])))
                    boxes.append(box)
    return boxes


@dataclass
class Sums(nl.NKIObject):
    """A box of results of the outputs ``made`` (first, end): the part of each bank, and the banks of each block of
    outputs in turn. ``started``: whether a bank has been written."""

    box: Any
    parts: Any
    made: tuple[int, int]
    banks: Any
    started: Any


def _start_sums(box: Box, parts: list[Box], made: tuple[int, int]) -> Sums:
    """Banks for the results of a box."""
    banks: list[Any] = []
    started: list[bool] = []
    for o0 in range(made[0], made[1], nl.tile_size.pmax):
        outputs = min(nl.tile_size.pmax, made[1] - o0)
        for part in parts:
            size = (outputs, _length(part[0]), _length(part[1]), _length(part[2]), _length(part[3]))
            banks.append(nl.ndarray(size, dtype=nl.float32, buffer=nl.psum))
            started.append(False)
    return Sums(box, parts, made, banks, started)


def _stream_box(
    src: nl.NkiTensor, w: nl.NkiTensor, zeros_sb: nl.NkiTensor, sums: Sums, shape: VolumeShape, how: Streaming
) -> None:
    """Add up all products of a box."""
    taps, made = shape.kernel[0] * shape.kernel[1] * shape.kernel[2], sums.made
    lead = (shape.lead(0) * shape.kernel[1] + shape.lead(1)) * shape.kernel[2] + shape.lead(2)
    step = max(1, TAP_BYTES // ((made[1] - made[0]) * 4))
    for block in range(ceil_div(src.shape[1], nl.tile_size.pmax)):
        k = block_rows(src.shape[1], block)
        for row in _tap_ranges((0, taps), shape.kernel[2] if how.by_row else taps, lead):
            # Weights of taps that see nothing need not be loaded: those of a dilation as large as the image.
            piece = _seeing_taps(sums.box, row, shape)
            if _length(piece) <= 0:
                continue
            seen = _seen_box(sums.box, row, shape)
            x_sb = _load_box(src, block, k, seen)
            for chunk in _tap_ranges(piece, step, lead):
                w_sb = nl.ndarray((k, _length(chunk), _length(made)), dtype=w.dtype, buffer=nl.sbuf)
                transfer(w_sb, w[0:k, block, chunk[0] : chunk[1], made[0] : made[1]])
                for number in range(len(sums.banks)):
                    for tap in _tap_ranges(chunk, 1, lead):
                        _add_product(sums, number, x_sb, w_sb[:, tap[0] - chunk[0]], zeros_sb, seen, tap[0], shape)
    for number in range(len(sums.banks)):
        if not sums.started[number]:
            _clear_bank(sums.banks[number], zeros_sb)


def _tap_ranges(taps: tuple[int, int], step: int, lead: int) -> list[tuple[int, int]]:
    """(first, end) of at most ``step`` of the ``taps`` (first, end) each, those with the tap ``lead`` first."""
    ranges: list[tuple[int, int]] = []
    for t0 in range(taps[0], taps[1], step):
        t1 = min(taps[1], t0 + step)
        if t0 <= lead and lead < t1:
            ranges = [(t0, t1)] + ranges
        else:
            ranges.append((t0, t1))
    return ranges


def _seeing_taps(box: Box, taps: tuple[int, int], shape: VolumeShape) -> tuple[int, int]:
    """(first, end) of the ``taps`` between which are all that see the source for any result of a box."""
    first, end = taps[1], taps[0]
    for tap in range(taps[0], taps[1]):
        position = shape.position(tap)
        sees = True
        for axis in range(3):
            sees = sees and _length(shape.seen_range(axis, box[axis + 1], (position[axis], position[axis] + 1))) > 0
        if sees:
            first, end = min(first, tap), tap + 1
    return (first, end)


def _seen_box(box: Box, taps: tuple[int, int], shape: VolumeShape) -> Box:
    """The part of the source that the results of a box see through the taps (first, end): all, or those of one row."""
    seen = [box[0]]
    row = shape.position(taps[0])
    for axis in range(3):
        through = (0, shape.kernel[axis])
        if axis < 2 and _length(taps) <= shape.kernel[2]:
            through = (row[axis], row[axis] + 1)
        seen.append(shape.seen_range(axis, box[axis + 1], through))
    return seen


def _load_box(src: nl.NkiTensor, block: int, k: int, seen: Box) -> nl.NkiTensor:
    """A part of the source in SBUF (k, n, slices, rows, columns), one transfer for each volume."""
    (n0, n1), (d0, d1), (r0, r1), (c0, c1) = seen[0], seen[1], seen[2], seen[3]
    x_sb = nl.ndarray((k, n1 - n0, d1 - d0, r1 - r0, c1 - c0), dtype=src.dtype, buffer=nl.sbuf)
    first = block * nl.tile_size.pmax
    for n in range(n0, n1):
        transfer(x_sb[:, n - n0], src[n, first : first + k, d0:d1, r0:r1, c0:c1])
    return x_sb


def _add_product(
    sums: Sums,
    number: int,
    x_sb: nl.NkiTensor,
    w_tap: nl.NkiTensor,
    zeros_sb: nl.NkiTensor,
    seen: Box,
    tap: int,
    shape: VolumeShape,
) -> None:
    """Add a tap's product to those results of a bank for which it sees the source, ``seen`` of which is x_sb."""
    part = sums.parts[number % len(sums.parts)]
    bank = sums.banks[number]
    o0 = number // len(sums.parts) * nl.tile_size.pmax
    position = shape.position(tap)
    made = [(0, 0), (0, 0), (0, 0)]
    read = [(0, 0), (0, 0), (0, 0)]
    is_whole = True
    for axis in range(3):
        stride = shape.stride[axis]
        count = _length(part[axis + 1])
        # What the tap sees for the bank's first result, counted from the first element of x_sb.
        start = (
            part[axis + 1][0] * stride - shape.pads[axis] + position[axis] * shape.dilation[axis] - seen[axis + 1][0]
        )
        low, high = visible_range(start, count, stride, 0, _length(seen[axis + 1]))
        if low >= high:
            return
        made[axis] = (low, high)
        read[axis] = (start + low * stride, start + (high - 1) * stride + 1)
        is_whole = is_whole and _length(made[axis]) == count
    if not sums.started[number] and not is_whole:
        _clear_bank(bank, zeros_sb)
    n0, n1 = part[0][0] - sums.box[0][0], part[0][1] - sums.box[0][0]
    slices = x_sb[:, n0:n1, read[0][0] : read[0][1] : shape.stride[0]]
    rows = slices[:, :, :, read[1][0] : read[1][1] : shape.stride[1]]
    nisa.nc_matmul(
        dst=bank[:, :, made[0][0] : made[0][1], made[1][0] : made[1][1], made[2][0] : made[2][1]],
        stationary=w_tap[:, o0 : o0 + bank.shape[0]],
        moving=rows[:, :, :, :, read[2][0] : read[2][1] : shape.stride[2]],
        accumulate=sums.started[number] or not is_whole,
    )
    sums.started[number] = True


def _clear_bank(bank: nl.NkiTensor, zeros_sb: nl.NkiTensor) -> None:
    """Write zeros to a bank, as a product: the ones that follow add to it."""
    outputs, volumes, slices, rows, columns = bank.shape
    zeros = zeros_sb[:, 0 : volumes * slices * rows * columns].reshape((1, volumes, slices, rows, columns))
    nisa.nc_matmul(dst=bank, stationary=zeros_sb[:, 0:outputs], moving=zeros, accumulate=False)


def _finish_box(dst: nl.NkiTensor, sums: Sums, bias_sb: nl.NkiTensor, act: str, alternate: bool, added: Any) -> None:
    """Store act(sums + bias + added)."""
    (n0, n1), (d0, d1), (r0, r1), (c0, c1) = sums.box[0], sums.box[1], sums.box[2], sums.box[3]
    by_vector = False
    for o0 in range(sums.made[0], sums.made[1], nl.tile_size.pmax):
        o1 = min(sums.made[1], o0 + nl.tile_size.pmax)
        y_sb = nl.ndarray((o1 - o0, n1 - n0, d1 - d0, r1 - r0, c1 - c0), dtype=dst.dtype, buffer=nl.sbuf)
        added_sb: Any = None
        if added is not None:
            added_sb = nl.ndarray(y_sb.shape, dtype=added.dtype, buffer=nl.sbuf)
            for n in range(n0, n1):
                transfer(added_sb[:, n - n0], added[n, o0:o1, d0:d1, r0:r1, c0:c1])
        first = (o0 - sums.made[0]) // nl.tile_size.pmax * len(sums.parts)
        column = bias_sb[0 : o1 - o0, o0 // nl.tile_size.pmax : o0 // nl.tile_size.pmax + 1]
        for number in range(len(sums.parts)):
            part = sums.parts[number]
            more = None if added_sb is None else _inner_part(added_sb, part, sums.box)
            evacuate(_inner_part(y_sb, part, sums.box), sums.banks[first + number], column, act, by_vector, more)
            by_vector = alternate and not by_vector
        for n in range(n0, n1):
            transfer(dst[n, o0:o1, d0:d1, r0:r1, c0:c1], y_sb[:, n - n0])


def _inner_part(tile_sb: nl.NkiTensor, part: Box, box: Box) -> nl.NkiTensor:
    """The part of a tile (o, n, slices, rows, columns) of a box's results."""
    n0, d0, r0, c0 = box[0][0], box[1][0], box[2][0], box[3][0]
    inner = tile_sb[:, part[0][0] - n0 : part[0][1] - n0, part[1][0] - d0 : part[1][1] - d0]
    return inner[:, :, :, part[2][0] - r0 : part[2][1] - r0, part[3][0] - c0 : part[3][1] - c0]


def _length(ends: tuple[int, int]) -> int:
    """The size of a range (first, end)."""
    return ends[1] - ends[0]

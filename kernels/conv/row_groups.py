"""Convolutions of few channels or outputs: adjacent rows of the image, and of the result, share the partitions.

With 64 channels a product uses half of the tensor engine's rows, with 64 outputs half of its columns. Here ``seen``
adjacent rows of the image are on the partitions: row ``slot * seen + j`` of channel c on partition ``j * apart + c``.
One product makes ``made`` adjacent rows of the result: row ``group * made + j`` of output o on partition ``j * apart +
o`` of PSUM. So it is a convolution again, of fewer rows, with more channels and outputs and a kernel of few slots: 64
channels to 64 outputs by 3 x 3 take six products over half of the results instead of nine over all of them. Its weights
are zero where a row of the result does not see a row of the image; the host prepares them.
"""

from dataclasses import dataclass
from typing import Any

from trnrt.kernels.common import Pair, block_rows, ceil_div, is_hbm_tensor, transfer
from trnrt.kernels.conv.conv_bands import Area, load_image_band, seen_part
from trnrt.kernels.conv.conv_room import BAND_BYTES
from trnrt.kernels.conv.convolving import Layer, Method, Weights, accumulate, evacuate, may_alternate
from trnrt.kernels.conv.packing import ConvShape, leading, leading_tap
from trnrt.kernels.conv.stretches import stretches
from trnrt.kernels.conv.whole_numbers import bias_columns
from trnrt.kernels.double_row import is_scaled
from trnrt.kernels.rates import COPIED_BYTES_PER_NS, ENGINE_GHZ, INSTRUCTION_NS, is_recent, product_ns
from trnrt.nki import nisa, nl

# The rows of the image or of the result that may share the partitions: engines' tiles start at multiples of 32.
GROUPED_ROWS = (1, 2, 4)
# Fewer channels have faster ways: strips, or all taps on the partitions.
LEAST_CHANNELS = 8
# Activations that the vector engine can compute, or whole numbers: all others leave PSUM by the scalar engine alone.
BY_BOTH = ("none", "relu", "relu6", "whole")
# Nanoseconds of products that grouping must save: copying the rows on chip takes about 1 us, and evacuating PSUM takes
# an instruction for each row of a group.
GROUP_NS = 2000
# The most elements of prepared weights per partition.
GROUP_WEIGHTS = 8192


@dataclass
class RowGroups(nl.NKIObject):
    """A convolution without groups of channels, in groups of rows: ``seen`` of the image, ``made`` of the result."""

    shape: ConvShape
    outputs: int
    seen: int
    made: int

    def step(self) -> int:
        """Slots from one group of results to the next."""
        return self.made * self.shape.stride[0] // self.seen

    def slots(self) -> int:
        """The slots that a group of results sees."""
        shape = self.shape
        rows = (self.made - 1) * shape.stride[0] + (shape.kernel[0] - 1) * shape.dilation[0] + 1
        return ceil_div(rows, self.seen)

    def channels_apart(self) -> int:
        """Partitions from one row of a slot to the next."""
        return self.shape.channels if self.seen == 1 else nl.tile_size.pmax // self.seen

    def outputs_apart(self) -> int:
        """Columns of the weights from one row of a group to the next: whole blocks if not all rows share one."""
        if self.made == 1:
            return self.outputs
        room = nl.tile_size.pmax // self.made
        return room if self.outputs <= room else ceil_div(self.outputs, nl.tile_size.pmax) * nl.tile_size.pmax

    def rows_at_once(self) -> int:
        """The rows of a group that share a product."""
        return self.made if self.outputs_apart() < nl.tile_size.pmax else 1

    def grouped_shape(self) -> ConvShape:
        """The convolution of slots. Where several rows share the partitions, the slots hold the padding above."""
        shape = self.shape
        top = shape.pads[0] if self.seen == 1 else 0
        size = (ceil_div(shape.size[0], self.made), shape.size[1])
        return ConvShape(
            self.seen * self.channels_apart(),
            size,
            (self.slots(), shape.kernel[1]),
            (self.step(), shape.stride[1]),
            (top, shape.pads[1]),
            (1, shape.dilation[1]),
        )

    def weight_elements(self) -> int:
        """The prepared weights on a partition."""
        blocks = ceil_div(self.shape.channels, nl.tile_size.pmax)
        return blocks * self.slots() * self.shape.kernel[1] * self.made * self.outputs_apart()

    def columns(self) -> int:
        """The columns of all products of an image."""
        size = ceil_div(self.shape.size[0], self.made) * self.shape.size[1]
        products = self.slots() * self.shape.kernel[1] * ceil_div(self.shape.channels, nl.tile_size.pmax)
        return size * products * ceil_div(self.made * self.outputs_apart(), nl.tile_size.pmax)

    def nanoseconds(self, images: int, image: Pair, item: int, act: str) -> float:
        """Estimate the longest engine's time for images of ``image`` (rows, columns) in SBUF. If both engines can
        evacuate PSUM, only the products count."""
        takes = product_ns(images * self.columns(), item)
        if act in BY_BOTH:
            return takes
        at_once, bank = self.rows_at_once(), nl.tile_size.psum_bank_fmax
        results = images * self.shape.size[0] * self.shape.size[1] * ceil_div(self.outputs, nl.tile_size.pmax)
        banks = ceil_div(results, at_once * bank)
        copying = 0.0
        if at_once > 1:
            copying = results * item / COPIED_BYTES_PER_NS + banks * at_once * INSTRUCTION_NS
        if self.seen > 1:
            copying += images * image[0] * image[1] * item / COPIED_BYTES_PER_NS + self.seen * INSTRUCTION_NS
        evacuation = results / at_once / ENGINE_GHZ + banks * INSTRUCTION_NS
        return max(takes, max(copying, evacuation))


def choose_row_groups(shape: ConvShape, images: int, image: Pair, outputs: int, item: int, act: str = "none") -> Any:
    """The groups of rows that take the least time, or None if none saves GROUP_NS. ``image``: (rows, columns) of the
    source, ``item``: bytes of its elements, ``act``: see conv2d."""
    if shape.channels < LEAST_CHANNELS or leading(image[1], shape, 1) < 0:
        return None
    if shape.kernel[0] == 1 and act in BY_BOTH:
        return None
    plain = RowGroups(shape, outputs, 1, 1)
    best, plain_ns = plain, plain.nanoseconds(images, image, item, act)
    least = plain_ns
    for seen in GROUPED_ROWS:
        for made in GROUPED_ROWS:
            groups = RowGroups(shape, outputs, seen, made)
            fits = seen == 1 or shape.channels * seen <= nl.tile_size.pmax
            if not fits or made * shape.stride[0] % seen != 0 or groups.weight_elements() > GROUP_WEIGHTS:
                continue
            takes = groups.nanoseconds(images, image, item, act)
            if takes < least:
                best, least = groups, takes
    if best.seen == 1 and leading(image[0], best.grouped_shape(), 0) < 0:
        return None
    return best if plain_ns - least >= GROUP_NS else None


def group_bytes(groups: RowGroups, images: int, columns: int) -> int:
    """The most bytes per partition of slots of images with ``columns``: the next band loads meanwhile."""
    shape = groups.grouped_shape()
    slots = (shape.size[0] - 1) * groups.step() + groups.slots()
    return 2 * min(BAND_BYTES, images * ceil_div(shape.channels, nl.tile_size.pmax) * slots * columns * 4)


def group_method(src: nl.NkiTensor, layer: Layer, groups: RowGroups) -> Method:
    """The way to compute all results in groups of rows."""
    shape = groups.grouped_shape()
    lead = leading_tap(src, shape) if groups.seen == 1 else (0, leading(src.shape[-1], shape, 1))
    assert min(lead[0], lead[1]) >= 0, f"conv2d: no tap of {groups.shape} sees the image under all results"
    return Method(layer, False, (1, 1, 0), lead, groups)


def group_area(area: Area, groups: RowGroups) -> Area:
    """The groups of rows, and the columns, that hold the results ``area``."""
    (r0, r1), columns = area
    return ((r0 // groups.made, ceil_div(r1, groups.made)), columns)


def whole_groups(rows: int, together: int) -> int:
    """The most whole groups among ``rows``; all rows if there is none."""
    return rows // together * together if rows > together else rows


def load_row_groups(
    src: nl.NkiTensor, images: Pair, area: Area, how: Method, most: tuple[int, int, int], number: int
) -> tuple[Any, tuple[Pair, Pair]]:
    """The slots that groups of results ``area`` of ``images`` see, in SBUF (P, B, n, slots, columns), and the part of
    the padded input that they are (see ``seen_part``): existing columns, and zeros for rows outside of the image.

    most: (images, slots, columns) of the largest band; number: of the band
    """
    groups = how.groups
    shape, seen, apart = groups.shape, groups.seen, groups.channels_apart()
    grouped = groups.grouped_shape()
    if seen == 1:
        part = seen_part(src, area, grouped, how.pack, how.lead)
        return load_image_band(src, images, area, grouped, how.pack, most, part, number), part
    start = area[1][0] * shape.stride[1] - shape.pads[1]
    end = (area[1][1] - 1) * shape.stride[1] - shape.pads[1] + (shape.kernel[1] - 1) * shape.dilation[1] + 1
    columns = (max(0, start), min(src.shape[-1], end))
    row0 = area[0][0] * groups.made * shape.stride[0] - shape.pads[0]
    slots = (area[0][1] - area[0][0] - 1) * groups.step() + groups.slots()
    tile_sb = nl.ndarray((seen * apart, 1, most[0], most[1], most[2]), dtype=src.dtype, buffer=nl.sbuf)
    x_sb = tile_sb[:, :, 0 : images[1] - images[0], 0:slots, 0 : columns[1] - columns[0]]
    if shape.channels < apart:
        nisa.memset(dst=x_sb, value=0.0, engine=nisa.engine.gpsimd)
    for j in range(seen):
        # Slot k holds row row0 + j + k * seen of the image.
        k0 = min(slots, max(0, ceil_div(-row0 - j, seen)))
        k1 = max(k0, min(slots, ceil_div(src.shape[-2] - row0 - j, seen)))
        own_sb = x_sb[j * apart : j * apart + shape.channels, 0]
        if k0 > 0 and shape.channels == apart:
            nisa.memset(dst=own_sb[:, :, 0:k0], value=0.0, engine=nisa.engine.gpsimd)
        if k1 < slots and shape.channels == apart:
            nisa.memset(dst=own_sb[:, :, k1:slots], value=0.0, engine=nisa.engine.gpsimd)
        if k0 < k1:
            first = row0 + j + k0 * seen
            _copy_rows(own_sb[:, :, k0:k1], src, images, (first, first + (k1 - k0 - 1) * seen + 1), seen, columns)
    return x_sb, ((0, columns[0] - start), (slots, columns[1] - start))


def _copy_rows(own_sb: nl.NkiTensor, src: nl.NkiTensor, images: Pair, rows: Pair, step: int, columns: Pair) -> None:
    """own_sb (C, n, rows, columns) = every ``step``-th of ``rows`` of images in HBM or SBUF."""
    n0, n1 = images
    channels = own_sb.shape[0]
    if is_hbm_tensor(src):
        part = src[n0:n1, 0:channels, rows[0] : rows[1] : step, columns[0] : columns[1]]
        transfer(own_sb, part.permute((1, 0, 2, 3)))
    else:
        part = src[0:channels, 0, n0:n1, rows[0] : rows[1] : step, columns[0] : columns[1]]
        nisa.tensor_copy(dst=own_sb, src=part, engine=nisa.engine.vector)


def group_biases(bias_sb: nl.NkiTensor, groups: RowGroups, layer: Layer, adds: bool, dtype: Any) -> list[nl.NkiTensor]:
    """The biases of each block of outputs (o, 1). If one instruction is to evacuate all rows of a product: those of all
    of them (P, 1). That is faster on the scalar engine, which would take as long for each row.

    bias_sb: all biases, prepared; adds: a tensor is added to the sums; dtype: of the images
    """
    columns: list[nl.NkiTensor] = []
    for block in range(ceil_div(groups.outputs, nl.tile_size.pmax)):
        columns.append(bias_columns(bias_sb, block, block_rows(groups.outputs, block), dtype, layer.act))
    at_once, apart = groups.rows_at_once(), groups.outputs_apart()
    if at_once == 1 or adds or layer.act in BY_BOTH or is_scaled(dtype) or not is_recent():
        return columns
    return [repeat_column(columns[0], at_once, apart)]


def repeat_column(column: nl.NkiTensor, rows: int, apart: int) -> nl.NkiTensor:
    """A column (o, 1) in SBUF ``rows`` times (P, 1), each ``apart`` partitions after the other, with zeros between."""
    all_sb = nl.ndarray((rows * apart, 1), dtype=nl.float32, buffer=nl.sbuf)
    if column.shape[0] < apart:
        nisa.memset(dst=all_sb, value=0.0, engine=nisa.engine.vector)
    for j in range(rows):
        own_sb = all_sb[j * apart : j * apart + column.shape[0]]
        nisa.tensor_copy(dst=own_sb, src=column, engine=nisa.engine.vector)
    return all_sb


def convolve_row_groups(
    y_sb: nl.NkiTensor, x_sb: nl.NkiTensor, weights: Weights, bias_column: nl.NkiTensor, added_sb: Any, area: Area
) -> None:
    """y_sb (o, n, rows, columns) = act(conv(x_sb) + bias + added_sb) for the results ``area``, a PSUM bank after the
    other; its rows are evacuated one by one, or together (see ``group_biases``), and then copied one by one."""
    how, (b0, b1) = weights.how, weights.outputs
    groups, layer = how.groups, how.layer
    apart, at_once = groups.outputs_apart(), groups.rows_at_once()
    (row0, row1), (g0, g1) = area[0], group_area(area, groups)[0]
    inner = Method(Layer(groups.grouped_shape(), layer.act, layer.pooling, False, 0), False, how.pack, how.lead)
    together = bias_column.shape[0] > y_sb.shape[0]
    alternate = layer.pooling.is_none() and may_alternate(layer.act)
    by_vector = False
    for place in stretches(y_sb.shape[1], g1 - g0, y_sb.shape[3], not is_recent()):
        (n0, n1), (a0, a1), (c0, c1) = place.images, place.rows, place.columns
        for first in range(0, groups.made, at_once):
            o0 = first * apart + b0
            own = weights.tensor[:, :, :, o0 : o0 + (b1 - b0 if at_once == 1 else apart * at_once)]
            shape = (own.shape[3], n1 - n0, a1 - a0, c1 - c0)
            sum_psum = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
            part = Weights(own, weights.outputs, inner, weights.seen)
            accumulate(sum_psum, x_sb[:, :, n0:n1], part, (a0, c0))
            all_sb = sum_psum
            if together:
                all_sb = nl.ndarray(shape, dtype=y_sb.dtype, buffer=nl.sbuf)
                evacuate(all_sb, sum_psum, bias_column, layer.act, False)
            for j in range(at_once):
                # Group a of the bank has row y0 + (a - low) * made of the band, of those that exist.
                start = (g0 + a0) * groups.made + first + j - row0
                low = max(0, ceil_div(-start, groups.made))
                high = min(a1 - a0, ceil_div(row1 - row0 - start, groups.made))
                if low >= high:
                    continue
                y0 = start + low * groups.made
                rows = (y0, y0 + (high - low - 1) * groups.made + 1)
                row_sb = all_sb[j * apart : j * apart + b1 - b0, :, low:high]
                place_sb = y_sb[:, n0:n1, rows[0] : rows[1] : groups.made, c0:c1]
                if together:
                    nisa.tensor_copy(dst=place_sb, src=row_sb, engine=nisa.engine.vector)
                    continue
                more = None
                if added_sb is not None:
                    more = added_sb[:, n0:n1, rows[0] : rows[1] : groups.made, c0:c1]
                evacuate(place_sb, row_sb, bias_column, layer.act, by_vector, more)
                by_vector = alternate and not by_vector

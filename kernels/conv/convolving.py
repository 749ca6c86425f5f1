"""The products of a convolution, and the rest of the way to HBM: bias, activation, pooling, stores."""

from dataclasses import dataclass
from typing import Any

from trnrt.kernels.common import (
    LOWEST,
    Pair,
    Rectangle,
    activation_function,
    block_rows,
    ceil_div,
    count_elements,
    image_part,
    item_bytes,
    keep_where,
    transfer,
)
from trnrt.kernels.conv.conv_weights import weight_view
from trnrt.kernels.conv.double_rows import accumulate_terms, evacuate_scaled
from trnrt.kernels.conv.packing import ConvShape, Packing, band_row_step, input_extent, is_packed, spread
from trnrt.kernels.conv.taps import list_taps, visible_range
from trnrt.kernels.conv.whole_numbers import evacuate_whole
from trnrt.kernels.double_row import is_scaled
from trnrt.kernels.pool2d import Windows, max_windows
from trnrt.nki import nisa, nl

# The least bytes per partition of a store, small enough for the last one to be short: DMA's guide advises 2 KiB.
STORE_BYTES = 2 * 1024
# Results of an image that one instruction pools, few enough for the last one to be short. Kept from the first tuning;
# half and twice of it change nothing for the labs' small convolutions.
POOLED = 256
# Up to this many products a bank the scalar engine alone is too slow for the tensor engine: it has half its clock, and
# an overhead a bank. Kept from the first tuning; measure the labs' convolutions and the networks on trn2.
FEW_PRODUCTS = 4
# Up to this many results of a partition the vector engine computes a sigmoid: those of squeeze-and-excitation gates,
# between SiLU, for which the scalar engine would load one function's table and then the other's, 1.3 us each time.
# EfficientNet-B0 has one column a gate and image; measure it after a change.
GATE_COLUMNS = 64
# The nearest float32 to 1/e: off by 2.5e-8 of it.
INVERSE_E = 0.36787944117144233


@dataclass
class Pooling(nl.NKIObject):
    """Pooling of a convolution's results; each attribute is the argument of conv2d whose name has "pool"."""

    op: str
    window: Pair
    stride: Pair
    pads: Pair
    dilation: Pair

    def is_none(self) -> bool:
        return self.window == (1, 1) and self.stride == (1, 1)

    def extent(self, rows: int, cols: int) -> Pair:
        """(rows, columns) of the convolution, with its padding, that ``rows`` x ``cols`` pooled results need."""
        return input_extent(rows, cols, self.window, self.stride, self.dilation)


@dataclass
class Layer(nl.NKIObject):
    """A convolution, its activation and its pooling, and the way to compute them.

    natural: w is HBM (O, C, T) and bias (O,) as in a model; otherwise they are prepared
    weight_bytes: the most bytes per partition of weights in SBUF at once
    band_bytes, way: see conv2d; ``source_bytes``: bytes per partition of a band of images, or 0 for BAND_BYTES
    """

    shape: ConvShape
    act: str
    pooling: Pooling
    natural: bool
    weight_bytes: int
    band_bytes: int = 0
    way: str = "best"
    source_bytes: int = 0


@dataclass
class Method(nl.NKIObject):
    """The way to compute some outputs.

    turn: natural weights are transposed on chip
    pack: the taps on the partitions; ``lead``: the tap that comes first (see leading_tap)
    groups: the rows that share the partitions (row_groups.RowGroups), or None
    identity: the matrix by which the tensor engine adds another tensor (make_identity), or None
    """

    layer: Layer
    turn: bool
    pack: Packing
    lead: Pair
    groups: Any = None
    identity: Any = None


@dataclass
class Weights(nl.NKIObject):
    """The weights of ``outputs`` (first, end), and the part of the padded input that a band holds."""

    tensor: Any
    outputs: Pair
    how: Method
    seen: tuple[Pair, Pair]


def accumulate(sum_psum: nl.NkiTensor, x_sb: nl.NkiTensor, weights: Weights, at: Pair, blocks: Any = None) -> None:
    """sum_psum (o, n, rows, columns) = the sum over all taps and channels of weights in SBUF (P, B, products, o) times
    the band, from result ``at`` of the band on: the shifted and strided band is the moving operand. ``blocks``: (first,
    end) of the blocks of channels, None for all; those from 0 on start the sum, others add to it.

    A tap is added only to those results for which it sees loaded input.
    """
    w, shape, pack = weights.tensor, weights.how.layer.shape, weights.how.pack
    if is_scaled(x_sb.dtype):
        assert not is_packed(pack), "conv2d: taps of 8-bit floats can't share the partitions"
        accumulate_terms(sum_psum, x_sb, w, shape, weights.how.lead, weights.seen, at)
        return
    kernel, stride, dilation = shape.kernel, shape.stride, shape.dilation
    _, _, rows, cols = sum_psum.shape
    step = band_row_step(shape, pack)
    low, high = weights.seen
    taps, apart = list_taps(kernel, pack, weights.how.lead), spread(shape.channels, pack)
    first, end = (0, w.shape[1]) if blocks is None else blocks
    for block in range(first, end):
        for number in range(len(taps)):
            product, u, v = taps[number]
            y, x = at[0] * step + u * dilation[0], at[1] * stride[1] + v * dilation[1]
            r0, r1 = visible_range(y, rows, step, low[0], high[0])
            c0, c1 = visible_range(x, cols, stride[1], low[1], high[1])
            if r0 >= r1 or c0 >= c1:
                continue
            y += r0 * step - low[0]
            x += c0 * stride[1] - low[1]
            k = block_rows(shape.channels, block) * min(pack[0], kernel[0] - u) * min(pack[1], kernel[1] - v) * apart
            moving_rows = x_sb[0:k, block, :, y : y + (r1 - r0 - 1) * step + 1 : step]
            nisa.nc_matmul(
                dst=sum_psum[:, :, r0:r1, c0:c1],
                stationary=w[0:k, block, product, :],
                moving=moving_rows[:, :, :, x : x + (c1 - c0 - 1) * stride[1] + 1 : stride[1]],
                accumulate=block + number > 0,
            )


def accumulate_streamed(sum_psum: nl.NkiTensor, x_sb: nl.NkiTensor, weights: Weights, at: Pair) -> None:
    """The same with weights in HBM, loaded in parts of at most the layer's ``weight_bytes``."""
    w, outputs, layer = weights.tensor, weights.outputs, weights.how.layer
    shape = layer.shape
    kernel, stride, dilation = shape.kernel, shape.stride, shape.dilation
    _, _, rows, cols = sum_psum.shape
    taps = kernel[0] * kernel[1]
    at_hand = min(taps, layer.weight_bytes // ((outputs[1] - outputs[0]) * 4))
    for block in range(ceil_div(shape.channels, nl.tile_size.pmax)):
        k = block_rows(shape.channels, block)
        for t0 in range(0, taps, at_hand):
            t1 = min(taps, t0 + at_hand)
            w_sb = nl.ndarray((k, t1 - t0, outputs[1] - outputs[0]), dtype=w.dtype, buffer=nl.sbuf)
            transfer(w_sb, weight_view(w, layer.natural, block, k, (t0, t1), outputs))
            for tap in range(t0, t1):
                y = at[0] * stride[0] + (tap // kernel[1]) * dilation[0]
                x = at[1] * stride[1] + (tap % kernel[1]) * dilation[1]
                y_end = y + (rows - 1) * stride[0] + 1
                x_end = x + (cols - 1) * stride[1] + 1
                nisa.nc_matmul(
                    dst=sum_psum,
                    stationary=w_sb[:, tap - t0, :],
                    moving=x_sb[0:k, block, :, y : y_end : stride[0], x : x_end : stride[1]],
                    accumulate=block + tap > 0,
                )


def evacuate(
    y_sb: nl.NkiTensor, sum_psum: nl.NkiTensor, bias_column: nl.NkiTensor, act: str, by_vector: bool, added: Any = None
) -> None:
    """y_sb = act(sum_psum + bias), on the scalar engine, or on the vector engine ("none", "relu" and "relu6"). With
    ``added``, a tile like y_sb: act(sum_psum + added + bias), where the vector engine adds and the scalar engine does
    the rest (scalar_tensor_tensor would take twice as long). The vector engine cuts "relu6" off where it lies: there
    it takes up to four elements a cycle; and it computes the "sigmoid" of a few numbers. Sums of 8-bit floats have
    several columns: see ``double_rows.py``; whole numbers, too: ``whole_numbers.py``."""
    if act == "whole":
        evacuate_whole(y_sb, sum_psum, bias_column)
        return
    if bias_column.shape[1] > 1:
        evacuate_scaled(y_sb, sum_psum, bias_column, act, by_vector, added)
        return
    if act == "sigmoid" and added is None and count_elements(y_sb.shape[1:]) <= GATE_COLUMNS:
        _evacuate_gate(y_sb, sum_psum, bias_column)
        return
    if act == "relu6":
        evacuate(y_sb, sum_psum, bias_column, "relu", by_vector, added)
        nisa.tensor_scalar(dst=y_sb, data=y_sb, op0=nl.minimum, operand0=6.0, engine=nisa.engine.vector)
        return
    if added is not None:
        total_sb = nl.ndarray(y_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=total_sb, data1=sum_psum, data2=added, op=nl.add)
        nisa.activation(dst=y_sb, op=activation_function(act), data=total_sb, bias=bias_column)
    elif not by_vector:
        nisa.activation(dst=y_sb, op=activation_function(act), data=sum_psum, bias=bias_column)
    elif act == "none":
        nisa.tensor_scalar(dst=y_sb, data=sum_psum, op0=nl.add, operand0=bias_column)
    else:
        nisa.tensor_scalar(dst=y_sb, data=sum_psum, op0=nl.add, operand0=bias_column, op1=nl.maximum, operand1=0.0)


def _evacuate_gate(y_sb: nl.NkiTensor, sum_psum: nl.NkiTensor, bias_column: nl.NkiTensor) -> None:
    """y_sb = sigmoid(sum_psum + bias) = 1 / (1 + (1/e) ** (sum_psum + bias)), on the vector engine alone. The power's
    relative error is 2.5e-8 of the exponent, less than the half of what the sum's own rounding makes."""
    power_sb = nl.ndarray(y_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=power_sb,
        data=sum_psum,
        op0=nl.add,
        operand0=bias_column,
        op1=nl.power,
        operand1=INVERSE_E,
        reverse1=True,
        engine=nisa.engine.vector,
    )
    nisa.tensor_scalar(
        dst=y_sb, data=power_sb, op0=nl.add, operand0=1.0, op1=nl.power, operand1=-1.0, engine=nisa.engine.vector
    )


def evacuation_tile_bytes(act: str) -> int:
    """The most bytes per partition of ``evacuate``'s tiles, for planners."""
    if act == "whole":
        return 2 * nl.tile_size.gemm_moving_fmax * 4
    return GATE_COLUMNS * 4 if act == "sigmoid" else 0


def vector_helps(products: int, act: str) -> bool:
    """True if the vector engine should take every other bank. False on trn1, where it shares PSUM with the scalar
    engine, and if one engine is fast enough."""
    return products <= FEW_PRODUCTS and may_alternate(act)


def may_alternate(act: str) -> bool:
    """True if the vector engine can evacuate PSUM with this activation, beside the scalar engine."""
    helps = act == "none" or act == "relu"  # it has its part of "relu6" anyway
    return helps and nisa.get_nc_version() >= nisa.nc_version.gen3


def make_identity(added: Any, products: int, act: str, scaled: bool) -> Any:
    """An identity matrix in SBUF (P, P), if the tensor engine should add ``added`` to sums of ``products`` products,
    else None: a product of 16 bits then takes less time than an addition on the vector engine, and both engines can
    evacuate the sums; of ``scaled`` sums always. The addition is exact, but NaN and infinity reach all outputs of their
    pixel."""
    if added is None or item_bytes(added.dtype) != 2 or not (scaled or (products == 1 and may_alternate(act))):
        return None
    pmax = nl.tile_size.pmax
    ones_sb = nl.ndarray((pmax, pmax), dtype=added.dtype, buffer=nl.sbuf)
    identity_sb = nl.ndarray((pmax, pmax), dtype=added.dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones_sb, value=1.0, engine=nisa.engine.gpsimd)
    keep_where(identity_sb, ones_sb, 1, -1, 0, nl.equal)
    return identity_sb


def pool_windows(y_sb: nl.NkiTensor, conv_sb: nl.NkiTensor, pooling: Pooling) -> None:
    """y_sb (o, n, rows, columns) = the pooled conv_sb (o, n, rows, columns), a part of a tile."""
    windows = Windows(pooling.window, pooling.stride, pooling.dilation)
    outputs, images, rows, cols = y_sb.shape
    pattern = conv_sb.get_pattern()
    image, row = pattern[1][0], pattern[2][0]
    r_step = rows if images > 1 else max(1, POOLED // cols)
    for r0 in range(0, rows, r_step):
        r1 = min(rows, r0 + r_step)
        offset = r0 * pooling.stride[0] * row
        part_sb = y_sb[:, :, r0:r1]
        if pooling.op == "max":
            max_windows(part_sb, conv_sb, offset, image, row, windows)
        else:
            sums_sb = nl.ndarray((outputs, images, r1 - r0, cols), dtype=nl.float32, buffer=nl.sbuf)
            max_windows(sums_sb, conv_sb, offset, image, row, windows, nl.add)
            taps = pooling.window[0] * pooling.window[1]
            nisa.tensor_scalar(dst=part_sb, data=sums_sb, op0=nl.multiply, operand0=1.0 / taps)


def pool_fill(op: str) -> float:
    """The value around the convolution's results where pooling windows see beyond them."""
    return LOWEST if op == "max" else 0.0


def store_results(dst: nl.NkiTensor, y_sb: nl.NkiTensor, block: int, place: Rectangle) -> None:
    """Store y_sb (o, n, rows, columns) to a place in HBM dst (N, O, H, W), piece by piece in the order of
    computation."""
    parts, n_size, rows, cols = y_sb.shape
    out_hbm = image_part(dst, block, parts, place)
    step = rows if n_size > 1 else max(1, ceil_div(STORE_BYTES, cols * 2))
    for first in range(0, rows, step):
        end = min(rows, first + step)
        transfer(out_hbm[:, :, first:end], y_sb[:, :, first:end])

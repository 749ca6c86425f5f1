"""Conv and ConvTranspose over images and rows, with the activation and pooling that follow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from trnrt.kernels.conv import conv2d, conv_transpose, grouping, packing, stacking
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.operators.arranging import arranged, named
from trnrt.operators.fusing import following_sum, next_activation
from trnrt.operators.pool import counts_alike, read_pool
from trnrt.operators.windows import Window, read_transposed, read_window
from trnrt.planner.lowering import weights
from trnrt.planner.lowering.walk import Blocked, Lowering, attribute, lowers, node_name, value_name
from trnrt.planner.lowering.weights import blocks_of
from trnrt.planner.plan import Array, Layout
from trnrt.planner.steps import WORKING_BYTES, Call, Operand, SourceName, Step, Tensors

_POOLS = {"MaxPool": "max", "AveragePool": "average"}
# Up to so many channels the kernel packs taps, which it does with weights that it loads itself; up to 64 it does so
# where that saves columns of products enough (one a cycle: timing.tensor.clock_ghz) to make up for its loads.
_PACKED_CHANNELS, _HALF_CHANNELS, _PACKED_COLUMNS = 32, 64, 32768
# Below this many columns saved the kernel packs nothing (its PACK_NS): float32, of so many bytes, takes 4 cycles a
# column, at 2.4 GHz.
_FEW_COLUMNS, _WIDE = 2400, 4
# Bytes of weights that are zero for groups to be one: DMA brings them in about the 5 us that a tensor takes to HBM and
# back.
MOST_ZEROS = 1536 * 1024
# A PSUM bank of float32 sums: what something is added to on its way to SBUF.
_BANK_BYTES = 2 * 1024
# Bytes a partition of results that are tried to be worked on at once. Nothing is tried where all products take less
# cycles: some microseconds.
_BAND_BYTES = (8192, 4096, 32768)
_FEW_CHANNELS = 8
_LEAST_CYCLES = 8192
_NO_POOL = Window((1, 1), (1, 1), (1, 1), (0, 0))
# conv2d's own defaults: what equals them is left out of the call.
_DEFAULTS = {
    "stride": (1, 1),
    "pads": (0, 0),
    "dilation": (1, 1),
    "act": "none",
    "pool": (1, 1),
    "pool_stride": (1, 1),
    "pool_pads": (0, 0),
    "pool_dilation": (1, 1),
    "pool_op": "max",
    "groups": 1,
}


@dataclass(kw_only=True)
class ImagesStep(Step):
    """A convolution of either kind; ``weight`` and ``bias`` are prepared, or tensors that are computed and prepared.

    A row of pixels (N, C, W) is an image of one row, in HBM.
    """

    weight: Array | Operand
    bias: Array | Operand
    channels: int
    window: Window
    act: str
    groups: int

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        shape = super().hbm_view(position)
        return (*shape[:2], 1, shape[2]) if not position and len(shape) == 3 else shape

    def _called(self, module: str, kernel: str, given: dict[str, Any]) -> Call:
        """The call, with the options that are not the kernel's own defaults."""
        weight, bias = named(self, "w", self.weight), named(self, "b", self.bias)
        return Call(
            module=module,
            kernel=kernel,
            args=(SourceName(0), weight, bias),
            options={key: value for key, value in given.items() if value != _DEFAULTS.get(key)} | self.tuned,
            weights={} if isinstance(self.weight, Operand) else {"w": self.weight},
            biases={} if isinstance(self.bias, Operand) else {"b": self.bias},
            held=self._held(),
        )

    def _held(self) -> tuple[str, ...]:
        """The weights that the kernel takes in SBUF."""
        return ()


@dataclass(kw_only=True)
class ConvStep(ImagesStep):
    """``pool(act(conv(source, weight) + bias))``; ``size`` is the convolution's (rows, columns) before pooling, and
    ``itemsize`` what an element of the weights takes on the device."""

    size: tuple[int, int]
    itemsize: int
    pool: Window
    pool_op: str
    added: Operand | None = None

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        if position is not None and self.sources[position] == self.added:
            return super().hbm_view(None)
        return super().hbm_view(position)

    def reads(self, position: int, shapes: Tensors) -> tuple[Layout, ...]:
        if self.sources[position] == self.added:
            same = shapes.shape(self.added.value) == self.shape
            return (Layout.CHANNELS, Layout.HBM) if same and self._on_chip() else (Layout.HBM,)
        same = position == 0 and shapes.shape(self.sources[0].value) == self.sources[0].shape
        return (Layout.CHANNELS, Layout.HBM) if same and self._on_chip() else (Layout.HBM,)

    def writes(self) -> tuple[Layout, ...]:
        return (Layout.CHANNELS, Layout.HBM) if self._on_chip() else (Layout.HBM,)

    def _on_chip(self) -> bool:
        """Whether the kernel can have its images in SBUF: groups that are computed together must be whole blocks."""
        return len(self.shape) == 4 and self._layer.in_blocks

    @property
    def _layer(self) -> _Layer:
        return _Layer(self.channels, self.shape[1], self.window.kernel, self.groups)

    def part(self, images: int) -> ConvStep | None:
        if len(self.shape) != 4 or isinstance(self.weight, Operand) or isinstance(self.bias, Operand):
            return None
        added = None if self.added is None else self.added.part(images)
        sources = [source.part(images) for source in self.sources]
        return replace(self, shape=(images, *self.shape[1:]), sources=sources, added=added)

    def reorder(self, order: list[int]) -> bool:
        """Make output ``order[k]`` number k, if the weights are constants of one group."""
        if self.groups > 1 or self.added or isinstance(self.weight, Operand) or isinstance(self.bias, Operand):
            return False
        self.weight = self.weight[..., order]
        self.bias = weights.columns(self.bias.T.reshape(-1)[order])
        return True

    def tunable(self) -> dict[str, tuple[int | str, ...]]:
        """How much is worked on at once, where that makes a difference, and whether taps share the partitions."""
        kernel, columns = self.window.kernel, self.shape[0] * self.size[0] * self.size[1]
        cycles = columns * kernel[0] * kernel[1] * blocks_of(self._layer.seen) * blocks_of(self.shape[1])
        if cycles < _LEAST_CYCLES or replace(self, tuned={})._stacked():
            return {}
        found: dict[str, tuple[int | str, ...]] = {}
        sizes = self._band_sizes()
        if sizes:
            found["band_bytes"] = sizes
        packs = self.groups == 1 and self.channels <= _HALF_CHANNELS and kernel != (1, 1)
        if packs and not isinstance(self.weight, Operand):
            # With few channels one tap after the other takes many times as long.
            few = self.channels <= _FEW_CHANNELS
            found["way"] = ("taps", "strips") if self._packs and not few else ("packed", "strips")
        return found

    def _band_sizes(self) -> tuple[int, ...]:
        """Those of _BAND_BYTES that fit, and that give other bands than the default and each other."""
        window, pool = self.window, self.pool
        shape = (self._layer.seen, self.size, window.kernel, window.stride, window.pads, window.dilation)
        pooling = (self.pool_op, pool.kernel, pool.stride, pool.pads, pool.dilation)
        images, rows, cols = self.shape[0], *((1, *self.shape[2:])[-2:])
        bands: dict[conv2d.Steps, int] = {}
        for size in (0, *_BAND_BYTES):
            if conv2d.conv_fits(shape, pooling, size):
                bands.setdefault(conv2d.band_of(images, rows, cols, shape, pooling, (1, 1, 0), size), size)
        return tuple(size for size in bands.values() if size)

    def _held(self) -> tuple[str, ...]:
        """Not those of few channels: the kernel arranges them as it packs taps, where that saves time."""
        if isinstance(self.weight, Operand) or isinstance(self.bias, Operand):
            return ()
        if self._stacked():
            return ("w", "b")
        way = self.tuned.get("way", "best")
        packs = self._packs if way == "best" else way != "taps"
        return ("b",) if packs else ("w", "b")

    @property
    def _packs(self) -> bool:
        """Whether the kernel by itself packs taps, as is estimated."""
        channels, kernel, columns = self._layer.seen, self.window.kernel, self._columns_saved()
        packed = channels <= (_HALF_CHANNELS if columns >= _PACKED_COLUMNS else _PACKED_CHANNELS)
        return packed and kernel != (1, 1)

    def _columns_saved(self) -> int:
        """Columns of products that packing as many taps as there is room for would save."""
        channels, kernel = self._layer.seen, self.window.kernel
        saved = kernel[0] * kernel[1] - packing.products_of(kernel, packing.packing(channels, kernel, 0))
        return saved * self.shape[0] * self.size[0] * self.size[1] * blocks_of(self.shape[1])

    def _stacked(self) -> bool:
        """Whether the rows of the kernel are stacked on chip: of small images with few channels, in float32. (Products
        of 16 bits are four times as fast.)"""
        if isinstance(self.weight, Operand) or self.added is not None or self.groups > 1 or len(self.shape) != 4:
            return False
        if self.tuned:  # conv2d's options, which some images of a batch have as all of them do
            return False
        rows, pixels = self.window.kernel[0], self.sources[0].shape[2:]
        small = self.shape[0] * max(pixels[0], self.size[0]) * pixels[1] <= _FEW_COLUMNS
        fits = self.channels <= stacking.APART and 1 < rows <= stacking.MOST_ROWS
        return self.itemsize == _WIDE and fits and small and self._columns_saved() < _FEW_COLUMNS

    def working_bytes(self, tensors: Tensors, *, held: bool) -> int:
        """A band of the source if it is not read where it lies, results on their way, and the weights at hand."""
        if self.groups > 1 and not held:
            return WORKING_BYTES
        images, pixels = self.shape[0], self.sources[0].shape[2:]
        seen = packing.input_extent(*self.size, self.window.kernel, self.window.stride, self.window.dilation)
        seen = max(seen[0], pixels[-2] if len(pixels) > 1 else 1), max(seen[1], pixels[-1])
        band = blocks_of(self.channels) * images * seen[0] * seen[1] * 4
        if tensors.layout(self.sources[0].value) is not Layout.HBM and seen == pixels and self.window.pads == (0, 0):
            band = 0
        most = int(self.tuned.get("band_bytes", conv2d.POOL_BYTES))
        result = min(most, images * self.size[0] * self.size[1] * 4)
        if tensors.layout(self.output) is not Layout.HBM and self.pool == _NO_POOL:
            result = 0
        sums = min(_BANK_BYTES, images * self.size[0] * self.size[1] * 4) if self.added is not None else 0
        if self.added is not None and tensors.layout(self.added.value) is Layout.HBM:
            result += most
        taps = self.window.kernel[0] * self.window.kernel[1]
        weight = min(
            conv2d.WEIGHT_BYTES, blocks_of(self._layer.seen) * taps * min(self.shape[1], weights.PARTITIONS) * 4
        )
        if self._held() == ("b",):
            # Packed taps: bands with several of them, and the next band while one is worked on.
            return min(WORKING_BYTES, weight + 2 * min(conv2d.BAND_BYTES, band * taps) + 3 * result)
        stack = 4 * images * (self.size[0] + pixels[0]) * pixels[1] if self._stacked() else 0
        return (0 if held else weight) + stack + min(conv2d.BAND_BYTES, band) + 3 * result + sums

    def call(self, tensors: Tensors) -> Call:
        window, pool = self.window, self.pool
        given = {
            "channels": self.channels,
            "size": self.size,
            "kernel": window.kernel,
            "stride": window.stride,
            "pads": window.pads,
            "dilation": window.dilation,
            "act": self.act,
            "pool": pool.kernel,
            "pool_stride": pool.stride,
            "pool_pads": pool.pads,
            "pool_dilation": pool.dilation,
            "pool_op": self.pool_op,
            "groups": self.groups,
        }
        if self.added is not None:
            given["added"] = SourceName(self.sources.index(self.added))
        if self._stacked():
            assert not isinstance(self.weight, Operand)
            call = self._called("conv.stacking", "conv2d_stacked", given)
            return replace(call, weights={"w": weights.stacked_weight(self.weight, window.kernel)})
        return self._called("conv.conv2d", "conv2d", given)


@dataclass(kw_only=True)
class ConvTransposeStep(ImagesStep):
    """``act(transposed convolution of source with weight + bias)``."""

    def call(self, tensors: Tensors) -> Call:
        window = self.window
        given = {
            "channels": self.channels,
            "kernel": window.kernel,
            "stride": window.stride,
            "pads": window.pads,
            "dilation": window.dilation,
            "act": self.act,
            "groups": self.groups,
        }
        return self._called("conv.conv_transpose", "conv_transpose2d", given)


def _fits(channels: int, size: tuple[int, int], window: Window, pool: Window) -> bool:
    """Whether conv2d can compute results that are pooled from a convolution of ``size``."""
    shape = (channels, size, window.kernel, window.stride, window.pads, window.dilation)
    return bool(conv2d.conv_fits(shape, ("max", pool.kernel, pool.stride, pool.pads, pool.dilation)))


@dataclass(frozen=True)
class _Layer:
    """The sizes of a convolution; ``together`` groups are computed as one."""

    channels: int
    outputs: int
    kernel: tuple[int, int]
    groups: int

    @property
    def together(self) -> int:
        return int(grouping.groups_together(self.channels, self.outputs, self.groups))

    @property
    def seen(self) -> int:
        """Channels that are on the partitions, or in their blocks, at once."""
        return self.channels // self.groups * self.together

    @property
    def in_blocks(self) -> bool:
        """Whether the groups that are computed as one have whole blocks of channels, and make whole ones."""
        made = self.outputs // self.groups * self.together
        return self.together == self.groups or not (self.seen % weights.PARTITIONS or made % weights.PARTITIONS)

    def dense(self, itemsize: int) -> _Layer:
        """The layer as one group, with zeros where an output does not see a channel, if these take little: what is
        between steps can stay in SBUF then."""
        taps = self.kernel[0] * self.kernel[1]
        zeros = (self.channels - self.seen) * self.outputs * taps * itemsize
        return self if self.in_blocks or zeros > MOST_ZEROS else replace(self, groups=1)


def _layer(lowering: Lowering, node: ir.Node, transposed: bool) -> _Layer:
    """The sizes that the shapes of a node's source and weight (O, C, KH, KW), or (C, O, KH, KW), give."""
    source, weight = node.inputs[0], node.inputs[1]
    assert source is not None and weight is not None
    shape, seen = lowering.shape(weight), lowering.shape(source)
    groups = int(attribute(node, "group", 1))
    if len(shape) not in (3, 4):
        what = "over volumes (3-D)" if len(shape) == 5 else f"over {len(shape) - 2} dimensions"
        raise Blocked(f"a convolution {what}", "images (N, C, H, W) and rows (N, C, W) are supported")
    kernel = (shape[2], shape[3]) if len(shape) == 4 else (1, shape[2])
    outputs = shape[1] * groups if transposed else shape[0]
    inner = shape[0] // groups if transposed else shape[1]
    if seen[1] != inner * groups or outputs % groups:
        raise Blocked(f"{groups} groups of {seen[1]} channels, with weights of shape {shape}")
    return _Layer(seen[1], outputs, kernel, groups)


def _parameters(
    lowering: Lowering, node: ir.Node, layer: _Layer, transposed: bool
) -> tuple[Array | Operand, Array | Operand]:
    """Weight and bias as the kernels want them: constants, or tensors that a movement step makes."""
    groups = int(attribute(node, "group", 1))
    together = groups if layer.groups == 1 else layer.together

    def prepared(weight: Array) -> Array:
        images = weight if weight.ndim == 4 else weight[:, :, None]
        made = weights.conv_transpose_weight if transposed else weights.conv_weight
        return made(images, groups, together)

    value = node.inputs[1]
    assert value is not None
    weight = arranged(lowering, node, value, prepared, "weight")
    columns = partial(weights.columns, each=layer.together * layer.outputs // layer.groups)
    added = node.inputs[2] if len(node.inputs) > 2 else None
    if added is None:
        return weight, columns(np.zeros(layer.outputs, np.float32))
    return weight, arranged(lowering, node, added, columns, "bias", "float32")


@lowers("Conv")
def lower_conv(lowering: Lowering, node: ir.Node) -> None:
    """A convolution; a following activation and pooling are computed in the same pass."""
    layer = _layer(lowering, node, False)
    source = lowering.operand(node.inputs[0])
    shape = lowering.shape(node.outputs[0])
    window = read_window(node, layer.kernel, source.shape[2:], shape[2:])
    size = (shape[2], shape[3]) if len(shape) == 4 else (1, shape[2])
    dense = layer.dense(as_dtype(lowering.dtype).itemsize)
    if _fits(dense.seen, size, window, _NO_POOL):
        layer = dense
    if not _fits(layer.seen, size, window, _NO_POOL):
        raise Blocked(*_too_large(layer, window))
    weight, bias = _parameters(lowering, node, layer, False)
    act, activation = next_activation(lowering, node.outputs[0], node)
    nodes = [node, *activation]
    pool_op, pool, pooling = _following_pool(lowering, nodes, layer.seen, size, window)
    nodes += pooling
    if pooling and act == "none" and pool_op == "max":
        # Every activation here is monotonic: the largest of the activated is the activated largest.
        act, activation = next_activation(lowering, nodes[-1].outputs[0], node)
        nodes += activation
    added, adding = (None, []) if pooling or act != "none" or layer.groups > 1 else following_sum(lowering, node)
    if adding:
        act, activation = next_activation(lowering, adding[-1].outputs[0], node)
        nodes += [*adding, *activation]
    step = ConvStep(
        name=node_name(node),
        nodes=[node_name(n) for n in nodes],
        sources=[source, *(p for p in (added, weight, bias) if isinstance(p, Operand))],
        output=value_name(nodes[-1].outputs[0]),
        shape=lowering.shape(nodes[-1].outputs[0]),
        weight=weight,
        bias=bias,
        channels=layer.channels,
        window=window,
        size=size,
        itemsize=as_dtype(lowering.dtype).itemsize,
        act=act,
        pool=pool,
        pool_op=pool_op,
        groups=layer.groups,
        added=added,
    )
    lowering.add(step, nodes, "a convolution on the tensor engine")


def _too_large(layer: _Layer, window: Window) -> tuple[str, str]:
    """The reason, and a way out."""
    dilated = f" with dilation {window.dilation}" if window.dilation != (1, 1) else ""
    seen = f"{layer.seen} channels under a kernel of {window.kernel}{dilated}"
    return f"the input of one result, {seen}, exceeds SBUF", "use fewer channels (groups), or a smaller kernel"


@lowers("ConvTranspose")
def lower_conv_transpose(lowering: Lowering, node: ir.Node) -> None:
    """A transposed convolution; a following activation is computed in the same pass."""
    layer = _layer(lowering, node, True)
    source = lowering.operand(node.inputs[0])
    window = read_transposed(node, layer.kernel, source.shape[2:], lowering.shape(node.outputs[0])[2:])
    taps = (window.kernel, window.stride, window.pads, window.dilation)
    if not conv_transpose.transpose_fits(layer.seen, taps):
        raise Blocked(*_too_large(layer, window))
    weight, bias = _parameters(lowering, node, layer, True)
    act, activation = next_activation(lowering, node.outputs[0], node)
    nodes = [node, *activation]
    step = ConvTransposeStep(
        name=node_name(node),
        nodes=[node_name(n) for n in nodes],
        sources=[source, *(p for p in (weight, bias) if isinstance(p, Operand))],
        output=value_name(nodes[-1].outputs[0]),
        shape=lowering.shape(nodes[-1].outputs[0]),
        weight=weight,
        bias=bias,
        channels=layer.channels,
        window=window,
        act=act,
        groups=layer.groups,
    )
    lowering.add(step, nodes, "a convolution on the tensor engine for each remainder of row and column by the stride")


def _following_pool(
    lowering: Lowering, nodes: list[ir.Node], channels: int, size: tuple[int, int], window: Window
) -> tuple[str, Window, list[ir.Node]]:
    """The pooling that can be computed in the same pass; a note says why one was left out."""
    value = nodes[-1].outputs[0]
    follower, why_not = lowering.sole_consumer(value)
    pools = [reader for reader, _ in value.uses() if reader.op_type in _POOLS and reader.domain == ""]
    if not pools:
        return "max", _NO_POOL, []
    if follower is not None:
        try:
            pool = read_pool(lowering, follower)
        except Blocked:
            return "max", _NO_POOL, []  # its own lowering says why
        if not _fits(channels, size, window, pool):
            why_not = "what one pooled result needs does not fit SBUF"
        elif not counts_alike(lowering, follower):
            why_not = "its windows at the edges are averages of less than others"
        else:
            return _POOLS[follower.op_type], pool, [follower]
    for reader in pools:
        lowering.notes.append(
            f"{reader.op_type} {node_name(reader)!r} is not fused into Conv {node_name(nodes[0])!r}: {why_not}"
        )
    return "max", _NO_POOL, []

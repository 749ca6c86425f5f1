"""The steps of convolutions: the calls of their kernels, with weights laid out, places and memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, cast

from trnrt.kernels.conv import conv_room, conv_transpose, depthwise, grouping, packing, row_groups, stacking
from trnrt.kernels.conv.convolving import Pooling, evacuation_tile_bytes
from trnrt.kernels.conv.packing import ConvShape
from trnrt.kernels.conv.row_groups import RowGroups
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.operators.arranging import parameter_name
from trnrt.operators.windows import Window, image_size
from trnrt.planner.lowering import weights
from trnrt.planner.lowering.weights import blocks_of
from trnrt.planner.plan import Array, Layout
from trnrt.planner.steps import WORKING_BYTES, Call, Operand, SourceName, Step, Tensors

# Bytes of zero weights that may be added to make groups one: DMA loads them in the 5 us or so that a tensor takes to
# HBM and back, at some 320 GB/s. Measure the grouped networks (ShuffleNet, MobileNet, EfficientNet) when it changes.
MOST_ZEROS = 1536 * 1024
# Bytes per partition of results that the search tries beside the kernel's own: half and a quarter of it, so that pools
# and stores start earlier, and twice. With up to _FEW_CHANNELS it does not try one tap at a time. It tries nothing if
# all products take fewer cycles than _LEAST_CYCLES, about 3 us. Chosen with the search (November 2026), whose budget
# they share: when they change, search the networks again (docs/kernels.md, Tuned numbers).
_BAND_BYTES = (8192, 4096, 32768)
_FEW_CHANNELS = 8
_LEAST_CYCLES = 8192
# The fewest results of a band that conv2d computes well: a quarter of a PSUM bank. DeepLabV3's convolutions of 2,048
# channels with dilation 12 have one in a band: each would load its own input.
_LEAST_BAND = 128
# The fewest taps of a depthwise kernel whose matrices are made on chip from their diagonals: products wait for
# them. At batch 1 (trn2, bfloat16, predicted) ConvNeXt-T, 7x7, takes 7.5 % less so; with all kernels, MobileNetV2 (3x3)
# would take 6 % more, and EfficientNet-B0 (3x3 and 5x5) 7 %. Measure these three when it changes.
_LEAST_TAPS = 36
NO_POOL = Window((1, 1), (1, 1), (1, 1), (0, 0))
# conv2d's own defaults: the call leaves out options that equal them.
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


@dataclass(frozen=True)
class ConvLayer:
    """The sizes of a convolution; ``together`` groups are computed as one."""

    channels: int
    outputs: int
    kernel: tuple[int, int]
    groups: int

    @property
    def together(self) -> int:
        return int(grouping.groups_together(self.channels, self.outputs, self.groups))

    @property
    def channels_at_once(self) -> int:
        """Channels that are on the partitions, or in blocks of them, at once."""
        return self.channels // self.groups * self.together

    @property
    def in_blocks(self) -> bool:
        """True if the groups that are computed as one read and make whole blocks of channels."""
        made = self.outputs // self.groups * self.together
        return self.together == self.groups or not (
            self.channels_at_once % weights.PARTITIONS or made % weights.PARTITIONS
        )

    def dense(self, itemsize: int) -> ConvLayer:
        """The layer as one group, with zeros where an output does not read a channel, if these are few: then tensors
        between steps can stay in SBUF."""
        taps = self.kernel[0] * self.kernel[1]
        zeros = (self.channels - self.channels_at_once) * self.outputs * taps * itemsize
        return self if self.in_blocks or zeros > MOST_ZEROS else replace(self, groups=1)


@dataclass(kw_only=True)
class ImagesStep(Step):
    """A convolution of either kind; ``weight`` and ``bias`` are in the kernel's layout, constants or computed tensors.

    A row of pixels (N, C, W) is an image of one row, in HBM, and a volume (N, C, D, H, W) one of D rows.
    """

    weight: Array | Operand
    bias: Array | Operand
    channels: int
    window: Window
    act: str
    groups: int

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        shape = super().hbm_view(position)
        return shape if position else (*shape[:2], *image_size(shape))

    def _kernel_call(self, module: str, kernel: str, given: dict[str, Any]) -> Call:
        """The call, with the options that differ from the kernel's defaults."""
        weight, bias = parameter_name(self, "w", self.weight), parameter_name(self, "b", self.bias)
        return Call(
            module=module,
            kernel=kernel,
            args=(SourceName(0), weight, bias),
            options={key: value for key, value in given.items() if value != _DEFAULTS.get(key)} | self.tuned,
            weights={} if isinstance(self.weight, Operand) else {"w": self.weight},
            biases={} if isinstance(self.bias, Operand) else {"b": self.bias},
            held=self._held_weights(),
        )

    def _held_weights(self) -> tuple[str, ...]:
        """The weights that the kernel reads from SBUF."""
        return ()


@dataclass(kw_only=True)
class ConvStep(ImagesStep):
    """``pool(act(conv(source, weight) + bias + added))``; ``size`` is the convolution's (rows, columns) before pooling,
    ``itemsize`` the bytes of a weight's element on the device."""

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
        source = self.sources[position]
        is_image = position == 0 or source == self.added
        same = shapes.shape(source.value) == (self.shape if source == self.added else source.shape)
        return (Layout.CHANNELS, Layout.HBM) if is_image and same and self._may_be_on_chip() else (Layout.HBM,)

    def writes(self) -> tuple[Layout, ...]:
        return (Layout.CHANNELS, Layout.HBM) if self._may_be_on_chip() else (Layout.HBM,)

    def fills_window(self, first: int) -> bool:
        return True

    def multiplied_sources(self) -> list[Operand]:
        is_constant = not isinstance(self.weight, Operand) and not isinstance(self.bias, Operand)
        return self.sources[:1] if is_constant and self.added != self.sources[0] else []

    def cast_weights(self, dtype: str) -> None:
        super().cast_weights(dtype)
        self.itemsize = as_dtype(dtype).itemsize

    def _may_be_on_chip(self) -> bool:
        """True if images can be in SBUF: groups that are computed together must be whole blocks."""
        return len(self.shape) == 4 and self._layer.in_blocks

    @property
    def _layer(self) -> ConvLayer:
        return ConvLayer(self.channels, self.shape[1], self.window.kernel, self.groups)

    def part(self, images: int) -> ConvStep | None:
        if len(self.shape) != 4 or isinstance(self.weight, Operand) or isinstance(self.bias, Operand):
            return None
        added = None if self.added is None else self.added.part(images)
        sources = [source.part(images) for source in self.sources]
        return replace(self, shape=(images, *self.shape[1:]), sources=sources, added=added)

    def share(self, number: int, count: int) -> ConvStep | None:
        if len(self.shape) != 4 or self.groups > 1 or self.shape[1] % (count * weights.PARTITIONS):
            return None
        if isinstance(self.weight, Operand) or isinstance(self.bias, Operand) or self.added == self.sources[0]:
            return None
        channels, blocks = self.shape[1] // count, blocks_of(self.shape[1]) // count
        added = None if self.added is None else self.added.take_channels(channels)
        return replace(
            self,
            shape=(self.shape[0], channels, *self.shape[2:]),
            sources=[added if added is not None and source == self.added else source for source in self.sources],
            added=added,
            weight=self.weight[..., number * channels : (number + 1) * channels],
            bias=self._bias_of(range(number * blocks, (number + 1) * blocks)),
        )

    def _bias_of(self, blocks: range) -> Array:
        """The columns of some blocks of outputs in the prepared bias."""
        assert not isinstance(self.bias, Operand)
        kinds = self.bias.reshape(len(self.bias), -1, blocks_of(self.shape[1]))
        return kinds[:, :, blocks.start : blocks.stop].reshape(len(self.bias), -1)

    def reorder(self, order: list[int]) -> bool:
        """Make output ``order[k]`` number k, if the weights are constants of one group; return whether they are."""
        if (
            self.groups > 1
            or self.added
            or self.act == "whole"
            or isinstance(self.weight, Operand)
            or isinstance(self.bias, Operand)
        ):
            return False
        self.weight = self.weight[..., order]
        self.bias = weights.columns(self.bias.T.reshape(-1)[order])
        return True

    def _shape(self, channels: int) -> ConvShape:
        return ConvShape(channels, self.size, **self.window.options)

    def tunable(self) -> dict[str, tuple[int | str, ...]]:
        """The size of a band of results, if it matters, and whether taps share the partitions."""
        kernel, columns = self.window.kernel, self.shape[0] * self.size[0] * self.size[1]
        cycles = columns * kernel[0] * kernel[1] * blocks_of(self._layer.channels_at_once) * blocks_of(self.shape[1])
        if cycles < _LEAST_CYCLES or replace(self, tuned={})._is_stacked():
            return {}
        found: dict[str, tuple[int | str, ...]] = {}
        sizes = self._band_sizes()
        if sizes:
            found["band_bytes"] = sizes
        packs = self.groups == 1 and packing.is_packed(packing.packing(self.channels, kernel, 0))
        if packs and not isinstance(self.weight, Operand):
            # With few channels, one tap at a time takes many times as long.
            few = self.channels <= _FEW_CHANNELS
            found["way"] = ("taps", "strips") if self._packs and not few else ("packed", "strips")
        return found

    def _band_sizes(self) -> tuple[int, ...]:
        """Those of _BAND_BYTES that fit; each makes other bands than the default and than the others."""
        shape, pooling = self._shape(self._layer.channels_at_once), make_pooling(self.pool_op, self.pool)
        images, rows, cols = self.shape[0], *image_size(self.shape)
        bands: dict[conv_room.Steps, int] = {}
        for size in (0, *_BAND_BYTES):
            if conv_room.conv_fits(shape, pooling, size):
                bands.setdefault(conv_room.band_steps(images, rows, cols, shape, pooling, (1, 1, 0), size), size)
        return tuple(size for size in bands.values() if size)

    def _held_weights(self) -> tuple[str, ...]:
        """Weights of few channels stay in HBM if packing taps saves time: the kernel arranges them itself."""
        if isinstance(self.weight, Operand) or isinstance(self.bias, Operand):
            return ()
        if self._is_stacked() or self._row_groups is not None or self._row_choice is not None:
            return ("w", "b")
        way = self.tuned.get("way", "best")
        packs = self._packs if way == "best" else way != "taps"
        return ("b",) if packs else ("w", "b")

    @property
    def _packs(self) -> bool:
        return packing.is_worth_packing(self._shape(self._layer.channels_at_once), self.shape[0], self.shape[1])

    def _is_stacked(self) -> bool:
        """True if the rows of the kernel are stacked on chip."""
        if isinstance(self.weight, Operand) or self.added is not None or self.groups > 1 or len(self.shape) != 4:
            return False
        if self.tuned:  # options of conv2d: some images of a batch are computed like all of them
            return False
        images, outputs = self.shape[:2]
        return stacking.is_worth_stacking(self._shape(self.channels), images, self._image, outputs, self.itemsize)

    @property
    def _row_groups(self) -> RowGroups | None:
        """The rows of the image and of the result that share the partitions, if that saves enough products."""
        outputs = self.shape[1]
        whole = outputs <= weights.PARTITIONS or outputs % weights.PARTITIONS == 0
        if isinstance(self.weight, Operand) or self.groups > 1 or len(self.shape) != 4 or not whole:
            return None
        if self.tuned.get("way", "best") != "best" or self._is_stacked():
            return None
        shape = self._shape(self.channels)
        act = "none" if self.added is not None else self.act
        found = row_groups.choose_row_groups(shape, self.shape[0], self._image, outputs, self.itemsize, act)
        return cast("RowGroups | None", found)

    @property
    def _row_choice(self) -> tuple[int, int] | None:
        """The adjacent rows that depthwise2d lets share the partitions, in full blocks of channels and in a last one;
        None if that gains nothing, or it can't compute the step."""
        constant = not isinstance(self.weight, Operand) and not isinstance(self.bias, Operand)
        alike = self.groups > 1 and self.channels == self.shape[1] and self._may_be_on_chip()
        if not constant or not alike or self.tuned or self.pool != NO_POOL:
            return None
        group = self.channels // self.groups
        shape = self._shape(self.channels)
        rows = depthwise.choose_block_rows(shape, self._image[1], group, self.shape[0], self.itemsize)
        return (rows[0], rows[1]) if max(rows) > 1 else None

    @property
    def _is_diagonal(self) -> bool:
        """True if the kernel makes the zeros of a depthwise convolution's weights: in SBUF, where its taps are."""
        alike = self.groups == self.channels == self.shape[1] > 1 and prod(self.window.kernel) >= _LEAST_TAPS
        return alike and self._held_weights() == ("w", "b") and len(self.shape) == 4

    def _rows_together(self, tensors: Tensors) -> tuple[int, int] | None:
        """The choice, once layouts are known: DMA loads images of many channels better as they are."""
        few = self.channels <= weights.PARTITIONS // 2
        return self._row_choice if few or tensors.layout(self.sources[0].value) is not Layout.HBM else None

    @property
    def _image(self) -> tuple[int, int]:
        """(rows, columns) of the source."""
        return image_size(self.sources[0].shape)

    def working_bytes(self, tensors: Tensors, *, held: bool) -> int:
        """A band of the source (unless read in place), a band of results, and the weights in use."""
        if self.groups > 1 and not held:
            return WORKING_BYTES
        images, outputs = self.shape[:2]
        on_chip = tensors.layout(self.sources[0].value) is not Layout.HBM
        in_place = tensors.layout(self.output) is not Layout.HBM and self.pool == NO_POOL
        added = "" if self.added is None else "hbm" if tensors.layout(self.added.value) is Layout.HBM else "sbuf"
        band_bytes = int(self.tuned.get("band_bytes", 0))
        packs = self._held_weights() == ("b",)
        step = self._shape(self._layer.channels_at_once)
        weight = 0 if held and not packs else conv_room.conv_weight_bytes(step, outputs)
        source = conv_room.source_tile_bytes(self._shape(self.channels), images, self._image, on_chip, packs)
        groups = self._row_groups
        if groups is not None:
            source = row_groups.group_bytes(groups, images, self._image[1])
            weight = 0 if held else groups.weight_elements() * 4
        if (rows := self._rows_together(tensors)) is not None:
            by_rows = partial(depthwise.depthwise_tile_bytes, self._shape(self.channels), images, self._image, rows)
            return min(WORKING_BYTES, by_rows(in_hbm=not on_chip or not in_place) + weight)
        result = conv_room.result_bytes(self._shape(self.channels), images, in_place, added, band_bytes)
        stack = stacking.stack_bytes(images, self._image, self.size[0]) if self._is_stacked() else 0
        evacuation = evacuation_tile_bytes(self.act)
        if self._is_diagonal:
            weight += grouping.diagonal_bytes(self.channels, prod(self.window.kernel), self.itemsize)
        return min(WORKING_BYTES, weight + source + result + stack + evacuation)

    def call(self, tensors: Tensors) -> Call:
        window, pool = self.window, self.pool
        given = {
            "channels": self.channels,
            "size": self.size,
            **self.window.options,
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
        if self._is_stacked():
            assert not isinstance(self.weight, Operand)
            call = self._kernel_call("conv.stacking", "conv2d_stacked", given)
            return replace(call, weights={"w": weights.stacked_weight(self.weight, window.kernel)})
        groups = self._row_groups
        if groups is not None:
            assert not isinstance(self.weight, Operand)
            call = self._kernel_call("conv.conv2d", "conv2d", given | {"row_groups": (groups.seen, groups.made)})
            return replace(call, weights={"w": weights.row_group_weight(self.weight, groups)})
        rows = self._rows_together(tensors)
        if rows is None:
            call = self._kernel_call("conv.conv2d", "conv2d", given)
            if self._is_diagonal and not isinstance(self.weight, Operand):
                return replace(call, weights={"w": weights.diagonals(self.weight)})
            return call
        assert not isinstance(self.weight, Operand)
        own = {name: value for name, value in given.items() if not name.startswith("pool") and name != "groups"}
        call = self._kernel_call("conv.depthwise", "depthwise2d", own | {"rows": rows})
        return replace(call, weights={"w": weights.depthwise_weight(self.weight, self._shape(self.channels), rows)})


@dataclass(kw_only=True)
class ConvTransposeStep(ImagesStep):
    """``act(transposed convolution of source with weight + bias)``."""

    def reads(self, position: int, shapes: Tensors) -> tuple[Layout, ...]:
        source = self.sources[position]
        same = shapes.shape(source.value) == source.shape
        return (Layout.CHANNELS, Layout.HBM) if position == 0 and same and self._may_be_on_chip() else (Layout.HBM,)

    def writes(self) -> tuple[Layout, ...]:
        return (Layout.CHANNELS, Layout.HBM) if self._may_be_on_chip() else (Layout.HBM,)

    def fills_window(self, first: int) -> bool:
        return True

    def _may_be_on_chip(self) -> bool:
        """True if images can be in SBUF: all groups are computed together, at least 32 outputs at once."""
        layer = ConvLayer(self.channels, self.shape[1], self.window.kernel, self.groups)
        at_once = conv_transpose.outputs_at_once(self.channels, self.window.kernel)
        return len(self.shape) == 4 and layer.together == self.groups and at_once >= min(32, self.shape[1])

    def _held_weights(self) -> tuple[str, ...]:
        computed = isinstance(self.weight, Operand) or isinstance(self.bias, Operand)
        return () if computed or self.groups > 1 else ("w", "b")

    def working_bytes(self, tensors: Tensors, *, held: bool) -> int:
        if not self._may_be_on_chip():
            return WORKING_BYTES
        on_chip = [tensors.layout(value) is not Layout.HBM for value in (self.sources[0].value, self.output)]
        taps = conv_transpose.Taps(**self.window.options)
        taken = conv_transpose.transpose_tile_bytes(self.channels, self.shape[1], taps, held, *on_chip)
        return min(WORKING_BYTES, taken)

    def part(self, images: int) -> ConvTransposeStep | None:
        if len(self.shape) != 4 or isinstance(self.weight, Operand) or isinstance(self.bias, Operand):
            return None
        sources = [source.part(images) for source in self.sources]
        return replace(self, shape=(images, *self.shape[1:]), sources=sources)

    def call(self, tensors: Tensors) -> Call:
        given = {"channels": self.channels, **self.window.options, "act": self.act, "groups": self.groups}
        return self._kernel_call("conv.conv_transpose", "conv_transpose2d", given)


def make_pooling(op: str, pool: Window) -> Pooling:
    return Pooling(op, pool.kernel, pool.stride, pool.pads, pool.dilation)


def fits_kernel(channels: int, size: tuple[int, int], window: Window, pool: Window) -> bool:
    """True if conv2d can compute results that are pooled from a convolution of ``size``."""
    shape = ConvShape(channels, size, **window.options)
    return bool(conv_room.conv_fits(shape, make_pooling("max", pool)))


def is_cramped(layer: ConvLayer, images: int, size: tuple[int, int], window: Window) -> bool:
    """True if the input of so few results fits a band of conv2d that conv3d_streamed computes a convolution better."""
    if layer.groups > 1:
        return False
    results = images * prod(size)
    shape, pooling = ConvShape(layer.channels, size, **window.options), make_pooling("max", NO_POOL)
    band = conv_room.band_steps(images, *size, shape, pooling, (1, 1, 0), band_bytes=4 * results)
    return prod(band) < min(_LEAST_BAND, results)

"""The steps of convolutions over volumes, and of those over images whose input does not fit SBUF."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trnrt.kernels.conv.conv_transpose import Taps, transpose_fits
from trnrt.kernels.conv.streaming import VolumeShape, streamed_fits
from trnrt.kernels.conv.volumes import phase_slices
from trnrt.operators.arranging import parameter_name
from trnrt.operators.conv_steps import NO_POOL, ConvLayer, fits_kernel, is_cramped
from trnrt.operators.windows import VolumeWindow
from trnrt.planner.lowering.weights import blocks_of
from trnrt.planner.plan import Array
from trnrt.planner.steps import Call, Operand, SourceName, Step, Tensors

STACKED, STREAMED = "conv3d_stacked", "conv3d_streamed"
_MODULES = {STACKED: "conv.volumes", STREAMED: "conv.streaming", "conv_transpose3d": "conv.volumes"}
# The kernels' own defaults: a call leaves out options that equal them.
_DEFAULTS = {"stride": (1, 1, 1), "pads": (0, 0, 0), "dilation": (1, 1, 1), "act": "none", "groups": 1}


def as_volumes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of images (N, C, H, W) or rows of pixels (N, C, W) as volumes (N, C, D, H, W)."""
    return (*shape[:2], *(1,) * (5 - len(shape)), *shape[2:])


def choose_kernel(layer: ConvLayer, window: VolumeWindow, source: tuple[int, ...], made: tuple[int, ...]) -> str:
    """The kernel for a convolution between tensors of these shapes; "" if there is none. Images are such for which
    conv2d has no room.

    With depth taps as channels, products have more of the partitions to sum over if the channels don't fill blocks;
    otherwise the copies would gain nothing.
    """
    taps = window.kernel[0]
    stacked = ConvLayer(layer.channels * taps, layer.outputs, window.plane.kernel, layer.groups)
    each = layer.channels // layer.groups
    gains = layer.groups > 1 or taps == 1 or blocks_of(each * taps) < taps * blocks_of(each)
    depth, height, width = as_volumes(source)[2:]
    images, rows, columns = as_volumes(made)[2:]
    fits = len(made) == 5 and fits_kernel(stacked.channels_at_once, (rows, columns), window.plane, NO_POOL)
    if fits and gains and not is_cramped(stacked, images, (rows, columns), window.plane):
        return STACKED
    if streamed_fits(VolumeShape((depth, height, width), **window.options)):
        return STREAMED
    return STACKED if fits else ""


def transposed_fits(channels: int, window: VolumeWindow) -> bool:
    """True if conv_transpose3d can compute at least single results."""
    depth = (window.kernel[0], window.stride[0], window.pads[0], window.dilation[0])
    taps = max(len(phase_slices(phase, *depth)) for phase in range(window.stride[0]))
    return bool(transpose_fits(channels * taps, Taps(**window.plane.options)))


@dataclass(kw_only=True)
class VolumeConvStep(Step):
    """``act(conv(source, weight) + bias + added)`` over volumes, by ``kernel``; ``weight`` and ``bias`` are in its
    layout, constants or computed tensors. Images are volumes of depth 1."""

    kernel: str
    weight: Array | Operand
    bias: Array | Operand
    window: VolumeWindow
    act: str
    groups: int = 1
    added: Operand | None = None

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        is_volume = position is None or position == 0 or self.sources[position] == self.added
        shape = super().hbm_view(position)
        return as_volumes(shape) if is_volume else shape

    def part(self, images: int) -> VolumeConvStep | None:
        if isinstance(self.weight, Operand) or isinstance(self.bias, Operand):
            return None
        added = None if self.added is None else self.added.part(images)
        sources = [source.part(images) for source in self.sources]
        return replace(self, shape=(images, *self.shape[1:]), sources=sources, added=added)

    def call(self, tensors: Tensors) -> Call:
        given = {**self.window.options, "act": self.act, "groups": self.groups}
        if self.added is not None:
            given["added"] = SourceName(self.sources.index(self.added))
        weight, bias = parameter_name(self, "w", self.weight), parameter_name(self, "b", self.bias)
        return Call(
            module=_MODULES[self.kernel],
            kernel=self.kernel,
            args=(SourceName(0), weight, bias),
            options={key: value for key, value in given.items() if value != _DEFAULTS.get(key)},
            weights={} if isinstance(self.weight, Operand) else {"w": self.weight},
            biases={} if isinstance(self.bias, Operand) else {"b": self.bias},
            held=() if isinstance(self.bias, Operand) else ("b",),
        )

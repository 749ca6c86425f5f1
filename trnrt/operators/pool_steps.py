"""The steps of pooling: the calls of their kernels, with places and memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trnrt.kernels import pool2d
from trnrt.operators.windows import Pair, Window, pixel_rows
from trnrt.planner.plan import Layout
from trnrt.planner.steps import Call, Step, Tensors


@dataclass(kw_only=True)
class PoolStep(Step):
    """The maxima of windows over images.

    A row of pixels (N, C, W) is an image of one row, in HBM; for a global pool, so are images of any other rank.
    """

    window: Window

    @property
    def _image(self) -> Pair:
        return pixel_rows(self.sources[0].shape)

    def reads(self, position: int, shapes: Tensors) -> tuple[Layout, ...]:
        source = self.sources[0]
        same = shapes.shape(source.value) == source.shape and len(source.shape) == 4
        return (Layout.CHANNELS, Layout.HBM) if same else (Layout.HBM,)

    def writes(self) -> tuple[Layout, ...]:
        return (Layout.CHANNELS, Layout.HBM) if len(self.shape) == 4 else (Layout.HBM,)

    def fills_window(self, first: int) -> bool:
        return True

    def part(self, images: int) -> PoolStep | None:
        if len(self.shape) != 4 or len(self.sources[0].shape) != 4:
            return None
        return replace(self, shape=(images, *self.shape[1:]), sources=[self.sources[0].part(images)])

    def share(self, number: int, count: int) -> PoolStep | None:
        if len(self.shape) != 4 or len(self.sources[0].shape) != 4 or self.shape[1] % count:
            return None
        channels = self.shape[1] // count
        sources = [self.sources[0].take_channels(channels)]
        return replace(self, shape=(self.shape[0], channels, *self.shape[2:]), sources=sources)

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        return (*self.shape[:2], *(pixel_rows(self.shape) if position is None else self._image))

    def working_bytes(self, tensors: Tensors, *, held: bool) -> int:
        window, size = self.window, pixel_rows(self.shape)
        return pool2d.pool_tile_bytes(self.shape[0], self._image, size, window.kernel, window.stride, window.dilation)

    def call(self, tensors: Tensors) -> Call:
        return Call("pool2d", "max_pool2d", (), {"channels": self.shape[1]} | self.window.options)


@dataclass(kw_only=True)
class AveragePoolStep(PoolStep):
    """The averages of windows; ``ends`` is the padding (bottom, right)."""

    ends: Pair
    count_include_pad: bool

    def call(self, tensors: Tensors) -> Call:
        call = super().call(tensors)
        pads = {"pads": (*self.window.pads, *self.ends), "count_include_pad": self.count_include_pad}
        return Call("pool2d", "avg_pool2d", (), call.options | pads)

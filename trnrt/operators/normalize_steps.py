"""The steps of normalisations: rows, rows between the layers of an encoder, and the channels of images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from trnrt.kernels.normalize_channels import normalize_channels_bytes
from trnrt.kernels.normalize_features import normalize_features_bytes
from trnrt.planner.lowering import weights
from trnrt.planner.plan import Array, Layout
from trnrt.planner.steps import Call, Operand, SourceName, Step, Tensors, WeightName

Coefficient = Array | Operand | None


@dataclass(kw_only=True)
class NormalizeStep(Step):
    """Normalised rows. ``scale`` and ``bias`` are (1, columns) or (rows, 1), constant or computed, or None.

    ``kernel``: "normalize_rows", or "normalize_rows_rms", which has no bias.
    """

    rows: int
    scale: Coefficient
    bias: Coefficient
    eps: float
    kernel: str = "normalize_rows"

    @property
    def columns(self) -> int:
        """The length of a row."""
        return prod(self.shape) // self.rows

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        return self.sources[position].shape if position else (self.rows, self.columns)

    def call(self, tensors: Tensors) -> Call:
        args: list[SourceName | WeightName | float | None] = [SourceName(0)]
        biases: dict[str, Array] = {}
        given = (self.scale,) if self.kernel == "normalize_rows_rms" else (self.scale, self.bias)
        for key, coefficient in zip(("scale", "bias"), given, strict=False):
            if coefficient is None:
                args.append(None)
            elif isinstance(coefficient, Operand):
                args.append(SourceName(self.sources.index(coefficient)))
            else:
                args.append(WeightName(key))
                biases[key] = coefficient.astype(np.float32)
        return Call("normalize", self.kernel, (*args, self.eps), biases=biases)


@dataclass(kw_only=True)
class EncoderNormalizeStep(NormalizeStep):
    """Normalised rows with a constant scale and bias (1, columns) or None each, between the layers of an encoder: their
    features may be on the partitions. ``together``: the rows of an item of the batch."""

    together: int

    def reads(self, position: int, shapes: Tensors) -> tuple[Layout, ...]:
        same = shapes.shape(self.sources[0].value) == self.shape
        return (Layout.FEATURES, Layout.HBM) if same else (Layout.HBM,)

    def writes(self) -> tuple[Layout, ...]:
        return (Layout.FEATURES, Layout.HBM)

    def working_bytes(self, tensors: Tensors, *, held: bool) -> int:
        if not self._on_chip(tensors):
            return super().working_bytes(tensors, held=held)
        return normalize_features_bytes(self.columns, 4)

    def _on_chip(self, tensors: Tensors) -> bool:
        """True if the source or the result has its features on the partitions."""
        return Layout.FEATURES in {tensors.layout(self.sources[0].value), tensors.layout(self.output)}

    def call(self, tensors: Tensors) -> Call:
        if not self._on_chip(tensors):
            return super().call(tensors)
        lay_out = weights.columns if tensors.layout(self.output) is Layout.FEATURES else partial(weights.rows, count=1)
        biases = {}
        for key, coefficient, default in (("scale", self.scale, 1.0), ("bias", self.bias, 0.0)):
            row = np.full(self.columns, default) if coefficient is None else np.asarray(coefficient)
            biases[key] = lay_out(row.reshape(-1).astype(np.float32))
        args = (SourceName(0), *map(WeightName, biases), self.columns, self.eps, self.together)
        held = tuple(biases) if tensors.layout(self.output) is Layout.FEATURES else ()
        return Call("normalize_features", "normalize_features", args, biases=biases, held=held)


@dataclass(kw_only=True)
class UnitRowsStep(Step):
    """Rows over their 2-norms, or over ``least`` where the norm is smaller."""

    least: float

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        return prod(self.shape[:-1]), self.shape[-1]

    def call(self, tensors: Tensors) -> Call:
        return Call("normalize", "divide_rows_by_norm", (SourceName(0), self.least))


@dataclass(kw_only=True)
class InverseDeviationStep(Step):
    """``1 / sqrt(variance + eps)`` of rows."""

    eps: float

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        rows = prod(self.shape)
        return rows, 1 if position is None else prod(self.sources[0].shape) // rows

    def call(self, tensors: Tensors) -> Call:
        return Call("normalize", "inverse_deviations", (self.eps,))


@dataclass(kw_only=True)
class ChannelsStep(Step):
    """Images whose channels are normalised at each position; ``scale`` and ``bias`` are (channels,)."""

    scale: Array
    bias: Array
    eps: float

    def reads(self, position: int, shapes: Tensors) -> tuple[Layout, ...]:
        same = shapes.shape(self.sources[0].value) == self.shape
        return (Layout.CHANNELS, Layout.HBM) if same else (Layout.HBM,)

    def writes(self) -> tuple[Layout, ...]:
        return (Layout.CHANNELS, Layout.HBM)

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        return (*self.shape[:2], prod(self.shape[2:]))

    def part(self, images: int) -> ChannelsStep:
        return replace(self, shape=(images, *self.shape[1:]), sources=[self.sources[0].part(images)])

    def working_bytes(self, tensors: Tensors, *, held: bool) -> int:
        return normalize_channels_bytes(self.shape[1])

    def call(self, tensors: Tensors) -> Call:
        biases = {"scale": weights.columns(self.scale), "bias": weights.columns(self.bias)}
        args = (SourceName(0), *map(WeightName, biases), self.shape[1], self.eps)
        return Call("normalize_channels", "normalize_channels", args, biases=biases, held=tuple(biases))

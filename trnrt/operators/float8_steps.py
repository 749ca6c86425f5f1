"""Layers of 8-bit floats: weights and source carry scales, powers of two, that the kernel takes out again."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import ml_dtypes
import numpy as np

from trnrt.kernels.narrow import NARROWED_PER_NS, narrow_tile_bytes
from trnrt.kernels.rates import ALL_DMA_ENGINES, product_ns
from trnrt.operators.conv_steps import ConvStep
from trnrt.operators.linear import LinearStep
from trnrt.operators.programs import ComputeStep, Program
from trnrt.planner.lowering import weights
from trnrt.planner.lowering.weights import PARTITIONS, blocks_of
from trnrt.planner.plan import Array, Layout
from trnrt.planner.steps import WORKING_BYTES, Call, Operand, Tensors

NUMPY = {"float8_e4m3": ml_dtypes.float8_e4m3, "float8_e5m2": ml_dtypes.float8_e5m2}
LARGEST = {name: float(ml_dtypes.finfo(dtype).max) for name, dtype in NUMPY.items()}
"""The largest number of each format: 240 of float8_e4m3, which is not e4m3fn."""

# Up to 64 channels, several rows of the image share the partitions of a product (row_groups.py). That takes copies,
# which are slower in 8 bits: ResNet-50 with 8 images takes 18 % longer with it, predicted on trn2.
_LEAST_CHANNELS = 65

# What a linear layer waits for its source in 8 bits, besides its elements: an instruction each of the vector and of the
# GpSimd engine, with their semaphores. From the timing model of trn2.
_NARROWING_NS = 600


def scale_for(most: float, dtype: str) -> float:
    """The least power of two by which ``most`` can be divided to fit the format."""
    return 2.0 ** math.ceil(math.log2(most / LARGEST[dtype])) if most > 0 else 1.0


def can_narrow(step: object) -> bool:
    """True if there is a kernel for the step in 8 bits: a convolution without groups, or a linear layer."""
    if type(step) is LinearStep:
        return True
    if type(step) is not ConvStep or step.groups > 1 or len(step.shape) != 4 or step.act == "whole":
        return False
    return isinstance(step.weight, np.ndarray) and isinstance(step.bias, np.ndarray)


def saved_by_float8(step: ConvStep) -> float:
    """The nanoseconds of products that a convolution saves if its source has 8 bits."""
    if step.channels < _LEAST_CHANNELS:
        return 0.0
    images, outputs = step.shape[:2]
    return float(product_ns(_saved_products(step) * images * math.prod(step.size) * blocks_of(outputs), 2))


def narrowing_ns(step: ConvStep) -> float:
    """The nanoseconds that a convolution's source takes to be narrowed."""
    return math.prod(step.sources[0].shape) / min(step.channels, PARTITIONS) / float(NARROWED_PER_NS)


def gains_by_float8(step: LinearStep) -> bool:
    """True if a linear layer takes less time in 8 bits: it waits for products or for weights, and has half of both."""
    rows, (features, outputs) = step.shape[0], step.weight.shape
    chunks = blocks_of(features)
    products = product_ns(chunks // 2 * outputs * blocks_of(rows), 2)
    loading = features * outputs / ALL_DMA_ENGINES
    return bool(max(products, loading) > chunks * rows / NARROWED_PER_NS + _NARROWING_NS)


def _saved_products(step: ConvStep) -> int:
    """The products of a PSUM bank that pairs save. A tensor is added by a product of its own, where in 16 bits the
    vector engine adds it to sums of several. Of the taps of a single block only those pair that the same results see:
    about two of three."""
    taps, blocks = math.prod(step.window.kernel), blocks_of(step.channels)
    saved = taps * (blocks // 2) + (taps // 3 if blocks % 2 else 0)
    return saved - (1 if step.added is not None and taps * blocks > 1 else 0)


def weight_scales(weight: Array, dtype: str) -> Array:
    """The scale of each output of a weight (..., O)."""
    most = np.abs(weight).reshape(-1, weight.shape[-1]).max(axis=0)
    return np.array([scale_for(float(one), dtype) for one in most], np.float32)


@dataclass(kw_only=True)
class NarrowStep(ComputeStep):
    """A value divided by its scale, and limited to the numbers of the 8-bit format ``dtype``."""

    scale: float
    signed: bool

    @classmethod
    def make(cls, name: str, source: Operand, scale: float, dtype: str, *, signed: bool) -> NarrowStep:
        """The step that makes the tensor ``name``."""
        program = Program()
        scaled = program.apply("multiply", program.source(source), 1 / scale)
        made = program.apply("minimum", scaled, LARGEST[dtype])
        if signed:
            program.apply("maximum", made, -LARGEST[dtype])
        title = [f"{source.value} in {dtype}"]
        made_by: dict[str, Any] = {"name": name, "sources": [source], "output": name, "shape": source.shape}
        return cls(**made_by, dtype=dtype, title=title, program=program, scale=scale, signed=signed)

    def part(self, images: int) -> NarrowStep:
        return NarrowStep.make(self.output, self.sources[0].part(images), self.scale, self.dtype, signed=self.signed)

    def call(self, tensors: Tensors) -> Call:
        if tensors.layout(self.output) is not Layout.CHANNELS:
            return super().call(tensors)
        return Call("narrow", "narrow", (1 / self.scale, LARGEST[self.dtype], self.signed))

    def working_bytes(self, tensors: Tensors, *, held: bool) -> int:
        if tensors.layout(self.output) is not Layout.CHANNELS:
            return super().working_bytes(tensors, held=held)
        return int(narrow_tile_bytes())


@dataclass(kw_only=True)
class Float8ConvStep(ConvStep):
    """A ConvStep that reads 8-bit floats. ``weight`` is divided by ``weight_scales`` (O,), as the source is by
    ``source_scale``; the result is divided by ``result_scale``, which is 1 unless it has 8 bits, too."""

    weight_scales: Array
    result_scale: float = 1.0

    @classmethod
    def narrow(cls, step: ConvStep, float8: str, source_scale: float) -> Float8ConvStep:
        """``step`` with a source of 8 bits."""
        assert isinstance(step.weight, np.ndarray)
        scales = weight_scales(step.weight, float8)
        given = {field.name: getattr(step, field.name) for field in fields(step)}
        given |= {"weight": step.weight / scales, "weight_dtype": float8, "tuned": {}}
        given |= {"float8": float8, "source_scale": source_scale}
        return cls(**given, weight_scales=scales)

    def largest_sum(self, most: float, *, signed: bool) -> float:
        """The largest magnitude of a result, before its scale, for sources of up to ``most`` times the source's scale:
        no input reaches a larger one. Sources that aren't ``signed`` are 0 or more."""
        assert isinstance(self.weight, np.ndarray) and isinstance(self.bias, np.ndarray)
        held = self.weight.astype(NUMPY[self.float8]).astype(np.float64)
        above, below = (np.maximum(sign * held, 0).sum(axis=(0, 1, 2)) for sign in (1, -1))
        bias = self.bias.T.reshape(-1)[: self.shape[1]]
        reach = (above + below, above + below) if signed else (above, below)
        unit = self.weight_scales * self.source_scale * most
        upper, lower = reach[0] * unit + bias, reach[1] * unit - bias
        return float(upper.max() if self.act == "relu" else max(upper.max(), lower.max()))

    @property
    def _packs(self) -> bool:
        return False

    def _is_stacked(self) -> bool:
        return False

    @property
    def _row_choice(self) -> tuple[int, int] | None:
        return None

    def share(self, number: int, count: int) -> None:
        """Its outputs aren't divided over cores yet."""

    def reorder(self, order: list[int]) -> bool:
        return False

    def tunable(self) -> dict[str, tuple[int | str, ...]]:
        return {name: values for name, values in super().tunable().items() if name == "band_bytes"}

    def call(self, tensors: Tensors) -> Call:
        assert isinstance(self.bias, np.ndarray)
        sums = self.weight_scales * self.source_scale / self.result_scale
        bias = self.bias.T.reshape(-1)[: self.shape[1]] / self.result_scale
        columns = weights.scaled_columns(bias.astype(np.float32), sums.astype(np.float32))
        return replace(super().call(tensors), biases={"b": columns})


@dataclass(kw_only=True)
class Float8LinearStep(LinearStep):
    """A LinearStep whose ``weight`` is divided by ``weight_scales`` (O,). The kernel divides the source by
    ``source_scale`` and rounds it; sources that aren't ``signed`` are 0 or more."""

    weight_scales: Array
    signed: bool

    @classmethod
    def narrow(cls, step: LinearStep, float8: str, source_scale: float, *, signed: bool) -> Float8LinearStep:
        """``step`` in 8 bits."""
        scales = weight_scales(step.weight, float8)
        given = {field.name: getattr(step, field.name) for field in fields(step)}
        given |= {"weight": step.weight / scales, "weight_dtype": float8, "tuned": {}}
        given |= {"float8": float8, "source_scale": source_scale}
        return cls(**given, weight_scales=scales, signed=signed)

    def share(self, number: int, count: int) -> None:
        """Its outputs aren't divided over cores yet."""

    def call(self, tensors: Tensors) -> Call:
        call = super().call(tensors)
        by_features = tensors.layout(self.output) is Layout.FEATURES
        scales = self.weight_scales * np.float32(self.source_scale)
        prepared = weights.columns(scales) if by_features else weights.rows(scales, self._bias_rows())
        narrowing = (1 / self.source_scale, LARGEST[self.float8], self.signed)
        bias = np.concatenate([call.biases["b"], prepared], axis=1)
        return replace(call, biases={"b": bias}, options=call.options | {"narrowing": narrowing})

    def working_bytes(self, tensors: Tensors, *, held: bool) -> int:
        source = blocks_of(self.weight.shape[0]) * self.shape[0]
        taken = super().working_bytes(tensors, held=held) + source + int(narrow_tile_bytes())
        return min(WORKING_BYTES, taken)

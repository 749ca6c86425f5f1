"""Steps: fusion groups, the layouts that they can read and write, and their kernel calls.

A lowering function makes a step with its layouts still open. Once ``placing`` has placed every tensor, ``call`` gives
the kernel with its arguments and prepares the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from trnrt.nki.machine.dtypes import as_dtype
from trnrt.planner.plan import Array, Layout

# The most bytes per partition that the tiles of any kernel take at once: the budgets at the top of the kernel files,
# which ``tests/kernels/test_budgets.py`` adds up. It stands in for a kernel without a bound of its own; the smaller it
# is, the more tensors and weights stay in SBUF.
WORKING_BYTES = 132 * 1024


@dataclass(frozen=True)
class Operand:
    """A tensor as a step reads it: the name of its stored value, and its ONNX shape."""

    value: str
    shape: tuple[int, ...]

    def part(self, images: int) -> Operand:
        """The first ``images`` of it."""
        return Operand(self.value, (images, *self.shape[1:]))

    def take_channels(self, channels: int) -> Operand:
        """``channels`` of its images."""
        return Operand(self.value, (self.shape[0], channels, *self.shape[2:]))


@dataclass(frozen=True)
class Call:
    """A kernel call. ``args`` follow dst and the sources: names of weights, compile-time values, or tuples of those.

    Sources named in ``args`` (SourceName) are not also passed before them. ``weights`` take the session's dtype;
    ``biases`` stay float32, as the engines need them. The kernel also accepts those named in ``held`` as SBUF tiles.
    Without a ``module`` nothing is called.
    """

    module: str
    kernel: str
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Array] = field(default_factory=dict)
    biases: dict[str, Array] = field(default_factory=dict)
    held: tuple[str, ...] = ()


def stored_dtype(weight: Array, dtype: str) -> np.dtype[Any]:
    """The dtype that a weight has on the device: the session's, unless it was cast to a short one before."""
    short = weight.dtype.kind == "V" or weight.dtype.name.startswith("float8")
    return weight.dtype if short else as_dtype(dtype).numpy


NO_CALL = Call("", "none", ())
"""The call of a step whose result is in place already: the steps before it have written all of its parts."""


@dataclass(frozen=True)
class WeightName:
    """An argument that is a weight: rendered as its identifier, never as text."""

    key: str


@dataclass(frozen=True)
class SourceName:
    """Stands for the step's source ``position`` among the arguments, for kernels that take their sources as a tuple."""

    position: int


class Tensors(Protocol):
    """Where tensors live, for steps to query."""

    def layout(self, value: str) -> Layout:
        """The layout of a value."""
        ...

    def shape(self, value: str) -> tuple[int, ...]:
        """The shape a value is stored in."""
        ...

    def position(self, value: str) -> tuple[str, int]:
        """The tensor that holds a value, itself or a larger one, and the value's first channel in it."""
        ...


@dataclass(kw_only=True)
class Step:
    """One kernel call in the making.

    ``shape`` is the stored shape of the result, ``dtype`` its dtype if that isn't the session's, ``weight_dtype`` that
    of its weights. ``nodes`` are the ONNX
    nodes that the step covers, ``title`` names them with their operators; ``Lowering.add`` sets both. ``tuned`` are the
    chosen options of the kernel's call, out of ``tunable``. ``float8``: the dtype of 8 bits in which the step
    multiplies its source, divided by ``source_scale``, and its weights; "" if it doesn't.
    """

    name: str
    sources: list[Operand]
    output: str
    shape: tuple[int, ...]
    dtype: str = ""
    weight_dtype: str = ""
    nodes: list[str] = field(default_factory=list)
    title: list[str] = field(default_factory=list)
    tuned: dict[str, int | str] = field(default_factory=dict)
    float8: str = ""
    source_scale: float = 1.0

    def __post_init__(self) -> None:
        """The device has no scalars: they are stored as one element."""
        self.shape = self.shape or (1,)

    def reads(self, position: int, shapes: Tensors) -> tuple[Layout, ...]:
        """Layouts in which the step can read source ``position``."""
        return (Layout.HBM,)

    def writes(self) -> tuple[Layout, ...]:
        """Layouts in which the step can write its result, the best first."""
        return (Layout.HBM,)

    def same_layout(self) -> bool:
        """True if sources and result must have the same layout."""
        return False

    def joins(self) -> dict[str, int]:
        """Values that the result contains as they are: images whose channels all go to consecutive channels of it, and
        the first of these; without those that no other step could write there."""
        return {}

    def first_taken_channel(self) -> int | None:
        """The channel of the only source from which on the result is a part of it, as it is; None if it isn't one."""
        return None

    def fills_window(self, first: int) -> bool:
        """True if the kernel can write its result in SBUF to the channels from number ``first`` on of a larger tile,
        and leaves the others alone."""
        return False

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        """The shape that the kernel needs for source ``position`` (None: its result) in HBM."""
        return self.shape if position is None else self.sources[position].shape

    def on_chip_view(self, name: str, layout: Layout, stored: tuple[int, ...]) -> str:
        """The expression that reads a source that is in SBUF under ``name``."""
        return name

    def multiplied_sources(self) -> list[Operand]:
        """The sources that the kernel multiplies, with each other or with constant weights: all of one dtype, which
        needn't be that of the other sources or of the result."""
        return []

    def cast_weights(self, dtype: str) -> None:
        """Give the weights a dtype that isn't the session's."""
        self.weight_dtype = dtype

    def read_wide(self, *, whole: bool) -> bool:
        """In a session of 16 bits, read sources in float32, and store the result so if it is ``whole`` numbers; False
        if the kernel can't."""
        return False

    def working_bytes(self, tensors: Tensors, *, held: bool) -> int:
        """Bytes per partition that the kernel's own tiles take at most; ``held``: its weights are in SBUF already."""
        return WORKING_BYTES

    def part(self, images: int) -> Step | None:
        """The same step for ``images`` of the batch; None if one image depends on another."""
        return None

    def share(self, number: int, count: int) -> Step | None:
        """The same step for share ``number`` of ``count`` equal ones of its outputs (channels or features), in whole
        blocks; None if it can't be divided so. It reads the same share of those sources whose shape is less than the
        step's, and all of the others."""
        return None

    def tunable(self) -> dict[str, tuple[int | str, ...]]:
        """Options of the kernel's call that change how it computes, not what, each with the alternatives to the
        default; empty if the step is too short to gain by them."""
        return {}

    def tune(self, options: Mapping[str, int | str]) -> None:
        """Set those of the options that the step offers."""
        offered = self.tunable() if options else {}
        self.tuned = {option: value for option, value in options.items() if value in offered.get(option, ())}

    def call(self, tensors: Tensors) -> Call:
        """The kernel call, once layouts are known."""
        raise NotImplementedError

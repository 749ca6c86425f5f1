"""The plan: the ordered steps, their tensors, the prepared weights, and the work of the host at the boundary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.planner.choices import DEFAULT, Choices

Array = NDArray[Any]


class Layout(Enum):
    """The layout of a tensor in memory; ``kernels/common.py`` gives the place of each element."""

    HBM = "hbm"  # as ONNX stores it
    ROWS = "rows"  # SBUF (P, B, F): the batch on the partitions
    FEATURES = "features"  # SBUF (P, B, N): features on the partitions
    CHANNELS = "channels"  # SBUF (P, B, N, H, W): channels on the partitions

    @property
    def place(self) -> str:
        """The memory: "sbuf" or "hbm"."""
        return "hbm" if self is Layout.HBM else "sbuf"


@dataclass(frozen=True)
class NodeReport:
    """How one ONNX node was planned.

    ``place``: "core" (arithmetic on the NeuronCore), "dma" (elements are only moved), "host" (a boundary node), "view"
    (moves nothing), "folded" (removed before planning). ``reason`` says why, or why a fusion wasn't made.
    """

    name: str
    op: str
    step: str | None
    kernel: str | None
    place: str
    reason: str


@dataclass(frozen=True)
class StoredTensor:
    """A tensor between steps: the value's name, the identifier it has in the kernel module, and how it is stored."""

    name: str
    identifier: str
    shape: tuple[int, ...]
    layout: str


@dataclass(frozen=True)
class StepReport:
    """One kernel call: the nodes it covers, the values it reads, and the place of its result, with the reason.

    ``sources`` are names of stored tensors, each with its stored shape and layout. ``lines`` are the first and last
    line of the call in the kernel module, ``identifier`` the name of its result there, and ``dtype`` the result's
    dtype. ``images``: the call is in a loop over this many images at a time, as its arguments show; 0 means it is
    called once. ``holds`` is the result's value in the graph, if it is one, and ``order`` its dimensions as stored:
    stored dimension d is dimension ``order[d]``. ``weights``: "prefetched" (loaded into SBUF ahead of the step), "own"
    (loaded by the step itself, for the reason ``weights_reason``) or "none". ``options`` are the tuned arguments of the
    kernel, ``offered`` the alternatives to their defaults (see ``Step.tunable``). ``parts``: sources that are stored in
    the result, each with the code of its place there after the result's identifier; where all are, nothing is called,
    and the kernel is "none". ``part_of``: the code that takes the result from its only source, if it is stored there;
    then nothing is called either. ``complete``: the call that would give each core all of a result of which it makes
    and keeps a share. ``float8``: the dtype of 8 bits in which it multiplies its source, divided by ``source_scale``,
    and its weights; "" if it doesn't.
    """

    name: str
    kernel: str
    nodes: tuple[str, ...]
    output: str
    shape: tuple[int, ...]
    place: str
    layout: str
    reason: str
    lines: tuple[int, int] = (0, 0)
    sources: tuple[StoredTensor, ...] = ()
    holds: str = ""
    order: tuple[int, ...] = ()
    weights: str = "none"
    weights_reason: str = ""
    identifier: str = ""
    dtype: str = ""
    images: int = 0
    options: tuple[tuple[str, int | str], ...] = ()
    offered: tuple[tuple[str, tuple[int | str, ...]], ...] = ()
    parts: tuple[tuple[str, str], ...] = ()
    part_of: str = ""
    complete: str = ""
    float8: str = ""
    source_scale: float = 1.0


@dataclass(frozen=True)
class DeviceTensor:
    """A tensor that crosses the boundary: an argument or a result of the kernel, with its shape on the device."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class HostNode:
    """A boundary node that runs on the host: converts or looks up a final index or label, or an index from an input."""

    name: str
    op: str
    inputs: tuple[str, ...]
    output: str
    compute: Callable[..., Array] = field(repr=False)


@dataclass(frozen=True)
class PlanOutput:
    """An output of the model: the value that it comes from (device, host, input or constant), its dtype and shape.

    ``is_list``: the host makes it a list, one item per row.
    """

    name: str
    source: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_list: bool = False


@dataclass(frozen=True)
class KernelSize:
    """The instructions of a kernel: ``unrolled``, with the body of a device loop once for each trip; and ``compiled``,
    with it once, as AWS's compiler sees the kernel. ``trips`` are those of the loop over the batch, 1 without one."""

    unrolled: int
    compiled: int
    trips: int = 1


@dataclass(frozen=True)
class WeightPart:
    """The place of a weight that shares a kernel argument (P, columns) with others: from column ``first`` on, in the
    order of its elements in ``shape`` (P, ...)."""

    argument: str
    first: int
    shape: tuple[int, ...]

    def view(self, array: Array) -> Array:
        """The weight in the argument's array, in two dimensions: a view."""
        columns = prod(self.shape[1:])
        return array[: self.shape[0], self.first : self.first + columns]


@dataclass(frozen=True)
class Tried:
    """Something that the search timed: ``what`` for ``steps``, which are alike, and the model's gain in microseconds.
    ``whole``: it was timed alone; else with others, and the gain is that of the steps."""

    steps: tuple[str, ...]
    what: str
    gain_us: float
    whole: bool
    taken: bool


@dataclass(frozen=True)
class Plan:
    """A model for given input shapes, ready to be compiled.

    ``batch`` is its number of rows, None for a model without a batch. ``source`` is the kernel module's text; its
    function ``entry`` takes ``inputs`` and then ``weights`` in order and returns ``results``. ``parts`` lists by name
    the weights that share an argument. ``constants`` are values for the host (label tables, outputs that depend on no
    input). ``before`` computes those of ``inputs`` that aren't inputs of the model; ``host`` runs on the results.
    ``size`` counts the kernel's instructions, on one core. ``cores``: the physical cores that divide the work; the
    module is launched on that many. ``float8``: the dtype of the tensors and weights of 8 bits, "" if there are none.
    """

    name: str
    entry: str
    target: str
    dtype: str
    batch: int | None
    inputs: tuple[DeviceTensor, ...]
    weights: dict[str, Array]
    results: tuple[DeviceTensor, ...]
    outputs: tuple[PlanOutput, ...]
    host: tuple[HostNode, ...]
    constants: dict[str, Array]
    steps: tuple[StepReport, ...]
    nodes: tuple[NodeReport, ...]
    notes: tuple[str, ...]
    source: str
    parts: dict[str, WeightPart] = field(default_factory=dict)
    choices: Choices = DEFAULT
    weighed: tuple[Tried, ...] = ()
    before: tuple[HostNode, ...] = ()
    size: KernelSize = KernelSize(0, 0)
    cores: int = 1
    float8: str = ""

    @property
    def shown_dtype(self) -> str:
        """The dtype as the user gave it: that of 8 bits, if some tensors have so few."""
        return self.float8 or self.dtype

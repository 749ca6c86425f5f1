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
    """How a tensor lies in memory; ``kernels/common.py`` says where each element stands."""

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
    (moves nothing), "folded" (gone before planning). ``reason`` says why, or why a fusion was not made.
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
    """One kernel call: the nodes it covers, the values it reads, and where its result lives and why.

    ``sources`` are names of stored tensors, each with its stored shape and layout. ``lines`` are the first and last
    line of the call in the kernel module, ``identifier`` what it names its result, and ``dtype`` what that is held in.
    ``images``: the call is in a loop over this many images of the batch at a time, which its arguments name; 0: it is
    called once. ``holds`` is the value of the graph that the result is, empty where it is none, and ``order`` says
    which of its dimensions stands where: stored dimension d is dimension ``order[d]``. ``weights``: "prefetched"
    (brought to SBUF ahead of the step), "own" (loaded by the step itself, for the reason ``weights_reason``) or "none".
    ``options`` are arguments of the kernel that were chosen, ``offered`` what can be chosen beside the defaults (see
    ``Step.tunable``).
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


@dataclass(frozen=True)
class DeviceTensor:
    """A tensor that crosses the boundary: an argument of the kernel, or what it returns (shape as on the device)."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class HostNode:
    """A boundary node that runs on the host: a conversion or look-up of a final index or label, or of an index that an
    input holds."""

    name: str
    op: str
    inputs: tuple[str, ...]
    output: str
    compute: Callable[..., Array] = field(repr=False)


@dataclass(frozen=True)
class PlanOutput:
    """An output of the model: the value it comes from (device, host, input or constant), and what it must look like.

    ``is_list``: it is a list, one item a row, as the host makes it.
    """

    name: str
    source: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_list: bool = False


@dataclass(frozen=True)
class WeightPart:
    """Where a weight is that shares an argument of the kernel, (P, columns), with others: columns ``first``...,
    in the order of its elements in ``shape`` (P, ...)."""

    argument: str
    first: int
    shape: tuple[int, ...]

    def view(self, array: Array) -> Array:
        """The weight in the argument's array, in two dimensions: a view."""
        columns = prod(self.shape[1:])
        return array[: self.shape[0], self.first : self.first + columns]


@dataclass(frozen=True)
class Tried:
    """Something that the search has timed: ``what`` for ``steps``, which are alike, and what the model gains by it,
    microseconds. ``whole``: it was timed by itself; else with others, and the gain is that of the steps."""

    steps: tuple[str, ...]
    what: str
    gain_us: float
    whole: bool
    taken: bool


@dataclass(frozen=True)
class Plan:
    """A model for given input shapes, ready to be compiled.

    ``batch`` is the number of rows it is for, None where the model has no batch.
    ``source`` is the kernel module's text; its function ``entry`` takes ``inputs`` and then ``weights`` in order
    and returns ``results``. ``parts`` tells by name which weights share one of them. ``constants`` are values that the
    host needs (label tables, outputs that do not depend on any input). ``before`` makes those of ``inputs`` that are no
    inputs of the model, ``host`` runs on the results.
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

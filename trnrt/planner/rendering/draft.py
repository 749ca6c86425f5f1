"""The parts of a kernel module before it is written: the material, its passes, and each step's call."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from trnrt.nki.machine.dtypes import as_dtype
from trnrt.planner.choices import Choices
from trnrt.planner.placing.placement import Placed
from trnrt.planner.placing.prefetching import Transfer
from trnrt.planner.placing.shares import Shares, find_shares
from trnrt.planner.placing.sweeps import reduce_steps
from trnrt.planner.plan import Array, DeviceTensor
from trnrt.planner.steps import Call, Step


@dataclass(frozen=True)
class Material:
    """The ingredients of a module; ``batch`` is None for a model without one.

    ``constants`` are tensors of the model that steps read like computed ones; they are passed as weights. ``heading``
    are lines for the docstring; rendering escapes names. The outputs of the steps called ``shared`` are divided over
    ``cores``, on which the module is launched.
    """

    name: str
    steps: list[Step]
    inputs: list[DeviceTensor]
    constants: dict[str, Array]
    results: list[DeviceTensor]
    target: str
    dtype: str
    heading: list[str]
    batch: int | None
    choices: Choices
    cores: int = 1
    shared: frozenset[str] = frozenset()

    def tune(self) -> None:
        """Give the steps' kernels the options that were chosen."""
        for step in self.steps:
            step.tune(self.choices.step_options(step.name))


@dataclass(frozen=True)
class Repeat:
    """``times`` passes, each over the next rows of the batch. ``on_device``: in a loop of the device, whose body the
    compiler sees once; else unrolled. ``resident``: the prefetched weights are loaded once, before that loop.
    ``cores``: the physical cores that make as many passes each, each over its own rows; not ``on_device``."""

    times: int = 1
    on_device: bool = False
    resident: bool = False
    cores: int = 1

    @property
    def count(self) -> int:
        """The passes of all cores."""
        return self.times * self.cores


@dataclass
class Draft:
    """A module before its weights are prefetched. ``repeat``: its passes; all else is of one pass. ``shares``: the
    steps that cores divide; ``calls`` are those of each core, in all else alike."""

    material: Material
    placed: Placed
    repeat: Repeat = Repeat()
    parts: list[Step] = field(init=False)
    shares: Shares = field(init=False)
    calls: list[list[Call]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        """Prepare the weights, once for all renderings."""
        material, placed = self.material, self.placed
        self.parts = reduce_steps(material.steps, placed.sweeps)
        results = {tensor.name for tensor in material.results}
        self.shares = find_shares(material.shared, material.cores, self.parts, placed, results)
        shared = self.shares.steps
        whole = {k: _call(step, placed, material.choices) for k, step in enumerate(self.parts) if k not in shared}
        for core in range(material.cores):
            own = {k: _call(shares[core], placed, material.choices) for k, shares in shared.items()}
            self.calls.append([own[k] if k in own else whole[k] for k in range(len(self.parts))])

    def differs(self, transfer: Transfer) -> bool:
        """True if each core has weights of its own in a transfer."""
        return any(part.step in self.shares.steps for part in transfer.parts)

    def join_arrays(self, transfer: Transfer) -> Array:
        """The weights of a transfer (P, columns); (cores, P, columns) if each core has its own."""
        if not self.differs(transfer):
            return transfer.join_arrays(self.calls[0])
        return np.stack([transfer.join_arrays(calls) for calls in self.calls])

    def weight(self, number: int, key: str, *, bias: bool) -> Array:
        """A weight or bias of step ``number``; with the cores in front, if each has its own."""
        calls = [own[number] for own in self.calls]
        arrays = [(call.biases if bias else call.weights)[key] for call in calls]
        return np.stack(arrays) if number in self.shares.steps else arrays[0]


def _call(step: Step, placed: Placed, choices: Choices) -> Call:
    """The step's call; if it loads its own weights, only its biases can be prefetched."""
    call = _cast_weights(step.call(placed), step.weight_dtype)
    if step.name not in choices.own_weights:
        return call
    return replace(call, held=tuple(key for key in call.held if key in call.biases))


def _cast_weights(call: Call, dtype: str) -> Call:
    """The call with weights of a dtype of their own; float32 ones are passed like biases, which no session rounds."""
    if not dtype or not call.weights:
        return call
    if dtype == "float32":
        return replace(call, weights={}, biases={**call.biases, **call.weights})
    cast = {key: array.astype(as_dtype(dtype).numpy) for key, array in call.weights.items()}
    return replace(call, weights=cast)

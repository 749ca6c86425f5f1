"""A loaded partition: runs its parts one after the other, and releases values after their last reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trnrt.backends import Array, Backend, LoadedKernel
from trnrt.backends.onnxruntime import CpuKernel
from trnrt.cache import KernelCache
from trnrt.errors import BackendError
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.planner.parts.partition import DevicePart, Part, Partition
from trnrt.planner.plan import Plan, PlanOutput
from trnrt.text import name_text, quote, shape_text

if TYPE_CHECKING:
    from trnrt.nki.machine.timing import Range


@dataclass(frozen=True)
class LoadedPlan:
    """A plan on a backend, with its weights; ``path`` is its kernel module."""

    plan: Plan
    kernel: LoadedKernel
    path: Path

    @cached_property
    def predicted_range(self) -> Range | None:
        """The predicted latency of a run on the device; None if the backend has no program to time."""
        from trnrt.backends.simulator import SimulatedKernel
        from trnrt.nki.machine.timing import predict_benchmark

        return predict_benchmark(self.kernel.programs) if isinstance(self.kernel, SimulatedKernel) else None

    @cached_property
    def _dtypes(self) -> list[np.dtype[Any]]:
        """The dtypes of the kernel's inputs, as arrays have them."""
        return [as_dtype(tensor.dtype).numpy for tensor in self.plan.inputs]

    def run(self, values: Mapping[str, Any]) -> dict[str, Array]:
        """The plan's outputs, in the model's own dtypes."""
        plan = self.plan
        if plan.before:
            values = dict(values) | host_inputs(plan, values)
        for tensor in plan.inputs:
            given = values[tensor.name].shape or (1,)
            if given != tensor.shape:  # onnxruntime may make another shape than the file declares
                raise BackendError(
                    f"{quote(tensor.name)} has the shape {shape_text(given)}, and {name_text(plan.name)} is planned "
                    f"for {shape_text(tensor.shape)}: the model's file declares a wrong shape",
                    hint="export the model again",
                )
        results = self.kernel.run(
            [_cast(values[tensor.name], dtype) for tensor, dtype in zip(plan.inputs, self._dtypes, strict=True)]
        )
        known = {**values, **plan.constants}
        for tensor, array in zip(plan.results, results, strict=True):
            known[tensor.name] = array
        for node in plan.host:
            known[node.output] = node.compute(*(known[name] for name in node.inputs))
        made = {o.name: as_output(known[o.source], o) for o in plan.outputs}
        for name in self._find_lent:
            made[name] = own_copy(made[name])
        return made

    @cached_property
    def _find_lent(self) -> list[str]:
        """The outputs that may share memory with an input, a constant, or another output."""
        results, lent = {tensor.name for tensor in self.plan.results}, list[str]()
        for output in self.plan.outputs:
            if output.source in results:
                results.remove(output.source)
            else:
                lent.append(output.name)
        return lent


def own_copy(value: Any) -> Any:
    """An array that its caller may write to; a list stays unchanged."""
    return value.copy() if isinstance(value, np.ndarray) else value


def _cast(array: Array, dtype: np.dtype[Any]) -> Array:
    """The array in another dtype; itself, if it has that one."""
    if array.dtype == dtype:
        return array
    with np.errstate(all="ignore"):
        return array.astype(dtype)


def host_inputs(plan: Plan, values: Mapping[str, Any]) -> dict[str, Array]:
    """The kernel's inputs that the host computes from the model's."""
    return {node.output: node.compute(*(values[name] for name in node.inputs)) for node in plan.before}


def as_output(value: Any, output: PlanOutput) -> Any:
    """An output in the model's own dtype and shape; a list stays unchanged."""
    if output.is_list:
        return value
    if value.dtype != output.dtype:
        with np.errstate(invalid="ignore"):  # NaN becomes an arbitrary integer of the machine
            value = value.astype(output.dtype)
    return value.reshape(output.shape)


def add_known_ranges(predicted: Sequence[Range | None], fixed_us: float = 0.0) -> Range | None:
    """The sum of these ranges; None if there is none, or one is unknown."""
    from trnrt.nki.machine.timing import add_ranges

    known = [one for one in predicted if one is not None]
    return add_ranges(known, fixed_us) if known and len(known) == len(predicted) else None


class LoadedPartition:
    """All parts of a model for given input shapes."""

    def __init__(self, partition: Partition, backend: Backend, cache: KernelCache) -> None:
        self.partition = partition
        self.parts = [(part, self._load(part, backend, cache)) for part in partition.parts]
        self._last_reader = {name: k for k, part in enumerate(partition.parts) for name in part.inputs}

    @property
    def plans(self) -> list[LoadedPlan]:
        """The parts on the device."""
        return [loaded for _, loaded in self.parts if isinstance(loaded, LoadedPlan)]

    @property
    def predicted_range(self) -> Range | None:
        """The predicted latency of a run: parts on the device and round trips, without the CPU's own time.

        None if nothing runs on the device, or the backend has no program to time.
        """
        return add_known_ranges([plan.predicted_range for plan in self.plans], self.partition.crossings_us)

    def run(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """The model's outputs by name."""
        values: dict[str, Any] = {**arrays, **self.partition.constants}
        if len(self.parts) == 1:
            values |= self.parts[0][1].run(values)
            return self._outputs(values, arrays)
        kept = set(self.partition.outputs)
        for k, (part, loaded) in enumerate(self.parts):
            values |= loaded.run({name: values[name] for name in part.inputs})
            for name in [name for name in values if self._last_reader.get(name, -1) <= k and name not in kept]:
                del values[name]
        return self._outputs(values, arrays)

    def _outputs(self, values: Mapping[str, Any], arrays: Mapping[str, Array]) -> dict[str, Array]:
        """The model's outputs; inputs and constants among them are copied, as the caller may write to an output."""
        lent = self.partition.constants
        return {
            name: own_copy(values[name]) if name in arrays or name in lent else values[name]
            for name in self.partition.outputs
        }

    def close(self) -> None:
        """Unload the parts on the device."""
        for plan in self.plans:
            plan.kernel.close()

    def _load(self, part: Part, backend: Backend, cache: KernelCache) -> LoadedPlan | CpuKernel:
        if not isinstance(part, DevicePart):
            return CpuKernel(part)
        path, source, _ = cache.kernel(part.plan.name, part.plan.source)
        return LoadedPlan(part.plan, backend.load(part.plan, path, source), path)

"""The pass over a model's steps: the live values, and each step run alone on onnxruntime's values and on ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.backends import Backend
from trnrt.backends.onnxruntime import CpuKernel
from trnrt.importer import ImportedModel
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.operators.bounds.rounding import Rounding
from trnrt.planner.lowering.walk import node_name, value_name
from trnrt.planner.parts.partition import CpuPart, DevicePart, Partition
from trnrt.planner.plan import DeviceTensor, HostNode, Plan, StepReport, StoredTensor
from trnrt.running.partition import as_output
from trnrt.validate.alone import LoneStep, PlanReader
from trnrt.validate.bounds import Bound, as_float, carry_errors
from trnrt.validate.distances import Distance, distance, errors_of, index_errors
from trnrt.validate.reference import Evaluated, Group, Groups, evaluate, value_of

Array = NDArray[Any]
Errors = dict[str, Array]
# The output that is an index of an extreme element, and the axis where the node names none.
_INDICES = {"ArgMax": (0, 0), "ArgMin": (0, 0), "TopK": (1, -1)}


@dataclass(frozen=True)
class Unit:
    """One unit of the pass: a step with the nodes that compute its value; or, without a step, a part for the CPU or the
    outputs of a device's part. ``groups``: of the values that onnxruntime computes for it."""

    part: CpuPart | DevicePart
    step: StepReport | None
    groups: tuple[Group, ...]
    reads: tuple[str, ...]

    @property
    def name(self) -> str:
        """The step's name, or the part's."""
        return self.part.name if self.step is None else self.step.name

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of a step, with those that only reshape its sources."""
        grouped = [node_name(node) for group in self.groups for node in group.nodes]
        return tuple(dict.fromkeys([*(self.step.nodes if self.step else ()), *grouped]))


@dataclass(frozen=True)
class Compared:
    """A step's two distances; and the arrays to repeat one of them, if the step's result is a value of the graph."""

    isolated: Distance | None
    cumulative: Distance
    length: int
    inputs: dict[str, Array]
    expected: Array | None
    tolerance: Array | None


class Walk:
    """The live values by name: ``theirs``, onnxruntime's, and ``ours``, in ONNX's shapes.

    ``loose``: (isolated, cumulative) of tensors that are not values of the graph, in their stored shape.
    """

    def __init__(
        self, model: ImportedModel, partition: Partition, backend: Backend, arrays: Mapping[str, Array]
    ) -> None:
        shapes = {name: array.shape for name, array in arrays.items()}
        self.groups = Groups(model.bind(shapes, {name: arrays[name] for name in model.parameters}).model)
        self.opset = self.groups.model.opset_imports.get("", 0)
        self.rounding = Rounding(partition.dtype)
        self._backend = backend
        self._constants = partition.constants
        self.theirs: dict[str, Array] = dict(arrays) | partition.constants
        self.ours: dict[str, Array] = dict(self.theirs)
        self.loose: dict[str, tuple[Array, Array]] = {}
        self._readers: dict[str, PlanReader] = {}
        self._results: dict[str, list[DeviceTensor]] = {}
        self._held: dict[tuple[str, str], tuple[str, tuple[int, ...]]] = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self._before: dict[tuple[str, str], HostNode] = {}
        self.units: list[Unit] = []
        groups = {_group_of(part) for part in partition.parts}
        for part in partition.parts:
            self._add(part, is_only=len(groups) == 1, is_last=part is _last_of_group(partition, part))
        self._last = {name: k for k, unit in enumerate(self.units) for name in unit.reads}

    def _add(self, part: CpuPart | DevicePart, *, is_only: bool, is_last: bool) -> None:
        """Append a part's units; only the last kernel of a group has the group's outputs."""
        if isinstance(part, CpuPart):
            self.groups.known |= set(part.outputs)
            self.units.append(Unit(part, None, (), part.inputs))
            return
        reader = self._readers[part.name] = PlanReader(part.plan)
        self._before |= {(part.name, node.output): node for node in part.plan.before}
        made_before = self._results.setdefault(_group_of(part), [])
        made_before += part.plan.results
        for step in part.plan.steps:
            is_new = step.holds and step.holds not in self.groups.known
            groups: tuple[Group, ...] = (self.groups.cut(step.holds),) if is_new else ()
            if is_new:
                self._held[_group_of(part), step.output] = step.holds, step.order
                self._dtypes[step.holds] = reader.dtype(step.output)
            self.units.append(Unit(part, step, groups, self._reads(part, step.sources, groups)))
        if not is_only and is_last:
            made = [name for name in part.outputs if name not in self.groups.known]
            groups = tuple(self.groups.cut(name) for name in made)
            self.units.append(Unit(part, None, groups, self._reads(part, made_before, groups)))

    def _reads(
        self, part: DevicePart, sources: Sequence[StoredTensor | DeviceTensor], groups: Sequence[Group]
    ) -> tuple[str, ...]:
        """The names of all that a unit reads."""
        stored = [name for source in sources for name in self._names(part, source.name)]
        return (*stored, *(value_name(value) for group in groups for value in group.sources))

    def _names(self, part: DevicePart, stored: str) -> tuple[str, ...]:
        """The names that a stored tensor comes from: its value, else itself, or the host node's inputs."""
        before = self._before.get((part.name, stored))
        return (self._held.get((_group_of(part), stored), (stored, ()))[0],) if before is None else before.inputs

    def forget(self, position: int) -> None:
        """Release the values that no later unit reads."""
        for kept in (self.theirs, self.ours, self.loose):
            for name in [name for name in kept if self._last.get(name, -1) <= position]:
                if name not in self._constants:
                    kept.pop(name)

    def run_unit(self, unit: Unit) -> None:
        """Run a part for the CPU, or the host's nodes at the end of a part of the device."""
        if isinstance(unit.part, CpuPart):
            kernel = CpuKernel(unit.part)
            for values in (self.theirs, self.ours):
                taken = {n: values[n].astype(self.theirs[n].dtype, copy=False) for n in unit.part.inputs}
                values |= kernel.run(taken)
            return
        for group in unit.groups:
            self.theirs[value_name(group.value)] = value_of(group, evaluate(group, self.groups.model, self.theirs))
        plan = unit.part.plan
        known = dict(self.ours) | plan.constants
        results = self._results[_group_of(unit.part)]
        known |= {tensor.name: self._stored_array(unit.part, tensor, 1) for tensor in results}
        for node in plan.host:
            known[node.output] = node.compute(*(known[name] for name in node.inputs))
        made = {output.name: as_output(known[output.source], output) for output in plan.outputs}
        self.ours |= {name: array for name, array in made.items() if name not in self.ours}

    def compare(self, unit: Unit, directory: Path) -> Compared:
        """Run a step alone, on onnxruntime's values and on ours, and compare both results."""
        part, step = unit.part, unit.step
        assert isinstance(part, DevicePart) and step is not None
        isolated, cumulative = self._run(part, step, directory)
        if not unit.groups:
            self.loose[step.output] = isolated, cumulative
            errors = errors_of(cumulative, isolated)
            return Compared(None, distance(errors, np.full(errors.shape, np.inf)), 1, {}, None, None)
        (group,) = unit.groups
        done = evaluate(group, self.groups.model, self.theirs)
        expected = value_of(group, done)
        results = [_as_value(array, step, expected.shape) for array in (isolated, cumulative)]
        distances: list[Distance] = []
        bounds: list[Bound] = []
        for position, result in enumerate(results):
            bounds.append(carry_errors(group, done, self._source_errors(group, position), self.rounding, self.opset))
            distances.append(_measure_distance(group, done, result, expected, bounds[-1]))
        # The arrays of the comparison that fails: the isolated one, unless only the other fails.
        shown = 1 if distances[0].passed and not distances[1].passed else 0
        values = (self.theirs, self.ours)[shown]
        names = map(value_name, group.sources)
        inputs = {name: values[name].astype(self.theirs[name].dtype, copy=False) for name in names}
        self.theirs[step.holds], self.ours[step.holds] = expected, results[1]
        return Compared(distances[0], distances[1], bounds[0].length, inputs, expected, bounds[shown].error)

    def _run(self, part: DevicePart, step: StepReport, directory: Path) -> tuple[Array, Array]:
        reader = self._readers[part.name]
        lone = LoneStep(reader, step, self._backend, directory)
        fed = reader.fed_sources(step)
        made = [lone.run({source.name: self._stored_array(part, source, k) for source in fed}) for k in (0, 1)]
        return made[0], made[1]

    def _stored_array(self, part: DevicePart, source: StoredTensor | DeviceTensor, position: int) -> Array:
        """A tensor in its stored form, from onnxruntime's values (0) or from ours (1)."""
        if source.name in self.loose:
            return self.loose[source.name][position]
        values = (self.theirs, self.ours)[position]
        if (before := self._before.get((part.name, source.name))) is not None:
            return before.compute(*(values[name] for name in before.inputs))
        name, order = self._held.get((_group_of(part), source.name), (source.name, ()))
        array = values[name]
        return (array.transpose(order) if order else array).reshape(source.shape)

    def _source_errors(self, group: Group, position: int) -> Errors:
        """The errors of a group's sources, in the dtypes in which they are fed."""
        errors = {}
        for source in group.sources:
            name = value_name(source)
            theirs = self.theirs[name]
            held = self._dtypes.get(name, as_dtype(self.rounding.dtype).numpy)
            with np.errstate(all="ignore"):
                fed = (theirs, self.ours[name])[position].astype(held)
            errors[name] = errors_of(fed, as_float(theirs)).astype(np.float32)
        return errors


def _group_of(part: CpuPart | DevicePart) -> str:
    """The part of the graph that a part is, or is a kernel of."""
    return part.group or part.name if isinstance(part, DevicePart) else part.name


def _last_of_group(partition: Partition, part: CpuPart | DevicePart) -> CpuPart | DevicePart:
    return [other for other in partition.parts if _group_of(other) == _group_of(part)][-1]


def _as_value(stored: Array, step: StepReport, shape: tuple[int, ...]) -> Array:
    """A stored result in its value's shape."""
    if list(step.order) == sorted(step.order):
        return stored.reshape(shape)
    turned = stored.reshape([shape[d] for d in step.order])
    return turned.transpose(np.argsort(step.order))


def _measure_distance(group: Group, done: Sequence[Evaluated], result: Array, expected: Array, made: Bound) -> Distance:
    producer = next(step for step in done if group.value in step.runner.node.outputs)
    node = producer.runner.node
    output, axis = _INDICES.get(node.op_type, (-1, 0))
    if output < 0 or group.value is not node.outputs[output]:
        return distance(errors_of(result, as_float(expected)), made.error)
    (x, *_), (value, *_) = producer.inputs, node.inputs
    assert x is not None and value is not None
    axis = node.attributes.get_int("axis", axis) % max(x.ndim, 1)
    off = made.errors.get(value_name(value), np.zeros(x.shape, np.float32))
    if node.op_type == "TopK":  # the numbers at one place of two orders differ by as much as any of them
        shape, off = expected.shape, np.broadcast_to(off.max(axis=axis, keepdims=True), x.shape)
    else:
        shape = tuple(1 if d == axis else size for d, size in enumerate(x.shape))
    errors = index_errors(result, expected, as_float(x), off, axis, shape)
    return distance(errors, np.zeros(errors.shape))


def replace_plan(partition: Partition, plan: Plan) -> Partition:
    """A partition of one plan, with another plan in its place."""
    (part,) = partition.parts
    assert isinstance(part, DevicePart), "a plan of one's own is for a model that is one plan"
    return replace(partition, parts=(replace(part, plan=plan),))

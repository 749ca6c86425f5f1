"""Making a model's parts.

Without fallback there is one part, the plan of the whole model. With it, nodes that can't be lowered become CPU parts.
Lowering itself finds them: first in the whole graph, then in each device part as a graph of its own, until all device
parts can be planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from trnrt.errors import Blocker, UnsupportedModelError
from trnrt.importer import GraphView, ImportedModel
from trnrt.planner.checking import check_choices
from trnrt.planner.lowering.walk import Lowering, is_static, node_name, operator_name, value_name
from trnrt.planner.making import node_reports, rows_of
from trnrt.planner.options import PlanOptions
from trnrt.planner.parts.crossing import Crossing, host_link
from trnrt.planner.parts.cutting import cut, serialize_part, type_open_values
from trnrt.planner.parts.ends import find_ends
from trnrt.planner.parts.levels import Flow, group_nodes, value_bytes
from trnrt.planner.parts.partition import CpuPart, DevicePart, Part, Partition
from trnrt.planner.placing.passes import fewer_rows
from trnrt.planner.plan import Array, NodeReport, Plan
from trnrt.planner.sizing.budget import PlannedKernel, plan_kernels

MOST_PARTS = 1000
"""Parts of a model: each is a kernel module to trace, or a session of onnxruntime."""

_ROUNDS = 8
"""After this many tries, the whole of an unplannable part goes to the CPU."""

_ONLY_MOVES = "only moves elements, next to nodes on the CPU: not worth a round trip"


def make_partition(
    model: ImportedModel,
    shapes: Mapping[str, tuple[int, ...]],
    options: PlanOptions,
    values: Mapping[str, Array] | None = None,
) -> Partition:
    """The parts of a model for concrete input shapes: a single plan if everything can be lowered.

    ``values`` are those of the inputs that are the model's parameters.

    Raises UnsupportedModelError with every blocking node if there is no fallback, InputError if the shapes don't fit
    the model, OptionError if the choices contain an unknown name.
    """
    partition = _partition_model(model, shapes, options, values)
    check_choices(options.choices, partition.nodes, partition.steps)
    return partition


def _partition_model(
    model: ImportedModel,
    shapes: Mapping[str, tuple[int, ...]],
    options: PlanOptions,
    values: Mapping[str, Array] | None,
) -> Partition:
    """``make_partition`` without the check of the choices' names."""
    view, batch = model.bind(shapes, values), rows_of(model, shapes)
    try:
        kernels = plan_kernels(model, view, options, batch, fewer_rows(model, shapes, values, view))
    except UnsupportedModelError as error:
        ends = find_ends(Flow(view.model.graph)) if options.fallback is None else {}
        if options.fallback is None and not ends:
            raise
        _check_outputs(model)
        found = _Partitioner(model, view, options, error.blockers, ends).partition(batch)
        if found is None:
            raise
        return found
    parts = _device_parts(model.name, kernels)
    outputs = tuple(output.name for output in kernels[-1].plan.outputs)
    nodes, notes = kernels[-1].reports, kernels[-1].plan.notes
    return Partition(model.name, options.target, options.shown_dtype, batch, parts, outputs, {}, nodes, notes)


def _device_parts(name: str, kernels: Sequence[PlannedKernel]) -> tuple[DevicePart, ...]:
    """The kernels of a graph called ``name``, as parts."""
    group = name if len(kernels) > 1 else ""
    return tuple(
        DevicePart(kernel.plan.name, kernel.inputs, tuple(o.name for o in kernel.plan.outputs), kernel.plan, group)
        for kernel in kernels
    )


def _check_outputs(model: ImportedModel) -> None:
    """Refuse outputs that are neither tensors nor lists: trnrt can't return them, whatever computes them."""
    strange = [info for info in model.outputs if info.dtype.endswith(")") and not info.dtype.startswith("seq(")]
    if strange:
        hint = "export the model without it"
        blockers = [Blocker(i.name, "output", f"its type is {i.dtype}, not a tensor", hint) for i in strange]
        raise UnsupportedModelError(model.name, blockers)


class _Partitioner:
    """Finds out which nodes go to the CPU, and why; ``blocked`` is node name -> reason.

    With ``ends``, of ``find_ends``, there is no fallback: only these nodes may leave the device.
    """

    def __init__(
        self,
        model: ImportedModel,
        view: GraphView,
        options: PlanOptions,
        blockers: Sequence[Blocker],
        ends: Mapping[str, str],
    ) -> None:
        self.blockers = () if ends else tuple(replace(b, hint=_beside_fallback(b.hint)) for b in blockers)
        self.ends = ends
        self.model = model
        self.view = view
        self.graph = view.model.graph
        self.options = options
        self.flow = Flow(self.graph)
        lowering = Lowering(self.graph, options.dtype, options.choices.no_fuse)
        lowering.walk()
        reports = lowering.reports.values()
        self.blocked = {report.name: report.reason for report in reports if report.place == "blocked"}
        self._block_open({report.name for report in reports if report.place == "host"})
        self.blocked |= ends
        type_open_values(view.model)

    def _block_open(self, lists: set[str]) -> None:
        """Block nodes of any operator with values that are empty, or whose shape depends on the data.

        ``lists`` are boundary nodes, whose results need no shape.
        """
        for node, read in self.flow.reads.items():
            if node_name(node) in lists:
                continue
            for value in [*read, *(value for value in node.outputs if value.name)]:
                if not is_static(value):
                    self.blocked.setdefault(node_name(node), f"the shape of {value_name(value)!r} depends on the data")
                elif 0 in (value.shape or ()) and value.const_value is None:  # a Resize may have a roi of nothing
                    self.blocked.setdefault(node_name(node), f"{value_name(value)!r} is empty")

    def partition(self, batch: int | None) -> Partition | None:
        """Plan the parts, and move nodes to the CPU, until all parts can be planned. With ends: None if more than they
        would go there, or all of the model."""
        rounds = 0
        while not self.ends or all(why == _ONLY_MOVES for name, why in self.blocked.items() if name not in self.ends):
            rounds += 1
            groups = group_nodes(self.flow, self.blocked.__contains__)
            if len(groups) > MOST_PARTS:
                raise UnsupportedModelError(self.model.name, [*self.blockers, self._too_many(len(groups))])
            if self.ends and all(on_cpu for on_cpu, _ in groups):
                return None
            plans = [
                None if on_cpu else self._plan(k, nodes, batch, rounds) for k, (on_cpu, nodes) in enumerate(groups, 1)
            ]
            if all(on_cpu or plan is not None for (on_cpu, _), plan in zip(groups, plans, strict=True)):
                return self._assemble(groups, plans, batch)
        return None

    def _plan(self, number: int, nodes: list[ir.Node], batch: int | None, rounds: int) -> tuple[DevicePart, ...] | None:
        """The kernels of a part, mostly one; None if some of its nodes have to go to the CPU, which are recorded."""
        inputs, outputs = self.flow.inputs_of(nodes), self.flow.outputs_of(nodes)
        part = cut(self.view.model, self._part_name(number), inputs, outputs)
        try:
            kernels = plan_kernels(part, GraphView(part.model, ()), self.options, batch)
        except UnsupportedModelError as error:
            reasons = {blocker.node: blocker.reason for blocker in error.blockers}
            found = {name: reasons[name] for name in map(node_name, nodes) if name in reasons}
            if not found or rounds > _ROUNDS:
                why = "; ".join(dict.fromkeys(reasons.values()))
                found = {node_name(node): reasons.get(node_name(node), why) for node in nodes}
            self.blocked |= found
            return None
        if not any(report.place == "core" for report in kernels[-1].reports):
            self.blocked |= {node_name(node): _ONLY_MOVES for node in nodes}
            return None
        return tuple(replace(one, plan=self._as_part(one.plan)) for one in _device_parts(part.name, kernels))

    def _as_part(self, plan: Plan) -> Plan:
        """The plan of a part, whose outputs need not be the model's."""
        crossing = {output.name for output in plan.outputs} - {value.name for value in self.graph.outputs}
        steps = (replace(s, reason="another part reads it") if s.output in crossing else s for s in plan.steps)
        return replace(plan, steps=tuple(steps))

    def _too_many(self, count: int) -> Blocker:
        why = f"it would be cut into {count} parts, each a program of its own; up to {MOST_PARTS} are made"
        return Blocker(self.model.name, "the model", why, "run the whole model with onnxruntime")

    def _part_name(self, number: int) -> str:
        return f"{self.model.name}_part{number}"

    def _assemble(
        self,
        groups: list[tuple[bool, list[ir.Node]]],
        plans: Sequence[tuple[DevicePart, ...] | None],
        batch: int | None,
    ) -> Partition:
        parts: list[Part] = []
        for k, ((_, nodes), plan) in enumerate(zip(groups, plans, strict=True)):
            before = groups[k - 1][1] if k else []
            after = groups[k + 1][1] if k + 1 < len(groups) else []
            parts += plan or [self._cpu_part(k + 1, nodes, self._crossing(before, after))]
        outputs = list(self.graph.outputs)
        lowering = Lowering(self.graph, self.options.dtype)
        constants = {value_name(v): a for v in outputs if (a := lowering.constant(v)) is not None}
        reports = {report.name: report for part in parts for report in _reports(part)}
        notes = [note for part in parts if isinstance(part, DevicePart) for note in part.plan.notes]
        return Partition(
            name=self.model.name,
            target=self.options.target,
            dtype=self.options.dtype,
            batch=batch,
            parts=tuple(parts),
            outputs=_names(outputs),
            constants=constants,
            nodes=node_reports(self.model, self.view.notes, reports),
            notes=(*self.view.notes, *notes),
            blockers=self.blockers,
        )

    def _cpu_part(self, number: int, nodes: list[ir.Node], crossing: Crossing) -> CpuPart:
        inputs, outputs = self.flow.inputs_of(nodes), self.flow.outputs_of(nodes)
        part = cut(self.view.model, self._part_name(number), inputs, outputs)
        place = "host" if self.ends else "cpu"
        reports = tuple(
            NodeReport(node_name(node), operator_name(node), None, None, place, self.blocked[node_name(node)])
            for node in nodes
        )
        content = serialize_part(part)
        return CpuPart(part.name, _names(inputs), _names(outputs), reports, crossing, content, bool(self.ends))

    def _crossing(self, before: list[ir.Node], after: list[ir.Node]) -> Crossing:
        """The crossing of a CPU part: from the device part before it, and to the one after it.

        Only a part between two device parts has a round trip. What the kernels take at the model's start, and give at
        its end, crosses without fallback, too: no prediction has it.
        """
        down = self.flow.results_of(before) if after else []
        up = [value for value in self.flow.inputs_of(after) if value.producer() is not None] if before else []
        sizes = [value_bytes(value) for value in down], [value_bytes(value) for value in up]
        to_host, to_device = (sum(size or 0 for size in way) for way in sizes)
        loose = any(size is None for way in sizes for size in way)
        return Crossing.estimate(host_link(self.options.target), to_host, to_device, open_shapes=loose)


def _beside_fallback(hint: str) -> str:
    """A way out, without the advice to use the fallback that is already on."""
    return "; ".join(part for part in hint.split("; ") if "--fallback" not in part)


def _reports(part: Part) -> Sequence[NodeReport]:
    return part.plan.nodes if isinstance(part, DevicePart) else part.nodes


def _names(values: Sequence[ir.Value]) -> tuple[str, ...]:
    return tuple(value_name(value) for value in values)

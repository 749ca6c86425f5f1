"""The stages of planning, in order: lower the graph, place its tensors, render the kernel module."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import onnx_ir as ir

from trnrt.errors import Blocker, UnsupportedModelError
from trnrt.importer import GraphView, ImportedModel
from trnrt.planner.checking import check_choices
from trnrt.planner.choices import ASKED, Choices
from trnrt.planner.cores.sharing import share_work
from trnrt.planner.lowering.merging import merge_steps
from trnrt.planner.lowering.walk import Lowering, node_name, operator_name, value_name
from trnrt.planner.options import PlanOptions
from trnrt.planner.placing.passes import Fewer, fewer_rows, joined_results, same_crossing, same_steps
from trnrt.planner.placing.placement import Placed
from trnrt.planner.placing.sweeps import sweep_at
from trnrt.planner.placing.windows import Window
from trnrt.planner.plan import Array, DeviceTensor, KernelSize, NodeReport, Plan, PlanOutput, StepReport, StoredTensor
from trnrt.planner.rendering.draft import Material
from trnrt.planner.rendering.module import KernelModule
from trnrt.planner.searching.fitting import Fitted, repeat_part, trace_module
from trnrt.planner.searching.search import Searched, search
from trnrt.planner.sizing.counting import measure_size
from trnrt.planner.steps import NO_CALL, Step

_FIXED = "export the model with fixed shapes"
# Notes show names in their ``repr``.
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")


def plan_model(
    model: ImportedModel,
    shapes: Mapping[str, tuple[int, ...]],
    options: PlanOptions,
    values: Mapping[str, Array] | None = None,
) -> Plan:
    """See ``trnrt.planner.make_plan``."""
    view = model.bind(shapes, values)
    fewer = fewer_rows(model, shapes, values, view)
    plan = plan_view(model, view, options, rows_of(model, shapes), fewer)
    check_choices(options.choices, plan.nodes, plan.steps)
    return plan


def rows_of(model: ImportedModel, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
    """The rows in these input shapes; None for a model without a batch."""
    data = (shape for name, shape in shapes.items() if shape and name not in model.parameters)
    return None if model.batch is None else next((shape[0] for shape in data), None)


def plan_view(
    model: ImportedModel,
    view: GraphView,
    options: PlanOptions,
    batch: int | None,
    fewer: Fewer | None = None,
) -> Plan:
    """``make_plan`` for a graph that is bound already; ignores names in the choices that the graph doesn't have, and
    the budget of instructions (see ``sizing.budget``).

    ``fewer`` gives the graph for fewer rows, if the batch may be split into passes.
    """
    planning = Planning(model, view, options, batch, fewer)
    return share_work(planning, planning.whole_plan(planning.search()))


@dataclass(eq=False)
class Planning:
    """A graph, ``view``, on its way to a plan for ``batch`` rows, and the graphs for ``fewer``, each lowered once."""

    model: ImportedModel
    view: GraphView
    options: PlanOptions
    batch: int | None
    fewer: Fewer | None
    prepared: dict[tuple[str, int], Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lowered = lru_cache(maxsize=4)(self._lower)

    def search(self) -> Searched:
        """The choices for the model as one kernel, with its module."""
        return search(self, self.options.choices, self.options.effort)

    def _lower(self, no_fuse: frozenset[str], rows: int | None) -> Lowering:
        view = self.view
        if rows != self.batch:
            assert self.fewer is not None and rows is not None
            found = self.fewer(rows)
            assert found is not None, "it was there when the rows were chosen"
            view = found
        return _lower_graph(self.model, view, self.options, no_fuse, self.prepared)

    def material(self, choices: Choices, rows: int | None) -> Material:
        """The material of a module for ``rows`` rows."""
        lowering = self._lowered(choices.no_fuse, rows)
        return _material(self.model, lowering, replace(self.options, choices=choices), rows)

    def part_material(self, choices: Choices, rows: int) -> Material | None:
        """The material for a part of the batch, if the plan for it does the same with fewer rows."""
        if self.batch is None or self.fewer is None or self.fewer(rows) is None:
            return None
        whole, part = (self._lowered(choices.no_fuse, count) for count in (self.batch, rows))
        if whole.counts_through_batch:
            return None
        dtype = self.options.dtype
        inputs, results = ((side(whole, dtype), side(part, dtype)) for side in (_kernel_inputs, _kernel_results))
        joined = joined_results(whole, self.batch)
        same = same_crossing(*inputs, self.batch, rows) and same_crossing(*results, self.batch, rows, joined)
        return self.material(choices, rows) if same and same_steps(whole, part, self.batch, rows) else None

    def whole_plan(self, searched: Searched, cores: int = 1) -> Plan:
        """The plan of the model as one kernel, around the module that was found: for the rows of each of ``cores``."""
        choices, fitted = searched.choices, searched.fitted
        whole, part, notes = self.material(choices, self.batch), self.material(choices, fitted.rows), list[str]()
        part.tune()
        size = measure_size(fitted.program or trace_module(part, fitted.module))
        if self.batch is not None and fitted.rows is not None and fitted.rows != self.batch:
            times = self.batch // fitted.rows // cores
            size = KernelSize(size.unrolled * times, size.compiled * times)
            notes += [_passes_note(self.batch // cores, fitted.rows)] if times > 1 else []
            fitted = repeat_part(part, fitted, times, whole.heading, cores)
        plan = self.plan(choices, Making(whole, part, fitted, notes))
        return replace(plan, weighed=searched.weighed, size=size, cores=cores)

    def plan(self, choices: Choices, making: Making) -> Plan:
        """The plan around a fitted module, without its size."""
        lowering = self._lowered(choices.no_fuse, self.batch)
        float8 = self.options.float8.dtype if self.options.float8 is not None else ""
        return replace(_assemble(self.model, self.view, lowering, making), choices=choices, float8=float8)


@dataclass(frozen=True)
class Making:
    """A fitted module; the material of the ``whole`` batch, and of the ``part`` of it that each of its calls takes."""

    whole: Material
    part: Material
    fitted: Fitted
    notes: Sequence[str] = ()


def _passes_note(batch: int, rows: int) -> str:
    counted = f"{rows} rows" if rows > 1 else "1 row"
    return f"{counted} of {batch} at a time, in a loop over the whole plan: predicted to be faster than more together"


def _lower_graph(
    model: ImportedModel,
    view: GraphView,
    options: PlanOptions,
    no_fuse: frozenset[str],
    prepared: dict[tuple[str, int], Array],
) -> Lowering:
    """The graph as steps. UnsupportedModelError with every blocking node."""
    lowering = Lowering(view.model.graph, options.dtype, no_fuse, prepared, options.budget)
    lowering.walk()
    lowering.settle_outputs()
    blockers = lowering.blockers or [Blocker(model.name, "the model", reason, _FIXED) for reason in view.unresolved]
    if blockers:
        raise UnsupportedModelError(model.name, blockers)
    leaving = _leaving_values(lowering)
    merge_steps(lowering, leaving)
    # Here, as they import the operators, which import this package.
    from trnrt.planner.lowering.dtypes import choose_dtypes
    from trnrt.planner.lowering.narrowing import narrow_steps

    choose_dtypes(lowering.graph, lowering.steps, options.dtype, leaving)
    if options.float8 is not None:
        narrow_steps(lowering, options.float8, leaving)
    return lowering


def _material(model: ImportedModel, lowering: Lowering, options: PlanOptions, batch: int | None) -> Material:
    target, dtype = options.target, options.dtype
    inputs = _kernel_inputs(lowering, dtype)
    results = _kernel_results(lowering, dtype)
    read = _read_on_device(lowering)
    return Material(
        name=model.name,
        steps=lowering.steps,
        inputs=inputs,
        constants={name: array for name, array in lowering.tensors.items() if name in read},
        results=results,
        target=target,
        dtype=dtype,
        heading=_heading(model, target, dtype, inputs),
        batch=batch,
        choices=options.choices,
    )


def _read_on_device(lowering: Lowering) -> set[str]:
    return {source.value for step in lowering.steps for source in step.sources}


def _kernel_inputs(lowering: Lowering, dtype: str) -> list[DeviceTensor]:
    """Graph inputs that a step reads, as kernel arguments, and those that the host prepares."""
    read = _read_on_device(lowering)
    given = [
        DeviceTensor(value_name(value), lowering.shape(value) or (1,), dtype)
        for value in lowering.graph.inputs
        if value_name(value) in read
    ]
    return given + lowering.prepared_inputs


def _leaving_values(lowering: Lowering) -> set[str]:
    """Values that leave the device: model outputs, and inputs of boundary nodes."""
    wanted = {lowering.root(value) for value in lowering.graph.outputs}
    return wanted | {name for node in lowering.host for name in node.inputs}


def _kernel_results(lowering: Lowering, dtype: str) -> list[DeviceTensor]:
    """Results of steps that leave the device."""
    wanted = _leaving_values(lowering)
    return [DeviceTensor(s.output, s.shape, s.dtype or dtype) for s in lowering.steps if s.output in wanted]


def _heading(model: ImportedModel, target: str, dtype: str, inputs: list[DeviceTensor]) -> list[str]:
    shapes = ", ".join(f"{tensor.name} {tensor.shape}" for tensor in inputs)
    return [
        f"{model.name} as one NKI kernel: {dtype} on {target}.",
        f"Inputs: {shapes or 'none'}. Weights are laid out by the planner; kernels/common.py names the layouts.",
        "Generated by trnrt; edit it as you like.",
    ]


def _assemble(model: ImportedModel, view: GraphView, lowering: Lowering, making: Making) -> Plan:
    """The plan for the whole batch."""
    whole, module = making.whole, making.fitted.module
    steps = _step_reports(lowering, whole, making.part, making.fitted)
    return Plan(
        name=whole.name,
        entry=module.entry,
        target=whole.target,
        dtype=whole.dtype,
        batch=whole.batch,
        inputs=tuple(whole.inputs),
        weights=module.cast_weights(whole.dtype),
        results=tuple(whole.results),
        outputs=_outputs(lowering, view.model.graph),
        before=tuple(lowering.before),
        host=tuple(lowering.host),
        constants=lowering.constants,
        steps=steps,
        nodes=node_reports(model, view.notes, _planned_nodes(lowering, steps)),
        notes=(*view.notes, *lowering.notes, *making.notes),
        source=module.source,
        parts=module.parts,
    )


def _step_reports(lowering: Lowering, whole: Material, part: Material, fitted: Fitted) -> tuple[StepReport, ...]:
    held = lowering.stored_values([step.output for step in whole.steps])
    placed, module = fitted.placed, fitted.module
    images = part.batch or 0 if part.batch != whole.batch else 0
    return tuple(
        StepReport(
            name=step.name,
            kernel=call.kernel,
            nodes=tuple(step.nodes),
            output=step.output,
            shape=all_of_it.shape,
            place=placed.layout(step.output).place,
            layout=placed.layout(step.output).value,
            reason="; ".join(filter(None, (placed.reasons[step.output], module.shares[step.output]))),
            lines=lines,
            sources=tuple(
                _stored_tensor(source.value, whole, fitted, swept=_is_swept(k, placed)) for source in step.sources
            ),
            holds=held[step.output][0],
            order=held[step.output][1],
            weights=loading[0],
            weights_reason=loading[1],
            options=tuple(sorted(step.tuned.items())),
            offered=tuple(step.tunable().items()),
            identifier=_identifier(step.output, module, swept=_is_swept(k, placed)),
            dtype=step.dtype or whole.dtype,
            images=swept.images if (swept := sweep_at(placed.sweeps, k)) is not None else images,
            parts=_parts_in_place(step, placed),
            part_of=_place_in_source(step, placed),
            complete=module.completing.get(step.output, ""),
            float8=step.float8,
            source_scale=step.source_scale,
        )
        for k, (all_of_it, step, call, lines, loading) in enumerate(
            zip(whole.steps, part.steps, module.calls, module.lines, module.loading, strict=True)
        )
    )


def _parts_in_place(step: Step, placed: Placed) -> tuple[tuple[str, str], ...]:
    """The sources that are windows of the step's result, with their places there."""
    root, start = placed.position(step.output)
    layout = placed.layout(step.output)
    return tuple(
        (value, Window(step.output, first).code("", layout, placed.shape(value)[1]))
        for value, first in step.joins().items()
        if placed.position(value) == (root, start + first)
    )


def _place_in_source(step: Step, placed: Placed) -> str:
    """The code that takes a step's result from its source; "" if the step makes it."""
    first = step.first_taken_channel()
    if first is None:
        return ""
    root, start = placed.position(step.sources[0].value)
    if placed.position(step.output) != (root, start + first):
        return ""
    return Window(root, first).code("", placed.layout(step.output), step.shape[1])


def _is_swept(step: int, placed: Placed) -> bool:
    return sweep_at(placed.sweeps, step) is not None


def _identifier(value: str, module: KernelModule, *, swept: bool) -> str:
    """The identifier of a value in a step's call."""
    return module.views.get(value, module.identifiers[value]) if swept else module.identifiers[value]


def _stored_tensor(value: str, whole: Material, fitted: Fitted, *, swept: bool) -> StoredTensor:
    shape, layout = fitted.placed.shape(value), fitted.placed.layout(value)
    if fitted.rows != whole.batch and whole.batch is not None and value not in whole.constants:
        shape = (shape[0] // (fitted.rows or 1) * whole.batch, *shape[1:])
    return StoredTensor(value, _identifier(value, fitted.module, swept=swept), shape, layout.value)


def _outputs(lowering: Lowering, graph: ir.Graph) -> tuple[PlanOutput, ...]:
    outputs = []
    for value in graph.outputs:
        # A constant, or one in another shape.
        constant = lowering.constant(graph.initializers.get(lowering.root(value)))
        if constant is not None:
            lowering.constants[lowering.root(value)] = constant
        if lowering.is_list(value):
            outputs.append(PlanOutput(value_name(value), value_name(value), (), np.dtype(object), is_list=True))
            continue
        assert value.dtype is not None
        dtype = np.dtype(object) if value.dtype is ir.DataType.STRING else value.dtype.numpy()
        outputs.append(PlanOutput(value_name(value), lowering.root(value), lowering.shape(value), dtype))
    return tuple(outputs)


def _planned_nodes(lowering: Lowering, steps: tuple[StepReport, ...]) -> dict[str, NodeReport]:
    """Node name -> its report: with the kernel of its step, and why it was not fused where it could have been."""
    kernels = {step.name: step.kernel for step in steps if step.kernel != NO_CALL.kernel}
    in_place = {step.name for step in steps if step.kernel == NO_CALL.kernel}
    notes = {note.partition(" is not fused")[0]: note for note in lowering.notes if " is not fused" in note}
    reports = {}
    for name, report in lowering.reports.items():
        kept_apart = f"not fused with what comes before: {ASKED}" if name in lowering.no_fuse else ""
        unfused = notes.get(f"{report.op} {name!r}", kept_apart)
        if report.step in in_place:
            report = replace(report, place="view", reason="its inputs are written where it wants them; nothing moves")
        reason = "; ".join(part for part in (report.reason, unfused) if part)
        reports[name] = replace(report, kernel=kernels.get(report.step) if report.step else None, reason=reason)
    return reports


def node_reports(
    model: ImportedModel, notes: tuple[str, ...], reports: Mapping[str, NodeReport]
) -> tuple[NodeReport, ...]:
    """One report per node of the file, with its original operator: how it was planned, and how the clean-up changed it.

    ``reports`` are for the nodes left by the clean-up; ``notes`` record its changes.
    """
    planned, found = dict(reports), list[NodeReport]()
    of_steps = {repr(report.name): report for report in planned.values() if report.step}
    first_notes = {name: note for note in reversed(notes) for name in _QUOTED.findall(note)}
    for node in model.model.graph:
        name, op = node_name(node), operator_name(node)
        note = first_notes.get(repr(name), "")
        if name not in planned:
            report = _folded_report(name, op, note, of_steps)
        else:
            report = planned.pop(name)
            why = [report.reason, note if report.op != op else ""]
            report = replace(report, op=op, reason="; ".join(part for part in why if part))
        found.append(report)
        if report.step:
            of_steps[repr(name)] = report
    return (*found, *planned.values())


def _folded_report(name: str, op: str, note: str, others: Mapping[str, NodeReport]) -> NodeReport:
    """The report of a node that the clean-up removed: with the step of the node it was merged into, if any.

    ``others`` are reports of nodes in steps, by their quoted names.
    """
    if "made one" in note or "folded into" in note:
        merged = next((others[name] for name in _QUOTED.findall(note) if name in others), None)
        if merged is not None:
            return replace(merged, name=name, op=op, reason=note)
    what, _, nodes = note.partition(": ")
    reason = what if repr(name) in nodes else note  # without the list of nodes
    return NodeReport(name, op, None, None, "folded", reason or "constant: computed when the plan was made")

"""The stages of planning, in order: lower the graph, place its tensors, render the kernel module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import onnx_ir as ir

from trnrt.errors import Blocker, UnsupportedModelError
from trnrt.importer import GraphView, ImportedModel
from trnrt.planner import ops as ops  # registers the lowering functions
from trnrt.planner.choices import ASKED, DEFAULT, Choices, check_choices
from trnrt.planner.fitting import Material
from trnrt.planner.lowering import Lowering, node_name, operator_name, value_name
from trnrt.planner.merging import merge_steps
from trnrt.planner.placing import Placed
from trnrt.planner.plan import Array, DeviceTensor, NodeReport, Plan, PlanOutput, StepReport, StoredTensor
from trnrt.planner.refusals import summed_up
from trnrt.planner.rendering import KernelModule
from trnrt.planner.search import search
from trnrt.planner.sizes import default_shapes

# Names in notes are as ``repr`` writes them.
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")


def make_plan(
    model: ImportedModel,
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, Array] | None = None,
    *,
    target: str,
    dtype: str,
    choices: Choices = DEFAULT,
    effort: int = 0,
) -> Plan:
    """The plan of a model for concrete input shapes, and for the ``values`` of the inputs that are its parameters.

    Raises UnsupportedModelError with every blocking node, InputError where the shapes do not fit the model, OptionError
    where the ``choices`` name what is not there.
    """
    view = model.bind(shapes, values)
    rows = rows_of(model, shapes)
    plan = plan_view(model, view, batch=rows, target=target, dtype=dtype, choices=choices, effort=effort)
    check_choices(choices, plan.nodes, plan.steps)
    return plan


def rows_of(model: ImportedModel, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
    """The rows that these input shapes have; None for a model without a batch."""
    data = (shape for name, shape in shapes.items() if shape and name not in model.parameters)
    return None if model.batch is None else next((shape[0] for shape in data), None)


def plan_view(
    model: ImportedModel,
    view: GraphView,
    *,
    batch: int | None,
    target: str,
    dtype: str,
    choices: Choices = DEFAULT,
    effort: int = 0,
) -> Plan:
    """``make_plan`` for a graph that is bound already; names in ``choices`` that it does not know are passed over."""
    prepared: dict[tuple[str, int], Array] = {}

    @lru_cache(maxsize=2)
    def lowered(no_fuse: frozenset[str]) -> Lowering:
        return _lowered(model, view, dtype, no_fuse, prepared)

    def material(chosen: Choices) -> Material:
        return _material(model, lowered(chosen.no_fuse), batch=batch, target=target, dtype=dtype, choices=chosen)

    searched = search(material, choices, effort)
    lowering, found = lowered(searched.choices.no_fuse), material(searched.choices)
    found.tune()
    placed, module = searched.fitted.placed, searched.fitted.module
    options: dict[str, Any] = {"target": target, "dtype": dtype, "batch": batch}
    plan = _assemble(model, view, lowering, placed, module, found.inputs, found.results, **options)
    return replace(plan, choices=searched.choices, weighed=searched.weighed)


def _lowered(
    model: ImportedModel,
    view: GraphView,
    dtype: str,
    no_fuse: frozenset[str],
    prepared: dict[tuple[str, int], Array],
) -> Lowering:
    """The graph as steps. UnsupportedModelError with every blocking node."""
    lowering = Lowering(view.model.graph, dtype, no_fuse, prepared)
    lowering.walk()
    lowering.settle_outputs()
    blockers = lowering.blockers or [Blocker(model.name, "the model", reason) for reason in view.unresolved]
    if blockers:
        raise UnsupportedModelError(model.name, summed_up(view.model.graph, blockers))
    merge_steps(lowering, _leaving(lowering))
    return lowering


def _material(
    model: ImportedModel, lowering: Lowering, *, batch: int | None, target: str, dtype: str, choices: Choices
) -> Material:
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
        choices=choices,
    )


def explain(
    model: ImportedModel,
    *,
    target: str,
    dtype: str,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    batch: int = 1,
) -> Plan:
    """The plan for ``shapes``, or for ``batch`` rows where none are given; nothing is run."""
    return make_plan(model, shapes or default_shapes(model, batch), target=target, dtype=dtype)


def _read_on_device(lowering: Lowering) -> set[str]:
    return {source.value for step in lowering.steps for source in step.sources}


def _kernel_inputs(lowering: Lowering, dtype: str) -> list[DeviceTensor]:
    """Graph inputs that a step reads, as the kernel takes them, and what the host makes of others."""
    read = _read_on_device(lowering)
    given = [
        DeviceTensor(value_name(value), lowering.shape(value) or (1,), dtype)
        for value in lowering.graph.inputs
        if value_name(value) in read
    ]
    return given + lowering.prepared_inputs


def _leaving(lowering: Lowering) -> set[str]:
    """Values that leave the device: model outputs, and what boundary nodes read."""
    wanted = {lowering.root(value) for value in lowering.graph.outputs}
    return wanted | {name for node in lowering.host for name in node.inputs}


def _kernel_results(lowering: Lowering, dtype: str) -> list[DeviceTensor]:
    """Results of steps that leave the device."""
    wanted = _leaving(lowering)
    return [DeviceTensor(s.output, s.shape, s.dtype or dtype) for s in lowering.steps if s.output in wanted]


def _heading(model: ImportedModel, target: str, dtype: str, inputs: list[DeviceTensor]) -> list[str]:
    shapes = ", ".join(f"{tensor.name} {tensor.shape}" for tensor in inputs)
    return [
        f"{model.name} as one NKI kernel: {dtype} on {target}.",
        f"Inputs: {shapes or 'none'}. Weights are laid out by the planner; kernels/common.py names the layouts.",
        "Generated by trnrt; edit it as you like.",
    ]


def _assemble(
    model: ImportedModel,
    view: GraphView,
    lowering: Lowering,
    placed: Placed,
    module: KernelModule,
    inputs: list[DeviceTensor],
    results: list[DeviceTensor],
    *,
    target: str,
    dtype: str,
    batch: int | None,
) -> Plan:
    steps = _step_reports(lowering, placed, module, dtype)
    return Plan(
        name=model.name,
        entry=module.entry,
        target=target,
        dtype=dtype,
        batch=batch,
        inputs=tuple(inputs),
        weights=module.cast_weights(dtype),
        results=tuple(results),
        outputs=_outputs(lowering, view.model.graph),
        before=tuple(lowering.before),
        host=tuple(lowering.host),
        constants=lowering.constants,
        steps=steps,
        nodes=node_reports(model, view.notes, _planned_nodes(lowering, steps)),
        notes=(*view.notes, *lowering.notes),
        source=module.source,
        parts=module.parts,
    )


def _step_reports(lowering: Lowering, placed: Placed, module: KernelModule, dtype: str) -> tuple[StepReport, ...]:
    held = lowering.held([step.output for step in lowering.steps])
    return tuple(
        StepReport(
            name=step.name,
            kernel=kernel,
            nodes=tuple(step.nodes),
            output=step.output,
            shape=step.shape,
            place=placed.layout(step.output).place,
            layout=placed.layout(step.output).value,
            reason=placed.reasons[step.output],
            lines=lines,
            sources=tuple(_stored(source.value, placed, module, swept=_is_swept(k, placed)) for source in step.sources),
            holds=held[step.output][0],
            order=held[step.output][1],
            weights=loading[0],
            weights_reason=loading[1],
            options=tuple(sorted(step.tuned.items())),
            offered=tuple(step.tunable().items()),
            identifier=_identifier(step.output, module, swept=_is_swept(k, placed)),
            dtype=step.dtype or dtype,
            images=placed.sweep.images if placed.sweep is not None and _is_swept(k, placed) else 0,
        )
        for k, (step, kernel, lines, loading) in enumerate(
            zip(lowering.steps, module.kernels, module.lines, module.loading, strict=True)
        )
    )


def _is_swept(step: int, placed: Placed) -> bool:
    return placed.sweep is not None and step in placed.sweep


def _identifier(value: str, module: KernelModule, *, swept: bool) -> str:
    """What a step's call names a value."""
    return module.views.get(value, module.identifiers[value]) if swept else module.identifiers[value]


def _stored(value: str, placed: Placed, module: KernelModule, *, swept: bool) -> StoredTensor:
    identifier = _identifier(value, module, swept=swept)
    return StoredTensor(value, identifier, placed.shape(value), placed.layout(value).value)


def _outputs(lowering: Lowering, graph: ir.Graph) -> tuple[PlanOutput, ...]:
    outputs = []
    for value in graph.outputs:
        constant = lowering.constant(value)
        if constant is not None:
            lowering.constants[value_name(value)] = constant
        if lowering.is_list(value):
            outputs.append(PlanOutput(value_name(value), value_name(value), (), np.dtype(object), is_list=True))
            continue
        assert value.dtype is not None
        dtype = np.dtype(object) if value.dtype is ir.DataType.STRING else value.dtype.numpy()
        outputs.append(PlanOutput(value_name(value), lowering.root(value), lowering.shape(value), dtype))
    return tuple(outputs)


def _planned_nodes(lowering: Lowering, steps: tuple[StepReport, ...]) -> dict[str, NodeReport]:
    """Node name -> its report: with the kernel of its step, and why it was not fused where it could have been."""
    kernels = {step.name: step.kernel for step in steps}
    notes = {note.partition(" is not fused")[0]: note for note in lowering.notes if " is not fused" in note}
    reports = {}
    for name, report in lowering.reports.items():
        kept_apart = f"not fused with what comes before: {ASKED}" if name in lowering.no_fuse else ""
        unfused = notes.get(f"{report.op} {name!r}", kept_apart)
        reason = "; ".join(part for part in (report.reason, unfused) if part)
        reports[name] = replace(report, kernel=kernels.get(report.step) if report.step else None, reason=reason)
    return reports


def node_reports(
    model: ImportedModel, notes: tuple[str, ...], reports: Mapping[str, NodeReport]
) -> tuple[NodeReport, ...]:
    """One report for every node of the file, with its operator there: what was planned, and what the clean-up did.

    ``reports`` are those of the nodes that the clean-up left, which did what ``notes`` say.
    """
    planned, found = dict(reports), list[NodeReport]()
    of_steps = {repr(report.name): report for report in planned.values() if report.step}
    first_notes = {name: note for note in reversed(notes) for name in _QUOTED.findall(note)}
    for node in model.model.graph:
        name, op = node_name(node), operator_name(node)
        told = first_notes.get(repr(name), "")
        if name not in planned:
            report = _folded(name, op, told, of_steps)
        else:
            report = planned.pop(name)
            why = [report.reason, told if report.op != op else ""]
            report = replace(report, op=op, reason="; ".join(part for part in why if part))
        found.append(report)
        if report.step:
            of_steps[repr(name)] = report
    return (*found, *planned.values())


def _folded(name: str, op: str, told: str, others: Mapping[str, NodeReport]) -> NodeReport:
    """The report of a node that the clean-up took away: with the step of the node it was merged into, if any.

    ``others`` are reports of nodes in steps, by their quoted names.
    """
    if "made one" in told or "folded into" in told:
        merged = next((others[name] for name in _QUOTED.findall(told) if name in others), None)
        if merged is not None:
            return replace(merged, name=name, op=op, reason=told)
    what, _, nodes = told.partition(": ")
    reason = what if repr(name) in nodes else told  # of a list of nodes this one is enough
    return NodeReport(name, op, None, None, "folded", reason or "constant: computed when the plan was made")

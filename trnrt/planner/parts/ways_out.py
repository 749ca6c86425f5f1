"""Ways out for a model that is refused: where to cut it so that the rest runs, and what a fallback would cost.

Both are tried before they are recommended: the model that a cut leaves is planned, and so are the fallback's parts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from trnrt.errors import OptionError, TrnrtError, UnsupportedModelError
from trnrt.importer import ImportedModel, import_model
from trnrt.planner.checking import unknown
from trnrt.planner.lowering.refusals import is_foreign
from trnrt.planner.lowering.walk import node_name, value_name
from trnrt.planner.options import PlanOptions
from trnrt.planner.parts.cutting import cut, serialize_part, type_open_values
from trnrt.planner.parts.levels import Flow
from trnrt.planner.parts.partitioning import make_partition
from trnrt.planner.plan import Array
from trnrt.text import quote

_TRIES = 4
"""Cuts to try: each may show further nodes that block what it leaves."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Cut:
    """A model that ends before what can't run: its ``outputs``, and the nodes that it keeps of ``nodes``."""

    outputs: tuple[str, ...]
    kept: int
    nodes: int


@dataclass(frozen=True)
class FallbackCost:
    """What ``--fallback onnxruntime`` would take: nodes on the CPU of ``nodes``, and the predicted round trips."""

    on_cpu: int
    nodes: int
    crossings_us: float


def cut_model(model: ImportedModel, names: Sequence[str]) -> tuple[ImportedModel, bytes]:
    """The part of a model, as in its file, that computes the tensors called ``names``; and its content as a file.

    Inputs that it no longer needs are left out.

    Raises:
        OptionError: for a name that no node of the model makes.
        ModelFileError: if the part is too large for one file.
    """
    whole = model.model.clone()
    type_open_values(whole)
    flow = Flow(whole.graph)
    made = {value_name(value): value for node in flow.nodes for value in node.outputs if value.name}
    for name in names:
        if name not in made:
            if made.keys() >= {*name.split(",")}:
                names = name.replace(",", " ")
                raise OptionError(f"--outputs: {quote(name)} is one name", hint=f"write spaces: --outputs {names}")
            raise unknown("--outputs", "computed tensor", name, [*made])
    outputs = [made[name] for name in dict.fromkeys(names)]
    needed = set(flow.inputs_of(_nodes_before(flow, outputs)))
    part = cut(whole, model.name, [value for value in whole.graph.inputs if value in needed], outputs)
    for function in whole.functions.values():
        part.model.functions[function.identifier()] = function
    part.model.metadata_props.update(whole.metadata_props)
    content = serialize_part(part)
    return import_model(content, name=model.name), content


def _nodes_before(flow: Flow, outputs: Sequence[ir.Value]) -> list[ir.Node]:
    """The nodes that ``outputs`` depend on, in the graph's order."""
    wanted = {producer for value in outputs if (producer := value.producer()) is not None}
    found = []
    for node in reversed(flow.nodes):
        if node in wanted:
            found.append(node)
            wanted |= {producer for value in flow.reads[node] if (producer := value.producer()) is not None}
    return found[::-1]


def find_cut(model: ImportedModel, shapes: Shapes, options: PlanOptions, blocked: Collection[str]) -> Cut | None:
    """Where to cut a model before the nodes called ``blocked``; None if nothing would be left that computes."""
    flow = Flow(model.model.graph)
    before = set(blocked)
    for _ in range(_TRIES):
        outputs = _last_values(flow, before)
        if not outputs:
            return None
        try:
            part, _ = cut_model(model, outputs)
            own = {info.name: shapes[info.name] for info in part.inputs}
            partition = make_partition(part, own, replace(options, effort=0, fallback=None))
        except UnsupportedModelError as error:
            found = {blocker.node for blocker in error.blockers} | before
            if found == before:
                return None
            before = found
        except TrnrtError:
            return None
        else:
            computes = any(report.place == "core" for report in partition.nodes)
            return Cut(tuple(outputs), len(part.model.graph), len(flow.nodes)) if computes else None
    return None


def _last_values(flow: Flow, blocked: Collection[str]) -> list[str]:
    """The values before the ``blocked`` nodes: read by one of them, or by what follows them; and the outputs that do
    not depend on them."""
    gone: set[ir.Node] = set()
    for node in flow.nodes:
        if node_name(node) in blocked or any(value.producer() in gone for value in flow.reads[node]):
            gone.add(node)
    if not gone:
        return []
    read = [value for node in flow.nodes if node in gone for value in flow.reads[node]]
    wanted = dict.fromkeys([*read, *flow.graph.outputs])
    made = [value for value in wanted if value.producer() is not None and value.producer() not in gone]
    return [value_name(value) for value in made if _depends_on_input(value, flow)]


def _depends_on_input(value: ir.Value, flow: Flow) -> bool:
    """True if a value is computed from the elements of an input, not from shapes and constants alone."""
    left, seen = [value], set()
    while left:
        one = left.pop()
        if one in seen:
            continue
        seen.add(one)
        node = one.producer()
        if node is None:
            if one.const_value is None:
                return True
        elif node.op_type not in ("Shape", "Size"):
            left += flow.reads[node]
    return False


def fallback_cost(
    model: ImportedModel, shapes: Shapes, options: PlanOptions, values: Mapping[str, Array] | None = None
) -> FallbackCost | None:
    """The cost of the nodes that ``--fallback onnxruntime`` would run; None if that can't be planned either, or if
    onnxruntime doesn't have their operators."""
    if any(is_foreign(node) for node in model.model.graph):
        return None
    try:
        partition = make_partition(model, shapes, replace(options, effort=0, fallback="onnxruntime"), values)
    except (UnsupportedModelError, OptionError):
        return None
    on_cpu = sum(len(part.nodes) for part in partition.cpu_parts)
    return FallbackCost(on_cpu, len(partition.nodes), partition.crossings_us)

"""The fusion graph of a plan for its picture: the ONNX nodes of each step, and the tensors between the steps.

The page places the boxes (``graph.js``), because the number of columns depends on its width. It gets each box's layer
(the longest path to it) and its order in the layer, in which few edges cross.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from trnrt.text import count_text, escape_text, name_text, shape_text

if TYPE_CHECKING:
    from trnrt.nki.profiling import Profile
    from trnrt.planner.plan import NodeReport, Plan, StepReport

Columns = dict[str, Any]

_SWEEPS = 4
"""Passes that order the layers; more change little, even for networks with hundreds of steps."""
_OUTSIDE = {
    "view": "moves nothing",
    "folded": "computed while planning",
    "host": "on the host",
    "core": "in another kernel",
    "dma": "in another kernel",
}


@dataclass
class _Box:
    """An input, a step, or an output of the plan. ``before``: the boxes that it reads, by number."""

    kind: str
    name: str
    before: list[int] = field(default_factory=list)
    layer: int = 0
    order: float = 0.0
    data: Columns = field(default_factory=dict)


def graph_data(plan: Plan, profile: Profile) -> Columns:
    """``boxes`` in the order of the plan, each with its layer and order; ``edges``, pairs of boxes; and ``outside``,
    the nodes that belong to no step. ``step`` of a box is the number of the profile's step, -1 if it has none."""
    boxes = _boxes(plan, {step.name: number for number, step in enumerate(profile.steps)})
    _layer(boxes)
    edges = [(before, number) for number, box in enumerate(boxes) for before in box.before]
    _order(boxes, edges)
    steps = {step.name for step in plan.steps}
    outside = [node for node in plan.nodes if node.step not in steps]
    return {
        "boxes": [
            {"kind": box.kind, "name": name_text(box.name), "layer": box.layer, "order": round(box.order), **box.data}
            for box in boxes
        ],
        "edges": edges,
        "outside": [(name_text(node.name), node.op, _OUTSIDE.get(node.place, node.place)) for node in outside],
    }


def _boxes(plan: Plan, numbers: dict[str, int]) -> list[_Box]:
    """The inputs that a step reads, the steps, and the results."""
    nodes = {node.name: node for node in plan.nodes}
    made: dict[str, int] = {}
    boxes: list[_Box] = []
    for tensor in plan.inputs:
        made[tensor.name] = len(boxes)
        boxes.append(_Box("input", tensor.name, data={"shape": _tensor_text(tensor.shape, tensor.dtype)}))
    for step in plan.steps:
        read = (made.get(source.identifier, made.get(source.name)) for source in step.sources)
        before = list(dict.fromkeys(number for number in read if number is not None))
        for name in (step.identifier, step.output, step.holds):
            made[name] = len(boxes)
        boxes.append(_Box("step", step.name, before, data=_step(step, nodes, numbers)))
    for tensor in plan.results:
        before = [made[tensor.name]] if tensor.name in made else []
        boxes.append(_Box("output", tensor.name, before, data={"shape": _tensor_text(tensor.shape, tensor.dtype)}))
    return boxes


def _step(step: StepReport, nodes: dict[str, NodeReport], numbers: dict[str, int]) -> Columns:
    return {
        "step": numbers.get(step.name, -1),
        "kernel": step.kernel,
        "nodes": [(name_text(name), nodes[name].op if name in nodes else "") for name in step.nodes],
        "shape": _tensor_text(step.shape, step.dtype),
        "place": step.place.upper(),
        "reason": escape_text(step.reason),
    }


def _tensor_text(shape: Sequence[int], dtype: str) -> str:
    return f"{shape_text(shape)} {dtype}".strip()


def _layer(boxes: list[_Box]) -> None:
    """Each box one layer after the last of those that it reads; an input just before its first reader."""
    for box in boxes:
        box.layer = max((boxes[number].layer + 1 for number in box.before), default=0)
    readers: dict[int, list[int]] = defaultdict(list)
    for box in boxes:
        for number in box.before:
            readers[number].append(box.layer)
    for number, box in enumerate(boxes):
        if box.kind == "input" and readers[number]:
            box.layer = max(0, min(readers[number]) - 1)


def _order(boxes: list[_Box], edges: Sequence[tuple[int, int]]) -> None:
    """Order each layer by the mean place of its neighbours, back and forth."""
    layers: dict[int, list[_Box]] = defaultdict(list)
    for box in boxes:
        box.order = len(layers[box.layer])
        layers[box.layer].append(box)
    beside: dict[int, tuple[list[_Box], list[_Box]]] = {id(box): ([], []) for box in boxes}
    for first, second in edges:
        beside[id(boxes[first])][1].append(boxes[second])
        beside[id(boxes[second])][0].append(boxes[first])
    for sweep in range(_SWEEPS):
        for number in sorted(layers, reverse=bool(sweep % 2)):
            layer = layers[number]
            near = {id(box): beside[id(box)][sweep % 2] for box in layer}
            mean = {key: sum(box.order for box in found) / len(found) for key, found in near.items() if found}
            layer.sort(key=lambda box: mean.get(id(box), box.order))
            for place, box in enumerate(layer):
                box.order = place


def _counts_text(graph: Columns) -> str:
    """The numbers of nodes and steps, and of the nodes in no step."""
    steps = [box for box in graph["boxes"] if box["kind"] == "step"]
    nodes = sum(len(box["nodes"]) for box in steps)
    outside = Counter(why for _, _, why in graph["outside"])
    said = [f"{count_text(nodes, 'ONNX node')} in {count_text(len(steps), 'step')}"]
    said += [f"{count_text(count, 'node')} {why}" for why, count in outside.items()]
    return escape("; ".join(said))


def graph_section(graph: Columns | None, before: Columns | None = None) -> str:
    """The section of the picture; "" without a plan. ``before``: the other run's graph."""
    if graph is None:
        return ""
    other = "" if before is None else _counts_text(before)
    return (
        '<section class="card" id="graph-card" aria-labelledby="graph-title"><div class="title">'
        '<h2 id="graph-title">Fusion graph</h2><div class="tools">'
        '<fieldset class="segments" id="graph-choice" hidden><legend class="hidden">Run</legend>'
        '<label><input type="radio" name="graph" value="0" checked><span>Now</span></label>'
        '<label><input type="radio" name="graph" value="1"><span>Before</span></label></fieldset>'
        '<div class="segments" role="group" aria-label="Zoom of the graph">'
        '<button type="button" id="graph-out" aria-label="Zoom out of the graph">&minus;</button>'
        '<button type="button" id="graph-in" aria-label="Zoom into the graph">+</button>'
        '<button type="button" id="graph-fit">Fit</button></div></div></div>'
        f'<p class="help"><span id="graph-now">{_counts_text(graph)}</span>'
        f'<span id="graph-before" hidden>{other}</span>. '
        "A box is a step: one kernel call for the nodes that it lists. "
        "Drag pans, <kbd>Ctrl</kbd> and the wheel zoom, arrow keys go from box to box, <kbd>Enter</kbd> goes to the "
        "step's row. The table of steps has the same.</p>"
        '<div class="split"><div class="stage"><div id="graph" tabindex="-1"></div></div>'
        '<aside class="panel" id="graph-panel" aria-live="polite" aria-label="Step"></aside></div></section>'
    )

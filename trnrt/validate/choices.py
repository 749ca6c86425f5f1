"""Models that choose by the data, as the ends of detectors do: what they choose from is compared, then the choice.

Boxes are in the order of their scores. Where two scores are closer than rounding, onnxruntime may have the boxes in
another order, or another box: no tolerance of an output's elements tells that from a mistake. So the model's outputs
are compared with what onnxruntime chooses from trnrt's own numbers, and these numbers with onnxruntime's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from trnrt.planner.parts.ends import CHOOSING
from trnrt.planner.parts.ways_out import cut_model
from trnrt.running.rows import as_matrix
from trnrt.session import InferenceSession
from trnrt.validate.exposing import load, open_exposed
from trnrt.validate.running import run_onnxruntime

Array = NDArray[Any]
_CHOOSING = CHOOSING | {"ArgMax", "ArgMin", "TopK"}
# Their results depend on a tensor's shape alone.
_OF_SHAPES = ("Shape", "Size")
_FLOATS = (
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.DOUBLE,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
    onnx.TensorProto.UNDEFINED,
)


@dataclass(frozen=True)
class Choice:
    """A model in two: ``front`` makes ``offered``, the tensors that it chooses from, and the outputs that don't depend
    on a choice; ``tail`` chooses, and makes the outputs ``chosen``."""

    front: InferenceSession
    tail: InferenceSession
    offered: tuple[str, ...]
    chosen: tuple[str, ...]

    @property
    def offered_names(self) -> list[str]:
        """The front's outputs."""
        return [info.name for info in self.front.model.outputs]


def split_at_choices(session: InferenceSession) -> Choice | None:
    """The model in two; None if no output depends on a choice, or if it chooses from its inputs only."""
    model = load(session)
    flowing = _find_flowing(model)
    behind = _find_behind(model, flowing)
    outputs = [info.name for info in model.graph.output]
    chosen = [name for name in outputs if name in behind]
    if not chosen:
        return None
    nodes, offered, given = _cut_tail(model, chosen, behind, flowing)
    if not offered:
        return None
    _, front = cut_model(session.model, [*offered, *(name for name in outputs if name not in behind)])
    tail = _tail_model(model, nodes, offered, given, chosen)
    return Choice(_open_like(session, front), _open_like(session, tail.SerializeToString()), offered, tuple(chosen))


def _open_like(session: InferenceSession, content: bytes) -> InferenceSession:
    return InferenceSession(
        content, target=session.target, dtype=session.dtype, fallback=session.options.fallback, cache=False
    )


def _walk(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """A node, and those in its branches and loops."""
    yield node
    for body in _list_bodies(node):
        for inner in body.node:
            yield from _walk(inner)


def _list_bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [
        graph
        for attribute in node.attribute
        for graph in ([attribute.g] if attribute.HasField("g") else attribute.graphs)
    ]


def _list_reads(node: onnx.NodeProto) -> list[str]:
    """The names of the values that a node reads, with those that its branches and loops take from outside."""
    reads = dict.fromkeys(filter(None, node.input))
    for body in _list_bodies(node):
        own = {value.name for value in (*body.input, *body.initializer)}
        own |= {name for inner in body.node for name in inner.output}
        taken = [name for inner in body.node for name in _list_reads(inner)] + [value.name for value in body.output]
        reads |= dict.fromkeys(name for name in taken if name not in own)
    return [*reads]


def _is_choosing(node: onnx.NodeProto) -> bool:
    return node.op_type in _CHOOSING and not node.domain


def _find_flowing(model: onnx.ModelProto) -> set[str]:
    """Values that depend on the inputs' numbers."""
    constant = {tensor.name for tensor in model.graph.initializer}
    flowing = {info.name for info in model.graph.input} - constant
    for node in model.graph.node:
        if node.op_type not in _OF_SHAPES and any(name in flowing for name in _list_reads(node)):
            flowing.update(filter(None, node.output))
    return flowing


def _find_behind(model: onnx.ModelProto, flowing: set[str]) -> set[str]:
    """Values that depend on a choice."""
    behind: set[str] = set()
    for node in model.graph.node:
        reads = _list_reads(node)
        chooses = any(map(_is_choosing, _walk(node))) and any(name in flowing for name in reads)
        if chooses or any(name in behind for name in reads):
            behind.update(filter(None, node.output))
    return behind


def _cut_tail(
    model: onnx.ModelProto, chosen: list[str], behind: set[str], flowing: set[str]
) -> tuple[list[onnx.NodeProto], tuple[str, ...], tuple[str, ...]]:
    """The nodes from the first choices on, the floats that they read from before, and the inputs that they read."""
    kinds = _infer_kinds(model)
    makers = {name: node for node in model.graph.node for name in node.output if name}
    inputs = {info.name for info in model.graph.input}
    offered, given, taken, wanted = list[str](), list[str](), set[int](), list(chosen)
    seen = set(wanted)
    while wanted:
        name = wanted.pop()
        if name in behind or name not in flowing or kinds.get(name, 0) not in _FLOATS:
            if name in makers:
                taken.add(id(makers[name]))
                fresh = [other for other in _list_reads(makers[name]) if other not in seen]
                seen.update(fresh)
                wanted.extend(fresh)
            elif name in inputs:
                given.append(name)
        else:
            (given if name in inputs else offered).append(name)
    return [node for node in model.graph.node if id(node) in taken], tuple(sorted(offered)), tuple(sorted(given))


def _infer_kinds(model: onnx.ModelProto) -> dict[str, int]:
    graph = onnx.shape_inference.infer_shapes(model).graph
    return {info.name: info.type.tensor_type.elem_type for info in (*graph.input, *graph.value_info, *graph.output)}


def _tail_model(
    model: onnx.ModelProto,
    nodes: list[onnx.NodeProto],
    offered: tuple[str, ...],
    given: tuple[str, ...],
    chosen: list[str],
) -> onnx.ModelProto:
    """The tail as a model of its own."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    known = {info.name: info for info in (*inferred.input, *inferred.value_info, *inferred.output)}
    read = {name for node in nodes for name in _list_reads(node)}
    tail = onnx.ModelProto()
    tail.CopyFrom(model)
    tail.graph.ClearField("value_info")
    for field, kept in (
        ("node", nodes),
        ("input", [known[name] for name in (*offered, *given)]),
        ("output", [info for info in model.graph.output if info.name in chosen]),
        ("initializer", [tensor for tensor in model.graph.initializer if tensor.name in read]),
    ):
        copies = [type(item).FromString(item.SerializeToString()) for item in kept]
        tail.graph.ClearField(field)
        getattr(tail.graph, field).extend(copies)
    return tail


def run_exposed(
    session: InferenceSession, choice: Choice, feeds: Mapping[str, Array], examples: Mapping[str, Array]
) -> dict[str, Array]:
    """The session's outputs, and those of the choice's front, from one run of a plan that has both. ``examples``:
    arrays of the same types and ranks as the latter."""
    exposed = open_exposed(session, load(session), examples, cache=False)
    names = [output.name for output in exposed.get_outputs()]
    return dict(zip(names, map(as_matrix, exposed.run(names, feeds)), strict=True))


def choose_from(choice: Choice, feeds: Mapping[str, Array], own: Mapping[str, Array]) -> dict[str, Array]:
    """onnxruntime's choice from our own numbers."""
    return dict(
        zip(choice.chosen, map(as_matrix, run_onnxruntime(choice.tail, tail_feeds(choice, feeds, own))), strict=True)
    )


def tail_feeds(choice: Choice, feeds: Mapping[str, Array], own: Mapping[str, Array]) -> dict[str, Array]:
    """The tail's inputs."""
    return {info.name: own[info.name] if info.name in own else feeds[info.name] for info in choice.tail.model.inputs}


def is_same(one: Array, other: Array) -> bool:
    """True if two arrays have the same numbers, NaN included."""
    return one.shape == other.shape and bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fV"))

"""Passes: the kernel module loops over a batch, some rows at a time.

A batch that doesn't fit SBUF can take longer than its halves in sequence: the extra loads and stores of a spill may
cost more than the larger batch saves. The timing model decides (``searching``). This module says when passes are
possible: no row depends on another, and the graph for fewer rows equals that for the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache

import numpy as np
import onnx_ir as ir

from trnrt.errors import TrnrtError
from trnrt.importer import GraphView, ImportedModel
from trnrt.importer.rows.batching import mixing
from trnrt.planner.lowering.walk import Lowering
from trnrt.planner.plan import Array, DeviceTensor
from trnrt.planner.steps import Step

Fewer = Callable[[int], GraphView | None]
AT_ONCE = 16
"""The largest batch to plan only as a whole: planning its parts, too, would take longer. ResNet-50 on trn1 was the
measure: 16 images ran well in one pass, 32 took half the time in several."""
# Their second input is a shape, which may contain the batch.
_SHAPED = {"Reshape", "Expand"}


def most_fewer(batch: int) -> int:
    """The largest number of rows per pass below ``batch`` (2 or more): a half, if it is even."""
    return next(batch // size for size in range(2, batch + 1) if batch % size == 0)


def fewer_rows(
    model: ImportedModel, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, Array] | None, view: GraphView
) -> Fewer:
    """A function that gives the graph for fewer rows than ``view`` (the graph for ``shapes``), or None if the graph
    differs or if rows depend on each other."""
    data = [name for name in shapes if name not in model.parameters]
    counts = {shapes[name][:1] for name in data}

    @cache
    def has_independent_rows() -> bool:
        (count,) = counts
        return mixing(view.model.graph, data, *count) is None

    @cache
    def fewer(rows: int) -> GraphView | None:
        if not isinstance(model.batch, str) or len(counts) != 1 or () in counts or not has_independent_rows():
            return None
        try:
            part = model.bind({name: (rows, *s[1:]) if name in data else s for name, s in shapes.items()}, values)
        except TrnrtError:
            return None
        return part if part.unresolved == () and _same_graph(view.model.graph, part.model.graph) else None

    return fewer


def _same_graph(whole: ir.Graph, part: ir.Graph) -> bool:
    """True if two graphs differ only in the shapes of their results."""
    nodes = list(whole), list(part)
    return len(nodes[0]) == len(nodes[1]) and all(map(_same_node, *nodes))


def _same_node(one: ir.Node, other: ir.Node) -> bool:
    if (one.name, one.domain, one.op_type) != (other.name, other.domain, other.op_type):
        return False
    if [value.name for value in one.outputs] != [value.name for value in other.outputs]:
        return False
    attributes = [{a.name: a.value for a in node.attributes.values()} for node in (one, other)]
    if attributes[0] != attributes[1] or len(one.inputs) != len(other.inputs):
        return False
    inputs = list(enumerate(zip(one.inputs, other.inputs, strict=True)))
    return all((k == 1 and one.op_type in _SHAPED) or _same_value(*pair) for k, pair in inputs)


def _same_value(one: ir.Value | None, other: ir.Value | None) -> bool:
    if one is None or other is None:
        return one is other
    constants = one.const_value, other.const_value
    if constants[0] is None or constants[1] is None:
        return constants[0] is constants[1] and one.name == other.name
    return constants[0] is constants[1] or _is_part(constants[1].numpy(), constants[0].numpy())


def _is_part(part: Array, whole: Array) -> bool:
    """True if two constants are equal, or if all rows of both are: one that was repeated for the batch."""
    if part.shape == whole.shape:
        return np.array_equal(part, whole)
    if part.shape[1:] != whole.shape[1:] or part.ndim == 0 or not part.size:
        return False
    return bool((part == whole[0]).all() and (whole == whole[0]).all())


def same_steps(whole: Lowering, part: Lowering, batch: int, rows: int) -> bool:
    """True if ``part`` is ``whole`` for fewer rows: rows come first in each tensor, alone or joined with the dimensions
    behind them, and everything else is equal."""

    def of_rows(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0] // batch * rows, *shape[1:]) if shape and shape[0] % batch == 0 else ()

    def same_step(one: Step, other: Step) -> bool:
        sources = zip(one.sources, other.sources, strict=True)
        return (one.name, one.output, of_rows(one.shape)) == (other.name, other.output, other.shape) and all(
            mine.value == its.value
            and its.shape in (of_rows(mine.shape), *([mine.shape] if mine.value in whole.tensors else []))
            for mine, its in sources
        )

    if [len(step.sources) for step in whole.steps] != [len(step.sources) for step in part.steps]:
        return False
    return all(map(same_step, whole.steps, part.steps))


def joined_results(lowering: Lowering, batch: int) -> set[str]:
    """The results that hold an output of the model as it is, with its rows first.

    Each row is one piece of memory, whatever shape the result is stored in. What the host reads, such as the places of
    a search, may be stored in another order.
    """
    outputs = [value for value in lowering.graph.outputs if not lowering.is_on_host(value)]
    return {lowering.root(value) for value in outputs if lowering.shape(value)[:1] == (batch,)}


def same_crossing(
    whole: list[DeviceTensor], part: list[DeviceTensor], batch: int, rows: int, joined: Collection[str] = ()
) -> bool:
    """True if the tensors that cross the boundary are equal, apart from the number of rows. They come first; in those
    that are ``joined`` perhaps as one dimension with others."""

    def of_batch(tensor: DeviceTensor) -> tuple[int, ...]:
        first = tensor.shape[0]
        if tensor.name in joined and first % rows == 0:
            return (first // rows * batch, *tensor.shape[1:])
        return (batch, *tensor.shape[1:]) if first == rows else ()

    of_whole = [(tensor.name, tensor.dtype, tensor.shape) for tensor in whole]
    return [(tensor.name, tensor.dtype, of_batch(tensor)) for tensor in part] == of_whole

"""How often a Loop runs, if that does not depend on the model's inputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from trnrt.importer.values import constant_array, input_at, opset_of

MOST_TRIPS = 1024
# The file is untrusted: only these compute a condition, from values of a few elements.
_COUNTING = frozenset(
    """Add And Cast CastLike Constant Equal Gather Greater GreaterOrEqual Identity Less LessOrEqual Mul Neg Not Or
    Reshape Squeeze Sub Unsqueeze""".split()  # noqa: SIM905
)
_MOST_ELEMENTS = 64
_MOST_NODES = 100

Array = npt.NDArray[Any]


class _Unknown(Exception):
    """Raised if a value depends on the model's inputs, or takes more than counting."""


def count_trips(loop: ir.Node) -> int | None:
    """The trips of a Loop; None if they are not known, or more than MOST_TRIPS."""
    most, start = input_at(loop, 0), input_at(loop, 1)
    limit, going = constant_array(most), constant_array(start)
    if (most is not None and limit is None) or (start is not None and going is None):
        return None
    if going is not None and not going.all():
        return 0
    trips = MOST_TRIPS + 1 if limit is None else max(0, int(limit.reshape(-1)[0]))
    try:
        trips = _count(loop, min(trips, MOST_TRIPS + 1))
    except _Unknown:
        return None
    return trips if trips <= MOST_TRIPS else None


def _count(loop: ir.Node, most: int) -> int:
    """The trips, at most ``most``: those until the body's condition is false."""
    body = loop.attributes["body"].as_graph()
    counter, going, *states = body.inputs
    after = dict(zip(states, body.outputs[1:], strict=False))
    firsts = dict(zip(states, loop.inputs[2:], strict=False))
    needed = _inputs_behind([body.outputs[0]], body.inputs)
    while more := _inputs_behind([after[value] for value in needed if value in after], body.inputs) - needed:
        needed |= more
    needed.discard(going)  # always true within the body
    known = {value: _small(constant_array(firsts[value])) for value in needed if value in firsts}
    evaluator = _Evaluator(body.opset_imports or {"": opset_of(loop)})
    for trip in range(most):
        given = {counter: np.array(trip, np.int64), going: np.array(True), **known}
        if not evaluator.value(body.outputs[0], given).all():
            return trip + 1
        if not needed:
            return most
        known = {value: evaluator.value(after[value], given) for value in known}
    return most


def _inputs_behind(values: Iterable[ir.Value], inputs: Iterable[ir.Value]) -> set[ir.Value]:
    """Those of a body's ``inputs`` that the values depend on. Unknown if that takes too many nodes."""
    wanted, seen, places = list(values), set[ir.Value](), set(inputs)
    while wanted:
        value = wanted.pop()
        if value in seen:
            continue
        seen.add(value)
        if len(seen) > _MOST_NODES:
            raise _Unknown
        node = value.producer()
        wanted += [] if node is None else [read for read in node.inputs if read is not None]
    return seen & places


def _small(array: Array | None) -> Array:
    if array is None or array.size > _MOST_ELEMENTS:
        raise _Unknown
    return array


class _Evaluator:
    """Computes values of a body from those that are known, by ONNX's reference."""

    def __init__(self, opsets: dict[str, int]) -> None:
        self._opsets = dict(opsets)
        self._nodes: dict[ir.Node, ReferenceEvaluator] = {}

    def value(self, value: ir.Value, known: dict[ir.Value, Array]) -> Array:
        """The value's array; it joins ``known``. Unknown if it isn't computed from these and constants alone."""
        if value in known:
            return known[value]
        node = value.producer()
        if value.const_value is not None or node is None:
            return _small(constant_array(value))
        if node.domain or node.op_type not in _COUNTING or len(node.outputs) != 1:
            raise _Unknown
        feeds = {str(read.name): self.value(read, known) for read in node.inputs if read is not None}
        if node not in self._nodes:
            self._nodes[node] = ReferenceEvaluator(ir.to_proto(node), opsets=self._opsets)
        known[value] = _small(np.asarray(self._nodes[node].run(None, feeds)[0]))
        return known[value]

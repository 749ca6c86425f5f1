"""The meaning of an output's numbers by the model's graph: probabilities, or scores that need a softmax."""

from __future__ import annotations

from typing import Any, Literal

from trnrt.importer import ImportedModel

Kind = Literal["softmax", "sigmoid", "scores"]
"""By the last operator: a softmax over the classes, a sigmoid of each class by itself, or numbers without bounds."""

_SAME_NUMBERS = frozenset({"Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Dropout"})
"""Operators that change no number, at most its place or dtype."""
_KINDS: dict[str, Kind] = {
    "Softmax": "softmax",
    "Sigmoid": "sigmoid",
    "HardSigmoid": "sigmoid",
    # The softmax of these is a distribution; of LogSoftmax it is the one that it is the logarithm of.
    "LogSoftmax": "scores",
    "Gemm": "scores",
    "MatMul": "scores",
    "Conv": "scores",
}
_BIASED = frozenset({"Gemm", "MatMul", "Conv"})


def score_kinds(model: ImportedModel) -> dict[str, Kind]:
    """The kind of each output whose graph tells it; others, such as a quotient or a mean, may be either."""
    kinds = {output.name: _kind_of(output) for output in model.model.graph.outputs}
    return {str(name): kind for name, kind in kinds.items() if kind is not None}


def _kind_of(value: Any) -> Kind | None:
    node = _maker(value)
    if node is None or node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "Add":  # of a bias
        makers = [_maker(one) for one in node.inputs if one is not None and one.const_value is None]
        is_product = len(makers) == 1 and makers[0] is not None and makers[0].op_type in _BIASED
        return "scores" if is_product else None
    kind = _KINDS.get(node.op_type)
    return None if kind == "softmax" and not _is_over_classes(node) else kind


def _maker(value: Any) -> Any:
    """The node that computes a value's numbers; None for an input or a constant."""
    node = value.producer()
    while node is not None and node.op_type in _SAME_NUMBERS and node.domain in ("", "ai.onnx"):
        node = node.inputs[0].producer()
    return node


def _is_over_classes(node: Any) -> bool:
    """True if a softmax's rows are those of the batch: its axis is not the first one."""
    axis = node.attributes.get("axis")
    return axis is None or axis.as_int() != 0

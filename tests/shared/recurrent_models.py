"""Models of one LSTM, GRU or RNN node, and their comparison with onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import trnrt

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
Array = np.ndarray[Any, np.dtype[Any]]


def recurrent_model(
    op: str,
    *,
    steps: int = 6,
    rows: int = 2,
    features: int = 5,
    hidden: int = 9,
    direction: str = "forward",
    with_bias: bool = True,
    states: bool = False,
    lengths: list[int] | None = None,
    peepholes: bool = False,
    outputs: str = "all",
    computed_states: bool = False,
    seed: int = 0,
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one node, and its inputs. ``outputs``: all, last (only the last hidden state) or sequence."""
    rng = np.random.default_rng(seed)
    count, is_first = 2 if direction == "bidirectional" else 1, bool(attributes.get("layout"))
    scale = 1 / np.sqrt(hidden)

    def draw(*shape: int) -> Array:
        drawn: Array = (rng.standard_normal(shape) * scale).astype(np.float32)
        return drawn

    state = (rows, count, hidden) if is_first else (count, rows, hidden)
    constants = {"w": draw(count, GATES[op] * hidden, features), "r": draw(count, GATES[op] * hidden, hidden)}
    constants |= {"b": draw(count, 2 * GATES[op] * hidden)} if with_bias else {}
    constants |= {"lengths": np.array(lengths, np.int32)} if lengths else {}
    feeds = {"x": draw(rows, steps, features) if is_first else draw(steps, rows, features)}
    given = {"h": draw(*state)} | ({"c": draw(*state)} if op == "LSTM" else {}) if states else {}
    constants |= {"p": draw(count, 3 * hidden)} if peepholes else {}
    (feeds if computed_states else constants).update(given)
    places = ["x", "w", "r", "b", "lengths", "h", "c", "p"][: 8 if op == "LSTM" else 6]
    names = [name if name in constants or name in feeds else "" for name in places]
    sequence = [rows, steps, count, hidden] if is_first else [steps, count, rows, hidden]
    results = {"y": sequence, "yh": list(state)} | ({"yc": list(state)} if op == "LSTM" else {})
    kept = {"all": list(results), "last": ["yh"], "sequence": ["y"]}[outputs]
    made = [name if name in kept else "" for name in results]
    node = helper.make_node(op, _trimmed(names), made, direction=direction, hidden_size=hidden, **attributes)
    return _model_of(node, feeds, {name: results[name] for name in kept}, constants), feeds


def _trimmed(names: list[str]) -> list[str]:
    """Without empty names at the end."""
    while not names[-1]:
        names.pop()
    return names


def _model_of(
    node: onnx.NodeProto, feeds: dict[str, Array], results: dict[str, list[int]], constants: dict[str, Array]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        [node],
        "recurrent",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in feeds.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in results.items()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check_model(model: onnx.ModelProto, feeds: dict[str, Array], dtype: str = "float32", *, most: float = 2e-6) -> None:
    """All outputs are onnxruntime's, and aren't all alike."""
    onnx.checker.check_model(model, full_check=True)
    content = model.SerializeToString()
    if any(attribute.name == "layout" and attribute.i for attribute in model.graph.node[0].attribute):
        content, feeds_of_truth, turn = turned(model, feeds)
        expected = [turn(array) for array in onnxruntime.InferenceSession(content).run(None, feeds_of_truth)]
    else:
        expected = onnxruntime.InferenceSession(content).run(None, feeds)
    session = trnrt.InferenceSession(model.SerializeToString(), dtype=dtype, cache=False)
    for mine, theirs in zip(session.run(None, feeds), expected, strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype) and np.ptp(theirs) > 0.02
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=most)


def turned(model: onnx.ModelProto, feeds: dict[str, Array]) -> tuple[bytes, dict[str, Array], Any]:
    """A model of layout 1, which onnxruntime doesn't run, in layout 0; and how its results become those of layout 1."""
    other = onnx.ModelProto.FromString(model.SerializeToString())
    node = other.graph.node[0]
    node.attribute.remove(next(attribute for attribute in node.attribute if attribute.name == "layout"))
    for tensor in other.graph.initializer:
        if tensor.name in ("h", "c"):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).swapaxes(0, 1), tensor.name))
    for info in [*other.graph.input, *other.graph.output]:
        dims = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        dims = [dims[1], dims[2], dims[0], dims[3]] if len(dims) == 4 else [dims[1], dims[0], dims[2]]
        info.CopyFrom(helper.make_tensor_value_info(info.name, TensorProto.FLOAT, dims))
    moved = {name: np.ascontiguousarray(array.swapaxes(0, 1)) for name, array in feeds.items()}
    return (
        other.SerializeToString(),
        moved,
        lambda array: array.transpose(2, 0, 1, 3) if array.ndim == 4 else array.swapaxes(0, 1),
    )

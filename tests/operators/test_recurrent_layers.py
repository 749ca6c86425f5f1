"""LSTM, GRU and RNN nodes against onnxruntime: directions, layouts, optional inputs, lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import trnrt
from trnrt.errors import UnsupportedModelError

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


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "without bias": {"with_bias": False},
    "reverse": {"direction": "reverse"},
    "both": {"direction": "bidirectional"},
    "states": {"states": True},
    "computed states": {"states": True, "computed_states": True, "direction": "bidirectional"},
    "lengths": {"lengths": [6, 3], "direction": "bidirectional"},
    "full lengths": {"lengths": [6, 6]},
    "batch first": {"layout": 1},
    "batch first, both": {"layout": 1, "direction": "bidirectional", "states": True},
    "last state": {"outputs": "last"},
    "sequence": {"outputs": "sequence", "direction": "bidirectional"},
    "clip": {"clip": 0.2},
    "wide": {"hidden": 150, "features": 140, "rows": 3},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("op", GATES)
def test_nodes(op: str, case: str) -> None:
    check_model(*recurrent_model(op, **CASES[case]))


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("GRU", {"linear_before_reset": 1}),
        ("GRU", {"linear_before_reset": 1, "direction": "bidirectional", "with_bias": False}),
        ("LSTM", {"peepholes": True}),
        ("LSTM", {"input_forget": 1}),
        ("LSTM", {"peepholes": True, "input_forget": 1, "clip": 0.3, "direction": "bidirectional"}),
        ("RNN", {"activations": ["Relu"]}),
        ("LSTM", {"activations": ["Sigmoid", "Relu", "Relu"]}),
        ("GRU", {"activations": ["Tanh", "Sigmoid"] * 2, "direction": "bidirectional"}),
    ],
)
def test_attributes(op: str, attributes: dict[str, Any]) -> None:
    check_model(*recurrent_model(op, **attributes))


@pytest.mark.parametrize("op", GATES)
def test_weights_that_are_inputs(op: str) -> None:
    options: dict[str, Any] = {"linear_before_reset": 1} if op == "GRU" else {"peepholes": op == "LSTM"}
    model, feeds = recurrent_model(op, direction="bidirectional", **options)
    for tensor in list(model.graph.initializer):
        model.graph.initializer.remove(tensor)
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, tensor.dims))
        feeds[tensor.name] = numpy_helper.to_array(tensor)
    check_model(model, feeds)


@pytest.mark.parametrize("op", GATES)
def test_any_batch(op: str) -> None:
    """A batch of any size, whose rows don't depend on each other: the session pads it to a bucket."""
    model, feeds = recurrent_model(op, rows=5, direction="bidirectional")
    for info in [*model.graph.input, *model.graph.output]:
        dims = info.type.tensor_type.shape.dim
        dims[len(dims) - 2].dim_param = "batch"
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    session = trnrt.InferenceSession(model.SerializeToString(), cache=False)
    for mine, theirs in zip(session.run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("dtype", "most"), [("bfloat16", 0.02), ("float16", 0.003)])
@pytest.mark.parametrize("op", GATES)
def test_short_dtypes(op: str, dtype: str, most: float) -> None:
    check_model(*recurrent_model(op, direction="bidirectional", lengths=[4, 6]), dtype, most=most)


@pytest.mark.parametrize(
    ("op", "options", "why"),
    [
        ("RNN", {"activations": ["Softsign"]}, "the activation 'softsign'"),
        ("RNN", {"activations": ["Relu", "Tanh"], "direction": "bidirectional"}, "different activations"),
        ("LSTM", {"hidden": 1100, "steps": 1}, "up to 131,072 stay in SBUF"),
        ("LSTM", {"activations": ["Relu", "Tanh", "Tanh"], "input_forget": 1}, "input_forget=1 with the activation"),
    ],
)
def test_refusals(op: str, options: dict[str, Any], why: str) -> None:
    model, feeds = recurrent_model(op, **options)
    with pytest.raises(UnsupportedModelError, match=why):
        trnrt.InferenceSession(model.SerializeToString(), cache=False).run(None, feeds)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_random_nodes(data: st.DataObject) -> None:
    steps, rows = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 4))
    lengths = data.draw(st.none() | st.lists(st.integers(1, steps), min_size=rows, max_size=rows))
    op = data.draw(st.sampled_from(sorted(GATES)))
    options: dict[str, Any] = {"linear_before_reset": data.draw(st.integers(0, 1))} if op == "GRU" else {}
    model, feeds = recurrent_model(
        op,
        steps=steps,
        rows=rows,
        features=data.draw(st.sampled_from([1, 3, 130])),
        hidden=data.draw(st.sampled_from([2, 31, 128, 130])),
        direction=data.draw(st.sampled_from(["forward", "reverse", "bidirectional"])),
        with_bias=data.draw(st.booleans()),
        states=data.draw(st.booleans()),
        lengths=lengths,
        seed=data.draw(st.integers(0, 99)),
        **options,
    )
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    session = trnrt.InferenceSession(model.SerializeToString(), cache=False)
    for mine, theirs in zip(session.run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=3e-6)

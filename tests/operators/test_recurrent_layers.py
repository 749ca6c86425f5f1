"""LSTM, GRU and RNN nodes against onnxruntime: directions, layouts, optional inputs, lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from recurrent_models import GATES, check_model, recurrent_model

import trnrt
from trnrt.errors import UnsupportedModelError

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

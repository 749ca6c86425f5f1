"""Weights that are stored as integers run as the floats that the file says they are; nothing else quantised does."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import trnrt
from trnrt.errors import UnsupportedModelError
from trnrt.validate import validate

Array = np.ndarray[Any, np.dtype[Any]]
RANDOM = np.random.default_rng(0)


def layer(whole: onnx.TensorProto, scale: Array, zero: onnx.TensorProto | None, **attributes: int) -> bytes:
    """A MatMul whose (6, 4) weights are dequantised."""
    constants = [whole, numpy_helper.from_array(scale, "s"), *([zero] if zero else [])]
    nodes = [
        helper.make_node("DequantizeLinear", ["k", "s", *(["z"] if zero else [])], ["w"], **attributes),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", size]) for n, size in (("x", 6), ("y", 4))]
    graph = helper.make_graph(nodes, "layer", ends[:1], ends[1:], constants)
    model: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    ).SerializeToString()
    return model


def stored(array: Array, kind: int = TensorProto.INT8, name: str = "k") -> onnx.TensorProto:
    return helper.make_tensor(name, kind, array.shape, array.reshape(-1).tolist())


WHOLE = RANDOM.integers(-8, 8, (6, 4))
COLUMNS, ROWS = np.linspace(0.01, 0.1, 4, dtype=np.float32), np.linspace(0.01, 0.1, 6, dtype=np.float32)
BLOCKS = RANDOM.uniform(0.01, 0.1, (2, 4)).astype(np.float32)


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        (layer(stored(WHOLE), np.array(0.5, np.float32), None), WHOLE * 0.5),
        (layer(stored(WHOLE), COLUMNS, stored(np.arange(4), name="z")), (WHOLE - np.arange(4)) * COLUMNS),
        (layer(stored(WHOLE), ROWS, None, axis=-2), WHOLE * ROWS[:, None]),
        (layer(stored(WHOLE, TensorProto.INT4), COLUMNS, None, axis=1), WHOLE * COLUMNS),
        (layer(stored(WHOLE), BLOCKS, None, axis=0, block_size=4), WHOLE * BLOCKS.repeat(4, 0)[:6]),
    ],
)
def test_quantised_weights_are_made_floats_once(model: bytes, weights: Array) -> None:
    session = trnrt.InferenceSession(model)
    feeds = {"x": RANDOM.standard_normal((3, 6)).astype(np.float32)}
    (made,) = session.run(None, feeds)
    np.testing.assert_allclose(made, feeds["x"] @ weights.astype(np.float32), rtol=1e-5, atol=1e-6)
    # onnxruntime left to itself would round x to 8 bits, too, and be 2 % off.
    assert validate(session, feeds).passed
    assert session.last_run.plan is not None and len(session.last_run.plan.steps) == 1


@pytest.mark.parametrize(("kind", "domain"), [("float32", "com.microsoft"), ("float16", ""), (ml_dtypes.bfloat16, "")])
def test_scales_of_16_bits_and_onnxruntimes_own_operator(kind: Any, domain: str) -> None:
    scale = COLUMNS.astype(kind)
    proto = onnx.load_from_string(layer(stored(WHOLE), scale, None))
    proto.graph.node[0].domain = domain
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    for info in (*proto.graph.input, *proto.graph.output):
        info.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(scale.dtype)
    x = RANDOM.standard_normal((3, 6)).astype(kind)
    (made,) = trnrt.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    weights = (WHOLE * scale.astype(np.float32)).astype(kind).astype(np.float32)
    expected = x.astype(np.float32) @ weights
    assert made.dtype == scale.dtype
    np.testing.assert_allclose(made.astype(np.float32), expected, rtol=1e-5 if kind == "float32" else 0.02, atol=0.02)


@pytest.mark.parametrize(
    "model",
    [
        layer(stored(WHOLE), COLUMNS[:3], None),
        layer(stored(WHOLE), COLUMNS, None, axis=2),
        layer(stored(WHOLE), BLOCKS, None, axis=0, block_size=2),
    ],
)
def test_constants_that_do_not_fit_together_are_left_alone(model: bytes) -> None:
    with pytest.raises(UnsupportedModelError, match="quantised"):
        trnrt.InferenceSession(model).run(None, {"x": np.zeros((1, 6), np.float32)})

"""``trnrt.interfaces.onnx_backend``: onnx's own interface, over a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper
from onnx.backend.base import Backend, BackendRep

from trnrt.errors import InputError, ModelFileError, OptionError, UnsupportedModelError
from trnrt.interfaces import onnx_backend

TWO = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,3] x, float[3] z) => (float[N,3] total, float[N,3] larger)
{ total = Add(x, z)  larger = Max(x, z) }"""
X, Z = np.array([[1, -2, 3]], np.float32), np.array([0, 1, 2], np.float32)


def model(text: str = TWO) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def test_it_is_a_backend_of_onnx() -> None:
    assert issubclass(onnx_backend.TrnrtBackend, Backend)
    assert issubclass(onnx_backend.TrnrtRep, BackendRep)


def test_prepare_and_run() -> None:
    prepared = onnx_backend.prepare(model())
    for inputs in ([X, Z], (X, Z), {"z": Z, "x": X}):
        outputs: Any = prepared.run(inputs)
        np.testing.assert_array_equal(outputs[0], X + Z)
        np.testing.assert_array_equal(outputs["larger"], np.maximum(X, Z))
    longer: Any = prepared.run([X.repeat(4, 0), Z])
    np.testing.assert_array_equal(longer.total, X.repeat(4, 0) + Z)


def test_one_array_for_a_model_of_one_input() -> None:
    one = model('<ir_version: 8, opset_import: ["" : 17]> g (float[N,3] x) => (float[N,3] y) { y = Relu(x) }')
    np.testing.assert_array_equal(onnx_backend.run_model(one, X)[0], np.maximum(X, 0))


def test_options_are_those_of_a_session() -> None:
    prepared = onnx_backend.prepare(model(), target="trn1", dtype="bfloat16")
    assert (prepared.session.target, prepared.session.dtype) == ("trn1", "bfloat16")
    with pytest.raises(OptionError, match="unknown option 'threads'"):
        onnx_backend.prepare(model(), threads=3)


def test_devices() -> None:
    assert onnx_backend.supports_device("CPU") and onnx_backend.supports_device("CPU:0")
    assert not onnx_backend.supports_device("CUDA")
    with pytest.raises(OptionError, match="unknown device 'CUDA'"):
        onnx_backend.prepare(model(), "CUDA")


def test_too_few_inputs() -> None:
    with pytest.raises(InputError, match="1 inputs were given; the model has 2: x, z"):
        onnx_backend.prepare(model()).run([X])


def test_is_compatible() -> None:
    hardmax = """<ir_version: 8, opset_import: ["" : 17]> g (float[3,2] x) => (float[3,2] y) { y = Hardmax(x) }"""
    assert onnx_backend.is_compatible(model())
    assert not onnx_backend.is_compatible(model(hardmax))
    broken = model()
    broken.graph.node[0].input[0] = "nothing"
    assert not onnx_backend.is_compatible(broken)
    assert onnx_backend.is_compatible(model(hardmax), fallback="onnxruntime")
    # What needs a value or a shape that is still to come can't be told.
    reshape = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x, int64[1] s) => (float[6] y) { y = Reshape(x, s) }'
    )
    assert onnx_backend.is_compatible(model(reshape))


def test_errors_are_ours() -> None:
    with pytest.raises(ModelFileError):
        onnx_backend.prepare(onnx.ModelProto())
    with pytest.raises(UnsupportedModelError):
        onnx_backend.run_node(helper.make_node("NonZero", ["x"], ["y"]), [X])


def test_run_node() -> None:
    node = helper.make_node("LeakyRelu", ["x"], ["y"], alpha=0.5)
    np.testing.assert_array_equal(onnx_backend.run_node(node, [X])[0], np.where(X < 0, X * 0.5, X))
    clip = helper.make_node("Clip", ["x", "", "high"], ["y"])
    np.testing.assert_array_equal(onnx_backend.run_node(clip, [X, np.float32(2)])[0], np.minimum(X, 2))
    split = helper.make_node("Split", ["x"], ["a", "b", "c"], axis=1)
    assert [part.shape for part in onnx_backend.run_node(split, [X], opset_version=11)] == [(1, 1)] * 3
    info = [(np.dtype(np.float32), (1, 3))]
    np.testing.assert_array_equal(onnx_backend.run_node(node, [X], outputs_info=info)[0], np.where(X < 0, X / 2, X))
    with pytest.raises(InputError, match="2 inputs were given; the node names 1: x"):
        onnx_backend.run_node(node, [X, X])


def test_the_two_names_are_two_things() -> None:
    """``trnrt.interfaces.onnx_backend`` is onnx's interface, ``trnrt.backends`` what runs kernels."""
    import trnrt.backends

    assert Path(onnx_backend.__file__ or "").name == "onnx_backend.py"
    assert hasattr(trnrt.backends, "Backend")

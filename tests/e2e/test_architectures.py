"""Architectures that users export today, by both of PyTorch's exporters and as tf2onnx does, with random weights.

The graphs are those of models/architectures.py, which says what they are; each is compared with onnxruntime.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper
from randomizing import FLOATS, random_feeds, randomized
from whole_models import Array, Comparison, compared, reference

import trnrt

GRAPHS = Path(__file__).parents[1] / "data" / "architectures"
NETS = (
    "lenet5",
    "resnet18",
    "vgg11_bn",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "efficientnet_b0",
    "unet",
    "mixer",
    "convnext",
    "conv1d",
)
NAMES = [f"{net}_{exporter}" for net in NETS for exporter in ("dynamo", "torchscript")] + ["keras_style"]


@cache
def load(name: str) -> onnx.ModelProto:
    """The graph of that name, with weights. Drawing them takes longer than most tests: whoever changes it copies it."""
    return randomized(onnx.load(GRAPHS / f"{name}.onnx"))


@pytest.fixture(scope="module", params=NAMES)
def architecture(request: pytest.FixtureRequest) -> onnx.ModelProto:
    """Each graph: the tests of one are neighbours."""
    return load(request.param)


def test_every_graph_is_small_and_tested() -> None:
    files = sorted(GRAPHS.iterdir())
    assert sorted(path.stem for path in files) == sorted(NAMES)
    assert sum(path.stat().st_size for path in files) < 500_000


def test_random_weights_let_something_through(architecture: onnx.ModelProto) -> None:
    """Outputs that are all the same, huge, or the same for every input would prove nothing."""
    outputs = np.stack([reference(architecture, random_feeds(architecture, seed=seed)) for seed in (1, 2)])
    assert np.abs(outputs).max() < 50
    assert len(np.unique(outputs)) > outputs.size * 0.9
    assert outputs.std() > 0.01
    assert np.abs(outputs[0] - outputs[1]).max() > 0.02 * np.abs(outputs).max()


def test_architecture(architecture: onnx.ModelProto) -> None:
    compared(architecture, random_feeds(architecture, seed=1)).check()


@pytest.mark.parametrize("name", ["lenet5_dynamo", "mobilenet_v3_small_torchscript", "conv1d_dynamo", "keras_style"])
def test_three_rows(name: str) -> None:
    model = load(name)
    compared(model, random_feeds(model, batch=3, seed=2)).check()


@pytest.mark.parametrize("target", ["trn1", "trn3"])
def test_other_targets(target: str) -> None:
    model = load("mobilenet_v2_dynamo")
    compared(model, random_feeds(model, seed=3), target=target).check()


@pytest.mark.parametrize("name", ["lenet5_dynamo", "keras_style", "resnet18_torchscript"])
def test_bfloat16(name: str) -> None:
    """Within 2 % of each number, or 1 % of the largest."""
    model = load(name)
    found = compared(model, random_feeds(model, batch=4, seed=1), dtype="bfloat16")
    found.check(rtol=2e-2, atol=1e-2)
    assert found.worst > 1e-4, "nothing was rounded to 16 bits"


def half(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` stored in float16: weights, constants, inputs and outputs."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    constants = [a.t for node in made.graph.node if node.op_type == "Constant" for a in node.attribute]
    for tensor in (*made.graph.initializer, *constants):
        if tensor.data_type in FLOATS:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return made


@pytest.mark.parametrize("name", ["lenet5_torchscript", "mobilenet_v2_torchscript"])
def test_stored_in_float16(name: str) -> None:
    """Computed in float32 of the weights as they are stored; only the result is rounded."""
    model = load(name)
    feeds = {name: array.astype(np.float16) for name, array in random_feeds(model, seed=1).items()}
    stored = half(model)
    session = trnrt.InferenceSession(stored.SerializeToString(), backend="simulator", cache=False)
    (ours,) = session.run(None, feeds)
    assert ours.dtype == np.float16 and session.get_inputs()[0].type == "tensor(float16)"
    widened = onnx.ModelProto.FromString(model.SerializeToString())
    for wide, narrow in zip(widened.graph.initializer, stored.graph.initializer, strict=True):
        if narrow.data_type == TensorProto.FLOAT16:
            wide.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(narrow).astype(np.float32), narrow.name))
    exact = reference(widened, {name: array.astype(np.float32) for name, array in feeds.items()})
    assert session.last_run.plan is not None
    Comparison(ours, exact, session.last_run.plan).check(atol=1e-4)


def test_transposes_of_a_channels_last_graph_cancel() -> None:
    """All but the one that brings the model's own input, which is channels last, to the order of a convolution."""
    model = load("keras_style")
    plan = trnrt.InferenceSession(model.SerializeToString(), backend="simulator", cache=False).plan(1)
    transposes = [node for node in plan.nodes if node.op == "Transpose"]
    assert len(transposes) == 18
    moving = [node.name for node in transposes if node.place not in ("view", "folded") or node.step is not None]
    assert moving in ([], ["model/conv1__1"])
    assert [step.name for step in plan.steps if "transpose" in step.kernel] in ([], ["model/conv1__1.copy"])


def test_a_quantized_model_is_refused(tmp_path: Path) -> None:
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """Two rows to calibrate with."""

        def __init__(self, rows: list[dict[str, Array]]) -> None:
            self.rows = iter(rows)

        def get_next(self) -> dict[str, Array] | None:
            """The next row."""
            return next(self.rows, None)

    model = load("lenet5_dynamo")
    path, quantized = tmp_path / "lenet5.onnx", tmp_path / "quantized.onnx"
    onnx.save(model, path)
    quantize_static(path, quantized, Reader([random_feeds(model, seed=seed) for seed in (1, 2)]))
    assert "QuantizeLinear" in {node.op_type for node in onnx.load(quantized).graph.node}
    feeds = random_feeds(model, seed=3)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    expected = onnxruntime.InferenceSession(quantized, options, providers=["CPUExecutionProvider"]).run(None, feeds)
    session = trnrt.InferenceSession(quantized, backend="simulator", cache=False)
    for ours, theirs in zip(session.run(None, feeds), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)

"""The integer meaning of quantised models: against ONNX's own cases, against onnxruntime, and with mistakes planted."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

import trnrt
from trnrt.validate import validate
from trnrt.validate.integers import Evaluator, comparing, has_integers
from trnrt.validate.integers.sums import convolve

Array = NDArray[Any]
MODELS = Path(__file__).parents[2] / "models"
OPERATORS = ("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear")


def quantised(path: Path, how: str) -> tuple[Path, Array]:
    """The sample CNN as onnxruntime's quantiser writes it, and a few digits."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static

    source = MODELS / "digits_cnn.onnx"
    (name,) = [info.name for info in onnx.load(source).graph.input]
    stored = np.load(MODELS / "digits_test.npz")
    x = next(stored[key] for key in stored.files if stored[key].ndim > 1).astype(np.float32)[:8]

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rows = iter([{name: x}])

        def get_next(self) -> dict[str, Array] | None:
            return next(self.rows, None)

    made = path / f"{how}.onnx"
    if how == "dynamic":
        quantize_dynamic(source, made)
    else:
        form = QuantFormat["QDQ" if how == "channels last" else how]
        quantize_static(source, made, Reader(), quant_format=form, per_channel=True)
    if how == "channels last":
        save_optimised(made)
    return made, x


def save_optimised(path: Path) -> None:
    """Put the model as onnxruntime optimises it at the level all in its place: channels come last there."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    convolutions = [node for node in onnx.load(path).graph.node if node.op_type == "QLinearConv"]
    assert convolutions and {node.domain for node in convolutions} == {"com.microsoft"}


@pytest.mark.parametrize("how", ["QDQ", "QOperator", "dynamic", "channels last"])
def test_a_quantised_model_is_its_integers(tmp_path: Path, how: str) -> None:
    path, x = quantised(tmp_path, how)
    session = trnrt.InferenceSession(path, cache=False)
    (info,) = session.get_inputs()
    report = validate(session, {info.name: x}, every_integer=True)
    assert report.passed and report.tolerances == "integers"
    assert report.integers is not None
    assert report.integers.compared >= 3 and not report.integers.layers and not report.integers.own_elements


def test_outputs_that_are_scalars() -> None:
    """A scale and a zero point, which have no rows."""
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[3,4] x) => (uint8[3,4] y, float s, uint8 z)
        { y, s, z = DynamicQuantizeLinear(x) }"""
    session = trnrt.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    assert validate(session, {"x": x}).passed


def test_a_wrong_weight_shows_in_its_own_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, x = quantised(tmp_path, "QDQ")
    session = trnrt.InferenceSession(path, cache=False)
    model = onnx.load(path)
    weights = max(
        (t for t in model.graph.initializer if t.data_type == onnx.TensorProto.INT8), key=lambda t: len(t.dims)
    )
    numbers = numpy_helper.to_array(weights).copy()
    numbers[0] = -numbers[0]
    weights.CopyFrom(numpy_helper.from_array(numbers, weights.name))
    # The file that is evaluated has other weights than the one that runs.
    opened = comparing._open_exposed
    right = onnx.load(path)
    monkeypatch.setattr(comparing, "load", lambda session: model)
    monkeypatch.setattr(comparing, "_open_exposed", lambda session, _, tensors: opened(session, right, tensors))
    report = validate(session, {session.get_inputs()[0].name: x})
    assert not report.passed and report.integers is not None
    (wrong,) = [layer for layer in report.integers.layers if not layer.passed]
    assert wrong.exact and wrong.elements and wrong.steps > 1


def collect() -> list[Any]:
    """ONNX's cases of these operators; its own module casts numbers that overflow."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [case for case in collect_testcases("") if case.model.graph.node[0].op_type in OPERATORS]


CASES = collect()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_onnx_own_cases(case: Any) -> None:
    if case.model.graph.input[0].type.tensor_type.elem_type not in (
        onnx.TensorProto.INT8,
        onnx.TensorProto.UINT8,
        onnx.TensorProto.FLOAT,
    ):
        pytest.skip("float8 or 16 bits")
    assert has_integers(case.model) or case.model.functions
    for inputs, outputs in case.data_sets:
        found = Evaluator(case.model).run(
            dict(zip((info.name for info in case.model.graph.input), inputs, strict=False))
        )
        for info, expected in zip(case.model.graph.output, outputs, strict=True):
            np.testing.assert_array_equal(found[info.name], expected)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("settings", [{}, {"strides": [2, 1], "pads": [1, 0, 2, 1]}, {"dilations": [2, 2]}])
def test_convolutions_are_exact(groups: int, settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(-255, 256, (2, 4, 9, 8)), rng.integers(-255, 256, (6, 4 // groups, 3, 2))
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], group=groups, **settings)
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.DOUBLE, a.shape) for n, a in (("x", x), ("w", w))],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.DOUBLE, None)],
    )
    from onnx.reference import ReferenceEvaluator

    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)])
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x.astype(np.float64), "w": w.astype(np.float64)})
    np.testing.assert_array_equal(convolve(x, w, settings | {"group": groups}), expected)

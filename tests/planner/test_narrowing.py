"""Sessions of 8-bit floats: which steps they narrow, what they compute, and that no input overflows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper, parser

from trnrt import InferenceSession
from trnrt.errors import OptionError
from trnrt.planner.plan import Plan

Array = NDArray[Any]
NET = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,16,12,12] x) => (float[N,64,12,12] y) {
 a0 = Conv<pads=[1,1,1,1]>(x, w0, b0) a = Relu(a0)
 c0 = Conv<pads=[1,1,1,1]>(a, w1, b1) c = Relu(c0)
 d0 = Conv<pads=[1,1,1,1]>(c, w2, b2) d1 = Add(d0, a) d = Relu(d1)
 e = Conv<pads=[1,1,1,1]>(d, w3, b3)
 y = Conv(e, w4, b4) }"""
SHAPES = ((256, 16, 3, 3), (256, 256, 3, 3), (256, 256, 3, 3), (256, 256, 3, 3), (64, 256, 1, 1))


def net() -> bytes:
    """Random weights with He's variance."""
    model, random = parser.parse_model(NET), np.random.default_rng(0)
    for number, shape in enumerate(SHAPES):
        for name, drawn in (
            (f"w{number}", random.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))),
            (f"b{number}", random.standard_normal(shape[0]) / 10),
        ):
            model.graph.initializer.append(numpy_helper.from_array(drawn.astype(np.float32), name))
    return bytes(onnx.ModelProto.SerializeToString(model))


def images(rows: int = 4, seed: int = 1) -> dict[str, Array]:
    return {"x": np.random.default_rng(seed).standard_normal((rows, 16, 12, 12)).astype(np.float32)}


def reference(feeds: dict[str, Array]) -> Array:
    import onnxruntime

    session = onnxruntime.InferenceSession(net(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feeds)[0])


def decibels(got: Array, wanted: Array) -> float:
    """The ratio of signal to noise."""
    return float(10 * np.log10((wanted**2).sum() / ((got - wanted) ** 2).sum()))


@pytest.mark.parametrize(("dtype", "least"), [("float8_e4m3", 22.0), ("float8_e5m2", 16.0)])
def test_a_network(dtype: str, least: float, tmp_path: Path) -> None:
    """Each of three layers rounds both factors, at 31.6 and 25.5 dB each: 26.8 and 20.7 dB, a few less by chance. A
    plan from the cache gives the same."""
    feeds = images()
    made = [
        InferenceSession(net(), target="trn2", dtype=dtype, calibration=images(8, 2), cache_dir=tmp_path)
        for _ in range(2)
    ]
    got, again = (session.run(None, feeds)[0] for session in made)
    assert least < decibels(got, reference(feeds)) < 40
    np.testing.assert_array_equal(got, again)
    assert made[0].dtype == dtype and dtype in made[0].plan(4).notes[-1]


def test_steps() -> None:
    """The first and the last convolution keep 16 bits; a value that others read, too, gets a step of its own."""
    plan = InferenceSession(net(), target="trn2", dtype="float8_e4m3", calibration=images(), cache=False).plan(4)
    dtypes = {step.output: step.dtype for step in plan.steps}
    assert dtypes["a"] == dtypes["d"] == dtypes["e"] == "bfloat16"
    assert {name for name, dtype in dtypes.items() if dtype == "float8_e4m3"} == {
        f"{name}.float8_e4m3" for name in ("a", "c", "d")
    }
    kinds = sorted({str(array.dtype) for array in plan.weights.values()})
    assert kinds == ["bfloat16", "float32", "float8_e4m3"]


def test_all_layers() -> None:
    """Asked for all, the first and the last convolution have 8 bits, too, the first of the model's input."""
    options: dict[str, Any] = {"target": "trn2", "dtype": "float8_e4m3", "calibration": images(), "cache": False}
    session = InferenceSession(net(), narrow="all", **options)
    plan = session.plan(4)
    assert [step.name for step in plan.steps if step.float8] == [node for node in plan_nodes(plan) if node]
    assert 15.0 < decibels(session.run(None, images())[0], reference(images())) < 40
    few = InferenceSession(net(), **options).plan(4)
    assert sum(bool(step.float8) for step in few.steps) == 3
    said = {report.name: report.reason for report in few.nodes}
    narrowed = [step.name for step in few.steps if step.float8]
    assert [name for name, why in said.items() if "in float8_e4m3 (source in units of" in why] == narrowed


def plan_nodes(plan: Plan) -> list[str]:
    """The steps of a plan's convolutions."""
    return [step.name for step in plan.steps if step.kernel == "conv2d"]


LINEAR = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,300] x) => (float[N,10] y) {
 a0 = Gemm(x, w0, b0) a = Relu(a0)
 c0 = MatMul(a, w1) c1 = Add(c0, b1) c = Relu(c1)
 y = Gemm(c, w2, b2) }"""


def linear(wide: int) -> bytes:
    """A model of linear layers, random weights with He's variance."""
    model, random = parser.parse_model(LINEAR), np.random.default_rng(0)
    for number, (rows, columns) in enumerate(pairwise((300, wide, wide, 10))):
        w = random.standard_normal((rows, columns)) * np.sqrt(2 / rows)
        for name, array in ((f"w{number}", w), (f"b{number}", random.standard_normal(columns) / 10)):
            model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    return bytes(onnx.ModelProto.SerializeToString(model))


@pytest.mark.parametrize("rows", [1, 8, 130])
def test_linear_layers(rows: int) -> None:
    """A wide layer is faster in 8 bits, and its weights take half the bytes; the first and the last one keep 16."""
    import onnxruntime

    random = np.random.default_rng(rows)
    feeds, data = ({"x": random.standard_normal((n, 300)).astype(np.float32)} for n in (rows, 200))
    session = InferenceSession(linear(1024), target="trn2", dtype="float8_e4m3", calibration=data, cache=False)
    wanted = onnxruntime.InferenceSession(linear(1024), providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    assert 25 < decibels(session.run(None, feeds)[0], wanted) < 40
    plan = session.plan(8)
    assert [step.float8 for step in plan.steps] == ["", "float8_e4m3", ""]
    held = sum(array.nbytes for array in plan.weights.values() if array.dtype.itemsize == 1)
    assert held >= 1024 * 1024


def test_choice_of_layers_needs_8_bits() -> None:
    with pytest.raises(OptionError, match="the dtype is bfloat16"):
        InferenceSession(net(), dtype="bfloat16", narrow="all")
    with pytest.raises(OptionError, match="unknown choice of layers 'some'"):
        InferenceSession(net(), dtype="float8_e4m3", target="trn2", calibration=images(), narrow="some")


@pytest.mark.parametrize("factor", [1e-6, 1e2, 1e6])
def test_no_input_overflows(factor: float) -> None:
    """Far beyond the calibration data numbers are limited: nothing becomes infinite or NaN."""
    session = InferenceSession(net(), target="trn2", dtype="float8_e4m3", calibration=images(), cache=False)
    feeds = {"x": images()["x"] * np.float32(factor)}
    assert np.isfinite(session.run(None, feeds)[0]).all()


def test_refusals() -> None:
    with pytest.raises(OptionError, match="needs typical inputs") as missing:
        InferenceSession(net(), dtype="float8_e4m3", target="trn2")
    assert "--calibration DATA.npz" in str(missing.value.hint)
    with pytest.raises(OptionError, match="trn1 multiplies 8-bit floats no faster"):
        InferenceSession(net(), dtype="float8_e5m2", target="trn1", calibration=images())
    with pytest.raises(OptionError, match="the dtype is bfloat16"):
        InferenceSession(net(), dtype="bfloat16", calibration=images())

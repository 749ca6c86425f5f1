"""Sessions of 8-bit floats: which steps they narrow, what they compute, and that no input overflows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper, parser

from trnrt import InferenceSession
from trnrt.errors import OptionError

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
        InferenceSession(net(), target="trn2", dtype=dtype, calibrate=images(8, 2), cache_dir=tmp_path)
        for _ in range(2)
    ]
    got, again = (session.run(None, feeds)[0] for session in made)
    assert least < decibels(got, reference(feeds)) < 40
    np.testing.assert_array_equal(got, again)
    assert made[0].dtype == dtype and dtype in made[0].plan(4).notes[-1]


def test_steps() -> None:
    """The first and the last convolution keep 16 bits; a value that others read, too, gets a step of its own."""
    plan = InferenceSession(net(), target="trn2", dtype="float8_e4m3", calibrate=images(), cache=False).plan(4)
    dtypes = {step.output: step.dtype for step in plan.steps}
    assert dtypes["a"] == dtypes["d"] == dtypes["e"] == "bfloat16"
    assert {name for name, dtype in dtypes.items() if dtype == "float8_e4m3"} == {
        f"{name}.float8_e4m3" for name in ("a", "c", "d")
    }
    kinds = sorted({str(array.dtype) for array in plan.weights.values()})
    assert kinds == ["bfloat16", "float32", "float8_e4m3"]


@pytest.mark.parametrize("factor", [1e-6, 1e2, 1e6])
def test_no_input_overflows(factor: float) -> None:
    """Far beyond the calibration data numbers are limited: nothing becomes infinite or NaN."""
    session = InferenceSession(net(), target="trn2", dtype="float8_e4m3", calibrate=images(), cache=False)
    feeds = {"x": images()["x"] * np.float32(factor)}
    assert np.isfinite(session.run(None, feeds)[0]).all()


def test_refusals() -> None:
    with pytest.raises(OptionError, match="needs typical inputs") as missing:
        InferenceSession(net(), dtype="float8_e4m3", target="trn2")
    assert "--calibrate DATA.npz" in str(missing.value.hint)
    with pytest.raises(OptionError, match="trn1 multiplies 8-bit floats no faster"):
        InferenceSession(net(), dtype="float8_e5m2", target="trn1", calibrate=images())
    with pytest.raises(OptionError, match="the dtype is bfloat16"):
        InferenceSession(net(), dtype="bfloat16", calibrate=images())

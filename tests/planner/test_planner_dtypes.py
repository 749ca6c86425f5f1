"""Whole numbers are stored and multiplied in bfloat16 where that is exact, and only there."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import trnrt
from trnrt.planner.plan import Plan

Array = np.ndarray[Any, np.dtype[Any]]
LIMITS = {"low": np.float32(-128), "high": np.float32(127), "zero": np.float32(0)}
QUANTISE = "d = Div(x, s) r = Round(d) q = Clip(r, low, high)"
REQUANTISE = "m = Mul(c, f) t = Round(m) y = Clip(t, low, high)"


def loaded(text: str, constants: dict[str, Any], **options: Any) -> trnrt.InferenceSession:
    """A session of the model of a text."""
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> g {text}')
    given = {name: np.asarray(array) for name, array in (LIMITS | constants).items()}
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in given.items())
    return trnrt.InferenceSession(proto.SerializeToString(), **options)


def dtypes_of(plan: Plan) -> dict[str, str]:
    return {step.output: step.dtype for step in plan.steps}


def quantised(x: Array, scale: float) -> Array:
    numbers: Array = np.clip(np.rint(x / np.float32(scale)), -128, 127)
    return numbers


def requantised(sums: Array, factor: Array) -> Array:
    numbers: Array = np.clip(np.rint(sums.astype(np.float32) * factor), -128, 127)
    return numbers


RANDOM = np.random.default_rng(1)
FACTORS = (0.002 + 0.001 * RANDOM.random(32)).astype(np.float32)
KERNEL = RANDOM.integers(-128, 128, (32, 24, 3, 3))
IMAGES = (RANDOM.standard_normal((2, 24, 10, 10)) * 40).astype(np.float32)
CONV = f"(float[2,24,10,10] x) => (float[2,32,8,8] y) {{ {QUANTISE} c = Conv(q, w, b) {REQUANTISE} }}"
BIAS = RANDOM.integers(-9999, 9999, 32)


def convolved(x: Array, kernel: Array) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.int64), kernel.shape[2:], (2, 3))
    sums: Array = np.einsum("nchwij,ocij->nohw", windows, kernel.astype(np.int64))
    return sums


def convolution(**options: Any) -> trnrt.InferenceSession:
    constants = {"s": np.float32(0.75), "w": KERNEL.astype(np.float32), "b": BIAS.astype(np.float32)}
    return loaded(CONV, constants | {"f": FACTORS.reshape(-1, 1, 1)}, **options)


@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_a_convolution_of_whole_numbers_in_float32(target: str) -> None:
    session = convolution(target=target)
    plan = session.plan()
    assert dtypes_of(plan)["q"] == "bfloat16"
    assert {array.dtype.name for array in plan.weights.values()} == {"bfloat16", "float32"}
    sums = convolved(quantised(IMAGES, 0.75), KERNEL) + BIAS.reshape(-1, 1, 1)
    np.testing.assert_array_equal(session.run(None, {"x": IMAGES})[0], requantised(sums, FACTORS.reshape(-1, 1, 1)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sums_stay_in_float32_in_16_bits(dtype: str) -> None:
    """Also the factors by channel: rounded ones would change many results."""
    session = convolution(dtype=dtype)
    x = (
        IMAGES.astype(np.float16).astype(np.float32)
        if dtype == "float16"
        else (IMAGES.view("u4") >> 16 << 16).view("f4")
    )
    sums = convolved(quantised(x, 0.75), KERNEL) + BIAS.reshape(-1, 1, 1)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], requantised(sums, FACTORS.reshape(-1, 1, 1)))


def test_long_sums_equal_those_of_integers() -> None:
    """4608 terms, as in the last layers of a ResNet, with weights of the whole range."""
    weights, rows = RANDOM.integers(-128, 128, (4608, 16)), RANDOM.standard_normal((3, 4608)) * 90
    text = "(float[3,4608] x) => (float[3,16] c) { r = Round(x) q = Clip(r, low, high) c = MatMul(q, w) }"
    session = loaded(text, {"w": weights.astype(np.float32)})
    assert dtypes_of(session.plan())["q"] == "bfloat16"
    x = rows.astype(np.float32)
    found = session.run(None, {"x": x})[0]
    np.testing.assert_array_equal(found, quantised(x, 1).astype(np.int64) @ weights)


LARGEST = {
    "MatMul": "(float[2,{n}] x) => (float[2,5] c) {{ {q} c = MatMul(q, w) }}",
    "Gemm": "(float[2,{n}] x) => (float[2,5] c) {{ {q} c = Gemm<transB=1>(q, v, b) }}",
    "Conv": "(float[2,{n},1,1] x) => (float[2,5,1,1] c) {{ {q} c = Conv(q, f, b) }}",
    "computed": """(float[2,{n}] x, float[{n},5] z) => (float[2,5] c)
        {{ {q} o = Round(z) p = Clip(o, low, high) c = MatMul(q, p) }}""",
}


@pytest.mark.parametrize("kind", LARGEST)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("count", [1600, 7000])
def test_sums_beyond_float32_are_rounded_once(kind: str, count: int, dtype: str) -> None:
    """The largest and odd numbers: sums reach 2^26, in two parts and in more."""
    weights = RANDOM.integers(100, 128, (count, 5))
    constants: dict[str, Any] = {"w": weights, "v": weights.T, "f": weights.T[:, :, None, None], "b": np.arange(5)}
    constants["b"] = constants["b"] * 1_000_001
    used = {key for key in constants if key in LARGEST[kind].partition("=>")[2].partition("(q")[2]}
    text = LARGEST[kind].format(n=count, q="r = Round(x) q = Clip(r, low, high)")
    given = {name: constants[name].astype(np.float32) for name in used}
    session = loaded(text, given, dtype=dtype)
    assert dtypes_of(session.plan())["q"] == "bfloat16"
    x = RANDOM.integers(60, 128, (2, count)).astype(np.float32)
    feeds = {"x": x.reshape(*x.shape, *[1] * (2 * (kind == "Conv")))}
    feeds |= {"z": weights.astype(np.float32)} if kind == "computed" else {}
    sums = x.astype(np.int64) @ weights + ("b" in used) * constants["b"]
    assert np.abs(sums).max() > 2**24 and np.any(sums % 2)
    np.testing.assert_array_equal(session.run(None, feeds)[0].reshape(2, 5), sums.astype(np.float32))


def test_products_of_computed_whole_numbers() -> None:
    text = """(float[2,5,7] x, float[2,7,6] z) => (float[2,5,6] c)
        { r = Round(x) q = Clip(r, low, high) o = Round(z) p = Clip(o, low, high) c = MatMul(q, p) }"""
    session = loaded(text, {})
    assert {dtypes_of(session.plan())[value] for value in "qp"} == {"bfloat16"}
    x, z = ((RANDOM.standard_normal(shape) * 90).astype(np.float32) for shape in ((2, 5, 7), (2, 7, 6)))
    np.testing.assert_array_equal(session.run(None, {"x": x, "z": z})[0], quantised(x, 1) @ quantised(z, 1))


OTHERS = {
    "a float operand": "r = Round(x) q = Clip(r, low, high) c = MatMul(q, h)",
    "a float that both read": "c = MatMul(x, w)",
    "no limits": "q = Round(x) c = MatMul(q, w)",
}


@pytest.mark.parametrize("why", OTHERS)
def test_other_products_keep_their_dtype(why: str) -> None:
    text = f"(float[3,8] x) => (float[3,8] c) {{ {OTHERS[why]} }}"
    plan = loaded(text, {"w": np.eye(8, dtype=np.float32), "h": np.eye(8, dtype=np.float32) / 3}).plan()
    assert set(dtypes_of(plan).values()) == {"float32"}
    assert {array.dtype.name for array in plan.weights.values()} == {"float32"}


def test_a_value_that_another_kernel_needs_in_float32_stays_so() -> None:
    """Softmax has no whole results: it would read bfloat16 and write float32."""
    text = """(float[3,8] x) => (float[3,8] c, float[3,8] e)
        { r = Round(x) q = Clip(r, low, high) c = MatMul(q, w) e = Softmax(q) }"""
    session = loaded(text, {"w": np.eye(8, dtype=np.float32)})
    assert dtypes_of(session.plan())["q"] == "float32"
    x = (RANDOM.standard_normal((3, 8)) * 9).astype(np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], quantised(x, 1))


def test_the_importer_can_be_imported_alone() -> None:
    """Records of operators import the planner, which must not import them back while they are incomplete."""
    code = "from trnrt.importer import import_model; import trnrt.operators.record as r; r.records()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_joined_values_share_a_dtype() -> None:
    text = """(float[1,8,4,4] x, float[1,8,4,4] z) => (float[1,4,4,4] c)
        { r = Round(x) q = Clip(r, low, high) o = Round(z) p = Clip(o, low, high)
          j = Concat<axis=1>(q, p) t = Transpose<perm=[0,1,3,2]>(j) c = Conv(t, w) }"""
    weights = RANDOM.integers(-128, 128, (4, 16, 1, 1))
    session = loaded(text, {"w": weights.astype(np.float32)})
    kept = dtypes_of(session.plan())
    kept.pop("c")
    assert set(kept.values()) == {"bfloat16"}
    x, z = ((RANDOM.standard_normal((1, 8, 4, 4)) * 90).astype(np.float32) for _ in range(2))
    joined = np.concatenate([quantised(x, 1), quantised(z, 1)], 1).swapaxes(2, 3)
    np.testing.assert_array_equal(session.run(None, {"x": x, "z": z})[0], convolved(joined, weights))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_masks_lowest_number_is_infinite_where_the_dtype_does_not_hold_it(dtype: str) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[2,3] y)
        <float[2,3] mask = {0, -3.4e38, 0, 0, 0, -3.4e38}> { a = Add(x, mask) y = Softmax(a) }"""
    model = onnx.parser.parse_model(text).SerializeToString()
    x = np.array([[1, 9, 1], [2, 2, 9]], np.float32)
    (shares,) = trnrt.InferenceSession(model, dtype=dtype, cache=False).run(None, {"x": x})
    np.testing.assert_allclose(shares, [[0.5, 0, 0.5], [0.5, 0.5, 0]], atol=4e-3)

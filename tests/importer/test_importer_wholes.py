"""What is derived to be whole is whole, within its limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from rewritten import run

from trnrt.importer.wholes import Limits, Wholes, constant_limits, find_wholes, sum_limits

Array = np.ndarray[Any, np.dtype[Any]]
START = "r = Round(x) q = Clip(r, low, high) o = Round(z) p = Clip(o, low, high) c = Greater(x, z)"
# Each makes {y} of the whole numbers {a} and {b}; all are images of (2, 3, 4, 4).
OPERATIONS = [
    "{y} = Add({a}, {b})",
    "{y} = Sub({a}, {b})",
    "{y} = Mul({a}, {b})",
    "{y} = Relu({a})",
    "{y} = Neg({a})",
    "{y} = Max({a}, {b})",
    "{y} = Min({a}, {b})",
    "{y} = Where(c, {a}, {b})",
    "{y} = Clip({a}, low, high)",
    "{y} = Transpose<perm=[0,1,3,2]>({a})",
    "{y} = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>({a})",
    "{y} = Conv<pads=[1,1,1,1]>({a}, w, bias)",
    "{y} = MatMul({a}, m)",
    "{y} = MatMul({a}, {b})",
    "{y} = Conv<pads=[1,1,1,1], group=3>({a}, grouped)",
    "{y}_both = Concat<axis=1>({a}, {b}) {y} = Slice({y}_both, starts, ends, axes)",
    "{y}_pad = Pad({a}, pads, low) {y} = Slice({y}_pad, ones, fives, spatial)",
    "{y}_first, {y}_second = Split<axis=1, num_outputs=2>({a}) {y} = Concat<axis=1>({y}_first, {y}_second)",
]


def modelled(body: str, constants: dict[str, Array]) -> onnx.ModelProto:
    """The model, with each of its values as an output."""
    text = f"(float[2,3,4,4] x, float[2,3,4,4] z) => () {{ {body} }}"
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> g {text}')
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    inferred = onnx.shape_inference.infer_shapes(proto)
    proto.graph.output.extend(inferred.graph.value_info)
    return proto


def constants_of(seed: int, low: int, high: int) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    floats = {
        "low": np.array(low),
        "high": np.array(high),
        "w": random.integers(-128, 128, (3, 3, 3, 3)),
        "grouped": random.integers(-9, 3, (3, 1, 3, 3)),
        "bias": random.integers(-999, 999, 3),
        "m": random.integers(-5, 128, (4, 4)),
    }
    integers = {"starts": [2], "ends": [5], "axes": [1], "ones": [1, 1], "fives": [5, 5], "spatial": [2, 3]}
    integers["pads"] = [0, 0, 1, 1, 0, 0, 1, 1]
    return {name: array.astype(np.float32) for name, array in floats.items()} | {
        name: np.array(numbers, np.int64) for name, numbers in integers.items()
    }


@settings(max_examples=60, deadline=None)
@given(
    chosen=st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 9), st.integers(0, 9)), max_size=5),
    seed=st.integers(0, 99),
    low=st.integers(-255, 0),
    high=st.integers(0, 255),
)
def test_values_are_whole_and_within_their_limits(
    chosen: list[tuple[str, int, int]], seed: int, low: int, high: int
) -> None:
    values, body = ["q", "p"], START
    for number, (text, a, b) in enumerate(chosen):
        body += " " + text.format(y=f"y{number}", a=values[a % len(values)], b=values[b % len(values)])
        values.append(f"y{number}")
    proto = modelled(body, constants_of(seed, low, high))
    wholes = find_wholes(ir.from_proto(proto).graph)
    random = np.random.default_rng(seed)
    feeds = {name: (random.standard_normal((2, 3, 4, 4)) * 200).astype(np.float32) for name in "xz"}
    made = dict(zip((output.name for output in proto.graph.output), run(proto, feeds), strict=True))
    assert set(values) <= wholes.limits.keys()
    for name in wholes.limits.keys() & made.keys():
        array, limits = made[name].astype(np.float64), wholes.limits[name]
        np.testing.assert_array_equal(array, np.rint(array))
        rounding = 1 + 2.0**-18  # of sums beyond 2^24
        assert limits.low * (rounding if limits.low < 0 else 1) <= array.min(), name
        assert limits.high * (rounding if limits.high > 0 else 1) >= array.max(), name


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 9999),
    low=st.integers(-255, 255),
    span=st.integers(0, 255),
    shape=st.tuples(*[st.integers(1, 40)] * 2),
)
def test_sums_of_any_terms_are_within_their_limits(seed: int, low: int, span: int, shape: tuple[int, int]) -> None:
    random = np.random.default_rng(seed)
    weights = random.integers(-255, 256, shape)
    limits = sum_limits(Limits(low, low + span), weights)
    # The worst data there is: for each row the end that adds most, and some terms left out.
    for row in weights:
        high = np.where(row > 0, max(low + span, 0), min(low, 0))
        less = np.where(row > 0, min(low, 0), max(low + span, 0))
        assert limits.low <= (row * less).sum() <= (row * high).sum() <= limits.high
    assert any(limits.high == (row * np.where(row > 0, max(low + span, 0), min(low, 0))).sum() for row in weights)


def wholes_of(body: str, **constants: Any) -> Wholes:
    given = {name: np.asarray(array) for name, array in constants.items()}
    return find_wholes(ir.from_proto(modelled(body, given)).graph)


@pytest.mark.parametrize(
    "body",
    [
        "y = Relu(x)",
        "r = Round(x) y = Clip(r, half, high)",
        "r = Round(x) y = Mul(r, half)",
        "r = Round(x) y = Add(r, z)",
        "r = Round(x) y = AveragePool<kernel_shape=[2,2]>(r)",
        "r = Round(x) y = Div(r, high)",
        "r = Round(x) y = Pad(r, pads, half)",
        'r = Round(x) y = Resize<mode="linear">(r, , scales)',
    ],
)
def test_what_may_not_be_whole_is_not_said_to_be(body: str) -> None:
    half, high, pads = np.float32(0.5), np.float32(9), np.ones(8, np.int64)
    found = wholes_of(body, half=half, high=high, pads=pads, scales=np.array([1, 1, 2, 2], np.float32))
    assert "y" not in found.limits


def test_products_with_larger_numbers_have_no_exact_sums() -> None:
    """300 is not exact in bfloat16."""
    body = "r = Round(x) q = Clip(r, low, high) y = MatMul(q, w) v = MatMul(q, large)"
    numbers = {"low": np.float32(-128), "high": np.float32(127)}
    found = wholes_of(body, **numbers, w=np.full((4, 4), 3, np.float32), large=np.full((4, 4), 300, np.float32))
    (node,) = found.sums
    assert node == "" and found.sums[node] == 4 * 3 * 128
    assert found.limits["v"] == Limits(-4 * 300 * 128, 4 * 300 * 127)


@pytest.mark.parametrize("array", [np.array([1, np.nan]), np.array([np.inf]), np.array([0.5]), np.zeros(0)])
def test_constants_without_limits(array: Array) -> None:
    assert constant_limits(array) is None


@pytest.mark.parametrize(("kind", "low", "high"), [("uint8", 0, 255), ("int8", -128, 127), ("bool", 0, 1)])
def test_bytes_are_whole_once_they_are_floats(kind: str, low: int, high: int) -> None:
    text = f"({kind}[2,3] x, int32[2,3] z) => (float[2,3] y, float[2,3] w) {{ y = Cast<to=1>(x) w = Cast<to=1>(z) }}"
    graph = ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> g {text}')).graph
    assert find_wholes(graph).limits == {"y": Limits(low, high)}


@pytest.mark.parametrize(
    ("nodes", "limits"),
    [
        ("v, y = TopK<axis=1>(x, k)", (0, 39)),
        ("v, y = TopK(x, k)", (0, 6)),
        ("y = ArgMax<axis=1>(x)", (0, 39)),
        ("y = ArgMin<axis=-1>(x)", (0, 6)),
        ("v, i = TopK<axis=1>(x, k)  y = Div(i, seven)", (0, 5)),
        ("v, i = TopK<axis=1>(x, k)  n = Neg(i)  y = Div(n, seven)", (-5, 0)),
        ("v, i = TopK<axis=1>(x, k)  n = Sub(i, many)  y = Div(n, seven)", (-2, 2)),
        ("v, i = TopK<axis=1>(x, k)  y = Mod(i, seven)", (0, 6)),
        ("v, i = TopK<axis=1>(x, k)  m = Mul(i, seven)  y = Add(m, seven)", (7, 280)),
    ],
)
def test_the_limits_of_a_searchs_indices(nodes: str, limits: tuple[int, int]) -> None:
    text = f"g (float[2,40,7] x) => (int64[a,b,c] y) {{ {nodes} }}"
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    for name, number in {"k": [3], "seven": 7, "many": 20}.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.array(number), name))
    found = find_wholes(ir.from_proto(onnx.shape_inference.infer_shapes(proto)).graph, 2.0**24)
    assert found.limits["y"] == Limits(*limits)

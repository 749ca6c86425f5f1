"""Resize and Upsample against onnxruntime, and the rules of one axis against their definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from planning import Array, compare, drawn, modelled, steps

import trnrt
from trnrt.planner import Plan
from trnrt.planner.lowering.interpolation import Axis, interpolation_matrix, nearest_indices

Shape = tuple[int, ...]
IMAGE = (2, 3, 5, 6)


def resized(
    shape: Shape, scales: list[float] | None = None, sizes: list[int] | None = None, opset: int = 19, **attributes: Any
) -> onnx.ModelProto:
    """A Resize of a tensor that is computed, followed by a step that reads its result."""
    roi = np.array(attributes.pop("roi", []), np.float32)
    names = ["r", "roi", "scales"] if sizes is None else ["r", "roi", "", "sizes"]
    constants = {"roi": roi, "scales": np.array(scales or [], np.float32), "sizes": np.array(sizes or [], np.int64)}
    if opset < 11:
        names = ["r", "scales"]
    nodes = [
        helper.make_node("Tanh", ["x"], ["r"]),
        helper.make_node("Resize", names, ["z"], **attributes),
        helper.make_node("Neg", ["z"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shape))],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items() if name in names],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def checked(shape: Shape, *sizes: Any, dtype: str = "float32", **attributes: Any) -> Plan:
    return compare(resized(shape, *sizes, **attributes), {"x": drawn(*shape)}, dtype=dtype)


MODES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]
TARGETS: list[tuple[list[float] | None, list[int] | None]] = [
    ([1, 1, 2, 2], None),
    ([1, 1, 3, 1], None),
    ([1, 1, 1.5, 2.3], None),
    ([1, 1, 0.6, 0.8], None),
    (None, [2, 3, 7, 3]),
    (None, [2, 3, 1, 1]),
    (None, [2, 3, 10, 12]),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("scales", "sizes"), TARGETS, ids=str)
def test_linear(scales: list[float] | None, sizes: list[int] | None, mode: str) -> None:
    plan = checked(IMAGE, scales, sizes, mode="linear", coordinate_transformation_mode=mode)
    assert "resize" in {step.kernel for step in plan.steps}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("scales", "sizes"), TARGETS, ids=str)
def test_cubic(scales: list[float] | None, sizes: list[int] | None, mode: str) -> None:
    plan = checked(IMAGE, scales, sizes, mode="cubic", coordinate_transformation_mode=mode)
    assert "resize" in {step.kernel for step in plan.steps}


@pytest.mark.parametrize(
    "options",
    [
        {"cubic_coeff_a": -0.5},
        {"exclude_outside": 1},
        {"cubic_coeff_a": -0.5, "exclude_outside": 1},
        {"antialias": 1},
        {"antialias": 1, "exclude_outside": 1, "cubic_coeff_a": -0.5},
        {"coordinate_transformation_mode": "tf_crop_and_resize", "roi": [0, 0, 0.2, 0.1, 1, 1, 0.8, 1.2]},
        {
            "coordinate_transformation_mode": "tf_crop_and_resize",
            "roi": [0, 0, -0.3, 0.4, 1, 1, 0.8, 1.2],
            "extrapolation_value": 3.5,
        },
    ],
    ids=str,
)
@pytest.mark.parametrize(("scales", "sizes"), TARGETS, ids=str)
def test_cubic_options(scales: list[float] | None, sizes: list[int] | None, options: dict[str, Any]) -> None:
    checked((1, 2, 9, 8), scales, sizes and [1, 2, *sizes[2:]], mode="cubic", **options)


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("mode", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize(("scales", "sizes"), TARGETS, ids=str)
def test_nearest(scales: list[float] | None, sizes: list[int] | None, mode: str, rounding: str) -> None:
    checked(IMAGE, scales, sizes, mode="nearest", coordinate_transformation_mode=mode, nearest_mode=rounding)


def test_whole_pixels_are_repeated_on_chip() -> None:
    usual: dict[str, Any] = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    for scales in ([1, 1, 2, 2], [1, 1, 1, 3], [1, 1, 4, 1]):
        assert "repeat_pixels" in {step.kernel for step in checked(IMAGE, scales, **usual).steps}
    assert "move" in {step.kernel for step in checked(IMAGE, [1, 2, 2, 2], **usual).steps}


@pytest.mark.parametrize("exclude", [0, 1])
@pytest.mark.parametrize(("scales", "sizes"), TARGETS, ids=str)
def test_antialiased(scales: list[float] | None, sizes: list[int] | None, exclude: int) -> None:
    checked(IMAGE, scales, sizes, mode="linear", antialias=1, exclude_outside=exclude)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("value", [0.0, 7.5])
@pytest.mark.parametrize("roi", [[0, 0, 0.2, 0.3, 1, 1, 0.7, 0.8], [0, 0, -0.3, 0.1, 1, 1, 1.2, 1.3]])
def test_crops(roi: list[float], value: float, mode: str) -> None:
    options: dict[str, Any] = {
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": value,
        "roi": roi,
    }
    checked(IMAGE, None, [2, 3, 7, 9], mode=mode, **options)


def test_axes() -> None:
    checked(IMAGE, [2.0, 1.5], axes=[3, 2], mode="linear")
    checked(IMAGE, None, [9, 7], axes=[3, 2], mode="nearest")


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_aspect_ratios_that_are_kept(policy: str, mode: str) -> None:
    checked(IMAGE, None, [9, 9], axes=[2, 3], keep_aspect_ratio_policy=policy, mode=mode)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize(
    ("shape", "scales"),
    [
        ((7, 9), [1.5, 2.5]),
        ((2, 3, 4, 5, 6), [1, 1, 2, 1.5, 0.5]),
        ((1, 5, 6, 3), [1, 2, 1.7, 1]),
        ((1, 1, 4, 2100), [1, 1, 2, 0.25]),
    ],
    ids=str,
)
def test_other_ranks_and_axes(shape: Shape, scales: list[float], mode: str) -> None:
    """Matrices, volumes, images with their channels last, and those of too many columns for the kernel."""
    checked(shape, scales, mode=mode, coordinate_transformation_mode="asymmetric")


@pytest.mark.parametrize("scale", [2.5, 0.4])
@pytest.mark.parametrize("shape", [(9,), (2, 3, 9), (2, 200, 140)], ids=str)
def test_rows_of_pixels(shape: Shape, scale: float) -> None:
    """onnxruntime resizes single rows to the nearest only; linear ones are compared with NumPy's."""
    checked(shape, [*[1] * (len(shape) - 1), scale], mode="nearest", coordinate_transformation_mode="asymmetric")
    if len(shape) > 1:
        checked(shape, [*[1] * (len(shape) - 1), scale], mode="linear", coordinate_transformation_mode="asymmetric")
        return
    model = resized(shape, [scale], mode="linear", coordinate_transformation_mode="asymmetric")
    x = drawn(*shape)
    (got,) = trnrt.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    places = np.arange(got.size, dtype=np.float32) / np.float32(scale)
    np.testing.assert_allclose(got, -np.interp(places, np.arange(shape[0]), np.tanh(x)), atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_16_bits(mode: str, dtype: str) -> None:
    checked(IMAGE, [1, 1, 2, 1.5], mode=mode, dtype=dtype)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("opset", [10, 11, 13, 18, 22, 26])
def test_every_opset(opset: int, mode: str) -> None:
    for scales in ([1, 1, 2, 3], [1, 1, 0.5, 0.7]):
        checked(IMAGE, scales, mode=mode, opset=opset)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("opset", [7, 9])
def test_upsample(opset: int, mode: str) -> None:
    for scales in ([1, 1, 2, 3], [1, 1, 1.5, 2.2]):
        given = f", scales={scales}" if opset == 7 else ""
        inputs = "r" if opset == 7 else "r, s"
        written = given.replace("1,", "1.0,").replace("2,", "2.0,").replace("3]", "3.0]")
        graph = (
            f'(float[2,3,5,6] x) => (float[a,b,c,d] y) {{ r = Tanh(x) y = Upsample<mode="{mode}"{written}>({inputs}) }}'
        )
        constants: dict[str, Array] = {} if opset == 7 else {"s": np.array(scales, np.float32)}
        compare(modelled(graph, constants, opset), {"x": drawn(*IMAGE)})


def test_what_changes_nothing_is_a_view() -> None:
    graph = "(float[2,3,5,6] x) => (float[2,3,5,6] y) { r = Resize(x, , s) y = Relu(r) }"
    plan = compare(modelled(graph, {"s": np.ones(4, np.float32)}), {"x": drawn(*IMAGE)})
    assert list(steps(plan)) == ["compute"]


@pytest.mark.parametrize("scales", [[1, 1, 2, 2], [1, 1, 1.5, 0.7]], ids=str)
def test_whole_numbers(scales: list[float]) -> None:
    """Pixels of one byte are moved as they are."""
    graph = "(uint8[2,3,5,6] x) => (uint8[a,b,c,d] y) { y = Resize(x, , s) }"
    x = np.random.default_rng(0).integers(0, 256, IMAGE).astype(np.uint8)
    compare(modelled(graph, {"s": np.array(scales, np.float32)}), {"x": x})


def test_a_transposed_image() -> None:
    """Channels last, as Keras has them: turned, resized, turned back."""
    graph = """(float[2,5,6,3] x) => (float[2,10,12,3] y) {
        a = Transpose<perm=[0,3,1,2]>(x) b = Resize<mode="linear">(a, , s) y = Transpose<perm=[0,2,3,1]>(b) }"""
    compare(modelled(graph, {"s": np.array([1, 1, 2, 2], np.float32)}), {"x": drawn(2, 5, 6, 3)})


# -- one axis -----------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    size=st.integers(1, 12),
    result=st.integers(1, 25),
    mode=st.sampled_from(MODES),
    antialias=st.booleans(),
    exclude=st.booleans(),
)
def test_weights_sum_to_one(size: int, result: int, mode: str, antialias: bool, exclude: bool) -> None:
    """A constant image stays what it is, whatever its size."""
    matrix = interpolation_matrix(Axis(size, result, result / size, mode), antialias, exclude)
    assert matrix.shape == (result, size)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=1e-6)
    assert (matrix >= 0).all()


@settings(max_examples=60)
@given(size=st.integers(1, 12), result=st.integers(1, 25), mode=st.sampled_from(MODES))
def test_linear_weights_are_a_line(size: int, result: int, mode: str) -> None:
    """A ramp stays one between its first and last element."""
    axis = Axis(size, result, result / size, mode)
    got = interpolation_matrix(axis) @ np.arange(size)
    place = np.arange(result)
    expected = {
        "asymmetric": place / axis.scale,
        "align_corners": place * (size - 1) / max(1, result - 1),
    }.get(mode, (place + 0.5) / axis.scale - 0.5)
    if mode == "pytorch_half_pixel" and result == 1:
        expected = np.zeros(1)
    np.testing.assert_allclose(got, np.clip(expected, 0, size - 1), atol=1e-4)


@settings(max_examples=60)
@given(size=st.integers(1, 9), times=st.integers(1, 5))
def test_whole_factors_repeat(size: int, times: int) -> None:
    axis = Axis(size, size * times, float(times), "asymmetric")
    np.testing.assert_array_equal(nearest_indices(axis, "floor"), np.repeat(np.arange(size), times))
    halves = Axis(size, size * times, float(times), "half_pixel")
    np.testing.assert_array_equal(nearest_indices(halves, "round_prefer_floor"), np.repeat(np.arange(size), times))


def test_ties() -> None:
    """Halves, of which the attribute says where they go."""
    axis = Axis(4, 2, 0.5)  # at 0.5 and 2.5
    assert list(nearest_indices(axis, "round_prefer_floor")) == [0, 2]
    assert list(nearest_indices(axis, "round_prefer_ceil")) == [1, 3]
    assert list(nearest_indices(axis, "floor")) == [0, 2]
    assert list(nearest_indices(axis, "ceil")) == [1, 3]

"""Models of one operator, or a short chain, drawn at random: attributes that fit, and some that don't.

What onnxruntime answers, trnrt must; what it refuses, trnrt must refuse in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from planning import Array, onnxruntimes

import trnrt
from trnrt.errors import TrnrtError

Shape = tuple[int, ...]
Drawn = tuple[onnx.ModelProto, dict[str, Array]]


def built(nodes: list[onnx.NodeProto], shape: Shape, constants: Mapping[str, Array], opset: int) -> Drawn:
    """A model with the input x of ``shape`` and the output y, whose shape it doesn't state, and a feed for it."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return model, {"x": np.random.default_rng(shape).standard_normal(shape).astype(np.float32)}


def agree(case: Drawn, tolerance: float = 1e-4) -> None:
    """trnrt answers what onnxruntime answers; what it refuses, or is empty, trnrt refuses, too."""
    model, feeds = case
    try:
        (expected,) = onnxruntimes(model, feeds)
    except Exception:  # its errors have no common type
        expected = np.zeros(0)
    if expected.size == 0:
        with pytest.raises(TrnrtError):
            trnrt.InferenceSession(model.SerializeToString(), cache=False).run(None, feeds)
        return
    (got,) = trnrt.InferenceSession(model.SerializeToString(), cache=False).run(None, feeds)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


def listed(draw: st.DrawFn, count: int, low: int, high: int) -> list[int]:
    """So many numbers."""
    return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))


# -- Resize and Upsample ---------------------------------------------------------------------------------

COORDINATES = [
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
]
ROUNDINGS = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
# Most of them are not what float32 holds; with some a product with a size is a whole number by rounding only.
SCALES = [0.3, 1 / 3, 0.5, 2 / 3, 0.7, 0.9, 1.0, 1.1, 1.3, 1.5, 1.7, 2.0, 2.3, 3.0]


@st.composite
def resizes(draw: st.DrawFn) -> Drawn:
    """A Resize of images, rows, matrices or volumes, by scales or sizes, of all axes or some."""
    opset, mode = draw(st.sampled_from([11, 13, 18, 19, 22])), draw(st.sampled_from(["nearest", "linear"]))
    shape = draw(st.sampled_from([(1, 2), (2,), (2, 1), ()]))
    resized = draw(st.integers(2, 3)) if len(shape) != 1 else 2
    axes = list(range(len(shape), len(shape) + resized))
    shape = (*shape, *listed(draw, resized, 1, 12))
    given: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": draw(st.sampled_from(COORDINATES))}
    if opset < 19 and given["coordinate_transformation_mode"] == "half_pixel_symmetric":
        given["coordinate_transformation_mode"] = "half_pixel"
    if mode == "nearest":
        given["nearest_mode"] = draw(st.sampled_from(ROUNDINGS))
    elif opset >= 18 and given["coordinate_transformation_mode"] != "tf_half_pixel_for_nn":
        # With tf_half_pixel_for_nn onnxruntime's filter writes beyond its weights.
        given |= {"antialias": draw(st.integers(0, 1))}
    named = axes if opset >= 18 and draw(st.booleans()) else list(range(len(shape)))
    if len(named) < len(shape):
        given["axes"] = named
    by_scales = draw(st.booleans())
    roi = [0.25 if axis in axes else 0.0 for axis in named] + [0.9 if axis in axes else 1.0 for axis in named]
    constants: dict[str, Array] = {"roi": np.array(roi if "crop" in str(given) else [], np.float32)}
    if by_scales:
        constants["s"] = np.array([draw(st.sampled_from(SCALES)) if a in axes else 1 for a in named], np.float32)
    else:
        constants["s"] = np.array([draw(st.integers(1, 16)) if a in axes else shape[a] for a in named], np.int64)
        if opset >= 18 and named == axes:
            policies = ["stretch", "not_larger", "not_smaller"]
            given["keep_aspect_ratio_policy"] = draw(st.sampled_from(policies))
    names = ["x", "roi", "s"] if by_scales else ["x", "roi", "", "s"]
    return built([helper.make_node("Resize", names, ["y"], **given)], shape, constants, opset)


@st.composite
def upsamples(draw: st.DrawFn) -> Drawn:
    """Upsample of opsets 7 and 9, and Resize of opset 10."""
    opset, mode = draw(st.sampled_from([7, 9, 10])), draw(st.sampled_from(["nearest", "linear"]))
    shape = (1, 2, *listed(draw, 2, 1, 12))
    scales = [1.0, 1.0, draw(st.sampled_from(SCALES)), draw(st.sampled_from(SCALES))]
    if opset == 7:
        return built([helper.make_node("Upsample", ["x"], ["y"], mode=mode, scales=scales)], shape, {}, opset)
    node = helper.make_node("Resize" if opset == 10 else "Upsample", ["x", "s"], ["y"], mode=mode)
    return built([node], shape, {"s": np.array(scales, np.float32)}, opset)


# -- windows ---------------------------------------------------------------------------------------------

# The first opset in which each has dilations, and ceil_mode.
POOLS = {"MaxPool": (10, 10), "AveragePool": (19, 10), "LpPool": (18, 18)}
RULES = ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]


@st.composite
def pools(draw: st.DrawFn) -> Drawn:
    """A pool of images or rows; windows may be larger than them, and strides larger than windows.

    Some follow a convolution, in the step of which they may be computed.
    """
    op, opset = draw(st.sampled_from(sorted(POOLS))), draw(st.sampled_from([7, 10, 11, 12, 18, 19, 22]))
    rank = draw(st.integers(1, 2))
    kernel = listed(draw, rank, 1, 5)
    given: dict[str, Any] = {"kernel_shape": kernel, "strides": listed(draw, rank, 1, 5)}
    given["auto_pad"] = draw(st.sampled_from(["NOTSET", *RULES]))
    if given["auto_pad"] == "NOTSET":
        # Now and then as much as the window, which is refused.
        given["pads"] = [draw(st.integers(0, min(size, 3) - (size > 1))) for size in kernel * 2]
    if opset >= POOLS[op][0]:
        given["dilations"] = listed(draw, rank, 1, 3)
    if opset >= POOLS[op][1]:
        given["ceil_mode"] = draw(st.integers(0, 1))
    if op == "AveragePool":
        given["count_include_pad"] = draw(st.integers(0, 1))
    if op == "LpPool":
        given["p"] = draw(st.integers(1, 3))
    shape = (1, 2, *listed(draw, rank, 1, 12))
    if draw(st.booleans()):
        return built([helper.make_node(op, ["x"], ["y"], **given)], shape, {}, opset)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node(op, ["c"], ["y"], **given)]
    weight = np.array([[1.0, -2.0], [0.5, 1.5]], np.float32).reshape((2, 2, *[1] * rank))
    return built(nodes, shape, {"w": weight}, opset)


@st.composite
def transposed_convolutions(draw: st.DrawFn) -> Drawn:
    """A ConvTranspose of images or rows, whose result is sized by any of the attributes."""
    rank, groups = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    kernel, strides = listed(draw, rank, 1, 4), listed(draw, rank, 1, 4)
    sizes = listed(draw, rank, 1, 6)
    given: dict[str, Any] = {"strides": strides, "group": groups, "dilations": listed(draw, rank, 1, 3)}
    given["auto_pad"] = draw(st.sampled_from(RULES))
    if draw(st.booleans()):
        given["output_padding"] = [draw(st.integers(0, stride)) for stride in strides]
    sized = draw(st.integers(0, 2))
    if sized == 1:
        given["output_shape"] = [max(1, n * s + draw(st.integers(-4, 4))) for n, s in zip(sizes, strides, strict=True)]
    elif sized == 2 and given["auto_pad"] == "NOTSET":
        given["pads"] = listed(draw, 2 * rank, 0, 2)
    weight = np.random.default_rng(kernel).standard_normal((2 * groups, 3, *kernel)).astype(np.float32)
    opset = draw(st.sampled_from([6, 11, 22]))
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **given)
    return built([node], (1, 2 * groups, *sizes), {"w": weight}, opset)

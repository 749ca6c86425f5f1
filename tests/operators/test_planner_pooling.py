"""AveragePool, LpPool, the global pools, rows of pixels, and windows that SBUF does not hold, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planning import compare, drawn, modelled, onnxruntimes, steps

import trnrt
from trnrt.errors import ModelFileError, UnsupportedModelError

IMAGE = (2, 3, 9, 10)
ATTRIBUTES = [
    "kernel_shape=[2,2]",
    "kernel_shape=[1,1], strides=[2,3]",
    "kernel_shape=[2,3], strides=[2,1]",
    "kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]",
    "kernel_shape=[3,3], strides=[2,2], pads=[0,2,1,0]",
    'kernel_shape=[2,2], auto_pad="VALID"',
    'kernel_shape=[3,3], auto_pad="SAME_UPPER", strides=[2,2]',
    'kernel_shape=[2,4], auto_pad="SAME_LOWER", strides=[2,3]',
    "kernel_shape=[9,10]",
]


def pool(op: str, attributes: str, image: tuple[int, ...] = IMAGE, opset: int = 19) -> onnx.ModelProto:
    given = f"<{attributes}>" if attributes else ""
    channels, height, width = image[1:]
    graph = f"(float[N,{channels},{height},{width}] x) => (float[N,{channels},h,k] y) {{ y = {op}{given}(x) }}"
    return modelled(graph, opset=opset)


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize("attributes", ATTRIBUTES)
def test_averages(attributes: str, include: int) -> None:
    compare(pool("AveragePool", f"{attributes}, count_include_pad={include}"), {"x": drawn(*IMAGE)})


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize(
    "attributes",
    [
        "kernel_shape=[2,2], strides=[2,2], ceil_mode=1",
        "kernel_shape=[3,2], strides=[2,3], ceil_mode=1, pads=[1,0,1,1]",
        "kernel_shape=[2,3], dilations=[3,2], strides=[2,2], pads=[1,2,0,1]",
    ],
)
def test_averages_of_windows_that_end_outside(attributes: str, include: int) -> None:
    compare(pool("AveragePool", f"{attributes}, count_include_pad={include}"), {"x": drawn(*IMAGE)})


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("image", [IMAGE, (1, 1, 1, 1), (3, 130, 7, 5), (1, 2, 150, 160)], ids=str)
def test_global_pools(op: str, image: tuple[int, ...]) -> None:
    compare(pool(op, "", image), {"x": drawn(*image)})


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("size", [(1, 2, 200, 170), (1, 1, 3, 9000)], ids=str)
def test_windows_larger_than_a_band(size: tuple[int, ...], op: str) -> None:
    height, width = (150, 133) if size[2] > 3 else (2, 8500)
    compare(pool(op, f"kernel_shape=[{height},{width}], strides=[3,7]", size), {"x": drawn(*size)})


def test_an_average_between_kernels_on_the_chip() -> None:
    graph = """(float[N,2,9,10] x) => (float[N,3,h,k] y) {
        c = Conv<kernel_shape=[1,1]>(x, w)  r = Relu(c)
        a = AveragePool<kernel_shape=[2,2], strides=[2,2], pads=[1,1,0,0]>(r)  y = Relu(a) }"""
    plan = compare(modelled(graph, {"w": drawn(3, 2, 1, 1)}), {"x": drawn(2, 2, 9, 10)})
    assert "avg_pool2d" in steps(plan)


# Along an axis: the window's size, and what is padded at both ends, which is less.
WINDOWS = st.integers(1, 4).flatmap(lambda size: st.tuples(st.just(size), *[st.integers(0, size - 1)] * 2))


@settings(max_examples=25)
@given(
    image=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 12), st.integers(1, 12)),
    windows=st.tuples(WINDOWS, WINDOWS),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    include=st.integers(0, 1),
)
def test_any_average(
    image: tuple[int, ...], windows: tuple[tuple[int, ...], ...], stride: tuple[int, int], include: int
) -> None:
    assume(all(size + sum(pads) >= window for size, (window, *pads) in zip(image[2:], windows, strict=True)))
    kernel, begins, ends = zip(*windows, strict=True)
    pads = [*begins, *ends]
    given = f"kernel_shape={list(kernel)}, strides={list(stride)}, pads={pads}, count_include_pad={include}"
    compare(pool("AveragePool", given, image), {"x": drawn(*image)})


# -- rows of pixels, norms, whole numbers, every opset ---------------------------------------------------


def pooled(op: str, attributes: str, image: tuple[int, ...], opset: int = 19) -> onnx.ModelProto:
    """A pool of a computed tensor of any rank, and a step that reads it."""
    given = f"<{attributes}>" if attributes else ""
    dims, result = ", ".join(map(str, image[1:])), ", ".join("abcde"[: len(image)])
    graph = f"(float[N,{dims}] x) => (float[{result}] y) {{ r = Tanh(x) p = {op}{given}(r) y = Neg(p) }}"
    return modelled(graph, opset=opset)


ROWS = [
    "kernel_shape=[3]",
    "kernel_shape=[3], strides=[2], pads=[1,2]",
    "kernel_shape=[4], strides=[3], ceil_mode=1, pads=[0,1]",
    "kernel_shape=[3], strides=[2], dilations=[3], pads=[2,1]",
    'kernel_shape=[4], strides=[3], auto_pad="SAME_UPPER"',
    'kernel_shape=[4], strides=[3], auto_pad="SAME_LOWER"',
]


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("attributes", ROWS)
def test_rows_of_pixels(attributes: str, op: str) -> None:
    compare(pooled(op, attributes, (2, 3, 20)), {"x": drawn(2, 3, 20)})
    if op == "AveragePool":
        compare(pooled(op, attributes + ", count_include_pad=1", (2, 3, 20)), {"x": drawn(2, 3, 20)})


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
@pytest.mark.parametrize("image", [(2, 3, 20), (2, 3, 4, 5), (2, 3, 4, 5, 6), (2, 130, 1, 7)], ids=str)
def test_global_pools_of_any_rank(op: str, image: tuple[int, ...]) -> None:
    compare(pooled(op, "", image), {"x": drawn(*image)})


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize(
    "attributes",
    [
        "kernel_shape=[2,3]",
        "kernel_shape=[3,3], strides=[2,2], pads=[1,2,0,1]",
        "kernel_shape=[2,2], dilations=[2,3]",
        "kernel_shape=[3,2], strides=[2,2], ceil_mode=1",
    ],
)
def test_norms(attributes: str, p: int) -> None:
    compare(pooled("LpPool", f"{attributes}, p={p}", IMAGE), {"x": drawn(*IMAGE)})


def test_norms_are_refused_below_one() -> None:
    with pytest.raises(UnsupportedModelError, match="p=0; norms of 1 and more"):
        compare(pooled("LpPool", "kernel_shape=[2,2], p=0", IMAGE), {"x": drawn(*IMAGE)})


@pytest.mark.parametrize("scale", [1e-3, 300.0])
@pytest.mark.parametrize(
    "graph",
    [
        "(float[2,3,4,4] x) => (float[2,3,1,1] y) { y = GlobalLpPool<p=3>(x) }",
        "(float[2,3,4,4] x) => (float[2,3,2,2] y) { y = LpPool<p=3, kernel_shape=[2,2], strides=[2,2]>(x) }",
        "(float[2,3,4,4] x) => (float[2,3,4,4] y) { y = LpPool<kernel_shape=[3,3], pads=[1,1,1,1]>(x) }",
        "(float[2,3,4,4] x) => (float[2,3,1,1] y) { a = Abs(x) b = Mul(a, a) c = Sqrt(b) y = GlobalLpPool<p=3>(c) }",
        "(float[2,3,4,4] x) => (float[2,3,2,2] y) { a = Neg(x) y = LpPool<p=3, kernel_shape=[3,3]>(a) }",
    ],
)
def test_powers_that_float16_does_not_hold(graph: str, scale: float) -> None:
    """Cubes of 300 overflow float16, and those of a thousandth underflow; their roots do neither."""
    model = modelled(graph)
    x = (drawn(2, 3, 4, 4) * scale).astype(np.float32)
    (got,) = trnrt.InferenceSession(model.SerializeToString(), dtype="float16").run(None, {"x": x})
    np.testing.assert_allclose(got, onnxruntimes(model, {"x": x})[0], rtol=1e-2)


@pytest.mark.parametrize("opset", [7, 8, 10, 11, 12, 18, 19, 21, 22, 26])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_every_opset(op: str, opset: int) -> None:
    compare(pooled(op, "kernel_shape=[3,2], strides=[2,2], pads=[1,0,2,1]", IMAGE, opset), {"x": drawn(*IMAGE)})


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("opset", [10, 19, 22])
@pytest.mark.parametrize(
    ("width", "kernel", "stride", "pads"),
    [(10, 3, 2, (1, 1)), (10, 2, 2, (1, 0)), (7, 3, 3, (0, 1)), (4, 2, 3, (1, 1))],
)
def test_ceil_mode(width: int, kernel: int, stride: int, pads: tuple[int, int], opset: int, op: str) -> None:
    """Windows that end beyond the padding; those that would start in it are none, in any opset."""
    attributes = f"kernel_shape=[{kernel}], strides=[{stride}], pads=[{pads[0]},{pads[1]}], ceil_mode=1"
    compare(pooled(op, attributes, (2, 3, width), opset), {"x": drawn(2, 3, width)})


@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_maxima_of_whole_numbers(kind: str) -> None:
    graph = f"({kind}[N,2,6,6] x) => ({kind}[a,b,c,d] y) {{ y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) }}"
    x = np.random.default_rng(0).integers(-100 if kind == "int8" else 0, 127, (2, 2, 6, 6)).astype(kind)
    compare(modelled(graph), {"x": x})


@pytest.mark.parametrize("rule", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("kind", "fallback"), [("uint8", None), ("int8", None), ("double", "onnxruntime")])
def test_maxima_with_padding_that_is_negative(kind: str, fallback: Any, rule: str) -> None:
    """onnxruntime refuses it in floats of 32 and 16 bits alone, where it has a kernel of its own."""
    graph = f'{{ y = MaxPool<kernel_shape=[3,2], strides=[2,3], auto_pad="{rule}">(x) }}'
    x = np.random.default_rng(0).integers(-100 if kind == "int8" else 0, 127, (2, 2, 8, 12))
    x = x.astype("float64" if kind == "double" else kind)
    model = modelled(f"({kind}[N,2,8,12] x) => ({kind}[a,b,c,d] y) {graph}")
    (got,) = trnrt.InferenceSession(model.SerializeToString(), fallback=fallback).run(None, {"x": x})
    np.testing.assert_array_equal(got, onnxruntimes(model, {"x": x})[0])
    model = modelled(f"(float[2,2,8,12] x) => (float[a,b,c,d] y) {graph}")
    with pytest.raises(ModelFileError, match="negative padding"):
        trnrt.InferenceSession(model.SerializeToString()).run(None, {"x": x.astype(np.float32)})


@pytest.mark.parametrize("opset", [13, 16, 19])
@pytest.mark.parametrize("count_include_pad", [0, 1])
@pytest.mark.parametrize("kernel", [(3, 5), (3, 4), (2, 5), (2, 9), (2, 3)])
def test_averages_of_padded_images_that_are_smaller_than_the_window(
    kernel: tuple[int, int], count_include_pad: int, opset: int
) -> None:
    """A window that ends beyond the padding counts what there is, unless padding counts. Pads stay as they are:
    onnxruntime's own clean-up folds them in, and then counts differently."""
    window = f"kernel_shape=[{kernel[0]},{kernel[1]}], strides=[2,3], count_include_pad={count_include_pad}"
    graph = f"(float[N,1,2,4] x) => (float[a,b,c,d] y) {{ p = Pad(x, k)  y = AveragePool<{window}>(p) }}"
    model = modelled(graph, {"k": np.array([0, 0, 0, 1, 0, 0, 0, 2])}, opset)
    x = drawn(2, 1, 2, 4)
    (got,) = trnrt.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(got, onnxruntimes(model, {"x": x}, rewrites=False)[0], rtol=1e-5, strict=True)

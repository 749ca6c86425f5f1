"""AveragePool, the global pools, and windows that SBUF does not hold, against onnxruntime."""

from __future__ import annotations

import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planning import compare, drawn, modelled, steps

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


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    image=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 12), st.integers(1, 12)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pads=st.tuples(*[st.integers(0, 3)] * 4),
    include=st.integers(0, 1),
)
def test_any_average(
    image: tuple[int, ...],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pads: tuple[int, int, int, int],
    include: int,
) -> None:
    assume(all(pad < size for pad, size in zip(pads, (*kernel, *kernel), strict=True)))
    assume(all(image[2 + d] + pads[d] + pads[2 + d] >= kernel[d] for d in (0, 1)))
    given = f"kernel_shape={list(kernel)}, strides={list(stride)}, pads={list(pads)}, count_include_pad={include}"
    compare(pool("AveragePool", given, image), {"x": drawn(*image)})

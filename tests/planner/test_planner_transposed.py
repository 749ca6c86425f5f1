"""ConvTranspose against onnxruntime, and both convolutions with weights that are computed."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from planning import compare, drawn, modelled, steps

Shape = tuple[int, ...]


def transposed(
    attributes: str, image: Shape, weight: Shape, bias: bool = True, opset: int = 17, after: str = ""
) -> onnx.ModelProto:
    """A ConvTranspose of a computed image, and what comes ``after`` it."""
    dims = ", ".join(map(str, image[1:]))
    result = ", ".join("abcd"[: len(image)])
    given = f"<{attributes}>" if attributes else ""
    inputs = "x, w, b" if bias else "x, w"
    made = f"c = ConvTranspose{given}({inputs}) y = {after}(c)" if after else f"y = ConvTranspose{given}({inputs})"
    groups = int(attributes.split("group=")[1].split(",")[0]) if "group=" in attributes else 1
    constants = {"w": drawn(*weight), "b": drawn(weight[1] * groups, seed=1)}
    return modelled(
        f"(float[N, {dims}] x) => (float[{result}] y) {{ {made} }}",
        constants if bias else {"w": constants["w"]},
        opset,
    )


IMAGE = (2, 4, 5, 6)
CASES: dict[str, tuple[str, Shape, Shape]] = {
    "plain": ("", IMAGE, (4, 3, 3, 2)),
    "twice as large": ("strides=[2,2]", IMAGE, (4, 3, 2, 2)),
    "pads and output_padding": ("strides=[2,3], pads=[1,0,2,1], output_padding=[1,2]", IMAGE, (4, 3, 3, 4)),
    "kernel below the stride": ("strides=[3,4]", IMAGE, (4, 3, 1, 2)),
    "dilation and stride": ("strides=[2,3], dilations=[3,2]", IMAGE, (4, 3, 3, 2)),
    "output_shape": ("strides=[2,2], output_shape=[11,13]", IMAGE, (4, 3, 3, 3)),
    "a smaller output_shape": ("strides=[2,2], output_shape=[8,9]", IMAGE, (4, 3, 3, 3)),
    "output_shape, the end cut more": (
        'strides=[2,2], output_shape=[8,10], auto_pad="SAME_UPPER"', IMAGE, (4, 3, 3, 3),
    ),
    "SAME_UPPER": ('strides=[2,3], auto_pad="SAME_UPPER"', IMAGE, (4, 3, 3, 4)),
    "SAME_LOWER": ('strides=[2,3], auto_pad="SAME_LOWER"', IMAGE, (4, 3, 3, 4)),
    "VALID": ('strides=[2,2], auto_pad="VALID", kernel_shape=[3,3]', IMAGE, (4, 3, 3, 3)),
    "groups": ("strides=[2,2], group=2", IMAGE, (4, 3, 3, 3)),
    "depth-wise": ("strides=[2,2], pads=[1,1,1,1], group=4", IMAGE, (4, 1, 4, 4)),
    "a row of pixels": ("strides=[3], pads=[1,2], output_padding=[1]", (2, 4, 9), (4, 3, 4)),
    "a row of pixels, groups": ("strides=[2], group=2, dilations=[2]", (2, 4, 9), (4, 3, 3)),
    "many channels": ("strides=[2,2]", (1, 150, 3, 4), (150, 140, 2, 2)),
}  # fmt: skip


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_transposed_convolution(name: str, bias: bool) -> None:
    attributes, image, weight = CASES[name]
    plan = compare(transposed(attributes, image, weight, bias), {"x": drawn(*image, seed=2)})
    assert list(steps(plan)) == ["conv_transpose2d"]


@pytest.mark.parametrize("opset", [6, 9, 11, 13, 21, 22, 26])
def test_every_opset(opset: int) -> None:
    attributes, image, weight = CASES["pads and output_padding"]
    compare(transposed(attributes, image, weight, opset=opset), {"x": drawn(*image)})


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits(dtype: str) -> None:
    attributes, image, weight = CASES["twice as large"]
    compare(transposed(attributes, image, weight), {"x": drawn(*image)}, dtype=dtype)


@pytest.mark.parametrize("act", ["Relu", "Sigmoid", "Tanh"])
def test_an_activation_is_computed_with_it(act: str) -> None:
    attributes, image, weight = CASES["twice as large"]
    plan = compare(transposed(attributes, image, weight, after=act), {"x": drawn(*image)})
    assert steps(plan) == {"conv_transpose2d": ("ConvTranspose_0", f"{act}_1")}


COMPUTED: dict[str, tuple[str, Shape, Shape, Shape]] = {
    "Conv": ("", (2, 4, 6, 5), (3, 4, 2, 3), (3,)),
    "Conv, blocks": ("", (1, 130, 4, 3), (140, 130, 2, 1), (140,)),
    "Conv, groups": ("group=2", (2, 4, 6, 5), (6, 2, 2, 3), (6,)),
    "Conv, a row of pixels": ("", (2, 4, 9), (3, 4, 3), (3,)),
    "Conv, depth-wise": ("group=140", (1, 140, 4, 3), (140, 1, 2, 2), (140,)),
    "ConvTranspose": ("strides=[2,2]", (2, 4, 6, 5), (4, 3, 2, 3), (3,)),
    "ConvTranspose, groups": ("strides=[2,2], group=2", (2, 4, 6, 5), (4, 3, 2, 3), (6,)),
    "ConvTranspose, a row of pixels": ("strides=[2]", (2, 4, 6), (4, 3, 3), (3,)),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", COMPUTED)
def test_computed_weights(name: str, dtype: str) -> None:
    """Weights, then biases, then both are made by the model; 16-bit answers have up to 780 products."""
    attributes, image, weight, bias = COMPUTED[name]
    op, given = name.split(",")[0], f"<{attributes}>" if attributes else ""
    shapes = [", ".join(map(str, shape)) for shape in (image, weight, bias)]
    result = ", ".join("abcd"[: len(image)])
    for made in ("w", "b", "wb"):
        sources = {"w": "v" if "w" in made else "w", "b": "a" if "b" in made else "b"}
        graph = f"""(float[{shapes[0]}] x, float[{shapes[1]}] w, float[{shapes[2]}] b) => (float[{result}] y) {{
            v = Tanh(w) a = Tanh(b) y = {op}{given}(x, {sources["w"]}, {sources["b"]}) }}"""
        feeds = {"x": drawn(*image), "w": drawn(*weight, seed=1) / 8, "b": drawn(*bias, seed=2)}
        compare(modelled(graph), {key: array.astype(np.float32) for key, array in feeds.items()}, dtype=dtype)


@pytest.mark.parametrize("after", ["", "p = MaxPool<kernel_shape=[2], strides=[2]>(r) y = Identity(p)"])
@pytest.mark.parametrize(
    "attributes",
    [
        "kernel_shape=[3]",
        "kernel_shape=[3], strides=[2], pads=[2,0]",
        "kernel_shape=[3], dilations=[3], pads=[3,2]",
        'kernel_shape=[3], strides=[2], auto_pad="SAME_LOWER"',
        "kernel_shape=[3], group=4, pads=[1,1]",
    ],
)
def test_rows_of_pixels(attributes: str, after: str) -> None:
    """1-D convolutions, with what follows computed in the same pass."""
    inner = 1 if "group=4" in attributes else 4
    end = after or "y = Identity(r)"
    graph = f"(float[N,4,20] x) => (float[a,b,c] y) {{ c = Conv<{attributes}>(x, w) r = Relu(c) {end} }}"
    plan = compare(modelled(graph, {"w": drawn(8, inner, 3)}), {"x": drawn(2, 4, 20)})
    assert list(steps(plan)) == ["conv2d"]

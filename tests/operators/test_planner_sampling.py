"""GridSample and AffineGrid against onnxruntime: modes, borders, opsets, dtypes, batches, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from planning import Array, compare, drawn, modelled

import trnrt
from trnrt.errors import UnsupportedModelError

IMAGE = (2, 3, 6, 5)


def grid(*shape: int) -> Array:
    """Places inside and outside of the image, ties of nearest pixels among them."""
    places = np.random.default_rng([1, *shape]).uniform(-1.3, 1.3, (*shape, 2)).astype(np.float32)
    places[:, :2] = np.round(places[:, :2] * 12) / 12
    return places


def sampler(attributes: str, opset: int = 20) -> str:
    return f"""(float[N,3,6,5] x, float[N,7,4,2] g) => (float[N,a,b,c] y) {{
        r = Tanh(x)  s = GridSample<{attributes}>(r, g)  y = Neg(s) }}"""


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(
    ("opset", "mode"),
    [(16, "bilinear"), (16, "nearest"), (16, "bicubic"), (20, "linear"), (22, "nearest"), (22, "cubic")],
)
def test_modes(opset: int, mode: str, padding: str, align: int) -> None:
    attributes = f'mode="{mode}", padding_mode="{padding}", align_corners={align}'
    plan = compare(modelled(sampler(attributes), opset=opset), {"x": drawn(*IMAGE), "g": grid(2, 7, 4)})
    assert "sample_images" in {step.kernel for step in plan.steps}


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_volumes(mode: str, padding: str, align: int) -> None:
    graph = f"""(float[N,3,4,6,5] x, float[N,2,7,3,3] g) => (float[N,a,b,c,d] y) {{ r = Tanh(x)
        y = GridSample<mode="{mode}", padding_mode="{padding}", align_corners={align}>(r, g) }}"""
    places = np.random.default_rng(1).uniform(-1.6, 1.6, (2, 2, 7, 3, 3)).astype(np.float32)
    compare(modelled(graph, opset=20), {"x": drawn(2, 3, 4, 6, 5), "g": places})


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_targets(target: str) -> None:
    compare(modelled(sampler("align_corners=0"), opset=20), {"x": drawn(*IMAGE), "g": grid(2, 7, 4)}, target=target)


def test_grids_that_are_constant_or_computed() -> None:
    graph = """(float[2,3,6,5] x) => (float[a,b,c,d] y) { r = Tanh(x)  h = Sin(g)  y = GridSample(r, h) }"""
    compare(modelled(graph, {"g": grid(2, 130, 3)}, 20), {"x": drawn(*IMAGE)})
    graph = """(float[2,3,6,5] x, float[2,5,5,2] g) => (float[a,b,c,d] y) { h = Sin(g)  y = GridSample(x, h) }"""
    compare(modelled(graph, opset=20), {"x": drawn(*IMAGE), "g": grid(2, 5, 5)})


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits(dtype: str) -> None:
    """Of a grid that the dtype holds."""
    places = np.round(grid(2, 7, 4) * 16) / 16
    compare(modelled(sampler("align_corners=0"), opset=20), {"x": drawn(*IMAGE), "g": places}, dtype=dtype)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 5, 6), (2, 3, 1, 4), (1, 1, 7, 1), (2, 1, 3, 4, 5)], ids=str)
def test_affine_grids(size: tuple[int, ...], align: int) -> None:
    axes, made = len(size) - 2, ",".join("abcde"[: len(size)])
    graph = f"""(float[{size[0]},{axes},{axes + 1}] t) => (float[{made}] y) {{
        u = Tanh(t)  y = AffineGrid<align_corners={align}>(u, size) }}"""
    model = modelled(graph, {"size": np.array(size, np.int64)}, 20)
    compare(model, {"t": drawn(size[0], axes, axes + 1)})


def test_a_spatial_transformer() -> None:
    """A net finds how each image is turned, and turns it back."""
    graph = """(float[2,3,6,5] x) => (float[a,b,c,d] y) {
        f = Flatten(x)  t = Gemm(f, w, b)  m = Reshape(t, theta)
        g = AffineGrid(m, size)  y = GridSample(x, g) }"""
    constants: dict[str, Array] = {
        "w": drawn(90, 6) / 60,
        "b": np.array([1, 0, 0, 0, 1, 0], np.float32),
        "theta": np.array([2, 2, 3], np.int64),
        "size": np.array([2, 3, 8, 9], np.int64),
    }
    compare(modelled(graph, constants, 20), {"x": drawn(*IMAGE)})


def test_cubic_volumes_are_refused() -> None:
    graph = (
        """(float[2,3,4,6,5] x, float[2,2,7,3,3] g) => (float[a,b,c,d,e] y) { y = GridSample<mode="cubic">(x, g) }"""
    )
    with pytest.raises(UnsupportedModelError, match="mode=cubic of a tensor of 5 dimensions"):
        trnrt.InferenceSession(modelled(graph, opset=20).SerializeToString(), cache=False).run(
            None, {"x": drawn(2, 3, 4, 6, 5), "g": np.zeros((2, 2, 7, 3, 3), np.float32)}
        )

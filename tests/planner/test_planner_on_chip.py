"""Steps that take images in SBUF and leave them there: joined, picked, shuffled, convolved by groups, and gated."""

from __future__ import annotations

import numpy as np
import pytest
from planning import compare, drawn, modelled

from trnrt.planner import Plan

TARGETS = ["trn1", "trn2"]
DTYPES = ["float32", "bfloat16"]


def layouts(plan: Plan) -> dict[str, str]:
    return {step.output: step.layout for step in plan.steps}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("channels", [(64, 64, 128), (10, 130, 3), (64, 128, 32), (160, 32, 96)], ids=str)
def test_concat_of_channels(channels: tuple[int, int, int], target: str, dtype: str) -> None:
    a, b, c = channels
    graph = """(float[N,3,5,6] x) => (float[N,4,5,6] y) {
        a = Conv(x, u)  b = Conv(x, v)  c = Conv(x, w)  j = Concat<axis=1>(a, b, c)  y = Conv(j, t) }"""
    weights = {"u": drawn(a, 3, 1, 1), "v": drawn(b, 3, 1, 1), "w": drawn(c, 3, 1, 1)}
    constants = weights | {"t": drawn(4, a + b + c, 1, 1) / (a + b + c) ** 0.5}
    plan = compare(modelled(graph, constants), {"x": drawn(2, 3, 5, 6) / 2}, target=target, dtype=dtype)
    assert layouts(plan) == {"a": "channels", "b": "channels", "c": "channels", "j": "channels", "y": "hbm"}


def test_concat_with_an_input_and_to_an_output() -> None:
    """DMA brings the input's channels into the tile, and what a tile has to the output."""
    graph = """(float[N,3,5,6] x) => (float[N,8,5,6] k, float[N,4,5,6] y) {
        a = Conv(x, u)  j = Concat<axis=1>(x, a)  k = Concat<axis=1>(a, x)  y = Conv(j, t) }"""
    constants = {"u": drawn(5, 3, 1, 1), "t": drawn(4, 8, 1, 1)}
    plan = compare(modelled(graph, constants), {"x": drawn(2, 3, 5, 6)})
    assert layouts(plan) == {"a": "channels", "j": "channels", "k": "hbm", "y": "hbm"}


def test_concat_of_another_axis_goes_through_hbm() -> None:
    graph = """(float[N,3,5,6] x) => (float[N,4,10,6] y) {
        a = Conv(x, u)  b = Conv(x, v)  j = Concat<axis=2>(a, b)  y = Conv(j, t) }"""
    constants = {"u": drawn(5, 3, 1, 1), "v": drawn(5, 3, 1, 1), "t": drawn(4, 5, 1, 1)}
    plan = compare(modelled(graph, constants), {"x": drawn(2, 3, 5, 6)})
    assert layouts(plan) == {"a": "hbm", "b": "hbm", "j": "hbm", "y": "hbm"}


def test_halves_of_the_channels() -> None:
    graph = """(float[N,3,5,6] x) => (float[N,4,5,6] y) {
        a = Conv(x, u)  b, c = Split<axis=1, num_outputs=2>(a)  d = Conv(b, v)  e = Conv(c, v)
        j = Concat<axis=1>(e, d)  y = Conv(j, t) }"""
    constants = {"u": drawn(6, 3, 1, 1), "v": drawn(3, 3, 1, 1), "t": drawn(4, 6, 1, 1)}
    plan = compare(modelled(graph, constants, opset=18), {"x": drawn(2, 3, 5, 6)})
    assert set(layouts(plan).values()) == {"channels", "hbm"}
    assert [output for output, layout in layouts(plan).items() if layout == "hbm"] == ["y"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("channels", "groups"), [(12, 3), (136, 4), (200, 2)])
def test_channel_shuffle(channels: int, groups: int, target: str, dtype: str) -> None:
    each = channels // groups
    graph = f"""(float[N,3,5,6] x) => (float[N,4,5,6] y) {{
        a = Conv(x, u)  s = Reshape(a, apart)  t = Transpose<perm=[0,2,1,3,4]>(s)  r = Reshape(t, whole)
        d = Conv<group={channels}, pads=[1,1,1,1]>(r, v)  y = Conv(d, w) }}"""
    constants = {
        "u": drawn(channels, 3, 1, 1),
        "v": drawn(channels, 1, 3, 3) / 3,
        "w": drawn(4, channels, 1, 1) / channels**0.5,
        "apart": np.array([-1, groups, each, 5, 6]),
        "whole": np.array([-1, channels, 5, 6]),
    }
    plan = compare(modelled(graph, constants), {"x": drawn(2, 3, 5, 6) / 2}, target=target, dtype=dtype)
    assert layouts(plan) == {"r": "channels", "d": "channels", "y": "hbm"}
    assert [step.kernel for step in plan.steps] == ["conv2d", "conv2d", "conv2d"]
    assert [node.step for node in plan.nodes if node.op == "Reshape"] == [None, plan.steps[0].name]
    # Read elsewhere, too, the channels are moved.
    model = modelled(graph.replace("y = Conv(d, w)", "e = Add(a, d)  y = Conv(e, w)"), constants)
    plan = compare(model, {"x": drawn(2, 3, 5, 6) / 4}, target=target, dtype=dtype)
    assert layouts(plan)["r"] == layouts(plan)["a"] == "channels"
    assert "move_channels" in [step.kernel for step in plan.steps]


def test_shuffle_after_groups_and_pooling() -> None:
    """Of a convolution that keeps its groups, of a pooled one, and of one whose channels become fewer images."""
    graph = """(float[N,3,8,8] x) => (float[N,4,4,4] y, float[2,256,8,8] z) {
        a = Conv(x, u)  b = Conv<group=256>(a, v)  s = Reshape(b, apart)  t = Transpose<perm=[0,2,1,3,4]>(s)
        r = Reshape(t, whole)  m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)  c = Conv(m, w)
        p = Reshape(c, halves)  q = Transpose<perm=[0,2,1,3,4]>(p)  k = Reshape(q, four)  y = Relu(k)
        z = Relu(r) }"""
    constants = {
        "u": drawn(256, 3, 1, 1),
        "v": drawn(256, 1, 1, 1),
        "w": drawn(4, 256, 1, 1) / 16,
        "apart": np.array([-1, 2, 128, 8, 8]),
        "whole": np.array([-1, 256, 8, 8]),
        "halves": np.array([-1, 2, 2, 4, 4]),
        "four": np.array([-1, 4, 4, 4]),
    }
    compare(modelled(graph, constants), {"x": drawn(2, 3, 8, 8)})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("channels", "outputs", "groups"),
    [(6, 4, 2), (130, 130, 130), (192, 192, 96), (136, 136, 4), (192, 96, 2), (258, 4, 2)],
)
def test_groups_in_sbuf(channels: int, outputs: int, groups: int, target: str) -> None:
    """As they are where they fill blocks of 128, else with zeros between them."""
    graph = f"""(float[N,3,6,7] x) => (float[N,4,6,7] y) {{
        a = Conv(x, u)  c = Conv<group={groups}, pads=[1,1,1,1]>(a, v, b)  r = Relu(c)  y = Conv(r, w) }}"""
    constants = {
        "u": drawn(channels, 3, 1, 1) / 2,
        "v": drawn(outputs, channels // groups, 3, 3) / 8,
        "b": drawn(outputs),
        "w": drawn(4, outputs, 1, 1) / outputs**0.5,
    }
    plan = compare(modelled(graph, constants), {"x": drawn(2, 3, 6, 7)}, target=target)
    assert layouts(plan) == {"a": "channels", "r": "channels", "y": "hbm"}


def test_groups_that_take_too_many_zeros_stay_in_hbm() -> None:
    graph = """(float[N,3,4,4] x) => (float[N,4,4,4] y) {
        a = Conv(x, u)  c = Conv<group=2, pads=[1,1,1,1]>(a, v)  y = Conv(c, w) }"""
    constants = {"u": drawn(600, 3, 1, 1) / 2, "v": drawn(600, 300, 3, 3) / 50, "w": drawn(4, 600, 1, 1) / 25}
    plan = compare(modelled(graph, constants), {"x": drawn(1, 3, 4, 4)})
    assert layouts(plan) == {"a": "hbm", "c": "hbm", "y": "hbm"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("batch", "channels"), [(1, 12), (1, 200), (3, 200)])
def test_gates(batch: int, channels: int, target: str, dtype: str) -> None:
    """Squeeze and excite: one number an image and channel times the images that it was made of."""
    graph = """(float[N,3,5,6] x) => (float[N,4,5,6] y) {
        a = Conv(x, u)  m = GlobalAveragePool(a)  d = Conv(m, v)  r = Relu(d)  e = Conv(r, w)  s = Sigmoid(e)
        g = Mul(a, s)  y = Conv(g, t) }"""
    constants = {
        "u": drawn(channels, 3, 1, 1) / 2,
        "v": drawn(4, channels, 1, 1) / channels**0.5,
        "w": drawn(channels, 4, 1, 1),
        "t": drawn(4, channels, 1, 1) / channels**0.5,
    }
    plan = compare(modelled(graph, constants), {"x": drawn(batch, 3, 5, 6)}, target=target, dtype=dtype)
    assert set(layouts(plan).values()) == {"channels", "hbm"}
    assert [output for output, layout in layouts(plan).items() if layout == "hbm"] == ["y"]


@pytest.mark.parametrize("target", TARGETS)
def test_normalised_after_a_concat(target: str) -> None:
    """Scale and shift of each channel, and an activation, where a convolution can't take them."""
    graph = """(float[N,3,5,6] x) => (float[N,4,5,6] y) {
        a = Conv(x, u)  b = Conv(a, v)  j = Concat<axis=1>(a, b)
        n = BatchNormalization(j, scale, shift, mean, var)  r = Relu(n)  y = Conv(r, t) }"""
    numbers = {"scale": drawn(160, seed=1), "shift": drawn(160, seed=2), "mean": drawn(160, seed=3)}
    constants = numbers | {
        "var": np.abs(drawn(160, seed=4)) + 0.5,
        "u": drawn(128, 3, 1, 1) / 2,
        "v": drawn(32, 128, 1, 1) / 11,
        "t": drawn(4, 160, 1, 1) / 13,
    }
    plan = compare(modelled(graph, constants), {"x": drawn(2, 3, 5, 6)}, target=target)
    assert layouts(plan) == {"a": "channels", "b": "channels", "j": "channels", "r": "channels", "y": "hbm"}

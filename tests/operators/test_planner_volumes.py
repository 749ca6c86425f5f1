"""Convolutions and pooling over volumes against onnxruntime, attribute by attribute."""

from __future__ import annotations

import onnx
import pytest
from planning import compare, drawn, modelled, planned, steps

from trnrt.running.profiler import predicted_range_of

Shape = tuple[int, ...]
FLAT, STACKED, STREAMED = "conv2d", "conv3d_stacked", "conv3d_streamed"


def conv(
    attributes: str = "", kernel: Shape = (3, 3, 3), volume: Shape = (2, 3, 5, 6, 7), op: str = "Conv"
) -> onnx.ModelProto:
    """A convolution to 4 channels, or a transposed one."""
    given = f"<{attributes}>" if attributes else ""
    channels, depth, height, width = volume[1:]
    graph = f"""(float[N,{channels},{depth},{height},{width}] x) => (float[N,4,d,h,k] y) {{
        y = {op}{given}(x, w, b) }}"""
    sides = (channels, 4) if op == "ConvTranspose" else (4, channels)
    return modelled(graph, {"w": drawn(*sides, *kernel) / 6, "b": drawn(4)})


CONV_ATTRIBUTES = [
    "",
    "strides=[2,1,3]",
    "pads=[1,1,1,1,1,1]",
    "pads=[0,1,2,2,1,0], strides=[2,2,1]",
    "dilations=[2,1,3], pads=[2,0,3,2,1,3]",
    'auto_pad="VALID"',
    'auto_pad="SAME_UPPER"',
    'auto_pad="SAME_LOWER", strides=[2,2,3]',
]


@pytest.mark.parametrize("attributes", CONV_ATTRIBUTES)
def test_conv_attributes(attributes: str) -> None:
    plan = compare(conv(attributes), {"x": drawn(2, 3, 5, 6, 7)})
    assert list(steps(plan)) == [STACKED]


@pytest.mark.parametrize(
    ("kernel", "attributes", "kernel_called"),
    [
        ((3, 1, 1), "", FLAT),
        ((3, 1, 1), "pads=[1,0,0,1,0,0], strides=[2,1,1], dilations=[2,3,3]", FLAT),
        ((1, 1, 1), "", FLAT),
        ((1, 1, 1), "strides=[2,2,2]", STACKED),
        ((1, 1, 1), "strides=[1,1,2]", STACKED),
        ((1, 1, 1), "pads=[1,0,0,0,0,0]", FLAT),
        ((1, 1, 1), "pads=[0,0,0,0,0,1]", STACKED),
        ((1, 3, 3), "pads=[0,1,1,0,1,1]", STACKED),
        ((1, 2, 3), "pads=[1,0,1,0,1,1], strides=[2,1,2]", STACKED),
        ((2, 1, 3), "", STACKED),
        ((4, 6, 7), "", STACKED),
    ],
)
def test_kernels_and_their_calls(kernel: Shape, attributes: str, kernel_called: str) -> None:
    plan = compare(conv(attributes, kernel), {"x": drawn(2, 3, 5, 6, 7)})
    assert list(steps(plan)) == [kernel_called]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("channels", "outputs", "groups", "kernel_called"),
    [
        (128, 5, 1, STREAMED),
        (130, 140, 1, STACKED),
        (6, 4, 2, STACKED),
        (10, 10, 10, STACKED),
        (60, 60, 60, STACKED),
    ],
)
def test_channels_and_groups(channels: int, outputs: int, groups: int, kernel_called: str, dtype: str) -> None:
    graph = f"""(float[N,{channels},3,4,5] x) => (float[N,{outputs},d,h,k] y) {{
        c = Conv<group={groups}, pads=[1,1,1,1,1,1]>(x, w, b)  y = Relu(c) }}"""
    constants = {"w": drawn(outputs, channels // groups, 3, 3, 3) / 16, "b": drawn(outputs)}
    plan = compare(modelled(graph, constants), {"x": drawn(2, channels, 3, 4, 5)}, dtype=dtype)
    assert list(steps(plan)) == [kernel_called]


@pytest.mark.parametrize("kernel", [(3, 1, 1), (3, 3, 3)])
@pytest.mark.parametrize("channels", [3, 128])
def test_a_residual_sum_and_what_follows_are_fused(kernel: Shape, channels: int) -> None:
    pads = [k // 2 for k in kernel] * 2
    graph = f"""(float[N,{channels},4,5,6] x) => (float[N,{channels},4,5,6] y) {{
        a = Conv<pads={pads}>(x, v, b)  r = Relu(a)  c = Conv<pads={pads}>(r, w)  s = Add(c, x)  y = Relu(s) }}"""
    constants = {"v": drawn(channels, channels, *kernel) / 20, "w": drawn(channels, channels, *kernel) / 20}
    plan = compare(modelled(graph, constants | {"b": drawn(channels)}), {"x": drawn(2, channels, 4, 5, 6)})
    assert len(plan.steps) == 2


def test_computed_weights() -> None:
    graph = """(float[1,2,3,4,5] x, float[3,2,2,2,2] v, float[3] b) => (float[1,3,d,h,k] y) {
        w = Relu(v)  y = Conv(x, w, b) }"""
    compare(modelled(graph, {}), {"x": drawn(1, 2, 3, 4, 5), "v": drawn(3, 2, 2, 2, 2), "b": drawn(3)})


def test_batch_normalization_is_folded() -> None:
    graph = """(float[N,3,4,5,6] x) => (float[N,4,d,h,k] y) {
        c = Conv(x, w)  n = BatchNormalization(c, s, b, m, v)  y = Relu(n) }"""
    constants = {"w": drawn(4, 3, 2, 2, 2) / 3, "s": drawn(4), "b": drawn(4), "m": drawn(4), "v": drawn(4) ** 2 + 0.5}
    plan = compare(modelled(graph, constants), {"x": drawn(2, 3, 4, 5, 6)})
    assert list(steps(plan)) == [STACKED]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_normalizations_and_activations(dtype: str) -> None:
    graph = """(float[N,3,4,5,6] x) => (float[N,3,4,5,6] y) {
        n = BatchNormalization(x, s, b, m, v)  i = InstanceNormalization(n, s, b)  l = LeakyRelu(i)  e = Elu(l)
        p = PRelu(e, k)  y = Tanh(p) }"""
    constants = {"s": drawn(3), "b": drawn(3), "m": drawn(3), "v": drawn(3) ** 2 + 0.5, "k": drawn(3, 1, 1, 1)}
    compare(modelled(graph, constants), {"x": drawn(2, 3, 4, 5, 6)}, dtype=dtype)


TRANSPOSED_ATTRIBUTES = [
    "",
    "strides=[2,2,2]",
    "strides=[2,1,3], pads=[1,0,1,0,1,1]",
    "strides=[3,2,2], output_padding=[1,1,0]",
    "dilations=[2,1,2], pads=[1,1,1,1,1,1]",
    'auto_pad="SAME_UPPER", strides=[2,2,1]',
    'auto_pad="SAME_LOWER", strides=[2,3,2]',
    'auto_pad="VALID", strides=[3,1,1]',
    "strides=[2,2,2], output_shape=[11,13,14]",
    "strides=[2,2,2], output_shape=[10,12,14], pads=[0,0,0,0,0,0]",
]


@pytest.mark.parametrize("attributes", TRANSPOSED_ATTRIBUTES)
def test_transposed_attributes(attributes: str) -> None:
    plan = compare(conv(attributes, op="ConvTranspose"), {"x": drawn(2, 3, 5, 6, 7)})
    assert list(steps(plan)) == ["conv_transpose3d"]


@pytest.mark.parametrize("kernel", [(1, 1, 1), (2, 2, 2), (4, 1, 3)])
def test_transposed_kernels(kernel: Shape) -> None:
    compare(conv("strides=[2,2,2]", kernel, op="ConvTranspose"), {"x": drawn(2, 3, 5, 6, 7)})


def test_transposed_groups_and_activation() -> None:
    graph = """(float[N,4,3,4,5] x) => (float[N,6,d,h,k] y) {
        c = ConvTranspose<group=2, strides=[2,2,2]>(x, w, b)  y = Relu(c) }"""
    plan = compare(modelled(graph, {"w": drawn(4, 3, 3, 3, 3) / 4, "b": drawn(6)}), {"x": drawn(2, 4, 3, 4, 5)})
    assert len(plan.steps) == 1


POOL_ATTRIBUTES = [
    "kernel_shape=[2,2,2]",
    "kernel_shape=[2,2,2], strides=[2,2,2]",
    "kernel_shape=[1,2,2], strides=[1,2,2]",
    "kernel_shape=[2,1,1], strides=[2,1,1]",
    "kernel_shape=[1,1,1]",
    "kernel_shape=[1,1,1], strides=[2,2,2]",
    "kernel_shape=[3,2,4], strides=[2,1,3], pads=[1,0,2,1,1,1]",
    "kernel_shape=[3,3,3], strides=[2,2,2], ceil_mode=1",
    "kernel_shape=[3,3,3], strides=[2,2,2], pads=[1,1,1,1,1,1], ceil_mode=1",
    'kernel_shape=[3,2,3], strides=[2,2,1], auto_pad="SAME_UPPER"',
    'kernel_shape=[2,3,2], strides=[1,2,2], auto_pad="SAME_LOWER"',
    "kernel_shape=[2,2,3], dilations=[2,3,1]",
    "kernel_shape=[2,2,3], dilations=[2,1,3], pads=[1,1,1,0,1,2], ceil_mode=1",
]


def pool(op: str, attributes: str, opset: int) -> onnx.ModelProto:
    graph = f"(float[N,3,5,6,7] x) => (float[N,3,d,h,k] y) {{ y = {op}<{attributes}>(x) }}"
    return modelled(graph, {}, opset=opset)


@pytest.mark.parametrize("attributes", POOL_ATTRIBUTES)
def test_max_pool(attributes: str) -> None:
    compare(pool("MaxPool", attributes, 17), {"x": drawn(2, 3, 5, 6, 7)})


@pytest.mark.parametrize("attributes", POOL_ATTRIBUTES)
def test_average_pool(attributes: str) -> None:
    """With and without the padding, which counts in another way before opset 19; dilations came with it."""
    opsets = [(19, 0), (19, 1), *([] if "dilations" in attributes else [(17, 1)])]
    for opset, counts in opsets:
        compare(pool("AveragePool", f"{attributes}, count_include_pad={counts}", opset), {"x": drawn(2, 3, 5, 6, 7)})


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_averages_are_rounded_once(dtype: str) -> None:
    compare(pool("AveragePool", "kernel_shape=[3,3,3]", 17), {"x": drawn(2, 3, 5, 6, 7)}, dtype=dtype)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_norms(p: int) -> None:
    attributes = f"kernel_shape=[2,3,2], strides=[2,2,1], pads=[1,1,0,0,1,1], p={p}"
    compare(pool("LpPool", attributes, 18), {"x": drawn(2, 3, 5, 6, 7)})


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
def test_global_pools(op: str) -> None:
    graph = f"(float[N,3,5,6,7] x) => (float[N,3,1,1,1] y) {{ y = {op}(x) }}"
    compare(modelled(graph, {}), {"x": drawn(2, 3, 5, 6, 7)})


@pytest.mark.parametrize("kernel", [(3, 1, 1), (3, 3, 3)])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pools_after_convolutions(op: str, kernel: Shape) -> None:
    graph = f"""(float[N,3,6,6,7] x) => (float[N,4,d,h,k] y) {{
        c = Conv(x, w)  r = Relu(c)  y = {op}<kernel_shape=[2,2,2], strides=[2,2,2]>(r) }}"""
    compare(modelled(graph, {"w": drawn(4, 3, *kernel) / 4}), {"x": drawn(2, 3, 6, 6, 7)})


def test_what_a_node_became_is_reported() -> None:
    graph = """(float[N,128,4,5,6] x) => (float[N,4,d,h,k] y) {
        a = Conv<pads=[1,1,1,1,1,1]>(x, w)  b = Conv(a, v)  c = Conv(b, u)  p = MaxPool<kernel_shape=[2,2,2]>(c)
        y = ConvTranspose<strides=[2,2,2]>(p, t) }"""
    constants = {"w": drawn(4, 128, 3, 3, 3) / 30, "v": drawn(4, 4, 3, 3, 3) / 6, "u": drawn(4, 4, 1, 1, 1) / 2}
    plan = compare(modelled(graph, constants | {"t": drawn(4, 4, 2, 2, 2) / 2}), {"x": drawn(1, 128, 4, 5, 6)})
    told = " ".join(report.reason for report in plan.nodes)
    for words in ("a block of channels at a time", "their slices are channels", "each remainder of a slice"):
        assert words in told
    assert "first over the planes" in told


def atrous(channels: int, size: int, dilation: int, outputs: int = 256, batch: int = 1) -> onnx.ModelProto:
    """A convolution of DeepLabV3's over its last features, and its activation."""
    graph = f"""(float[{batch},{channels},{size},{size}] x) => (float[{batch},{outputs},{size},{size}] y) {{
        c = Conv<dilations=[{dilation},{dilation}], pads=[{dilation},{dilation},{dilation},{dilation}]>(x, w, b)
        y = Relu(c) }}"""
    weight = drawn(outputs, channels, 3, 3) / (channels * 3) ** 0.5
    return modelled(graph, {"w": weight, "b": drawn(outputs)})


@pytest.mark.parametrize(
    ("channels", "size", "dilation"), [(960, 33, 24), (960, 65, 36), (2048, 33, 12), (2048, 33, 36), (2048, 65, 24)]
)
def test_atrous_convolutions_are_planned(channels: int, size: int, dilation: int) -> None:
    """At the sizes of DeepLabV3 they fit, and take little more than the tensor engine for the taps that see the image:
    4 cycles a column of float32, at 2.4 GHz."""
    plan = planned(atrous(channels, size, dilation), {"x": (1, channels, size, size)})
    assert list(steps(plan)) == [STREAMED]
    seen = (size + 2 * max(0, size - dilation)) ** 2
    columns = -(-channels // 128) * 2 * seen
    assert predicted_range_of(plan).us < 15 + 1.2 * columns * 4 / 2400


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_atrous_convolutions(dtype: str) -> None:
    """Dilation 14 leaves bands of conv2d a few results, 24 none."""
    for dilation in (14, 24):
        plan = compare(atrous(960, 13, dilation, 12, 2), {"x": drawn(2, 960, 13, 13)}, dtype=dtype)
        assert list(steps(plan)) == [STREAMED]


def test_few_results_in_a_band_are_streamed_only_if_there_are_more() -> None:
    plan = compare(atrous(960, 5, 3, 4), {"x": drawn(1, 960, 5, 5)})
    assert list(steps(plan)) == [FLAT]


def test_dilated_rows_are_streamed() -> None:
    graph = "(float[N,1300,40] x) => (float[N,6,k] y) { y = Conv<dilations=[400], pads=[400,400]>(x, w) }"
    plan = compare(modelled(graph, {"w": drawn(6, 1300, 3) / 40}), {"x": drawn(2, 1300, 40)})
    assert list(steps(plan)) == [STREAMED]

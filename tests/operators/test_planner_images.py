"""Conv and the pooling after it against onnxruntime, attribute by attribute, and in any combination."""

from __future__ import annotations

import onnx
import onnxruntime
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planning import compare, drawn, modelled, steps

Shape = tuple[int, ...]


def conv(attributes: str, kernel: Shape = (3, 3), image: Shape = (2, 3, 9, 10), bias: bool = True) -> onnx.ModelProto:
    """A convolution to 5 channels."""
    inputs = "x, w, b" if bias else "x, w"
    given = f"<{attributes}>" if attributes else ""
    channels, height, width = image[1:]
    graph = f"(float[N,{channels},{height},{width}] x) => (float[N,5,h,k] y) {{ y = Conv{given}({inputs}) }}"
    constants = {"w": drawn(5, channels, *kernel) / 4, "b": drawn(5)}
    return modelled(graph, constants if bias else {"w": constants["w"]})


CONV_ATTRIBUTES = [
    "",
    "kernel_shape=[3,3]",
    "strides=[2,2]",
    "strides=[1,3]",
    "pads=[1,1,1,1]",
    "pads=[0,1,2,3]",
    "pads=[2,0,0,0], strides=[2,1]",
    "dilations=[2,2]",
    "dilations=[1,3], pads=[1,2,0,1], strides=[3,2]",
    'auto_pad="VALID"',
    'auto_pad="VALID", strides=[2,2]',
    'auto_pad="SAME_UPPER"',
    'auto_pad="SAME_LOWER"',
    'auto_pad="SAME_UPPER", strides=[2,2]',
    'auto_pad="SAME_LOWER", strides=[2,3]',
    'auto_pad="NOTSET", pads=[1,0,1,0], group=1',
]


@pytest.mark.parametrize("attributes", CONV_ATTRIBUTES)
def test_conv_attributes(attributes: str) -> None:
    compare(conv(attributes), {"x": drawn(2, 3, 9, 10)})


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("channels", "outputs", "groups"), [(6, 4, 2), (5, 5, 5), (5, 15, 5), (130, 130, 130), (192, 6, 3), (258, 4, 2)]
)
def test_conv_groups(channels: int, outputs: int, groups: int, dtype: str) -> None:
    graph = f"""(float[N,{channels},6,7] x) => (float[N,{outputs},h,k] y) {{
        c = Conv<group={groups}, pads=[1,1,1,1]>(x, w, b)  y = Relu(c) }}"""
    constants = {"w": drawn(outputs, channels // groups, 3, 3) / 8, "b": drawn(outputs)}
    plan = compare(modelled(graph, constants), {"x": drawn(2, channels, 6, 7)}, dtype=dtype)
    assert list(steps(plan)) == ["conv2d"]


@pytest.mark.parametrize(
    "attributes",
    ["", "strides=[3]", "pads=[2,1]", "dilations=[4], pads=[3,0]", 'auto_pad="SAME_LOWER", strides=[2]', "group=2"],
)
def test_conv_over_rows(attributes: str) -> None:
    given = f"<{attributes}>" if attributes else ""
    graph = f"(float[N,4,30] x) => (float[N,6,k] y) {{ c = Conv{given}(x, w, b)  y = Tanh(c) }}"
    w = drawn(6, 2 if "group" in attributes else 4, 5)
    compare(modelled(graph, {"w": w / 4, "b": drawn(6)}), {"x": drawn(2, 4, 30)})


def test_convs_over_rows_follow_each_other() -> None:
    graph = """(float[N,2,30] x) => (float[N,3,k] y) {
        a = Conv<pads=[1,1]>(x, v)  r = Relu(a)  y = Conv<pads=[1,1]>(r, w) }"""
    compare(modelled(graph, {"v": drawn(4, 2, 3), "w": drawn(3, 4, 3)}), {"x": drawn(2, 2, 30)})


@pytest.mark.parametrize(
    ("attributes", "fused"),
    [
        ("kernel_shape=[2,2], strides=[2,2]", True),
        ("kernel_shape=[3,2], pads=[1,0,1,1], count_include_pad=1", True),
        ('kernel_shape=[2,3], auto_pad="VALID"', True),
        ("kernel_shape=[3,2], pads=[1,0,1,1]", False),
        ("kernel_shape=[2,2], strides=[2,2], ceil_mode=1", False),
        ('kernel_shape=[2,2], auto_pad="SAME_UPPER"', False),
    ],
)
def test_conv_and_average(attributes: str, fused: bool) -> None:
    graph = f"""(float[N,2,9,10] x) => (float[N,3,h,k] y) {{
        c = Conv<pads=[1,1,1,1]>(x, w)  r = Relu(c)  y = AveragePool<{attributes}>(r) }}"""
    plan = compare(modelled(graph, {"w": drawn(3, 2, 3, 3) / 4}, opset=19), {"x": drawn(2, 2, 9, 10)})
    assert ("avg_pool2d" not in steps(plan)) == fused


@pytest.mark.parametrize("rule", ["SAME_UPPER", "SAME_LOWER"])
def test_conv_with_even_kernel_and_padding_by_rule(rule: str) -> None:
    compare(conv(f'auto_pad="{rule}"', (2, 4)), {"x": drawn(2, 3, 9, 10)})


@pytest.mark.parametrize("kernel", [(1, 1), (1, 3), (9, 10), (5, 2)], ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_conv_kernels(kernel: Shape, bias: bool) -> None:
    compare(conv("", kernel, bias=bias), {"x": drawn(2, 3, 9, 10)})


@pytest.mark.parametrize("image", [(1, 1, 1, 1), (33, 2, 3, 3), (1, 130, 4, 5), (1, 3, 4, 700)], ids=str)
def test_conv_images(image: Shape) -> None:
    compare(conv("pads=[1,1,1,1]", image=image), {"x": drawn(*image)})


def test_kernel_larger_than_the_image() -> None:
    compare(conv("pads=[3,3,3,3]", (7, 7), (2, 3, 2, 1)), {"x": drawn(2, 3, 2, 1)})


@pytest.mark.parametrize(("kernel", "made"), [((7, 7), True), ((5, 5), False)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_zeros_of_large_depthwise_kernels_are_made_on_chip(kernel: Shape, made: bool, dtype: str) -> None:
    """Two blocks of 128 channels: a small image, whose rows do not share the partitions."""
    pads = ",".join(str(size // 2) for size in (*kernel, *kernel))
    graph = f"(float[2,256,6,7] x) => (float[2,256,6,7] y) {{ y = Conv<group=256, pads=[{pads}]>(x, w, b) }}"
    model = modelled(graph, {"w": drawn(256, 1, *kernel) / 4, "b": drawn(256)})
    plan = compare(model, {"x": drawn(2, 256, 6, 7)}, dtype=dtype)
    taps = kernel[0] * kernel[1]
    stored = sum(array.size for array in plan.weights.values())
    assert stored < 256 * (taps + 8) if made else stored > 256 * 128 * taps


def pool(attributes: str, image: Shape = (2, 3, 9, 10), opset: int = 17) -> onnx.ModelProto:
    channels, height, width = image[1:]
    graph = (
        f"(float[N,{channels},{height},{width}] x) => (float[N,{channels},h,k] y) {{ y = MaxPool<{attributes}>(x) }}"
    )
    return modelled(graph, opset=opset)


POOL_ATTRIBUTES = [
    "kernel_shape=[2,2]",
    "kernel_shape=[1,1]",
    "kernel_shape=[1,1], strides=[2,3]",
    "kernel_shape=[2,3], strides=[2,1]",
    "kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]",
    "kernel_shape=[3,3], strides=[2,2], pads=[0,2,1,0]",
    "kernel_shape=[2,2], strides=[2,2], ceil_mode=1",
    "kernel_shape=[3,2], strides=[2,3], ceil_mode=1, pads=[1,0,1,1]",
    "kernel_shape=[2,3], dilations=[3,2]",
    "kernel_shape=[2,3], dilations=[3,2], strides=[2,2], pads=[1,2,0,1]",
    'kernel_shape=[2,2], auto_pad="VALID"',
    'kernel_shape=[2,2], auto_pad="SAME_UPPER"',
    'kernel_shape=[2,2], auto_pad="SAME_LOWER"',
    'kernel_shape=[3,3], auto_pad="SAME_UPPER", strides=[2,2]',
    'kernel_shape=[3,3], auto_pad="SAME_LOWER", strides=[2,2]',
    "kernel_shape=[2,2], storage_order=1",
    "kernel_shape=[9,10]",
]


@pytest.mark.parametrize("attributes", POOL_ATTRIBUTES)
def test_pool_attributes(attributes: str) -> None:
    compare(pool(attributes), {"x": drawn(2, 3, 9, 10)})


@pytest.mark.parametrize("opset", [10, 17, 22])
@pytest.mark.parametrize(
    "attributes",
    [
        "kernel_shape=[2,2], strides=[3,4], ceil_mode=1",
        "kernel_shape=[1,1], strides=[3,4], ceil_mode=1",
        "kernel_shape=[2,2], strides=[4,4], ceil_mode=1, pads=[1,1,1,1]",
    ],
)
def test_windows_that_start_beyond_the_image(attributes: str, opset: int) -> None:
    """They are left out, in opsets too whose words count them."""
    compare(pool(attributes, opset=opset), {"x": drawn(2, 3, 9, 10)})


@pytest.mark.parametrize("attributes", POOL_ATTRIBUTES)
def test_pool_attributes_where_fused(attributes: str) -> None:
    graph = f"""(float[N,2,9,10] x) => (float[N,3,h,k] y) {{
        c = Conv<kernel_shape=[1,1]>(x, w)  r = Relu(c)  y = MaxPool<{attributes}>(r) }}"""
    plan = compare(modelled(graph, {"w": drawn(3, 2, 1, 1)}), {"x": drawn(2, 2, 9, 10)})
    assert steps(plan) == {"conv2d": ("Conv_0", "Relu_1", "MaxPool_2")}


def test_pool_whose_indices_nobody_reads() -> None:
    graph = "(float[N,2,4,4] x) => (float[N,2,2,2] y) { y, i = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) }"
    compare(modelled(graph), {"x": drawn(2, 2, 4, 4)})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_layers_in_every_dtype(dtype: str, target: str) -> None:
    graph = """(float[N,1,12,12] x) => (float[N,4] y) {
        c = Conv<pads=[1,1,1,1]>(x, v, a)  r = Relu(c)
        m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
        d = Conv(m, w)  s = Relu(d)
        n = MaxPool<kernel_shape=[2,2], strides=[2,2]>(s)
        f = Flatten(n)  y = Gemm(f, u, b) }"""
    constants = {
        "v": drawn(6, 1, 3, 3) / 3, "a": drawn(6), "w": drawn(8, 6, 3, 3) / 7, "u": drawn(32, 4) / 6, "b": drawn(4),
    }  # fmt: skip
    compare(modelled(graph, constants), {"x": drawn(3, 1, 12, 12)}, dtype=dtype, target=target)


def ints(values: Shape) -> str:
    return f"[{','.join(map(str, values))}]"


@st.composite
def attributes(draw: st.DrawFn, least_pad_is_kernel: bool) -> tuple[Shape, str]:
    """A kernel, and it and other attributes in ONNX's textual form. A pool's padding is less than its kernel."""
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    most = [k - 1 if least_pad_is_kernel else 4 for k in (*kernel, *kernel)]
    given = {
        "kernel_shape": kernel,
        "strides": draw(st.tuples(st.integers(1, 4), st.integers(1, 4))),
        "dilations": draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
    }
    parts = [f"{name}={ints(values)}" for name, values in given.items()]
    rules = ["NOTSET", "NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]
    # Of SAME for a dilated pool, or where strides leave gaps of 2, onnxruntime's idea is not ONNX's.
    gaps = any(s > k + 1 for s, k in zip(given["strides"], kernel, strict=True))
    same_is_clear = not gaps and not (least_pad_is_kernel and given["dilations"] != (1, 1))
    rule = draw(st.sampled_from(rules if same_is_clear else ["NOTSET", "VALID"]))
    if rule == "NOTSET":
        parts.append(f"pads={ints(tuple(draw(st.integers(0, m)) for m in most))}")
    else:
        parts.append(f'auto_pad="{rule}"')
    if least_pad_is_kernel:
        parts.append(f"ceil_mode={draw(st.integers(0, 1))}")
    return kernel, ", ".join(parts)


def is_run_by_onnxruntime(model: onnx.ModelProto, image: Shape) -> bool:
    """Attributes that leave nothing of the image, or that onnxruntime and onnx read differently, are no test."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return bool(session.run(None, {"x": drawn(*image)})[0].size)
    except Exception:
        return False


@settings(max_examples=100)
@given(image=st.tuples(st.integers(1, 2), st.just(2), st.integers(1, 12), st.integers(1, 12)), data=st.data())
def test_any_conv(image: Shape, data: st.DataObject) -> None:
    kernel, given_attributes = data.draw(attributes(least_pad_is_kernel=False))
    model = conv(given_attributes, kernel, image)
    assume(is_run_by_onnxruntime(model, image))
    compare(model, {"x": drawn(*image)})


@settings(max_examples=100)
@given(image=st.tuples(st.integers(1, 2), st.just(2), st.integers(1, 12), st.integers(1, 12)), data=st.data())
def test_any_pool(image: Shape, data: st.DataObject) -> None:
    _, given_attributes = data.draw(attributes(least_pad_is_kernel=True))
    model = pool(given_attributes, image, opset=22)
    assume(is_run_by_onnxruntime(model, image))
    compare(model, {"x": drawn(*image)})

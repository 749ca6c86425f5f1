"""MaxPool's Indices and MaxUnpool against onnxruntime: ties, padding, orders, PyTorch's exports, and refusals."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planning import Array, compare, drawn, modelled, onnxruntimes

import trnrt
from trnrt.errors import InputError, UnsupportedModelError

IMAGE = (2, 3, 9, 7)


def pool(attributes: str, image: tuple[int, ...] = IMAGE, opset: int = 17, kind: str = "float") -> onnx.ModelProto:
    """A MaxPool with both outputs, of Relu's results: many are 0, so that windows have several maxima."""
    dims, made = ",".join(map(str, image)), ",".join("abcde"[: len(image)])
    return modelled(
        f"({kind}[{dims}] x) => ({kind}[{made}] y, int64[{made}] i) {{ r = Relu(x) y, i = MaxPool<{attributes}>(r) }}",
        opset=opset,
    )


@pytest.mark.parametrize("opset", [11, 12, 17, 22])
@pytest.mark.parametrize(
    "attributes",
    [
        "kernel_shape=[2,2], strides=[2,2]",
        "kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]",
        "kernel_shape=[3,2], storage_order=1",
        "kernel_shape=[3,2], dilations=[2,3], pads=[1,1,2,0], ceil_mode=1, strides=[2,1]",
        'kernel_shape=[3,3], strides=[2,2], auto_pad="SAME_LOWER"',
        "kernel_shape=[1,1]",
        "kernel_shape=[1,1], strides=[3,2], storage_order=1",
    ],
)
def test_indices(attributes: str, opset: int) -> None:
    compare(pool(attributes, opset=opset), {"x": drawn(*IMAGE)})


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_windows(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))
    sizes, kernel, strides, dilations, before, after = (
        data.draw(st.lists(st.integers(*ends), min_size=rank, max_size=rank))
        for ends in ((1, 9 if rank < 3 else 5), (1, 3), (1, 3), (1, 2), (0, 1), (0, 1))
    )
    image = (data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3)), *sizes)
    ceil, order = data.draw(st.integers(0, 1)), data.draw(st.integers(0, rank - 1))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    assume(all(r <= size for r, size in zip(reach, sizes, strict=True)))
    assume(all(max(b, a) < k for b, a, k in zip(before, after, kernel, strict=True)))
    attributes = f"kernel_shape={kernel}, strides={strides}, dilations={dilations}, pads={before + after}"
    compare(pool(f"{attributes}, ceil_mode={ceil}, storage_order={order}", image), {"x": drawn(*image)})


def test_half_precision_models() -> None:
    compare(pool("kernel_shape=[2,2], strides=[2,2]", kind="float16"), {"x": drawn(*IMAGE).astype(np.float16)})


def test_indices_alone_behind_a_convolution() -> None:
    model = modelled(
        """(float[N,3,9,7] x) => (int64[a,b,c,d] i)
        { c = Conv(x, w) y, i = MaxPool<kernel_shape=[2,2], strides=[2,2]>(c) }""",
        {"w": drawn(4, 3, 3, 3)},
    )
    compare(model, {"x": drawn(*IMAGE)})


PYTORCH = """(float[N,3,9,7] x) => (float[a,b,c,d] y, int64[a,b,c,d] j) {
    r = Relu(x)
    y, i = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(r)
    single, all = MaxPool<kernel_shape=[1,1], strides=[1,1]>(r)
    first = Slice(all, starts, ends, axes)
    j = Sub(i, first)
}"""


def test_indices_within_channels_as_pytorch_exports_them() -> None:
    ranges = {name: np.array(n, np.int64) for name, n in (("starts", [0, 0]), ("ends", [1, 1]), ("axes", [2, 3]))}
    model = modelled(PYTORCH, ranges)
    compare(model, {"x": drawn(*IMAGE)})
    assert onnxruntimes(model, {"x": drawn(*IMAGE)})[1].max() < 63
    compare(model, {"x": drawn(*IMAGE)}, dtype="bfloat16")  # all are below 256


def test_indices_that_the_dtype_would_round_are_refused() -> None:
    model = pool("kernel_shape=[2,2], strides=[2,2]").SerializeToString()
    with pytest.raises(UnsupportedModelError, match="which bfloat16 does not hold"):
        trnrt.InferenceSession(model, dtype="bfloat16", cache=False).run(None, {"x": drawn(*IMAGE)})


def test_what_reads_a_refused_nodes_integers_is_not_to_blame() -> None:
    graph = """(float[4,9,5,2,6] x) => (float[4,9,1,1,2] y, int64[4,9,1,1,2] i)
        { y, i = MaxPool<kernel_shape=[3,1,3], strides=[3,2,2], storage_order=1>(x) }"""
    model = modelled(graph, opset=20).SerializeToString()
    with pytest.raises(UnsupportedModelError) as refused:
        trnrt.InferenceSession(model, dtype="float16", cache=False).run(None, {"x": drawn(4, 9, 5, 2, 6)})
    assert {blocker.reason.split(", ")[-1] for blocker in refused.value.blockers} == {"which float16 does not hold"}


# -- unpooling -------------------------------------------------------------------------------------------

UNPOOL = """(float[N,3,{h},{w}] x) => (float[a,b,c,d] z) {{
    r = Relu(x)
    y, i = MaxPool<kernel_shape=[{k}], strides=[{k}]>(r)
    t = Cos(y)
    u = MaxUnpool<kernel_shape=[{k}], strides=[{k}]>(t, i{size})
    z = Neg(u)
}}"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kernel", ["2,2", "3,2", "1,3"])
def test_unpooling(kernel: str, dtype: str) -> None:
    x = np.round(drawn(2, 3, 12, 6) * 8) / 8  # exact in bfloat16: rounding would make other elements the first maxima
    plan = compare(modelled(UNPOOL.format(h=12, w=6, k=kernel, size="")), {"x": x}, dtype=dtype)
    assert {"max_pool2d", "repeat_pixels"} <= {step.kernel for step in plan.steps}


def test_unpooling_of_images_that_are_not_whole_windows() -> None:
    size = {"s": np.array([2, 3, 11, 7], np.int64)}
    compare(modelled(UNPOOL.format(h=11, w=7, k="3,2", size=", s"), size), {"x": drawn(2, 3, 11, 7)})


def test_a_network_that_pools_and_unpools_twice() -> None:
    """As SegNet does: the indices of the outer MaxPool are needed last."""
    model = modelled(
        """(float[N,3,8,12] x) => (float[N,3,8,12] z) {
        a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a)
        c, i = MaxPool<kernel_shape=[2,2], strides=[2,2]>(b)
        d = Conv<pads=[1,1,1,1]>(c, w) e = Relu(d)
        f, j = MaxPool<kernel_shape=[2,2], strides=[2,2]>(e)
        g = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(f, j)
        h = Conv<pads=[1,1,1,1]>(g, w)
        k = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(h, i)
        z = Conv<pads=[1,1,1,1]>(k, w) }""",
        {"w": drawn(3, 3, 3, 3) / 4},
    )
    x = drawn(2, 3, 8, 12)
    assert np.std(onnxruntimes(model, {"x": x})[0]) > 0.1
    compare(model, {"x": x})


@pytest.mark.parametrize("size", ["", ", s"])
def test_unpooling_at_constant_indices(size: str) -> None:
    """Which need not be a MaxPool's; with a size, they count in it."""
    generator = np.random.default_rng(0)
    constants = {"i": generator.permutation(2 * 3 * 8 * 6)[:72].reshape(2, 3, 4, 3)}
    if size:
        constants["s"] = np.array([2, 3, 9, 6], np.int64)
    graph = f"""(float[2,3,4,3] x) => (float[a,b,c,d] z) {{ r = Cos(x)
        u = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(r, i{size})  z = Neg(u) }}"""
    plan = compare(modelled(graph, constants), {"x": drawn(2, 3, 4, 3)})
    assert all(step.kernel != "max_pool2d" for step in plan.steps)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", ["", ", s"])
def test_unpooling_by_an_input(size: str, dtype: str) -> None:
    """Places that repeat keep the last number, as in onnxruntime."""
    shapes = {"s": np.array([2, 3, 9, 7], np.int64)} if size else {}
    graph = f"""(float[2,3,4,3] x, int64[2,3,4,3] i) => (float[a,b,c,d] z) {{ r = Cos(x)
        u = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(r, i{size})  z = Neg(u) }}"""
    model = modelled(graph, shapes)
    places = np.random.default_rng(0).permutation(288)[:72].reshape(2, 3, 4, 3)
    places[1, 2] = places[0, 0]
    plan = compare(model, {"x": np.round(drawn(2, 3, 4, 3) * 8) / 8, "i": places}, dtype=dtype)
    assert "scatter_rows" in {step.kernel for step in plan.steps}


@pytest.mark.parametrize("place", [-1, 288])
def test_a_place_outside_is_refused_when_it_runs(place: int) -> None:
    model = modelled(
        """(float[2,3,4,3] x, int64[2,3,4,3] i) => (float[a,b,c,d] z)
        { z = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(x, i) }"""
    )
    session = trnrt.InferenceSession(model.SerializeToString(), cache=False)
    with pytest.raises(InputError, match=f"holds {place}, and MaxUnpool .* writes to one of 288 places"):
        session.run(None, {"x": drawn(2, 3, 4, 3), "i": np.full((2, 3, 4, 3), place)})


def scattered(more: str = "a = Sub(i, less) b = Add(a, less)", size: int = 2 * 3 * 8 * 6) -> onnx.ModelProto:
    """What PyTorch writes for unpooling: the pixels' numbers, less those of the images' first, and added again."""
    constants: dict[str, Array] = {
        "less": (np.arange(6) * 48).reshape(2, 3, 1, 1),
        "zeros": np.zeros(size, np.float32),
        "flat": np.array([-1]),
        "shape": np.array([2, 3, -1, 6]),
        "one": np.array([1], np.int64),
    }
    return modelled(
        f"""(float[2,3,8,6] x) => (float[a,b,c,d] z) {{ r = Relu(x)
        y, i = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)  t = Cos(y)  {more}  f = Reshape(b, flat)
        n = Unsqueeze(f, one)  v = Reshape(t, flat)  s = ScatterND(zeros, n, v)  z = Reshape(s, shape) }}""",
        constants,
    )


def test_unpooling_as_pytorch_scatters() -> None:
    plan = compare(scattered(), {"x": drawn(2, 3, 8, 6)})
    assert {"max_pool2d", "repeat_pixels"} <= {step.kernel for step in plan.steps}


@pytest.mark.parametrize("model", [scattered("b = Add(i, one)"), scattered(size=2 * 3 * 9 * 6)])
def test_other_places_are_no_unpooling(model: onnx.ModelProto) -> None:
    with pytest.raises(UnsupportedModelError, match="ScatterND"):
        trnrt.InferenceSession(model.SerializeToString(), cache=False).run(None, {"x": drawn(2, 3, 8, 6)})


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        # Windows that overlap: two of them may choose one pixel.
        (
            """y, i = MaxPool<kernel_shape=[3,3], strides=[2,2]>(x)
            z = MaxUnpool<kernel_shape=[3,3], strides=[2,2]>(y, i)""",
            "indices that the device computes may repeat",
        ),
        # Numbers that go down the columns: MaxUnpool takes them for others.
        (
            """y, i = MaxPool<kernel_shape=[2,2], strides=[2,2], storage_order=1>(x)
            s = Constant<value_ints=[1,2,9,11]>()
            z = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(y, i, s)""",
            "indices that the device computes may repeat",
        ),
        ("y, i = MaxPool<kernel_shape=[9,9]>(x) z = Cast<to=1>(i)", "windows of up to 64 elements"),
    ],
)
def test_refusals(graph: str, reason: str) -> None:
    model = modelled(f"(float[1,2,9,11] x) => (float[a,b,c,d] z) {{ {graph} }}")
    assert len(onnxruntimes(model, {"x": drawn(1, 2, 9, 11)})) == 1
    with pytest.raises(UnsupportedModelError) as caught:
        trnrt.InferenceSession(model.SerializeToString(), cache=False).run(None, {"x": drawn(1, 2, 9, 11)})
    assert reason in str(caught.value)

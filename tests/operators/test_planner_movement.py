"""Operators that move elements, against onnxruntime: between computed tensors, as outputs, and one after the other."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from planning import Array, compare, drawn, modelled

from trnrt import InferenceSession

Shape = tuple[int, ...]


def listed(values: Shape) -> str:
    """A shape, or a list of ints, in ONNX's textual form."""
    return f"[{','.join(map(str, values))}]"


def moved(
    op: str, source: Shape, result: Shape, constants: dict[str, Array] | None = None, opset: int = 17
) -> list[str]:
    """``op`` on a computed tensor r: its result is read by a step, and is an output as well. The kernels."""
    graph = f"""(float{listed(source)} x) => (float{listed(result)} y, float{listed(result)} v) {{
        r = Tanh(x)  v = {op}  y = Relu(v) }}"""
    plan = compare(modelled(graph, constants, opset), {"x": drawn(*source)})
    return [step.kernel for step in plan.steps]


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps", "result"),
    [
        ((1,), (3,), (0,), (1,), (2, 5, 6)),
        ((0, 1), (4, 5), (0, 1), (2, 3), (2, 2, 6)),
        ((-1,), (-100,), (2,), (-1,), (4, 5, 6)),
        ((4,), (0,), (1,), (-2,), (4, 2, 6)),
        ((-3,), (2**62,), (-1,), (1,), (4, 5, 3)),
        ((3,), (-(2**63),), (2,), (-3,), (4, 5, 2)),
        # Before the first element, on the way back: that element.
        ((-100,), (-101,), (1,), (-1,), (4, 1, 6)),
        ((-5,), (-8,), (0,), (-2,), (1, 5, 6)),
    ],
    ids=str,
)
def test_slice(starts: Shape, ends: Shape, axes: Shape, steps: Shape, result: Shape) -> None:
    given = {"s": ints(*starts), "e": ints(*ends), "a": ints(*axes), "t": ints(*steps)}
    moved("Slice(r, s, e, a, t)", (4, 5, 6), result, given)


@pytest.mark.parametrize("pads", [(-1, 0, 0, 1, 0, 0), (1, 0, 0, -1, 0, 0), (0, -5, 0, 0, 2, 0)], ids=str)
def test_pad_that_leaves_nothing_of_its_input(pads: Shape) -> None:
    """What is cut off at one end is all there was: only the padding remains."""
    result = tuple(size + begin + end for size, begin, end in zip((1, 5, 6), pads[:3], pads[3:], strict=True))
    moved("Pad(r, p)", (1, 5, 6), result, {"p": ints(*pads)})


@pytest.mark.parametrize("op", ["Split<axis=0>(c)", "Reshape(c, s)"])
def test_a_constant_in_another_shape_as_an_output(op: str) -> None:
    graph = f"(float[2,3] x) => (float[2,3] y, float[3,2] v) {{ y = Relu(x)  v = {op} }}"
    compare(modelled(graph, {"c": drawn(3, 2), "s": ints(3, -1)}), {"x": drawn(2, 3)})


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "result"),
    [
        ((1, 0), (3, 1000), (1, 2), (4, 2, 6)),
        ((0, 1), (1000, 3), (2, 1), (4, 2, 6)),
        ((-100, -2), (2, 2**62), (0, 2), (2, 5, 2)),
        ((-9, 1), (-1, -1), (1, 0), (2, 4, 6)),
    ],
    ids=str,
)
def test_slice_of_old(starts: Shape, ends: Shape, axes: Shape, result: Shape) -> None:
    """Axes in any order, and ranges that begin before the first element, whose sizes ONNX's inference leaves open."""
    op = f"Slice<starts={listed(starts)}, ends={listed(ends)}, axes={listed(axes)}>(r)"
    moved(op, (4, 5, 6), result, opset=9)


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_split(opset: int) -> None:
    graph = """(float[4, 6, 3] x) => (float[4, 1, 3] a, float[4, 3, 3] y, float[4, 2, 3] c) {
        r = Tanh(x)  a, b, c = %s  y = Relu(b) }"""
    given = {"s": ints(1, 3, 2)}
    if opset < 13:
        compare(modelled(graph % "Split<axis=1, split=[1, 3, 2]>(r)", {}, opset), {"x": drawn(4, 6, 3)})
    else:
        compare(modelled(graph % "Split<axis=1>(r, s)", given, opset), {"x": drawn(4, 6, 3)})


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat(axis: int) -> None:
    shape = [2, 3, 4]
    shape[axis] *= 3
    graph = f"""(float[2, 3, 4] x) => (float{listed(tuple(shape))} y) {{
        r = Tanh(x)  v = Concat<axis={axis}>(r, x, c)  y = Relu(v) }}"""
    compare(modelled(graph, {"c": drawn(2, 3, 4, seed=1)}), {"x": drawn(2, 3, 4)})


def test_concat_of_views() -> None:
    """Halves of a tensor in another order: two transfers, no copy before them."""
    graph = """(float[2, 6, 4] x) => (float[2, 6, 4] y) {
        r = Tanh(x)  a, b = Split<axis=1, num_outputs=2>(r)  v = Concat<axis=1>(b, a)  y = Relu(v) }"""
    plan = compare(modelled(graph, opset=18), {"x": drawn(2, 6, 4)})
    assert [step.kernel for step in plan.steps] == ["compute", "move", "compute"]


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("pads", [(0, 1, 2, 0, 2, 1), (0, -1, 2, 0, 2, -1), (1, 0, 0, 0, 0, 3)], ids=str)
def test_pad(mode: str, pads: Shape) -> None:
    result = tuple(n + pads[d] + pads[d + 3] for d, n in enumerate((4, 5, 6)))
    if mode != "constant" and min(pads) < 0:
        pytest.skip("onnxruntime and ONNX differ on what a negative edge repeats")
    given = {"p": ints(*pads), "w": np.array(1.5, np.float32)}
    value = ", w" if mode == "constant" else ""
    moved(f'Pad<mode="{mode}">(r, p{value})', (4, 5, 6), result, given, opset=19)


@pytest.mark.parametrize("pads", [(0, 2, 0, -1), (0, -1, 0, 2), (1, 3, 1, -2), (2, -1, -3, 3)], ids=str)
def test_pad_that_keeps_nothing(pads: Shape) -> None:
    """What is cut off is all of it: padding is left."""
    result = (3 + pads[0] + pads[2], 1 + pads[1] + pads[3])
    moved("Pad(r, p, w)", (3, 1), result, {"p": ints(*pads), "w": np.array(1.5, np.float32)})


@pytest.mark.parametrize("value", [-np.inf, np.inf])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_pad_with_infinity(value: float, dtype: str) -> None:
    """Before a maximum, as TensorFlow's pools are exported, and before a Softmax, as masks are."""
    graph = """(float[2,3,5,6] x) => (float[2,3,5,4] m, float[2,3,5,8] s) { r = Tanh(x)  v = Pad(r, p, w)
        m = MaxPool<kernel_shape=[1,2], strides=[1,2]>(v) a = Mul(v, minus) s = Softmax(a) }"""
    constants = {"p": ints(0, 0, 0, 2, 0, 0, 0, 0), "w": np.array(value, np.float32)}
    model = modelled(graph, constants | {"minus": np.array(-np.sign(value), np.float32)}, 18).SerializeToString()
    feeds = {"x": drawn(2, 3, 5, 6)}
    mine = InferenceSession(model, dtype=dtype, cache=False).run(None, feeds)
    theirs = onnxruntime.InferenceSession(model).run(None, feeds)
    for one, two in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-6 if dtype == "float32" else 0.02)


def test_pad_of_old() -> None:
    moved('Pad<mode="constant", pads=[0, 1, 0, 2], value=2.5>(r)', (3, 4), (3, 7), opset=10)


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (3, 1, 0, 2), (1, 0, 2, 3), (3, 2, 1, 0)], ids=str)
def test_transpose(order: Shape) -> None:
    shape = (2, 3, 4, 5)
    moved(f"Transpose<perm={listed(order)}>(r)", shape, tuple(shape[d] for d in order))


def test_transposes_cancel() -> None:
    graph = """(float[2, 3, 4, 5] x) => (float[2, 3, 4, 5] y) {
        r = Tanh(x)  a = Transpose<perm=[0, 2, 3, 1]>(r)  b = Transpose<perm=[0, 3, 1, 2]>(a)  y = Relu(b) }"""
    plan = compare(modelled(graph), {"x": drawn(2, 3, 4, 5)})
    assert [step.kernel for step in plan.steps] == ["compute"]


def test_movements_of_one_chain_are_one_copy() -> None:
    graph = """(float[2, 8, 4, 6] x) => (float[2, 48, 2] y) {
        r = Tanh(x)  a = Transpose<perm=[0, 2, 3, 1]>(r)  b = Slice(a, s, e, i, i)
        c = Reshape(b, t)  y = Relu(c) }"""
    given = {"s": ints(2), "e": ints(4), "i": ints(1), "t": ints(2, 48, 2)}
    plan = compare(modelled(graph, given), {"x": drawn(2, 8, 4, 6)})
    assert [step.kernel for step in plan.steps] == ["compute", "move", "compute"]


def test_expand_and_tile() -> None:
    moved("Expand(r, s)", (3, 1, 5), (2, 3, 4, 5), {"s": ints(2, 1, 4, 1)})
    moved("Tile(r, s)", (3, 1, 5), (6, 4, 5), {"s": ints(2, 4, 1)})
    moved("Tile(r, s)", (3, 2), (3, 6), {"s": ints(1, 3)})


@pytest.mark.parametrize(
    ("axis", "indices"),
    [(0, ints(2, 0)), (1, ints(0, 1, 2, 3, 4)), (2, np.array([[0, 2, 4], [5, -1, -6]])), (1, np.array(3))],
    ids=str,
)
def test_gather(axis: int, indices: Array) -> None:
    result = (4, 5, 6)[:axis] + indices.shape + (4, 5, 6)[axis + 1 :]
    moved(f"Gather<axis={axis}>(r, i)", (4, 5, 6), result, {"i": indices})


@pytest.mark.parametrize("op", ["DepthToSpace", 'DepthToSpace<mode="CRD">', "SpaceToDepth"])
def test_blocks(op: str) -> None:
    name, _, rest = op.partition("<")
    attributes = f"<blocksize=2{', ' + rest if rest else '>'}"
    down = name == "SpaceToDepth"
    source, result = ((2, 3, 4, 6), (2, 12, 2, 3)) if down else ((2, 12, 2, 3), (2, 3, 4, 6))
    moved(f"{name}{attributes}(r)", source, result)


def test_short_integers_and_truth_are_moved() -> None:
    for kind, dtype in ((TensorProto.INT8, np.int8), (TensorProto.UINT16, np.uint16), (TensorProto.BOOL, np.bool_)):
        node = helper.make_node("Transpose", ["x"], ["y"])
        graph = helper.make_graph(
            [node],
            "g",
            [helper.make_tensor_value_info("x", kind, [3, 4])],
            [helper.make_tensor_value_info("y", kind, [4, 3])],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        compare(model, {"x": (drawn(3, 4) * 100).astype(dtype)})


def test_a_copy_is_made_once() -> None:
    graph = """(float[2, 3, 4] x) => (float[2, 4, 3] y, float[2, 4, 3] z) {
        r = Tanh(x)  v = Transpose<perm=[0, 2, 1]>(r)  y = Softmax(v)  z = LogSoftmax(v) }"""
    plan = compare(modelled(graph), {"x": drawn(2, 3, 4)})
    assert sum(step.kernel == "transpose_matrices" for step in plan.steps) == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_movement_of_short_floats(dtype: str) -> None:
    graph = """(float[2, 3, 4] x) => (float[2, 4, 3] y) { r = Relu(x)  y = Transpose<perm=[0, 2, 1]>(r) }"""
    compare(modelled(graph), {"x": drawn(2, 3, 4)}, dtype=dtype)

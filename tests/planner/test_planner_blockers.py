"""Models that can't run: every node that is to blame is named at once, with a reason and the way out."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import onnx
import pytest
from planning import Array, Shapes, drawn, modelled, planned, renamed

from trnrt.errors import Blocker, UnsupportedModelError
from trnrt.kernels import argmax, linear, softmax
from trnrt.operators.record import Declaration, records, supported_operators


def blockers(model: onnx.ModelProto, shapes: Shapes) -> list[Blocker]:
    with pytest.raises(UnsupportedModelError) as caught:
        planned(model, shapes)
    assert caught.value.exit_code == 1
    for blocker in caught.value.blockers:
        assert blocker.node and blocker.op and blocker.reason
        assert f"{blocker.op} node {blocker.node!r}: {blocker.reason}" in str(caught.value)
    return caught.value.blockers


def only(graph: str, shape: tuple[int, ...], constants: dict[str, Array] | None = None, opset: int = 17) -> Blocker:
    found = blockers(modelled(graph, constants, opset), {"x": shape})
    assert len(found) == 1, found
    return found[0]


ROWS = "(float[N,4] x) => (float[n,m] y)"
IMAGES = "(float[N,2,6,6] x) => (float[n,m,h,k] y)"

# graph, input shape, constants, operator, what the reason says, what the hint says
TABLE: dict[str, tuple[str, tuple[int, ...], dict[str, Array], str, str, str]] = {
    "operator": (f"{ROWS} {{ y = Hardmax(x) }}", (2, 4), {}, "Hardmax", "the operator is not supported", "--fallback"),
    "operator of another domain": (
        f"{ROWS} {{ y = ai.onnx.ml.SVMRegressor(x) }}", (2, 4), {}, "ai.onnx.ml.SVMRegressor", "not supported", "",
    ),
    "more than are found at once": (
        "(float[N,9000] x) => (float[n,m] y, int64[n,m] i) { y, i = TopK(x, k) }", (1, 9000), {"k": np.array([8193])},
        "TopK", "K=8193 along an axis of 9000 elements: 8200 are found; the kernel holds 8192", "",
    ),
    "argmax of long rows": (
        f"(float[N,{argmax.MAX_COLUMNS + 1}] x) => (int64[n] y) {{ y = ArgMax<axis=1, keepdims=0>(x) }}",
        (1, argmax.MAX_COLUMNS + 1), {}, "ArgMax", "rows of 16777217 elements; the kernel takes 16777216", "",
    ),
    "softmax of long rows": (
        f"(float[N,{softmax.MAX_COLUMNS + 1}] x) => (float[n,m] y) {{ y = Softmax(x) }}",
        (1, softmax.MAX_COLUMNS + 1), {}, "Softmax", "rows of 16777217 elements; the kernel takes 16777216", "",
    ),
    "rows of too many features": (
        f"(float[N,{linear.MAX_FEATURES + 1}] x) => (float[n,1] y) {{ y = Gemm(x, w) }}",
        (1, linear.MAX_FEATURES + 1), {"w": np.zeros((linear.MAX_FEATURES + 1, 1), np.float32)},
        "Gemm", f"rows of {linear.MAX_FEATURES + 1} features", "",
    ),
    "indices of a pool": (
        "(float[N,2,9,9] x) => (float[n,2,a,b] y, int64[n,2,a,b] i) { y, i = MaxPool<kernel_shape=[9,9]>(x) }",
        (2, 2, 9, 9), {}, "MaxPool", "windows of up to 64 elements", "without return_indices",
    ),
    "pool of four dimensions": (
        "(float[N,2,3,3,3,3] x) => (float[n,2,a,b,c,d] y) { y = MaxPool<kernel_shape=[2,2,2,2]>(x) }",
        (2, 2, 3, 3, 3, 3), {}, "MaxPool", "MaxPool over 4 dimensions", "a Reshape before and after",
    ),
    "indices of a pool of volumes": (
        "(float[N,2,6,6,6] x) => (float[n,2,2,2,2] y, int64[n,2,2,2,2] i) { y, i = MaxPool<kernel_shape=[5,5,5]>(x) }",
        (2, 2, 6, 6, 6), {}, "MaxPool", "the Indices output is used", "without return_indices",
    ),
    "conv of four dimensions": (
        "(float[N,2,3,3,3,3] x) => (float[n,3,a,b,c,d] y) { y = Conv(x, w) }", (2, 2, 3, 3, 3, 3),
        {"w": drawn(3, 2, 2, 2, 2, 2)}, "Conv", "a convolution over 4 dimensions", "volumes (N, C, D, H, W)",
    ),
    "large computed kernel": (
        "(float[1,4096,1,1] x, float[4096,4096,1,1] i) => (float[n,m,h,k] y) { y = Conv(x, i) }", (1, 4096, 1, 1), {},
        "Conv", "a computed weight of 16777216 elements", "",
    ),
    "large transposed conv": (
        "(float[N,1,2,2] x) => (float[n,1,h,k] y) { y = ConvTranspose<dilations=[120,120]>(x, w) }", (1, 1, 2, 2),
        {"w": drawn(1, 1, 3, 3)}, "ConvTranspose",
        "a kernel of (3, 3) with dilation (120, 120) over 1 channels needs more input", "a smaller kernel",
    ),
    "coordinates": (
        '(float[N,2,4,4] x) => (float[n,2,h,k] y) { y = Resize<coordinate_transformation_mode="odd">(x, , s) }',
        (1, 2, 4, 4), {"s": np.array([1, 1, 2, 2], np.float32)}, "Resize",
        "coordinate_transformation_mode=odd; ONNX knows half_pixel", "export it again",
    ),
    "large conv": (
        "(float[N,1,2,12000] x) => (float[n,1,h,k] y) { y = Conv<dilations=[1,11000]>(x, w) }", (1, 1, 2, 12000),
        {"w": drawn(1, 1, 1, 2)}, "Conv", "a kernel of (1, 1, 2) with dilation (1, 1, 11000)", "less dilation",
    ),
    "float64": (
        "(double[N,4] x) => (double[n,4] y) { y = Relu(x) }", (2, 4), {}, "Relu", "arithmetic on double", "float32",
    ),
    "integers": (
        "(int64[N,4] x) => (int64[n,4] y) { y = Pow(x, x) }", (2, 4), {},
        "Pow", "arithmetic on int64", "float32",
    ),
    "text to numbers": (
        "(string[N,4] x) => (float[n,4] y) { y = Cast<to=1>(x) }", (2, 4), {}, "Cast", "from or to strings", "before",
    ),
    "look-up in computed numbers": (
        "(float[N,4] x) => (float[n,m] y) "
        "{ r = Relu(x) i = ArgMax<axis=1>(x) y = ai.onnx.ml.ArrayFeatureExtractor(r, i) }",
        (2, 4), {}, "ai.onnx.ml.ArrayFeatureExtractor", "only the look-up of a constant", "",
    ),
    "mask of a dropout": (
        "(float[N,4] x) => (float[n,4] y, bool[n,4] mask) { y, mask = Dropout<seed=1>(x, ratio, training) }",
        (2, 4), {"ratio": np.array(0.5, np.float32), "training": np.array(True)}, "Dropout", "", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_blocker(name: str) -> None:
    graph, shape, constants, op, reason, hint = TABLE[name]
    model = modelled(graph, constants, opset=20)
    found = blockers(model, {"x": shape} | ({"i": (4096, 4096, 1, 1)} if " i)" in graph.split("=>")[0] else {}))
    assert [blocker.op for blocker in found] == [op]
    assert reason in found[0].reason and hint in found[0].hint


def test_all_of_them_at_once() -> None:
    """One model, many reasons: each node to blame is listed, in order, and those that only follow are not."""
    graph = """(float[N,2,6,6] x, double[N,4] d) => (float[a,b] y, int64[n,e] where, double[n,4] s, float[n,e] z) {
        [up] c = Resize<coordinate_transformation_mode="odd">(x, , scales)
        [act] r = Hardmax(c)
        [pool] p = MaxPool<kernel_shape=[2,2]>(r)
        [flat] f = Flatten(p)
        [sum] y = Gemm<transA=1>(f, u)
        [best] i = ArgMax<axis=0>(f)
        [same] where = Identity(i)
        [wide] s = Relu(d)
        [found] q = NonZero(x)
        [float] t = Cast<to=1>(q)
        [last] z = Relu(t) }"""
    constants = {"u": drawn(3, 5), "scales": np.array([1, 1, 1.5, 1.5], np.float32)}
    found = blockers(modelled(graph, constants), {"x": (3, 2, 6, 6), "d": (3, 4)})
    assert [blocker.node for blocker in found] == ["up", "act", "wide", "found"]


def test_nodes_behind_an_unknown_shape_are_not_to_blame() -> None:
    graph = """(float[N,4] x) => (float[a,b] y) {
        q = NonZero(x)  f = Cast<to=1>(q)  r = Relu(f)  t = Transpose(r)  z = Softmax(t)  y = Identity(z) }"""
    found = blockers(modelled(graph), {"x": (3, 4)})
    assert [blocker.op for blocker in found] == ["NonZero"]


def test_a_blocked_index_is_no_reason_for_what_follows() -> None:
    graph = """(double[N,4] x) => (int64[m] label) {
        i = ArgMax<axis=0>(x)  found = ai.onnx.ml.ArrayFeatureExtractor(table, i)
        label = Reshape(found, minus) }"""
    found = blockers(modelled(graph, {"table": np.arange(3), "minus": np.array([-1])}), {"x": (3, 4)})
    assert [blocker.op for blocker in found] == ["ArgMax"]


def test_a_name_in_a_message_stays_data() -> None:
    model = modelled(f"{ROWS} {{ [name] y = Hardmax(x) }}", opset=20)
    model.graph.node[0].name = "a\nb"
    found = blockers(model, {"x": (2, 4)})
    assert found[0].node == "a\nb"


def test_an_operator_that_is_no_word() -> None:
    model = modelled(f"{ROWS} {{ y = Gelu(x) }}")
    model.graph.node[0].op_type, model.graph.node[0].domain = "Do\nIt\x1b[31m", "my\rdomain"
    model.opset_import.add(domain="my\rdomain", version=1)
    found = blockers(model, {"x": (2, 4)})
    assert found[0].op == r"my\rdomain.Do\nIt\x1b[31m"


def test_every_operator_is_claimed_once() -> None:
    gemm = records()["", "Gemm"]
    with pytest.raises(ValueError, match="Gemm is declared twice"):
        Declaration(**{field.name: getattr(gemm, field.name) for field in fields(Declaration)})(lambda *_: None)
    operators = supported_operators()
    assert len(operators) == len(set(operators))
    wanted = """Gemm MatMul Add Relu Softmax ArgMax Conv MaxPool Flatten Reshape Identity Dropout Cast Transpose"""
    assert {("", op) for op in wanted.split()} <= set(operators)


def test_reasons_are_one_line() -> None:
    model = modelled("(double[N,4] x) => (double[n,4] y) { r = Relu(x) s = Identity(r) y = Tanh(s) }")
    found = blockers(renamed(model, {"x": "a\nb\x1b", "r": "\u202ec\r"}), {"a\nb\x1b": (2, 4)})
    assert len(found) == 2
    assert all((blocker.reason + blocker.hint).isprintable() for blocker in found)

"""Look-ups by the indices of TopK, ArgMax and ArgMin, and by what is computed of them: heads of detectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from planning import compare, drawn, modelled, planned, steps

from trnrt.errors import UnsupportedModelError

Array = NDArray[Any]


def head(batch: int, anchors: int, classes: int, k: int) -> onnx.ModelProto:
    """The best anchors by their best class, then the best of their scores: boxes, scores and classes."""
    graph = f"""(float[{batch}, {anchors}, {4 + classes}] x) => (float[{batch}, {k}, 6] y) {{
        boxes, scores = Split<axis=-1>(x, parts)  best = ReduceMax<keepdims=0>(scores, last)
        unread, anchor = TopK<axis=1>(best, k)
        column = Unsqueeze(anchor, two)  rows = Expand(column, wide)  kept = GatherElements<axis=1>(scores, rows)
        flat = Flatten<axis=1>(kept)  score, place = TopK<axis=1>(flat, k)
        class = Mod(place, classes)  row = Div(place, classes)  mine = GatherElements<axis=1>(anchor, row)
        corner = Unsqueeze(mine, two)  corners = Expand(corner, four)  box = GatherElements<axis=1>(boxes, corners)
        a = Unsqueeze(score, two)  b = Cast<to=1>(class)  c = Unsqueeze(b, two)  y = Concat<axis=-1>(box, a, c) }}"""
    constants = {
        "parts": np.array([4, classes]),
        "last": np.array([-1]),
        "k": np.array([k]),
        "two": np.array([2]),
        "wide": np.array([1, 1, classes]),
        "four": np.array([1, 1, 4]),
        "classes": np.array(classes),
    }
    return modelled(graph, constants, opset=18)


def with_ties(*shape: int) -> Array:
    """Boxes and scores of few bits, which 16 bits represent: many scores are equal."""
    x = np.round(8 * drawn(*shape)) / 8
    x[..., :4] = np.random.default_rng(1).integers(0, 256, (*shape[:-1], 4))
    return x


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("batch", "anchors", "classes", "k"), [(1, 40, 5, 12), (3, 90, 7, 30), (1, 1200, 9, 300), (2, 30, 1, 30)]
)
def test_a_head_of_boxes(batch: int, anchors: int, classes: int, k: int, dtype: str) -> None:
    """Of equal scores the first one comes first, as in onnxruntime: the answers are equal."""
    model, feeds = head(batch, anchors, classes, k), {"x": with_ties(batch, anchors, 4 + classes)}
    plan = compare(model, feeds, dtype=dtype)
    assert not plan.host
    assert [step.kernel for step in plan.steps].count("gather_rows") == 3


def test_normal_scores_give_the_same_boxes() -> None:
    compare(head(2, 500, 11, 100), {"x": drawn(2, 500, 15)})


def test_whole_rows_are_looked_up_together() -> None:
    plan = compare(head(1, 64, 8, 10), {"x": with_ties(1, 64, 12)})
    shapes = [step.shape for step in plan.steps if step.kernel == "gather_rows"]
    assert sorted(shapes) == [(10, 1), (10, 4), (10, 8)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_class_that_16_bits_would_round_is_refused(dtype: str) -> None:
    classes = 300 if dtype == "bfloat16" else 3000
    message = rf"indices of up to {classes - 1} as {dtype}, which counts only up to (256|2048)"
    with pytest.raises(UnsupportedModelError, match=message):
        compare(head(1, 16, classes, 4), {"x": with_ties(1, 16, 4 + classes)}, dtype=dtype)
    compare(head(1, 16, classes, 4), {"x": with_ties(1, 16, 4 + classes)})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parts_by_an_index_beside_a_constant_one(dtype: str) -> None:
    """x[batch, place // classes], as numpy's indexing is exported."""
    graph = """(float[2, 70, 4] x, float[2, 600] s) => (float[2, 9, 4] y) {
        v, i = TopK<axis=1>(s, k)  d = Div(i, ten)  u = Unsqueeze(d, two)
        n = Concat<axis=-1>(batch, u)  y = GatherND(x, n) }"""
    batch = np.broadcast_to(np.arange(2).reshape(2, 1, 1), (2, 9, 1)).copy()
    constants = {"k": np.array([9]), "ten": np.array(10), "two": np.array([2]), "batch": batch}
    x = with_ties(2, 70, 4)
    compare(modelled(graph, constants), {"x": x, "s": np.round(4 * drawn(2, 600))}, dtype=dtype)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_elements_by_a_topk_along_each_axis(axis: int, dtype: str) -> None:
    """Its own elements again; the indices are an output of the model, too."""
    graph = f"""(float[4, 5, 6] x) => (float[k0, k1, k2] y, int64[k0, k1, k2] i) {{
        v, i = TopK<axis={axis}, largest=0>(x, k)  y = GatherElements<axis={axis}>(x, i) }}"""
    for d, size in enumerate((4, 5, 6)):
        graph = graph.replace(f"k{d}", str(3 if d == axis else size))
    compare(modelled(graph, {"k": np.array([3])}), {"x": np.round(2 * drawn(4, 5, 6))}, dtype=dtype)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_arithmetic_on_an_extremes_index(op: str, dtype: str) -> None:
    """Counted from the end, twice, reversed, and compared; beyond what 16 bits represent."""
    graph = f"""(float[5, 700] x) => (float[5, 3] y, float[5, 3] z, int64[5] i, bool[5] f) {{
        i = {op}<axis=1, keepdims=0>(x)  n = Sub(i, all)  y = Gather(t, n)
        m = Mul(i, two)  r = Sub(most, m)  a = Abs(r)  z = Gather(t, a)  f = Less(i, half) }}"""
    table = np.round(8 * drawn(700, 3)) / 8
    numbers = {"all": 700, "two": 2, "most": 699, "half": 350}
    constants = {"t": table} | {name: np.array(number) for name, number in numbers.items()}
    plan = compare(modelled(graph, constants), {"x": drawn(5, 700)}, dtype=dtype)
    assert "gather_rows" in {step.kernel for step in plan.steps}


def test_a_search_reads_what_another_one_found() -> None:
    """Indices are whole numbers: they are moved, reduced, searched, and looked up themselves."""
    graph = """(float[6, 40] x) => (float[6, 4] y, int64[6] m, float[4, 6] z) {
        v, i = TopK<axis=1>(x, four)  w, j = TopK<axis=1>(i, four)  y = GatherElements<axis=1>(x, w)
        m = ReduceMax<axes=[1], keepdims=0>(i)  t = Transpose<perm=[1, 0]>(j)  q = GatherElements<axis=1>(i, j)
        p = Transpose<perm=[1, 0]>(q)  z = Cast<to=1>(p) }"""
    compare(modelled(graph, {"four": np.array([4])}), {"x": drawn(6, 40)})


def test_a_final_index_still_becomes_int64_on_the_host() -> None:
    graph = """(float[6, 40] x) => (int32[4, 6] j, float[6, 4] v) {
        v, i = TopK<axis=1>(x, four)  t = Transpose<perm=[1, 0]>(i)  j = Cast<to=6>(t) }"""
    plan = compare(modelled(graph, {"four": np.array([4])}), {"x": drawn(6, 40)})
    assert [node.op for node in plan.host] == ["TopK", "Transpose", "Cast"]
    assert "compute" not in steps(plan)


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        ("g = GatherElements<axis=1>(t, i)", "0 to 39, of 30 elements"),
        ("d = Div(i, one)  g = GatherElements<axis=1>(t, d)", "0 to 39, of 30 elements"),
        ("d = Add(i, one)  m = Mod(d, many)  g = GatherElements<axis=1>(t, m)", "0 to 30, of 30 elements"),
        ("d = Mul(i, s)  g = GatherElements<axis=1>(t, d)", "-10223616 to 10223616, of 30 elements"),
    ],
)
def test_an_index_that_may_be_out_of_bounds_is_refused(nodes: str, found: str) -> None:
    graph = f"(float[2, 40] x, int64[1] s) => (float[2, 3] g) {{ v, i = TopK<axis=1>(x, k)  {nodes} }}"
    constants = {"k": np.array([3]), "one": np.array(1), "many": np.array(31), "t": drawn(2, 30)}
    with pytest.raises(UnsupportedModelError, match=f"may be out of bounds: {found}"):
        compare(modelled(graph, constants), {"x": drawn(2, 40), "s": np.array([1])})


def test_a_quotient_that_is_within_bounds_is_taken() -> None:
    graph = """(float[2, 40] x) => (float[2, 3] g) {
        v, i = TopK<axis=1>(x, k)  d = Div(i, two)  g = GatherElements<axis=1>(t, d) }"""
    constants = {"k": np.array([3]), "two": np.array(2), "t": drawn(2, 20)}
    compare(modelled(graph, constants), {"x": drawn(2, 40)})


def test_readers_of_a_search_that_is_refused_are_not_to_blame() -> None:
    graph = "(double[2,3] x) => (int64[2,1] y) { i = ArgMax<axis=1>(x)  y = Sub(i, one) }"
    with pytest.raises(UnsupportedModelError) as caught:
        planned(modelled(graph, {"one": np.array(1)}), {"x": (2, 3)})
    assert [blocker.op for blocker in caught.value.blockers] == ["ArgMax"]

"""The ends of detectors: the host computes what chooses by the data, and what follows, where no layer does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from dividing import placed
from planning import Array, drawn, modelled, onnxruntimes

import trnrt
from trnrt.errors import OptionError, UnsupportedModelError
from trnrt.importer import import_model
from trnrt.planner import PlanOptions
from trnrt.planner.parts.ends import ARRANGING, CHOOSING
from trnrt.planner.parts.partition import fallback_notes
from trnrt.planner.parts.ways_out import cut_model, fallback_cost, find_cut
from trnrt.predict.job import Request, prepare
from trnrt.predict.part import make_part
from trnrt.predict.source import Asked

RNG = np.random.default_rng(0)
DETECTOR: dict[str, Array] = {
    "w": RNG.standard_normal((8, 3, 3, 3)).astype(np.float32) * 0.3,
    "bw": RNG.standard_normal((4, 8, 1, 1)).astype(np.float32),
    "sw": RNG.standard_normal((5, 8, 1, 1)).astype(np.float32),
    "bs": np.array([1, 4, -1]),
    "ss": np.array([1, 5, -1]),
    "most": np.array(3),
    "iou": np.array(0.5, np.float32),
    "least": np.array(0.55, np.float32),
    "two": np.array(2),
    "hw": np.ones((4, 2), np.float32),
}
BODY = """f = Conv<pads=[1,1,1,1]>(x, w)  r = Relu(f)  bm = Conv(r, bw)  sm = Conv(r, sw)  bg = Sigmoid(bm)
    sg = Sigmoid(sm)  br = Reshape(bg, bs)  boxes = Transpose<perm=[0,2,1]>(br)  scores = Reshape(sg, ss)
    sel = NonMaxSuppression(boxes, scores, most, iou, least)  idx = Gather<axis=1>(sel, two)
    chosen = Gather<axis=1>(boxes, idx)"""
IMAGE = {"x": drawn(1, 3, 12, 12)}
BOXES = modelled(
    f"(float[1,3,12,12] x) => (int64[k,3] sel, float[1,k,4] chosen, float[1,5,144] scores) {{ {BODY} }}", DETECTOR
)
HEAD = modelled(f"(float[1,3,12,12] x) => (float[1,k,2] y) {{ {BODY}  y = MatMul(chosen, hw) }}", DETECTOR)

ENDS = {
    "NonZero": (
        "(float[1,3,4,4] x) => (int64[4,k] y, float[k] z) { a = Conv(x, c)  b = Greater(a, h)  y = NonZero(b)"
        "  i = Transpose<perm=[1,0]>(y)  z = GatherND(a, i) }",
        {"c": drawn(2, 3, 1, 1), "h": np.array(0.1, np.float32)},
        ["Greater", "NonZero", "Transpose", "GatherND"],
    ),
    "a fixed number of boxes": (
        "(float[1,3,4,4] x) => (float[40] z) { a = Conv(x, c)  b = Greater(a, h)  y = NonZero(b)"
        "  i = Transpose<perm=[1,0]>(y)  g = GatherND(a, i)  s = Shape(g)  m = Sub(forty, s)"
        "  p = Concat<axis=0>(zero, m)  z = Pad(g, p) }",
        {"c": drawn(2, 3, 1, 1), "h": np.array(0.1, np.float32), "forty": np.array([40]), "zero": np.array([0])},
        ["Greater", "NonZero", "Transpose", "GatherND", "Shape", "Sub", "Concat", "Pad"],
    ),
    # One tensor leaves the device, not the scores of each class and where they are high.
    "classes": (
        "(float[40,6] x) => (float[k] y) { a = Softmax<axis=1>(x)"
        + "".join(
            f"  s{k} = Gather<axis=1>(a, i{k})  h{k} = Greater(s{k}, h)  n{k} = NonZero(h{k})"
            f"  t{k} = Transpose<perm=[1,0]>(n{k})  g{k} = GatherND(s{k}, t{k})"
            for k in range(3)
        )
        + "  y = Concat<axis=0>(g0, g1, g2) }",
        {"h": np.array(0.2, np.float32)} | {f"i{k}": np.array(2 * k) for k in range(3)},
        [*["Gather", "Greater", "NonZero", "Transpose", "GatherND"] * 3, "Concat"],
    ),
    "RoiAlign": (
        "(float[1,3,8,8] x) => (float[2,4,2,2] y) { a = Conv(x, c)"
        "  y = RoiAlign<output_height=2, output_width=2, sampling_ratio=2>(a, rois, which) }",
        {
            "c": drawn(4, 3, 1, 1),
            "rois": np.array([[0, 0, 4, 4], [1, 2, 6, 7]], np.float32),
            "which": np.zeros(2, np.int64),
        },
        ["RoiAlign"],
    ),
    "If": (
        "(float[1,6,4] x) => (float[1,k,4] y) { f = Exp(x)  r = ReduceMax<axes=[2], keepdims=0>(f)"
        "  s = Unsqueeze(r, one)"
        "  q = NonMaxSuppression(f, s, most, iou, least)  n = Shape<end=1>(q)  c = Greater(n, none)"
        "  y = If (c) <then_branch = t () => (float[1,k,4] d) { i = Gather<axis=1>(q, two)"
        "  d = Gather<axis=1>(f, i) }, else_branch = e () => (float[1,z,4] g) { g = Identity(f) }> }",
        {name: DETECTOR[name] for name in ("most", "iou", "least", "two")}
        | {"none": np.array([0]), "one": np.array([1])},
        ["NonMaxSuppression", "Shape", "Greater", "If"],
    ),
    "Compress": (
        "(float[2,3] x) => (float[2,k] y) { a = Exp(x)  y = Compress<axis=1>(a, keep) }",
        {"keep": np.array([True, False, True])},
        ["Compress"],
    ),
    "a number of elements": (
        "(float[1,3,4,4] x) => (int64 y) { a = Conv(x, c)  b = Greater(a, h)  n = NonZero(b)  s = Shape(n)"
        "  y = ReduceProd<keepdims=0>(s) }",
        {"c": drawn(2, 3, 1, 1), "h": np.array(0.1, np.float32)},
        ["NonZero", "Shape", "ReduceProd"],
    ),
    # Constants without elements are the kernel's.
    "Resize without a roi": (
        "(float[1,2,3,3] x) => (int64[4,k] y) { a = Tanh(x)  b = Resize(a, roi, scales)  y = NonZero(b) }",
        {"roi": np.array([], np.float32), "scales": np.array([1, 1, 2, 2], np.float32)},
        ["NonZero"],
    ),
}


def run_both(model: onnx.ModelProto, feeds: dict[str, Array]) -> trnrt.InferenceSession:
    """A session without a fallback, whose answers are onnxruntime's."""
    session = trnrt.InferenceSession(model.SerializeToString(), cache=False)
    for mine, theirs in zip(session.run(None, feeds), onnxruntimes(model, feeds), strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype) and mine.size
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)
    return session


def test_a_detector_answers_boxes() -> None:
    session = run_both(BOXES, IMAGE)
    partition = session.last_run.partition
    assert partition is not None and not partition.blockers
    assert [part[1] for part in placed(partition)][1] == ["NonMaxSuppression", "Gather", "Gather"]
    assert {node.name: node.place for node in partition.nodes if node.place == "host"}.keys() == {
        node.name for node in partition.nodes if node.op in ("NonMaxSuppression", "Gather")
    }
    (note,) = fallback_notes(partition)
    assert (
        note.startswith("the host computes the end of the model: NonMaxSuppression") and note in session.last_run.notes
    )
    assert partition.crossings_us == 0


@pytest.mark.parametrize("name", ENDS)
def test_other_ends(name: str) -> None:
    text, constants, expected = ENDS[name]
    model = modelled(text, constants)
    partition = run_both(model, {"x": drawn(*(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim))})
    assert partition.last_run.partition is not None
    assert placed(partition.last_run.partition)[1] == ("cpu", expected)


def test_a_layer_behind_makes_it_no_end() -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        trnrt.InferenceSession(HEAD.SerializeToString(), cache=False).run(None, IMAGE)
    assert "NonMaxSuppression" in {blocker.op for blocker in caught.value.blockers}


def test_a_model_that_only_chooses_is_refused() -> None:
    model = modelled("(float[2,3] x) => (int64[2,k] y) { y = NonZero(x) }", {})
    with pytest.raises(UnsupportedModelError, match="NonZero"):
        trnrt.InferenceSession(model.SerializeToString(), cache=False).run(None, {"x": drawn(2, 3)})


def test_another_blocker_refuses_the_model() -> None:
    model = modelled("(float[2,3] x) => (int64[2,k] y) { a = Hardmax(x)  b = Exp(a)  y = NonZero(b) }", {})
    with pytest.raises(UnsupportedModelError, match="Hardmax"):
        trnrt.InferenceSession(model.SerializeToString(), cache=False).run(None, {"x": drawn(2, 3)})


def test_every_operator_of_an_end_is_onnxs() -> None:
    assert all(onnx.defs.has(name) for name in ARRANGING) and CHOOSING <= ARRANGING


KEPT = modelled(
    """(float[1,3] x) => (float[1,k] y) { a = Relu(x)  b = Cast<to=9>(a)  c = Squeeze(b, zero)
    y = Compress<axis=1>(a, c) }""",
    {"zero": np.array([0])},
)
"""Keeps the numbers above 0 of a row: how many depends on the row."""


def test_rows_of_different_shapes_are_not_joined() -> None:
    session = trnrt.InferenceSession(KEPT.SerializeToString(), cache=False)
    with pytest.raises(OptionError, match=r"an output has the shape \(1, 3\) for some rows and \(1, 1\) for others"):
        session.run(None, {"x": np.array([[1, 2, 3], [0, 1, 0]], np.float32)})


@pytest.mark.parametrize(
    ("second", "shape"), [([0, 1, 0], r"\(1,\), and of \(3,\)"), ([0, 0, 0], r"\(0,\), and of \(3,\)")]
)
def test_batch_prediction_refuses_rows_of_different_shapes(tmp_path: Path, second: list[int], shape: str) -> None:
    onnx.save(KEPT, tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.array([[1, 2, 3], second], np.float32))
    (tmp_path / "out").mkdir()
    asked = Asked((str(tmp_path / "x.npy"),))
    opened = prepare(Request(str(tmp_path / "m.onnx"), str(tmp_path / "out"), asked, rows_per_part=1, cache=False))
    make_part(opened, 0, tmp_path / "out")
    with pytest.raises(
        OptionError, match=f"output 'y' has rows of the shape {shape}: batch prediction needs rows of one"
    ):
        make_part(opened, 1, tmp_path / "out")
    opened.close()


# ---- ways out


def test_a_cut_leaves_what_runs() -> None:
    model = import_model(HEAD.SerializeToString(), name="m")
    options = PlanOptions("trn2", "float32")
    blocked = [node.name for node in model.model.graph if node.op_type == "NonMaxSuppression"]
    cut = find_cut(model, {"x": (1, 3, 12, 12)}, options, [str(name) for name in blocked])
    assert cut is not None and set(cut.outputs) == {"boxes", "scores"} and (cut.kept, cut.nodes) == (9, 13)
    part, content = cut_model(model, cut.outputs)
    assert [info.name for info in part.outputs] == list(cut.outputs)
    run_both(onnx.load_from_string(content), IMAGE)
    cost = fallback_cost(model, {"x": (1, 3, 12, 12)}, options)
    assert cost is not None and cost.on_cpu == 4 and cost.crossings_us == 0  # nothing follows on the device


def test_no_fallback_for_operators_that_onnxruntime_lacks_too() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "mine": 1]>
        g (float[2,3] x) => (float[2,3] y) { a = Relu(x)  y = mine.Fancy(a) }"""
    model = import_model(onnx.parser.parse_model(text).SerializeToString(), name="m")
    assert fallback_cost(model, {"x": (2, 3)}, PlanOptions("trn2", "float32")) is None


def test_a_cut_is_tried_until_it_runs() -> None:
    """The first cut would leave a Hardmax on the way to the outputs."""
    text = "(float[2,3] x) => (float[2,3] y) { a = Relu(x)  b = Hardmax(a)  c = Exp(b)  d = Hardmax(c)  y = Exp(d) }"
    model = import_model(modelled(text, {}).SerializeToString(), name="m")
    last = next(str(node.name) for node in reversed(list(model.model.graph)) if node.op_type == "Hardmax")
    cut = find_cut(model, {"x": (2, 3)}, PlanOptions("trn2", "float32"), [last])
    assert cut is not None and cut.outputs == ("a",)


def test_no_cut_where_nothing_would_be_left() -> None:
    model = import_model(modelled("(float[2,3] x) => (float[2,3] y) { y = Hardmax(x) }", {}).SerializeToString())
    names = [str(node.name) for node in model.model.graph]
    assert find_cut(model, {"x": (2, 3)}, PlanOptions("trn2", "float32"), names) is None


def test_a_cut_drops_inputs_and_shapes_that_it_does_not_need() -> None:
    text = """(float[2,3] x, float[2,3] z) => (float[2,3] y)
        { a = Relu(x)  s = Shape(a)  b = Hardmax(a)  c = Add(b, z)  y = Reshape(c, s) }"""
    model = import_model(modelled(text, {}).SerializeToString(), name="m")
    names = [str(node.name) for node in model.model.graph if node.op_type == "Hardmax"]
    cut = find_cut(model, {"x": (2, 3), "z": (2, 3)}, PlanOptions("trn2", "float32"), names)
    assert cut is not None and cut.outputs == ("a",)
    part, _ = cut_model(model, cut.outputs)
    assert [info.name for info in part.inputs] == ["x"]

"""Every hint of a refusal is tried: the model is refused with it, and runs once the hint is followed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from planning import modelled, onnxruntimes

import trnrt
from trnrt.errors import UnsupportedModelError
from trnrt.operators.record import Refusal, records
from trnrt.planner.lowering.refusals import FALLBACK, QUANTISED, TRAINING

Array = NDArray[Any]
ROWS = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
X = "(float[2,4] x) => (float[2,4] y)"


@dataclass(frozen=True)
class Tried:
    """A model that is refused with a hint, and the same model once the hint is followed."""

    hint: str
    before: str
    after: str
    constants: dict[str, Array] = field(default_factory=dict)
    more: dict[str, Array] = field(default_factory=dict)
    opset: int = 17


_AXIS, _ONE = np.array([1], np.int64), np.array(1, np.int64)
TRIED: dict[str, Tried] = {
    "a loss": Tried(
        "export the model without it: with what the loss reads as an output",
        "(float[2,4] x, int64[2] t) => (float y) { r = Neg(x)  y = SoftmaxCrossEntropyLoss(r, t) }",
        f"{X} {{ y = Neg(x) }}",
        more={"t": np.array([1, 3])},
    ),
    "an optimizer": Tried(
        "export the model without it: an optimizer's step is no part of inference",
        """(float[2,4] x) => (float[2,4] y) { r = Neg(x)
        y, v = ai.onnx.preview.training.Momentum<alpha=0.9, beta=1.0, mode="standard", norm_coefficient=0.0>
        (rate, count, x, r, r) }""",
        f"{X} {{ y = Neg(x) }}",
        {"rate": np.array(0.1, np.float32), "count": np.array(1, np.int64)},
    ),
    "noise": Tried(
        "export the model for inference, or give the noise as an input",
        f"{X} {{ n = RandomNormalLike(x)  y = Add(x, n) }}",
        "(float[2,4] x, float[2,4] n) => (float[2,4] y) { y = Add(x, n) }",
        more={"n": ROWS[::-1].copy()},
    ),
    "a sequence": Tried(
        "export the model with tensors in their place (Concat, Split)",
        f"""{X} {{ e = Exp(x)  s = SequenceConstruct(x, e)  m = ReduceMax<keepdims=0>(x)  c = Greater(m, zero)
        i = Cast<to=7>(c)  y = SequenceAt(s, i) }}""",
        f"{X} {{ e = Exp(x)  m = ReduceMax<keepdims=0>(x)  c = Greater(m, zero)  y = Where(c, e, x) }}",
        {"zero": np.array(0, np.float32)},
    ),
    "an optional value": Tried(
        "export the model without them",
        f"{X} {{ o = Optional(x)  y = OptionalGetElement(o) }}",
        f"{X} {{ y = Neg(x) }}",
    ),
    "a condition": Tried(
        f"export the model with the condition constant, or with branches of one shape; {FALLBACK}",
        """(float[2,4] x) => (float[2,k] y) { s = ReduceMax<keepdims=0>(x)  c = Greater(s, zero)
        y = If(c) <then_branch = a () => (float[2,1] t) { t = ReduceMin<axes=[1]>(x) },
        else_branch = b () => (float[2,4] e) { e = Relu(x) }> }""",
        """(float[2,4] x) => (float[2,4] y) { s = ReduceMax<keepdims=0>(x)  c = Greater(s, zero)
        y = If(c) <then_branch = a () => (float[2,4] t) { t = Neg(x) },
        else_branch = b () => (float[2,4] e) { e = Relu(x) }> }""",
        {"zero": np.array(0, np.float32)},
    ),
    "a loop": Tried(
        f"export the model with a fixed number of trips (torch.onnx.export unrolls Python loops); {FALLBACK}",
        """(float[2,4] x) => (float[2,4] y) { y = Loop(n, go, x) <body = b (int64 i, bool c, float[2,4] a)
        => (bool d, float[2,4] e) { e = Neg(a)  m = ReduceMax<keepdims=0>(e)  d = Less(m, most) }> }""",
        """(float[2,4] x) => (float[2,4] y) { y = Loop(n, go, x)
        <body = b (int64 i, bool c, float[2,4] a) => (bool d, float[2,4] e) { d = Identity(c)  e = Neg(a) }> }""",
        {"n": np.array(3, np.int64), "go": np.array(True), "most": np.array(9, np.float32)},
    ),
    "a shape of the data": Tried(
        "export the model with fixed shapes",
        "(float[2,4] x) => (int64[n] y) { s = ReduceMax<keepdims=0>(x)  c = Cast<to=7>(s)  y = Range(f, c, f) }",
        f"{X} {{ y = Add(x, r) }}",
        {"f": _ONE, "r": np.arange(4, dtype=np.float32)},
    ),
    "text": Tried(
        f"prepare the text before the model; {FALLBACK}",
        "(float[2,4] x, string[2] s) => (float[2,4] y, string[2] z) { y = Neg(x)  z = StringConcat(s, s) }",
        f"{X} {{ y = Neg(x) }}",
        more={"s": np.array(["a", "b"], object)},
        opset=20,
    ),
    "a signal": Tried(
        f"prepare the signal before the model; {FALLBACK}",
        "(float[2,4,1] x) => (float[2,4,2] y) { y = DFT<axis=1>(x) }",
        "(float[2,4,2] x) => (float[2,4,2] y) { y = Neg(x) }",
    ),
    "the work depends on the data": Tried(
        f"cut the model before it (`trnrt inspect` prints the command), and do this on its outputs; {FALLBACK}",
        "(float[2,4] x) => (int64[2,n] y) { y = NonZero(x) }",
        f"{X} {{ y = Relu(x) }}",
    ),
    "a scatter": Tried(
        f"export the model with constant indices, each of them once; {FALLBACK}",
        "(float[2,4] x) => (float[2,4] y) { i = ArgMax<axis=1>(x)  y = ScatterElements<axis=1>(x, i, u) }",
        "(float[2,4] x) => (float[2,4] y) { n = Neg(x)  y = ScatterElements<axis=1>(n, j, u) }",
        {"u": np.ones((2, 1), np.float32), "j": np.array([[0], [2]])},
    ),
    "a grid": Tried(
        "export the model in float32 and with fixed shapes",
        "(double[1,2,3] x) => (double[1,2,2,2] y) { y = AffineGrid(x, n) }",
        "(float[1,2,3] x) => (float[1,2,2,2] y) { y = AffineGrid(x, n) }",
        {"n": np.array([1, 1, 2, 2])},
        opset=20,
    ),
    "unpooling": Tried(
        f"give both nodes such windows, and the MaxUnpool that output_shape; {FALLBACK}",
        """(float[1,1,4,4] x) => (float[1,1,4,4] y)
        { v, i = MaxPool<kernel_shape=[2,2]>(x)  y = MaxUnpool<kernel_shape=[2,2]>(v, i) }""",
        """(float[1,1,4,4] x) => (float[1,1,4,4] y) { v, i = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)
        y = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(v, i) }""",
    ),
    "an integer": Tried(
        f"export the model without it; {FALLBACK}",
        "(float[2,4] x, uint8[4] i) => (uint8[4] z, float[2,4] y) { z = BitwiseNot(i)  y = Neg(x) }",
        f"{X} {{ y = Neg(x) }}",
        more={"i": np.arange(4, dtype=np.uint8)},
        opset=18,
    ),
    "a type that is looked up": Tried(
        "export the model with Cast in its place",
        "(float[2,4] x) => (float[2,4] y) { y = CastLike(x, x) }",
        f"{X} {{ y = Cast<to=1>(x) }}",
    ),
    "a gate": Tried(
        "export the model with opset 26 or earlier, which has Sigmoid and Mul",
        "",
        "(float[2,4] x) => (float[2,2] y) { a, b = Split<axis=1>(x)  s = Sigmoid(a)  g = Mul(a, s)  y = Mul(g, b) }",
    ),
    "a picture": Tried("decode the image before the model", "", f"{X} {{ y = Neg(x) }}"),
    "dropout": Tried(
        "export the model in inference mode (model.eval())",
        f"{X} {{ y = Dropout(x, ratio, training) }}",
        f"{X} {{ r = Dropout(x)  y = Neg(r) }}",
        {"ratio": np.array(0.5, np.float32), "training": np.array(True)},
    ),
    "integers that may be too large": Tried(
        "or limit them (Clip)",
        "(float[2,4] x, int64[4] i) => (int64[4] z) { f = Cast<to=7>(x)  z = Add(f, i) }",
        "(float[2,4] x, int64[4] i) => (int64[2,4] z) { f = Cast<to=7>(x)  c = Clip(f, low, high)  z = Add(c, i) }",
        {"low": np.array(-100, np.int64), "high": np.array(100, np.int64)},
        {"i": np.arange(4)},
    ),
    "indices that may be out of bounds": Tried(
        f"limit them (Clip), or make them an input of the model, which is checked; {FALLBACK}",
        "(float[2,4] x) => (float[2,4,3] y) { r = Neg(x)  i = Cast<to=7>(r)  y = Gather(t, i) }",
        """(float[2,4] x) => (float[2,4,3] y) {
        r = Neg(x)  i = Cast<to=7>(r)  c = Clip(i, low, high)  y = Gather(t, c) }""",
        {
            "t": np.arange(15, dtype=np.float32).reshape(5, 3),
            "low": np.array(-5, np.int64),
            "high": np.array(4, np.int64),
        },
    ),
    "doubles": Tried(
        "convert the model to float32", "(double[2,4] x) => (double[2,4] y) { y = Neg(x) }", f"{X} {{ y = Neg(x) }}"
    ),
    "categories that stop": Tried(
        "fit the encoder with handle_unknown='ignore'",
        "(float[2,4] x) => (float[2,4,1] y) { r = Relu(x)  y = ai.onnx.ml.OneHotEncoder<cats_int64s=[0], zeros=0>(r) }",
        "(float[2,4] x) => (float[2,4,1] y) { r = Relu(x)  y = ai.onnx.ml.OneHotEncoder<cats_int64s=[0], zeros=1>(r) }",
    ),
}
# Hints that name what the model's author must write; there is no model to try them on in onnxruntime's own terms.
ELSEWHERE = {
    "attention": "export the model with opset 22 or earlier, which writes it so",
    "quantised": QUANTISED.hint,
    "fused and quantised": "quantise the model as it was exported",
}


def feeds_of(model: onnx.ModelProto, more: dict[str, Array]) -> dict[str, Array]:
    (x,) = (i.type.tensor_type for i in model.graph.input if i.name == "x")
    dtype = onnx.helper.tensor_dtype_to_np_dtype(x.elem_type)
    drawn = np.random.default_rng(1).standard_normal([d.dim_value for d in x.shape.dim]).astype(dtype)
    return {info.name: more.get(info.name, drawn) for info in model.graph.input}


@pytest.mark.parametrize("name", TRIED)
def test_following_the_hint_helps(name: str) -> None:
    tried = TRIED[name]
    model = modelled(
        tried.after, _used(tried.after, tried.constants), max(tried.opset, 18 if "Split<" in tried.after else 0)
    )
    _fix_split(model)
    feeds = feeds_of(model, tried.more)
    got = trnrt.InferenceSession(model.SerializeToString(), cache=False).run(None, feeds)
    for mine, theirs in zip(got, onnxruntimes(model, feeds), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


def _fix_split(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type == "Split":
            node.attribute.append(onnx.helper.make_attribute("num_outputs", len(node.output)))


def _used(graph: str, constants: dict[str, Array]) -> dict[str, Array]:
    return {name: array for name, array in constants.items() if f"{name}," in graph or f"{name})" in graph}


@pytest.mark.parametrize(
    "name", [name for name, tried in TRIED.items() if tried.before and "CastLike" not in tried.before]
)
def test_it_is_refused_with_the_hint(name: str) -> None:
    tried = TRIED[name]
    model = modelled(tried.before, _used(tried.before, tried.constants), tried.opset)
    for domain in ("ai.onnx.preview.training",):
        model.opset_import.append(onnx.helper.make_opsetid(domain, 1))
    with pytest.raises(UnsupportedModelError) as caught:
        trnrt.InferenceSession(model.SerializeToString(), cache=False).run(None, feeds_of(model, tried.more))
    assert any(tried.hint in blocker.hint for blocker in caught.value.blockers), caught.value.blockers


def test_every_refusal_of_the_table_is_tried() -> None:
    """Hints of operators without a lowering: a model each, or the fallback (tests/conformance/onnx)."""
    hints = {record.lowering.hint for record in records().values() if isinstance(record.lowering, Refusal)}
    known = {tried.hint for tried in TRIED.values()} | {FALLBACK}
    untried = {hint for hint in hints | {TRAINING.hint} if hint not in known}
    assert not {hint for hint in untried if not any(word in hint for word in ELSEWHERE.values())}

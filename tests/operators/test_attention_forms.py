"""What exporters and optimizers write for attention is one step, and gives what onnxruntime gives."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper, parser
from planning import compare, drawn, planned

from trnrt.planner import Plan
from trnrt.running.profiler import profile_plan

Array = NDArray[Any]
ITEMS, LENGTH, HEADS, WIDTH = 2, 9, 4, 32
ALL = HEADS * WIDTH
BLOCK = f"float[{ITEMS},{LENGTH},{ALL}]"
# Kernels that would take scores, or heads that were moved, through HBM.
APART = {"softmax", "batched_matmul", "permute_dims", "move", "transpose_matrices"}


@dataclass(frozen=True)
class Form:
    """Nodes from x (2, 9, 128) to y of the same shape; ``more`` inputs are declared in ``declared``."""

    nodes: str
    constants: dict[str, Array] = field(default_factory=dict)
    more: dict[str, Array] = field(default_factory=dict)
    declared: str = ""
    opset: int = 18

    def model(self) -> onnx.ModelProto:
        text = f"""<ir_version: 10, opset_import: ["" : {self.opset}, "com.microsoft" : 1]>
            g ({BLOCK} x{self.declared}) => ({BLOCK} y) {{ {self.nodes} }}"""
        model: onnx.ModelProto = parser.parse_model(text)
        for name, array in (SHARED | self.constants).items():
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
        return model

    def plan(self, dtype: str = "float32") -> Plan:
        """The plan, of which the numbers have been compared."""
        x = {"x": drawn(ITEMS, LENGTH, ALL, seed=1)}
        return compare(self.model(), x | self.more, dtype=dtype)


SHARED: dict[str, Array] = {
    **{name: drawn(ALL, ALL, seed=k) / 8 for k, name in enumerate(("wq", "wk", "wv", "wo"))},
    "w3": drawn(ALL, 3 * ALL, seed=5) / 8,
    "wk2": drawn(ALL, 2 * WIDTH, seed=6) / 8,
    "wv2": drawn(ALL, 2 * WIDTH, seed=7) / 8,
    "b3": drawn(3 * ALL, seed=8),
    "bo": drawn(ALL, seed=9),
    "rate": np.array(WIDTH**-0.5, np.float32),
    "zero": np.array(0, np.float32),
    "lowest": np.array(np.finfo(np.float32).min, np.float32),
    "hidden": np.array(-np.inf, np.float32),
    "heads": np.array([0, LENGTH, HEADS, WIDTH]),
    "heads2": np.array([0, LENGTH, 2, WIDTH]),
    "flat": np.array([0, LENGTH, ALL]),
}
PADDING = np.arange(LENGTH) < np.array([[6], [LENGTH]])
TRIANGLE = np.where(np.tri(LENGTH), 0, -np.inf).astype(np.float32)
HEADS_OF = """q0 = MatMul(x, wq)  k0 = MatMul(x, wk)  v0 = MatMul(x, wv)
    q1 = Reshape(q0, heads)  k1 = Reshape(k0, heads)  v1 = Reshape(v0, heads)
    q = Transpose<perm=[0,2,1,3]>(q1)  kt = Transpose<perm=[0,2,3,1]>(k1)  v = Transpose<perm=[0,2,1,3]>(v1)
    s = MatMul(q, kt)  t = Mul(s, rate)"""
BEHIND = """p = Softmax<axis=-1>(m)  a = MatMul(p, v)
    b = Transpose<perm=[0,2,1,3]>(a)  c = Reshape(b, flat)  y = MatMul(c, wo)"""
# Heads of keys and values, two for four of queries.
SHARED_HEADS = """q0 = MatMul(x, wq)  k0 = MatMul(x, wk2)  v0 = MatMul(x, wv2)
    q1 = Reshape(q0, heads)  k1 = Reshape(k0, heads2)  v1 = Reshape(v0, heads2)
    q = Transpose<perm=[0,2,1,3]>(q1)  k2 = Transpose<perm=[0,2,1,3]>(k1)  v2 = Transpose<perm=[0,2,1,3]>(v1)
    k3 = Unsqueeze(k2, two)  v3 = Unsqueeze(v2, two)  k4 = Expand(k3, twice)  v4 = Expand(v3, twice)
    v = Reshape(v4, whole)"""
REPEATED = {
    "two": np.array([2]),
    "twice": np.array([ITEMS, 2, 2, LENGTH, WIDTH]),
    "whole": np.array([ITEMS, HEADS, LENGTH, WIDTH]),
    "joined": np.array([ITEMS * HEADS, LENGTH, WIDTH]),
    "apart": np.array([ITEMS, HEADS, WIDTH, LENGTH]),
}
# torch.bmm: items and heads joined in one axis.
JOINED = """q0 = MatMul(x, wq)  k0 = MatMul(x, wk)  v0 = MatMul(x, wv)
    q1 = Reshape(q0, heads)  k1 = Reshape(k0, heads)  v1 = Reshape(v0, heads)
    q2 = Transpose<perm=[0,2,1,3]>(q1)  k2 = Transpose<perm=[0,2,1,3]>(k1)  v2 = Transpose<perm=[0,2,1,3]>(v1)
    q = Reshape(q2, joined)  k = Reshape(k2, joined)  v = Reshape(v2, joined)
    kt = Transpose<perm=[0,2,1]>(k)  s = MatMul(q, kt)  t = Mul(s, rate)"""
JOINED_BEHIND = """p = Softmax<axis=-1>(m)  a0 = MatMul(p, v)  a = Reshape(a0, whole)
    b = Transpose<perm=[0,2,1,3]>(a)  c = Reshape(b, flat)  y = MatMul(c, wo)"""
WHOLE = REPEATED | {"scores": np.array([ITEMS, HEADS, LENGTH, LENGTH]), "bmm": np.array([-1, LENGTH, LENGTH])}
# nn.MultiheadAttention with batch_first.
TORCH = """xt = Transpose<perm=[1,0,2]>(x)  h = MatMul(xt, w3)  g = Add(h, b3)  r = Reshape(g, five)
    u = Unsqueeze(r, first)  z = Transpose<perm=[3,1,2,0,4]>(u)  z3 = Squeeze(z, third)
    q0 = Gather(z3, n0)  k0 = Gather(z3, n1)  v0 = Gather(z3, n2)
    q1 = Reshape(q0, rows)  k1 = Reshape(k0, rows)  v1 = Reshape(v0, rows)
    q2 = Transpose<perm=[1,0,2]>(q1)  k2 = Transpose<perm=[1,0,2]>(k1)  v2 = Transpose<perm=[1,0,2]>(v1)
    q = Reshape(q2, whole)  k = Reshape(k2, whole)  v = Reshape(v2, whole)  kt = Transpose<perm=[0,1,3,2]>(k)
    s = MatMul(q, kt)  t = Mul(s, rate)  p = Softmax<axis=-1>(t)  a = MatMul(p, v)
    b = Transpose<perm=[2,0,1,3]>(a)  c = Reshape(b, tokens)  d = Gemm<transB=1>(c, wo, bo)
    e = Reshape(d, back)  y = Transpose<perm=[1,0,2]>(e)"""
TORCH_SHAPES = REPEATED | {
    "five": np.array([LENGTH, ITEMS, 3, ALL]),
    "first": np.array([0]),
    "third": np.array([3]),
    **{f"n{k}": np.array(k) for k in range(3)},
    "rows": np.array([LENGTH, ITEMS * HEADS, WIDTH]),
    "tokens": np.array([LENGTH * ITEMS, ALL]),
    "back": np.array([LENGTH, ITEMS, ALL]),
}
# timm: one product for all three, turned before it is divided; dynamo scales queries and keys.
UNBOUND = """g = MatMul(x, w3)  h = Add(g, b3)  r = Reshape(h, three)  z = Transpose<perm=[2,0,3,1,4]>(r)
    q5 = Slice(z, n0, n1, n0)  k5 = Slice(z, n1, n2, n0)  v5 = Slice(z, n2, n3, n0)
    q = Squeeze(q5, n0)  k = Squeeze(k5, n0)  v = Squeeze(v5, n0)  kt = Transpose<perm=[0,1,3,2]>(k)
    qs = Mul(q, rate)  ks = Mul(kt, rate)  m = MatMul(qs, ks)"""
# Swin: two windows an image, a bias for each head, a mask for each window.
WINDOWS = {
    "windows": np.array([-1, 2, HEADS, LENGTH, LENGTH]),
    "scores": np.array([-1, HEADS, LENGTH, LENGTH]),
    "bias": drawn(1, HEADS, LENGTH, LENGTH, seed=11),
    "shift": np.where(drawn(1, 2, 1, LENGTH, LENGTH, seed=12) > 0.8, -100, 0).astype(np.float32),
}
PROJECTED = "q = MatMul(x, wq)  k = MatMul(x, wk)  v = MatMul(x, wv)  "
PROJECTED2 = "q = MatMul(x, wq)  k = MatMul(x, wk2)  v = MatMul(x, wv2)  "
ONNX = PROJECTED + "a = Attention<q_num_heads=4, kv_num_heads=4{}>(q, k, v{})  y = MatMul(a, wo)"
FUSED = PROJECTED + "a = com.microsoft.MultiHeadAttention<num_heads=4{}>(q, k, v{})  y = MatMul(a, wo)"
PACKED = "a = com.microsoft.Attention<num_heads=4{}>(x, w3, b3{})  y = MatMul(a, wo)"
BOOL_MASK = {"mask": PADDING[:, None, None] | np.eye(LENGTH, dtype=bool)[None, None]}
INTEGER_MASK = {"mask": PADDING.astype(np.int32)}

FORMS = {
    "padding replaces scores": Form(
        f"{HEADS_OF} m = Where(mask, lowest, t) {BEHIND}",
        more={"mask": ~PADDING[:, None, None]},
        declared=f", bool[{ITEMS},1,1,{LENGTH}] mask",
    ),
    "scores where the mask allows": Form(
        f"{HEADS_OF} m = Where(mask, t, hidden) {BEHIND}",
        more={"mask": PADDING[:, None, None]},
        declared=f", bool[{ITEMS},1,1,{LENGTH}] mask",
    ),
    "a constant triangle by Where, as GPT-2": Form(
        f"{HEADS_OF} m = Where(triangle, t, lowest) {BEHIND}",
        {"triangle": np.tri(LENGTH, dtype=bool)[None, None]},
    ),
    "a bias for each head, and padding, as T5": Form(
        f"{HEADS_OF} n = Add(t, bias)  m = Add(n, mask) {BEHIND}",
        {"bias": WINDOWS["bias"]},
        {"mask": np.where(PADDING, 0, -1e4).astype(np.float32)[:, None, None]},
        f", float[{ITEMS},1,1,{LENGTH}] mask",
    ),
    "padding, then a triangle by Where": Form(
        f"{HEADS_OF} n = Add(mask, t)  m = Where(triangle, n, lowest) {BEHIND}",
        {"triangle": np.tri(LENGTH, dtype=bool)},
        {"mask": np.where(PADDING, 0, -1e4).astype(np.float32)[:, None, None]},
        f", float[{ITEMS},1,1,{LENGTH}] mask",
    ),
    "windows with a bias and a shift": Form(
        f"{HEADS_OF} n = Add(t, bias)  n5 = Reshape(n, windows)  m5 = Add(n5, shift)  m = Reshape(m5, scores) {BEHIND}",
        WINDOWS,
    ),
    "shared heads": Form(
        f"""{SHARED_HEADS} k = Reshape(k4, whole)  kt = Transpose<perm=[0,1,3,2]>(k)
        s = MatMul(q, kt)  m = Mul(s, rate) {BEHIND}""",
        REPEATED,
    ),
    "shared heads, as dynamo turns them": Form(
        f"""{SHARED_HEADS} k5 = Reshape(k4, joined)  k6 = Transpose<perm=[0,2,1]>(k5)  kt = Reshape(k6, apart)
        s = MatMul(q, kt)  m = Mul(s, rate) {BEHIND}""",
        REPEATED,
    ),
    "nn.MultiheadAttention": Form(TORCH, TORCH_SHAPES),
    "timm's product of all three": Form(
        f"{UNBOUND} {BEHIND}",
        {"three": np.array([0, LENGTH, 3, HEADS, WIDTH]), **{f"n{k}": np.array([k]) for k in range(4)}},
    ),
    "ONNX": Form(ONNX.format("", ""), opset=23),
    "ONNX, causal": Form(ONNX.format(", is_causal=1", ""), opset=23),
    "ONNX, scaled, of opset 24": Form(ONNX.format(", scale=0.3", ""), opset=24),
    "ONNX, a mask of truth values": Form(
        ONNX.format("", ", mask"), more=BOOL_MASK, declared=f", bool[{ITEMS},1,{LENGTH},{LENGTH}] mask", opset=23
    ),
    "ONNX, a mask of numbers": Form(
        ONNX.format("", ", mask"),
        more={"mask": drawn(LENGTH, LENGTH, seed=13)},
        declared=f", float[{LENGTH},{LENGTH}] mask",
        opset=23,
    ),
    "ONNX, shared heads": Form(
        PROJECTED2 + "a = Attention<q_num_heads=4, kv_num_heads=2, is_causal=1>(q, k, v)  y = MatMul(a, wo)", opset=23
    ),
    "onnxruntime": Form(FUSED.format("", "")),
    "onnxruntime, causal": Form(FUSED.format(", unidirectional=1", "")),
    "onnxruntime, projections with a bias": Form(FUSED.format("", ", b3")),
    "onnxruntime, a mask": Form(
        FUSED.format("", ", , mask"), more=INTEGER_MASK, declared=f", int32[{ITEMS},{LENGTH}] mask"
    ),
    "onnxruntime, a mask and a bias": Form(
        FUSED.format("", ", b3, mask, bias"),
        {"bias": WINDOWS["bias"]},
        INTEGER_MASK,
        f", int32[{ITEMS},{LENGTH}] mask",
    ),
    "onnxruntime, packed": Form(PACKED.format("", "")),
    "onnxruntime, packed, causal, with a mask": Form(
        PACKED.format(", unidirectional=1", ", mask"), {}, INTEGER_MASK, f", int32[{ITEMS},{LENGTH}] mask"
    ),
}


# Einsums as tf2onnx writes them: axes of size 1 come and go.
SPREAD = """q0 = MatMul(x, wq)  k0 = MatMul(x, wk)  v0 = MatMul(x, wv)
    q1 = Reshape(q0, heads)  k1 = Reshape(k0, heads)  v1 = Reshape(v0, heads)
    q2 = Transpose<perm=[0,2,1,3]>(q1)  kt = Transpose<perm=[0,2,3,1]>(k1)  v = Transpose<perm=[0,2,1,3]>(v1)
    q = Mul(q2, rate)  s = MatMul(q, kt)  s5 = Unsqueeze(s, four)  t = Squeeze(s5, four)  p = Softmax<axis=-1>(t)
    p5 = Unsqueeze(p, three)  p4 = Reshape(p5, scores)  a = MatMul(p4, v)
    b = Transpose<perm=[0,2,1,3]>(a)  c = Reshape(b, flat)  y = MatMul(c, wo)"""
FORMS["an Einsum, as tf2onnx"] = Form(SPREAD, WHOLE | {"three": np.array([3]), "four": np.array([4])})
ONE_ALONE = Form(
    SPREAD.replace("t = Squeeze(s5, four)  p = Softmax<axis=-1>(t)", "r = Softmax<axis=-1>(s5)  p = Squeeze(r, four)"),
    FORMS["an Einsum, as tf2onnx"].constants,
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_one_step(name: str, dtype: str) -> None:
    plan = FORMS[name].plan(dtype)
    kernels = [step.kernel for step in plan.steps]
    assert kernels.count("attend") == 1
    assert not APART & set(kernels)
    assert any(node.reason.startswith("attention:") for node in plan.nodes)


def test_the_lowest_number_hides_keys_in_float16() -> None:
    """It is -65504 there."""
    plan = FORMS["padding replaces scores"].plan("float16")
    assert "attend" in {step.kernel for step in plan.steps}


JOINED_FORMS = {
    "torch.bmm": Form(f"{JOINED} m = Mul(t, rate) {JOINED_BEHIND}", REPEATED),
    "torch.bmm, with a mask in between": Form(
        f"{JOINED} t4 = Reshape(t, scores)  m4 = Add(t4, mask)  m = Reshape(m4, bmm) {JOINED_BEHIND}",
        WHOLE,
        {"mask": drawn(ITEMS, 1, LENGTH, LENGTH, seed=14)},
        f", float[{ITEMS},1,{LENGTH},{LENGTH}] mask",
    ),
    "torch.bmm, with a mask for all": Form(
        f"{JOINED} m = Add(t, triangle) {JOINED_BEHIND}", {**WHOLE, "triangle": TRIANGLE}
    ),
    "torch.bmm, with a mask for each head": Form(
        f"{JOINED} m = Add(t, bias) {JOINED_BEHIND}",
        {**WHOLE, "bias": drawn(ITEMS * HEADS, 1, LENGTH, seed=15)},
    ),
}


@pytest.mark.parametrize("name", JOINED_FORMS)
def test_items_joined_with_heads(name: str) -> None:
    """Only the result is moved, as no access pattern has items and heads in one axis."""
    kernels = [step.kernel for step in JOINED_FORMS[name].plan().steps]
    assert kernels.count("attend") == 1
    assert not {"softmax", "batched_matmul"} & set(kernels)


REFUSED = {
    "a softmax over an axis of one": ONE_ALONE,
    "a cap of the scores": Form(ONNX.format(", softcap=2.0", ""), opset=23),
    "a number that hides nothing": Form(
        f"{HEADS_OF} m = Where(mask, few, t) {BEHIND}",
        {"few": np.array(-3, np.float32)},
        {"mask": ~PADDING[:, None, None]},
        f", bool[{ITEMS},1,1,{LENGTH}] mask",
    ),
    "a factor after the mask": Form(
        f"{HEADS_OF} n = Add(t, bias)  m = Mul(n, rate) {BEHIND}", {"bias": WINDOWS["bias"]}
    ),
    "a factor for each head": Form(
        f"{HEADS_OF} m = Mul(t, factors) {BEHIND}", {"factors": np.abs(drawn(HEADS, 1, 1, seed=16))}
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_attention_stays_apart(name: str) -> None:
    kernels = {step.kernel for step in REFUSED[name].plan().steps}
    assert "attend" not in kernels
    assert "softmax" in kernels


LEFT = np.arange(LENGTH) >= np.array([[4], [0]])
ADDED_LEFT = np.where(LEFT, np.float32(0), np.finfo(np.float32).min)[:, None, None]
TRUTH = {"triangle": np.tri(LENGTH, dtype=bool)}
OVER_OTHERS = {
    "padding, then a triangle": Form(
        f"{HEADS_OF} n = Add(mask, t)  m = Where(triangle, n, lowest) {BEHIND}",
        TRUTH,
        {"mask": ADDED_LEFT},
        f", float[{ITEMS},1,1,{LENGTH}] mask",
    ),
    "a triangle, then padding": Form(
        f"{HEADS_OF} n = Add(t, added)  m = Where(mask, lowest, n) {BEHIND}",
        {"added": np.where(np.tri(LENGTH), np.float32(0), np.finfo(np.float32).min)},
        {"mask": ~LEFT[:, None, None]},
        f", bool[{ITEMS},1,1,{LENGTH}] mask",
    ),
    "both chosen": Form(
        f"{HEADS_OF} n = Where(mask, t, lowest)  m = Where(triangle, n, lowest) {BEHIND}",
        TRUTH,
        {"mask": LEFT[:, None, None]},
        f", bool[{ITEMS},1,1,{LENGTH}] mask",
    ),
    "both constant": Form(
        f"{HEADS_OF} n = Where(mask, t, lowest)  m = Where(triangle, n, lowest) {BEHIND}",
        TRUTH | {"mask": LEFT[:, None, None]},
    ),
    "a bias, and two masks": Form(
        f"{HEADS_OF} r = Add(t, bias)  n = Add(mask, r)  m = Where(triangle, n, lowest) {BEHIND}",
        TRUTH | {"bias": WINDOWS["bias"]},
        {"mask": ADDED_LEFT},
        f", float[{ITEMS},1,1,{LENGTH}] mask",
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", OVER_OTHERS)
def test_a_number_that_replaces_masked_scores(name: str, dtype: str) -> None:
    """A query that sees only padding weighs all hidden keys alike; a sum of masks would hide some twice."""
    assert "attend" in {step.kernel for step in OVER_OTHERS[name].plan(dtype).steps}


def test_rows_that_a_mask_hides_whole() -> None:
    """ONNX's Attention gives 0, as its definition tests for such rows; a Where with a finite number gives the mean."""
    hidden = np.ones((ITEMS, 1, LENGTH, LENGTH), bool)
    hidden[0, :, 3] = hidden[1, :, 0] = False
    shape = f", bool[{ITEMS},1,{LENGTH},{LENGTH}] mask"
    attention = Form(ONNX.format("", ", mask"), more={"mask": hidden}, declared=shape, opset=23)
    chosen = Form(f"{HEADS_OF} m = Where(mask, t, lowest) {BEHIND}", more={"mask": hidden}, declared=shape)
    for form in (attention, chosen):
        assert "attend" in {step.kernel for step in form.plan().steps}


def lengthened(form: Form, length: int) -> onnx.ModelProto:
    """The form's model for so many tokens."""
    sizes = {"heads": np.array([0, length, HEADS, WIDTH]), "flat": np.array([0, length, ALL])}
    model = replace(form, constants=form.constants | sizes).model()
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[1].dim_value = length
    return model


def test_keys_that_no_query_sees_are_skipped() -> None:
    """Of a triangle over 300 queries, the first 128 see 128 keys."""
    triangle = np.where(np.tri(300), 0, -1e9).astype(np.float32)
    form = Form(f"{HEADS_OF} m = Add(t, triangle) {BEHIND}", {"triangle": triangle})
    plan = compare(lengthened(form, 300), {"x": drawn(ITEMS, 300, ALL)})
    assert "ends=(128, 256, 300)" in plan.source


@pytest.mark.parametrize("hidden", [-1e9, -np.inf])
def test_keys_that_another_mask_may_make_count_are_not_skipped(hidden: float) -> None:
    """Padding on the left hides all that the first queries see. Of finite numbers, the later keys then count, too."""
    triangle = np.where(np.tri(150), 0, hidden).astype(np.float32)
    padding = np.where(np.arange(150) < np.array([[9], [0]]), np.float32(-1e9), np.float32(0))[:, None, None]
    text = f"{HEADS_OF} n = Add(t, triangle)  m = Add(n, padding) {BEHIND}"
    form = Form(text, {"triangle": triangle}, declared=f", float[{ITEMS},1,1,150] padding")
    plan = compare(lengthened(form, 150), {"x": drawn(ITEMS, 150, ALL), "padding": padding})
    assert ("ends=(128, 150)" in plan.source) == np.isinf(hidden)


@pytest.mark.parametrize("tokens", [768, 1024])
def test_keys_and_values_cross_hbm_once_and_scores_never(tokens: int) -> None:
    """float32, 1,024 columns, on trn2: up to some 900 tokens all stays in SBUF; beyond, each tensor is moved once."""
    width, item = 1024, 4
    heads = {"heads": np.array([0, tokens, 16, 64]), "flat": np.array([0, tokens, width])}
    weights = {name: drawn(width, width, seed=k) / 32 for k, name in enumerate(("wq", "wk", "wv", "wo"))}
    model = Form(f"{HEADS_OF} m = Identity(t) {BEHIND}", weights | heads).model()
    for value in (*model.graph.input, *model.graph.output):
        sizes = value.type.tensor_type.shape.dim
        sizes[0].dim_value, sizes[1].dim_value, sizes[2].dim_value = 1, tokens, width
    plan = planned(model, {"x": (1, tokens, width)})
    (step,) = (step for step in plan.steps if step.kernel == "attend")
    (cost,) = (cost for cost in profile_plan(plan).steps if cost.name == step.name)
    assert cost.hbm_bytes == (0 if tokens < 900 else 4 * tokens * width * item)
    assert all(prod(step.shape) <= tokens * width for step in plan.steps)

"""Attention as one step, however its graph is written; and as single steps where it can't be one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from planning import compare, drawn, modelled, planned

from trnrt.importer import import_model
from trnrt.planner import PlanOptions, make_plan
from trnrt.planner.choices import Choices

Array = NDArray[Any]
ITEMS, LENGTH, HEADS, WIDTH = 2, 7, 3, 32
ALL = HEADS * WIDTH

PROJECTIONS = """q0 = MatMul(x, wq)  q1 = Add(q0, bq)  k0 = MatMul(x, wk)  v0 = MatMul(x, wv)
    q2 = Reshape(q1, heads)  k2 = Reshape(k0, heads)  v2 = Reshape(v0, heads)
    q = Transpose<perm=[0,2,1,3]>(q2)  v = Transpose<perm=[0,2,1,3]>(v2)"""
TURNED = "kt = Transpose<perm=[0,2,3,1]>(k2)"
BEHIND = "b = Transpose<perm=[0,2,1,3]>(a)  c = Reshape(b, flat)  o = MatMul(c, wo)  y = Add(o, x)"
INPUTS = f"float[N,{LENGTH},{ALL}] x"


def constants() -> dict[str, Array]:
    return {
        **{name: drawn(ALL, ALL, seed=k) / 8 for k, name in enumerate(("wq", "wk", "wv", "wo"))},
        "bq": drawn(ALL, seed=9),
        "heads": np.array([0, LENGTH, HEADS, WIDTH]),
        "flat": np.array([0, LENGTH, ALL]),
        "joined": np.array([-1, LENGTH, WIDTH]),
        "apart": np.array([-1, HEADS, WIDTH, LENGTH]),
        "rate": np.array(WIDTH**-0.5, np.float32),
        "root": np.array(WIDTH**-0.25, np.float32),
        "over": np.array(WIDTH**0.5, np.float32),
        "zero": np.array(0, np.float32),
        "triangle": np.where(np.tri(LENGTH), 0, -np.inf).astype(np.float32)[None, None],
        "zeros": np.zeros((1, 1, LENGTH, LENGTH), np.float32),
        "bias": drawn(1, HEADS, LENGTH, LENGTH, seed=10),
    }


def run(nodes: str, more: str = "", feeds: dict[str, Array] | None = None, **options: Any) -> list[str]:
    """The kernels of an attention between these nodes, compared with onnxruntime."""
    graph = f"({INPUTS}{more}) => (float[N,{LENGTH},{ALL}] y) {{ {PROJECTIONS} {nodes} {BEHIND} }}"
    x = {"x": drawn(ITEMS, LENGTH, ALL, seed=20)}
    return [step.kernel for step in compare(modelled(graph, constants()), x | (feeds or {}), **options).steps]


FORMS = {
    "no scale": f"{TURNED} s = MatMul(q, kt)  p = Softmax<axis=-1>(s)  a = MatMul(p, v)",
    "a product": f"{TURNED} s = MatMul(q, kt)  t = Mul(s, rate)  p = Softmax<axis=-1>(t)  a = MatMul(p, v)",
    "a quotient": f"{TURNED} s = MatMul(q, kt)  t = Div(s, over)  p = Softmax<axis=3>(t)  a = MatMul(p, v)",
    "queries scaled": f"{TURNED} h = Mul(q, rate)  s = MatMul(h, kt)  p = Softmax<axis=-1>(s)  a = MatMul(p, v)",
    "both scaled, as dynamo writes it": """kn = Transpose<perm=[0,2,1,3]>(k2)  kj = Reshape(kn, joined)
        kk = Transpose<perm=[0,2,1]>(kj)  kt = Reshape(kk, apart)  h = Mul(q, root)  l = Mul(kt, root)
        s = MatMul(h, l)  t = Add(s, zeros)  p = Softmax<axis=-1>(t)  n = IsNaN(p)  w = Where(n, zero, p)
        a = MatMul(w, v)""",
    "a triangle": f"""{TURNED} s = MatMul(q, kt)  t = Mul(s, rate)  m = Add(t, triangle)  p = Softmax<axis=-1>(m)
        a = MatMul(p, v)""",
    "a bias for each head, first": f"""{TURNED} s = MatMul(q, kt)  t = Mul(rate, s)  m = Add(bias, t)
        p = Softmax<axis=-1>(m)  a = MatMul(p, v)""",
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_one_step(form: str, dtype: str) -> None:
    kernels = run(FORMS[form], dtype=dtype)
    assert kernels.count("attend") == 1
    assert not {"softmax", "batched_matmul", "permute_dims", "move", "transpose_matrices"} & set(kernels)


MASK = f"{TURNED} s = MatMul(q, kt)  t = Mul(s, rate)  m = Add(t, mask)  p = Softmax<axis=-1>(m)  a = MatMul(p, v)"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [("N", 1, 1), (1, 1, LENGTH), ("N", HEADS, LENGTH), ("N", 1, LENGTH)], ids=str)
def test_a_mask_from_an_input(shape: tuple[str | int, ...], dtype: str) -> None:
    declared = f", float[{','.join(map(str, shape))},{LENGTH}] mask"
    sizes = tuple(ITEMS if size == "N" else int(size) for size in shape)
    mask = np.where(drawn(*sizes, LENGTH, seed=3) > 0.8, -1e4, drawn(*sizes, LENGTH, seed=4)).astype(np.float32)
    assert "attend" in run(MASK, declared, {"mask": mask}, dtype=dtype)


def test_heads_side_by_side_in_one_projection() -> None:
    """timm's form: queries, keys and values are parts of one product."""
    graph = f"""({INPUTS}) => (float[N,{LENGTH},{ALL}] y) {{
        w = MatMul(x, all)  r = Reshape(w, five)  u = Transpose<perm=[2,0,3,1,4]>(r)
        q = Gather(u, one0)  k = Gather(u, one1)  v = Gather(u, one2)  kt = Transpose<perm=[0,1,3,2]>(k)
        s = MatMul(q, kt)  t = Mul(s, rate)  p = Softmax<axis=-1>(t)  a = MatMul(p, v) {BEHIND} }}"""
    given = constants() | {
        "all": drawn(ALL, 3 * ALL, seed=5) / 8,
        "five": np.array([0, LENGTH, 3, HEADS, WIDTH]),
        "one0": np.array(0),
        "one1": np.array(1),
        "one2": np.array(2),
    }
    plan = compare(modelled(graph, given), {"x": drawn(ITEMS, LENGTH, ALL)})
    assert [step.kernel for step in plan.steps].count("attend") == 1
    assert not {"move", "permute_dims"} & {step.kernel for step in plan.steps}


def test_scores_that_are_read_twice_stay_apart() -> None:
    graph = f"""({INPUTS}) => (float[N,{LENGTH},{ALL}] y, float[N,{HEADS},{LENGTH},{LENGTH}] p) {{
        {PROJECTIONS} {FORMS["a product"]} {BEHIND} }}"""
    kernels = [step.kernel for step in compare(modelled(graph, constants()), {"x": drawn(ITEMS, LENGTH, ALL)}).steps]
    assert "softmax" in kernels
    assert "attend" not in kernels


def test_a_node_that_must_not_be_fused() -> None:
    graph = f"({INPUTS}) => (float[N,{LENGTH},{ALL}] y) {{ {PROJECTIONS} {FORMS['a product']} {BEHIND} }}"
    plan = planned(modelled(graph, constants()), {"x": (ITEMS, LENGTH, ALL)})
    (step,) = (step for step in plan.steps if step.kernel == "attend")
    softmax = next(name for name in step.nodes if name.startswith("Softmax"))
    options = PlanOptions("trn2", "float32", choices=Choices(no_fuse=frozenset({softmax})))
    apart = make_plan(
        import_model(modelled(graph, constants()).SerializeToString()), {"x": (ITEMS, LENGTH, ALL)}, options
    )
    assert "attend" not in {step.kernel for step in apart.steps}


def test_heads_beyond_the_kernel_stay_single_steps() -> None:
    """160 columns are more than the tensor engine contracts at once."""
    graph = """(float[2,5,320] x) => (float[2,2,5,160] y) {
        r = Reshape(x, heads)  q = Transpose<perm=[0,2,1,3]>(r)  kt = Transpose<perm=[0,2,3,1]>(r)
        s = MatMul(q, kt)  t = Mul(s, rate)  p = Softmax<axis=-1>(t)  y = MatMul(p, q) }"""
    given = {"heads": np.array([2, 5, 2, 160]), "rate": np.array(0.05, np.float32)}
    plan = compare(modelled(graph, given), {"x": drawn(2, 5, 320)})
    assert {"batched_matmul", "softmax"} <= {step.kernel for step in plan.steps}


def test_every_key_hidden_gives_nan_or_zero() -> None:
    """As in the model: NaN, or 0 where it replaces NaN by 0."""
    hidden = np.full((ITEMS, 1, 1, LENGTH), -np.inf, np.float32)
    hidden[1, ..., :3] = 0
    declared = f", float[N,1,1,{LENGTH}] mask"
    replaced = MASK.replace("a = MatMul(p, v)", "n = IsNaN(p)  w = Where(n, zero, p)  a = MatMul(w, v)")
    assert "attend" in run(replaced, declared, {"mask": hidden})
    assert "attend" in run(MASK, declared, {"mask": hidden})

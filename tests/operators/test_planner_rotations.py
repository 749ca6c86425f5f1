"""Rotary positions as one step between linear layers and attention, as exporters write them; or as single steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from planning import compare, drawn, modelled, planned

from trnrt.importer import import_model
from trnrt.planner import Plan, PlanOptions, make_plan
from trnrt.planner.choices import Choices

Array = NDArray[Any]
ITEMS, OTHERS, LENGTH, HEADS = 2, 3, 10, 2

HALVES = """{p}a = Slice({x}, from0, half, last)  {p}b = Slice({x}, half, end, last)  {p}n = Neg({p}b)
    {p}r = Concat<axis=-1>({p}n, {p}a)"""
NEIGHBOURS = """{p}a = Slice({x}, from1, end, last, two)  {p}b = Slice({x}, from0, end, last, two)  {p}n = Neg({p}a)
    {p}c = Unsqueeze({p}n, last)  {p}d = Unsqueeze({p}b, last)  {p}e = Concat<axis=-1>({p}c, {p}d)
    {p}r = Reshape({p}e, back)"""
TURN = "{p}s = Mul({p}r, {sine})  {p}t = Mul({x}, {cosine})"

# Each rotates `{x}`; names start with `{p}`.
FORMS = {
    # Llama and ModernBERT in transformers: all tokens.
    "halves": f"{HALVES} {TURN}  {{p}}y = Add({{p}}t, {{p}}s)",
    "the sines first": f"{HALVES} {TURN}  {{p}}y = Add({{p}}s, {{p}}t)",
    "neighbours": f"{NEIGHBOURS} {TURN}  {{p}}y = Add({{p}}t, {{p}}s)",
}
# DINOv3 in transformers: the first tokens stay as they are.
PATCHES = {
    name: f"{{p}}f, {{p}}g = Split<axis=2>({{x}}, apart)  {form.replace('{x}', '{p}g').replace('{p}y', '{p}z')}"
    "  {p}y = Concat<axis=-2>({p}f, {p}z)"
    for name, form in FORMS.items()
}


def constants(width: int, tokens: int) -> dict[str, Array]:
    whole = HEADS * width
    angles = 3 * drawn(tokens, width, seed=7)
    return {
        **{name: drawn(whole, whole, seed=k) / whole**0.5 for k, name in enumerate(("wq", "wk", "wv", "wo"))},
        "all": drawn(whole, 3 * whole, seed=5) / whole**0.5,
        "bq": drawn(whole, seed=9),
        "heads": np.array([0, LENGTH, HEADS, width]),
        "five": np.array([0, LENGTH, 3, HEADS, width]),
        "flat": np.array([0, LENGTH, whole]),
        "back": np.array([-1, HEADS, tokens, width]),
        "apart": np.array([LENGTH - tokens, tokens]),
        "rate": np.array(width**-0.5, np.float32),
        **{name: np.array([k]) for name, k in (("from0", 0), ("from1", 1), ("two", 2), ("end", 2**31), ("last", -1))},
        "half": np.array([width // 2]),
        **{f"one{k}": np.array(k) for k in range(3)},
        "cosine": np.cos(angles),
        "sine": np.sin(angles),
    }


def attention(form: str, projections: str = "", given: str = "", results: str = "", **names: str) -> str:
    """A layer whose queries and keys are rotated."""
    rotated = " ".join(
        form.format(**({"x": v, "p": p, "sine": "sine", "cosine": "cosine"} | names)) for v, p in ("qQ", "kK")
    )
    plain = """q0 = MatMul(x, wq)  q1 = Add(q0, bq)  k0 = MatMul(x, wk)  v0 = MatMul(x, wv)
        q2 = Reshape(q1, heads)  k2 = Reshape(k0, heads)  v2 = Reshape(v0, heads)  q = Transpose<perm=[0,2,1,3]>(q2)
        k = Transpose<perm=[0,2,1,3]>(k2)  v = Transpose<perm=[0,2,1,3]>(v2)"""
    return f"""(float[N,{LENGTH},W] x{given}) => (float[N,{LENGTH},W] y{results}) {{
        {projections or plain} {rotated} kt = Transpose<perm=[0,1,3,2]>(Ky)
        s = MatMul(Qy, kt)  t = Mul(s, rate)  p = Softmax<axis=-1>(t)  a = MatMul(p, v)
        b = Transpose<perm=[0,2,1,3]>(a)  c = Reshape(b, flat)  o = MatMul(c, wo)  y = Add(o, x) }}"""


def run(graph: str, given: dict[str, Array], width: int, feeds: dict[str, Array] | None = None, **options: Any) -> Plan:
    """The plan of a layer, compared with onnxruntime."""
    model = modelled(graph.replace("W]", f"{HEADS * width}]"), given)
    return compare(model, {"x": drawn(ITEMS, LENGTH, HEADS * width, seed=20)} | (feeds or {}), **options)


def check_on_chip(plan: Plan) -> None:
    """Two rotations, and nothing through HBM between the linear layers and attention."""
    kernels = [step.kernel for step in plan.steps]
    assert kernels.count("rotate_features") == 2
    assert not {"compute", "move", "permute_dims", "transpose_matrices"} & set(kernels)
    rotations = [step for step in plan.steps if step.kernel == "rotate_features"]
    assert {step.layout for step in rotations} == {"features"}
    assert {source.layout for step in rotations for source in step.sources} == {"features"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", [32, 64, 128])
@pytest.mark.parametrize("form", FORMS)
def test_all_tokens(form: str, width: int, dtype: str) -> None:
    check_on_chip(run(attention(FORMS[form]), constants(width, LENGTH), width, dtype=dtype))


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", PATCHES)
def test_some_tokens(form: str, dtype: str, target: str) -> None:
    given = constants(64, LENGTH - OTHERS)
    check_on_chip(run(attention(PATCHES[form]), given, 64, dtype=dtype, target=target))


def test_one_projection_of_all() -> None:
    """ModernBERT's and timm's form: rotated queries and keys are columns of wider rows."""
    projections = """w = MatMul(x, all)  r = Reshape(w, five)  u = Transpose<perm=[2,0,3,1,4]>(r)
        q = Gather(u, one0)  k = Gather(u, one1)  v = Gather(u, one2)"""
    check_on_chip(run(attention(FORMS["halves"], projections), constants(64, LENGTH), 64))


def test_rotations_in_hbm() -> None:
    """They are asked for there."""
    model = modelled(attention(FORMS["halves"]).replace("W]", "128]"), constants(64, LENGTH))
    shapes = {"x": (ITEMS, LENGTH, 128)}
    outputs = {step.output for step in planned(model, shapes).steps}
    options = PlanOptions("trn2", "float32", choices=Choices(in_hbm=frozenset(outputs)))
    plan = make_plan(import_model(model.SerializeToString()), shapes, options)
    assert [step.layout for step in plan.steps if step.kernel == "rotate_features"] == ["hbm", "hbm"]


def kernels(graph: str, given: dict[str, Array], width: int = 64, feeds: dict[str, Array] | None = None) -> list[str]:
    return [step.kernel for step in run(graph, given, width, feeds).steps]


def test_heads_beyond_the_kernel_stay_single_steps() -> None:
    assert "rotate_features" not in kernels(attention(FORMS["halves"]), constants(48, LENGTH), 48)


def test_computed_tables_stay_single_steps() -> None:
    graph = attention(FORMS["halves"], given=f", float[{LENGTH},64] angle", sine="angle")
    assert "rotate_features" not in kernels(graph, constants(64, LENGTH), feeds={"angle": drawn(LENGTH, 64, seed=1)})


@pytest.mark.parametrize("shape", [(ITEMS, 1, LENGTH, 64), (1, HEADS, LENGTH, 64)], ids=str)
def test_tables_of_items_or_heads_stay_single_steps(shape: tuple[int, ...]) -> None:
    given = constants(64, LENGTH) | {"sine": drawn(*shape, seed=1)}
    assert "rotate_features" not in kernels(attention(FORMS["halves"]), given)


def test_a_rotation_whose_parts_are_read_elsewhere() -> None:
    graph = attention(FORMS["halves"], results=f", float[N,{HEADS},{LENGTH},64] Qr")
    assert kernels(graph, constants(64, LENGTH)).count("rotate_features") == 1


def test_halves_of_other_tokens_stay_single_steps() -> None:
    """The same slices, along the tokens: no exchange within a head."""
    given = constants(64, LENGTH) | {"half": np.array([LENGTH // 2]), "last": np.array([2])}
    form = FORMS["halves"].replace("Concat<axis=-1>", "Concat<axis=2>")
    assert "rotate_features" not in kernels(attention(form), given)


def test_a_node_that_must_not_be_fused() -> None:
    model = modelled(attention(FORMS["halves"]).replace("W]", "128]"), constants(64, LENGTH))
    shapes = {"x": (ITEMS, LENGTH, 128)}
    step = next(step for step in planned(model, shapes).steps if step.kernel == "rotate_features")
    options = PlanOptions("trn2", "float32", choices=Choices(no_fuse=frozenset({step.nodes[-1]})))
    apart = make_plan(import_model(model.SerializeToString()), shapes, options)
    assert [one.kernel for one in apart.steps].count("rotate_features") == 1

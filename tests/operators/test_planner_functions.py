"""Functions that exporters write out in several nodes, against onnxruntime: alone, and fused into products."""

from __future__ import annotations

import numpy as np
import pytest
from planning import Array, compare, drawn, modelled

from trnrt.importer import import_model
from trnrt.planner import PlanOptions, make_plan
from trnrt.planner.choices import Choices

SHAPE = "float[2,4,6,6]"
CONSTANTS: dict[str, Array] = {
    "half": np.array(0.5, np.float32),
    "one": np.array([1], np.float32),
    "root": np.array(np.sqrt(2), np.float32),
    "inverse": np.array([np.sqrt(0.5)], np.float32),
    "k": np.array(np.sqrt(2 / np.pi), np.float32),
    "cubed": np.array(0.044715, np.float32),
    "three": np.array(3, np.float32),
    "quick": np.array([1.702], np.float32),
    "w": drawn(4, 4, 3, 3) / 3,
    "m": drawn(6, 6),
}
# The nodes that make y of c, and the engine's function.
WRITTEN = {
    "SiLU": ("s = Sigmoid(c) y = Mul(c, s)", "silu"),
    "SiLU, turned": ("s = Sigmoid(c) y = Mul(s, c)", "silu"),
    "GELU by a sigmoid": ("b = Mul(c, quick) s = Sigmoid(b) y = Mul(c, s)", "gelu_sigmoid"),
    "Mish": ("s = Softplus(c) t = Tanh(s) y = Mul(c, t)", "mish"),
    "GELU": ("d = Div(c, root) e = Erf(d) a = Add(e, one) p = Mul(c, a) y = Mul(p, half)", "gelu"),
    "GELU, half first": ("h = Mul(c, half) d = Mul(inverse, c) e = Erf(d) a = Add(one, e) y = Mul(h, a)", "gelu"),
    "GELU, half of the sum": ("d = Div(c, root) e = Erf(d) a = Add(e, one) p = Mul(a, half) y = Mul(c, p)", "gelu"),
    "GELU by tanh": (
        "q = Pow(c, three) r = Mul(cubed, q) a = Add(c, r) b = Mul(k, a) t = Tanh(b) u = Add(t, one)"
        " v = Mul(c, u) y = Mul(half, v)",
        "gelu_tanh",
    ),
    "GELU by tanh, cubed by products": (
        "o = Mul(c, c) q = Mul(o, c) r = Mul(cubed, q) a = Add(c, r) b = Mul(a, k) t = Tanh(b) u = Add(t, one)"
        " h = Mul(c, half) y = Mul(h, u)",
        "gelu_tanh",
    ),
}
# What looks like one of them, and is none.
OTHERS = {
    "another root": "d = Div(c, three) e = Erf(d) a = Add(e, one) p = Mul(c, a) y = Mul(p, half)",
    "twice as much": "d = Div(c, root) e = Erf(d) a = Add(e, one) y = Mul(c, a)",
    "another argument": "b = Mul(c, half) s = Sigmoid(b) y = Mul(c, s)",
    "squared": "s = Sigmoid(c) p = Mul(c, s) y = Mul(p, s)",
    "divided": "s = Sigmoid(c) y = Div(c, s)",
    "a number over it": "e = Erf(c) a = Add(e, three) y = Div(half, a)",
}


def graph(nodes: str, before: str = "c = Relu(x)") -> str:
    return f"({SHAPE} x) => ({SHAPE} y) {{ {before} {nodes} }}"


def test_written_functions_alone() -> None:
    """Neighbours become one program, whose parts become one operation."""
    for nodes, name in WRITTEN.values():
        plan = compare(modelled(graph(nodes, "c = Neg(x)"), CONSTANTS), {"x": drawn(2, 4, 6, 6)})
        assert f'(("{name}", 0),)' in plan.source


@pytest.mark.parametrize("nodes", OTHERS.values(), ids=OTHERS)
def test_other_functions_stay(nodes: str) -> None:
    plan = compare(modelled(graph(nodes, "c = Conv<pads=[1,1,1,1]>(x, w)"), CONSTANTS), {"x": drawn(2, 4, 6, 6)})
    assert not any(name in plan.source for name in ("silu", "gelu", "mish"))


@pytest.mark.parametrize(
    "before", ["c = Conv<pads=[1,1,1,1]>(x, w)", "c = MatMul(x, m)", "l = Relu(x) c = MatMul(l, x)"]
)
@pytest.mark.parametrize("written", WRITTEN, ids=WRITTEN)
def test_written_functions_after_products(written: str, before: str) -> None:
    """They are computed as the sums leave PSUM."""
    nodes, name = WRITTEN[written]
    plan = compare(modelled(graph(nodes, before), CONSTANTS), {"x": drawn(2, 4, 6, 6)})
    last = plan.steps[-1]
    assert last.kernel in ("conv2d", "conv2d_stacked", "linear_rows", "batched_matmul")
    assert f'"{name}"' in plan.source


@pytest.mark.parametrize(
    ("op", "name"), [("Gelu", "gelu"), ('Gelu<approximate="tanh">', "gelu_tanh"), ("Mish", "mish")]
)
def test_functions_of_one_node_after_a_convolution(op: str, name: str) -> None:
    model = modelled(graph(f"y = {op}(c)", "c = Conv<pads=[1,1,1,1]>(x, w)"), CONSTANTS, opset=22)
    plan = compare(model, {"x": drawn(2, 4, 6, 6)})
    assert len(plan.steps) == 1
    assert f'act="{name}"' in plan.source


@pytest.mark.parametrize("more", ["z = Neg(c)", "z = Neg(s)", "z = Neg(y)"])
def test_a_part_that_is_read_elsewhere(more: str) -> None:
    """Only what nobody else reads can stay in PSUM."""
    nodes = f"c = Conv<pads=[1,1,1,1]>(x, w) s = Sigmoid(c) y = Mul(c, s) {more}"
    model = modelled(f"({SHAPE} x) => ({SHAPE} y, {SHAPE} z) {{ {nodes} }}", CONSTANTS)
    plan = compare(model, {"x": drawn(2, 4, 6, 6)})
    assert ('act="silu"' in plan.source) == (more == "z = Neg(y)")


def test_a_part_that_is_kept_apart() -> None:
    model = modelled(graph("[s] s = Sigmoid(c) [p] y = Mul(c, s)", "c = Conv<pads=[1,1,1,1]>(x, w)"), CONSTANTS)
    options = PlanOptions("trn2", "float32", choices=Choices(no_fuse=frozenset(["p"])))
    plan = make_plan(import_model(model.SerializeToString()), {"x": (2, 4, 6, 6)}, options)
    assert 'act="silu"' not in plan.source


def test_a_function_after_a_maximum_that_it_does_not_keep() -> None:
    """The kernel would compute it before the maximum, and SiLU falls before it rises."""
    nodes = (
        "c = Conv<pads=[1,1,1,1]>(x, w) p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(c) s = Sigmoid(p) y = Mul(p, s)"
    )
    model = modelled(f"({SHAPE} x) => (float[2,4,3,3] y) {{ {nodes} }}", CONSTANTS)
    plan = compare(model, {"x": drawn(2, 4, 6, 6)})
    assert [step.kernel for step in plan.steps] == ["conv2d_stacked", "compute"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_short_dtypes(dtype: str, target: str) -> None:
    for nodes, _ in WRITTEN.values():
        model = modelled(graph(nodes, "c = Conv<pads=[1,1,1,1]>(x, w)"), CONSTANTS)
        compare(model, {"x": drawn(2, 4, 6, 6)}, dtype=dtype, target=target)

"""Element-wise operators against onnxruntime: every operator, broadcasting, and how neighbours become one step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from planning import Array, compare, drawn, modelled, planned

from trnrt import InferenceSession
from trnrt.errors import UnsupportedModelError

PLAIN = (
    "Relu Sigmoid Tanh Exp Abs Neg Sign Floor Ceil Round Erf Softplus Softsign Mish HardSwish Sin Cos Selu",
    "Elu LeakyRelu HardSigmoid Celu Gelu Atan Asinh Sinh Cosh Tan",
)
ALL = [
    *(name for line in PLAIN for name in line.split()),
    *("Elu<alpha=0.5>", "LeakyRelu<alpha=0.3>", "HardSigmoid<alpha=0.3, beta=0.4>", "Celu<alpha=2.0>"),
    *("Selu<alpha=1.5, gamma=2.0>", "ThresholdedRelu<alpha=0.5>", 'Gelu<approximate="tanh">'),
]


@pytest.mark.parametrize("op", ALL)
def test_unary(op: str) -> None:
    graph = f"(float[3, 40] x) => (float[3, 40] y) {{ y = {op}(x) }}"
    compare(modelled(graph, opset=22), {"x": 3 * drawn(3, 40)})


@pytest.mark.parametrize("call", [*(f"{op}(c)" for op in ALL), "PRelu(c, slope)", "Shrink(c)"])
def test_of_constants_alone(call: str) -> None:
    """What no input reaches is computed when the model is read, whatever the operator."""
    constants = {"w": drawn(3, 4), "slope": np.array([-0.5], np.float32)}
    compare(modelled(f"() => (float[3, 4] y) {{ c = Neg(w) y = {call} }}", constants, opset=22), {})


@pytest.mark.parametrize("op", ["Log", "Sqrt", "Reciprocal"])
def test_unary_of_positive(op: str) -> None:
    graph = f"(float[3, 40] x) => (float[3, 40] y) {{ y = {op}(x) }}"
    compare(modelled(graph), {"x": np.abs(drawn(3, 40)) + 0.1})


@pytest.mark.parametrize("op", ["Acos", "Asin", "Atanh", "Acosh"])
def test_functions_within_their_domain(op: str) -> None:
    """Their ends, what is beyond, and numbers next to 0 and 1, where formulas written as in books lose all digits."""
    near = np.array([0, 1e-30, 1e-7, 1e-4, 0.25, 0.5, 1 - 1e-6, 1, 1.5, np.inf, np.nan], np.float32)
    x = np.concatenate([near, -near, np.tanh(drawn(200)), 1 + np.abs(drawn(50)) * 1e-3, np.abs(drawn(50)) * 1e9])
    graph = f"(float[N] x) => (float[N] y) {{ y = {op}(x) }}"
    with np.errstate(all="ignore"):
        compare(modelled(graph, opset=22), {"x": x.astype(np.float32)})


@pytest.mark.parametrize("op", ["Atan", "Asinh", "Sinh", "Cosh", "Tan"])
def test_functions_of_any_size(op: str) -> None:
    """Relative errors, down to the smallest numbers and up to the largest."""
    sizes = np.exp(np.random.default_rng(0).uniform(-60, 4.4 if op in ("Sinh", "Cosh", "Tan") else 88, 300))
    x = np.concatenate([sizes, -sizes, [0, 89, 100, np.inf, -np.inf, np.nan]]).astype(np.float32)
    model = modelled(f"(float[N] x) => (float[N] y) {{ y = {op}(x) }}", opset=22)
    got = InferenceSession(model.SerializeToString(), cache=False).run(None, {"x": x})[0]
    functions = {"Atan": np.arctan, "Asinh": np.arcsinh, "Sinh": np.sinh, "Cosh": np.cosh, "Tan": np.tan}
    with np.errstate(all="ignore"):
        exact = functions[op](x.astype(np.float64))
        # float32 has no exact pi: an angle's own rounding, times the slope, is not an error.
        slack = 1e-12 * (1 + exact**2) * np.abs(x) if op == "Tan" else 1e-38
        rounded = exact.astype(np.float32)
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
        assert (same | (np.abs(got - exact) <= 4e-6 * np.abs(exact) + slack)).all()


@pytest.mark.parametrize("negative", [0, 1])
@pytest.mark.parametrize("positive", [0, 1])
def test_is_infinite(negative: int, positive: int) -> None:
    graph = f"""(float[N] x) => (bool[N] y) {{
        y = IsInf<detect_negative={negative}, detect_positive={positive}>(x) }}"""
    compare(modelled(graph, opset=20), {"x": np.array([0, 1, np.inf, -np.inf, np.nan, -3e38], np.float32)})


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "PRelu"])
@pytest.mark.parametrize(
    "shapes", [((2, 3), (2, 3)), ((2, 3, 4), (3, 1)), ((5,), (1,)), ((2, 3, 4, 5), (4, 1))], ids=str
)
def test_binary(op: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    left, right = (str(list(s)).replace(" ", "") for s in shapes)
    graph = f"(float{left} a, float{right} b) => (float{left} y) {{ y = {op}(a, b) }}"
    a, b = np.abs(drawn(*shapes[0])) + 0.5, drawn(*shapes[1], seed=1)
    compare(
        modelled(graph), {"a": a if op == "Pow" else a - 1, "b": b if op != "Div" else np.sign(b) * (1 + np.abs(b))}
    )


@pytest.mark.parametrize("op", ["Sub", "Div", "Pow", "Less"])
@pytest.mark.parametrize("number_first", [False, True])
def test_a_number_on_either_side(op: str, number_first: bool) -> None:
    kind = "bool" if op == "Less" else "float"
    graph = f"(float[2, 3] x) => ({kind}[2, 3] y) {{ y = {op}({'c, x' if number_first else 'x, c'}) }}"
    compare(modelled(graph, {"c": np.array(1.5, np.float32)}), {"x": np.abs(drawn(2, 3)) + 0.5})


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min"])
@pytest.mark.parametrize("inputs", ["c, d, x", "x, c, d", "c, x, d", "c, d, x, d, x"])
def test_several_constants(op: str, inputs: str) -> None:
    constants = {"c": np.array(1.5, np.float32), "d": np.array([-0.25], np.float32)}
    compare(modelled(f"(float[2, 3] x) => (float[2, 3] y) {{ y = {op}({inputs}) }}", constants), {"x": drawn(2, 3)})


@pytest.mark.parametrize("opset", [12, 16])
@pytest.mark.parametrize("op", ["GreaterOrEqual", "LessOrEqual"])
def test_comparison_that_was_a_function(op: str, opset: int) -> None:
    """Before opset 16 ONNX's inference says nothing of their results."""
    graph = f"""(float[N,1,3] a, float[N,5,1] b) => (bool[n,k,m] y, float[n,k,m] z) {{
        y = {op}(a, b)  z = Where(y, a, b) }}"""
    compare(modelled(graph, opset=opset), {"a": drawn(2, 1, 3), "b": drawn(2, 5, 1, seed=1)})


@pytest.mark.parametrize("op", ["Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"])
def test_comparison(op: str) -> None:
    graph = f"(float[4, 50] a, float[4, 50] b) => (bool[4, 50] y) {{ y = {op}(a, b) }}"
    a, b = np.round(drawn(4, 50)), np.round(drawn(4, 50, seed=1))
    compare(modelled(graph), {"a": a, "b": b})


@pytest.mark.parametrize("op", ["And", "Or", "Xor"])
def test_logic(op: str) -> None:
    graph = f"(bool[4, 5] a, bool[5] b) => (bool[4, 5] y, bool[4, 5] n) {{ y = {op}(a, b)  n = Not(y) }}"
    compare(modelled(graph), {"a": drawn(4, 5) > 0, "b": drawn(5) > 0})


def test_where() -> None:
    graph = "(bool[4, 1] c, float[4, 5] a, float[5] b) => (float[4, 5] y) { y = Where(c, a, b) }"
    a = drawn(4, 5)
    a[0, 0] = np.inf
    compare(modelled(graph), {"c": drawn(4, 1) > 0, "a": a, "b": drawn(5)})


def test_masking_with_infinity() -> None:
    """As attention masks do: the infinity is a constant tensor, as it can't be written as a number."""
    graph = "(float[4, 5] a) => (float[4, 5] y) { g = Greater(a, z)  w = Where(g, a, i)  y = Softmax(w) }"
    given = {"z": np.array(0, np.float32), "i": np.array(-np.inf, np.float32)}
    compare(modelled(graph, given), {"a": drawn(4, 5) + 1})


LIMITS = [(0.0, 6.0), (None, 0.5), (-0.5, None), (None, None)]


@pytest.mark.parametrize("opset", [6, 11, 13])
@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_clip(opset: int, limits: tuple[float | None, float | None]) -> None:
    graph = "(float[3, 40] x) => (float[3, 40] y) { y = Clip(x) }"
    given = {name: value for name, value in zip(("min", "max"), limits, strict=True) if value is not None}
    constants = {} if opset < 11 else {name: np.array(value, np.float32) for name, value in given.items()}
    model = modelled(graph, constants, opset)
    if opset < 11:
        model.graph.node[0].attribute.extend(helper.make_attribute(name, value) for name, value in given.items())
    else:
        model.graph.node[0].input.extend(name if name in given else "" for name in ("min", "max"))
    compare(model, {"x": 5 * drawn(3, 40)})


@pytest.mark.parametrize(
    ("source", "target"), [("float", "int64"), ("float", "bool"), ("bool", "float"), ("float", "float16")]
)
def test_casts(source: str, target: str) -> None:
    code = {
        "int64": TensorProto.INT64,
        "bool": TensorProto.BOOL,
        "float": TensorProto.FLOAT,
        "float16": TensorProto.FLOAT16,
    }
    graph = f"({source}[3, 4] x) => ({target}[3, 4] y) {{ y = Cast<to={int(code[target])}>(x) }}"
    x: Array = 3 * drawn(3, 4)
    x[0, 0] = 0
    compare(modelled(graph), {"x": x > 0 if source == "bool" else x})


@pytest.mark.parametrize("cast", ["x", "b", "i"])
def test_doubles_that_the_core_made(cast: str) -> None:
    """They leave the model, and become floats again; computed with they are not."""
    graph = f"""(float[3, 4] x) => (double[3, 4] y, float[3, 4] z) {{
        b = Cast<to=9>(x)  i = Cast<to=6>(x)  y = Cast<to=11>({cast})  f = Cast<to=1>(y)  z = Mul(f, x) }}"""
    compare(modelled(graph), {"x": 30 * drawn(3, 4)})
    with pytest.raises(UnsupportedModelError, match="arithmetic on double tensors"):
        planned(modelled(graph.replace("f = Cast<to=1>(y)", "d = Relu(y)  f = Cast<to=1>(d)")), {"x": (3, 4)})


@pytest.mark.filterwarnings("error")
def test_a_gap_as_an_integer_is_no_warning() -> None:
    graph = "(float[3] x) => (int64[3] y, float[3] z) { y = Cast<to=7>(x)  z = Relu(x) }"
    session = InferenceSession(modelled(graph).SerializeToString())
    assert session.run(["y"], {"x": np.array([1.5, np.nan, -2.5], np.float32)})[0][[0, 2]].tolist() == [1, -2]


def test_a_cast_to_integers_and_back() -> None:
    graph = "(float[3, 4] x) => (float[3, 4] y) { i = Cast<to=7>(x)  f = Cast<to=1>(i)  y = Sub(x, f) }"
    plan = compare(modelled(graph), {"x": 30 * drawn(3, 4)})
    assert len(plan.steps) == 1


@pytest.mark.parametrize(
    "op", ["Add(i, c)", "Div(i, c)", "Mul(i, i)", "Sub(c, i)", "Abs(i)", "ReduceMean<axes=[1]>(i)"]
)
def test_arithmetic_on_integers_that_a_cast_made_is_refused(op: str) -> None:
    """They may be larger than float32 is exact for. Of integers, 7 / 2 is 3: the mean would be 3.5."""
    shape = "[2, 1]" if "Reduce" in op else "[2, 3]"
    graph = f"(float[2, 3] x) => (int32{shape} y) {{ i = Cast<to=6>(x) y = {op} }}"
    with pytest.raises(UnsupportedModelError, match=r"arithmetic on int32|integers of unknown size"):
        planned(modelled(graph, {"c": np.array(2, np.int32)}), {"x": (2, 3)})


@pytest.mark.parametrize(
    "op",
    [
        *("Max(i, c)", "Min(i, j)", "Transpose<perm=[1, 0]>(i)", "Where(i_is_two, i, j)", "Cast<to=9>(i)"),
        *("Greater(i, j)", "Equal(i, c)", "Clip(i, c)", "Concat<axis=0>(i, j)", "Cast<to=7>(i)"),
    ],
)
def test_integers_that_a_cast_made_are_moved_compared_and_chosen(op: str) -> None:
    name = op.split("(", maxsplit=1)[0]
    kind = "bool" if name in ("Greater", "Equal", "Cast<to=9>") else "int64" if name == "Cast<to=7>" else "int32"
    shape = "[5, 4]" if name.startswith("Transpose") else "[8, 5]" if name.startswith("Concat") else "[4, 5]"
    graph = f"""(float[4, 5] x, float[4, 5] z) => ({kind}{shape} y)
        {{ i = Cast<to=6>(x) j = Cast<to=6>(z) i_is_two = Equal(i, c) y = {op} }}"""
    inputs = {"x": 9 * drawn(4, 5), "z": 9 * drawn(4, 5, seed=1)}
    compare(modelled(graph, {"c": np.array(2, np.int32)}), inputs)


@pytest.mark.parametrize(("number", "dtype"), [(16777217, "float32"), (257, "bfloat16")])
def test_an_integer_constant_that_would_be_rounded_is_refused(number: int, dtype: str) -> None:
    graph = "(float[2, 2] x) => (bool[2, 2] y) { i = Cast<to=6>(x) y = Equal(i, c) }"
    constants = np.array([number, 3], np.int32)
    with pytest.raises(UnsupportedModelError, match=f"the integer {number} in a constant, which {dtype}"):
        planned(modelled(graph, {"c": constants}), {"x": (2, 2)}, dtype=dtype)


def test_neighbours_become_one_step() -> None:
    """The gate of SiLU reads the input twice; a bias a channel and a residual come along."""
    graph = """(float[2, 8, 5, 5] x, float[2, 8, 5, 5] r) => (float[2, 8, 5, 5] y) {
        b = Add(x, c)  s = Sigmoid(b)  m = Mul(b, s)  a = Add(m, r)  y = Clip(a, low, high) }"""
    given = {"c": drawn(8, 1, 1), "low": np.array(0, np.float32), "high": np.array(6, np.float32)}
    plan = compare(modelled(graph, given), {"x": drawn(2, 8, 5, 5), "r": drawn(2, 8, 5, 5, seed=1)})
    assert [step.kernel for step in plan.steps] in (["compute"], ["compute", "compute"])
    assert sum(len(step.nodes) for step in plan.steps) == 5


def test_what_others_read_is_not_merged() -> None:
    graph = """(float[2, 8] x) => (float[2, 8] y, float[2, 8] e) { e = Exp(x)  y = Neg(e) }"""
    plan = compare(modelled(graph), {"x": drawn(2, 8)})
    assert [step.nodes for step in plan.steps] == [("Exp_0",), ("Neg_1",)]


@settings(max_examples=40)
@given(st.data())
def test_any_broadcasting(data: st.DataObject) -> None:
    result = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    shapes = []
    for _ in range(3):
        shape = [n if data.draw(st.booleans()) else 1 for n in result]
        shapes.append(shape[data.draw(st.integers(0, len(shape))) :])
    shapes.append(result)
    text = [str(s).replace(" ", "") if s else "[1]" for s in shapes]
    graph = f"""(float{text[0]} a, float{text[1]} b, float{text[3]} d) => (float{text[3]} y) {{
        s = Sum(a, c, d)  t = Mul(s, b)  y = Sub(t, a) }}"""
    feeds = {k: drawn(*(s or [1]), seed=i) for i, (k, s) in enumerate(zip("abcd", shapes, strict=True))}
    constants = {"c": feeds.pop("c")}
    compare(modelled(graph, constants), feeds)

"""``Clip(Round(x))`` in plans: what becomes cheap, what stays, and that the numbers are exactly the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from planning import Array, modelled

import trnrt
from trnrt.importer import import_model
from trnrt.operators.programs import Program, Register
from trnrt.operators.rounding import shorten_rounding
from trnrt.planner import PlanOptions, make_plan
from trnrt.planner.steps import Operand


def program(*operations: tuple[object, ...]) -> Program:
    made = Program()
    registers = [made.source(Operand("x", (4,)))]
    for name, *terms in operations:
        given_terms = (registers[t] if isinstance(t, int) else t for t in terms)
        registers.append(made.apply(str(name), *given_terms))  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize(
    "operations",
    [
        [("round", 0), ("maximum", 1, -128.0), ("minimum", 2, 127.5)],
        [("round", 0), ("maximum", 1, -128.0)],
        [("round", 0), ("minimum", 1, 127.0), ("maximum", 2, -128.0)],
        [("round", 0), ("maximum", 1, -128.0), ("minimum", 2, 2.0**22)],
        [("round", 0), ("maximum", 1, -128.0), ("minimum", 2, 127.0), ("add", 3, 1)],
    ],
)
def test_roundings_that_stay(operations: list[tuple[object, ...]]) -> None:
    before = program(*operations)
    assert shorten_rounding(before) is before


def test_a_quotient_that_is_read_twice() -> None:
    steps = [("divide", 0, 0.3), ("round", 1), ("maximum", 2, -128.0), ("minimum", 3, 127.0), ("add", 4, 1)]
    made = [name for name, _ in shorten_rounding(program(*steps)).operations]
    assert made == ["divide", "maximum", "minimum", "add", "subtract", "add"]
    assert shorten_rounding(program(*steps)).operations[-1][1] == (Register(4), Register(0))


GRAPHS = {
    "a sum": "p = Mul(x, sa) q = Mul(z, sb) t = Add(p, q) d = Div(t, sy) r = Round(d) y = Clip(r, low, high)",
    "one factor": "d = Mul(x, sa) r = Round(d) y = Clip(r, low, high)",
    "a factor for each channel": "d = Mul(x, m) r = Round(d) y = Clip(r, low, high)",
    "a scale of a power of two": "d = Div(x, two) r = Round(d) y = Clip(r, low, high)",
    "twice": (
        "d = Div(x, sa) r = Round(d) c = Clip(r, low, high) e = Mul(c, sb) f = Div(e, sy) g = Round(f)"
        " y = Clip(g, low, zero)"
    ),
}
CONSTANTS: dict[str, Array] = {
    "sa": np.array(0.0713, np.float32),
    "sb": np.array(0.0391, np.float32),
    "sy": np.array(0.0977, np.float32),
    "two": np.array(0.25, np.float32),
    "low": np.array(-128, np.float32),
    "high": np.array(127, np.float32),
    "zero": np.array(0, np.float32),
    "m": np.array([0.1, 0.5, 0.0377, 1.25], np.float32).reshape(4, 1, 1),
}


def graph_of(nodes: str) -> Any:
    shape = "float[2,4,9,11]"
    return modelled(f"({shape} x, {shape} z) => ({shape} y, {shape} n) {{ n = Neg(z) {nodes} }}", CONSTANTS)


def in_float32(name: str, x: Array, z: Array) -> Array:
    """The graph as numpy computes it, one rounding an operator."""
    sa, sb, sy, m = (CONSTANTS[key] for key in ("sa", "sb", "sy", "m"))
    if name == "twice":
        twice: Array = np.clip(np.rint(np.clip(np.rint(x / sa), -128, 127) * sb / sy), -128, 0)
        return twice
    numbers: dict[str, Array] = {
        "a sum": (x * sa + z * sb) / sy,
        "one factor": x * sa,
        "a factor for each channel": x * m,
        "a scale of a power of two": x / np.float32(0.25),
    }
    made: Array = np.clip(np.rint(numbers[name]), -128, 127)
    return made


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name: str) -> None:
    nodes = GRAPHS[name]
    rng = np.random.default_rng(5)
    x, z = rng.integers(-2000, 2000, (2, 2, 4, 9, 11)).astype(np.float32)
    model = graph_of(nodes)
    y, _ = trnrt.InferenceSession(model.SerializeToString()).run(None, {"x": x, "z": z})
    np.testing.assert_array_equal(y, in_float32(name, x, z))
    plan = make_plan(import_model(model.SerializeToString()), {"x": x.shape, "z": z.shape}, PlanOptions())
    assert '"round"' not in plan.source
    assert '"divide"' not in plan.source


CONVOLUTIONS = {
    # name: (image, weight, attributes, pooling behind it)
    "3x3": ((2, 20, 9, 11), (24, 20, 3, 3), "pads=[1,1,1,1]", ""),
    "blocks of channels": ((1, 140, 6, 6), (150, 140, 3, 3), "pads=[1,1,1,1]", ""),
    "pointwise": ((1, 64, 8, 8), (32, 64, 1, 1), "group=1", ""),
    "stacked": ((1, 1, 8, 8), (16, 1, 3, 3), "pads=[1,1,1,1]", "MaxPool<kernel_shape=[2,2],strides=[2,2]>"),
    "strips": ((1, 3, 64, 64), (16, 3, 7, 7), "pads=[3,3,3,3],strides=[2,2]", ""),
    "row groups": ((1, 16, 56, 56), (16, 16, 3, 3), "pads=[1,1,1,1]", ""),
    "depthwise": ((1, 32, 12, 12), (32, 1, 3, 3), "pads=[1,1,1,1],group=32", ""),
    "a row of pixels": ((2, 8, 30), (12, 8, 3), "group=1", ""),
}


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("by_channel", [False, True], ids=["one factor", "by channel"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, by_channel: bool, target: str) -> None:
    """Sums that end on ties or beyond the limits, too: factors are powers of two, and not."""
    image, weight, attributes, pool = CONVOLUTIONS[name]
    rng = np.random.default_rng(len(name))
    outputs, depth = weight[0], int(np.prod(weight[1:]))
    factors = rng.choice([0.125, 0.5, 0.0613, 0.0371], outputs if by_channel else 1) / np.sqrt(depth)
    factors[0] = 2.0 ** np.rint(np.log2(factors[0]))
    constants: dict[str, Array] = {
        "w": rng.integers(-127, 128, weight).astype(np.float32),
        "b": rng.integers(-2000, 2000, outputs).astype(np.float32),
        "m": factors.astype(np.float32).reshape((-1,) + (1,) * (len(image) - 2) if by_channel else ()),
        "low": np.array(-128, np.float32),
        "high": np.array(126, np.float32),
    }
    sizes = ",".join(map(str, image))
    behind = f"y = {pool}(c)" if pool else "y = Identity(c)"
    before = f"i = Round(x) k = Clip(i, low, high) a = Conv<{attributes}>(k, w, b)"
    nodes = f"{before} p = Mul(a, m) r = Round(p) c = Clip(r, low, high) {behind}"
    model = modelled(f"(float[{sizes}] x) => (float y) {{ {nodes} }}", constants)
    x = rng.integers(-128, 128, image).astype(np.float32)
    session = trnrt.InferenceSession(model.SerializeToString(), target=target)
    (y,) = session.run(None, {"x": x})
    without = modelled(f"(float[{sizes}] x) => (float a) {{ a = Conv<{attributes}>(x, w, b) }}", constants)
    (sums,) = onnxruntime.InferenceSession(without.SerializeToString()).run(None, {"x": np.minimum(x, 126)})
    expected = np.clip(np.rint(sums * constants["m"]), -128, 126)
    if pool:
        expected = expected.reshape(1, 16, 4, 2, 4, 2).max(axis=(3, 5))
    np.testing.assert_array_equal(y, expected)
    plan = make_plan(import_model(model.SerializeToString()), {"x": x.shape}, PlanOptions(target=target))
    assert ('act="whole"' in plan.source) == (name != "depthwise")

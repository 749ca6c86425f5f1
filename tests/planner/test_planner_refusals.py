"""What no kernel will ever do is refused by name, with a reason and a way out; a quantised model as a whole."""

from __future__ import annotations

import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from trnrt.errors import Blocker, UnsupportedModelError
from trnrt.importer import import_model
from trnrt.operators.record import supported_operators
from trnrt.planner import PlanOptions, make_plan
from trnrt.planner.lowering.refusals import refusal


def blockers(text: str, opset: int = 18, **domains: int) -> list[Blocker]:
    imports = ", ".join(f'"{name.replace("_", ".")}" : {version}' for name, version in {"": opset, **domains}.items())
    proto = onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{imports}]> {text}")
    model = import_model(proto.SerializeToString())
    shapes = {info.name: tuple(dim if isinstance(dim, int) else 2 for dim in info.shape) for info in model.inputs}
    with pytest.raises(UnsupportedModelError) as caught:
        make_plan(model, shapes, PlanOptions("trn2", "float32"))
    assert caught.value.exit_code == 1
    return caught.value.blockers


@pytest.mark.parametrize(
    ("text", "op", "reason", "hint"),
    [
        (
            """g (float[2,4] x, int64[2] m) => (float[2,4] y) <bool go = {1}>
            { n = ReduceSum<keepdims=0>(m)  y = Loop(n, go, x)
            <body = b (int64 i, bool c, float[2,4] a) => (bool d, float[2,4] e) { d = Identity(c)  e = Exp(a) }> }""",
            "Loop", "a number of trips", "a fixed number of trips",
        ),
        (
            """g (float[2,4] x, bool c) => (float[2,k] y) { y = If(c) <then_branch = a () => (float[2,8] t)
            { t = Concat<axis=1>(x, x) }, else_branch = b () => (float[2,4] e) { e = Relu(x) }> }""",
            "If", "results differ in shape", "constant",
        ),
        ("g (float[2,4] x) => (float[1,4] y) { s = SplitToSequence(x)  i = ArgMax<axis=1, keepdims=0>(x)"
         "  k = ReduceMax<keepdims=0>(i)  y = SequenceAt(s, k) }",
         "SplitToSequence", "sequences", "Split"),
        ("g (float[3,2,4] x, float[1,8,4] w, float[1,8,2] r) => (float[3,1,2,2] y) "
         '{ y = LSTM<hidden_size=2, activations=["Elu","Tanh","Tanh"]>(x, w, r) }',
         "LSTM", "the activation 'elu'", "relu, sigmoid, tanh"),
        ("g (float[2,4] x) => (float[2,4] y) { y = RandomUniformLike(x) }", "RandomUniformLike", "random", "inference"),
        ("g (float[2,4] x) => (int64[2,n] y) { y = NonZero(x) }", "NonZero", "depends on the data", "cut the model"),
        ("g (float[2,4] x) => (float[2,4] y) { y = ai.mine.Secret(x) }",
         "ai.mine.Secret", "'ai.mine'", "own operators"),
        ("g (float[2,4] x) => (float[2,4] y) { y = com.microsoft.CDist(x, x) }",
         "com.microsoft.CDist", "onnxruntime's own", "before it was optimised"),
    ],
)  # fmt: skip
def test_what_is_refused_by_name(text: str, op: str, reason: str, hint: str) -> None:
    found = [b for b in blockers(text, ai_mine=1, com_microsoft=1) if b.op == op]
    assert found, op
    assert reason in found[0].reason
    assert hint in found[0].hint


def test_every_operator_that_is_not_supported_has_a_reason_and_a_hint() -> None:
    """Those of ONNX and its classical ones; the answer of an unknown operator is one of them."""
    supported = set(supported_operators())
    schemas = [s for s in onnx.defs.get_all_schemas() if (s.domain, s.name) not in supported]
    assert len(schemas) > 50
    for schema in schemas:
        told = refusal(ir.node(schema.name, [], domain=schema.domain))
        assert told.reason and told.hint, schema.name


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("""g (float[2,4] x) => (float[2,4] y) <float s = {0.5}, int16 z = {0}>
         { q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
         ["its result is int16; int8 and uint8 are supported", "its input 'q' is int16; int8 and uint8 are supported"]),
        ("""g (int8[2,4] x, float[2,3] s) => (float[2,4] y) { y = DequantizeLinear<axis=1, block_size=2>(x, s) }""",
         ["a scale or zero point of shape (2, 3) in blocks of 2 along axis 1 of a tensor of shape (2, 4)"]),
        ("""g (int8[2,4] x, float[3] s) => (float[2,4] y) { y = DequantizeLinear(x, s) }""",
         ["a scale or zero point of shape (3,) along axis 1 of a tensor of shape (2, 4)"]),
    ],
)  # fmt: skip
def test_other_quantised_forms_are_refused_with_the_reason(text: str, told: list[str]) -> None:
    found = blockers(text, opset=21)
    assert [blocker.reason.removeprefix("quantised arithmetic: ") for blocker in found] == told
    assert all("int8 or uint8" in blocker.hint and "--fallback" in blocker.hint for blocker in found)

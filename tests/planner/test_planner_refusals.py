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
            """g (float[2,4] x) => (float[2,4] y) <int64 n = {3}, bool go = {1}> { y = Loop(n, go, x)
            <body = b (int64 i, bool c, float[2,4] a) => (bool d, float[2,4] e) { d = Identity(c)  e = Exp(a) }> }""",
            "Loop", "a loop", "unrolled",
        ),
        (
            """g (float[2,4] x, bool c) => (float[2,4] y) { y = If(c) <then_branch = a () => (float[2,4] t)
            { t = Exp(x) }, else_branch = b () => (float[2,4] e) { e = Relu(x) }> }""",
            "If", "control flow", "constant",
        ),
        ("g (float[2,4] x) => (float[2,4] y) <int64 k = {0}> { s = SplitToSequence(x)  y = SequenceAt(s, k) }",
         "SplitToSequence", "sequences", "Split"),
        ("g (float[3,2,4] x, float[1,8,4] w, float[1,8,2] r) => (float[3,1,2,2] y) "
         "{ y = LSTM<hidden_size=2>(x, w, r) }",
         "LSTM", "recurrent", "--fallback"),
        ("g (float[2,4] x) => (float[2,4] y) { y = RandomUniformLike(x) }", "RandomUniformLike", "random", "inference"),
        ("g (float[2,4] x) => (int64[2,n] y) { y = NonZero(x) }", "NonZero", "depends on the data", "cut the model"),
        ("g (float[2,4] x) => (float[2,4] y) { y = ai.mine.Secret(x) }",
         "ai.mine.Secret", "'ai.mine'", "own operators"),
        ("g (float[2,4] x) => (float[2,4] y) { y = com.microsoft.FastGelu(x) }",
         "com.microsoft.FastGelu", "onnxruntime's own", "export the model again"),
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


QDQ = """g (float[1,2,4,4] x) => (float[1,3,2,2] y)
<float s = {0.5}, uint8 z = {0}, int8[3,2,3,3] w, int8 zw = {0}>
{ q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  v = DequantizeLinear(w, s, zw)  c = Conv(d, v)
  r = Relu(c)  a = QuantizeLinear(r, s, z)  y = DequantizeLinear(a, s, z) }"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (QDQ.replace("int8[3,2,3,3] w", f"int8[3,2,3,3] w = {{{','.join('1' * 54)}}}"),
         "2 DequantizeLinear, 2 QuantizeLinear"),
        ("""g (float[2,4] x) => (float[2,3] y) <int8[4,3] w = {1,2,3,4,5,6,7,8,9,10,11,12}>
         { q, s, z = DynamicQuantizeLinear(x)  i = MatMulInteger(q, w, z)  f = Cast<to=1>(i)  y = Mul(f, s) }""",
         "1 DynamicQuantizeLinear, 1 MatMulInteger"),
        ("""g (uint8[2,4] x) => (uint8[2,4] y) <float s = {0.5}, uint8 z = {0}> 
         { y = com.microsoft.QLinearSigmoid(x, s, z, s, z) }""",
         "1 QLinearSigmoid"),
    ],
)  # fmt: skip
def test_a_quantised_model_is_refused_in_one_sentence(text: str, told: str) -> None:
    found = blockers(text, com_microsoft=1)
    assert len(found) == 1
    assert f"the model is quantised ({told})" in found[0].reason
    assert "export the float model" in found[0].hint and "--dtype bfloat16" in found[0].hint

"""Operators that ONNX defines by others are written out when a file is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from rewritten import ops, run

from trnrt import InferenceSession
from trnrt.errors import UnsupportedModelError
from trnrt.importer import import_model

RANDOM = np.random.default_rng(0)


def attention(call: str, ends: str, opset: int = 23) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}]> g ({ends}) => (float[N,5,8] y) {{ {call} }}'
    )


@pytest.mark.parametrize(
    "call",
    [
        "t = Neg(q) y = Attention<q_num_heads=2, kv_num_heads=2>(t, k, v)",
        "y = Attention<q_num_heads=2, kv_num_heads=2, is_causal=1, softcap=2.0>(q, k, v)",
        'y, p, o = Attention<q_num_heads=2, kv_num_heads=2, scale=0.3>(q, k, v, "", a, b)',
    ],
)
def test_attention_is_written_out_and_runs(call: str) -> None:
    """With past keys an input before them is omitted."""
    rows = ", ".join(f"float[N,5,8] {name}" for name in "qkv")
    proto = attention(call, f"{rows}, float[N,2,3,4] a, float[N,2,3,4] b")
    model = import_model(proto.SerializeToString())
    assert "Attention" not in {node.op_type for node in model.model.graph}
    assert set(model.model.opset_imports) == {""}
    feeds = {i.name: RANDOM.standard_normal((2, *map(int, i.shape[1:])), np.float32) for i in model.inputs}  # type: ignore[arg-type]
    wanted = run(proto, feeds)[0]
    np.testing.assert_allclose(run(ir.to_proto(model.model), feeds)[0], wanted, rtol=1e-4, atol=1e-5)
    got: Any = InferenceSession(proto.SerializeToString(), cache=False).run(None, feeds)[0]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_rotary_embedding_turns_whole_heads() -> None:
    """The part that isn't turned is empty, and gone."""
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 23]> g (float[N,2,5,4] q, int64[N,5] p) => (float[N,2,5,4] y)
        { y = RotaryEmbedding(q, c, s, p) }"""
    )
    tables = [numpy_helper.from_array(RANDOM.standard_normal((9, 2), np.float32), name) for name in "cs"]
    proto.graph.initializer.extend(tables)
    view = import_model(proto.SerializeToString()).bind({"q": (3, 2, 5, 4), "p": (3, 5)})
    assert ops(view).count("Split") <= 1 and not view.unresolved
    feeds: dict[str, Any] = {"q": RANDOM.standard_normal((3, 2, 5, 4), np.float32), "p": RANDOM.integers(0, 9, (3, 5))}
    np.testing.assert_allclose(run(ir.to_proto(view.model), feeds)[0], run(proto, feeds)[0], rtol=1e-5, atol=1e-6)


def test_an_input_of_unknown_type_is_refused_with_the_reason() -> None:
    ends = "float[N,5,8] q, float[N,5,8] k, float[N,5,8] v"
    proto = attention("t = other.Op(q) y = Attention<q_num_heads=2, kv_num_heads=2>(t, k, v)", ends)
    proto.opset_import.add(domain="other", version=1)
    feeds = {name: np.ones((2, 5, 8), np.float32) for name in "qkv"}
    with pytest.raises(UnsupportedModelError, match="rank of an input is not known"):
        InferenceSession(proto.SerializeToString(), cache=False).run(None, feeds)

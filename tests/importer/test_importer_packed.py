"""MatMulNBits runs as the MatMul of its unpacked weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import trnrt
from trnrt.errors import UnsupportedModelError
from trnrt.validate import validate

Array = np.ndarray[Any, np.dtype[Any]]
RANDOM = np.random.default_rng(0)
OUTPUTS = 16


def layers(bits: int, terms: int, zero: str, bias: bool, block: int = 16) -> bytes:
    """Two of them, one after the other; ``zero``: "" (none), "bytes" or "floats"."""
    nodes, constants, source = [], dict[str, Array](), "x"
    for name, size in (("first", terms), ("second", OUTPUTS)):
        blocks = -(-size // block)
        given: dict[str, Array] = {
            "w": RANDOM.integers(0, 256, (OUTPUTS, blocks, block * bits // 8)).astype(np.uint8),
            "s": RANDOM.uniform(0.01, 0.1, OUTPUTS * blocks).astype(np.float32),
            "z": RANDOM.integers(0, 256, OUTPUTS * -(-blocks * bits // 8)).astype(np.uint8),
            "b": RANDOM.standard_normal(OUTPUTS).astype(np.float32),
        }
        if zero == "floats":
            given["z"] = RANDOM.integers(0, 2**bits, OUTPUTS * blocks).astype(np.float32)
        kept = ["w", "s", *(["z"] if zero else []), *(["b"] if bias else [])]
        constants |= {f"{name}_{key}": given[key] for key in kept}
        inputs = [source, *(f"{name}_{key}" if key in kept else "" for key in "wsz"), "", f"{name}_b" if bias else ""]
        source = "y" if name == "second" else "h"
        nodes.append(helper.make_node("MatMulNBits", inputs, [source], name, domain="com.microsoft",
                                      K=size, N=OUTPUTS, bits=bits, block_size=block))  # fmt: skip
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", size]) for n, size in (("x", terms), ("y", 16))]
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], weights)
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=domains, ir_version=10).SerializeToString())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("zero", ["", "bytes", "floats"])
@pytest.mark.parametrize(("bits", "terms"), [(2, 64), (4, 48), (4, 50), (8, 64)])
def test_packed_weights(bits: int, terms: int, zero: str, bias: bool) -> None:
    if zero == "floats" and bits != 4:
        pytest.skip("onnxruntime takes zero points of floats for 4 bits only")
    session = trnrt.InferenceSession(layers(bits, terms, zero, bias))
    report = validate(session, {"x": RANDOM.standard_normal((5, terms)).astype(np.float32)})
    assert report.passed and report.outputs[0].max_rel < 1e-3, report


def test_computed_weights_are_refused() -> None:
    proto = onnx.load_from_string(layers(4, 64, "", False))
    weights = next(tensor for tensor in proto.graph.initializer if tensor.name == "first_w")
    proto.graph.input.append(helper.make_tensor_value_info("first_w", TensorProto.UINT8, weights.dims))
    proto.graph.initializer.remove(weights)
    with pytest.raises(UnsupportedModelError, match="MatMulNBits"):
        trnrt.InferenceSession(proto.SerializeToString(), shapes={"x": (2, 64)}).partition(1)

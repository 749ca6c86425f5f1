"""Helpers for tests of the clean-up: models from text, and a comparison of a model with what it is rewritten to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
from onnx import numpy_helper

from trnrt.importer import GraphView, ImportedModel, import_model

Array = npt.NDArray[Any]


def run(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    # Its rewrites have bugs of their own: it can't run a Pad with axes between Transposes, for one.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs: list[Array] = session.run(None, dict(feeds))
    return outputs


def drawn(model: ImportedModel, rows: int = 3, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    shapes = {i.name: tuple(dim if isinstance(dim, int) else rows for dim in i.shape) for i in model.inputs}
    return {i.name: rng.standard_normal(shapes[i.name]).astype(i.dtype) for i in model.inputs}


def checked(
    proto: onnx.ModelProto,
    rows: int = 3,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    original: onnx.ModelProto | None = None,
) -> GraphView:
    """The rewritten model, after a comparison of its answers with the original's.

    ``original`` says the same as ``proto`` in words that onnxruntime knows, where those of ``proto`` are too old.
    """
    model = import_model(proto.SerializeToString())
    feeds = drawn(model, rows)
    view = model.bind({name: array.shape for name, array in feeds.items()})
    rewritten = ir.to_proto(view.model)
    onnx.checker.check_model(rewritten)
    # With static shapes, onnxruntime lets ai.onnx.ml.Normalizer overwrite its input too early.
    del rewritten.graph.value_info[:]
    for info, expected, got in zip(model.outputs, run(original or proto, feeds), run(rewritten, feeds), strict=True):
        assert got.dtype == expected.dtype, info.name
        if expected.dtype == object:
            assert (got == expected).all(), info.name
        else:
            np.testing.assert_allclose(got, expected, rtol=rtol, atol=atol, err_msg=info.name)
    names = [node.name for node in view.model.graph]
    assert len(set(names)) == len(names)
    return view


def parsed(text: str, opset: int = 17, seed: int = 1) -> onnx.ModelProto:
    """A model from its text; initializers named p... and declared as ``float[...] p`` are drawn."""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}, "ai.onnx.ml" : 3]> {text}')
    rng = np.random.default_rng(seed)
    drawn_inputs = [info for info in proto.graph.input if info.name.startswith("p")]
    for info in drawn_inputs:
        shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        array = rng.uniform(0.5, 1.5, shape).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, info.name))
        proto.graph.input.remove(info)
    return proto


def ops(view: GraphView) -> list[str]:
    return [node.op_type for node in view.model.graph]

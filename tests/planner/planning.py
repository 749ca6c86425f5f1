"""What the planner tests share: models from ONNX's textual form, their plans, and comparison with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import numpy_helper, parser

import trnrt
from trnrt.importer import ImportedModel, import_model
from trnrt.planner import Plan, PlanOptions, make_plan
from trnrt.planner.sizes import default_shapes

Array = NDArray[Any]
Shapes = Mapping[str, tuple[int, ...]]

# Answers are of the size of 1 to 10; a 16-bit one is rounded at every step of a model.
TOLERANCE = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 8e-2}


def modelled(graph: str, constants: Mapping[str, Array] | None = None, opset: int = 17) -> onnx.ModelProto:
    """``graph`` is ``(inputs) => (outputs) {nodes}``; ``constants`` become its initializers."""
    text = f'<ir_version: 8, opset_import: ["" : {opset}, "ai.onnx.ml" : 3]>\ng {graph}'
    model: onnx.ModelProto = parser.parse_model(text)
    for name, array in (constants or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


def drawn(*shape: int, seed: int = 0) -> Array:
    """Normally distributed float32."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def onnxruntimes(model: onnx.ModelProto, feeds: Mapping[str, Array], *, rewrites: bool = True) -> list[Array]:
    """What onnxruntime answers; without ``rewrites``, of the very nodes of the model."""
    options = onnxruntime.SessionOptions()
    if not rewrites:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    answers: list[Array] = session.run(None, dict(feeds))
    return answers


def compare(
    model: onnx.ModelProto, feeds: Mapping[str, Array], *, dtype: str = "float32", target: str = "trn2"
) -> Plan:
    """Run a model with trnrt and onnxruntime: names, shapes, dtypes and numbers must be equal. Returns the plan."""
    session = trnrt.InferenceSession(model.SerializeToString(), dtype=dtype, target=target, cache=False)
    got, expected = session.run(None, feeds), onnxruntimes(model, feeds)
    assert [o.name for o in session.get_outputs()] == [o.name for o in model.graph.output]
    for mine, theirs in zip(got, expected, strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        if mine.dtype.kind != "f":
            np.testing.assert_array_equal(mine, theirs)
        else:
            np.testing.assert_allclose(mine, theirs, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert session.last_run.plan is not None
    return session.last_run.plan


def plan_rows(model: ImportedModel, rows: int, options: PlanOptions) -> Plan:
    """The plan of a model for so many rows."""
    return make_plan(model, default_shapes(model, rows), options)


def planned(model: onnx.ModelProto, shapes: Shapes, *, dtype: str = "float32", target: str = "trn2") -> Plan:
    """The plan for these input shapes."""
    return make_plan(import_model(model.SerializeToString()), shapes, PlanOptions(target, dtype))


def steps(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Each step's kernel and nodes: ``{"conv2d": ("c", "r")}`` where every kernel is called once."""
    found = {step.kernel: step.nodes for step in plan.steps}
    assert len(found) == len(plan.steps), [step.kernel for step in plan.steps]
    return found


def renamed(model: onnx.ModelProto, names: Mapping[str, str]) -> onnx.ModelProto:
    """The model with other names, of values and nodes alike, as ONNX's textual form can't hold them all."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    for node in graph.node:
        node.name = names.get(node.name, node.name)
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for info in [*graph.input, *graph.output, *graph.initializer, *graph.value_info]:
        info.name = names.get(info.name, info.name)
    return copy

"""What the tests of models in parts share: their parts, and that their numbers are onnxruntime's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from planning import onnxruntimes

import trnrt
from trnrt.importer import import_model
from trnrt.planner import PlanOptions
from trnrt.planner.parts.partition import DevicePart, Partition
from trnrt.planner.parts.partitioning import make_partition

Feeds = Mapping[str, Any]
Parts = list[tuple[str, list[str]]]

# An operator that keeps its input's shape, and one that doesn't; neither has a kernel.
MIDDLE = "(float[2,3] x) => (float[2,3] y) { a = Relu(x)  b = Hardmax(a)  y = Sigmoid(b) }"
CORE, CPU = "core", "cpu"


def divided(model: onnx.ModelProto, feeds: Feeds, *, target: str = "trn2", dtype: str = "float32") -> Partition:
    """The parts for these inputs."""
    shapes = {name: np.shape(array) for name, array in feeds.items()}
    imported = import_model(model.SerializeToString(), name="m")
    return make_partition(imported, shapes, PlanOptions(target, dtype, fallback="onnxruntime"))


def placed(partition: Partition) -> Parts:
    """Each part's place and operators, in order."""
    operators = {node.name: node.op for node in partition.nodes}
    found = []
    for part in partition.parts:
        nodes = part.plan.nodes if isinstance(part, DevicePart) else part.nodes
        found.append((CORE if isinstance(part, DevicePart) else CPU, [operators[node.name] for node in nodes]))
    return found


def checked(model: onnx.ModelProto, feeds: Feeds, **options: str) -> Parts:
    """Run it in parts and with onnxruntime: names, shapes, dtypes and numbers must agree. Returns the parts."""
    session = trnrt.InferenceSession(model.SerializeToString(), fallback="onnxruntime", **options)  # type: ignore[arg-type]
    expected = onnxruntimes(model, feeds)
    for mine, theirs in zip(session.run(None, feeds), expected, strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        if mine.dtype.kind == "f":
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
        else:
            np.testing.assert_array_equal(mine, theirs)
    assert session.last_run.partition is not None
    return placed(session.last_run.partition)


def value(name: str, shape: list[int]) -> onnx.ValueInfoProto:
    """A float tensor."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

"""Arithmetic happens on the core: what the traced program multiplies is what the graph asks for, and the host does
none of it."""

from __future__ import annotations

from collections import Counter
from math import prod
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from planning import drawn, modelled, planned

from trnrt.backends.simulator import load_entry
from trnrt.importer import import_model
from trnrt.nki import Spec, trace
from trnrt.nki.machine.program import Program
from trnrt.planner import Plan, explain

MODELS = Path(__file__).parents[2] / "models"
NAMES = ["digits_ffnn", "digits_ffnn_legacy", "digits_mlp_sklearn", "digits_cnn", "digits_cnn_legacy"]
# All that may ever run on the host: conversions and look-ups of a final index.
HOST = {"Cast", "ai.onnx.ml.ArrayFeatureExtractor"}
ATTRIBUTES = (("strides", 1), ("dilations", 1), ("pads", 0))
ACTIVATIONS = {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh"}


def program_of(plan: Plan) -> Program:
    """The program that the plan's module traces to."""
    entry = load_entry(plan, Path("kernel.py"), plan.source.encode())
    tensors = [Spec(t.shape, t.dtype) for t in plan.inputs]
    weights = [Spec(w.shape, w.dtype) for w in plan.weights.values()]
    return trace(entry, *tensors, *weights, target=plan.target)


def multiplied(program: Program) -> int:
    """Products that the tensor engine makes."""
    matmuls = [i for i in program.instructions if i.operation.name == "nc_matmul"]
    return sum(i["stationary"].partitions * i["stationary"].free_size * i["moving"].free_size for i in matmuls)


def seen_taps(node: onnx.NodeProto, image: list[int], kernel: tuple[int, ...], result: list[int]) -> int:
    """Pairs of a result's place and a tap of the kernel that lies on the image under it, not on the padding."""
    given = {a.name: list(a.ints) for a in node.attribute}
    total = 1
    for d, (size, taps, places) in enumerate(zip(image, kernel, result, strict=True)):
        step, dilation, pad = (given.get(name, [default] * 4)[d] for name, default in ATTRIBUTES)
        total *= sum(0 <= i * step + u * dilation - pad < size for i in range(places) for u in range(taps))
    return total


def demanded(model: onnx.ModelProto, batch: int) -> int:
    """Products that the model's MatMul, Gemm and Conv nodes ask for, by their shapes; none with padding."""
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    known = [*model.graph.value_info, *model.graph.output, *model.graph.input]
    shapes = {v.name: [d.dim_value or batch for d in v.type.tensor_type.shape.dim] for v in known}
    constants = {t.name: numpy_helper.to_array(t).shape for t in model.graph.initializer}
    total = 0
    for node in model.graph.node:
        if node.op_type == "Conv":
            outputs, channels, *kernel = constants[node.input[1]]
            image, result = shapes[node.input[0]], shapes[node.output[0]]
            total += result[0] * outputs * channels * seen_taps(node, image[2:], tuple(kernel), result[2:])
        elif node.op_type in ("Gemm", "MatMul"):
            total += prod(constants[node.input[1]]) * batch
    return total


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("name", NAMES)
def test_every_product_is_made_on_the_core(name: str, target: str) -> None:
    path = MODELS / f"{name}.onnx"
    plan = explain(import_model(path), target=target, dtype="float32", batch=33)
    program = program_of(plan)
    model = onnx.load(path)
    asked = demanded(model, 33)
    if any(node.op_type == "Conv" for node in model.graph.node):
        # Taps of few channels share the partitions, with zeros between them that are multiplied, too.
        assert multiplied(program) >= asked > 0
    else:
        assert multiplied(program) == asked > 0
    assert {node.op for node in plan.host} <= HOST


@pytest.mark.parametrize("name", NAMES)
def test_activations_run_on_the_scalar_engine(name: str) -> None:
    path = MODELS / f"{name}.onnx"
    program = program_of(explain(import_model(path), target="trn2", dtype="float32", batch=2))
    done = Counter(i["op"].name for i in program.instructions if i.operation.name == "activation")
    wanted = Counter(ACTIVATIONS.get(node.op_type) for node in onnx.load(path).graph.node)
    for activation in ACTIVATIONS.values():
        assert done[activation] >= wanted[activation]
    assert {i.engine.name for i in program.instructions if i.operation.name == "activation"} <= {"scalar"}


def test_every_operator_is_computed_on_the_core() -> None:
    """A model with each of them: what the host does is the listed handful, the rest is instructions or nothing."""
    graph = """(float[N,1,6,6] x) => (float[N,3] p, int64[N] label, float[N,4,4,2] t) {
        c = Conv(x, w)  r = Relu(c)  m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
        f = Flatten(m)  h = MatMul(f, u)  g = Gemm(h, v, b)  s = Add(g, h)  a = Tanh(s)
        p = Softmax(a)  i = ArgMax<axis=1, keepdims=0>(p)  label = Cast<to=7>(i)
        t = Transpose<perm=[0,2,3,1]>(r) }"""
    constants = {"w": drawn(2, 1, 3, 3), "u": drawn(8, 3), "v": drawn(3, 3), "b": drawn(3)}
    plan = planned(modelled(graph, constants), {"x": (5, 1, 6, 6)})
    program = program_of(plan)
    # The three rows of the kernel are 32 partitions apart: zeros stand between them.
    assert multiplied(program) == 5 * (2 * 3 * (2 * 32 + 1) * 16 + 8 * 3 + 3 * 3)
    used = Counter(i.operation.name for i in program.instructions)
    for instruction in ("nc_matmul", "activation", "tensor_reduce", "reciprocal", "max8", "nc_find_index8"):
        assert used[instruction], instruction
    places = {node.op: node.place for node in plan.nodes}
    assert {op for op, place in places.items() if place == "host"} <= HOST
    assert {op for op, place in places.items() if place == "view"} == {"Flatten"}
    assert plan.host == ()


def test_weights_reach_the_core_as_they_are_used() -> None:
    """No instruction transposes a weight, and every weight is read."""
    path = MODELS / "digits_cnn.onnx"
    plan = explain(import_model(path), target="trn2", dtype="bfloat16", batch=2)
    program = program_of(plan)
    weights = program.inputs[len(plan.inputs) :]
    loads = [i for i in program.instructions if any(v.storage in weights for v in i.reads())]
    assert {v.storage.index for i in loads for v in i.reads()} == {s.index for s in weights}
    assert all(i.operation.name == "dma_copy" and i["src"].strides[-1] == 1 for i in loads)
    dtypes = {name: array.dtype.name for name, array in plan.weights.items()}
    assert set(dtypes.values()) == {"float32", "bfloat16"}
    assert {name for name, dtype in dtypes.items() if dtype == "float32"} == {"biases_all"}


def test_a_rounded_weight_is_rounded_once() -> None:
    """To nearest even, from the model's float32."""
    weight = np.array([[1 + 2**-9, 1 + 3 * 2**-8]], np.float32)
    model = modelled("(float[N,1] x) => (float[N,2] y) { y = Gemm<alpha=1.0>(x, w) }", {"w": weight})
    plan = planned(model, {"x": (1, 1)}, dtype="bfloat16")
    held = next(a for a in plan.weights.values() if a.dtype.name == "bfloat16")
    assert held.astype(np.float64).ravel().tolist() == [1.0, 1 + 2**-6]

"""Seeded random weights for a graph that came without any, of such a size that what flows through it stays in range.

What a node does with a number says how it is drawn (``DRAWS``). The weights of a Conv, ConvTranspose, Gemm or MatMul
are then scaled by a power of two, so that the node's result has a standard deviation near 1: the graph is run node by
node, by onnxruntime, on random inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
Readers = dict[str, list[tuple[onnx.NodeProto, int]]]
# What only hands its first input on, in another shape.
SHAPING = ("Unsqueeze", "Squeeze", "Reshape", "Transpose", "Identity", "Flatten", "Cast")
PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)

PERIOD = 1_000_003
# The standard deviation of what a gate is decided by. Gates that open and shut wholly let some inputs grow from block
# to block, and rounding with them.
GATE = 0.25
NEAR_ONE, SMALL, FILTERS = "near one", "small", "filters"
# What is drawn for each input of a node that can be a weight: the last entry serves all further inputs.
DRAWS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(PRODUCTS, (FILTERS, FILTERS, SMALL)),
    # scale, shift, mean, variance
    "BatchNormalization": ("", NEAR_ONE, SMALL, SMALL, NEAR_ONE),
    "InstanceNormalization": ("", NEAR_ONE, SMALL),
    "LayerNormalization": ("", NEAR_ONE, SMALL),
    "Mul": (NEAR_ONE, NEAR_ONE),
    "Add": (SMALL, SMALL),
    "Sub": (SMALL, SMALL),
    "PRelu": ("", SMALL),
    "Gather": (SMALL,),
    "Concat": (SMALL,),
    "Expand": (SMALL,),
}


def randomized(model: onnx.ModelProto, seed: int = 0, *, settled: bool = True) -> onnx.ModelProto:
    """A copy of ``model`` whose constants of more than one number, ConstantOfShape among them, are drawn anew.

    A ConstantOfShape becomes an initializer. Constants that none of ``DRAWS`` consumes stay: shapes, scales, limits.
    ``settled=False``: without the run that scales the weights, for who does not run the model.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    generator = np.random.default_rng(seed)
    constants = {tensor.name: tensor for tensor in made.graph.initializer}
    shapes, nodes = stored_shapes(made.graph), list(made.graph.node)
    readers = readers_of(nodes)
    drawn: dict[str, Array] = {}
    for name, shape in shapes.items():
        kind = use(name, readers)
        if kind and int(np.prod(shape)) > 1:
            drawn[name] = draw(kind, shape, generator)
            constants.pop(name, None)
    made.graph.ClearField("initializer")
    made.graph.ClearField("node")
    made.graph.node.extend(node for node in nodes if node.output[0] not in drawn)
    read = readers_of(made.graph.node)
    made.graph.initializer.extend(tensor for name, tensor in constants.items() if name in read)
    # Before IR version 4 an initializer had to be an input of the graph, too.
    made.ir_version = max(made.ir_version, 4)
    if settled:
        settle(made, drawn, random_feeds(model, batch=4, seed=seed))
    for name, array in drawn.items():
        made.graph.initializer.add(name=name, dims=array.shape, data_type=TensorProto.FLOAT, raw_data=array.tobytes())
    return made


def stored_shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """The shape of every floating-point constant: an initializer, or a ConstantOfShape of one."""
    known = {tensor.name: tensor for tensor in graph.initializer}
    shapes = {name: tuple(tensor.dims) for name, tensor in known.items() if tensor.data_type in FLOATS}
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in known:
            shapes[node.output[0]] = tuple(int(size) for size in numpy_helper.to_array(known[node.input[0]]))
    return shapes


def readers_of(nodes: Sequence[onnx.NodeProto]) -> Readers:
    """Who reads a value, and as which input."""
    readers: Readers = {}
    for node in nodes:
        for index, name in enumerate(node.input):
            readers.setdefault(name, []).append((node, index))
    return readers


def use(name: str, readers: Readers) -> str:
    """What is to be drawn for the value ``name``, by its first use; empty where it is no weight."""
    if name not in readers:
        return ""
    node, index = readers[name][0]
    if node.op_type in SHAPING:
        return use(node.output[0], readers)
    draws = DRAWS.get(node.op_type, ("",))
    return draws[min(index, len(draws) - 1)]


def draw(kind: str, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    """Random float32 numbers of a kind."""
    if kind == NEAR_ONE:
        return generator.uniform(0.7, 1.3, shape).astype(np.float32)
    # A hundred million drawn one by one cost seconds: large tensors repeat a prime number of them.
    size = int(np.prod(shape))
    numbers = np.resize(generator.standard_normal(min(size, PERIOD), np.float32), shape)
    return numbers * np.float32(0.1) if kind == SMALL else numbers


def random_feeds(model: onnx.ModelProto, batch: int = 1, seed: int = 0) -> dict[str, Array]:
    """Random inputs of mean square 1 a row; a symbolic size is the batch.

    Every plane of an image is noise and a shift of the whole plane: what is only noise is the same on average, and so
    is what comes out of a global pool.
    """
    generator = np.random.default_rng(seed)
    stored = {tensor.name for tensor in model.graph.initializer}
    feeds = {}
    for value in model.graph.input:
        if value.name not in stored:
            shape = [dim.dim_value or batch for dim in value.type.tensor_type.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            planes = shape[:2] + [1] * len(shape[2:])
            numbers = generator.standard_normal(shape) + 2 * generator.standard_normal(planes)
            numbers /= np.sqrt(np.mean(numbers**2, axis=tuple(range(1, len(shape))), keepdims=True))
            feeds[value.name] = numbers.astype(dtype)
    return feeds


def settle(model: onnx.ModelProto, drawn: dict[str, Array], feeds: Mapping[str, Array]) -> None:
    """Scale the filters in ``drawn``, in the order in which the graph uses them, so that its values stay in range."""
    values = dict(feeds) | drawn | {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    nodes = list(model.graph.node)
    readers = readers_of(nodes)
    last = {name: number for number, node in enumerate(nodes) for name in node.input}
    source = {name: name for name in drawn}
    for number, node in enumerate(nodes):
        if node.op_type in SHAPING and node.input[0] in source:
            source[node.output[0]] = source[node.input[0]]
        results = run_node(node, values, model)
        weights = [name for name in node.input[:2] if name in source] if node.op_type in PRODUCTS else []
        if weights:
            spread = GATE if gates(node.output[0], readers) else 1.0
            scale = np.float32(2.0 ** np.round(np.log2(spread / results[0].std())))
            name = weights[0]
            values[name] = values[name] * scale
            drawn[source[name]] = values[name] if source[name] == name else drawn[source[name]] * scale
            results = [results[0] * scale]
        values |= dict(zip((name for name in node.output if name), results, strict=True))
        for name in node.input:
            if last[name] == number:
                values.pop(name, None)


def gates(name: str, readers: Readers) -> bool:
    """Whether all that reads a value is a sigmoid."""
    return name in readers and all(node.op_type in ("Sigmoid", "HardSigmoid") for node, _ in readers[name])


def run_node(node: onnx.NodeProto, values: Mapping[str, Array], model: onnx.ModelProto) -> list[Array]:
    """What onnxruntime gives for one node alone."""
    given = {name: values[name] for name in node.input if name}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in given.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    alone = helper.make_graph([node], "node", inputs, outputs)
    single = helper.make_model(alone, opset_imports=model.opset_import, ir_version=model.ir_version)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(single.SerializeToString(), options, providers=["CPUExecutionProvider"])
    results: list[Array] = session.run(None, given)
    return results

"""Mutations of models, seeded, and what trnrt makes of them.

Run as a program, ``python fuzzing.py FIRST COUNT`` tries mutations FIRST, FIRST + 1, ... under limits of time and
memory and prints JSON lines: one before each stage, so that who starts it knows where it died, and one with the end.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto

MODELS = sorted((Path(__file__).resolve().parents[2] / "models").glob("*.onnx"))
SECONDS = 20  # of CPU: a busy machine is no fault of the mutation
MEMORY = 6 * 2**30
ROWS = 2
LARGEST = 1_000_000
"""Numbers of a tensor of a plan that is run: the simulator takes its time for more, and rightly so."""
SHARE = 2
"""One in so many new plans is run, and its answers compared: that is what takes most of the time."""

NUMBERS = (
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    9,
    28,
    63,
    64,
    -1,
    -2,
    -3,
    127,
    1000,
    65536,
    2**31 - 1,
    2**31,
    10**9,
    2**62,
    -(2**63),
)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-30, 1e30, -1e30, 3e38, float("inf"), -float("inf"), float("nan"))
OPERATORS = tuple(sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == ""}))
# Of these a mutation is likelier to give a model that still runs, which is where wrong answers may hide.
ALIKE = (
    ("Relu", "Sigmoid", "Tanh", "Exp", "Abs", "Neg", "Identity", "Softplus", "LeakyRelu", "Elu", "HardSwish", "Sqrt"),
    ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "PRelu", "MatMul"),
    ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LpPool"),
    ("Softmax", "LogSoftmax", "ReduceMean", "ReduceMax", "ReduceSum", "ReduceL2", "ArgMax", "ArgMin", "Flatten"),
    ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Expand"),
    ("Conv", "ConvTranspose"),
    ("Gemm", "MatMul"),
)
WORDS = ("", "x", "y", "axis", "pads", "a b", "\u202e", "'", "class", "0", "n" * 300, "SAME_UPPER", "VALID", "constant")


@cache
def originals() -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in MODELS)


def mutated(seed: int) -> bytes:
    """The mutation with this number."""
    draw = random.Random(seed)
    data = draw.choice(originals())
    if draw.random() < 0.25:
        return of_bytes(data, draw)
    model = onnx.ModelProto.FromString(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        draw.choices(*zip(*FIELDS, strict=True))[0](model, draw)
    changed: bytes = model.SerializeToString()
    return changed


def of_bytes(data: bytes, draw: random.Random) -> bytes:
    kind = draw.randrange(4)
    changed = bytearray(data)
    if kind == 0:
        return data[: draw.randrange(len(data))]
    if kind == 1:
        start = draw.randrange(len(data))
        return data[:start] + data[draw.randrange(len(data)) :]
    # Numbers and names stand between the weights, which are most of the file: half of the changes go to its ends.
    for _ in range(draw.randint(1, 8)):
        near = draw.choice((0, len(data) - 2000, draw.randrange(len(data))))
        position = min(max(0, near + draw.randrange(2000)), len(data) - 1)
        changed[position] = draw.randrange(256) if kind == 2 else changed[position] ^ (1 << draw.randrange(8))
    return bytes(changed)


# -- fields ------------------------------------------------------------------------------------------


def any_node(model: onnx.ModelProto, draw: random.Random) -> onnx.NodeProto:
    return draw.choice(model.graph.node) if model.graph.node else model.graph.node.add(op_type="Relu")


def any_tensor(model: onnx.ModelProto, draw: random.Random) -> onnx.TensorProto:
    return draw.choice(model.graph.initializer) if model.graph.initializer else model.graph.initializer.add()


def all_names(model: onnx.ModelProto) -> list[str]:
    graph = model.graph
    found = [info.name for info in (*graph.input, *graph.output)] + [tensor.name for tensor in graph.initializer]
    return [*found, *(name for node in graph.node for name in (*node.input, *node.output))]


def operator(model: onnx.ModelProto, draw: random.Random) -> None:
    any_node(model, draw).op_type = draw.choice(OPERATORS)


def like_operator(model: onnx.ModelProto, draw: random.Random) -> None:
    node = any_node(model, draw)
    node.op_type = draw.choice(draw.choice([ops for ops in ALIKE if node.op_type in ops] or [("Relu", "Identity")]))


def attribute(model: onnx.ModelProto, draw: random.Random) -> None:
    nodes = [node for node in model.graph.node if node.attribute]
    if not nodes:
        return
    found = draw.choice(draw.choice(nodes).attribute)
    if found.type == AttributeProto.INT:
        found.i = draw.choice((found.i + 1, found.i - 1, draw.choice(NUMBERS)))
    elif found.type == AttributeProto.FLOAT:
        found.f = draw.choice(FLOATS)
    elif found.type == AttributeProto.INTS and found.ints:
        found.ints[draw.randrange(len(found.ints))] = draw.choice((0, 1, 2, 3, draw.choice(NUMBERS)))
    elif found.type == AttributeProto.STRING:
        found.s = draw.choice(WORDS).encode()
    elif found.type == AttributeProto.TENSOR:
        data(found.t, draw)


def attribute_list(model: onnx.ModelProto, draw: random.Random) -> None:
    node = any_node(model, draw)
    kind = draw.randrange(4)
    if kind == 0 and node.attribute:
        del node.attribute[draw.randrange(len(node.attribute))]
    elif kind == 1 and node.attribute:
        draw.choice(node.attribute).name = draw.choice(("axis", "alpha", "strides", "group", *WORDS))
    elif kind == 2 and node.attribute:
        found = draw.choice(node.attribute)
        found.type = draw.choice((1, 2, 3, 4, 6, 7, 8, 0))
    else:
        schema = onnx.defs.get_schema(node.op_type) if onnx.defs.has(node.op_type) else None
        names = [*schema.attributes] if schema is not None else ["axis"]
        name = draw.choice(names or ["axis"])
        value = draw.choice(
            (draw.choice(NUMBERS), [1, 1], [draw.choice(NUMBERS)] * 2, draw.choice(FLOATS), "SAME_LOWER")
        )
        try:
            node.attribute.append(onnx.helper.make_attribute(name, value))
        except (ValueError, TypeError):
            node.attribute.append(onnx.helper.make_attribute(name, 1))


def dims(model: onnx.ModelProto, draw: random.Random) -> None:
    tensor = any_tensor(model, draw)
    kind = draw.randrange(4)
    if kind == 0 and len(tensor.dims) > 1:
        turned = list(tensor.dims)
        draw.shuffle(turned)
        tensor.dims[:] = turned
    elif kind == 1:
        tensor.dims.append(draw.choice((1, 1, draw.choice(NUMBERS))))
    elif tensor.dims:
        tensor.dims[draw.randrange(len(tensor.dims))] = draw.choice(NUMBERS)


def input_dims(model: onnx.ModelProto, draw: random.Random) -> None:
    infos = [*model.graph.input, *model.graph.output]
    shape = draw.choice(infos).type.tensor_type.shape if infos else onnx.TensorShapeProto()
    if draw.randrange(3) == 0 or not shape.dim:
        shape.dim.add().dim_value = draw.choice(NUMBERS)
        return
    dim = draw.choice(shape.dim)
    if draw.randrange(2):
        dim.dim_value = draw.choice(NUMBERS)
    else:
        dim.dim_param = draw.choice(WORDS)


def dtype(model: onnx.ModelProto, draw: random.Random) -> None:
    kind = draw.choice((1, 1, 6, 7, 8, 9, 10, 11, 16, *range(30)))
    target = draw.randrange(3)
    if target == 0:
        any_tensor(model, draw).data_type = kind
    elif model.graph.input and model.graph.output:
        draw.choice((*model.graph.input, *model.graph.output)).type.tensor_type.elem_type = kind


def name(model: onnx.ModelProto, draw: random.Random) -> None:
    new = draw.choice((draw.choice(WORDS), draw.choice(all_names(model))))
    kind = draw.randrange(5)
    if kind == 0:
        any_node(model, draw).name = new
    elif kind == 1:
        any_tensor(model, draw).name = new
    elif kind == 2 and model.graph.input:
        draw.choice(model.graph.input).name = new
    elif kind == 3 and model.graph.output:
        draw.choice(model.graph.output).name = new
    else:
        rename(model, draw.choice(all_names(model)), new)


def rename(model: onnx.ModelProto, old: str, new: str) -> None:
    """Everywhere: the model stays what it was."""
    for item in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        item.name = new if item.name == old else item.name
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]


def edge(model: onnx.ModelProto, draw: random.Random) -> None:
    node = any_node(model, draw)
    names = draw.choice((node.input, node.input, node.output))
    kind = draw.randrange(5)
    if kind == 0:
        names.append(draw.choice(all_names(model)))
    elif kind == 1 and names:
        del names[draw.randrange(len(names))]
    elif names:
        names[draw.randrange(len(names))] = draw.choice(all_names(model))


def nodes(model: onnx.ModelProto, draw: random.Random) -> None:
    graph = model.graph
    kind = draw.randrange(4)
    place = draw.randrange(max(1, len(graph.node)))
    if kind == 0 and graph.node:
        del graph.node[place]
    elif kind == 1 and graph.node:
        graph.node.add().CopyFrom(graph.node[place])
    elif kind == 2 and graph.node:
        skip(graph, place)
    else:
        insert(graph, place, draw)


def skip(graph: onnx.GraphProto, place: int) -> None:
    """Take a node out, and let those who read it read what it read."""
    node = graph.node[place]
    if node.input and node.output:
        old, new = node.output[0], node.input[0]
        for other in graph.node:
            other.input[:] = [new if read == old else read for read in other.input]
    del graph.node[place]


def insert(graph: onnx.GraphProto, place: int, draw: random.Random) -> None:
    """Put an operator of one input behind a node."""
    if not graph.node or not graph.node[place].output:
        return
    made = graph.node[place].output[0]
    graph.node[place].output[0] = f"{made}_before"
    op = draw.choice((*ALIKE[0], *ALIKE[3], "Transpose", "Cast", "Clip", "Dropout", "Hardmax", "Shape", "Squeeze"))
    node = onnx.helper.make_node(op, [f"{made}_before"], [made])
    if op == "Cast":
        node.attribute.append(onnx.helper.make_attribute("to", draw.choice((1, 6, 7, 9, 10, 11))))
    graph.node.insert(place + 1, node)


def weights(model: onnx.ModelProto, draw: random.Random) -> None:
    data(any_tensor(model, draw), draw)


def data(tensor: TensorProto, draw: random.Random) -> None:
    """Other numbers of the same type."""
    try:
        array = onnx.numpy_helper.to_array(tensor).copy()
    except (ValueError, TypeError, KeyError):
        return
    if array.dtype.kind not in "fiub" or not array.size:
        return
    flat = array.reshape(-1)
    for _ in range(draw.choice((1, 1, 3, flat.size if flat.size < 100 else 10))):
        number: float = draw.choice(FLOATS) if array.dtype.kind == "f" else draw.choice(NUMBERS)
        with np.errstate(all="ignore"):
            flat[draw.randrange(flat.size)] = np.asarray(number).astype(array.dtype)
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def header(model: onnx.ModelProto, draw: random.Random) -> None:
    kind = draw.randrange(4)
    if kind == 0:
        model.ir_version = draw.choice(NUMBERS)
    elif kind == 1 and model.opset_import:
        draw.choice(model.opset_import).version = draw.choice(
            (6, 7, 9, 10, 11, 12, 13, 17, 18, 21, draw.choice(NUMBERS))
        )
    elif kind == 2 and model.opset_import:
        draw.choice(model.opset_import).domain = draw.choice(WORDS)
    else:
        outputs = model.graph.output
        made = [output for node in model.graph.node for output in node.output]
        if made:
            outputs.append(onnx.helper.make_tensor_value_info(draw.choice(made), TensorProto.FLOAT, None))


FIELDS: tuple[tuple[Callable[[onnx.ModelProto, random.Random], None], int], ...] = (
    (operator, 2),
    (like_operator, 3),
    (attribute, 4),
    (attribute_list, 2),
    (dims, 2),
    (input_dims, 2),
    (dtype, 2),
    (name, 2),
    (edge, 3),
    (nodes, 4),
    (weights, 3),
    (header, 2),
)


# -- the program -------------------------------------------------------------------------------------


class TooSlow(BaseException):
    """A mutation took longer than its time."""


def say(**found: Any) -> None:
    print(json.dumps(found), flush=True)


def tried(seed: int, known: set[str]) -> dict[str, Any]:
    """What comes of a mutation; answers are compared with onnxruntime's where the plan is none of the ``known``.

    Of new plans, only one in ``SHARE`` is run.
    """
    from trnrt import InferenceSession
    from trnrt.errors import TrnrtError, UnsupportedModelError

    data = mutated(seed)
    try:
        session = InferenceSession(data)
        plan = session.plan(ROWS)
        weights = [
            array.tobytes() for array in (*plan.weights.values(), *plan.constants.values()) if array.dtype != object
        ]
        digest = hashlib.sha256(b"".join([plan.source.encode(), *weights])).hexdigest()
        if digest in known:
            return {"end": "known"}
        known.add(digest)
        shapes = [*(tensor.shape for tensor in plan.inputs), *(step.shape for step in plan.steps)]
        if seed % SHARE or max(map(math.prod, shapes), default=0) > LARGEST:
            return {"end": "planned"}
        feeds = session.random_inputs(session.model.batch if isinstance(session.model.batch, int) else ROWS, seed)
        got = session.run(None, feeds)
    except TrnrtError as error:
        text = str(error)
        fine = text.replace("\n", " ").isprintable() and error.exit_code == (
            1 if isinstance(error, UnsupportedModelError) else 2
        )
        return {"end": type(error).__name__ if fine else "bad error", "text": text[:300]}
    say(case=seed, stage="reference")
    expected = reference(data, feeds)
    if expected is None:
        return {"end": "ran alone"}
    wrong = difference(got, expected)
    if not wrong:
        return {"end": "agrees"}
    return {"end": "overflows" if is_extreme(data) else "wrong", "text": wrong}


def is_extreme(data: bytes) -> bool:
    """Does the model hold numbers whose products overflow? Then the order of a sum decides on infinity or NaN."""
    model = onnx.ModelProto.FromString(data)
    arrays = [
        onnx.numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if tensor.data_type == TensorProto.FLOAT
    ]
    factors = [np.array(a.f) for node in model.graph.node for a in node.attribute if a.type == AttributeProto.FLOAT]
    with np.errstate(all="ignore"):
        return any(bool((np.abs(array) > 1e29).any()) for array in (*arrays, *factors))


def reference(data: bytes, feeds: dict[str, Any]) -> list[Any] | None:
    """onnxruntime's answers, its own rewrites off; None where it doesn't run the model."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        outputs: list[Any] = session.run(None, feeds)
    except Exception:  # of any kind: it's not what is tested here
        return None
    return outputs


def difference(got: list[Any], expected: list[Any]) -> str:
    """How far the answers are apart in words; nothing where they agree."""
    close = True
    for k, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        mine, theirs = np.asarray(mine), np.asarray(theirs)
        if mine.shape != theirs.shape or (mine.dtype.kind != theirs.dtype.kind):
            return f"output {k} is {mine.dtype} {mine.shape}, not {theirs.dtype} {theirs.shape}"
        if mine.dtype.kind != "f":
            # A class may change where what it was chosen from is as good as equal.
            if close and not (mine == theirs).all() and len(got) == 1:
                return f"output {k} differs: {mine.reshape(-1)[:4]}, not {theirs.reshape(-1)[:4]}"
            continue
        with np.errstate(all="ignore"):
            scale = np.abs(theirs[np.isfinite(theirs)]).max(initial=0)
            if not np.allclose(mine, theirs, rtol=1e-3, atol=1e-4 * max(1.0, float(scale)), equal_nan=True):
                worst = np.nanmax(np.abs(mine.astype(np.float64) - theirs))
                return f"output {k} differs by {worst}: {mine.reshape(-1)[:4]}, not {theirs.reshape(-1)[:4]}"
    return ""


def main(first: int, count: int) -> None:
    def too_slow(*_: object) -> None:
        raise TooSlow

    signal.signal(signal.SIGPROF, too_slow)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    known: set[str] = set()
    for seed in range(first, first + count):
        say(case=seed, stage="trnrt")
        start = time.monotonic()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            found = tried(seed, known)
        except TooSlow:
            found = {"end": "slow", "text": f"over {SECONDS} s of CPU"}
        except BaseException as error:
            found = {"end": "crash", "text": "".join(traceback.format_exception(error))[-3000:]}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        say(case=seed, seconds=round(time.monotonic() - start, 2), **found)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

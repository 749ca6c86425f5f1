"""How far rounding may move a value: nodes are run again on inputs that are moved as rounding moves them.

A node is one of four kinds. MOVES hands elements on as they are: no rounding of its own. SMOOTH rounds: its inputs and
its result are moved by a few units of rounding. STEP jumps (Floor, comparisons, ArgMax): it is drawn only where inputs
that are moved by much more give the very same result, or where its inputs are exact. JUMPS does so somewhere (Mod):
its result may only move a little. What is no float jumps, whatever made it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper

from graphs.spelling import spell_layouts

Array = NDArray[Any]
MICROSOFT = "com.microsoft"
MOVES, SMOOTH, STEP, JUMPS = "moves", "smooth", "step", "jumps"
# Two units of rounding of float32, float16, and bfloat16.
NOISE = {"float32": 2.0**-22, "float64": 2.0**-22, "float16": 2.0**-9, "bfloat16": 2.0**-7}
# The smallest number of full precision: a smaller one is rounded as coarsely as this one, at times to 0.
NORMAL = {"float32": 2.0**-126, "float64": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}
SAMPLES = 3
# What jumps is tried with inputs that are moved by more: all of them up, all down, and at random. Of each element.
WIDELY = {"float32": 2.0**-16, "float64": 2.0**-16, "float16": 2.0**-6, "bfloat16": 2.0**-5}
WIDE, FURTHER = 5, 8
COMPARING = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Imputer"})
LARGEST = 3e3
# What is rounded as coarsely as 1, however small its result is: 1 is added on the way, or taken away; or the argument
# is reduced by multiples of pi, as validation's bounds count on, too (``bound_of_one``).
BESIDE_ONE = frozenset(
    """BiasGelu Celu Cos Elu FastGelu GRU Gelu LSTM Mish QuickGelu RNN Selu Sigmoid Sin Softplus
    Swish""".split()  # noqa: SIM905
)


class Dropped(Exception):
    """A draw that comes to nothing; ``str`` says why, for the count."""


@dataclass
class Moved:
    """A value: as onnxruntime computes it, and as it comes out where all before it rounds otherwise."""

    clean: Array
    samples: list[Array]
    exact: bool

    @property
    def distance(self) -> Array:
        """How far each element moves at most; without limit where only one of the two is a number."""
        found = np.zeros(self.clean.shape)
        if not is_float(self.clean):
            return found
        for sample in self.samples:
            with np.errstate(invalid="ignore"):
                apart = np.abs(sample.astype(np.float64) - self.clean.astype(np.float64))
            apart = np.where(np.isnan(self.clean) & np.isnan(sample), 0, np.nan_to_num(apart, nan=np.inf))
            found = np.maximum(found, apart)
        return found


@dataclass
class Node:
    """A node with the session that runs it; ``read`` are the inputs that are no settings, such as axes or sizes."""

    proto: onnx.NodeProto
    kind: str
    session: onnxruntime.InferenceSession
    read: list[str]

    @property
    def made(self) -> list[str]:
        return [name for name in self.proto.output if name]

    def run(self, given: dict[str, Array]) -> list[Array]:
        try:
            made: list[Array] = self.session.run(None, given)
        except Exception as error:  # of any kind: it is onnxruntime that does not want it
            raise Dropped(f"onnxruntime does not run {self.proto.op_type}") from error
        return made


def quiet() -> onnxruntime.SessionOptions:
    """No words, one thread, no rewrites."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def session_of(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """onnxruntime's session; Dropped where it refuses the model."""
    text = spell_layouts(model).SerializeToString()
    try:
        return onnxruntime.InferenceSession(text, quiet(), providers=["CPUExecutionProvider"])
    except Exception as error:  # of any kind: it is onnxruntime that does not want it
        raise Dropped("onnxruntime does not load it") from error


def is_float(array: Array) -> bool:
    return array.dtype.kind == "f"


def shifted(array: Array, shares: Array, normal: float) -> Array:
    """Floats, each moved by a share of itself, those below ``normal`` by a share of that: at most to 0, as by rounding.

    Zeros stay: every dtype holds them.
    """
    if not is_float(array):
        return array
    with np.errstate(all="ignore"):
        wide = array.astype(np.float64)
        sizes = np.abs(wide)
        moved = np.where(sizes < normal, np.maximum(sizes + shares * normal, 0), sizes * (1 + shares))
        return np.asarray(np.sign(wide) * moved).astype(array.dtype)


class Rounding:
    """The noise of a graph that is computed in ``dtype``."""

    def __init__(self, dtype: str, seed: int) -> None:
        self.dtype = dtype
        self.generator = np.random.default_rng(seed)

    def size(self, *arrays: Array, sizes: Mapping[str, float] = NOISE) -> float:
        """Of the coarsest dtype in question."""
        return max([sizes[self.dtype], *(sizes[str(array.dtype)] for array in arrays if is_float(array))])

    def jittered(self, array: Array, size: float, clean: Array | None = None) -> Array:
        """Floats, each moved by ``size`` of itself, or somewhat less, up or down; by a unit of rounding at least.

        Away from ``clean`` where it is given and another number: else a second move may undo the first one, and what
        magnifies them (the logarithm of nearly 1) seems to have exact inputs.
        """
        if not is_float(array):
            return array
        ways = self.generator.choice([-1.0, 1.0], array.shape)
        if clean is not None and clean.shape == array.shape:
            larger, smaller = np.abs(array) > np.abs(clean), np.abs(array) < np.abs(clean)
            ways = np.where(larger, 1.0, np.where(smaller, -1.0, ways))
        shares = size * ways * self.generator.uniform(0.6, 1, array.shape)
        return shifted(array, shares, self.size(array, sizes=NORMAL))

    def moved_beside(self, array: Array, added: Array) -> Array:
        """Floats, each moved by the rounding in float32 of what is added up on the way."""
        moves = NOISE["float32"] * added * self.generator.uniform(-1, 1, array.shape)
        return np.asarray(array.astype(np.float64) + moves).astype(array.dtype)

    def given(self, array: Array) -> Moved:
        """An input: moved where the session's dtype does not hold it."""
        held = self.dtype in ("float32", str(array.dtype)) or not is_float(array) or is_short(array)
        size = NOISE[self.dtype] / 2
        samples = [array if held else self.jittered(array, size) for _ in range(SAMPLES)]
        return Moved(array, samples, exact=held)

    def through(self, node: Node, values: dict[str, Moved]) -> dict[str, Moved]:
        """What a node makes of these values. Dropped where it jumps, or onnxruntime refuses it."""
        sources = {name: values[name] for name in node.read}
        check_sizes(node, sources)
        clean = node.run({name: value.clean for name, value in sources.items()})
        if node.proto.op_type == "Cast":
            check_cast(sources[node.proto.input[0]].clean, clean[0])
        if node.proto.op_type == "PRelu" and clean[0].shape != sources[node.proto.input[0]].clean.shape:
            raise Dropped("PRelu: only its slope may be broadcast")
        if node.kind != SMOOTH and all(value.exact for value in sources.values()):
            return {name: Moved(a, [a] * SAMPLES, True) for name, a in zip(node.made, clean, strict=True)}
        steps = [k for k, array in enumerate(clean) if node.kind == STEP or not is_float(array)]
        if steps or node.kind == JUMPS:
            self._check_apart(node, sources)
            self._check_clear(node, sources, clean, steps)
        runs = [node.run(self._sample(node, sources, k)) for k in range(SAMPLES)]
        made = {}
        for position, (name, array) in enumerate(zip(node.made, clean, strict=True)):
            if position in steps:
                made[name] = Moved(array, [array] * SAMPLES, True)
                continue
            samples = [run[position] for run in runs]
            if any(sample.shape != array.shape for sample in samples):
                raise Dropped(f"{node.proto.op_type}: its shape depends on rounding")
            if node.kind == SMOOTH:
                size = self.size(array)
                samples = [self.jittered(sample, size) for sample in samples]
            added = largest_added(node.proto, sources)
            if added is not None and is_float(array):
                samples = [self.moved_beside(sample, added) for sample in samples]
            made[name] = Moved(array, samples, exact=False)
        return made

    def _sample(self, node: Node, sources: dict[str, Moved], k: int) -> dict[str, Array]:
        """The inputs of a node, moved as rounding moves them."""
        found = {name: value.samples[k] for name, value in sources.items()}
        if node.kind != SMOOTH:
            return found
        return {name: self.jittered(array, self.size(array), sources[name].clean) for name, array in found.items()}

    def _check_apart(self, node: Node, sources: dict[str, Moved]) -> None:
        """Dropped where numbers that are compared are nearly equal, or may be after rounding."""
        if node.proto.op_type not in COMPARING:
            return
        compared = [sources[name].clean.astype(np.float64) for name in node.proto.input if name in sources]
        number = [a.f for a in node.proto.attribute if a.name == "replaced_value_float"]
        one, two = compared[0], np.asarray(number[0]) if number else compared[-1]
        if number or node.proto.input[0] != node.proto.input[-1]:
            arrays = [value.clean for value in sources.values()]
            widely, normal = self.size(*arrays, sizes=WIDELY), self.size(*arrays, sizes=NORMAL)
            larger = np.maximum(np.abs(one), np.abs(two))
            if (np.abs(one - two) <= 2 * widely * np.maximum(larger, normal)).any():
                raise Dropped(f"{node.proto.op_type}: it is decided by rounding")

    def _check_clear(self, node: Node, sources: dict[str, Moved], clean: list[Array], steps: list[int]) -> None:
        """Dropped where a step is not the same for inputs that are moved widely, or a jump is near."""
        for k in range(WIDE + SAMPLES):
            moved = {}
            for name, value in sources.items():
                if k >= WIDE:  # what all before it moves it by, and several times that
                    moved[name] = further(value.clean, value.samples[k - WIDE])
                    continue
                widely = self.size(value.clean, sizes=WIDELY) if not value.exact or node.kind == SMOOTH else 0.0
                way = self.generator.uniform(-1, 1, value.clean.shape) if k > 1 else np.asarray(2.0 * k - 1)
                moved[name] = shifted(value.clean, widely * way, self.size(value.clean, sizes=NORMAL))
            made = node.run(moved)
            if not all(np.array_equal(made[position], clean[position]) for position in steps):
                raise Dropped(f"{node.proto.op_type}: it is decided by rounding")
            if node.kind == JUMPS:
                check_near(node, made[0], clean[0], sources[node.proto.input[0]].clean, widely)


def further(clean: Array, sample: Array) -> Array:
    """Floats, several times as far from what they are as a sample."""
    if not is_float(clean) or clean.shape != sample.shape:
        return sample
    with np.errstate(all="ignore"):
        return np.asarray(clean + FURTHER * (sample.astype(np.float64) - clean)).astype(clean.dtype)


def check_near(node: Node, made: Array, clean: Array, source: Array, widely: float) -> None:
    """Dropped where a result moves by more than its input did."""
    apart = np.abs(made.astype(np.float64) - clean.astype(np.float64))
    moved = 2 * widely * np.abs(np.nan_to_num(source).astype(np.float64))
    if (apart > np.minimum(moved, 0.1) + 1e-7).any():
        raise Dropped(f"{node.proto.op_type}: it jumps where it is")


def largest_added(node: onnx.NodeProto, sources: Mapping[str, Moved]) -> Array | None:
    """How large the numbers are that onnxruntime itself adds up, where its result may be all that rounding leaves."""
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type in BESIDE_ONE or given.get("post_transform", given.get("activation")) in (b"LOGISTIC", b"Sigmoid"):
        return np.ones(())
    if node.op_type == "GridSample":  # its coordinates are as large as the image, and move what lies between pixels
        image = sources[node.input[0]].clean
        return np.asarray(sum(image.shape[2:]) * np.abs(image.astype(np.float64)).max())
    if node.op_type not in ("InstanceNormalization", "LRN"):
        return None
    x, *others = (np.abs(sources[name].clean.astype(np.float64)) for name in node.input[:2])
    if node.op_type == "LRN":  # it goes on from one window's sum to the next: what it takes away again leaves rounding
        share, power = given.get("alpha", 1e-4) / given["size"], given.get("beta", 0.75)
        sums = given.get("bias", 1.0) + share * x**2
        return np.asarray(x * power * share * (x**2).sum(1, keepdims=True) / sums ** (power + 1))
    # It takes the mean's multiple from the number's.
    axes = tuple(range(2, x.ndim))
    variance = sources[node.input[0]].clean.astype(np.float64).var(axes, keepdims=True)
    return np.asarray(x * others[0].reshape(-1, *[1] * len(axes)) / np.sqrt(variance + given.get("epsilon", 1e-5)))


def check_sizes(node: Node, sources: dict[str, Moved]) -> None:
    """Dropped where constants are of other sizes than the specification wants, and onnxruntime does not look.

    It reads past the coefficients of a linear model, and repeats a single scale for all channels. Constants that fit
    the rows a graph was drawn with meet others where a dimension follows the batch.
    """
    op, inputs = node.proto.op_type, [sources[name].clean for name in node.proto.input if name in sources]
    if op in ("LinearRegressor", "LinearClassifier"):
        given = {a.name: helper.get_attribute_value(a) for a in node.proto.attribute}
        labels = given.get("classlabels_ints") or given.get("classlabels_strings")
        results = len(labels) if labels else given["targets"]
        if len(given["coefficients"]) != results * inputs[0].shape[-1]:
            raise Dropped(f"{op}: coefficients for other columns")
    if op == "GroupNormalization" and any(part.shape != inputs[0].shape[1:2] for part in inputs[1:]):
        raise Dropped(f"{op}: a scale for other channels")


def check_cast(source: Array, made: Array) -> None:
    """Dropped where floats are cast to integers that don't hold them: what comes of that differs between machines."""
    if is_float(source) and made.dtype.kind in "iu":
        known, source = np.iinfo(made.dtype), source.astype(np.float64)
        if not ((source > known.min) & (source < known.max)).all() or (known.min == 0 and (source < 0).any()):
            raise Dropped("a cast that is not defined")


def is_short(array: Array) -> bool:
    """Whether every dtype holds all of the numbers: eighths of less than 16."""
    with np.errstate(all="ignore"):
        return bool((np.isfinite(array) & (np.abs(array) < 16) & (array * 8 == np.round(array * 8))).all())


def node_session(node: onnx.NodeProto, arrays: dict[str, Array], constants: dict[str, Array], opset: int) -> Any:
    """A session of one node, of inputs of any size. Constants stay constants, unless they are among the ``arrays``:
    those that rounding moves are inputs of their size."""
    names = list(dict.fromkeys(name for name in node.input if name))
    inputs = []
    for name in (name for name in names if name in arrays):
        sizes = list(arrays[name].shape) if name in constants else [None] * arrays[name].ndim
        inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(arrays[name].dtype), sizes))
    settings = [name for name in names if name in constants and name not in arrays]
    tensors = [onnx.numpy_helper.from_array(constants[name], name) for name in settings]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "node", inputs, outputs, tensors)
    return session_of(helper.make_model(graph, opset_imports=opset_ids(opset), ir_version=ir_version(opset)))


def opset_ids(opset: int) -> list[onnx.OperatorSetIdProto]:
    """Those of all domains that are drawn."""
    return [
        helper.make_opsetid(domain, version) for domain, version in (("", opset), ("ai.onnx.ml", 3), (MICROSOFT, 1))
    ]


def ir_version(opset: int) -> int:
    """One that was current with an opset."""
    return 4 if opset < 10 else 6 if opset < 12 else 8 if opset < 19 else 10

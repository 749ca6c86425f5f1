"""A graph while it is being drawn: its values with their numbers, and what the families of operators ask and do."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from graphs.noise import (
    LARGEST,
    MOVES,
    SMOOTH,
    Array,
    Dropped,
    Moved,
    Node,
    Rounding,
    ir_version,
    is_float,
    node_session,
    opset_ids,
)

FLOAT_TYPES = {"float32": 1, "float16": 10, "float64": 11}
SIZES = (1, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 12, 13)
MOST = 3000
"""Elements of a value."""
MOST_MOVED = {"float32": 1e-4, "float16": 0.05, "bfloat16": 0.15}
"""How far rounding may move an element, of the largest one of its tensor."""
SMALLEST = 0.01
"""The least scale of a comparison. Smaller values are mostly what a difference such as exp(x) - 1 leaves over."""
ROWS = (1, 2, 3, 4, 5, 7)
KEEPING = frozenset(
    """Abs Add Concat Dropout Expand Flatten Gather Identity Imputer IsNaN Mul Neg Pad Reshape Slice Split Squeeze Sub
    Tile Transpose Unsqueeze Where DepthToSpace SpaceToDepth""".split()  # noqa: SIM905
)
"""Operators that say what becomes of NaN; others, such as ArgMax, leave it open."""
Shape = tuple[int, ...]


@dataclass
class Input:
    """An input of the graph: how it is declared, and how it is drawn. ``most``: the largest of counts."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str
    kind: str
    most: int = 1

    def draw(self, rows: int, generator: np.random.Generator) -> Array:
        shape = [size if isinstance(size, int) else rows for size in self.shape]
        if self.kind == "index":
            return generator.integers(-3, 3, shape).astype(self.dtype)
        if self.kind == "count":
            return generator.integers(1, self.most + 1, shape).astype(self.dtype)
        if self.kind == "mask":
            return generator.integers(0, 2, shape).astype(self.dtype)
        if self.kind == "integer":
            return generator.integers(0, 5, shape).astype(self.dtype)
        if self.kind == "truth":
            return generator.integers(0, 2, shape).astype(bool)
        if self.kind == "eighths":
            return (generator.integers(-24, 25, shape) / 8).astype(self.dtype)
        numbers = np.asarray(generator.standard_normal(shape).astype(self.dtype))
        if self.kind == "gaps" and numbers.ndim:
            numbers[generator.random(shape) < 0.2] = np.nan
        return numbers


@dataclass
class Draft:
    """What has been drawn so far. ``rows``: of the batch, while the graph is drawn; ``opened``: whether it is open;
    ``lively``: whether a result of nothing but zeros is dropped."""

    seed: int
    opset: int
    float_type: str
    session_dtype: str
    opened: bool
    rows: int
    fallback: bool = False
    lively: bool = True
    inputs: list[Input] = field(default_factory=list)
    values: dict[str, Moved] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    readers: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.generator = np.random.default_rng(self.seed)
        self.rounding = Rounding(self.session_dtype, self.seed)
        self._names = 0

    # What a draw asks.

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def choice(self, options: Sequence[Any]) -> Any:
        return self.random.choice(options)

    def between(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def since(self, opset: int) -> None:
        """Drop the draw before this opset."""
        if self.opset < opset:
            raise Dropped("not in this opset")

    def array(self, name: str) -> Array:
        return self.values[name].clean

    def shape(self, name: str) -> Shape:
        return tuple(self.values[name].clean.shape)

    def pick(self, fits: Callable[[Array], bool] = lambda array: True, *, kind: str = "f") -> str:
        """The name of a value, a late one rather than an early one; of floats, unless another ``kind`` is asked for."""
        names = [
            name
            for name, value in self.values.items()
            if name not in self.constants
            and value.clean.dtype.kind in kind
            and (kind != "f" or str(value.clean.dtype) == self.float_type)
            and fits(value.clean)
        ]
        if not names:
            raise Dropped("no value fits")
        return names[-1] if self.chance(0.55) else str(self.choice(names))

    def size(self, most: int = 13) -> int:
        return int(self.choice([size for size in SIZES if size <= most]))

    def batched(self, name: str) -> bool:
        """Whether dimension 0 may be the open batch."""
        shape = self.shape(name)
        return self.opened and bool(shape) and shape[0] == self.rows

    # What a draw makes.

    def name(self, stem: str) -> str:
        self._names += 1
        return f"{stem}{self._names}"

    def numbers(self, shape: Sequence[int], scale: float = 1.0) -> Array:
        """Weights: mostly of any value, at times eighths."""
        if self.chance(0.2):
            return np.asarray(self.generator.integers(-16, 17, shape) / 8).astype(self.float_type)
        return np.asarray(scale * self.generator.standard_normal(shape)).astype(self.float_type)

    def weight(self, array: Array) -> str:
        """A constant of the graph's floats."""
        name = self.name("w")
        self.constants[name] = np.asarray(array)
        self.values[name] = self.rounding.given(np.asarray(array))
        return name

    def fixed(self, values: Any, dtype: str = "int64") -> str:
        """A constant that a node reads as a setting: axes, sizes, indices."""
        name = self.name("k")
        self.constants[name] = np.asarray(values, dtype)
        return name

    def input(self, shape: tuple[int | str, ...], dtype: str, kind: str, most: int = 1) -> str:
        made = Input(self.name("x"), shape, dtype, kind, most)
        self.inputs.append(made)
        self.values[made.name] = self.rounding.given(made.draw(self.rows, self.generator))
        return made.name

    def add(
        self,
        op: str,
        inputs: Sequence[str],
        kind: str = SMOOTH,
        outputs: int = 1,
        domain: str = "",
        left_out: Sequence[int] = (),
        **attributes: Any,
    ) -> list[str]:
        """Add a node, and run it: the names of its outputs, "" for those that are ``left_out``.

        Dropped where its result is of no use.
        """
        check_gaps(op, inputs, self.values)
        made = ["" if place in left_out else self.name("v") for place in range(outputs)]
        attributes = {name: value for name, value in attributes.items() if value is not None and value != []}
        node = helper.make_node(op, list(inputs), made, name=self.name("n"), domain=domain, **attributes)
        # Some inputs must be constants for onnxruntime, too.
        arrays = {name: value.clean for name, value in self.values.items()}
        session = node_session(node, arrays, self.constants, self.opset)
        read = list(dict.fromkeys(name for name in inputs if name in arrays))
        step = Node(node, kind, session, read)
        found = self.rounding.through(step, self.values)
        for value in found.values():
            self.check(op, value, self.rows)
            if self.lively:
                check_lively(op, value.clean)
        self.values |= found
        self.nodes.append(step)
        self.readers.update(read)
        return made

    def check(self, op: str, value: Moved, rows: int) -> None:
        """Drop what can't be compared: too large, infinite, or moved too far by rounding."""
        array = value.clean
        if array.size > MOST or array.ndim > 6:
            raise Dropped("too large")
        if array.size == 0 and rows:
            raise Dropped("empty")
        if not is_float(array):
            return
        known = array[~np.isnan(array)].astype(np.float64)
        if known.size and not (np.abs(known) <= LARGEST).all():
            raise Dropped(f"{op}: numbers too large")
        if has_gaps(array) and op not in KEEPING:
            raise Dropped(f"{op}: not a number")
        scale = max(float(np.abs(known).max(initial=0)), SMALLEST)
        if value.distance.max(initial=0) > MOST_MOVED[self.rounding_dtype(array)] * scale:
            raise Dropped(f"{op}: rounding decides too much")

    def rounding_dtype(self, *arrays: Array) -> str:
        """The coarsest dtype among the session's, those that the graph has so far, and those of the arrays."""
        halves = any(str(array.dtype) == "float16" for array in (*arrays, *(v.clean for v in self.values.values())))
        return "float16" if self.session_dtype == "float32" and halves else self.session_dtype

    def move(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        """A node of one output that only moves elements."""
        return self.add(op, inputs, MOVES, **attributes)[0]

    # The model.

    def outputs(self) -> list[str]:
        """What nothing reads, and some more."""
        made = [name for node in self.nodes for name in node.made]
        return [name for name in made if not self.readers[name] or self.chance(0.1)]

    def evaluate(self, rows: int, seed: int) -> dict[str, Moved]:
        """All values for other inputs, of ``rows`` rows. Dropped where they can't be compared."""
        generator = np.random.default_rng([seed, rows])
        values = {name: self.values[name] for name in self.constants if name in self.values}
        values |= {given.name: self.rounding.given(given.draw(rows, generator)) for given in self.inputs}
        for node in self.nodes:
            check_gaps(node.proto.op_type, node.read, values)
            made = self.rounding.through(node, values)
            for value in made.values():
                self.check(node.proto.op_type, value, rows)
            values |= made
        return values


def check_gaps(op: str, inputs: Sequence[str], values: Mapping[str, Moved]) -> None:
    """Dropped where an operator that does not say what becomes of NaN would meet one."""
    if op not in KEEPING and any(has_gaps(values[name].clean) for name in inputs if name in values):
        raise Dropped(f"{op} of gaps")


def check_lively(op: str, array: Array) -> None:
    """Dropped where all elements are 0: whatever is computed of them proves nothing."""
    if is_float(array) and array.size > 1 and not array.any():
        raise Dropped(f"{op}: nothing but zeros")


def has_gaps(array: Array) -> bool:
    return is_float(array) and bool(np.isnan(array).any())


def modelled(
    draft: Draft, nodes: Sequence[onnx.NodeProto], inputs: Sequence[Input], outputs: Sequence[str]
) -> onnx.ModelProto:
    """A model of these nodes; outputs have no shape, or that of the values with the batch open."""
    read = {name for node in nodes for name in node.input}
    infos = [helper.make_tensor_value_info(i.name, type_of(i.dtype), list(i.shape)) for i in inputs if i.name in read]
    tensors, constants = [], []
    for name in sorted(read & set(draft.constants)):
        tensor = numpy_helper.from_array(draft.constants[name], name)
        if prod(tensor.dims) and draft.seed % 5 == 0:
            constants.append(helper.make_node("Constant", [], [name], name=f"of_{name}", value=tensor))
        else:
            tensors.append(tensor)
    made = [output_info(draft, name) for name in outputs]
    graph = helper.make_graph([*constants, *nodes], f"graph{draft.seed}", infos, made, tensors)
    return helper.make_model(graph, opset_imports=opset_ids(draft.opset), ir_version=ir_version(draft.opset))


def output_info(draft: Draft, name: str) -> onnx.ValueInfoProto:
    """An output's type; its rank at times."""
    array = draft.values[name].clean
    if array.dtype == object:
        return helper.make_tensor_value_info(name, onnx.TensorProto.STRING, None)
    shape: list[None] | Shape | None = [None] * array.ndim if draft.seed % 3 else None
    if draft.seed % 3 == 1 and not draft.opened:
        shape = array.shape
    return helper.make_tensor_value_info(name, type_of(str(array.dtype)), shape)


def type_of(dtype: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

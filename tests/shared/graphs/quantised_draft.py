"""A quantised graph while it is being drawn: its tensors with their integers, its nodes and constants.

The meaning is in numpy, apart from trnrt's: sums of products are int64, then float32 times float32(sx * sw) / sy. What
is computed in floats on the way (Add, Sigmoid, averages) may differ in the last bit: an operator is drawn again if a
number is so near a tie that this could decide, unless its scales are powers of two, which are exact.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from graphs.noise import Array, Dropped, ir_version

OPSETS = (10, 11, 12, 13, 17, 19, 21, 23)
LIMITS = {"int8": (-128, 127), "uint8": (0, 255)}
F32 = np.float32
MICROSOFT = "com.microsoft"
# Distance of a quotient from a tie, of its size, below which another order of float32 operations could decide.
NEAR = 2.0**-18
MOST_ELEMENTS, MOST_TERMS = 1500, 250


@dataclass(frozen=True, eq=False)
class Whole:
    """A quantised tensor: its name, its integers, its scale and zero point."""

    name: str
    array: Array
    scale: Array
    zero: int

    @property
    def dtype(self) -> str:
        return str(self.array.dtype)

    @property
    def centred(self) -> Array:
        return self.array.astype(np.int64) - self.zero

    @property
    def real(self) -> Array:
        return (self.centred.astype(F32) * self.scale).astype(F32)


@dataclass
class Quantised:
    """A graph while it is drawn: nodes, constants, tensors with their numbers."""

    seed: int
    form: str
    opset: int
    exact: bool
    rows: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    feeds: dict[str, Array] = field(default_factory=dict)
    tensors: list[Whole] = field(default_factory=list)
    outputs: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.generator = np.random.default_rng(self.seed)
        self._names = 0

    def name(self, stem: str = "v") -> str:
        self._names += 1
        return f"{stem}{self._names}"

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def constant(self, array: Any) -> str:
        name = self.name("k")
        self.constants[name] = np.asarray(array)
        return name

    def add(self, op: str, inputs: Sequence[str], domain: str = "", outputs: int = 1, **attributes: Any) -> list[str]:
        made = [self.name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), made, name=self.name("n"), domain=domain, **attributes))
        return made

    # -- numbers -------------------------------------------------------------------------------------

    def scale_for(self, real: Array) -> Array:
        """A scale under which these numbers fill the range, or somewhat more: some saturate."""
        size = max(float(np.abs(real).max(initial=0)), 1e-3) * self.random.uniform(0.6, 1.6) / 128
        return np.asarray(2.0 ** np.round(np.log2(size)) if self.exact else size, F32)

    def zero_of(self, dtype: str) -> int:
        low, high = LIMITS[dtype]
        middle = (low + high + 1) // 2
        return self.random.choice([middle, middle, low, self.random.randint(low, high)])

    def limit(self, numbers: Array, zero: int, dtype: str) -> Array:
        low, high = LIMITS[dtype]
        limited: Array = np.clip(numbers + zero, low, high).astype(dtype)
        return limited

    def quotient(self, real: Array, scale: Array) -> Array:
        """float32 over its scale, rounded; Dropped if it is too near a tie."""
        found = (real.astype(F32) / scale).astype(F32)
        if not self.exact:
            check_ties(found)
        return np.rint(found).astype(np.int64)

    # -- what QDQ and QOperator write --------------------------------------------------------------------

    def parameters(self, whole: Whole) -> list[str]:
        return [self.constant(whole.scale), self.constant(np.array(whole.zero, whole.dtype))]

    def triple(self, whole: Whole) -> list[str]:
        return [whole.name, *self.parameters(whole)]

    def dequantise(self, whole: Whole) -> str:
        return self.add("DequantizeLinear", self.triple(whole))[0]

    def new(self, real: Array, dtype: str = "") -> tuple[Array, int, str]:
        """Scale, zero point and type of a result."""
        dtype = dtype or self.random.choice(["int8", "uint8"])
        return self.scale_for(real), self.zero_of(dtype), dtype

    def keep(self, name: str, array: Array, scale: Array, zero: int) -> None:
        if array.size > MOST_ELEMENTS * self.rows:
            raise Dropped("too large")
        self.tensors.append(Whole(name, array, scale, zero))

    def quantise(self, name: str, real: Array, near: bool = False, low: float = -np.inf, high: float = np.inf) -> None:
        """QuantizeLinear of a float; ``near``: not exact even with powers of two."""
        real = np.clip(real, low, high).astype(F32)
        scale, zero, dtype = self.new(real)
        numbers = self.quotient(real, scale)
        if near:
            check_ties((real / scale).astype(F32))
        self.write(name, numbers, scale, zero, dtype)

    def write(self, name: str, numbers: Array, scale: Array, zero: int, dtype: str) -> None:
        parameters = [self.constant(scale), self.constant(np.array(zero, dtype))]
        made = self.add("QuantizeLinear", [name, *parameters])[0]
        self.keep(made, self.limit(numbers, zero, dtype), scale, zero)

    def pick(self, fits: Callable[[Whole], bool]) -> Whole:
        found = [whole for whole in self.tensors if fits(whole)]
        if not found:
            raise Dropped("no tensor fits")
        return found[-1] if self.chance(0.6) else self.random.choice(found)


def check_ties(quotients: Array) -> None:
    apart = np.abs(np.abs(quotients - np.floor(quotients)) - 0.5)
    if (apart <= NEAR * np.maximum(np.abs(quotients), 1)).any():
        raise Dropped("a tie")


def quantised_model(graph: Quantised) -> onnx.ModelProto:
    """The model, with an open batch."""
    used = {name for node in graph.nodes for name in node.input}
    tensors = [numpy_helper.from_array(array, name) for name, array in graph.constants.items() if name in used]

    def info(name: str, array: Array) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), ["N", *array.shape[1:]]
        )

    inputs = [info(name, array) for name, array in graph.feeds.items()]
    made = [info(name, array) for name, array in graph.outputs.items()]
    drawn = helper.make_graph(graph.nodes, f"quantised{graph.seed}", inputs, made, tensors)
    opsets = [helper.make_opsetid("", graph.opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(drawn, opset_imports=opsets, ir_version=ir_version(graph.opset))

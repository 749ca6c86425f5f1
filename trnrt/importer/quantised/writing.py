"""Writes plain operators in the place of a node; arithmetic of constants is done at once, in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from trnrt.importer.folding.inference import infer
from trnrt.importer.quantised.forms import LIMITS, ZERO, Form, Left, Number, Scaled, Whole, are_equal
from trnrt.importer.rewriting.editing import Array, Editor
from trnrt.importer.values import constant_array
from trnrt.text import quote

_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Clip": lambda x, low, high: np.clip(x, low, high),
    "Max": np.maximum,
    "Min": np.minimum,
    "Round": np.rint,
    "Relu": lambda x: np.maximum(x, np.float32(0)),
    "Slice": lambda x, start, end, axis: np.take(x, np.arange(start[0], end[0]), axis[0]),
    "Tile": np.tile,
    "Reshape": lambda x, shape: x.reshape(shape),
}


class Writer:
    """Writes nodes before ``node``, the one that is being rewritten. ``forms`` has what is known of values."""

    def __init__(self, model: ir.Model, symbols: dict[str, int]) -> None:
        self.model = model
        self.symbols = symbols
        self.editor = Editor(model)
        self.forms: dict[ir.Value, Form] = {}
        self.node = ir.node("None", [])
        self.there: set[ir.Value] = set()  # values with a form that nodes can read as they are in the model, too
        self.replaced: dict[ir.Value, ir.Value] = {}
        self._constants: dict[float, ir.Value] = {}

    # -- nodes ---------------------------------------------------------------------------------------

    def apply(
        self, operator: str, *operands: Number | None, like: str = "", name: str = "", **attributes: Any
    ) -> Number:
        """The result of an operator of one output: an array if all operands are, and the operator is arithmetic.

        ``like`` is the name of the new value, ``name`` that of the new node; both have defaults.
        """
        if operator in _ARITHMETIC and not any(isinstance(operand, ir.Value) for operand in operands):
            with np.errstate(all="ignore"):
                made = _ARITHMETIC[operator](*operands)
            return np.asarray(made, np.float32)
        return self.insert(operator, operands, 1, like, name, attributes)[0]

    def insert(
        self,
        operator: str,
        operands: Sequence[Number | None],
        outputs: int,
        like: str = "",
        name: str = "",
        attributes: Any = None,
    ) -> list[ir.Value]:
        """The outputs of a new node."""
        like = like or f"{self.node.outputs[0].name}_{operator.lower()}"
        values = [operand if operand is None else self.value(operand, like) for operand in operands]
        made = [self.editor.result(like, None, ()) for _ in range(outputs)]
        for value in made:
            value.shape = None
        name = name or self.editor.node_name(f"{self.node.name or self.node.outputs[0].name}_{operator.lower()}")
        node = ir.node(operator, values, attributes, outputs=made, name=name)
        assert self.node.graph is not None
        self.node.graph.insert_before(self.node, node)
        if not infer(node, self.model, self.symbols):
            raise Left("its inputs don't fit together")
        return made

    def value(self, number: Number, like: str) -> ir.Value:
        """A number as a value of the graph."""
        if isinstance(number, ir.Value):
            return number
        if number.dtype == np.float64:
            number = number.astype(np.float32)
        if number.ndim == 0 and number.dtype == np.float32:
            key = float(number)
            if key not in self._constants or not self._constants[key].is_initializer():
                self._constants[key] = self.editor.constant(number, f"{like}_number")
            return self._constants[key]
        return self.editor.constant(number, f"{like}_numbers")

    def replace(self, before: ir.Value, made: Number) -> ir.Value:
        """Put a new value in the place of one of the model; it takes the name."""
        name = before.name or ""
        before.name = self.editor.spare_name(f"{name}_before")
        new = self.value(made, name)
        if new.is_initializer() or new.is_graph_input() or new.is_graph_output() or new in self.there:
            new = self.insert("Identity", [new], 1, like=name)[0]
        new.name = name
        before.replace_all_uses_with(new, replace_graph_outputs=True)
        self.there.add(new)
        if before in self.forms:
            self.forms[new] = self.forms[before]
        return new

    # -- forms ---------------------------------------------------------------------------------------

    def whole(self, value: ir.Value | None) -> Whole:
        """An integer tensor as whole numbers. Left if it is not of 8 or 32 bits."""
        if value is None or value.dtype not in LIMITS:
            kind = "of no known type" if value is None or value.dtype is None else value.dtype.name.lower()
            raise Left(f"its input {quote(value.name if value else '')} is {kind}; int8 and uint8 are supported")
        form = self.forms.get(value)
        if form is None:
            array = constant_array(value)
            numbers = _as_float(array) if array is not None else self._convert(value)
            form = Whole(numbers, ZERO, *LIMITS[value.dtype])
            self.forms[value] = form
            self.there.add(value)
        assert isinstance(form, Whole)
        return form

    def find_scaled(self, value: ir.Value | None) -> Scaled | None:
        """The knowledge of a float that is made of whole numbers."""
        form = None if value is None else self.forms.get(value)
        return form if isinstance(form, Scaled) else None

    def real(self, value: ir.Value | None) -> Number:
        """A float input in float32, such as a scale."""
        if value is None:
            raise Left("a scale is missing")
        array = constant_array(value)
        if array is not None:
            return array.astype(np.float32)
        self.restore(value)
        value = self.replaced.get(value, value)
        return value if value.dtype == ir.DataType.FLOAT else self._convert(value)

    def _convert(self, value: ir.Value) -> ir.Value:
        return self.insert("Cast", [value], 1, f"{value.name}_float", attributes={"to": ir.DataType.FLOAT})[0]

    def zero(self, value: ir.Value | None) -> Number:
        """A zero point; 0 if it is left out."""
        return ZERO if value is None else self.centre(self.whole(value), ZERO)

    def centre(self, form: Whole, zero: Number) -> Number:
        """An integer tensor less ``zero``."""
        if are_equal(form.zero, zero):
            return form.numbers
        if are_equal(zero, ZERO):
            return self.apply("Add", form.numbers, form.zero)
        if isinstance(form.zero, ir.Value) or isinstance(zero, ir.Value):
            there = form.numbers if are_equal(form.zero, ZERO) else self.apply("Add", form.numbers, form.zero)
            return self.apply("Sub", there, zero)
        return self.apply("Sub", form.numbers, zero - form.zero)

    def know(self, value: ir.Value, form: Form, *, there: bool = False) -> None:
        """Record what an output of a node is; ``there``: the node that makes it stays if others read it."""
        self.forms[value] = form
        if isinstance(form, Scaled) and value.dtype is None:
            value.dtype = form.kind
        if isinstance(form.numbers, ir.Value) and value.shape is None:
            value.shape = form.numbers.shape
        if there:
            self.there.add(value)

    def restore(self, value: ir.Value | None) -> None:
        """Write the tensor that the model has, for a node that reads it as it is."""
        form = None if value is None else self.forms.get(value)
        if value is None or form is None or value in self.there:
            return
        if isinstance(form, Whole):
            numbers, kind = self.centre(form, ZERO), value.dtype
        else:
            numbers, kind = self.apply("Mul", form.numbers, form.scale), form.kind
            if form.is_limited:
                numbers = self.limit(numbers, form.least, form.most)
        assert kind is not None
        if kind != ir.DataType.FLOAT:
            numbers = self.apply("Cast", self.value(numbers, "constant"), to=kind)
        self.replaced[value] = self.replace(value, numbers)

    def limit(self, numbers: Number, low: Number | float, high: Number | float, name: str = "") -> Number:
        """Numbers limited to [low, high]: by a Clip if the limits are constants, one for all elements."""
        if isinstance(low, float) and isinstance(high, float) and low == 0 and high == np.inf:
            return self.apply("Relu", numbers, name=name)
        lowest, highest = (x if isinstance(x, ir.Value) else np.asarray(x, np.float32) for x in (low, high))
        if isinstance(lowest, ir.Value) or isinstance(highest, ir.Value) or lowest.size > 1 or highest.size > 1:
            return self.apply("Max", self.apply("Min", numbers, highest), lowest, name=name)
        limits = [None if np.isinf(x.item()) else x.reshape(()) for x in (lowest, highest)]
        return self.apply("Clip", numbers, *limits, name=name)


def _as_float(array: Array) -> Array:
    """Whole numbers in float32 if it holds them, else in float64."""
    made = array.astype(np.float32)
    return made if array.dtype != np.int32 or np.array_equal(made.astype(np.int64), array) else array.astype(np.float64)

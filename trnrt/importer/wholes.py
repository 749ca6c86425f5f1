"""Which values of a graph are certainly whole numbers, and within which limits: derived from the graph, not marked.

A whole number of at most 256 is exact in bfloat16. A product of two such numbers is exact in float32, and so is a sum
of them, in any order, as long as no partial sum can leave 2^24. ``sum_limits`` bounds all partial sums: positive and
negative terms apart, as those of one sign add up to no more than all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import copysign, inf, isnan

import numpy as np
import onnx_ir as ir

from trnrt.importer.rewriting.editing import Array
from trnrt.importer.values import attribute, constant_array, input_at, static_shape

EXACT_SUM = 2.0**24
"""float32 represents all whole numbers up to here."""
# Integer types of up to 16 bits hold no more.
_SHORT = 2.0**16
# bfloat16 has 8 bits of precision: it represents all whole numbers up to here.
EXACT_BFLOAT16 = 256.0


@dataclass(frozen=True)
class Limits:
    """The lowest and the highest of some whole numbers; infinite where not known. NaN may be among the values."""

    low: float
    high: float

    @property
    def ends(self) -> tuple[float, float]:
        """Both."""
        return self.low, self.high

    @property
    def size(self) -> float:
        """The largest magnitude."""
        return max(abs(self.low), abs(self.high))

    def join(self, other: Limits) -> Limits:
        """The limits of both."""
        return Limits(min(self.low, other.low), max(self.high, other.high))

    def with_zero(self) -> Limits:
        """The limits of these numbers and 0."""
        return Limits(min(self.low, 0.0), max(self.high, 0.0))


@dataclass
class Wholes:
    """The limits of each whole value of a graph by name, and the largest partial sum of each product of whole numbers,
    by the name of its node."""

    limits: dict[str, Limits] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    wraps: dict[str, Limits] = field(default_factory=dict)
    """Results of integer arithmetic that their type can't hold: what they would be without wrapping around."""

    def limits_of(self, value: ir.Value | None) -> Limits | None:
        """The limits of a value; None if it may not be whole."""
        if value is None:
            return None
        name = value.name or ""
        if name not in self.limits and value.const_value is not None:
            found = constant_limits(constant_array(value))
            if found is not None:
                self.limits[name] = found
        return self.limits.get(name)


def find_wholes(graph: ir.Graph, most: float | None = None) -> Wholes:
    """The values that are certainly whole in a graph.

    ``most``: the largest magnitude in integer inputs of 32 or 64 bits; without it, nothing is known of them.
    """
    wholes = Wholes()
    for value in graph.inputs:
        held = _type_limits(value)
        if most is not None and held is not None:
            checked = most if held.size > _SHORT else held.size + 1
            wholes.limits[value.name or ""] = Limits(max(held.low, -checked), min(held.high, checked))
    for node in graph:
        derive = _DERIVED.get(node.op_type) if node.domain == "" else None
        found = derive(wholes, node) if derive is not None else None
        if found is not None:
            outputs = node.outputs if node.op_type == "Split" else node.outputs[:1]
            if most is not None:  # else the graph is one of floats that hold integers
                found = _wrap(wholes, node.outputs[0], found)
            wholes.limits |= {value.name or "": found for value in outputs}
        places = _place(node) if node.op_type in _SEARCHES and node.domain == "" else None
        if places is not None:
            wholes.limits[node.outputs[-1].name or ""] = places
    return wholes


def _type_limits(value: ir.Value | None) -> Limits | None:
    """The numbers that an integer type holds; None for other types."""
    if value is None or value.dtype is None or not value.dtype.is_integer():
        return None
    bits, signed = value.dtype.bitwidth, value.dtype.is_signed()
    return Limits(-(2.0 ** (bits - 1)) if signed else 0.0, 2.0 ** (bits - signed) - 1)


def _wrap(wholes: Wholes, value: ir.Value, found: Limits) -> Limits:
    """The limits of a result in its type: all of an integer type whose ends the result may leave."""
    held = _type_limits(value)
    if held is None or (held.low <= found.low and found.high <= held.high):
        return found
    wholes.wraps[value.name or ""] = found
    return held


def constant_limits(array: Array | None) -> Limits | None:
    """The limits of a constant; None if an element isn't whole."""
    if array is None or not array.size or array.dtype == object or array.dtype.kind not in "fiubV":
        return None
    numbers = array.astype(np.float32) if array.dtype.kind in "bV" else array
    head = numbers.reshape(-1)[:64]  # most constants that aren't whole show it here
    if not np.array_equal(head, np.rint(head)) or not np.array_equal(numbers, np.rint(numbers)):
        return None
    low, high = float(numbers.min()), float(numbers.max())
    return Limits(low, high) if np.isfinite([low, high]).all() else None


def term_limits(data: Limits, terms: Array) -> tuple[Array, Array]:
    """How far the terms (outputs, indices, terms of each index) can lower, and raise, each output's sum by index."""
    seen, factors = data.with_zero(), terms.astype(np.float64)
    more, less = np.maximum(factors, 0).sum(-1), np.minimum(factors, 0).sum(-1)
    if np.isinf([seen.low, seen.high]).any():
        return np.full(more.shape, -inf), np.full(more.shape, inf)
    return more * seen.low + less * seen.high, more * seen.high + less * seen.low


def sum_limits(data: Limits, terms: Array) -> Limits:
    """The limits of every partial sum of the products of ``data`` with the terms (outputs, ...)."""
    falls, rises = term_limits(data, terms.reshape(len(terms), 1, -1))
    return Limits(float(falls.min()), float(rises.max()))


def product_limits(one: Limits, other: Limits) -> Limits:
    """The limits of a product of two numbers, and 0."""
    ends = [_times(x, y) for x in (one.low, one.high) for y in (other.low, other.high)]
    return Limits(min(ends), max(ends)).with_zero()


def _times(one: float, other: float) -> float:
    """A product in which 0 times infinity is 0."""
    return 0.0 if one == 0 or other == 0 else one * other


def _span(numbers: list[float]) -> Limits:
    """The limits of the numbers; NaN (infinity less infinity) may be anything."""
    return Limits(-inf, inf) if any(map(isnan, numbers)) else Limits(min(numbers), max(numbers))


Derive = Callable[[Wholes, ir.Node], Limits | None]


def _keep(wholes: Wholes, node: ir.Node) -> Limits | None:
    """Elements of the first input."""
    return wholes.limits_of(node.inputs[0])


def _round(wholes: Wholes, node: ir.Node) -> Limits | None:
    return wholes.limits_of(node.inputs[0]) or Limits(-inf, inf)


# The numbers of types that a few bits hold.
_TYPES = {ir.DataType.INT8: Limits(-128, 127), ir.DataType.UINT8: Limits(0, 255), ir.DataType.BOOL: Limits(0, 1)}


def _convert(wholes: Wholes, node: ir.Node) -> Limits | None:
    """A Cast of whole numbers, or of a short integer type."""
    source = node.inputs[0]
    of_type = None if source is None or source.dtype is None else _TYPES.get(source.dtype)
    return wholes.limits_of(source) or of_type


def _truth(wholes: Wholes, node: ir.Node) -> Limits | None:
    return Limits(0.0, 1.0)


def _join(wholes: Wholes, node: ir.Node) -> Limits | None:
    """Elements of all inputs."""
    return _join_values(wholes, list(node.inputs))


def _join_values(wholes: Wholes, values: list[ir.Value | None]) -> Limits | None:
    found: Limits | None = None
    for value in values:
        limits = wholes.limits_of(value)
        if limits is None:
            return None
        found = limits if found is None else found.join(limits)
    return found


def _choose(wholes: Wholes, node: ir.Node) -> Limits | None:
    return _join_values(wholes, list(node.inputs[1:3]))


def _clip(wholes: Wholes, node: ir.Node) -> Limits | None:
    found = wholes.limits_of(node.inputs[0])
    if found is None and _type_limits(node.outputs[0]) is not None:
        found = Limits(-inf, inf)  # an integer, whatever it is made of
    if found is None or "min" in node.attributes or "max" in node.attributes:
        return None
    low, high = (input_at(node, place) for place in (1, 2))
    least = Limits(-inf, -inf) if low is None else wholes.limits_of(low)
    most = Limits(inf, inf) if high is None else wholes.limits_of(high)
    if least is None or most is None:
        return None
    return Limits(min(max(found.low, least.low), most.low), min(max(found.high, least.high), most.high))


def _relu(wholes: Wholes, node: ir.Node) -> Limits | None:
    found = wholes.limits_of(node.inputs[0])
    return found and Limits(max(found.low, 0.0), max(found.high, 0.0))


def _pad(wholes: Wholes, node: ir.Node) -> Limits | None:
    found, mode = wholes.limits_of(node.inputs[0]), attribute(node, "mode", "constant")
    if found is None or "value" in node.attributes:
        return None
    added = input_at(node, 2)
    if mode != "constant":
        return found
    filled = Limits(0.0, 0.0) if added is None else wholes.limits_of(added)
    return found.join(filled) if filled is not None else None


def _resize(wholes: Wholes, node: ir.Node) -> Limits | None:
    chosen = attribute(node, "mode", "nearest") == "nearest"
    outside = attribute(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    return wholes.limits_of(node.inputs[0]) if chosen and not outside else None


def _pairwise(operation: Callable[[float, float], float]) -> Derive:
    """The limits of an operation that is monotonic in each operand."""

    def derive(wholes: Wholes, node: ir.Node) -> Limits | None:
        a, b = (wholes.limits_of(value) for value in node.inputs)
        if a is None or b is None:
            return None
        return _span([operation(x, y) for x in (a.low, a.high) for y in (b.low, b.high)])

    return derive


def _extreme(choose: Callable[..., float]) -> Derive:
    def derive(wholes: Wholes, node: ir.Node) -> Limits | None:
        found = [wholes.limits_of(value) for value in node.inputs]
        known = [limits for limits in found if limits is not None]
        if len(known) < len(found):
            return None
        return Limits(choose(limits.low for limits in known), choose(limits.high for limits in known))

    return derive


def _negate(wholes: Wholes, node: ir.Node) -> Limits | None:
    found = wholes.limits_of(node.inputs[0])
    return found and Limits(-found.high, -found.low)


def _multiply(wholes: Wholes, node: ir.Node) -> Limits | None:
    """The sums of a product; its largest partial sum is noted, with the bias."""
    if attribute(node, "alpha", 1.0) != 1.0 or attribute(node, "beta", 1.0) != 1.0:
        return None
    data = wholes.limits_of(node.inputs[0])
    factors = wholes.limits_of(node.inputs[1]) if data is not None else None  # large weights are seldom looked at
    if data is None or factors is None:
        return None
    weights = constant_array(node.inputs[1])
    if weights is not None:
        found = sum_limits(data, product_terms(node, weights))
    else:
        terms, each = _terms(node), product_limits(data, factors)
        found = Limits(_times(each.low, terms), _times(each.high, terms))
    bias = input_at(node, 2)
    added = Limits(0.0, 0.0) if bias is None else wholes.limits_of(bias)
    if data.size <= EXACT_BFLOAT16 and factors.size <= EXACT_BFLOAT16:
        wholes.sums[node.name or ""] = found.size + (added.size if added is not None else 0.0)
    return Limits(found.low + added.low, found.high + added.high) if added is not None else None


def product_terms(node: ir.Node, weights: Array) -> Array:
    """Constant weights as (outputs, indices of the axis that is summed over, terms of each index).

    A ConvTranspose with strides has an output for each residue of a position: each sums other terms.
    """
    if node.op_type == "Conv":
        return weights.reshape(*weights.shape[:2], -1)
    if node.op_type == "ConvTranspose":
        return _transposed_terms(node, weights)
    axis = weights.ndim - 1 if attribute(node, "transB", 0) else max(weights.ndim - 2, 0)
    return np.moveaxis(weights, axis, -1).reshape(-1, weights.shape[axis], 1)


def _transposed_terms(node: ir.Node, weights: Array) -> Array:
    """The weights (C, M / groups, *kernel) of a ConvTranspose, as ``product_terms`` says."""
    groups, dims = attribute(node, "group", 1), weights.ndim - 2
    strides = list(attribute(node, "strides", [1] * dims))
    if any(step != 1 for step in attribute(node, "dilations", [1] * dims)):
        strides = [1] * dims  # all terms: an upper bound
    fill = [(0, -size % step) for size, step in zip(weights.shape[2:], strides, strict=True)]
    apart = np.pad(weights, [(0, 0), (0, 0), *fill])
    parts = [n for size, step in zip(apart.shape[2:], strides, strict=True) for n in (size // step, step)]
    apart = apart.reshape(groups, -1, weights.shape[1], *parts)
    terms, residues = range(3, apart.ndim, 2), range(4, apart.ndim, 2)
    turned = apart.transpose(0, 2, *residues, 1, *terms)
    return turned.reshape(-1, apart.shape[1], int(np.prod(parts[::2])))


def _terms(node: ir.Node) -> float:
    """The number of terms in each sum of a product, at most."""
    shape = static_shape(node.inputs[1])
    if shape is None:
        return inf
    if node.op_type == "Conv":
        return float(np.prod(shape[1:]))
    if node.op_type == "ConvTranspose":
        return float(shape[0] * np.prod(shape[2:]) / attribute(node, "group", 1))
    return float(shape[-1] if attribute(node, "transB", 0) or len(shape) == 1 else shape[-2])


def _for_integers(derive: Derive) -> Derive:
    """The limits of an operation that makes whole numbers of integers, but not of floats."""
    return lambda wholes, node: derive(wholes, node) if _type_limits(node.outputs[0]) is not None else None


def _divide(wholes: Wholes, node: ir.Node) -> Limits | None:
    """A quotient of integers is rounded towards 0: it is no larger than the dividend."""
    found, by = (wholes.limits_of(value) for value in node.inputs)
    if found is not None and by is not None and by.low >= 1 and np.isfinite([*found.ends, by.high]).all():
        return _span([copysign(abs(x) // y, x) + 0.0 for x in found.ends for y in by.ends])
    if found is None or (by is not None and found.low >= 0 and by.low >= 0):
        return found and Limits(0.0, found.high)
    return Limits(-found.size, found.size)


def _remainder(wholes: Wholes, node: ir.Node) -> Limits | None:
    """Smaller than the divisor, with the sign of either side."""
    a, b = (wholes.limits_of(value) for value in node.inputs)
    if a is None or b is None:
        return None
    signs = a if attribute(node, "fmod", 0) else b
    most = max(b.size - 1, 0.0)
    return Limits(-most if signs.low < 0 else 0.0, most if signs.high > 0 else 0.0)


def _magnitude(wholes: Wholes, node: ir.Node) -> Limits | None:
    found = wholes.limits_of(node.inputs[0])
    return found and Limits(0.0, found.size)


def _sum_up(wholes: Wholes, node: ir.Node) -> Limits | None:
    """A sum of some or all elements: its partial sums are between those of all negative and all positive ones."""
    found, shape = wholes.limits_of(node.inputs[0]), static_shape(node.inputs[0])
    if found is None or shape is None:
        return None
    terms = float(np.prod(shape))
    if node.op_type == "ReduceSum":
        terms /= max(float(np.prod(static_shape(node.outputs[0]) or (1,))), 1.0)
    elif (axis := constant_array(node.inputs[1])) is not None:
        terms = float(shape[int(axis.reshape(-1)[0])])
    zeroed = found.with_zero()
    return Limits(_times(zeroed.low, terms), _times(zeroed.high, terms))


# Searches: their last output holds indices along an axis; the default axis.
_SEARCHES = {"ArgMax": 0, "ArgMin": 0, "TopK": -1}


def _place(node: ir.Node) -> Limits | None:
    """An index along a search's axis."""
    shape = static_shape(node.inputs[0])
    if shape is None:
        return None
    return Limits(0.0, float(max(shape[attribute(node, "axis", _SEARCHES[node.op_type])] - 1, 0)) if shape else 0.0)


def _keep_some(wholes: Wholes, node: ir.Node) -> Limits | None:
    """Elements of the first input, and 0."""
    found = wholes.limits_of(node.inputs[0])
    return found and found.with_zero()


_ELEMENTS = """DepthToSpace Expand Flatten Gather GatherElements GatherND GlobalMaxPool Identity MaxPool ReduceMax
    ReduceMin Reshape Slice SpaceToDepth Split Squeeze Tile TopK Transpose Unsqueeze"""
_COMPARISONS = "And Equal Greater GreaterOrEqual Less LessOrEqual Not Or Xor"
_DERIVED: dict[str, Derive] = {
    **dict.fromkeys(_ELEMENTS.split(), _keep),
    **dict.fromkeys(_COMPARISONS.split(), _truth),
    **dict.fromkeys(("Ceil", "Floor", "Round"), _round),
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul"), _multiply),
    **dict.fromkeys(("CumSum", "ReduceSum"), _for_integers(_sum_up)),
    "Abs": _for_integers(_magnitude),
    "Add": _pairwise(lambda a, b: a + b),
    "Cast": _convert,
    "Clip": _clip,
    "Concat": _join,
    "Div": _for_integers(_divide),
    "Max": _extreme(max),
    "Min": _extreme(min),
    "Mod": _for_integers(_remainder),
    "Mul": _pairwise(_times),
    "Neg": _negate,
    "Pad": _pad,
    "Relu": _relu,
    "Resize": _resize,
    "Sign": lambda _wholes, _node: Limits(-1.0, 1.0),
    "Sub": _pairwise(lambda a, b: a - b),
    "Trilu": _keep_some,
    "Where": _choose,
}

"""OneHot, and ``ai.onnx.ml``'s encoders: categories as numbers, and as columns of 0 and 1.

Labels and integers of an input are looked up on the host, whatever their type; the device makes the columns. Numbers
that a step made are compared with the categories on the device.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from trnrt.errors import InputError
from trnrt.operators import batch, order, shapes
from trnrt.operators.bounds.case import Case, exact
from trnrt.operators.integers import truncate
from trnrt.operators.linear import linear_step
from trnrt.operators.programs import Program, Register, Term, add_compute, add_program
from trnrt.operators.record import NEVER, Declaration, NotApplicable
from trnrt.planner.lowering.blocked import FALLBACK, WRONG, use_float32
from trnrt.planner.lowering.host import host_function
from trnrt.planner.lowering.integers import EXACT
from trnrt.planner.lowering.row_numbers import read_view
from trnrt.planner.lowering.views import View
from trnrt.planner.lowering.walk import (
    FLOATS,
    INTEGERS,
    Blocked,
    Lowering,
    attribute,
    node_name,
    operator_name,
    value_name,
)
from trnrt.planner.naming import printable
from trnrt.planner.plan import Array, DeviceTensor, HostNode
from trnrt.planner.steps import Operand

_ON_HOST = NotApplicable("labels are made on the host: they are the same or not")
_of_ml = partial(
    Declaration, domain="ai.onnx.ml", order=order.keep_order, values=(), folds=NEVER, shapes=shapes.by_onnx
)


@exact
def bound_one_hot(case: Case) -> list[Array]:
    """The values' error; in doubt, by their distance, where the index is."""
    given = len(case.inputs) > 2
    values = case.required_input(2) if given else np.array([0, 1], np.float32)
    error = np.float32(case.error(2).max() if given else 0)
    in_doubt = np.ptp(values) + error if np.any(case.e) else 0
    return [np.full(case.y.shape, error + in_doubt, np.float32)]


# -- columns of 0 and 1 -------------------------------------------------------------------------------


@Declaration(
    {"OneHot": (9, 11, 28)},
    batch=batch.one_hot,
    order=order.keep_order,
    bound=bound_one_hot,
    values=(1,),
    folds=NEVER,
    shapes=shapes.by_onnx,
)
def lower_one_hot(lowering: Lowering, node: ir.Node) -> None:
    """Along the new axis: the second of two values at the index's position, the first elsewhere."""
    indices, made = node.inputs[0], node.outputs[0]
    assert indices is not None
    shape = lowering.shape(made)
    axis = attribute(node, "axis", -1) % len(shape)
    depth = shape[axis]
    if depth > EXACT[lowering.dtype]:
        raise Blocked(f"a depth of {depth}; {lowering.dtype} counts to {EXACT[lowering.dtype]:.0f}")
    view = lowering.view_of(indices, short_integers=True)
    source = lowering.operand_of(view)
    program = Program()
    x = program.source(Operand(source.value, (*shape[:axis], 1, *shape[axis + 1 :])))
    if indices.dtype in FLOATS:
        x = truncate(program, x)
    limits = lowering.wholes.limits_of(indices)
    if limits is None or limits.low < 0:  # -1 is the last one
        x = program.apply("add", x, program.apply("multiply", program.apply("less", x, 0.0), float(depth)))
    hit = program.apply("equal", x, _count(program, depth, len(shape) - axis))
    off, on = _values(lowering, node, program)
    if (off, on) != (0.0, 1.0):
        program.apply("where", hit, on, off)
    add_compute(lowering, node, program)


def _count(program: Program, depth: int, rank: int) -> Register:
    """The numbers from 0 on, along the first of ``rank`` dimensions."""
    return program.source(np.arange(depth, dtype=np.float32).reshape(depth, *(1,) * (rank - 1)))


def _values(lowering: Lowering, node: ir.Node, program: Program) -> tuple[Term, Term]:
    """The two values of a OneHot: numbers if they are constant."""
    value = node.inputs[2]
    given = lowering.constant(value)
    if given is not None:
        off, on = (float(number) for number in given.reshape(-1))
        most = EXACT["float32"]
        if value is not None and value.dtype in INTEGERS and max(abs(off), abs(on)) > most:
            raise Blocked(f"values beyond {most:.0f}, up to which float32 is exact")
        return off, on
    view = lowering.view_of(value, short_integers=True)
    off_part, on_part = (program.source(lowering.operand_of(view.slice(0, k, 1))) for k in (0, 1))
    return off_part, on_part


@_of_ml({"OneHotEncoder": (1,)}, batch=batch.one_more, bound=bound_one_hot)
def lower_one_hot_encoder(lowering: Lowering, node: ir.Node) -> None:
    """A column for each category: 1 where the element is that category, else 0."""
    source, made = node.inputs[0], node.outputs[0]
    assert source is not None
    categories = _categories(node)
    strict = not attribute(node, "zeros", 1)
    shape = lowering.shape(made)
    program = Program()
    if lowering.is_input(source):
        index = _find_on_host(lowering, node, source, categories, strict)
        program.apply("equal", program.source(index), _count(program, len(categories), 1))
    else:
        if strict:
            raise Blocked(
                "zeros=0, which stops at a category that the encoder doesn't know, for computed categories",
                "fit the encoder with handle_unknown='ignore'",
            )
        if categories.dtype == object:
            raise Blocked("categories that are computed strings", "make the strings an input of the model")
        x = program.source(Operand(lowering.operand(source, short_integers=True).value, (*shape[:-1], 1)))
        if source.dtype in FLOATS:
            x = truncate(program, x)
        if categories.size and np.abs(categories).max() > EXACT[lowering.dtype]:
            raise Blocked(f"categories beyond {EXACT[lowering.dtype]:.0f}", use_float32(lowering.dtype))
        program.apply("equal", x, program.source(categories.astype(np.float32)))
    add_compute(lowering, node, program)


def _categories(node: ir.Node) -> Array:
    """The categories of a OneHotEncoder: int64, or strings."""
    numbers, texts = attribute(node, "cats_int64s", ()), attribute(node, "cats_strings", ())
    if not len(numbers) and not len(texts):
        raise Blocked("an encoder without categories", WRONG)
    if len(numbers):
        return np.array(numbers, np.int64)
    return np.array([text.decode() if isinstance(text, bytes) else text for text in texts], object)


def _find_on_host(lowering: Lowering, node: ir.Node, source: ir.Value, categories: Array, strict: bool) -> Operand:
    """The place of each element of an input among the categories, -1 for others, as the device compares it."""
    table = {_key(key): k for k, key in enumerate(categories)}
    dtype = np.dtype(object) if categories.dtype == object else np.dtype(np.int64)
    return _prepare_codes(lowering, node, source, table, -1.0, dtype, strict)


def _prepare_codes(
    lowering: Lowering,
    node: ir.Node,
    source: ir.Value,
    table: dict[Any, Any],
    default: float,
    keys: np.dtype[Any],
    strict: bool,
    dtype: str = "float32",
) -> Operand:
    """Numbers that the host looks up by the elements of an input, with an axis of 1 after those of the input."""
    view = lowering.index_view(source)
    look_up = partial(
        find_codes,
        shape=view.shape,
        strides=view.strides,
        offset=view.offset,
        table=table,
        default=default,
        keys=keys,
        strict=f"{operator_name(node)} '{printable(node_name(node))}'" if strict else "",
        what=f"'{printable(view.root)}'",
    )
    name = lowering.spare_name(f"{node_name(node)}.codes")
    tensor = DeviceTensor(name, (*view.shape, 1), dtype)
    lowering.prepare(tensor, HostNode(node_name(node), operator_name(node), (view.root,), name, look_up))
    return Operand(name, tensor.shape)


@host_function
def find_codes(
    values: Array,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    table: dict[Any, Any],
    default: float,
    keys: np.dtype[Any],
    strict: str,
    what: str,
) -> Array:
    """The table's numbers for the elements that a view of ``values`` reads, float32 with one more axis of 1.

    Elements become ``keys`` first: floats are truncated for integers. ``strict`` names the node that takes no element
    outside the table: an InputError names it.
    """
    found = read_view(values, shape, strides, offset).reshape(-1)
    with np.errstate(invalid="ignore"):
        found = found.astype(keys)
    codes = [table.get(_key(element)) for element in found]
    if strict and None in codes:
        unknown = found[codes.index(None)]
        raise InputError(
            f"input {what} holds {unknown!s:.80}, which is no category of {strict}",
            hint="fit the encoder with handle_unknown='ignore', or leave such rows out",
        )
    numbers = [default if code is None else code for code in codes]
    return np.array(numbers, np.float32).reshape(*shape, 1)


# -- categories as numbers ----------------------------------------------------------------------------

_KINDS = ("int64s", "strings", "floats", "tensor")


def _encoder_list(node: ir.Node, what: str) -> Array | None:
    """``keys_*`` or ``values_*`` of a LabelEncoder, of any type."""
    for kind in _KINDS:
        if f"{what}_{kind}" in node.attributes:
            given = attribute(node, f"{what}_{kind}", ())
            array = given.numpy() if kind == "tensor" else np.array(given, object if kind == "strings" else None)
            if array.dtype.kind in "SO":
                array = np.array([t.decode() if isinstance(t, bytes) else t for t in array.reshape(-1)], object)
            return array.astype({"int64s": np.int64, "floats": np.float32}.get(kind, array.dtype)).reshape(-1)
    return None


def _default(node: ir.Node, values: Array) -> Any:
    """A LabelEncoder's value for an unknown key."""
    if "default_tensor" in node.attributes:
        given = attribute(node, "default_tensor", None).numpy().reshape(-1)[0]
        return given.decode() if isinstance(given, bytes) else given
    if values.dtype == object:
        return attribute(node, "default_string", "_Unused")
    if values.dtype.kind == "f":
        return attribute(node, "default_float", -0.0)
    return attribute(node, "default_int64", -1)


@_of_ml({"LabelEncoder": (1, 2, 4)}, batch=batch.reshape, bound=_ON_HOST)
def lower_label_encoder(lowering: Lowering, node: ir.Node) -> None:
    """A table look-up. The host looks up inputs and final labels and indices; the device looks up computed numbers."""
    source, made = node.inputs[0], node.outputs[0]
    assert source is not None
    keys, values = _encoder_list(node, "keys"), _encoder_list(node, "values")
    if keys is None or values is None or keys.size != values.size:
        raise Blocked("its keys and values are not two lists of the same length", WRONG)
    if keys.dtype.kind == "f" and lowering.graph.opset_imports.get("ai.onnx.ml", 1) < 4:
        # onnxruntime finds NaN from this version on.
        keys, values = keys[~np.isnan(keys)], values[~np.isnan(keys)]
    default = _default(node, values)
    numeric = _is_numeric(np.append(values, default), lowering.dtype)
    given = lowering.is_input(source)
    if (
        lowering.is_on_host(source)
        or lowering.constant(source) is not None
        or (given and not (numeric and made.uses()))
    ):
        encode = partial(
            _encode_labels,
            table=dict(zip(map(_key, keys), values, strict=True)),
            default=default,
            dtype=values.dtype,
            keys=keys.dtype if given else None,
            place=_place(lowering.index_view(source)) if given else None,
        )
        lowering.run_on_host(node, encode, "looks labels up on the host")
        return
    if not numeric:
        raise Blocked(
            "a look-up of computed numbers that gives strings or large integers",
            "look up final indices, labels, constants or inputs of the model",
        )
    if given:
        table = {_key(key): float(value) for key, value in zip(keys, values, strict=True)}
        codes = _prepare_codes(lowering, node, source, table, float(default), keys.dtype, False, lowering.dtype)
        lowering.set_view(made, View.whole(codes.value, lowering.shape(made)))
        lowering.report(node, "host", "looks an input up on the host")
        lowering.mark_whole_numbers(made)
        return
    _encode_on_device(lowering, node, keys, values.astype(np.float32), float(default))


def _encode_on_device(lowering: Lowering, node: ir.Node, keys: Array, values: Array, default: float) -> None:
    """Compare with all keys; the product with the values picks the one that is hit, and exactly, as others are 0."""
    made = node.outputs[0]
    if keys.dtype == object or lowering.dtype != "float32":
        way = FALLBACK if keys.dtype == object else use_float32(lowering.dtype)
        raise Blocked("a look-up of computed numbers in 16 bits, or by strings", way)
    source = lowering.operand(node.inputs[0], short_integers=True)
    rows = prod(source.shape)
    missing = np.isnan(keys) if keys.dtype.kind == "f" else np.zeros(keys.shape, bool)
    hits = Program()
    x = hits.source(Operand(source.value, (rows, 1)))
    hits.apply("equal", x, hits.source(keys[~missing].astype(np.float32)))
    name = lowering.spare_name(f"{value_name(made)}.hits")
    hit = add_program(lowering, node, hits, name, (rows, int((~missing).sum())))
    weight = (values[~missing] - np.float32(default)).reshape(-1, 1)
    picked = value_name(made) if not missing.any() else lowering.spare_name(f"{value_name(made)}.picked")
    step = linear_step(node, hit, picked, weight, np.array([default], np.float32))
    step.name = lowering.spare_name(f"{node_name(node)}.pick")
    lowering.add(step, [node], "the value of the key that is hit, by a matrix product")
    lowering.mark_whole_numbers(made)
    if missing.any():
        chosen = Program()
        x = chosen.source(Operand(source.value, lowering.shape(made)))
        number = float(values[missing][-1])
        chosen.apply("where", chosen.apply("is_nan", x), number, chosen.source(Operand(picked, lowering.shape(made))))
        add_compute(lowering, node, chosen)


def _key(value: Any) -> Any:
    """The key of a label in the table; NaN, which doesn't equal itself, gets None."""
    if isinstance(value, np.generic):
        value = value.item()
    return "nan" if isinstance(value, float) and np.isnan(value) else value


@host_function
def _encode_labels(
    labels: Array,
    table: dict[Any, Any],
    default: Any,
    dtype: np.dtype[Any],
    keys: np.dtype[Any] | None,
    place: tuple[tuple[int, ...], tuple[int, ...], int] | None,
) -> Array:
    """The table's values for labels; with ``place``, for those that a view of an input reads, as ``keys``."""
    if place is not None:
        labels = read_view(labels, *place).astype(keys)
    found = [table.get(_key(label), default) for label in labels.reshape(-1)]
    return np.array(found, dtype).reshape(labels.shape)


def _is_numeric(values: Array, dtype: str) -> bool:
    """True if the device can hold the values: floats, and integers that the dtype represents."""
    if values.dtype == object:
        return False
    return values.dtype.kind == "f" or bool(np.all(np.abs(values.astype(np.float64)) <= EXACT[dtype]))


def _place(view: View) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    return view.shape, view.strides, view.offset

"""A model's inputs and outputs as callers see them, and checks of the arguments of ``run``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trnrt.errors import Blocker, InputError, MissingInputError, UnsupportedModelError
from trnrt.importer import ImportedModel, TensorInfo
from trnrt.inputs.drawing import Array, as_array, check_array
from trnrt.text import names_text, quote, shape_text

_ONNX_TYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "bool": "bool",
    "str": "string",
}


@dataclass(frozen=True)
class NodeArg:
    """An input or output, described as in onnxruntime."""

    name: str
    type: str
    shape: list[int | str | None]


def node_arg(info: TensorInfo) -> NodeArg:
    """Describe an input or output as onnxruntime does."""
    return NodeArg(info.name, type_text(info.dtype), list(info.shape))


def type_text(dtype: str) -> str:
    """A type in onnxruntime's words, for numpy's name of a tensor's dtype, or for another type in words.

    "tensor(float)" for "float32", and "seq(map(int64,tensor(float)))" for "seq(map(int64, float32))".
    """
    kind, _, inner = dtype.removesuffix(")").partition("(")
    if kind in ("seq", "optional") and inner:
        return f"{kind}({type_text(inner)})"
    if kind == "map" and inner:
        key, _, value = inner.partition(", ")
        return f"map({_ONNX_TYPES.get(key, key)},{type_text(value)})"
    return f"tensor({_ONNX_TYPES.get(dtype, dtype)})"


def feeds_of(model: ImportedModel, feeds: Any, more: Mapping[str, Array] | None = None) -> Mapping[str, Array]:
    """The inputs by name; InputError, with the dict to give, for an array or a list in its place."""
    if type(feeds) is not dict and feeds is not None and not isinstance(feeds, Mapping):
        names = [info.name for info in model.inputs]
        given = names[: len(feeds)] if isinstance(feeds, (list, tuple)) and len(names) > 1 else names[:1]
        values = ["x"] if len(given) == 1 else [f"x{k}" for k in range(len(given))]
        pairs = ", ".join(f"{quote(name)}: {value}" for name, value in zip(given, values, strict=True))
        raise InputError(
            f"the inputs are of type {type(feeds).__name__}, and should be a dict of arrays by name",
            hint=f"give {{{pairs}}}",
        )
    return {**(feeds or {}), **more} if more else feeds or {}


def check_outputs(model: ImportedModel, names: Sequence[str] | None) -> list[str]:
    """The names of the requested outputs, by default all; InputError for an unknown one."""
    known = [info.name for info in model.outputs]
    if isinstance(names, str):
        raise InputError("output_names is a string, not a list", hint=f"pass [{names!r}]")
    if names is not None and (isinstance(names, Mapping) or not hasattr(names, "__len__") or hasattr(names, "dtype")):
        raise InputError(
            f"output_names is of type {type(names).__name__}, and should be a list of names, or None for all",
            hint="the inputs are the second argument: run(None, {name: array})",
        )
    wanted = [] if names is None else list(names)
    for name in wanted:
        if name not in known:
            raise InputError(
                f"the model has no output {_given_name(name)}", hint=f"its outputs are {names_text(known)}"
            )
    return wanted or known


def _given_name(name: object) -> str:
    """A name as a caller gave it, which may be no text."""
    return quote(name) if isinstance(name, str) else repr(name)


def check_kinds(model: ImportedModel) -> None:
    """Refuse inputs that are sequences, maps or optional: no array can hold them."""
    strange = [info for info in model.inputs if info.dtype.endswith(")")]
    if strange:
        hint = "export the model without it"
        blockers = [Blocker(info.name, "input", f"its type is {info.dtype}, not a tensor", hint) for info in strange]
        raise UnsupportedModelError(model.name, blockers)


def row_counts(model: ImportedModel, arrays: Mapping[str, Array]) -> set[int]:
    """The sizes of the inputs' dimension 0."""
    return {a.shape[0] for name, a in arrays.items() if a.ndim and name not in model.parameters}


def check_feeds(model: ImportedModel, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The inputs as arrays of the model's dtypes; InputError if they don't fit the model or each other."""
    check_kinds(model)
    known = {info.name: info for info in model.inputs}
    missing = [info for info in model.inputs if info.name not in feeds]
    for name in feeds:
        if name not in known:
            kind = MissingInputError if missing else InputError
            hint = f"its inputs are {names_text(known)}"
            if name in model.model.graph.initializers:
                hint += f"; {quote(name)} is a weight, which SessionOptions.add_initializer replaces"
            raise kind(f"the model has no input {_given_name(name)}", hint=hint)
    if missing:
        wanted = "; ".join(f"{quote(i.name)}, {i.dtype} {shape_text(i.shape)}" for i in missing)
        raise MissingInputError(f"missing input: {wanted}", hint=f"given: {names_text(feeds) or 'none'}")
    arrays = {name: as_array(array, known[name]) for name, array in feeds.items()}
    for name, info in known.items():
        is_parameter = name in model.parameters
        check_array(arrays[name], info, None if is_parameter else model.batch, may_be_empty=is_parameter)
    rows = row_counts(model, arrays)
    if model.batch is not None and len(rows) > 1 and model.apart is None:
        given = {a.shape[0]: name for name, a in arrays.items() if a.ndim and name not in model.parameters}
        found = ", ".join(f"{quote(name)} has {count:,}" for count, name in given.items())
        raise InputError(f"the inputs have different numbers of rows: {found}", hint="give each as many rows")
    return arrays

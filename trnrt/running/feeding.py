"""A model's inputs and outputs as callers see them, and checks of the arguments of ``run``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trnrt.errors import Blocker, InputError, UnsupportedModelError
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
    shape: list[int | str | None]
    type: str


def node_arg(info: TensorInfo) -> NodeArg:
    """Describe an input or output as onnxruntime does."""
    return NodeArg(info.name, list(info.shape), f"tensor({_ONNX_TYPES.get(info.dtype, info.dtype)})")


def check_outputs(model: ImportedModel, names: Sequence[str] | None) -> list[str]:
    """The names of the requested outputs, by default all; InputError for an unknown one."""
    known = [info.name for info in model.outputs]
    if isinstance(names, str):
        raise InputError("output_names is a string, not a list", hint=f"pass [{names!r}]")
    for name in names or ():
        if name not in known:
            raise InputError(f"the model has no output {quote(name)}", hint=f"its outputs are {names_text(known)}")
    return list(names) if names else known


def check_kinds(model: ImportedModel) -> None:
    """Refuse inputs that are sequences, maps or optional: no array can hold them."""
    strange = [info for info in model.inputs if info.dtype.endswith(")")]
    if strange:
        hint = "export the model without it"
        blockers = [Blocker(info.name, "input", f"its type is {info.dtype}, not a tensor", hint) for info in strange]
        raise UnsupportedModelError(model.name, blockers)


def check_feeds(model: ImportedModel, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The inputs as arrays of the model's dtypes; InputError if they don't fit the model or each other."""
    check_kinds(model)
    known = {info.name: info for info in model.inputs}
    for name in feeds:
        if name not in known:
            raise InputError(f"the model has no input {quote(name)}", hint=f"its inputs are {names_text(known)}")
    missing = [info for info in model.inputs if info.name not in feeds]
    if missing:
        wanted = "; ".join(f"{quote(i.name)}, {i.dtype} {shape_text(i.shape)}" for i in missing)
        raise InputError(f"missing input: {wanted}", hint=f"given: {names_text(feeds) or 'none'}")
    arrays = {name: as_array(array, known[name]) for name, array in feeds.items()}
    for name, info in known.items():
        is_parameter = name in model.parameters
        check_array(arrays[name], info, None if is_parameter else model.batch, may_be_empty=is_parameter)
    rows = {a.shape[0]: name for name, a in arrays.items() if a.ndim and name not in model.parameters}
    if model.batch is not None and len(rows) > 1:
        found = ", ".join(f"{quote(name)} has {count:,}" for count, name in rows.items())
        raise InputError(f"the inputs have different numbers of rows: {found}", hint="give each as many rows")
    return arrays

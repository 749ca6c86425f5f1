"""A partition as plain data and arrays, and back, for the cache. No pickle: only the types listed here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from trnrt.errors import Blocker
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.planner.choices import Choices
from trnrt.planner.lowering.host import HOST_FUNCTIONS
from trnrt.planner.options import EIGHT_BITS
from trnrt.planner.parts.crossing import Crossing
from trnrt.planner.parts.partition import CpuPart, DevicePart, Partition
from trnrt.planner.plan import (
    Array,
    DeviceTensor,
    HostNode,
    KernelSize,
    NodeReport,
    Plan,
    PlanOutput,
    StepReport,
    StoredTensor,
    Tried,
    WeightPart,
)

_CLASSES: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        *(Partition, DevicePart, CpuPart, Crossing, Blocker, Choices, Tried),
        *(Plan, DeviceTensor, HostNode, KernelSize, NodeReport, PlanOutput, StepReport, StoredTensor, WeightPart),
    )
}


class NotSaved(Exception):
    """The type can't be saved, or the saved data isn't a plan's."""


def encode(partition: Partition) -> tuple[dict[str, Any], list[Array]]:
    """The partition as JSON can hold it, with numbers for its arrays, and the arrays. NotSaved for unknown types."""
    arrays: list[Array] = []
    encoded = _encode(partition, arrays)
    assert isinstance(encoded, dict)
    return encoded, arrays


def decode(encoded: Mapping[str, Any], arrays: Sequence[Array]) -> Partition:
    """The inverse of ``encode``; raises NotSaved for any other data."""
    try:
        partition = _decode(encoded, arrays)
    except (KeyError, IndexError, TypeError, ValueError, AssertionError) as error:
        raise NotSaved(f"the saved plan is damaged: {error}") from None
    if not isinstance(partition, Partition):
        raise NotSaved("the saved plan is damaged: it is none")
    return partition


def _encode(value: Any, arrays: list[Array]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, tuple):
        return {"tuple": [_encode(item, arrays) for item in value]}
    if isinstance(value, list):
        return [_encode(item, arrays) for item in value]
    if isinstance(value, frozenset):
        return {"set": [_encode(item, arrays) for item in sorted(value, key=repr)]}
    if isinstance(value, dict):
        return {"dict": [[_encode(key, arrays), _encode(item, arrays)] for key, item in value.items()]}
    if isinstance(value, np.dtype):
        return {"dtype": value.name}
    if isinstance(value, bytes):
        return {"bytes": _number(np.frombuffer(value, np.uint8), arrays)}
    if isinstance(value, np.ndarray):
        return _encode_array(value, arrays)
    if isinstance(value, np.generic):
        return _encode(value.item(), arrays)
    if dataclasses.is_dataclass(value) and type(value).__name__ in _CLASSES:
        fields = {f.name: _encode(getattr(value, f.name), arrays) for f in dataclasses.fields(value)}
        return {"class": type(value).__name__, "fields": fields}
    if callable(value):
        return _encode_function(value, arrays)
    raise NotSaved(f"a plan with a {type(value).__name__} in it is not saved")


def _encode_array(value: Array, arrays: list[Array]) -> dict[str, Any]:
    if value.dtype == object:
        return {"strings": [str(text) for text in value.reshape(-1)], "shape": list(value.shape)}
    # numpy's file format has neither bfloat16 nor 8-bit floats: save their bits.
    if value.dtype.kind == "V" or value.dtype.name in ("bfloat16", *EIGHT_BITS):
        bits = np.uint8 if value.dtype.itemsize == 1 else np.uint16
        return {"array": _number(value.view(bits), arrays), "as": value.dtype.name}
    return {"array": _number(value, arrays)}


def _number(array: Array, arrays: list[Array]) -> int:
    arrays.append(array)
    return len(arrays) - 1


def _encode_function(value: Callable[..., Any], arrays: list[Array]) -> dict[str, Any]:
    bound = value if isinstance(value, partial) else partial(value)
    function, args, settings = bound.func, bound.args, bound.keywords
    name = getattr(function, "__name__", "")
    if HOST_FUNCTIONS.get(name) is not function:
        raise NotSaved(f"a plan with the host function {name or function!r} is not saved")
    return {"function": name, "args": _encode(tuple(args), arrays), "settings": _encode(dict(settings), arrays)}


def _decode(value: Any, arrays: Sequence[Array]) -> Any:
    if isinstance(value, list):
        return [_decode(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    match next(iter(value), None):
        case "tuple":
            return tuple(_decode(item, arrays) for item in value["tuple"])
        case "set":
            return frozenset(_decode(item, arrays) for item in value["set"])
        case "dict":
            return {_decode(key, arrays): _decode(item, arrays) for key, item in value["dict"]}
        case "dtype":
            return np.dtype(value["dtype"]) if value["dtype"] != "bfloat16" else as_dtype("bfloat16").numpy
        case "bytes":
            return arrays[value["bytes"]].tobytes()
        case "array":
            array = arrays[value["array"]]
            return array.view(as_dtype(value["as"]).numpy) if "as" in value else array
        case "strings":
            return np.array(value["strings"], dtype=object).reshape(value["shape"])
        case "class":
            fields = {name: _decode(item, arrays) for name, item in value["fields"].items()}
            return _CLASSES[value["class"]](**fields)
        case "function":
            settings = _decode(value["settings"], arrays)
            return partial(_host_function(value["function"]), *_decode(value["args"], arrays), **settings)
        case other:
            raise NotSaved(f"the saved plan is damaged: {other!r}")


def _host_function(name: str) -> Callable[..., Any]:
    """The host function of this name; KeyError if there is none."""
    if name not in HOST_FUNCTIONS:
        # The planner's modules register them; most plans have none, and then need not wait for onnx_ir.
        import trnrt.planner.making  # noqa: F401
    return HOST_FUNCTIONS[name]

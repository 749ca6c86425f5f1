"""Tensors as the Open Inference Protocol carries them, to and from numpy: JSON data and binary data.

Whatever a client says of a tensor is checked before memory is taken for it: the shape as Python integers, which do not
overflow, the number of elements against a limit, the length of the data against the shape. What does not fit is a
TensorError, whose text a client can act on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

MOST_DIMENSIONS = 32
_LONGEST_SHOWN = 60
_LARGEST_EXACT = 2**53


class TensorError(ValueError):
    """A tensor that is not what the protocol says; ``str(error)`` is for the client."""


@dataclass(frozen=True)
class Datatype:
    """A datatype of the protocol: its name, numpy's dtype in memory, and the same in the order of the wire.

    ``kind`` is what its elements are in JSON: "bool", "int", "float" or "str"; ``limit`` the largest float.
    """

    name: str
    dtype: np.dtype[Any]
    wire: np.dtype[Any]
    kind: str
    limit: float = math.inf


def _datatype(name: str, dtype: Any, kind: str) -> Datatype:
    made = np.dtype(dtype)
    limit = float(ml_dtypes.finfo(made).max) if kind == "float" else math.inf
    return Datatype(name, made, made.newbyteorder("<"), kind, limit)


DATATYPES: dict[str, Datatype] = {
    "BOOL": _datatype("BOOL", np.bool_, "bool"),
    "UINT8": _datatype("UINT8", np.uint8, "int"),
    "UINT16": _datatype("UINT16", np.uint16, "int"),
    "UINT32": _datatype("UINT32", np.uint32, "int"),
    "UINT64": _datatype("UINT64", np.uint64, "int"),
    "INT8": _datatype("INT8", np.int8, "int"),
    "INT16": _datatype("INT16", np.int16, "int"),
    "INT32": _datatype("INT32", np.int32, "int"),
    "INT64": _datatype("INT64", np.int64, "int"),
    "FP16": _datatype("FP16", np.float16, "float"),
    "BF16": _datatype("BF16", ml_dtypes.bfloat16, "float"),
    "FP32": _datatype("FP32", np.float32, "float"),
    "FP64": _datatype("FP64", np.float64, "float"),
    "BYTES": _datatype("BYTES", np.object_, "str"),
}
"""By the protocol's name; BF16 is what servers that have it call bfloat16."""

_OF_MODEL = {"str" if d.kind == "str" else str(d.dtype): d for d in DATATYPES.values()}


def datatype_of(dtype: str) -> Datatype | None:
    """The datatype of a tensor that the importer calls ``dtype``; None where the protocol has none for it."""
    return _OF_MODEL.get(dtype)


def value_text(value: object) -> str:
    """A client's value in a message: short, escaped, whatever it is."""
    if isinstance(value, int) and value.bit_length() > 200:
        # Writing it out takes long, or is refused by Python.
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, str):
        value = value[: _LONGEST_SHOWN + 1]
    text = str(value).lower() if isinstance(value, bool) else "null" if value is None else ascii(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def check_shape(shape: object, most_elements: int) -> tuple[int, ...]:
    """A shape as the client gave it: whole numbers from 0 that make at most ``most_elements`` elements."""
    if not isinstance(shape, list):
        raise TensorError(f"its shape is {value_text(shape)}; it is a list of whole numbers")
    if len(shape) > MOST_DIMENSIONS:
        raise TensorError(f"its shape has {len(shape)} dimensions; the limit is {MOST_DIMENSIONS}")
    for place, size in enumerate(shape):
        if type(size) is not int or size < 0:
            raise TensorError(f"dimension {place} of its shape is {value_text(size)}; it is a whole number from 0")
    # Of a shape with a 0 the others count, too: numpy has limits for them.
    elements = math.prod(size or 1 for size in shape)
    if elements > most_elements:
        raise TensorError(
            f"its shape asks for {value_text(elements)} elements; the limit of this server is {most_elements}"
        )
    return tuple(shape)


def from_json(data: object, shape: tuple[int, ...], datatype: Datatype) -> Array:
    """The tensor that JSON ``data``, nested like ``shape`` or flat, holds."""
    flat = _flatten(data, shape)
    elements = math.prod(shape)
    if len(flat) != elements:
        raise TensorError(f"its data has {len(flat)} elements; shape {list(shape)} has {elements}")
    return _FROM_JSON[datatype.kind](flat, datatype).reshape(shape)


def from_binary(raw: memoryview | bytes, shape: tuple[int, ...], datatype: Datatype) -> Array:
    """The tensor in ``raw``, little-endian and row-major; a copy, so that it is aligned and no request is kept."""
    if datatype.kind == "str":
        return _strings_from_binary(raw, shape)
    wanted = math.prod(shape) * datatype.wire.itemsize
    if len(raw) != wanted:
        raise TensorError(f"its binary data has {len(raw)} bytes; {datatype.name} {list(shape)} has {wanted}")
    if datatype.kind == "bool":
        held = np.frombuffer(raw, np.uint8)
        if held.size and held.max() > 1:
            raise TensorError(f"byte {int((held > 1).argmax())} of its BOOL data is {held.max()}; it is 0 or 1")
        return held.astype(np.bool_).reshape(shape)
    return np.frombuffer(raw, datatype.wire).astype(datatype.dtype).reshape(shape)


def to_json(array: Array, datatype: Datatype, nan_policy: str | None) -> list[Any]:
    """The elements, row-major, as JSON has them; ``nan_policy``, one of NAN_POLICIES, is for NaN and infinity.

    Raises:
        TensorError: for NaN or infinity where there is no policy.
    """
    flat = array.reshape(-1)
    if datatype.kind == "str":
        return [_text(item) for item in flat.tolist()]
    if datatype.name == "BF16":
        flat = flat.astype(np.float32)
    values: list[Any] = flat.tolist()
    if datatype.kind == "float" and not np.isfinite(flat).all():
        if nan_policy is None:
            raise TensorError("it holds NaN or infinity, which JSON has not")
        return [NAN_POLICIES[nan_policy](value) for value in values]
    return values


def to_binary(array: Array, datatype: Datatype) -> bytes:
    """The tensor, little-endian and row-major; strings as their UTF-8 behind their length in four bytes."""
    if datatype.kind != "str":
        return array.astype(datatype.wire, copy=False).tobytes()
    parts = [_text(item).encode("utf-8", "surrogateescape") for item in array.reshape(-1).tolist()]
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def _null(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _word(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


NAN_POLICIES = {"null": _null, "string": _word}
"""What ``parameters.nan_policy`` may be, and what it makes of a number."""


def _text(item: object) -> str:
    return item.decode("utf-8", "surrogateescape") if isinstance(item, bytes) else str(item)


def _flatten(data: object, shape: tuple[int, ...]) -> list[Any]:
    """``data`` as one list: as it is where it is flat; where it is nested it must be so just like ``shape``."""
    if not isinstance(data, list):
        if shape:
            raise TensorError(f"its data is {value_text(data)}; it is a list")
        return [data]
    if not data or type(data[0]) is not list:
        return data
    level = data
    for depth, size in enumerate(shape[1:], 1):
        if len(level) != math.prod(shape[:depth]):
            break
        if set(map(type, level)) != {list} or set(map(len, level)) != {size}:
            raise _ragged_error(level, depth, shape)
        level = list(chain.from_iterable(level))
    return level


def _ragged_error(level: list[Any], depth: int, shape: tuple[int, ...]) -> TensorError:
    """The error for the first item of a level that is no list of the shape's size."""
    size = shape[depth]
    place, item = next((k, item) for k, item in enumerate(level) if type(item) is not list or len(item) != size)
    found = f"a list of {len(item)}" if isinstance(item, list) else value_text(item)
    return TensorError(f"its nested data has {found} at level {depth}, item {place}, for shape {list(shape)}")


def _offender(flat: Sequence[object], kinds: tuple[type, ...]) -> TensorError:
    """The error for the first element that is none of ``kinds``."""
    place, item = next((k, item) for k, item in enumerate(flat) if type(item) not in kinds)
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
    return TensorError(f"element {place} of its data is {value_text(item)}; it is {words[kinds[-1]]}")


def _bools(flat: list[Any], datatype: Datatype) -> Array:
    if not set(map(type, flat)) <= {bool}:
        raise _offender(flat, (bool,))
    return np.array(flat, np.bool_)


def _whole(flat: list[Any]) -> list[int]:
    """Whole numbers that were written with a point or an exponent, as some encoders do, as integers."""
    for place, item in enumerate(flat):
        if type(item) is float and not (item.is_integer() and abs(item) <= _LARGEST_EXACT):
            raise TensorError(f"element {place} of its data is {value_text(item)}; it is a whole number")
    return [int(item) for item in flat]


def _integers(flat: list[Any], datatype: Datatype) -> Array:
    kinds = set(map(type, flat))
    if not kinds <= {int, float}:
        raise _offender(flat, (float, int))
    whole = _whole(flat) if float in kinds else flat
    try:
        return np.array(whole, datatype.dtype)
    except OverflowError:
        limits = np.iinfo(datatype.dtype)
        place, item = next((k, item) for k, item in enumerate(whole) if not limits.min <= item <= limits.max)
        raise TensorError(
            f"element {place} of its data is {value_text(item)}; {datatype.name} holds {limits.min} to {limits.max}"
        ) from None


def _floats(flat: list[Any], datatype: Datatype) -> Array:
    if not set(map(type, flat)) <= {int, float}:
        raise _offender(flat, (int, float))
    limit = datatype.limit
    # JSON has no infinity, but numbers that are too large for any format, as 1e999.
    if flat and not (min(flat) >= -limit and max(flat) <= limit):
        place, item = next((k, item) for k, item in enumerate(flat) if not -limit <= item <= limit)
        raise TensorError(
            f"element {place} of its data is {value_text(item)}; {datatype.name} holds {-limit} to {limit}"
        )
    return np.array(flat, datatype.dtype)


def _strings(flat: list[Any], datatype: Datatype) -> Array:
    if not set(map(type, flat)) <= {str}:
        raise _offender(flat, (str,))
    made = np.empty(len(flat), np.object_)
    made[:] = flat
    try:
        "".join(flat).encode("utf-8")
    except UnicodeEncodeError:
        place = next(k for k, item in enumerate(flat) if not is_text(item))
        raise TensorError(f"element {place} of its data holds half a surrogate pair, which is no text") from None
    return made


def is_text(text: str) -> bool:
    """Whether a string of JSON can be written as UTF-8: its escapes can spell halves of surrogate pairs."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


_FROM_JSON = {"bool": _bools, "int": _integers, "float": _floats, "str": _strings}


def _strings_from_binary(raw: memoryview | bytes, shape: tuple[int, ...]) -> Array:
    elements = math.prod(shape)
    held = bytes(raw)
    if elements * 4 > len(held):
        raise TensorError(f"its binary data has {len(held)} bytes; {elements} strings need at least {elements * 4}")
    made = np.empty(elements, np.object_)
    at = 0
    for place in range(elements):
        start = at + 4
        at = start + int.from_bytes(held[at:start], "little")
        if start > len(held) or at > len(held):
            raise TensorError(f"string {place} of its binary data ends beyond its {len(held)} bytes")
        try:
            made[place] = held[start:at].decode("utf-8")
        except UnicodeDecodeError as error:
            raise TensorError(f"string {place} of its binary data is no UTF-8: {error.reason}") from None
    if at != len(held):
        raise TensorError(f"its binary data has {len(held)} bytes; its {elements} strings end after {at}")
    return made.reshape(shape)

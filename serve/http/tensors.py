"""The Open Inference Protocol's tensors, to and from numpy: JSON data and binary data.

A client's tensor is checked before memory is allocated for it: the shape as Python integers, which do not overflow, the
number of elements against a limit, the length of the data against the shape. A TensorError's text helps the client.
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
MOST_STRINGS = 1 << 20
"""The most strings of a tensor: each takes 50 bytes or more, and in a request as few as 4."""
_LONGEST_SHOWN = 60
_LARGEST_EXACT = 2**53


class TensorError(ValueError):
    """A tensor that breaks the protocol; ``str(error)`` is for the client."""


@dataclass(frozen=True)
class Datatype:
    """A datatype of the protocol: its name, numpy's dtype in memory, and the same in the byte order of the wire.

    ``kind`` is that of its elements in JSON: "bool", "int", "float" or "str"; ``limit`` the largest float.
    """

    name: str
    dtype: np.dtype[Any]
    wire: np.dtype[Any]
    kind: str
    limit: float


_KINDS = {"b": "bool", "u": "int", "i": "int", "f": "float", "V": "float", "O": "str"}
"""By numpy's kind; V is bfloat16's."""
_DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}


def _datatype(name: str, dtype: np.dtype[Any]) -> Datatype:
    kind = _KINDS[dtype.kind]
    limit = float(ml_dtypes.finfo(dtype).max) if kind == "float" else math.inf
    return Datatype(name, dtype, dtype.newbyteorder("<"), kind, limit)


DATATYPES = {name: _datatype(name, np.dtype(dtype)) for name, dtype in _DTYPES.items()}
"""By the protocol's name; BF16 is the name that other servers use for bfloat16."""

_OF_MODEL = {"str" if d.kind == "str" else str(d.dtype): d for d in DATATYPES.values()}


def datatype_of(dtype: str) -> Datatype | None:
    """The datatype for the importer's ``dtype``; None if the protocol has none."""
    return _OF_MODEL.get(dtype)


def value_text(value: object) -> str:
    """Any value of a client's in a message: short and escaped."""
    if isinstance(value, int) and value.bit_length() > 200:
        # Python is slow to write it out, or refuses.
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, str):
        value = value[: _LONGEST_SHOWN + 1]
    text = str(value).lower() if isinstance(value, bool) else "null" if value is None else ascii(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def check_shape(shape: object, most_elements: int) -> tuple[int, ...]:
    """The client's shape: whole numbers from 0 that make at most ``most_elements`` elements."""
    if not isinstance(shape, list):
        raise TensorError(f"its shape is {value_text(shape)}; it is a list of whole numbers")
    if len(shape) > MOST_DIMENSIONS:
        raise TensorError(f"its shape has {len(shape)} dimensions; the limit is {MOST_DIMENSIONS}")
    for place, size in enumerate(shape):
        if type(size) is not int or size < 0:
            raise TensorError(f"dimension {place} of its shape is {value_text(size)}; it is a whole number from 0")
    # Count a 0 as 1: numpy limits the other dimensions, too.
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
    """The tensor in ``raw``, little-endian and row-major. An aligned copy, which keeps no request alive; or ``raw``
    itself, if that may be written to and is aligned."""
    if datatype.kind == "str":
        return _strings_from_binary(raw, shape)
    wanted = math.prod(shape) * datatype.wire.itemsize
    if len(raw) != wanted:
        raise TensorError(f"its binary data has {len(raw)} bytes; {datatype.name} {list(shape)} has {wanted}")
    if datatype.kind == "bool":
        values = np.frombuffer(raw, np.uint8)
        if values.size and values.max() > 1:
            raise TensorError(f"byte {int((values > 1).argmax())} of its BOOL data is {values.max()}; it is 0 or 1")
        return values.astype(np.bool_).reshape(shape)
    wire = np.frombuffer(raw, datatype.wire)
    copy = not (wire.flags.writeable and wire.flags.aligned)
    return wire.astype(datatype.dtype, copy=copy).reshape(shape)


def to_json(array: Array, datatype: Datatype, nan_policy: str | None) -> list[Any]:
    """The elements as JSON, row-major; ``nan_policy``, one of NAN_POLICIES, is for NaN and infinity.

    Raises:
        TensorError: for NaN or infinity without a policy
    """
    flat = array.reshape(-1)
    if datatype.kind == "str":
        return [_text(item) for item in flat.tolist()]
    if datatype.name == "BF16":
        flat = flat.astype(np.float32)
    values: list[Any] = flat.tolist()
    # A sum is quicker, and never finite if an item is not; but it may overflow.
    if datatype.kind == "float" and not (math.isfinite(sum(values)) or np.isfinite(flat).all()):
        if nan_policy is None:
            raise TensorError("it holds NaN or infinity, which JSON has not")
        return [NAN_POLICIES[nan_policy](value) for value in values]
    return values


def to_binary(array: Array, datatype: Datatype) -> bytes | memoryview:
    """The tensor, little-endian and row-major: its own memory if that is so; a string is its length in four bytes, then
    its UTF-8."""
    if datatype.kind != "str":
        return np.ascontiguousarray(array, datatype.wire).reshape(-1).view(np.uint8).data
    return b"".join(len(part).to_bytes(4, "little") + part for part in encode_strings(array))


def encode_strings(array: Array) -> list[bytes]:
    """The strings of a tensor in UTF-8, row-major."""
    return [_text(item).encode("utf-8", "surrogateescape") for item in array.reshape(-1).tolist()]


def _null(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _word(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


NAN_POLICIES = {"null": _null, "string": _word}
"""The values of ``parameters.nan_policy``, and how each writes a number."""


def _text(item: object) -> str:
    return item.decode("utf-8", "surrogateescape") if isinstance(item, bytes) else str(item)


def _flatten(data: object, shape: tuple[int, ...]) -> list[Any]:
    """``data`` as one flat list; nested data must have the nesting of ``shape``."""
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


_WORDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


def _check_types(flat: Sequence[object], *kinds: type) -> set[type]:
    """The types of the elements. TensorError, which names the last of ``kinds``, unless these are all."""
    found = set(map(type, flat))
    if not found <= set(kinds):
        place, item = next((k, item) for k, item in enumerate(flat) if type(item) not in kinds)
        raise TensorError(f"element {place} of its data is {value_text(item)}; it is {_WORDS[kinds[-1]]}")
    return found


def _bools(flat: list[Any], datatype: Datatype) -> Array:
    _check_types(flat, bool)
    return np.array(flat, np.bool_)


def _whole(flat: list[Any]) -> list[int]:
    """Convert whole numbers with a point or an exponent, as some encoders write them, to integers."""
    for place, item in enumerate(flat):
        if type(item) is float and not (item.is_integer() and abs(item) <= _LARGEST_EXACT):
            raise TensorError(f"element {place} of its data is {value_text(item)}; it is a whole number")
    return [int(item) for item in flat]


def _integers(flat: list[Any], datatype: Datatype) -> Array:
    whole = _whole(flat) if float in _check_types(flat, float, int) else flat
    try:
        return np.array(whole, datatype.dtype)
    except OverflowError:
        limits = np.iinfo(datatype.dtype)
        place, item = next((k, item) for k, item in enumerate(whole) if not limits.min <= item <= limits.max)
        raise TensorError(
            f"element {place} of its data is {value_text(item)}; {datatype.name} holds {limits.min} to {limits.max}"
        ) from None


def _floats(flat: list[Any], datatype: Datatype) -> Array:
    _check_types(flat, int, float)
    limit = datatype.limit
    # JSON has no infinity, but numbers too large for any format, such as 1e999.
    if flat and not (min(flat) >= -limit and max(flat) <= limit):
        place, item = next((k, item) for k, item in enumerate(flat) if not -limit <= item <= limit)
        raise TensorError(
            f"element {place} of its data is {value_text(item)}; {datatype.name} holds {-limit} to {limit}"
        )
    return np.array(flat, datatype.dtype)


def _check_strings(count: int) -> None:
    if count > MOST_STRINGS:
        raise TensorError(f"it has {count} strings; the limit of this server is {MOST_STRINGS}")


def _strings(flat: list[Any], datatype: Datatype) -> Array:
    _check_strings(len(flat))
    _check_types(flat, str)
    made = np.empty(len(flat), np.object_)
    made[:] = flat
    try:
        "".join(flat).encode("utf-8")
    except UnicodeEncodeError:
        place = next(k for k, item in enumerate(flat) if not is_text(item))
        raise TensorError(f"element {place} of its data holds half a surrogate pair, which is no text") from None
    return made


def is_text(text: str) -> bool:
    """True if a JSON string is valid UTF-8: escapes can spell halves of surrogate pairs."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


_FROM_JSON = {"bool": _bools, "int": _integers, "float": _floats, "str": _strings}


def _strings_from_binary(raw: memoryview | bytes, shape: tuple[int, ...]) -> Array:
    elements = math.prod(shape)
    _check_strings(elements)
    data = bytes(raw)
    if elements * 4 > len(data):
        raise TensorError(f"its binary data has {len(data)} bytes; {elements} strings need at least {elements * 4}")
    made = np.empty(elements, np.object_)
    at = 0
    for place in range(elements):
        start = at + 4
        at = start + int.from_bytes(data[at:start], "little")
        if start > len(data) or at > len(data):
            raise TensorError(f"string {place} of its binary data ends beyond its {len(data)} bytes")
        try:
            made[place] = data[start:at].decode("utf-8")
        except UnicodeDecodeError as error:
            raise TensorError(f"string {place} of its binary data is no UTF-8: {error.reason}") from None
    if at != len(data):
        raise TensorError(f"its binary data has {len(data)} bytes; its {elements} strings end after {at}")
    return made.reshape(shape)

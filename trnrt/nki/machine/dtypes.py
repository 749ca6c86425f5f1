"""Number formats of the NeuronCore and exact rounding to them.

A float tile of any width is *held* as a float32 array whose values are already rounded to the tile's
format: matmuls then never convert, and numpy is fast on float32 only. Integers are held as themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class DType(str):
    """A number format: ``itemsize`` in bytes on the device, ``numpy`` the same format on the host.

    It is a string, as AWS's dtypes are: a config that holds one can be copied, pickled, written as JSON, or passed to
    ``dataclasses.asdict``. Each name has one object, so formats can be compared with ``is``.
    """

    __slots__ = ("is_float", "itemsize", "numpy")

    itemsize: int
    numpy: np.dtype[Any]
    is_float: bool

    def __new__(cls, name: str, numpy_dtype: Any) -> DType:
        dtype, numpy = super().__new__(cls, name), np.dtype(numpy_dtype)
        dtype.itemsize, dtype.numpy, dtype.is_float = numpy.itemsize, numpy, numpy.kind not in "iub"
        _BY_NAME[name] = dtype
        # numpy looks the name up: `np.zeros(4, nl.tfloat32)`. ml_dtypes registers its own names in the same place.
        np.sctypeDict.setdefault(name, numpy.type)
        return dtype

    @property
    def name(self) -> str:
        return str(self)

    @property
    def array_dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the simulator's array for such a tile."""
        return np.dtype(np.float32) if self.is_float else self.numpy

    @property
    def dtype(self) -> np.dtype[Any]:
        """The format on the host, under the name that other libraries look for."""
        return self.numpy

    def __repr__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[Callable[[str], DType], tuple[str]]:
        """Copying and unpickling return the one object of this name."""
        return _by_name, (str(self),)


_BY_NAME: dict[str, DType] = {}


def _by_name(name: str) -> DType:
    return _BY_NAME[name]


float32 = DType("float32", np.float32)
tfloat32 = DType("tfloat32", np.float32)  # the host has no such format: float32 with 10 mantissa bits
bfloat16 = DType("bfloat16", ml_dtypes.bfloat16)
float16 = DType("float16", np.float16)
float8_e4m3 = DType("float8_e4m3", ml_dtypes.float8_e4m3)
float8_e4m3fn = DType("float8_e4m3fn", ml_dtypes.float8_e4m3fn)
float8_e5m2 = DType("float8_e5m2", ml_dtypes.float8_e5m2)
int8 = DType("int8", np.int8)
int16 = DType("int16", np.int16)
int32 = DType("int32", np.int32)
uint8 = DType("uint8", np.uint8)
uint16 = DType("uint16", np.uint16)
uint32 = DType("uint32", np.uint32)
bool_ = DType("bool_", np.bool_)

DTYPES = dict(_BY_NAME)
"""The formats that engines compute with, by name."""
_OF_NUMPY = {d.numpy: d for d in reversed(DTYPES.values())}


def as_dtype(value: Any) -> DType:
    """The format of a DType, a name or a numpy dtype; TypeError if the device lacks it."""
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in _BY_NAME:
        return _BY_NAME[value]
    try:
        return _OF_NUMPY[np.dtype(value).newbyteorder("=")]
    except (KeyError, TypeError):
        raise TypeError(f"the NeuronCore has no dtype {value!r}; it has {', '.join(DTYPES)}") from None


def _round_tfloat32(values: Array) -> Array:
    """Round to nearest even at the 10th mantissa bit; keep NaN and infinity."""
    bits = values.view(np.uint32)
    rounded = (bits + (0x0FFF + ((bits >> 13) & 1))) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(values), rounded.view(np.float32), values)


def _to_integer(numpy_dtype: np.dtype[Any]) -> Callable[[Array], Array]:
    """Nearest-even rounding and saturation; NaN becomes 0."""
    limits = np.iinfo(numpy_dtype)

    def convert(values: Array) -> Array:
        wide = np.rint(np.nan_to_num(values.astype(np.float64), nan=0.0))
        return np.clip(wide, limits.min, limits.max).astype(numpy_dtype)

    return convert


_ROUNDS: ContextVar[bool] = ContextVar("rounds", default=True)


@contextmanager
def rounding(enabled: bool) -> Iterator[None]:
    """Programs bound in this context round floats to their formats, or don't (to distinguish rounding errors from
    bugs)."""
    token = _ROUNDS.set(enabled)
    try:
        yield
    finally:
        _ROUNDS.reset(token)


def rounder(dtype: DType) -> Callable[[Array], Array] | None:
    """The function that rounds float32 values to ``dtype``; None if they need no rounding."""
    if dtype is float32 or (dtype.is_float and not _ROUNDS.get()):
        return None
    if dtype is tfloat32:
        return _round_tfloat32
    if dtype is bool_:
        return lambda values: values != 0
    if dtype.is_float:
        return lambda values: values.astype(dtype.numpy).astype(np.float32)
    return _to_integer(dtype.numpy)

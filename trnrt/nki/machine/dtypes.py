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

    It is its name, as AWS's dtypes are strings: a config that holds one can be copied, pickled, written as JSON or
    taken apart by ``dataclasses.asdict``. There is one object a name, so that ``is`` tells formats apart.
    """

    __slots__ = ("is_float", "itemsize", "numpy")

    itemsize: int
    numpy: np.dtype[Any]
    is_float: bool

    def __new__(cls, name: str, itemsize: int, numpy: np.dtype[Any], *, is_float: bool) -> DType:
        dtype = super().__new__(cls, name)
        dtype.itemsize, dtype.numpy, dtype.is_float = itemsize, numpy, is_float
        _BY_NAME[name] = dtype
        # numpy looks the name up: `np.zeros(4, nl.tfloat32)`. ml_dtypes registers its own names in the same place.
        np.sctypeDict.setdefault(name, numpy.type)
        return dtype

    @property
    def name(self) -> str:
        return str(self)

    @property
    def array_dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the array that holds such a tile in the simulator."""
        return np.dtype(np.float32) if self.is_float else self.numpy

    @property
    def dtype(self) -> np.dtype[Any]:
        """The format on the host, under the name by which libraries other than numpy ask for it."""
        return self.numpy

    def __repr__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[Callable[[str], DType], tuple[str]]:
        """Copying and unpickling give the one object of this name."""
        return _by_name, (str(self),)


_BY_NAME: dict[str, DType] = {}


def _by_name(name: str) -> DType:
    return _BY_NAME[name]


def _float(name: str, numpy_dtype: Any, itemsize: int | None = None) -> DType:
    dtype = np.dtype(numpy_dtype)
    return DType(name, itemsize or dtype.itemsize, dtype, is_float=True)


def _integer(name: str, numpy_dtype: Any) -> DType:
    dtype = np.dtype(numpy_dtype)
    return DType(name, dtype.itemsize, dtype, is_float=False)


float32 = _float("float32", np.float32)
tfloat32 = _float("tfloat32", np.float32)  # the host has no such format: float32 with 10 mantissa bits
bfloat16 = _float("bfloat16", ml_dtypes.bfloat16)
float16 = _float("float16", np.float16)
float8_e4m3 = _float("float8_e4m3", ml_dtypes.float8_e4m3)
float8_e4m3fn = _float("float8_e4m3fn", ml_dtypes.float8_e4m3fn)
float8_e5m2 = _float("float8_e5m2", ml_dtypes.float8_e5m2)
int8 = _integer("int8", np.int8)
int16 = _integer("int16", np.int16)
int32 = _integer("int32", np.int32)
uint8 = _integer("uint8", np.uint8)
uint16 = _integer("uint16", np.uint16)
uint32 = _integer("uint32", np.uint32)
bool_ = _integer("bool_", np.bool_)

DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        float32,
        tfloat32,
        bfloat16,
        float16,
        float8_e4m3,
        float8_e4m3fn,
        float8_e5m2,
        int8,
        int16,
        int32,
        uint8,
        uint16,
        uint32,
        bool_,
    )
}
_OF_NUMPY = {d.numpy: d for d in reversed(DTYPES.values())}


def as_dtype(value: Any) -> DType:
    """The format that a DType, its name, or a numpy dtype means; TypeError for one the device has not."""
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in _BY_NAME:
        return _BY_NAME[value]
    try:
        return _OF_NUMPY[np.dtype(value).newbyteorder("=")]
    except (KeyError, TypeError):
        raise TypeError(f"the NeuronCore has no dtype {value!r}; it has {', '.join(DTYPES)}") from None


def _round_tfloat32(values: Array) -> Array:
    """Round to nearest even at the 10th mantissa bit; NaN and infinity stay what they are."""
    bits = values.view(np.uint32)
    rounded = (bits + (0x0FFF + ((bits >> 13) & 1))) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(values), rounded.view(np.float32), values)


def _round_through(numpy_dtype: np.dtype[Any]) -> Callable[[Array], Array]:
    def round_values(values: Array) -> Array:
        return values.astype(numpy_dtype).astype(np.float32)

    return round_values


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
    """What is bound in this context rounds floats to their formats, or (to tell rounding from a bug) does not."""
    token = _ROUNDS.set(enabled)
    try:
        yield
    finally:
        _ROUNDS.reset(token)


def rounder(dtype: DType) -> Callable[[Array], Array] | None:
    """The function that rounds float32 values to ``dtype``'s held values; None where nothing is to be done."""
    if dtype is float32 or (dtype.is_float and not _ROUNDS.get()):
        return None
    if dtype is tfloat32:
        return _round_tfloat32
    if dtype is bool_:
        return lambda values: values != 0
    if dtype.is_float:
        return _round_through(dtype.numpy)
    return _to_integer(dtype.numpy)

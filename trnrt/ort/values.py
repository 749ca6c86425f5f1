"""OrtValue, and the records of devices and memory: all memory is the host's, and numpy's."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trnrt.errors import InputError, NotSupportedError
from trnrt.inputs.drawing import as_numpy
from trnrt.ort.enums import OrtAllocatorType, OrtMemType
from trnrt.ort.ignoring import warn_ignored, warn_of
from trnrt.ort.refused import refusal
from trnrt.ort.table import MODULE
from trnrt.running.feeding import type_text

Array = NDArray[Any]

_TENSOR_TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "str", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
}  # fmt: skip
"""ONNX's number of a type (TensorProto.DataType) -> numpy's name; "str" for texts."""

_NUMBERS = {name: number for number, name in _TENSOR_TYPES.items()}


_DEVICE_TYPES = {"cpu": 0, "cuda": 1, "dml": 1, "gpu": 1, "webgpu": 1, "npu": 3}
"""A device's name -> the number that ``OrtDevice.make`` of onnxruntime 1.32 gives it."""


class OrtValue:
    """A value that a run takes or gives: a tensor as a numpy array, whose memory it shares."""

    def __init__(self, value: Any) -> None:
        self._value = value

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: Array, /, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """A value that shares the array's memory."""
        check_host(device_type)
        return cls(_as_tensor(numpy_obj))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Array, /, onnx_element_type: int) -> OrtValue:
        """The array's memory as another type of the same size, by ONNX's number: int16 as bfloat16."""
        array, dtype = _as_tensor(data), as_dtype_of(onnx_element_type)
        if array.dtype.itemsize != dtype.itemsize:
            raise InputError(f"numbers of {array.dtype} can't be read as {dtype}: their sizes differ")
        return cls(array.view(dtype))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
        memory_info: OrtMemoryInfo | None = None,
    ) -> OrtValue:
        """Zeros of this shape. ``element_type``: numpy's, or ONNX's number."""
        check_host(device_type)
        return cls(np.zeros(tuple(shape), as_dtype_of(element_type)))

    @classmethod
    def ort_value_from_sparse_tensor(cls, sparse_tensor: object) -> OrtValue:
        """Refused: trnrt has no sparse tensors."""
        raise refusal("OrtValue", "ort_value_from_sparse_tensor")

    @classmethod
    def from_dlpack(cls, data: Any, /) -> OrtValue:
        """A value that shares the memory of a tensor on the host."""
        return cls(np.from_dlpack(data))

    def numpy(self) -> Array:
        """The array."""
        array: Array = self._tensor("numpy()")
        return array

    def update_inplace(self, data: Array) -> None:
        """Copy these numbers into the value's memory; InputError if their shape or dtype is another."""
        array = self._tensor("update_inplace()")
        given = np.asarray(data)
        if given.shape != array.shape or given.dtype != array.dtype:
            raise InputError(
                f"the value is {array.dtype} {array.shape}, the update {given.dtype} {given.shape}",
                hint="give an array of the same shape and dtype",
            )
        np.copyto(array, given)

    def shape(self) -> list[int]:
        """The tensor's shape."""
        return list(self._tensor("shape()").shape)

    def data_type(self) -> str:
        """The type in onnxruntime's words, such as "tensor(float)"; "seq" or "map" if it is no tensor."""
        if self.is_tensor():
            return type_text(_name_of(self._value.dtype))
        return "seq" if self.is_tensor_sequence() else "map"

    def element_type(self) -> int:
        """ONNX's number of the element type."""
        return _NUMBERS.get(_name_of(self._tensor("element_type()").dtype), 0)

    def tensor_size_in_bytes(self) -> int:
        """The size of the tensor's numbers."""
        return int(self._tensor("tensor_size_in_bytes()").nbytes)

    def data_ptr(self) -> int:
        """The address of the first number."""
        return int(self._tensor("data_ptr()").ctypes.data)

    def device_name(self) -> str:
        """The device of the memory: always "cpu"."""
        return "cpu"

    def has_value(self) -> bool:
        """Return whether there is a value."""
        return self._value is not None

    def is_tensor(self) -> bool:
        """Return whether the value is a tensor."""
        return isinstance(self._value, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        """Return whether the value is a list of tensors."""
        return isinstance(self._value, list) and all(isinstance(each, np.ndarray) for each in self._value)

    def is_sparse_tensor(self) -> bool:
        """Return whether the value is a sparse tensor: never."""
        return False

    def as_sparse_tensor(self) -> object:
        """Refused: trnrt has no sparse tensors."""
        raise refusal("OrtValue", "as_sparse_tensor")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)
        return array.copy() if copy else array

    def __dlpack__(self, **how: Any) -> Any:
        return self.numpy().__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self.numpy().__dlpack_device__()
        return int(kind), int(number)

    def __repr__(self) -> str:
        return f"OrtValue({self.data_type()}{', ' + str(self.shape()) if self.is_tensor() else ''})"

    def _tensor(self, what: str) -> Any:
        if not self.is_tensor():
            raise InputError(f"{what} is for tensors, and the value is a {type(self._value).__name__}")
        return self._value


@dataclass(frozen=True)
class OrtDevice:
    """A device by onnxruntime's name; memory is the host's, whatever it says."""

    name: str = "cpu"
    number: int = 0

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """A device by its name and number."""
        check_host(ort_device_name)
        return OrtDevice(ort_device_name, device_id)

    def device_type(self) -> int:
        """onnxruntime's number of the device's kind: 0 for the host."""
        return _DEVICE_TYPES.get(self.name.lower().partition(":")[0], 0)

    def device_id(self) -> int:
        """The device's number."""
        return self.number

    if not TYPE_CHECKING:  # it would hide misspelt names from the checker

        def __getattr__(self, name: str) -> object:
            raise refusal("OrtDevice", name)


@dataclass(frozen=True)
class OrtMemoryInfo:
    """A place in memory, in onnxruntime's terms; memory is the host's, whatever it says."""

    name: str = "Cpu"
    allocator_type: OrtAllocatorType = OrtAllocatorType.ORT_DEVICE_ALLOCATOR
    device_id: int = 0
    mem_type: OrtMemType = OrtMemType.DEFAULT

    if not TYPE_CHECKING:  # it would hide misspelt names from the checker

        def __getattr__(self, name: str) -> object:
            raise refusal("OrtMemoryInfo", name)


class OrtArenaCfg:
    """Limits of an allocator: accepted, as the host's memory is numpy's."""

    def __init__(self, *limits: object, **named: object) -> None:
        warn_of(MODULE, ["OrtArenaCfg"])


def copy_tensors(source: Sequence[OrtValue], destination: Sequence[OrtValue], stream: object = None) -> None:
    """Copy the numbers of each value into the other's memory; InputError if shapes or dtypes differ."""
    if len(source) != len(destination):
        raise InputError(f"{len(source)} values can't be copied into {len(destination)}")
    for given, taken in zip(source, destination, strict=True):
        taken.update_inplace(given.numpy())


def as_dtype_of(element_type: Any) -> np.dtype[Any]:
    """The numpy dtype of an element type: numpy's own, or ONNX's number. InputError for one that numpy has not."""
    try:
        if isinstance(element_type, int) and not isinstance(element_type, bool):
            name = _TENSOR_TYPES[element_type]
            return as_numpy(name)
        found: np.dtype[Any] = np.dtype(element_type)
        return found
    except (KeyError, TypeError):
        raise InputError(f"{element_type!r} is no element type", hint="give numpy's, or ONNX's number") from None


def memory_at(address: int, shape: Sequence[int], element_type: Any) -> Array:
    """The numbers at an address of this process's memory, which must stay valid while the array is used."""
    dtype, sizes = as_dtype_of(element_type), tuple(int(size) for size in shape)
    if dtype.hasobject:
        raise InputError("texts have no address: bind them with bind_cpu_input")
    if not math.prod(sizes):
        return np.zeros(sizes, dtype)
    if not address:
        raise InputError("the address is 0")
    buffer: Any = (ctypes.c_byte * (math.prod(sizes) * dtype.itemsize)).from_address(address)
    array: Array = np.frombuffer(buffer, dtype).reshape(sizes)
    return array


def check_host(device_type: str, *, address: bool = False) -> None:
    """Warn once that memory is the host's, if another device is named; for an ``address`` there, NotSupportedError."""
    kind = device_type.lower().partition(":")[0]
    if kind == "cpu":
        return
    if address:
        raise NotSupportedError(
            f"an address on the device {kind!r} can't be read", hint='copy the tensor to the host, and say "cpu"'
        )
    warn_ignored({f"the device {kind!r}": "values stay in the host's memory"})


def _as_tensor(given: Any) -> Array:
    if not isinstance(given, np.ndarray):
        raise InputError(
            f"a value is made of a numpy array, not of {type(given).__name__}", hint="give np.asarray(...) of it"
        )
    return given


def _name_of(dtype: np.dtype[Any]) -> str:
    return "str" if dtype.kind in "OUS" else dtype.name

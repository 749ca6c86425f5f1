"""Arguments and results of kernels on the host: numpy arrays, PyTorch tensors, and anything that converts to an array.

Nothing here imports another library: a tensor is known by its methods, and its library is the module of its class.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.dtypes import DTYPES, Array, DType, as_dtype
from trnrt.nki.machine.program import View
from trnrt.nki.sim.lang.objects import NKIObject

# Formats that PyTorch has and numpy has not: PyTorch's name, its integer of the same width, numpy's name of that.
_NARROW: dict[np.dtype[Any], tuple[str, str]] = {
    np.dtype(ml_dtypes.bfloat16): ("bfloat16", "int16"),
    np.dtype(ml_dtypes.float8_e4m3fn): ("float8_e4m3fn", "uint8"),
    np.dtype(ml_dtypes.float8_e5m2): ("float8_e5m2", "uint8"),
}
_OF_NAME = {name: (dtype, bits) for dtype, (name, bits) in _NARROW.items()}
_MOST_WORK: Any = 100_000  # whether two views with steps have an element in common can take long to find out
# The usual replacement of dtypes that the device lacks.
_NEAREST = {"float64": "float32", "longdouble": "float32", "float128": "float32", "int64": "int32", "uint64": "uint32"}


class Spec:
    """A tensor argument without data: ``Spec((128, 512), "float32")``."""

    def __init__(self, shape: Sequence[int], dtype: object) -> None:
        self.shape = tuple(shape)
        self.dtype: DType = device_dtype(dtype, f"Spec({self.shape})")

    def __repr__(self) -> str:
        return f"Spec({self.shape}, {self.dtype})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spec) and (self.shape, self.dtype) == (other.shape, other.dtype)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))


@dataclass(frozen=True)
class Given:
    """A call's arguments, with other libraries' tensors replaced by arrays.

    ``tensors`` maps the identity of an array to the tensor that it was made from.
    """

    kernel: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    tensors: Mapping[int, Any]

    def call_result(self, result: Any) -> Any:
        """The kernel's results as PyTorch tensors if any argument is one, else as arrays."""
        like = next((tensor for tensor in self.tensors.values() if _is_torch(tensor)), None)
        if like is None or result is None:
            return result
        if isinstance(result, tuple):
            return tuple(_as_torch(self.kernel, array, like) for array in result)
        return _as_torch(self.kernel, result, like)

    def target(self, name: str, array: Array, others: Sequence[Array]) -> Target:
        """The target of the kernel's writes to an argument; KernelError if the caller would not see them."""
        value = self.tensors.get(id(array), array)
        shared = value is array or np.may_share_memory(_to_array(value), array)
        problem = None
        if not array.flags.writeable:
            problem = "is read-only"
        elif not shared and not hasattr(value, "copy_"):
            problem = f"gives only a copy of its numbers, as a {_type_name(value)} does"
        elif _overlaps_itself(array):
            problem = "has elements that share memory, as a broadcast or expanded array has"
        elif any(_share_memory(array, other) for other in others):
            problem = "shares memory with another argument"
        if problem is not None:
            raise KernelError(
                f"kernel {self.kernel} writes its argument {name!r}, and what was given for it {problem}",
                hint="give it an array of its own, for example a copy",
            )
        return Target(array, None if shared else value)


@dataclass(frozen=True)
class Target:
    """An argument that a kernel writes: the caller's array, and a tensor that doesn't share its memory (on a GPU)."""

    array: Array
    apart: Any

    def fill(self, values: Array) -> None:
        """Copy the kernel's values of its argument to the caller's memory."""
        np.copyto(self.array, values, casting="unsafe")
        if self.apart is not None:
            self.apart.detach().copy_(_from_numpy(_library(self.apart), self.array))


def host_arguments(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Given:
    """The arguments of a call in the simulator's form. Raises KernelError for a tensor that can't be read."""
    kernel = function.__name__
    names = [*inspect.signature(function).parameters]
    tensors: dict[int, Any] = {}

    def host(name: str, value: Any) -> Any:
        if not _is_tensor(value):
            return value
        array = _read(kernel, name, value)
        tensors[id(array)] = value
        keep.append(array)
        return array

    keep: list[Array] = []  # so that no two have one identity
    called = tuple(
        map_tensors(host, names[i] if i < len(names) else f"argument {i}", arg) for i, arg in enumerate(args)
    )
    return Given(kernel, called, {name: map_tensors(host, name, value) for name, value in kwargs.items()}, tensors)


def map_tensors(function: Callable[[str, Any], Any], name: str, value: Any) -> Any:
    """``function(name, value)``; of a list, tuple or dict that holds tensors, of each item."""
    if type(value) in (list, tuple) and _holds_tensors(value):
        return type(value)(map_tensors(function, f"{name}[{i}]", item) for i, item in enumerate(value))
    if type(value) is dict and _holds_tensors(value.values()):
        return {key: map_tensors(function, f"{name}[{key!r}]", item) for key, item in value.items()}
    return function(name, value)


def device_dtype(dtype: object, what: str) -> DType:
    """The format of a tensor argument on the device; KernelError that names the argument if there is none."""
    try:
        return as_dtype(dtype)
    except TypeError as error:
        nearest = _NEAREST.get(str(getattr(dtype, "name", dtype)))
        way_out = f"; convert it to {nearest}, for example" if nearest else ""
        raise KernelError(f"{what}: {error}{way_out}", hint="convert it on the host") from None


def list_hint(arguments: Mapping[str, Any], message: str) -> str | None:
    """A hint if a kernel failed on a list of numbers that was meant to be a tensor."""
    for name, value in arguments.items():
        kind = type(value).__name__
        if isinstance(value, (list, tuple)) and value and _are_numbers(value) and kind in message:
            return f"argument {name!r} is a {kind}, which is no tensor: give an array, np.asarray({name}, np.float32)"
    return None


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(
        _are_numbers(v) if isinstance(v, (list, tuple)) else isinstance(v, (int, float, np.number)) for v in values
    )


def _holds_tensors(values: Any) -> bool:
    """True if any item, at any depth, is an array, a ``Spec``, or converts to an array."""
    for item in values:
        nested = item.values() if type(item) is dict else item
        if type(item) in (list, tuple, dict) and _holds_tensors(nested):
            return True
        if isinstance(item, (np.ndarray, Spec)) or _is_tensor(item):
            return True
    return False


def _is_tensor(value: Any) -> bool:
    """True if this is another library's tensor."""
    if isinstance(value, (np.ndarray, np.generic, View, type)) or not hasattr(value, "shape"):
        return False
    return _is_torch(value) or hasattr(value, "__array__") or hasattr(value, "__dlpack__")


def _is_torch(value: Any) -> bool:
    return all(hasattr(value, method) for method in ("detach", "cpu", "numpy"))


def _read(kernel: str, name: str, value: Any) -> Array:
    try:
        return _to_array(value)
    except KernelError:
        raise
    except Exception as error:
        raise KernelError(
            f"kernel {kernel}: argument {name!r}, a {_type_name(value)} of dtype {getattr(value, 'dtype', 'unknown')}, "
            f"can't be read as an array: {type(error).__name__}: {error}",
            hint=f"convert it to a numpy array, or a dense PyTorch tensor with data, of {', '.join(DTYPES)}",
        ) from error


def _to_array(value: Any) -> Array:
    """A tensor as an array, which shares its memory if possible."""
    if not _is_torch(value):
        return np.asarray(value) if hasattr(value, "__array__") else np.from_dlpack(value)
    plain = value.detach().cpu()
    for resolve in ("resolve_conj", "resolve_neg"):
        plain = getattr(plain, resolve)() if hasattr(plain, resolve) else plain
    name = str(plain.dtype).rpartition(".")[2]
    if name not in _OF_NAME:
        return np.asarray(plain.numpy())
    dtype, bits = _OF_NAME[name]
    library = _library(value)
    if library is not None:
        return np.asarray(plain.view(getattr(library, bits)).numpy().view(dtype))
    return np.asarray((plain.float() if hasattr(plain, "float") else plain).numpy()).astype(dtype, copy=False)


def _as_torch(kernel: str, array: Array, like: Any) -> Any:
    """An array as a tensor of the library, and on the device, of ``like``."""
    library = _library(like)
    if library is None:
        return array
    try:
        made = _from_numpy(library, array)
    except (TypeError, AttributeError) as error:
        raise KernelError(
            f"kernel {kernel} returned {array.dtype}, which the caller's tensors can't hold: {error}",
            hint="call it with numpy arrays to get numpy arrays",
        ) from None
    device = getattr(like, "device", "cpu")
    return made if str(device) == "cpu" else made.to(device)


def _from_numpy(library: Any, array: Array) -> Any:
    if array.dtype not in _NARROW:
        return library.from_numpy(array)
    name, bits = _NARROW[array.dtype]
    return library.from_numpy(np.ascontiguousarray(array).view(bits)).view(getattr(library, name))


def _library(value: Any) -> ModuleType | None:
    """The module that makes tensors of this kind, torch."""
    for kind in type(value).__mro__:
        module = sys.modules.get(kind.__module__.partition(".")[0])
        if hasattr(module, "from_numpy"):
            return module
    return sys.modules.get("torch")


def _type_name(value: Any) -> str:
    return f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"


def _share_memory(one: Array, other: Array) -> bool:
    if not np.may_share_memory(one, other):
        return False
    try:
        return np.shares_memory(one, other, max_work=_MOST_WORK)
    except np.exceptions.TooHardError:
        return True


def _overlaps_itself(array: Array) -> bool:
    """True if two elements may share bytes: each stride must step over the span of the shorter ones."""
    span = array.itemsize
    for stride, size in sorted((abs(stride), size) for stride, size in zip(array.strides, array.shape, strict=True)):
        if size > 1 and stride < span:
            return True
        span += (size - 1) * stride if size > 1 else 0
    return False


def cache_key(value: Any) -> Hashable:
    """Arguments with equal keys give the same program."""
    if isinstance(value, (np.ndarray, Spec)):
        return "tensor", tuple(value.shape), str(value.dtype)
    if isinstance(value, (list, tuple)):
        return type(value), tuple(cache_key(item) for item in value)
    if isinstance(value, dict):
        return dict, tuple((key, cache_key(item)) for key, item in value.items())
    if isinstance(value, NKIObject):
        return type(value), tuple((key, cache_key(item)) for key, item in vars(value).items())
    if isinstance(value, float):
        return float, repr(value)  # 0.0 and -0.0 are equal, but not the same
    return (type(value), value) if isinstance(value, Hashable) else (type(value), id(value), repr(value))

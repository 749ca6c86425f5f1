"""A stand-in for PyTorch: the part of ``torch.Tensor`` that handing a tensor to a kernel needs, over numpy arrays.

As PyTorch does, it refuses ``numpy()`` for a tensor that needs a gradient, that is not on the CPU, or whose dtype
numpy lacks. ``installed`` puts it in the place of the module ``torch``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Dtype:
    """``torch.float32`` and so on: it prints as that."""

    name: str
    numpy: Any

    def __repr__(self) -> str:
        return f"torch.{self.name}"


_KNOWN_TO_NUMPY = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32")
DTYPES = {name: Dtype(name, np.dtype(name)) for name in _KNOWN_TO_NUMPY} | {
    "bool": Dtype("bool", np.dtype(np.bool_)),
    "bfloat16": Dtype("bfloat16", np.dtype(ml_dtypes.bfloat16)),
    "float8_e4m3fn": Dtype("float8_e4m3fn", np.dtype(ml_dtypes.float8_e4m3fn)),
    "float8_e5m2": Dtype("float8_e5m2", np.dtype(ml_dtypes.float8_e5m2)),
}
_OF_NUMPY = {dtype.numpy: dtype for dtype in DTYPES.values()}
_NOT_NUMPY_S = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


class Tensor:
    """A tensor on ``held``."""

    def __init__(self, held: Array, *, requires_grad: bool = False, device: str = "cpu") -> None:
        self.held = held
        self.requires_grad = requires_grad
        self.device = device

    @property
    def dtype(self) -> Dtype:
        return _OF_NUMPY[self.held.dtype]

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.held.shape
        return shape

    @property
    def T(self) -> Tensor:  # noqa: N802 - torch's name
        return Tensor(self.held.T)

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor(self.held[key])

    def detach(self) -> Tensor:
        return Tensor(self.held, device=self.device)

    def cpu(self) -> Tensor:
        if self.device == "cpu":
            return self
        return Tensor(self.held.copy(), requires_grad=self.requires_grad)

    def to(self, device: str) -> Tensor:
        return Tensor(self.held.copy(), device=device)

    def clone(self) -> Tensor:
        return Tensor(self.held.copy())

    def expand(self, *shape: int) -> Tensor:
        strides = (0, *self.held.strides[1:])
        return Tensor(np.lib.stride_tricks.as_strided(self.held, shape, strides))

    def view(self, dtype: Dtype) -> Tensor:
        return Tensor(self.held.view(dtype.numpy), device=self.device)

    def copy_(self, other: Tensor) -> Tensor:
        self.held[...] = other.held
        return self

    def numpy(self) -> Array:
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        if self.device != "cpu":
            raise TypeError(f"can't convert {self.device} device type tensor to numpy.")
        if self.dtype.name in _NOT_NUMPY_S:
            raise TypeError("Got unsupported ScalarType")
        return self.held


def from_numpy(array: Array) -> Tensor:
    """A tensor on the memory of an array; TypeError for what PyTorch has no dtype for."""
    known = _OF_NUMPY.get(array.dtype)
    if known is None or known.name in _NOT_NUMPY_S:
        raise TypeError(f"can't convert np.ndarray of type {array.dtype}.")
    return Tensor(array)


def tensor(values: Any, dtype: str = "float32") -> Tensor:
    """A new tensor of a dtype, by name."""
    return Tensor(np.array(values).astype(DTYPES[dtype].numpy))


@contextmanager
def installed() -> Iterator[ModuleType]:
    """``import torch`` means this stand-in."""
    module = ModuleType("torch")
    module.__dict__.update(DTYPES, Tensor=Tensor, from_numpy=from_numpy, tensor=tensor)
    before, of_class = sys.modules.get("torch"), Tensor.__module__
    sys.modules["torch"], Tensor.__module__ = module, "torch"
    try:
        yield module
    finally:
        Tensor.__module__ = of_class
        del sys.modules["torch"]
        if before is not None:
            sys.modules["torch"] = before

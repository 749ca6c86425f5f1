"""Arrays as PyTorch's tensors and back, for the routes that use PyTorch."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from trnrt.backends import Array
from trnrt.errors import BackendError
from trnrt.nki.machine.dtypes import as_dtype


def import_torch() -> tuple[ModuleType, ModuleType]:
    """PyTorch and torch-neuronx. After the environment is set: importing them may start the runtime."""
    try:
        import torch
        import torch_neuronx
    except Exception as error:
        raise BackendError(
            f"torch_neuronx can't be imported: {type(error).__name__}: {error}", hint="trnrt doctor looks for the cause"
        ) from error
    return torch, torch_neuronx


def as_tensor(torch: Any, array: Array) -> Any:
    """An array as a tensor; bfloat16, which torch takes from no array, by its bits."""
    array = np.require(array, requirements=["C", "W"])
    if array.dtype == as_dtype("bfloat16").numpy:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise BackendError(f"torch has no tensors of {array.dtype}: {error}") from None


def as_array(torch: Any, tensor: Any) -> Array:
    """A tensor of the CPU as an array."""
    if tensor.dtype == torch.bfloat16:
        bits: Array = tensor.view(torch.int16).numpy()
        return bits.view(as_dtype("bfloat16").numpy)
    array: Array = tensor.numpy()
    return array

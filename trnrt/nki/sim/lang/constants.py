"""Constants of ``nki.language`` that are part of the program, and printing from the device."""

from __future__ import annotations

from operator import index
from pathlib import Path

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.dtypes import Array, as_dtype, uint8
from trnrt.nki.machine.program import Engine, MemoryRegion
from trnrt.nki.sim.instructions.printing import DEVICE_PRINT
from trnrt.nki.sim.isa import dma_copy
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import active_tracer

__all__ = ["device_print", "shared_constant", "shared_identity_matrix"]


def shared_constant(constant: Array | str | Path) -> NkiTensor:
    """A tensor in ``nl.shared_hbm`` with the contents of a numpy array or a ``.npy`` file when the kernel starts."""
    tracer = active_tracer("nl.shared_constant")
    array = _read(constant) if isinstance(constant, (str, Path)) else constant
    if not isinstance(array, np.ndarray):
        raise KernelError(f"nl.shared_constant: a {type(constant).__name__}; it must be a numpy array or a .npy file")
    if array.ndim == 0 or array.size == 0:
        raise KernelError(f"nl.shared_constant: shape {array.shape}; a tensor has a dimension, and none of 0")
    try:
        dtype = as_dtype(array.dtype)
    except TypeError as error:
        raise KernelError(f"nl.shared_constant: {error}", hint="convert it on the host") from None
    return tracer.initial_tensor("", dtype, MemoryRegion.shared_hbm, array.copy())


def _read(path: str | Path) -> Array:
    """The array in a .npy file; nothing in it is executed."""
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise KernelError(f"nl.shared_constant: {path} can't be read: {error}") from None
    if not isinstance(found, np.ndarray):
        raise KernelError(f"nl.shared_constant: {path} holds several arrays; it must be a .npy file")
    return found


def shared_identity_matrix(n: int, dtype: object = uint8, dst: NkiTensor | None = None) -> NkiTensor:
    """An identity matrix of n rows in SBUF: a new tile, or ``dst``. Those of a size and dtype share their constant."""
    tracer = active_tracer("nl.shared_identity_matrix")
    try:
        rows, element = index(n), as_dtype(dtype)
    except TypeError as error:
        raise KernelError(f"nl.shared_identity_matrix: {error}") from None
    if rows < 1:
        raise KernelError(f"nl.shared_identity_matrix: n={rows}; it must be at least 1")
    if dst is None:
        dst = tracer.allocate((rows, rows), element, MemoryRegion.sbuf, "", None)
    matrix = np.eye(rows, dtype=np.float32).astype(element.numpy)
    identity = tracer.initial_tensor(f"identity matrix of {rows}", element, MemoryRegion.shared_hbm, matrix)
    dma_copy(dst=dst, src=identity)
    return dst


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Print a tile of SBUF, or a tensor of HBM, to standard output when the program runs."""
    tracer = active_tracer("nl.device_print")
    if not isinstance(print_prefix, str):
        raise KernelError(
            f"device_print: print_prefix is a {type(print_prefix).__name__}; it must be a constant string"
        )
    tracer.emit(DEVICE_PRINT, {"tensor": tensor, "print_prefix": print_prefix}, Engine.unknown, None)

"""New tensors: unwritten, of one number, of constants, of random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.blocks import Blocks, allocate, as_allocation
from trnrt.nki.legacy.indexing import regions
from trnrt.nki.legacy.lang.common import named_format, require_tile
from trnrt.nki.legacy.session import active_session
from trnrt.nki.legacy.tiles import SCALARS, Pending, Tile
from trnrt.nki.machine.dtypes import as_dtype, int32
from trnrt.nki.machine.program import MemoryRegion
from trnrt.nki.sim import isa
from trnrt.nki.sim.lang import creation
from trnrt.nki.sim.lang.common import copy_to_sbuf, tile
from trnrt.nki.sim.trace import active_tracer

__all__ = [
    "empty_like",
    "full",
    "ndarray",
    "ones",
    "rand",
    "random_seed",
    "shared_constant",
    "shared_identity_matrix",
    "zeros",
    "zeros_like",
]


def ndarray(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "", **_: Any) -> Tile | Blocks:
    """A new tensor, unwritten: it reads as NaN. In SBUF by default; ``nl.par_dim`` marks the partitions' dimension."""
    return allocate(shape, named_format(dtype), buffer, name)


def full(shape: Any, fill_value: Any, dtype: Any, *, buffer: Any = None, name: str = "", **_: Any) -> Tile | Blocks:
    """A new tensor of one number: a memset of each tile. Zeros of PSUM are written only if something reads them:
    matrix products that are added to a new tile overwrite it."""
    if not isinstance(fill_value, SCALARS):
        raise KernelError(f"nl.full: fill_value is a {type(fill_value).__name__}; it must be a number")
    if as_allocation(buffer).place is not None:
        raise KernelError(
            "nl.full: a tensor with addresses of its own, and a first value; only unwritten ones have addresses",
            hint="make it with nl.ndarray(..., buffer=...), and assign: t[...] = number",
        )
    made = allocate(shape, named_format(dtype), buffer, name)
    session = active_session("nl.full")
    for one in made.tiles if isinstance(made, Blocks) else [made]:
        if one.buffer is MemoryRegion.psum and fill_value == 0:
            session.promise_zeros(one.target)
        elif one.on_chip:
            isa.memset(one.target, fill_value)  # type: ignore[arg-type]  # numpy's numbers behave as Python's
        else:
            raise KernelError(
                f"nl.full: a new tensor {one.shape} in HBM with a first value; no instruction fills HBM",
                hint="make it with nl.ndarray, and nl.store(tensor[...], value=number) tile by tile",
            )
    return made


def zeros(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "", **_: Any) -> Tile | Blocks:
    """A new tensor of zeros (see ``full``)."""
    return full(shape, 0, dtype, buffer=buffer, name=name)


def ones(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "", **_: Any) -> Tile | Blocks:
    """A new tensor of ones (see ``full``)."""
    return full(shape, 1, dtype, buffer=buffer, name=name)


def zeros_like(a: Any, dtype: Any = None, *, buffer: Any = None, name: str = "", **_: Any) -> Tile | Blocks:
    """Zeros in the shape of ``a``."""
    return full(a.shape, 0, _or(dtype, a.format), buffer=buffer or a.buffer, name=name)


def empty_like(a: Any, dtype: Any = None, *, buffer: Any = None, name: str = "", **_: Any) -> Tile | Blocks:
    """An unwritten tensor in the shape of ``a``."""
    return ndarray(a.shape, _or(dtype, a.format), buffer=buffer or a.buffer, name=name)


def _or(dtype: Any, default: Any) -> Any:
    return default if dtype is None else dtype


def rand(shape: Any, dtype: Any = np.float32, **_: Any) -> Pending:
    """A tile of random numbers from 0 to 1, evenly distributed: random bits, times a power of 2."""
    sizes, wanted = tuple(int(size) for size in shape), named_format(dtype)
    return Pending(sizes, wanted, lambda dst: isa.tensor_copy(dst, creation.rand(dst.shape, dst.dtype)), ())


def random_seed(seed: Any, *, mask: Any = None, **_: Any) -> None:
    """Seed the generator of random numbers with an integer, or the first element of a tile: set_rng_seed."""
    session = active_session("nl.random_seed")
    if not isinstance(seed, SCALARS):
        seed = require_tile("nl.random_seed", seed, "seed")
    session.flush()
    if not regions(mask, (1, 1) if not isinstance(seed, Tile) else seed.shape):
        return
    if isinstance(seed, Tile):
        number = copy_to_sbuf(seed.narrow(((0, 1),) * seed.ndim).window).reshape((1, 1))
    else:
        number = tile((1, 1), int32)
        isa.memset(number, int(seed))
    isa.set_rng_seed(number)


def shared_constant(constant: Any, dtype: Any = None, **_: Any) -> Tile:
    """A tensor in HBM that holds an array when the kernel starts, in ``dtype``: a part of the program."""
    array = np.asarray(constant)
    if array.ndim == 0 or array.size == 0:
        raise KernelError(f"nl.shared_constant: shape {array.shape}; a tensor has a dimension, and none of 0")
    tracer = active_tracer("nl.shared_constant")
    try:
        wanted = as_dtype(array.dtype) if dtype is None else named_format(dtype)
    except TypeError as error:
        raise KernelError(f"nl.shared_constant: {error}", hint="name a format, as dtype=nl.int32") from None
    return Tile(tracer.initial_tensor("", wanted, MemoryRegion.shared_hbm, array.astype(wanted.numpy)))


def shared_identity_matrix(n: int, dtype: Any = np.uint8, **_: Any) -> Tile:
    """An identity matrix of n rows in HBM. Those of a size and number format are the same."""
    wanted, size = named_format(dtype), int(n)
    if size < 1:
        raise KernelError(f"nl.shared_identity_matrix: n={size}; it must be at least 1")
    array = np.eye(size, dtype=np.float32).astype(wanted.numpy)
    tracer = active_tracer("nl.shared_identity_matrix")
    return Tile(tracer.initial_tensor(f"identity matrix of {size}", wanted, MemoryRegion.shared_hbm, array))

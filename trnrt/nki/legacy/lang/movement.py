"""Between HBM and SBUF, copies, other shapes of the same elements, gathers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.indexing import regions
from trnrt.nki.legacy.lang.common import as_operator, named_format, require_tile, result_format
from trnrt.nki.legacy.session import active_session
from trnrt.nki.legacy.tiles import FUNCTIONS, SCALARS, Pending, Tile, on_chip_shape
from trnrt.nki.legacy.windows import repeat
from trnrt.nki.machine.dtypes import tfloat32, uint32
from trnrt.nki.machine.operators import OPERATORS
from trnrt.nki.machine.program import MemoryRegion
from trnrt.nki.sim import isa
from trnrt.nki.sim.lang import common as today
from trnrt.nki.sim.lang import constants
from trnrt.nki.sim.tensor import NkiTensor

__all__ = [
    "atomic_rmw",
    "broadcast_to",
    "copy",
    "device_print",
    "expand_dims",
    "gather_flattened",
    "load",
    "load_transpose2d",
    "static_cast",
    "store",
]


def load(src: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Pending:
    """A tensor of HBM as a tile in SBUF, its first dimension along the partitions: dma_copy.

    The elements where the mask is false stay unwritten.
    """
    src = require_hbm("nl.load", src, "src")
    return Pending(
        on_chip_shape(src.shape),
        result_format(dtype, src),
        isa.dma_copy,
        (src,),
        mask=mask,
        iteration=src.shape,
        bounds_of=lambda bounds: bounds if len(bounds) > 1 else (*bounds, (0, 1)),
    )


def load_transpose2d(src: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Pending:
    """A 2-D tensor of HBM, transposed, as a tile in SBUF: a dma_copy, element by element."""
    src = require_hbm("nl.load_transpose2d", src, "src")
    if src.ndim != 2:
        raise KernelError(f"nl.load_transpose2d: src has {src.ndim} dimensions, {src.shape}; it must have 2")
    if src.is_indirect:
        raise KernelError(
            "nl.load_transpose2d: src has indices that only the device knows",
            hint="nl.load the rows, and nl.transpose the tile",
        )
    return Pending(
        (src.shape[1], src.shape[0]),
        result_format(dtype, src),
        lambda dst, a: isa.dma_copy(dst, a.permute((1, 0))),
        (src,),
        mask=mask,
        iteration=src.shape,
        bounds_of=lambda bounds: (bounds[1], bounds[0]),
    )


def store(dst: Any, value: Any, *, mask: Any = None, **_: Any) -> None:
    """A tile, or a number, into a tensor of HBM: dma_copy; of a tile in PSUM a copy in SBUF, as DMA doesn't reach
    PSUM."""
    session = active_session("nl.store")
    dst = require_hbm("nl.store", dst, "dst")
    if isinstance(value, SCALARS):
        value = _fill(dst, value)
    value = require_tile("nl.store", value, "value")
    session.flush()
    found = regions(mask, dst.shape)
    if not found:
        return
    if value.buffer is MemoryRegion.psum:
        value = copy(value)
        session.flush()
    if found == [None]:
        isa.dma_copy(dst.target, _in_shape_of(dst, value.window))
        return
    for bounds in found:
        assert bounds is not None
        part = value.narrow(bounds) if value.ndim == dst.ndim else value.narrow(bounds[:1])
        goal = dst.narrow(bounds)
        isa.dma_copy(goal.target, _in_shape_of(goal, part.window))


def _in_shape_of(dst: Tile, value: NkiTensor) -> NkiTensor:
    """A tile to store, with its sizes of 1 repeated; KernelError if it doesn't fit."""
    if dst.shape == value.shape or dst.window.size == value.size:
        return value
    if value.shape[0] == dst.shape[0] and (value.free_size == 1 or value.ndim == dst.ndim):
        return repeat(value, dst.shape)
    raise KernelError(f"nl.store: a tile of shape {value.shape} into {dst.shape} of HBM; sizes must agree")


def _fill(dst: Tile, number: Any) -> Pending:
    """A tile of one number, of the shape of ``dst``."""
    return Pending(on_chip_shape(dst.shape), dst.format, lambda made: isa.memset(made, number), ())


def copy(src: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Pending:
    """A copy of a tile in SBUF: tensor_copy."""
    src = require_tile("nl.copy", src, "src")
    return Pending(src.shape, result_format(dtype, src), isa.tensor_copy, (src,), mask=mask, converts=True)


def broadcast_to(src: Any, *, shape: Sequence[int], **_: Any) -> Tile:
    """``src`` with its dimensions of size 1 repeated: free ones as a view, without an instruction;
    a single partition in each partition of a new tile, by a DMA whose source has a stride of 0."""
    if not isinstance(src, Tile):
        raise KernelError(f"nl.broadcast_to: src is a {type(src).__name__}; it must be a tile")
    sizes = tuple(int(size) for size in shape)
    if src.shape == sizes:
        return src
    if not src.on_chip or src.shape[:1] == sizes[:1]:
        return Tile(repeat(src.window, sizes))
    if src.ndim != len(sizes) or any(a not in (1, b) for a, b in zip(src.shape, sizes, strict=True)):
        raise KernelError(f"nl.broadcast_to: src has shape {src.shape}; only sizes of 1 can be repeated to {sizes}")

    def emit(dst: NkiTensor, a: NkiTensor) -> None:
        row = repeat(today.copy_to_sbuf(a), (1, *dst.shape[1:]))
        made = dst if dst.buffer is MemoryRegion.sbuf else today.tile(dst.shape, dst.dtype)
        isa.dma_copy(made, replace(row, shape=dst.shape, strides=(0, *row.strides[1:])))
        if made is not dst:
            isa.tensor_copy(dst, made)

    return Pending(sizes, src.format, emit, (src,))


def expand_dims(data: Any, axis: int | Sequence[int]) -> Tile:
    """A view with a dimension of size 1 at each ``axis`` of its shape; on chip the partitions stay the first."""
    if not isinstance(data, Tile):
        raise KernelError(f"nl.expand_dims: data is a {type(data).__name__}; it must be a tile")
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    view, ndim = data.window, data.ndim + len(axes)
    for one in sorted(int(a) % ndim if -ndim <= a < ndim else ndim for a in axes):
        view = view.expand_dim(one)
    return Tile(view)


def static_cast(input_data: Any, dtype: Any) -> Any:
    """A copy of a tile in another dtype; an array or a number of the host is cast by numpy."""
    if isinstance(input_data, Tile):
        return copy(input_data, dtype=dtype)
    wanted = named_format(dtype)
    if wanted is tfloat32:
        raise KernelError("nl.static_cast: numpy has no tfloat32; cast a tile, inside a kernel")
    array = np.asarray(input_data).astype(wanted.numpy)
    return array if isinstance(input_data, np.ndarray) else array[()]


def gather_flattened(data: Any, indices: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Pending:
    """``data[p, indices[p, ...]]`` in each partition, the free dimensions of ``data`` flattened: nc_n_gather.

    Indices of another integer format are copied as uint32 first.
    """
    what = "nl.gather_flattened"
    data, indices = require_tile(what, data, "data"), require_tile(what, indices, "indices")
    if indices.format.is_float:
        raise KernelError(f"{what}: indices are {indices.format}; they must be integers, of uint32 if possible")
    if data.shape[0] != indices.shape[0]:
        raise KernelError(f"{what}: data {data.shape}, indices {indices.shape}; they must have the same partitions")
    rows = data.expand_dims(1) if data.ndim == indices.ndim else data  # another rank: a mask cuts its partitions only

    def emit(dst: NkiTensor, row: NkiTensor, at: NkiTensor) -> None:
        made = dst if (dst.buffer, dst.dtype) == (MemoryRegion.sbuf, row.dtype) else today.tile(dst.shape, row.dtype)
        isa.nc_n_gather(made, today.copy_to_sbuf(row), today.copy_to_sbuf(today.cast(at, uint32)))
        if made is not dst:
            isa.tensor_copy(dst, made)

    return Pending(indices.shape, result_format(dtype, data), emit, (rows, indices), mask=mask)


def atomic_rmw(dst: Any, value: Any, op: Any, *, mask: Any = None, **_: Any) -> None:
    """``dst[rows] += value`` in HBM, for rows that a tile of indices selects: dma_compute.

    A row may be selected once: the DMA reads all rows before it writes them. KernelError when the program runs, if not.
    """
    what = "nl.atomic_rmw"
    session, dst = active_session(what), require_hbm(what, dst, "dst")
    if as_operator(op) is not OPERATORS["add"]:
        raise KernelError(f"{what}: op={op!r}; only np.add is there")
    if not dst.is_indirect:
        raise KernelError(
            f"{what}: dst is {dst.describe()}; it must be rows that a tile of indices selects, as t[indices, ix]"
        )
    if isinstance(value, SCALARS):
        value = _fill(dst, value)
    value = require_tile(what, value, "value")
    session.flush()
    if value.buffer is MemoryRegion.psum:
        value = copy(value)
        session.flush()
    for bounds in regions(mask, dst.shape):
        goal, addend = (dst, value) if bounds is None else (dst.narrow(bounds), value.narrow(bounds))
        isa.dma_compute(goal.target, [goal.target, addend.window], OPERATORS["add"])


def device_print(prefix: str, x: Any, *, mask: Any = None, **_: Any) -> None:
    """Print a tile, or a tensor of HBM, when the program runs; with a mask the rectangles where it holds."""
    session = active_session("nl.device_print")
    if not isinstance(x, Tile):
        raise KernelError(f"nl.device_print: x is a {type(x).__name__}; it must be a tile or a tensor")
    x = Tile(x.window) if isinstance(x, Pending) else x
    session.flush()
    for bounds in regions(mask, x.shape):
        part = x.window if bounds is None else x.narrow(bounds).window
        constants.device_print(prefix, today.copy_to_sbuf(part) if part.on_chip else part)


def require_hbm(what: str, value: Any, argument: str) -> Tile:
    """``value``, if it is a tensor in HBM."""
    if not isinstance(value, Tile):
        raise KernelError(f"{what}: {argument} is a {type(value).__name__}; it must be a tensor in HBM")
    if value.on_chip:
        raise KernelError(f"{what}: {argument} is in {value.buffer.value}; it must be in HBM")
    return value


FUNCTIONS.update(copy=copy, broadcast_to=broadcast_to, expand_dims=expand_dims)

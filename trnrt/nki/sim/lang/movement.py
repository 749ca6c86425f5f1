"""Between HBM and SBUF, other views of a tile, copies that repeat elements, gathers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import index

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.dtypes import uint32
from trnrt.nki.machine.program import Register
from trnrt.nki.sim import isa
from trnrt.nki.sim.lang.common import (
    cast,
    copy_tile,
    copy_to_sbuf,
    require_tensor,
    require_tile,
    result_dtype,
    tile,
)
from trnrt.nki.sim.tensor import DynamicSlice, NkiTensor

__all__ = ["broadcast_to", "ds", "expand_dims", "gather_flattened", "load", "load_transpose2d", "store"]


def load(src: NkiTensor, dtype: object = None) -> NkiTensor:
    """A tensor of HBM as a new tile in SBUF of its shape: dma_copy, which converts to ``dtype``."""
    src = _require_hbm("load", src, "src")
    dst = tile(src.shape, result_dtype("load", dtype, src.dtype), what="nl.load")
    isa.dma_copy(dst, src)
    return dst


def load_transpose2d(src: NkiTensor, dtype: object = None) -> NkiTensor:
    """A 2-D tensor of HBM, transposed, as a new tile in SBUF.

    dma_copy from the transposed view, element by element: it takes any dtype and shape on every target.
    """
    src = _require_hbm("load_transpose2d", src, "src")
    if src.ndim != 2:
        raise KernelError(f"nl.load_transpose2d: src has {src.ndim} dimensions, {src.shape}; it must have 2")
    wanted = result_dtype("load_transpose2d", dtype, src.dtype)
    dst = tile((src.shape[1], src.shape[0]), wanted, what="nl.load_transpose2d")
    isa.dma_copy(dst, src.permute((1, 0)))
    return dst


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """A tile of SBUF into a tensor of HBM: dma_copy, which converts to its dtype. DMA can't reach PSUM."""
    isa.dma_copy(_require_hbm("store", dst, "dst"), require_tile("store", value, "value"))


def expand_dims(x: NkiTensor, axis: int) -> NkiTensor:
    """A view of ``x`` with a dimension of size 1 at ``axis``; the partition dimension stays the first."""
    return require_tensor("expand_dims", x).expand_dim(axis)


def broadcast_to(x: NkiTensor, shape: Sequence[int], dtype: object = None) -> NkiTensor:
    """``x`` in a shape of as many dimensions, those of size 1 repeated; ``x`` itself if there are none.

    Free dimensions by a tensor_copy with stride 0, a single partition to many by such a dma_copy.
    """
    x = require_tile("broadcast_to", x)
    sizes, wanted = tuple(index(size) for size in shape), result_dtype("broadcast_to", dtype, x.dtype)
    if x.ndim != len(sizes) or any(a not in (1, b) for a, b in zip(x.shape, sizes, strict=True)):
        raise KernelError(f"nl.broadcast_to: x is {x.shape}; only sizes of 1 can be repeated, which {sizes} is not")
    if x.shape == sizes:
        return cast(x, wanted)
    if x.shape[0] == sizes[0]:
        return copy_tile(repeat_tile(x, sizes), wanted)
    return _all_partitions(repeat_tile(copy_to_sbuf(x), (1, *sizes[1:])), sizes, wanted)


def repeat_tile(x: NkiTensor, shape: Sequence[int]) -> NkiTensor:
    """``x`` in ``shape``: free dimensions as a view that costs nothing, a partition by copies in all partitions."""
    if x.shape[0] != shape[0]:
        x = _all_partitions(copy_to_sbuf(x), (shape[0], *x.shape[1:]), x.dtype)
    for dim in range(1, x.ndim):
        if x.shape[dim] != shape[dim]:
            x = x.broadcast(dim, shape[dim])
    return x


def gather_flattened(data: NkiTensor, indices: NkiTensor, axis: int = 0, dtype: object = None) -> NkiTensor:
    """``data[p, indices[p, ...]]`` in each partition, the free dimensions of ``data`` flattened: nc_n_gather.

    Indices of another integer dtype are copied as uint32 first. ``axis`` must be 0, the partitions' own.
    """
    data, indices = require_tile("gather_flattened", data, "data"), require_tile("gather_flattened", indices, "indices")
    if axis != 0:
        raise KernelError(f"nl.gather_flattened: axis={axis} is not modelled; leave it 0")
    if indices.dtype.is_float:
        raise KernelError(f"nl.gather_flattened: indices are {indices.dtype}; they must be integers")
    dst = tile(indices.shape, data.dtype)
    isa.nc_n_gather(dst, copy_to_sbuf(data), copy_to_sbuf(cast(indices, uint32)))
    return cast(dst, result_dtype("gather_flattened", dtype, data.dtype))


def ds(start: int | Register, size: int) -> slice | DynamicSlice:
    """``size`` elements from ``start`` on, as an index; ``start`` may be a register or an NkiScalar."""
    try:
        if isinstance(start, Register):
            return DynamicSlice(start, index(size))
        first = index(start)
        return slice(first, first + index(size))
    except TypeError as error:
        instead = "a start that is known at run time only is a register or an NkiScalar"
        raise KernelError(f"nl.ds: {error}; {instead}") from None


def _require_hbm(what: str, value: object, argument: str) -> NkiTensor:
    tensor = require_tensor(what, value, argument)
    if tensor.on_chip:
        raise KernelError(f"nl.{what}: {argument} is in {tensor.buffer.value}; it must be in HBM")
    return tensor


def _all_partitions(x: NkiTensor, shape: Sequence[int], dtype: object) -> NkiTensor:
    """The one partition of ``x`` in each of ``shape[0]`` partitions: a DMA with a source stride of 0."""
    dst = tile(shape, result_dtype("broadcast_to", dtype, x.dtype))
    isa.dma_copy(dst, replace(x, shape=tuple(shape), strides=(0, *x.strides[1:])))
    return dst

"""Copies, DMA, fills and transposes."""

from __future__ import annotations

from typing import Any, NoReturn

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.indexing import regions
from trnrt.nki.legacy.instructions.issuing import instruction, issue_now
from trnrt.nki.legacy.lang.common import as_operator, require_tile, result_format
from trnrt.nki.legacy.session import active_session
from trnrt.nki.legacy.tiles import Pending, Tile
from trnrt.nki.machine.operators import OPERATORS
from trnrt.nki.machine.program import Engine, MemoryRegion
from trnrt.nki.sim import isa
from trnrt.nki.sim.lang.common import copy_to_sbuf, tile
from trnrt.nki.sim.tensor import NkiTensor

__all__ = [
    "builtin_custom_op",
    "dma_copy",
    "dma_transpose",
    "memset",
    "nc_transpose",
    "tensor_copy",
    "tensor_copy_dynamic_dst",
    "tensor_copy_dynamic_src",
]

_SMALL, _LARGE = 32, 128  # the vector engine transposes up to 32 x 32, the tensor engine 128 x 128


def dma_copy(*, dst: Any, src: Any, mask: Any = None, dst_rmw_op: Any = None, **options: Any) -> None:
    """``dst = src`` between HBM and SBUF, by DMA; ``dst += src`` with ``dst_rmw_op=np.add``."""
    what = "nisa.dma_copy"
    session = active_session(what)
    for name, one in (("dst", dst), ("src", src)):
        if not isinstance(one, Tile):
            raise KernelError(f"{what}: {name} is a {type(one).__name__}; it must be a tensor or a tile")
    if dst_rmw_op is not None and as_operator(dst_rmw_op) is not OPERATORS["add"]:
        raise KernelError(f"{what}: dst_rmw_op={dst_rmw_op!r}; it must be np.add")
    target, source = (Tile(one.window) if isinstance(one, Pending) else one for one in (dst, src))
    session.flush()
    if source.buffer is MemoryRegion.psum and not target.on_chip:
        source = Tile(copy_to_sbuf(source.window))  # DMA doesn't reach PSUM; Beta 1's compiler went by SBUF
    for bounds in regions(mask, target.shape):
        part, given = target, source
        if bounds is not None:
            part = target.narrow(bounds)
            given = source.narrow(bounds) if source.ndim == target.ndim else source.narrow(bounds[:1])
        if dst_rmw_op is None:
            isa.dma_copy(part.target, given.window, **options)
        else:
            options.pop("dge_mode", None)
            isa.dma_compute(part.window, [part.window, given.window], OPERATORS["add"], **options)


@instruction
def dma_transpose(
    src: Any, *, axes: Any = None, mask: Any = None, dtype: Any = None, dge_mode: Any = None, **_: Any
) -> Pending:
    """``src`` with its first and last dimension exchanged, in SBUF, by DMA."""
    what = "nisa.dma_transpose"
    if not isinstance(src, Tile):
        raise KernelError(f"{what}: src is a {type(src).__name__}; it must be a tensor or a tile")
    order = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}.get(src.ndim)
    if order is None or (axes is not None and tuple(axes) != order):
        raise KernelError(f"{what}: axes={axes} of {src.ndim} dimensions; it takes (1, 0), (2, 1, 0) or (3, 1, 2, 0)")
    more = {} if dge_mode is None else {"dge_mode": dge_mode}

    def emit(dst: NkiTensor, a: NkiTensor) -> None:
        made = dst if dst.dtype == a.dtype else tile(dst.shape, a.dtype)
        isa.dma_transpose(made, a, order, **more)
        if made is not dst:
            isa.tensor_copy(dst, made)

    return Pending(
        tuple(src.shape[axis] for axis in order),
        result_format(dtype, src),
        emit,
        (src,),
        mask=mask,
        iteration=src.shape,
        bounds_of=lambda bounds: tuple(bounds[axis] for axis in order),
    )


@instruction
def memset(
    shape: Any, value: Any, dtype: Any, *, mask: Any = None, engine: Engine = Engine.unknown, **_: Any
) -> Pending:
    """A tile of one number in SBUF; its first dimension lies along the partitions."""
    sizes = tuple(int(size) for size in shape) if isinstance(shape, (tuple, list)) else (int(shape),)
    return Pending(sizes, result_format(dtype), lambda dst: isa.memset(dst, value, engine=engine), (), mask=mask)


@instruction
def tensor_copy(src: Any, *, mask: Any = None, dtype: Any = None, engine: Engine = Engine.unknown, **_: Any) -> Pending:
    """A copy of a tile in SBUF."""
    return _copy("nisa.tensor_copy", src, mask, dtype, engine)


@instruction
def tensor_copy_dynamic_src(
    src: Any, *, mask: Any = None, dtype: Any = None, engine: Engine = Engine.unknown, **_: Any
) -> Pending:
    """A copy of a tile from a run-time index, as in ``t[i_p, offset[0, 0] + i_f]``."""
    return _copy("nisa.tensor_copy_dynamic_src", src, mask, dtype, engine)


def _copy(what: str, src: Any, mask: Any, dtype: Any, engine: Engine) -> Pending:
    src = require_tile(what, src, "src")
    return Pending(
        src.shape,
        result_format(dtype, src),
        lambda dst, a: isa.tensor_copy(dst, a, engine=engine),
        (src,),
        mask=mask,
        converts=True,
    )


@instruction
def tensor_copy_dynamic_dst(*, dst: Any, src: Any, mask: Any = None, engine: Engine = Engine.unknown, **_: Any) -> None:
    """A copy of a tile to a run-time index, as in ``t[i_p, offset[0, 0] + i_f]``."""
    what = "nisa.tensor_copy_dynamic_dst"
    target, source = require_tile(what, dst, "dst"), require_tile(what, src, "src")
    issue_now(target, lambda made, a: isa.tensor_copy(made, a, engine=engine), (source,), mask)


@instruction
def nc_transpose(
    data: Any, *, mask: Any = None, dtype: Any = None, engine: Engine = Engine.unknown, **_: Any
) -> Pending:
    """``data.T``: in PSUM by the tensor engine, in SBUF by the vector engine (up to 32 x 32).

    With no named engine, the tensor engine, or the vector engine for a small tile in PSUM, which only that one reads.
    """
    data = require_tile("nisa.nc_transpose", data, "data")
    small = data.buffer is MemoryRegion.psum and max(data.shape[0], data.free_size) <= _SMALL
    by_vector = engine is Engine.vector or (engine is Engine.unknown and small)
    most = _SMALL if by_vector else _LARGE
    if max(data.shape[0], data.free_size) > most:
        raise KernelError(
            f"nisa.nc_transpose: data has {data.shape[0]} partitions of {data.free_size} elements; the "
            f"{'vector' if by_vector else 'tensor'} engine transposes up to {most} x {most}"
        )

    def emit(dst: NkiTensor, a: NkiTensor) -> None:
        made = dst if dst.dtype == a.dtype else tile(dst.shape, a.dtype, dst.buffer)
        isa.nc_transpose(made, a, engine=Engine.vector if by_vector else Engine.tensor)
        if made is not dst:
            isa.tensor_copy(dst, made)

    return Pending(
        (data.free_size, data.shape[0]),
        result_format(dtype, data),
        emit,
        (data,),
        buffer=MemoryRegion.sbuf if by_vector else MemoryRegion.psum,
        mask=mask,
        iteration=(data.shape[0], data.free_size),
        bounds_of=lambda bounds: (bounds[1], bounds[0]),
    )


def builtin_custom_op(*_: Any, **__: Any) -> NoReturn:
    """Refuse: it calls a library of device code."""
    raise KernelError("nisa.builtin_custom_op: it runs code of a compiled library on the GpSimd engine's cores")

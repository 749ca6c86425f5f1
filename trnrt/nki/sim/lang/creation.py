"""Tensors with contents: constants and random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.dtypes import as_dtype, uint16
from trnrt.nki.machine.operators import OPERATORS
from trnrt.nki.machine.program import MemoryRegion
from trnrt.nki.sim import isa
from trnrt.nki.sim.lang.common import SCALARS, Scalar, require_tensor, tile
from trnrt.nki.sim.lang.packed import LEFT_OUT
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import active_tracer

__all__ = ["empty_like", "full", "ndarray", "ones", "rand", "random_seed", "zeros", "zeros_like"]

_FILL_COLUMNS = 2048  # elements per partition of the tile that fills a tensor in HBM
_RANDOM_BITS = 16
_RAND2_GENERATION = 4  # the first that has nisa.rand2


def ndarray(
    shape: Sequence[int],
    dtype: object,
    buffer: MemoryRegion = MemoryRegion.sbuf,
    name: str = "",
    address: tuple[int, int] | None = None,
) -> NkiTensor:
    """A new tensor. Its contents are undefined until written (they read as NaN).

    ``address``: ``(partition, byte)`` of an on-chip tensor; by default the allocator chooses.
    """
    return _allocate("ndarray", shape, dtype, buffer, name, address)


def zeros(shape: Sequence[int], dtype: object, buffer: MemoryRegion = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    """A new tensor of zeros (see ``full``)."""
    return _make_filled("zeros", shape, 0, dtype, buffer, name)


def ones(shape: Sequence[int], dtype: object, buffer: MemoryRegion = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    """A new tensor of ones (see ``full``)."""
    return _make_filled("ones", shape, 1, dtype, buffer, name)


def full(
    shape: Sequence[int],
    fill_value: Scalar,
    dtype: object,
    buffer: MemoryRegion = MemoryRegion.sbuf,
    name: str = "",
) -> NkiTensor:
    """A new tensor of one value: a memset on chip; in HBM, DMAs from a tile in SBUF after a memset."""
    return _make_filled("full", shape, fill_value, dtype, buffer, name)


def zeros_like(x: NkiTensor, dtype: object = None, buffer: MemoryRegion | None = None, name: str = "") -> NkiTensor:
    """Zeros in the shape of ``x``, by default of its dtype and in SBUF."""
    x = require_tensor("zeros_like", x)
    element = x.dtype if dtype is None else dtype
    return _make_filled("zeros_like", x.shape, 0, element, buffer or MemoryRegion.sbuf, name)


def empty_like(x: NkiTensor, dtype: object = None, buffer: MemoryRegion | None = None, name: str = "") -> NkiTensor:
    """An unwritten tensor with the shape of ``x``, by default also its dtype and memory."""
    x = require_tensor("empty_like", x)
    element = x.dtype if dtype is None else dtype
    return _allocate("empty_like", x.shape, element, buffer or x.buffer, name)


def rand(shape: Sequence[int], dtype: object, buffer: MemoryRegion = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    """Random numbers from 0 to 1, evenly distributed.

    rand2 from NeuronCore-v4 on; before, 16 random bits of rng a number, times 2^-16: never 1 before the rounding
    to ``dtype``. In HBM by a DMA from a tile in SBUF.
    """
    dst = _allocate("rand", shape, dtype, buffer, name)
    drawn = dst if dst.on_chip else tile(dst.shape, dst.dtype)
    if active_tracer("nl.rand").target.generation >= _RAND2_GENERATION:
        isa.rand2(drawn, 0.0, 1.0)
    else:
        bits = tile(dst.shape, uint16)
        isa.rng(bits)
        isa.tensor_scalar(drawn, bits, OPERATORS["multiply"], 2.0**-_RANDOM_BITS)
    if not dst.on_chip:
        isa.dma_copy(dst, drawn)
    return dst


def random_seed(seed: object) -> None:
    """Seed the vector engine's generator with a ``[1, 1]`` tile of 32 bits: set_rng_seed."""
    if not isinstance(seed, NkiTensor):
        instead = "nl.random_seed(nl.full((1, 1), 42, dtype=nl.int32, buffer=nl.sbuf))"
        raise KernelError(f"nl.random_seed: seed is {seed!r}; it must be a [1, 1] tile: {instead}")
    isa.set_rng_seed(seed)


def _allocate(
    what: str,
    shape: Sequence[int],
    dtype: object,
    buffer: MemoryRegion,
    name: str,
    address: tuple[int, int] | None = None,
) -> NkiTensor:
    """Check the arguments, and allocate a tensor."""
    tracer = active_tracer(f"nl.{what}")
    try:
        sizes = tuple(index(size) for size in shape)
        place = None if address is None else (index(address[0]), index(address[1]))
        element, memory = as_dtype(dtype), MemoryRegion(buffer)
    except (TypeError, ValueError, IndexError) as error:
        raise KernelError(f"nl.{what}: {error}") from None
    if not sizes or min(sizes) < 1:
        raise KernelError(f"nl.{what}: shape {sizes} must hold positive integers")
    if memory is MemoryRegion.registers:
        raise KernelError(f"nl.{what}: registers hold no tensors")
    if element.name in LEFT_OUT:
        raise KernelError(f"nl.{what}: {element} is a dtype of MX matrix products, which the simulator leaves out")
    return tracer.allocate(sizes, element, memory, name, place, f"nl.{what}")


def _make_filled(
    what: str, shape: Sequence[int], value: Scalar, dtype: object, buffer: MemoryRegion, name: str
) -> NkiTensor:
    if not isinstance(value, SCALARS):
        raise KernelError(f"nl.{what}: fill_value is a {type(value).__name__}; it must be a number")
    dst = _allocate(what, shape, dtype, buffer, name)
    if dst.on_chip:
        isa.memset(dst, value)
    else:
        _fill_hbm(dst, value)
    return dst


def _fill_hbm(dst: NkiTensor, value: Scalar) -> None:
    """DMAs from one tile of the value, as many elements at a time as the tile has."""
    flat = dst.reshape((dst.size,))
    rows = active_tracer("nl.full").target.partitions
    columns = min(_FILL_COLUMNS, -(-dst.size // rows))
    source = tile((rows, columns), dst.dtype)
    isa.memset(source, value)
    start = 0
    while start < dst.size:
        columns = min(columns, dst.size - start)
        rows = min(rows, (dst.size - start) // columns)
        end = start + rows * columns
        isa.dma_copy(flat[start:end].reshape((rows, columns)), source[:rows, :columns])
        start = end

"""Our ``nki.language`` (`nl`): dtypes, memories, tile sizes, operators, and tensor creation."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

from trnrt.errors import KernelError
from trnrt.nki.machine.dtypes import (
    DType,
    as_dtype,
    bfloat16,
    bool_,
    float8_e4m3,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    int8,
    int16,
    int32,
    tfloat32,
    uint8,
    uint16,
    uint32,
)
from trnrt.nki.machine.operators import OPERATORS
from trnrt.nki.machine.program import MemoryRegion
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import active_tracer

sbuf = MemoryRegion.sbuf
psum = MemoryRegion.psum
private_hbm = MemoryRegion.private_hbm
shared_hbm = MemoryRegion.shared_hbm
hbm = MemoryRegion.private_hbm

# Operators are tokens that instructions take as `op`; machine/operators.py gives their meaning.
add = OPERATORS["add"]
subtract = OPERATORS["subtract"]
multiply = OPERATORS["multiply"]
maximum = OPERATORS["maximum"]
minimum = OPERATORS["minimum"]
equal = OPERATORS["equal"]
not_equal = OPERATORS["not_equal"]
greater = OPERATORS["greater"]
greater_equal = OPERATORS["greater_equal"]
less = OPERATORS["less"]
less_equal = OPERATORS["less_equal"]
copy = OPERATORS["copy"]
relu = OPERATORS["relu"]
square = OPERATORS["square"]
abs = OPERATORS["abs"]  # NKI's own name for it
exp = OPERATORS["exp"]
tanh = OPERATORS["tanh"]
sigmoid = OPERATORS["sigmoid"]

__all__ = [
    "DType",
    "MemoryRegion",
    "NkiTensor",
    "bfloat16",
    "bool_",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "float32",
    "hbm",
    "int8",
    "int16",
    "int32",
    "ndarray",
    "private_hbm",
    "psum",
    "sbuf",
    "shared_hbm",
    "tfloat32",
    "tile_size",
    "uint8",
    "uint16",
    "uint32",
    *OPERATORS,
]


class _TileSize:
    """Hardware tile sizes of the target that the running kernel is traced for."""

    pmax = 128
    psum_bank_fmax = 512
    psum_bank_fmax_bytes = 2048
    gemm_stationary_fmax = 128

    @property
    def gemm_moving_fmax(self) -> int:
        """Most columns of a matmul's moving operand."""
        return active_tracer("nl.tile_size.gemm_moving_fmax").target.moving_max

    @property
    def psum_num_banks(self) -> int:
        """PSUM banks a partition."""
        return active_tracer("nl.tile_size.psum_num_banks").target.psum_banks

    @property
    def sbuf_fmax_bytes(self) -> int:
        """Usable SBUF bytes a partition."""
        return active_tracer("nl.tile_size.sbuf_fmax_bytes").target.sbuf_usable_bytes

    @property
    def sbuf_fmax(self) -> int:
        """Usable SBUF elements a partition, in float32."""
        return self.sbuf_fmax_bytes // 4


tile_size = _TileSize()


def ndarray(
    shape: Sequence[int],
    dtype: object,
    buffer: MemoryRegion = sbuf,
    name: str = "",
    address: tuple[int, int] | None = None,
) -> NkiTensor:
    """A new tensor; its contents are undefined (they read as NaN) until written.

    ``address``: ``(partition, byte)`` of an on-chip tensor; the allocator chooses where it is left out.
    """
    tracer = active_tracer("nl.ndarray")
    try:
        sizes = tuple(index(size) for size in shape)
        place = None if address is None else (index(address[0]), index(address[1]))
        element, memory = as_dtype(dtype), MemoryRegion(buffer)
    except (TypeError, ValueError, IndexError) as error:
        raise KernelError(f"nl.ndarray: {error}") from None
    if not sizes or min(sizes) < 1:
        raise KernelError(f"nl.ndarray: shape {sizes} must hold positive integers")
    if memory is MemoryRegion.registers:
        raise KernelError("nl.ndarray: registers hold no tensors")
    return tracer.allocate(sizes, element, memory, name, place)

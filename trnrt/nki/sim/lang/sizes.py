"""``nl.tile_size``, and predicates for buffers."""

from __future__ import annotations

from trnrt.nki.machine.program import ON_CHIP, MemoryRegion
from trnrt.nki.machine.targets import Target
from trnrt.nki.sim.trace import active_tracer

__all__ = ["is_hbm", "is_on_chip", "is_psum", "is_sbuf", "tile_size"]


class TileSize:
    """Hardware tile sizes of the target that the running kernel is traced for.

    ``..._fmax``: elements of the free dimension, in float32 where it is a size of memory; ``..._bytes``: bytes.
    """

    pmax = 128
    psum_fmax = 512  # AWS's older name of psum_bank_fmax
    psum_bank_fmax = 512
    psum_bank_fmax_bytes = 2048
    gemm_stationary_fmax = 128
    # One number in NKI for every target, though trn3 takes wider operands: kernels assert multiples of it.
    gemm_moving_fmax = 512
    bn_stats_fmax = 512
    psum_min_align = 4  # bytes
    sbuf_min_align = 1  # bytes

    @property
    def psum_num_banks(self) -> int:
        """PSUM banks a partition."""
        return _target("psum_num_banks").psum_banks

    @property
    def sbuf_size_bytes(self) -> int:
        """Bytes of SBUF in all partitions, including the system's part."""
        target = _target("sbuf_size_bytes")
        return target.sbuf_bytes * target.partitions

    @property
    def sbuf_fmax_bytes(self) -> int:
        """Usable SBUF bytes per partition."""
        return _target("sbuf_fmax_bytes").sbuf_usable_bytes

    @property
    def sbuf_fmax(self) -> int:
        """Usable SBUF elements per partition, in float32."""
        return _target("sbuf_fmax").sbuf_usable_bytes // 4

    total_available_sbuf_size = sbuf_fmax_bytes  # AWS's older name


tile_size = TileSize()
_TileSize = TileSize  # NKI's name


def _target(attribute: str) -> Target:
    return active_tracer(f"nl.tile_size.{attribute}").target


def is_hbm(buffer: object) -> bool:
    """True if ``buffer`` is one of HBM's regions."""
    return buffer in (MemoryRegion.private_hbm, MemoryRegion.shared_hbm)


def is_on_chip(buffer: object) -> bool:
    """True if ``buffer`` is SBUF or PSUM."""
    return buffer in ON_CHIP


def is_psum(buffer: object) -> bool:
    """True if ``buffer`` is PSUM."""
    return buffer is MemoryRegion.psum


def is_sbuf(buffer: object) -> bool:
    """True if ``buffer`` is SBUF."""
    return buffer is MemoryRegion.sbuf

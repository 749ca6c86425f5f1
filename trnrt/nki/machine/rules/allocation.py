"""Rules for the place of a tile, for one `nl.ndarray`. Its address is None unless the kernel gave one."""

from __future__ import annotations

from trnrt.nki.machine.program import MemoryRegion, Storage
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target


def capacity(region: MemoryRegion, target: Target) -> int:
    """Bytes per partition that tiles may use."""
    return target.psum_bytes if region is MemoryRegion.psum else target.sbuf_usable_bytes


@rule("tile-dimensions", "an on-chip tensor has a partition and a free dimension", "language guide, Tensor Values")
def tile_dimensions(tile: Storage, target: Target) -> str | None:
    if tile.on_chip and len(tile.shape) < 2:
        return f"shape {tile.shape} has {len(tile.shape)} dimension; on chip the least is 2"
    return None


@rule("tile-partitions", "a tile spans at most 128 partitions", "tile_size.pmax")
def tile_partitions(tile: Storage, target: Target) -> str | None:
    if tile.on_chip and tile.shape[0] > target.partitions:
        return f"shape {tile.shape} spans {tile.shape[0]} partitions; the limit is {target.partitions}"
    return None


@rule("tile-bytes", "a tile fits its memory", "architecture guides; tile_size.sbuf_fmax_bytes")
def tile_bytes(tile: Storage, target: Target) -> str | None:
    limit = capacity(tile.buffer, target)
    if tile.on_chip and tile.partition_bytes > limit:
        has = f"{tile.buffer.value.upper()} of {target.name} has {limit}"
        return f"shape {tile.shape} takes {tile.partition_bytes} bytes a partition; {has}"
    return None


@rule("tile-address", "an address lies in the memory of the tile", "migration guide, Improved allocation API")
def tile_address(tile: Storage, target: Target) -> str | None:
    if tile.address is None:
        return None
    if not tile.on_chip:
        return f"address {tile.address} of a tensor in {tile.buffer.value}; only on-chip tensors have one"
    partition, byte = tile.address
    if partition < 0 or partition + tile.shape[0] > target.partitions:
        return (
            f"address {tile.address}: {tile.shape[0]} partitions from partition {partition} on; "
            f"there are {target.partitions}"
        )
    limit = capacity(tile.buffer, target)
    if byte < 0 or byte + tile.partition_bytes > limit:
        memory = tile.buffer.value.upper()
        return f"address {tile.address}: ends at byte {byte + tile.partition_bytes}; {memory} has {limit} usable bytes"
    return None


@rule(
    "psum-address",
    "a PSUM tile's address is the start of a bank",
    "migration guide, Improved allocation API: 2 KiB banks",
)
def psum_address(tile: Storage, target: Target) -> str | None:
    if tile.buffer is not MemoryRegion.psum or tile.address is None or tile.address[1] % target.psum_bank_bytes == 0:
        return None
    return f"address {tile.address}: byte {tile.address[1]} is not a multiple of {target.psum_bank_bytes}"


# Not checked for a program that may take more memory than there is.
OF_CAPACITY = (tile_bytes,)
ALLOCATION = (tile_dimensions, tile_partitions, tile_bytes, tile_address, psum_address)

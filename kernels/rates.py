"""Rates for the kernels' estimates. They affect how something is computed, never its result.

A kernel file also runs under AWS's own nki, where no target's data can be read: so all estimates use the rates here.
They come from the timing model with which the kernels were tuned (November 2026). It has been recalibrated since: on
trn1 a packet takes 8 ns there now, an engine moves 17 GB/s. The choices were kept.

After a change of any number, measure the networks and the labs' convolutions (docs/kernels.md, Tuned numbers).
"""

from trnrt.nki import nisa

# The tensor engine's clock for estimates that hold for all targets; a column takes one cycle, of float32 four.
TENSOR_GHZ = 2.4
FLOAT32_CYCLES = 4
# Vector and scalar engines: elements of a partition per nanosecond.
ENGINE_GHZ = 1.2
# Nanoseconds of an instruction of the engines that copy and evacuate, besides its elements.
INSTRUCTION_NS = 60
# Bytes of a partition that the vector engine copies in SBUF in a nanosecond, from trn2 on.
COPIED_BYTES_PER_NS = 7.68
# DMA engines: each serves eight partitions. Bytes per nanosecond of one, and of all of them.
DMA_ENGINES = 16
DMA_ENGINE = 27
ALL_DMA_ENGINES = 320
# Nanoseconds of a DMA engine per contiguous piece of HBM besides its bytes, from trn2 on.
PACKET_NS = 8.0
# Nanoseconds by which starting a transfer delays the next one of its queue.
TRANSFER_NS = 600


def is_recent() -> bool:
    """True if the target is trn2 or later."""
    return nisa.get_nc_version() >= nisa.nc_version.gen3


def product_ns(columns: int, item: int, ghz: float = TENSOR_GHZ) -> float:
    """Nanoseconds of products over ``columns`` columns, with elements of ``item`` bytes."""
    return columns * (FLOAT32_CYCLES if item == 4 else 1) / ghz


def tensor_ghz() -> float:
    """The tensor engine's clock on the target."""
    return 2.4 if is_recent() else 2.8


def packet_ns() -> float:
    """Nanoseconds of a DMA engine per contiguous piece of HBM besides its bytes."""
    return PACKET_NS if is_recent() else 69.0


def dma_engine() -> int:
    """Bytes per nanosecond of one DMA engine on the target."""
    return DMA_ENGINE if is_recent() else 20


def trigger_ns() -> int:
    """Nanoseconds that an engine's queue takes to start a transfer: by hardware descriptors from trn2 on."""
    return 608 if is_recent() else 386

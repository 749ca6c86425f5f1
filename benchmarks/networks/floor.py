"""The floor of a network: the least time that the timing model allows any plan for it.

The products take their columns at full clock, with the gaps between passes of the most columns. A column has at most
as many results, and sums over as many numbers, as there are partitions. All DMA engines together move the weights
at the model's rate. Weights that a product or one behind it needs can be loaded ahead of the products before it only
as far as SBUF has room: the others come after them. The program's fixed cost, the start of the first load, and the last
store come on top. All other bytes and all other work are left out, so a plan can only be slower.

Some floors can't be reached by the kernels that we have. VGG-16 at batch 1: its classifier has 247 MB of weights, of
which SBUF holds 27 while the convolutions run. The floor is 1.43 times the bound. As weights are the stationary operand
of our convolutions, two pixels of 64 outputs share a column of the second one, which sums over the 12 pixels under both
windows instead of 9. With that alone 1.45 times the bound, the bar, are left for no latency and no gap at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.models.bounds import Product, Work
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.nki.machine.targets import Target, get_target


def floor_us(products: Sequence[Product], work: Work, target: str, dtype: str) -> float:
    """The floor in microseconds, by the headline's numbers. ``work``: of the same model and batch."""
    machine, item = get_target(target), as_dtype(dtype).itemsize
    dma = machine.timing.dma
    rate = dma.total_gbps * 1e3  # bytes a microsecond
    columns = [_columns_us(one, machine, dtype) for one in products]
    least = max(sum(columns), (work.weights + work.inputs + work.outputs) * item / rate)
    for number, one in enumerate(products):
        before = sum(columns[other] for other in one.needs)
        behind = sum(other.weights for k, other in enumerate(products) if k == number or number in other.needs) * item
        room = machine.partitions * machine.sbuf_usable_bytes
        least = max(least, before + max(0, behind - room) / rate)
    starts = dma.start_static_ns + dma.completion_ns
    return least + (machine.timing.benchmark_ns + dma.read_ns + 2 * starts) / 1e3


def _columns_us(product: Product, machine: Target, dtype: str) -> float:
    """The time of a product's columns: those of full tiles, or of full columns of results."""
    timing, size = machine.timing.tensor, machine.partitions
    peak = timing.peak(dtype) / timing.peak("bfloat16")
    columns = max(product.multiplications / size**2, product.results / size)
    return columns * (1 / (timing.clock_ghz * peak) + timing.gap_ns / machine.moving_max) / 1e3

"""Rules for the places and patterns of an engine's or a DMA's accesses."""

from __future__ import annotations

from trnrt.nki.machine.program import Engine, Instruction, MemoryRegion, View
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target

# Legal start partition -> how many partitions an access from there may span.
_SPAN_FROM_START = {0: 128, 32: 32, 64: 64, 96: 32}
_MAX_DIMENSIONS = 5
_MAX_COUNT = 0xFFFF
_MIN_STRIDE, _MAX_STRIDE = -0x8000, 0x7FFF


@rule("on-chip", "an engine reads and writes SBUF and PSUM only", "arch guide trn1, NeuronCore-v2 Compute Engines")
def on_chip(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.operands:
        if not view.storage.on_chip:
            return f"{arg} is in {view.buffer.value}; engines reach SBUF and PSUM: bring it in with nisa.dma_copy"
    return None


@rule("partition-stride", "an engine accesses consecutive partitions", "arch guide trn1, Accessing SBUF/PSUM tensors")
def partition_stride(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.operands:
        step = view.partition_elements
        if view.shape[0] > 1 and view.strides[0] != step:
            return f"{arg} steps over {view.strides[0] // step} partitions at a time; an engine's limit is 1"
    return None


@rule(
    "start-partition",
    "an engine starts at partition 0 (up to 128 partitions), 64 (up to 64), 32 or 96 (up to 32)",
    "arch guide trn1, Accessing SBUF/PSUM tensors: start_partition",
)
def start_partition(instruction: Instruction, target: Target) -> str | None:
    return next(filter(None, (start_problem(arg, view) for arg, view in instruction.operands)), None)


def start_problem(arg: str, view: View) -> str | None:
    """The reason why no engine can start at the view's first partition; None if nothing does."""
    start = view.first_partition
    if start == 0:
        return None
    span = _SPAN_FROM_START.get(start)
    if span is None:
        return f"{arg} starts at partition {start}; engines start at 0, 32, 64 or 96 (DMA starts anywhere)"
    if view.partitions > span:
        return f"{arg} spans {view.partitions} partitions from partition {start}; from there the limit is {span}"
    return None


@rule("dimensions", "an access pattern has at most 5 dimensions", "language guide, Tensor Values")
def dimensions(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.operands:
        if len(view.shape) > _MAX_DIMENSIONS:
            return f"{arg} has {view.ndim} dimensions; an access pattern has at most {_MAX_DIMENSIONS}"
    return None


@rule(
    "pattern-range",
    "sizes of an engine's access pattern are 16-bit, strides signed 16-bit, in elements",
    "arch guide trn1, Accessing SBUF/PSUM tensors",
)
def pattern_range(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.operands:
        if view.partition_elements <= _MAX_STRIDE and 0 not in view.strides:
            continue  # a partition's capacity bounds every dimension and stride
        for size, stride in zip(view.shape[1:], view.strides[1:], strict=True):
            if size > _MAX_COUNT:
                return f"{arg} has a free dimension of {size} elements; the limit is {_MAX_COUNT}"
            if size > 1 and not _MIN_STRIDE <= stride <= _MAX_STRIDE:
                return f"{arg} has a stride of {stride} elements; the limit is {_MAX_STRIDE}"
    return None


@rule("gpsimd-no-psum", "the GpSimd engine can't access PSUM", "nki.isa tensor_copy; arch guide trn1")
def gpsimd_no_psum(instruction: Instruction, target: Target) -> str | None:
    if instruction.engine is not Engine.gpsimd:
        return None
    for arg, view in instruction.operands:
        if view.buffer is MemoryRegion.psum:
            return f"{arg} is in PSUM, which the GpSimd engine can't access; use the vector or scalar engine"
    return None


PATTERN = (partition_stride, start_partition, dimensions, pattern_range)
ENGINE_ACCESS = (on_chip, *PATTERN, gpsimd_no_psum)


@rule(
    "psum-bank",
    "a result of the tensor engine stays in one PSUM bank (trn1, trn2: 2 KiB a partition)",
    "arch guide trn1, Near-memory accumulation in PSUM; nki.isa nc_matmul, Tile size",
)
def psum_bank(instruction: Instruction, target: Target) -> str | None:
    dst: View = instruction["dst"]
    if instruction.engine is not Engine.tensor or target.matmul_crosses_banks:
        return None
    size, bank = dst.dtype.itemsize, target.psum_bank_bytes
    steps = [(n - 1) * s for n, s in zip(dst.shape[1:], dst.strides[1:], strict=True)]
    # A tile without an address starts at a bank, or lies in one: the allocator's promise.
    start = (dst.storage.address[1] if dst.storage.address else 0) + dst.offset % dst.partition_elements * size
    first, last = (
        start + sum(s for s in steps if s < 0) * size,
        start + sum(s for s in steps if s > 0) * size + size - 1,
    )
    if first // bank != last // bank:
        return f"dst covers bytes {first} to {last} of a partition; it must stay in one bank of {bank}"
    return None

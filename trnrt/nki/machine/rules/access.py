"""What an engine, or a DMA, may touch, and in which pattern."""

from __future__ import annotations

from trnrt.nki.machine.modes import dge_mode, oob_mode
from trnrt.nki.machine.program import Engine, Instruction, MemoryRegion
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target

# How many partitions an access may span from each partition it may start at.
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
    "an engine starts at partition 0 (up to 128), 64 (up to 64), 32 or 96 (up to 32)",
    "arch guide trn1, Accessing SBUF/PSUM tensors: start_partition",
)
def start_partition(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.operands:
        address = view.storage.address
        start = view.start_partition + (address[0] if address else 0)
        if start == 0:
            continue
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
            continue  # no dimension and no stride is larger than what a partition holds
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


ENGINE_ACCESS = (on_chip, partition_stride, start_partition, dimensions, pattern_range, gpsimd_no_psum)


@rule("dma-no-psum", "DMA reaches HBM and SBUF, not PSUM", "nki.isa dma_copy, Memory types")
def dma_no_psum(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.operands:
        if view.buffer is MemoryRegion.psum:
            return f"{arg} is in PSUM; move it to SBUF first (nisa.tensor_copy, nisa.activation)"
    return None


@rule("dma-size", "a DMA writes as many elements as it reads", "nki.isa dma_copy, Tile size")
def dma_size(instruction: Instruction, target: Target) -> str | None:
    dst, src = instruction["dst"], instruction["src"]
    if dst.size != src.size:
        return f"src has {src.size} elements {src.shape}, dst {dst.size} {dst.shape}; they must be equal"
    return None


@rule("dma-modes", "a mode is a member of its enum", "migration guide, Integer enum constants no longer supported")
def dma_modes(instruction: Instruction, target: Target) -> str | None:
    for arg, members in (("dge_mode", dge_mode), ("oob_mode", oob_mode)):
        mode = instruction.args.get(arg)
        if mode is not None and not isinstance(mode, members):
            names = ", ".join(member.name for member in members)
            return f"{arg}={mode!r}; it must be a member of nisa.{arg}: {names}"
    return None


@rule("dma-hardware-descriptors", "hardware descriptors exist from NeuronCore-v3 on", "nki.isa dma_copy, dge_mode")
def dma_hardware_descriptors(instruction: Instruction, target: Target) -> str | None:
    if instruction["dge_mode"] is dge_mode.hwdge and not target.hardware_dge:
        return f"dge_mode is {dge_mode.hwdge!r}; {target.name} has swdge and none"
    return None


@rule("dma-hardware-dtype", "a DMA with hardware descriptors does not convert", "shared/NKI_HINTS.md, Operand types")
def dma_hardware_dtype(instruction: Instruction, target: Target) -> str | None:
    dst, src = instruction["dst"], instruction["src"]
    if instruction["dge_mode"] is dge_mode.hwdge and dst.dtype != src.dtype:
        return f"src is {src.dtype}, dst {dst.dtype}; with {dge_mode.hwdge!r} they must be equal"
    return None


@rule("dma-engine", "the sync or scalar engine triggers hardware descriptors", "nki.isa dma_copy, engine")
def dma_engine(instruction: Instruction, target: Target) -> str | None:
    engine = instruction["engine"]
    if engine is Engine.unknown:
        return None
    if instruction["dge_mode"] is not dge_mode.hwdge:
        return f"engine={engine!r} with dge_mode={instruction['dge_mode']!r}; it is valid with {dge_mode.hwdge!r} only"
    if engine not in (Engine.sync, Engine.scalar):
        return f"engine={engine!r}; it must be sync or scalar"
    return None


@rule("dma-priority", "a DMA's priority is 0 to 3, from NeuronCore-v4 on", "nki.isa dma_copy, priority")
def dma_priority(instruction: Instruction, target: Target) -> str | None:
    priority = instruction["priority"]
    if priority is None:
        return None
    if not target.dma_priorities:
        return f"priority={priority!r}; {target.name} has no priorities: leave it None"
    return None if priority in (0, 1, 2, 3) else f"priority={priority!r}; it must be 0, 1, 2 or 3"


DMA_ACCESS = (
    dma_no_psum,
    dimensions,
    dma_size,
    dma_modes,
    dma_hardware_descriptors,
    dma_hardware_dtype,
    dma_engine,
    dma_priority,
)

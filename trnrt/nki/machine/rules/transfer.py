"""DMA that transposes, adds or prints on its way."""

from __future__ import annotations

from trnrt.nki.machine.modes import dge_mode, oob_mode
from trnrt.nki.machine.operators import OPERATORS
from trnrt.nki.machine.program import Instruction, MemoryRegion, View
from trnrt.nki.machine.rules.access import dimensions, dma_hardware_descriptors, dma_modes, dma_no_psum, dma_priority
from trnrt.nki.machine.rules.shuffle import kept_dtype
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target

MAX_SOURCES = 16

# The permutation that a transpose of so many dimensions is.
TRANSPOSE_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}
_HARDWARE_ROWS = {2: (16,), 3: (1, 2, 4, 8, 16), 4: (1, 2, 4, 8, 16)}


@rule("dma-transpose-target", "DMA transposes from NeuronCore-v3 on", "arch guide trn2, DMA Transpose")
def transpose_target(instruction: Instruction, target: Target) -> str | None:
    return f"{target.name} has no DMA transpose; use nisa.nc_transpose" if target.generation < 3 else None


@rule("dma-transpose-axes", "a DMA transpose is (1, 0), (2, 1, 0) or (3, 1, 2, 0)", "nki.isa dma_transpose, axes")
def transpose_axes(instruction: Instruction, target: Target) -> str | None:
    ndim, axes = instruction["src"].ndim, instruction["axes"]
    wanted = TRANSPOSE_AXES.get(ndim)
    if wanted is None:
        return f"src has {ndim} dimensions; it must have 2, 3 or 4"
    return None if axes in (None, wanted) else f"axes={axes} of {ndim} dimensions; it must be {wanted}"


@rule("dma-transpose-shape", "dst has the transposed shape, of as many dimensions", "migration guide, dma_transpose")
def transpose_shape(instruction: Instruction, target: Target) -> str | None:
    src, dst = instruction["src"], instruction["dst"]
    wanted = tuple(src.shape[axis] for axis in TRANSPOSE_AXES[src.ndim])
    return None if dst.shape == wanted else f"src is {src.shape}, dst {dst.shape}; it must be {wanted}"


@rule("dma-transpose-dtype", "a DMA transposes elements of 2 or 4 bytes", "arch guide trn2, DMA Transpose")
def transpose_dtype(instruction: Instruction, target: Target) -> str | None:
    dtype = instruction["src"].dtype
    return None if dtype.itemsize in (2, 4) else f"src is {dtype}; view it as elements of 2 or 4 bytes"


@rule(
    "dma-transpose-descriptors",
    "software descriptors are for indirect transposes, the others for direct ones",
    "nki.isa dma_transpose, Direct Transpose; deep dive DGE",
)
def transpose_descriptors(instruction: Instruction, target: Target) -> str | None:
    mode, indirect = instruction["dge_mode"], _selects_rows(instruction["src"])
    if mode is dge_mode.unknown or (mode is dge_mode.swdge) == indirect:
        return None
    if indirect:
        return f"dge_mode={mode!r}; an indirect transpose takes unknown or swdge"
    return f"dge_mode={mode!r}; a direct transpose takes unknown, hwdge or none"


@rule(
    "dma-transpose-hardware",
    "with hardware descriptors a transpose takes few rows of at most 128 elements of 2 bytes",
    "nki.isa dma_transpose, Direct Transpose",
)
def transpose_hardware(instruction: Instruction, target: Target) -> str | None:
    if instruction["dge_mode"] is not dge_mode.hwdge:
        return None
    src = instruction["src"]
    rows = _HARDWARE_ROWS[src.ndim]
    if src.shape[0] not in rows:
        return f"src.shape[0] is {src.shape[0]}; with hardware descriptors it must be {' or '.join(map(str, rows))}"
    if src.shape[0] * src.shape[-2] % 16 and src.ndim > 2:
        return f"src.shape[0] * src.shape[-2] is {src.shape[0] * src.shape[-2]}; it must be a multiple of 16"
    if src.shape[-1] > 128:
        return f"src.shape[-1] is {src.shape[-1]}; with hardware descriptors the limit is 128"
    if src.dtype.itemsize != 2:
        return f"src is {src.dtype}; with hardware descriptors its elements must have 2 bytes"
    return None


@rule(
    "dma-transpose-indirect",
    "an indirect transpose takes rows of at most 128 elements of 2 bytes from HBM, a multiple of 16 of them, and their "
    "uint32 indices from 16 to 128 partitions",
    "nki.isa dma_transpose, Indirect Transpose",
)
def transpose_indirect(instruction: Instruction, target: Target) -> str | None:
    src, dst = instruction["src"], instruction["dst"]
    if _selects_rows(dst):
        return "dst is selected by indices; a transpose gathers, it does not scatter"
    if not _selects_rows(src):
        return None
    dtype, count = src.dynamic.vector.dtype, instruction["indices"]
    if dtype.name != "uint32" or count % 16:
        return f"the indices are {dtype} in {count} partitions; they must be uint32 in a multiple of 16"
    if src.dtype.itemsize != 2 or src.shape[-1] > 128:
        return f"src has rows of {src.shape[-1]} {src.dtype}; they must be at most 128 elements of 2 bytes"
    if src.shape[0] % 16 or src.shape[0] > count:
        return f"src has {src.shape[0]} rows, {count} indices; it must be a multiple of 16, and no more"
    if src.ndim == 4 and 1 not in src.shape[1:3]:
        return f"src is {src.shape}; its second or third dimension must be 1"
    return None


def _selects_rows(view: View) -> bool:
    """Whether a tile of indices selects the view's rows."""
    return view.dynamic is not None and view.dynamic.vector is not None


@rule("oob-skip", "indices are skipped where a view has some", "nki.isa dma_transpose, dma_compute, oob_mode")
def oob_skip(instruction: Instruction, target: Target) -> str | None:
    if instruction["oob_mode"] is oob_mode.skip and all(view.dynamic is None for _, view in instruction.operands):
        return f"oob_mode={oob_mode.skip!r} of direct views; it concerns indirect ones"
    return None


TRANSPOSE = (
    transpose_target,
    dma_no_psum,
    dimensions,
    transpose_axes,
    kept_dtype,
    transpose_shape,
    transpose_dtype,
    dma_modes,
    transpose_descriptors,
    dma_hardware_descriptors,
    transpose_hardware,
    transpose_indirect,
    dma_priority,
    oob_skip,
)


@rule("dma-compute-sources", "a DMA adds 2 to 16 tensors", "nki.isa dma_compute, Tile size")
def compute_sources(instruction: Instruction, target: Target) -> str | None:
    count = instruction["count"]
    if count > MAX_SOURCES:
        return f"srcs has {count} tensors; the limit is {MAX_SOURCES}"
    if count < 2:
        return (
            f"srcs has {count} tensor; the reference (dst = srcs[0]) and the migration guide (dst += srcs[0]) disagree "
            "on what that does: use nisa.dma_copy, or name dst among srcs"
        )
    return None


@rule("dma-compute-size", "the sources hold as many elements as dst", "nki.isa dma_compute, Tile size")
def compute_size(instruction: Instruction, target: Target) -> str | None:
    size = instruction["dst"].size
    for arg, view in instruction.operands:
        if view.size != size:
            return f"{arg} has {view.size} elements {view.shape}, dst {size}; they must be equal"
    return None


@rule("dma-compute-operator", "a DMA adds: reduce_op is nl.add, scales are 1.0", "nki.isa dma_compute")
def compute_operator(instruction: Instruction, target: Target) -> str | None:
    op, scales, count = instruction["reduce_op"], instruction["scales"], instruction["count"]
    if op is not OPERATORS["add"]:
        return f"reduce_op={op!r}; it must be nl.add"
    if scales is not None and (len(scales) != count or any(scale != 1.0 for scale in scales)):
        return f"scales={list(scales)} of {count} tensors; each must be 1.0"
    return None


@rule("dma-compute-unique", "indices must be unique", "nki.isa dma_compute, unique_indices")
def compute_unique(instruction: Instruction, target: Target) -> str | None:
    unique = instruction["unique_indices"]
    return None if unique is True else f"unique_indices={unique!r}; it must be True"


@rule(
    "dma-compute-indirect",
    "with indices a DMA adds two tensors: dst, and rows of HBM to dst in SBUF, or a tile of SBUF to rows of dst in HBM",
    "nki.isa dma_compute, Read-Modify-Write",
)
def compute_indirect(instruction: Instruction, target: Target) -> str | None:
    operands, dst, count = instruction.operands, instruction["dst"], instruction["count"]
    if all(view.dynamic is None for _, view in operands):
        return None
    sources = [view for arg, view in operands if arg != "dst"]
    for arg, view in operands:
        if view.dynamic is not None and not _selects_rows(view):
            return f"{arg} has an address that the run decides; only a tile of indices can"
    if count != 2 or not any(_same_view(source, dst) for source in sources):
        return f"srcs has {count} tensors; with indices it must have two, of which one is dst"
    other = sources[1] if _same_view(sources[0], dst) else sources[0]
    wanted = (MemoryRegion.sbuf, False) if _selects_rows(dst) else (other.buffer, True)
    if (other.buffer, _selects_rows(other)) != wanted or (wanted[1] and dst.buffer is not MemoryRegion.sbuf):
        return "neither a gather (rows of HBM added to dst in SBUF) nor a scatter (a tile of SBUF added to rows of dst)"
    if dst.shape[0] != other.shape[0]:
        return f"dst has {dst.shape[0]} rows, the tensor that is added {other.shape[0]}; they must be equal"
    return None


def _same_view(one: View, other: View) -> bool:
    """Whether two views are the same elements, selected by the same indices."""
    if one is other:
        return True
    places = [(v.storage.index, v.shape, v.strides, v.offset, v.cast) for v in (one, other)]
    indices = [v.dynamic.vector if v.dynamic is not None else None for v in (one, other)]
    if places[0] != places[1] or (indices[0] is None) != (indices[1] is None):
        return False
    return indices[0] is None or indices[1] is None or _same_view(indices[0], indices[1])


COMPUTE = (
    dma_no_psum,
    dimensions,
    compute_sources,
    compute_operator,
    compute_unique,
    compute_size,
    compute_indirect,
    dma_modes,
    oob_skip,
)


@rule("print-memory", "device_print prints SBUF and HBM", "nki.language device_print")
def print_memory(instruction: Instruction, target: Target) -> str | None:
    if instruction["tensor"].buffer is MemoryRegion.psum:
        return "tensor is in PSUM; copy it to SBUF first (nisa.tensor_copy)"
    return None

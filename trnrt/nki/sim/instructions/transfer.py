"""DMA: copies, transposes, and sums on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.machine import costs, modes, spreading
from trnrt.nki.machine.binding import Arrays, as_float32, copier, in_shape, writer
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.operators import OPERATORS, Operator
from trnrt.nki.machine.program import Engine, Instruction, Marks, MemoryRegion, View
from trnrt.nki.machine.rules import access, operands
from trnrt.nki.machine.rules.checks import generation_rule
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target
from trnrt.nki.sim.declaring import Args, declare
from trnrt.nki.sim.tensor import NkiTensor

__all__ = ["dma_compute", "dma_copy", "dma_transpose"]

MAX_SOURCES = 16
SOURCES = tuple(f"src{i}" for i in range(MAX_SOURCES))
# A transpose's permutation, by the number of dimensions.
TRANSPOSE_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}
_HARDWARE_ROWS = {2: (16,), 3: (1, 2, 4, 8, 16), 4: (1, 2, 4, 8, 16)}


@rule("dma-no-psum", "DMA reaches HBM and SBUF, not PSUM", "nki.isa dma_copy, Memory types")
def dma_no_psum(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.operands:
        if view.buffer is MemoryRegion.psum:
            return f"{arg} is in PSUM; move it to SBUF first (nisa.tensor_copy, nisa.activation)"
    return None


@rule("dma-modes", "a mode is a member of its enum", "migration guide, Integer enum constants no longer supported")
def dma_modes(instruction: Instruction, target: Target) -> str | None:
    for arg, members in (("dge_mode", modes.dge_mode), ("oob_mode", modes.oob_mode)):
        mode = instruction.args.get(arg)
        if mode is not None and not isinstance(mode, members):
            names = ", ".join(member.name for member in members)
            return f"{arg}={mode!r}; it must be a member of nisa.{arg}: {names}"
    return None


@rule("dma-hardware-descriptors", "hardware descriptors exist from NeuronCore-v3 on", "nki.isa dma_copy, dge_mode")
def dma_hardware_descriptors(instruction: Instruction, target: Target) -> str | None:
    if instruction["dge_mode"] is modes.dge_mode.hwdge and not target.hardware_dge:
        return f"dge_mode is {modes.dge_mode.hwdge!r}; {target.name} has swdge and none"
    return None


@rule("dma-priority", "a DMA's priority is 0 to 3, from NeuronCore-v4 on", "nki.isa dma_copy, priority")
def dma_priority(instruction: Instruction, target: Target) -> str | None:
    priority = instruction["priority"]
    if priority is None:
        return None
    if not target.dma_priorities:
        return f"priority={priority!r}; {target.name} has no priorities: leave it None"
    return None if priority in (0, 1, 2, 3) else f"priority={priority!r}; it must be 0, 1, 2 or 3"


@rule("dma-size", "a DMA writes as many elements as it reads", "nki.isa dma_copy, Tile size")
def dma_size(instruction: Instruction, target: Target) -> str | None:
    dst, src = instruction["dst"], instruction["src"]
    if dst.size != src.size:
        return f"src has {src.size} elements {src.shape}, dst {dst.size} {dst.shape}; they must be equal"
    return None


@rule(
    "dma-hardware-dtype",
    "a DMA with hardware descriptors keeps the dtype",
    "migration guide, nisa.dma_copy: dge_mode type matching",
)
def dma_hardware_dtype(instruction: Instruction, target: Target) -> str | None:
    dst, src = instruction["dst"], instruction["src"]
    if instruction["dge_mode"] is modes.dge_mode.hwdge and dst.dtype != src.dtype:
        return f"src is {src.dtype}, dst {dst.dtype}; with {modes.dge_mode.hwdge!r} they must be equal"
    return None


@rule("dma-engine", "the sync or scalar engine triggers hardware descriptors", "nki.isa dma_copy, engine")
def dma_engine(instruction: Instruction, target: Target) -> str | None:
    engine = instruction["engine"]
    if engine is Engine.unknown:
        return None
    mode, hardware = instruction["dge_mode"], modes.dge_mode.hwdge
    if mode is not hardware:
        return f"engine={engine!r} with dge_mode={mode!r}; it is valid with {hardware!r} only"
    if engine not in (Engine.sync, Engine.scalar):
        return f"engine={engine!r}; it must be sync or scalar"
    return None


transpose_target = generation_rule(
    "dma-transpose-target",
    "DMA transposes from NeuronCore-v3 on, nisa.nc_transpose on each",
    "arch guide trn2, DMA Transpose",
    3,
)


@rule(
    "dma-transpose-axes", "a DMA transpose's axes are (1, 0), (2, 1, 0) or (3, 1, 2, 0)", "nki.isa dma_transpose, axes"
)
def transpose_axes(instruction: Instruction, target: Target) -> str | None:
    ndim, axes = instruction["src"].ndim, instruction["axes"]
    wanted = TRANSPOSE_AXES.get(ndim)
    if wanted is None:
        return f"src has {ndim} dimensions; it must have 2, 3 or 4"
    return None if axes in (None, wanted) else f"axes={axes} of {ndim} dimensions; it must be {wanted}"


@rule(
    "dma-transpose-shape",
    "dst has the transposed shape of src, with as many dimensions",
    "migration guide, dma_transpose",
)
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
    if mode is modes.dge_mode.unknown or (mode is modes.dge_mode.swdge) == indirect:
        return None
    if indirect:
        return f"dge_mode={mode!r}; an indirect transpose takes unknown or swdge"
    return f"dge_mode={mode!r}; a direct transpose takes unknown, hwdge or none"


@rule(
    "dma-transpose-hardware",
    "with hardware descriptors a transpose takes 1, 2, 4, 8 or 16 rows (2-D: 16) of up to 128 2-byte elements",
    "nki.isa dma_transpose, Direct Transpose",
)
def transpose_hardware(instruction: Instruction, target: Target) -> str | None:
    if instruction["dge_mode"] is not modes.dge_mode.hwdge:
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
    "an indirect transpose reads a multiple of 16 rows from HBM, each of at most 128 elements of 2 bytes; their uint32 "
    "indices span a multiple of 16 partitions",
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
    """True if a tile of indices selects the view's rows."""
    return view.dynamic is not None and view.dynamic.vector is not None


@rule("oob-skip", "oob_mode.skip needs a view with run-time indices", "nki.isa dma_transpose, dma_compute, oob_mode")
def oob_skip(instruction: Instruction, target: Target) -> str | None:
    if instruction["oob_mode"] is modes.oob_mode.skip and all(view.dynamic is None for _, view in instruction.operands):
        return f"oob_mode={modes.oob_mode.skip!r} of direct views; it concerns indirect ones"
    return None


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
    "with indices, srcs has dst and one tensor to add to it: HBM rows to a dst in SBUF, or an SBUF tile to rows of dst",
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
        return f"srcs has {count} tensors; with indices it must have two, one of them dst"
    other = sources[1] if _same_view(sources[0], dst) else sources[0]
    wanted = (MemoryRegion.sbuf, False) if _selects_rows(dst) else (other.buffer, True)
    if (other.buffer, _selects_rows(other)) != wanted or (wanted[1] and dst.buffer is not MemoryRegion.sbuf):
        return "neither a gather (rows of HBM added to dst in SBUF) nor a scatter (a tile of SBUF added to rows of dst)"
    if dst.shape[0] != other.shape[0]:
        return f"dst has {dst.shape[0]} rows, the tensor that is added {other.shape[0]}; they must be equal"
    return None


def _same_view(one: View, other: View) -> bool:
    """True if two views have the same elements, selected by the same indices."""
    if one is other:
        return True
    places = [(v.storage.index, v.shape, v.strides, v.offset, v.cast) for v in (one, other)]
    indices = [v.dynamic.vector if v.dynamic is not None else None for v in (one, other)]
    if places[0] != places[1] or (indices[0] is None) != (indices[1] is None):
        return False
    return indices[0] is None or indices[1] is None or _same_view(indices[0], indices[1])


def _copy(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = src``. Descriptors, the engine that triggers them and their priority change the timing only."""
    return copier(instruction["dst"], instruction["src"], arrays)


@declare(
    engines=(Engine.dma,),
    writes=("dst",),
    reads=("src",),
    rules=(
        dma_no_psum,
        access.dimensions,
        dma_size,
        dma_modes,
        dma_hardware_descriptors,
        dma_hardware_dtype,
        dma_engine,
        dma_priority,
    ),
    meaning=_copy,
    cycles=costs.no_own_cycles,
    spreads=spreading.elements,
)
def dma_copy(
    dst: NkiTensor,
    src: NkiTensor,
    priority: int | None = None,
    oob_mode: modes.oob_mode = modes.oob_mode.error,
    dge_mode: modes.dge_mode = modes.dge_mode.unknown,
    engine: Engine = Engine.unknown,
    name: str | None = None,
) -> Args:
    """``dst = src`` between HBM and SBUF, through float32 if the dtypes differ.

    ``oob_mode`` is about run-time indices; views of this simulator have none.
    """
    return locals() | {"dge_mode": modes.as_dge_mode(dge_mode)}


def _marks_transposed(instruction: Instruction, marks: Marks) -> dict[str, Array]:
    src = marks["src"]
    return {"dst": src.transpose(TRANSPOSE_AXES[src.ndim]).reshape(instruction["dst"].shape)}


def _trim_indices(src: NkiTensor) -> tuple[NkiTensor, int]:
    """An indirect view with only its first indices, one per row; and the number of given ones."""
    dynamic = src.dynamic if isinstance(src, NkiTensor) else None
    if dynamic is None or not isinstance(dynamic.vector, NkiTensor):
        return src, 0
    given = dynamic.vector.shape[0]
    if given <= src.shape[0]:
        return src, given
    return replace(src, dynamic=replace(dynamic, vector=dynamic.vector[0 : src.shape[0]])), given


def _transpose(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = src`` with the first and the last dimension exchanged, bit for bit."""
    target, source = arrays(instruction["dst"]), arrays(instruction["src"])
    turned = source.transpose(TRANSPOSE_AXES[source.ndim])
    if np.may_share_memory(target, source):
        return lambda: np.copyto(target, turned.copy())
    return lambda: np.copyto(target, turned)


@declare(
    engines=(Engine.dma,),
    writes=("dst",),
    reads=("src",),
    rules=(
        transpose_target,
        dma_no_psum,
        access.dimensions,
        transpose_axes,
        operands.kept_dtype,
        transpose_shape,
        transpose_dtype,
        dma_modes,
        transpose_descriptors,
        dma_hardware_descriptors,
        transpose_hardware,
        transpose_indirect,
        dma_priority,
        oob_skip,
    ),
    meaning=_transpose,
    cycles=costs.no_own_cycles,
    spreads=_marks_transposed,
)
def dma_transpose(
    dst: NkiTensor,
    src: NkiTensor,
    axes: Sequence[int] | None = None,
    priority: int | None = None,
    dge_mode: modes.dge_mode = modes.dge_mode.unknown,
    oob_mode: modes.oob_mode = modes.oob_mode.error,
    name: str | None = None,
) -> Args:
    """``dst = src`` with its first and last dimension exchanged: ``(1, 0)``, ``(2, 1, 0)`` or ``(3, 1, 2, 0)``.

    src is in HBM or SBUF; dst in SBUF (as in the reference) or in HBM (as in the migration guide's example). Rows of
    src that a tile of indices selects are gathered first.
    """
    if oob_mode is modes.oob_mode.skip and isinstance(src, NkiTensor) and src.is_indirect():
        raise KernelError("dma_transpose: modes.oob_mode.skip is not modelled; keep the indices within bounds")
    src, indices = _trim_indices(src)
    axes = None if axes is None else tuple(axes)
    return locals() | {"dge_mode": modes.as_dge_mode(dge_mode)}


def _compute(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """The sum of the sources, one after the other, in float32."""
    target = arrays(instruction["dst"])
    takes = [in_shape(arrays(view), target.shape) for arg, view in instruction.operands if arg in SOURCES]
    write = writer(instruction["dst"], target)

    def compute() -> None:
        total = np.add(as_float32(takes[0]()), as_float32(takes[1]()))
        for take in takes[2:]:
            np.add(total, as_float32(take()), out=total)
        write(total)

    return compute


@declare(
    engines=(Engine.dma,),
    writes=("dst",),
    reads=SOURCES,
    optional=frozenset(SOURCES[1:]),
    rules=(
        dma_no_psum,
        access.dimensions,
        compute_sources,
        compute_operator,
        compute_unique,
        compute_size,
        compute_indirect,
        dma_modes,
        oob_skip,
    ),
    meaning=_compute,
    cycles=costs.no_own_cycles,
    spreads=spreading.elements,
)
def dma_compute(
    dst: NkiTensor,
    srcs: Sequence[NkiTensor],
    reduce_op: Operator,
    scales: Sequence[float] | None = None,
    unique_indices: bool = True,
    oob_mode: modes.oob_mode = modes.oob_mode.error,
    name: str | None = None,
) -> Args:
    """``dst = srcs[0] + srcs[1] + ...`` in float32, between HBM and SBUF.

    With indices that select rows: either rows of HBM are added to dst in SBUF, or a tile is added to rows of dst in
    HBM.
    """
    if not isinstance(srcs, (list, tuple)):
        raise KernelError(f"dma_compute: srcs is a {type(srcs).__name__}; it must be a list of tensors")
    args: Args = dict.fromkeys(SOURCES)
    args.update(zip(SOURCES, srcs, strict=False))
    args.update(dst=dst, count=len(srcs), reduce_op=reduce_op, scales=scales, name=name)
    return args | {"unique_indices": unique_indices, "oob_mode": oob_mode}

"""DMA of ``nki.isa`` that transposes or adds on its way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.machine import modes
from trnrt.nki.machine.instructions import transfer
from trnrt.nki.machine.operators import Operator
from trnrt.nki.machine.program import Engine, Instruction
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import active_tracer


def _with_its_indices(src: NkiTensor) -> tuple[NkiTensor, int]:
    """An indirect view with as many indices as it has rows, the first ones; and how many it was given."""
    dynamic = src.dynamic if isinstance(src, NkiTensor) else None
    if dynamic is None or not isinstance(dynamic.vector, NkiTensor):
        return src, 0
    given = dynamic.vector.shape[0]
    if given <= src.shape[0]:
        return src, given
    return replace(src, dynamic=replace(dynamic, vector=dynamic.vector[0 : src.shape[0]])), given


def dma_transpose(
    dst: NkiTensor,
    src: NkiTensor,
    axes: Sequence[int] | None = None,
    priority: int | None = None,
    dge_mode: modes.dge_mode = modes.dge_mode.unknown,
    oob_mode: modes.oob_mode = modes.oob_mode.error,
    name: str | None = None,
) -> Instruction:
    """dst is src with its first and last dimension exchanged: ``(1, 0)``, ``(2, 1, 0)`` or ``(3, 1, 2, 0)``.

    src in HBM or SBUF; dst in SBUF as the reference has it, or in HBM as the migration guide's example has it. Rows of
    src that a tile of indices selects are gathered first.
    """
    if oob_mode is modes.oob_mode.skip and isinstance(src, NkiTensor) and src.is_indirect():
        raise KernelError("dma_transpose: oob_mode.skip is not modelled; keep the indices within bounds")
    src, indices = _with_its_indices(src)
    args = {
        "dst": dst,
        "src": src,
        "indices": indices,
        "axes": None if axes is None else tuple(axes),
        "priority": priority,
        "dge_mode": modes.as_dge_mode(dge_mode),
        "oob_mode": oob_mode,
    }
    return active_tracer("nisa.dma_transpose").emit(transfer.DMA_TRANSPOSE, args, Engine.unknown, name)


def dma_compute(
    dst: NkiTensor,
    srcs: Sequence[NkiTensor],
    reduce_op: Operator,
    scales: Sequence[float] | None = None,
    unique_indices: bool = True,
    oob_mode: modes.oob_mode = modes.oob_mode.error,
    name: str | None = None,
) -> Instruction:
    """``dst = srcs[0] + srcs[1] + ...`` in float32, between HBM and SBUF.

    With indices that select rows: of HBM, which are added to dst in SBUF, or of dst in HBM, to which a tile is added.
    """
    if not isinstance(srcs, (list, tuple)):
        raise KernelError(f"dma_compute: srcs is a {type(srcs).__name__}; it must be a list of tensors")
    args: dict[str, Any] = dict.fromkeys(transfer.SOURCES)
    args.update(zip(transfer.SOURCES, srcs, strict=False))
    args.update(dst=dst, count=len(srcs), reduce_op=reduce_op, scales=scales)
    args.update(unique_indices=unique_indices, oob_mode=oob_mode)
    return active_tracer("nisa.dma_compute").emit(transfer.DMA_COMPUTE, args, Engine.unknown, name)

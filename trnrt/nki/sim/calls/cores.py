"""Two physical cores that run one kernel, under NKI's names."""

from __future__ import annotations

from collections.abc import Sequence

from trnrt.nki.machine import modes
from trnrt.nki.machine.instructions import OPERATIONS
from trnrt.nki.machine.program import Engine, Instruction
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import active_tracer


def core_barrier(
    data: NkiTensor, cores: Sequence[int], engine: Engine = Engine.gpsimd, name: str | None = None
) -> Instruction:
    """Both cores wait here for each other; what either wrote to ``data`` (shared HBM) before, both see after."""
    tracer = active_tracer("nisa.core_barrier")
    args = {"data": data, "cores": tuple(cores), "num_cores": tracer.cores}
    return tracer.emit(OPERATIONS["core_barrier"], args, engine, name)


def sendrecv(
    src: NkiTensor,
    dst: NkiTensor,
    send_to_rank: int,
    recv_from_rank: int,
    pipe_id: int,
    dma_engine: modes.dma_engine = modes.dma_engine.dma,
    name: str | None = None,
) -> Instruction:
    """Send ``src`` to one core and receive into ``dst`` what another one sends, at the same time."""
    tracer = active_tracer("nisa.sendrecv")
    args = {
        "src": src,
        "dst": dst,
        "send_to_rank": send_to_rank,
        "recv_from_rank": recv_from_rank,
        "pipe_id": pipe_id,
        "dma_engine": dma_engine,
        "num_cores": tracer.cores,
    }
    engine = Engine.gpsimd if dma_engine is modes.dma_engine.gpsimd_dma else Engine.dma
    return tracer.emit(OPERATIONS["sendrecv"], args, engine, name)

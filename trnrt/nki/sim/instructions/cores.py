"""Two cores that run one kernel: where they meet. What happens there involves both: ``machine/cores.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.machine import costs, modes
from trnrt.nki.machine.program import Engine, Instruction, MemoryRegion
from trnrt.nki.machine.rules.checks import check_memory
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target
from trnrt.nki.sim.declaring import Args, declare
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import active_tracer

__all__ = ["core_barrier", "sendrecv"]

_FIRST_GENERATION = 3
_PAIR = (0, 1)
# Bytes per partition that the GpSimd engine's own DMA exchanges at most, by the size of an element.
_GPSIMD_BYTES = {4: 1024, 2: 512, 1: 256}


@rule(
    "two-cores",
    "barriers and exchanges need a kernel on two cores, from NeuronCore-v3 on",
    "nki.isa core_barrier, sendrecv",
)
def two_cores(instruction: Instruction, target: Target) -> str | None:
    if target.generation < _FIRST_GENERATION:
        return f"{target.name} has no logical core of two; trn2 and trn3 have"
    if instruction["num_cores"] != len(_PAIR):
        return f"the kernel runs on {instruction['num_cores']} core; launch it on two: kernel[2](...)"
    return None


@rule("barrier-cores", "a barrier is between cores 0 and 1", "nki.isa core_barrier")
def barrier_cores(instruction: Instruction, target: Target) -> str | None:
    cores = tuple(instruction["cores"])
    return None if cores == _PAIR else f"cores={cores}; only (0, 1) can meet"


@rule("barrier-data", "a barrier's data is in shared HBM", "nki.isa core_barrier")
def barrier_data(instruction: Instruction, target: Target) -> str | None:
    return check_memory(instruction, MemoryRegion.shared_hbm, "data")


@rule("exchange-ranks", "tiles are exchanged between cores 0 and 1", "nki.isa sendrecv")
def exchange_ranks(instruction: Instruction, target: Target) -> str | None:
    for arg in ("send_to_rank", "recv_from_rank"):
        if instruction[arg] not in _PAIR:
            return f"{arg}={instruction[arg]!r}; it must be 0 or 1"
    return None


@rule(
    "exchange-tiles", "exchanged tiles are in SBUF and have the same shape and dtype", "nki.isa sendrecv, Constraints"
)
def exchange_tiles(instruction: Instruction, target: Target) -> str | None:
    dst, src = instruction["dst"], instruction["src"]
    if (dst.shape, dst.dtype) != (src.shape, src.dtype):
        return f"src is {src.shape} {src.dtype}, dst {dst.shape} {dst.dtype}; they must be equal"
    return check_memory(instruction, MemoryRegion.sbuf, "dst", "src")


@rule(
    "exchange-size",
    "the GpSimd engine's DMA exchanges at most 256 elements a partition",
    "nki.isa sendrecv, dma_engine",
)
def exchange_size(instruction: Instruction, target: Target) -> str | None:
    src = instruction["src"]
    size, limit = src.free_size * src.dtype.itemsize, _GPSIMD_BYTES[src.dtype.itemsize]
    if instruction["dma_engine"] is modes.dma_engine.gpsimd_dma and size > limit:
        return f"src has {size} bytes a partition; with gpsimd_dma the limit for {src.dtype} is {limit}"
    return None


def _meeting(instruction: Instruction, arrays: Any) -> Callable[[], None]:
    raise KernelError(f"{instruction.operation.name} in a device loop or on one core has no meaning in the simulator")


@declare(
    engines=(Engine.gpsimd, Engine.vector, Engine.scalar, Engine.tensor, Engine.sync),
    writes=(),
    reads=("data",),
    partly=frozenset({"data"}),
    rules=(two_cores, barrier_cores, barrier_data),
    meaning=_meeting,
    cycles=costs.sequencer_only,
    spreads=None,
    meets=True,
)
def core_barrier(
    data: NkiTensor, cores: Sequence[int], engine: Engine = Engine.gpsimd, name: str | None = None
) -> Args:
    """Both cores wait here for each other; what either wrote to ``data`` (shared HBM) before, both see after."""
    cores, num_cores = tuple(cores), active_tracer("nisa.core_barrier").cores
    return locals()


@declare(
    engines=(Engine.dma, Engine.gpsimd),
    writes=("dst",),
    reads=("src",),
    rules=(two_cores, exchange_tiles, exchange_ranks, exchange_size),
    meaning=_meeting,
    cycles=costs.no_own_cycles,
    spreads=None,
    meets=True,
)
def sendrecv(
    src: NkiTensor,
    dst: NkiTensor,
    send_to_rank: int,
    recv_from_rank: int,
    pipe_id: int,
    dma_engine: modes.dma_engine = modes.dma_engine.dma,
    name: str | None = None,
) -> Args:
    """Send ``src`` to one core and receive into ``dst`` what another one sends, at the same time."""
    engine = Engine.gpsimd if dma_engine is modes.dma_engine.gpsimd_dma else Engine.dma
    num_cores = active_tracer("nisa.sendrecv").cores
    return locals()

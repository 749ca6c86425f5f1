"""Cases for the rules of registers, device loops, and two cores."""

from __future__ import annotations

from rule_cases import case
from simulating import tile, zeros

from trnrt.nki import nisa, nl
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import active_tracer


@case("register-writable", "dst is the counter of a device loop")
def _(broken: bool) -> None:
    counters: list[nisa.VirtualRegister] = []
    nl.fori_loop(0, nisa.register_alloc(3), counters.append)
    nisa.register_move(counters[0] if broken else nisa.register_alloc(), 1)  # here


@case("register-tile", "src is (1, 2) in sbuf", "must be one element in SBUF")
def _(broken: bool) -> None:
    nisa.register_load(nisa.register_alloc(), zeros(1, 2 if broken else 1, dtype=nl.int32))  # here


@case("scalar-tile", "src is int32 (1, 2) in sbuf", "a 1x1 tensor of int32")
def _(broken: bool) -> None:
    nisa.scalar_load(zeros(1, 2 if broken else 1, dtype=nl.int32))  # here


def on_two_cores() -> None:
    """Trace what follows as one of two cores."""
    active_tracer("a rule's case").cores = 2


def shared() -> NkiTensor:
    """A tensor that both cores see."""
    return nl.ndarray((4, 4), nl.float32, nl.shared_hbm)


@case("two-cores", "the kernel runs on 1 core", "launch it on two")
def _(broken: bool) -> None:
    if not broken:
        on_two_cores()
    nisa.core_barrier(data=shared(), cores=(0, 1))  # here


@case("barrier-cores", "cores=(0, 2)", "only (0, 1) can meet")
def _(broken: bool) -> None:
    on_two_cores()
    nisa.core_barrier(data=shared(), cores=(0, 2 if broken else 1))  # here


@case("barrier-data", "data is in sbuf", "must be in shared_hbm")
def _(broken: bool) -> None:
    on_two_cores()
    nisa.core_barrier(data=zeros(4, 4) if broken else shared(), cores=(0, 1))  # here


@case("exchange-ranks", "send_to_rank=2", "must be 0 or 1")
def _(broken: bool) -> None:
    on_two_cores()
    nisa.sendrecv(zeros(4, 4), tile(4, 4), 2 if broken else 1, 1, pipe_id=0)  # here


@case("exchange-tiles", "src is (4, 4) float32, dst (4, 4) bfloat16", "must be equal")
def _(broken: bool) -> None:
    on_two_cores()
    dst = tile(4, 4, dtype=nl.bfloat16 if broken else nl.float32)
    nisa.sendrecv(zeros(4, 4), dst, 1, 1, pipe_id=0)  # here


@case("exchange-size", "src has 1028 bytes a partition", "the limit for float32 is 1024")
def _(broken: bool) -> None:
    on_two_cores()
    width = 257 if broken else 256
    engine = nisa.dma_engine.gpsimd_dma
    nisa.sendrecv(zeros(4, width), tile(4, width), 1, 1, pipe_id=0, dma_engine=engine)  # here

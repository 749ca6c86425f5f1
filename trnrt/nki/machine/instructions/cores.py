"""Where two cores that run one kernel meet. What happens there involves both: ``machine/cores.py`` says it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.program import Engine, Instruction, Operation
from trnrt.nki.machine.rules import cores as rules


def _meeting(instruction: Instruction, arrays: Any) -> Callable[[], None]:
    raise KernelError(f"{instruction.operation.name} in a device loop or on one core has no meaning in the simulator")


CORE_BARRIER = Operation(
    name="core_barrier",
    engines=(Engine.gpsimd, Engine.vector, Engine.scalar, Engine.tensor, Engine.sync),
    writes=(),
    reads=("data",),
    rules=(rules.two_cores, rules.barrier_cores, rules.barrier_data),
    bind=_meeting,
    partly=frozenset({"data"}),
)

SENDRECV = Operation(
    name="sendrecv",
    engines=(Engine.dma, Engine.gpsimd),
    writes=("dst",),
    reads=("src",),
    rules=(rules.two_cores, rules.exchange_tiles, rules.exchange_ranks, rules.exchange_size),
    bind=_meeting,
)

MEETINGS = frozenset({CORE_BARRIER.name, SENDRECV.name})

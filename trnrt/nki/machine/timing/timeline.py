"""The timeline: when and where each instruction of a program runs, and what it waited for. The timing model's result.

All times are integers, picoseconds since the program's first instruction could start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from trnrt.nki.machine.pace import Timing
from trnrt.nki.machine.program import Program

PS_PER_US = 1_000_000


class Transfer(NamedTuple):
    """One DMA transfer, triggered by the instruction ``issue`` of the timeline.

    The trigger keeps the engine of ``lane`` busy from ``triggered`` to ``trigger_end``. The data can flow from
    ``ready`` on; it flows from the timeline's ``start`` to its ``end`` of the same issue, on ``engines`` of the 16 DMA
    engines, in ``packets`` of contiguous bytes. ``payload``: the bytes that arrive; ``hbm_bytes``: those read from and
    written to HBM.
    """

    issue: int
    lane: int
    triggered: int
    trigger_end: int
    payload: int
    hbm_bytes: int
    packets: int
    engines: int
    ready: int = 0


@dataclass(frozen=True, slots=True)
class Timeline:
    """When the instructions of ``program`` run.

    An issue is one execution of an instruction: each iteration of a device loop issues its body again. The lists have
    one entry an issue, in program order. ``instruction``: its index in the program; ``lane``: an index of ``lanes`` (an
    engine, or the queue that carries a DMA transfer's data); ``start`` and ``end``: from when it occupies its lane
    until its result is there; ``waited_for``: the issue that let it start (the previous one of its lane, the producer
    of its operands, the last user of what it overwrites), or -1. ``seen``: when its semaphore is set; ``freed``: when
    the next issue of its stream may start.
    ``slowed``: the products at half the clock. ``reached``: when this core reached its meetings with another core, by
    issue. ``duration``: when the last issue has ended. ``busy``: how long each
    lane was busy. ``notes``: what the model assumed. ``timing``: the numbers that it was made with.
    """

    program: Program
    lanes: tuple[str, ...]
    instruction: list[int]
    lane: list[int]
    start: list[int]
    end: list[int]
    waited_for: list[int]
    transfers: list[Transfer]
    busy: dict[str, int]
    duration: int
    notes: tuple[str, ...] = ()
    seen: list[int] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    slowed: frozenset[int] = frozenset()
    reached: dict[int, int] = field(default_factory=dict)
    timing: Timing = field(kw_only=True)

"""The timeline: when each instruction of a program runs, on what, and what it waited for. The timing model's result.

All times are integers, picoseconds since the program's first instruction could start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from trnrt.nki.machine.pace import Timing
from trnrt.nki.machine.program import Program

PS_PER_US = 1_000_000


class Transfer(NamedTuple):
    """One DMA transfer: what the trigger instruction ``issue`` of the timeline moved.

    ``lane`` is the issuing engine's, which the trigger keeps busy from ``triggered`` to ``trigger_end``. The data could
    flow from ``ready`` on, and flows from the timeline's ``start`` to its ``end`` of the same issue, on ``engines`` of
    the 16 DMA engines, in ``packets`` of contiguous bytes. ``payload`` is what arrives, ``hbm_bytes`` what is read from
    and written to HBM.
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

    An issue is one execution of an instruction: the body of a device loop is issued once an iteration. The lists
    have one entry an issue, in program order: ``instruction`` is its index in the program, ``lane`` an index of
    ``lanes`` (an engine, or the queue that carries a DMA transfer's data), ``start`` and ``end`` when it occupies its
    lane and until its result is there, ``waited_for`` the issue that let it start (its lane's previous one, the
    producer of what it reads, the last user of what it overwrites), -1 where nothing did.
    ``seen`` is when an issue's semaphore is set, ``freed`` when the next of its stream may start; ``slowed`` are the
    products at half the clock, ``timing`` the numbers that it was made with. ``duration`` is when the last of them has
    ended, ``busy`` how long each lane had something to do, ``notes`` what the model had to assume.
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
    timing: Timing = field(kw_only=True)

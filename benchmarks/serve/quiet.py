"""Measure the load from other processes, and wait until it is low.

On a shared machine, a server's figures are those of the scheduler. A measurement therefore checks the CPU time that
others took meanwhile, regardless of its own result, and is repeated if that was too much.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

MOST_OTHERS = 0.25
"""Processors that others may use, on average, during a measurement."""
_LOOK_S = 0.25
_AGAIN_S = 1.0
_TICKS = os.sysconf("SC_CLK_TCK")

T = TypeVar("T")


@dataclass(frozen=True)
class Clock:
    """A moment, with the busy seconds of all processors until then, and those of some processes of ours."""

    moment: float
    busy: float
    own: float

    @staticmethod
    def now(*pids: int) -> Clock:
        """The present clock, with the CPU times of these processes, this one, and its children that have ended."""
        return Clock(time.monotonic(), _busy(), sum(map(cpu_seconds, pids)) + sum(os.times()[:4]))

    def others(self, later: Clock) -> float:
        """Processors that others used between the two clocks."""
        busy = (later.busy - self.busy) - (later.own - self.own)
        return max(0.0, busy / (later.moment - self.moment))


@dataclass(frozen=True)
class Undisturbed(Generic[T]):
    """A result (None if there never was one), the processors that ``others`` used meanwhile, and the number of
    discarded tries."""

    result: T | None
    others: float
    thrown_away: int


def undisturbed(measure: Callable[[], T], deadline: float, *pids: int) -> Undisturbed[T]:
    """The result of ``measure`` while others use little CPU; no result if that didn't happen until ``deadline``
    (monotonic seconds).

    ``pids``: further processes of ours that work for it, besides this one and those that it ends.
    """
    thrown_away = 0
    while True:
        look = Clock.now(*pids)
        time.sleep(_LOOK_S)
        if look.others(Clock.now(*pids)) <= MOST_OTHERS:
            before = Clock.now(*pids)
            result = measure()
            others = before.others(Clock.now(*pids))
            if others <= MOST_OTHERS:
                return Undisturbed(result, others, thrown_away)
            thrown_away += 1
        if time.monotonic() > deadline:
            return Undisturbed(None, math.nan, thrown_away)
        time.sleep(_AGAIN_S)


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has taken so far; proc(5), fields 14 and 15."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _busy() -> float:
    """Busy seconds of all processors so far, without idle and disk-wait time; proc(5), /proc/stat."""
    with Path("/proc/stat").open(encoding="ascii") as file:
        ticks = [int(field) for field in file.readline().split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / _TICKS

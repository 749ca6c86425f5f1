"""Clock changes of the tensor engine: their grid, and how busy the engine was in each of the grid's windows.

The grid has its own clock; a trace's first change fixes its phase. A period explains a trace if all changes lie on its
grid, and every window before a full rate was busier than every window before a half rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.timing.traces.record import Run

PERIODS_NS = (4096 / 1.2, 8192 / 1.2, 16384 / 1.2)
"""Powers of two of the engine's slow clock (1.2 GHz) that are about as long as published windows."""

_NEAR_NS = 3


@dataclass(frozen=True)
class Change:
    """A change of the clock: the new rate, and its time on the profile's clock and since the first product."""

    full: bool
    at: int
    after_first_product: int
    lasted: int


@dataclass(frozen=True)
class Grid:
    """A period, and the evidence for it. ``full`` and ``half``: busy shares of the windows before such a rate, in
    order."""

    period: float
    on_grid: bool
    full: tuple[float, ...]
    half: tuple[float, ...]

    @property
    def explains(self) -> bool:
        """True if a threshold between the two decides every window."""
        return self.on_grid and bool(self.full) and min(self.full) > max(self.half, default=0.0)


def clock_changes(run: Run) -> list[Change]:
    """The changes that a run reports, except the one to its first rate."""
    first = next(iter(_busy(run)), (0, 0))[0]
    return [Change(w.full, w.start, w.start - first, w.end - w.start) for w in run.windows if w.start > 0]


def grids(run: Run) -> list[Grid]:
    """The grid of each period; empty if the run reports no change."""
    changes = [change.at for change in clock_changes(run)]
    return [_grid(run, period, changes) for period in PERIODS_NS] if changes else []


def _grid(run: Run, period: float, changes: list[int]) -> Grid:
    offset = changes[0]
    on_grid = all(abs((at - offset) / period - round((at - offset) / period)) * period <= _NEAR_NS for at in changes)
    full: list[float] = []
    half: list[float] = []
    first = offset - int(offset // period) * period
    busy = list(_busy(run))
    end = first + period
    while end <= run.total:
        inside = sum(max(0.0, min(stop, end) - max(start, end - period)) for start, stop in busy)
        (full if _full_at(run, end) else half).append(inside / period)
        end += period
    return Grid(period, on_grid, tuple(full), tuple(half))


def _full_at(run: Run, time: float) -> bool:
    """True if the clock runs at the full rate just after a time."""
    return any(window.full for window in run.windows if window.start <= time + _NEAR_NS < window.end)


def _busy(run: Run) -> Iterator[tuple[int, int]]:
    """The spans with at least one running product, in order and without overlap."""
    covered = 0
    for number in run.on("tensor"):
        for one in run.events[number].passes:
            start, end = max(one.product[0], covered), one.product[1]
            if end > start:
                covered = end
                yield start, end

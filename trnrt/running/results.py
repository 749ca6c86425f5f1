"""The result of a run, beside its outputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trnrt.running.partition import LoadedPartition, LoadedPlan, add_known_ranges

if TYPE_CHECKING:
    from trnrt.nki.machine.timing import Range
    from trnrt.planner.parts.partition import Partition
    from trnrt.planner.plan import Plan


@dataclass(frozen=True)
class RunResult:
    """The programs of a run, with notes on it; empty before the first run.

    ``notes``: how the rows were cut, and what ran on the CPU. ``cache_notes``: why plans were not in the cache.
    ``programs``: one for each slice of the batch. Latencies are computed on first use, so that ``run`` stays fast.
    """

    notes: tuple[str, ...] = ()
    cache_notes: tuple[str, ...] = ()
    programs: tuple[LoadedPartition, ...] = ()

    @property
    def predicted(self) -> Range | None:
        """The predicted latency on the device, as a benchmark would measure it, with its range.

        Slices are added up. With a fallback it covers the device's parts and the round trips, not the CPU's own time.
        None if nothing that ran can be timed.
        """
        return add_known_ranges([program.predicted_range for program in self.programs])

    @property
    def predicted_us(self) -> float | None:
        """The headline of ``predicted``, microseconds."""
        predicted = self.predicted
        return None if predicted is None else predicted.us

    @property
    def crossings_us(self) -> float:
        """The time of round trips to the CPU in ``predicted_us``; 0 without a fallback."""
        return sum(program.partition.crossings_us for program in self.programs)

    @property
    def partition(self) -> Partition | None:
        """The parts that ran last; None if nothing ran."""
        return self.programs[-1].partition if self.programs else None

    @property
    def plan(self) -> Plan | None:
        """The plan that ran last; None if nothing ran, or several parts did."""
        only = self._only
        return None if only is None else only.plan

    @property
    def kernel_path(self) -> Path | None:
        """The kernel module of ``plan``."""
        only = self._only
        return None if only is None else only.path

    @property
    def _only(self) -> LoadedPlan | None:
        last = self.programs[-1] if self.programs else None
        return last.plans[0] if last is not None and len(last.parts) == len(last.plans) == 1 else None

"""The lanes of a batcher: one for each instance of the model. A lane computes one batch at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trnrt.serve.hosting.batching import Runnable
from trnrt.serve.hosting.threads import Jobs
from trnrt.serve.hosting.waiting import rest_of


@dataclass(eq=False)
class Lane:
    """An instance of the model and its thread.

    ``computing``: it has a batch, even if nobody wants its answers any more. ``began``: when that batch began, 0 before
    and after. ``free_since``: when the one before ended. All moments are of ``time.perf_counter``.
    """

    runnable: Runnable
    jobs: Jobs
    free_since: float
    computing: bool = False
    began: float = 0.0


class Lanes:
    """The lanes of one batcher. Lanes are taken and released on the event loop; their threads set ``began`` alone."""

    def __init__(self, instances: Sequence[tuple[Runnable, Jobs]], now: float) -> None:
        self._all = [Lane(runnable, jobs, now) for runnable, jobs in instances]
        self.every = tuple(self._all)
        """All lanes, the lost ones included, in the order of the instances."""
        self.idle = self._all[::-1]
        """Those without a batch; the last one is the next to be used."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._all)

    def release(self, lane: Lane, now: float) -> None:
        """The lane's batch has ended."""
        lane.computing, lane.free_since = False, now
        self.idle.append(lane)

    def lose(self, lane: Lane) -> None:
        """The lane's device failed: it computes no more."""
        lane.computing = False
        self._all.remove(lane)

    def all_busy_since(self, now: float) -> float:
        """Since when every lane has had its batch; ``now`` if one has none."""
        return max((lane.began or now for lane in self._all), default=now)

    def count_stuck(self, now: float, limit_s: float) -> int:
        """The lanes whose batch takes longer than the limit."""
        return sum(now - (lane.began or now) > limit_s for lane in self._all)

    def start_after(self, turns: int, batch_s: float, now: float) -> float:
        """Seconds until a batch starts that has ``turns`` others in front, if each takes ``batch_s``."""
        rests = [rest_of(batch_s, now - lane.began) if lane.began else 0.0 for lane in self._all]
        if not rests:
            return turns * batch_s
        rests.sort()
        rounds, place = divmod(turns, len(rests))
        return rests[place] + rounds * batch_s

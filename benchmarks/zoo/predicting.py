"""The predicted time of a model on a target, and the parts of its critical path."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.zoo.listing import Entry
from trnrt.cache.code import PLANS, code_version
from trnrt.nki.breakdown import Holder, holders_of
from trnrt.nki.machine.timing import Range, add_ranges
from trnrt.nki.profiling import Profile
from trnrt.planner.parts.partition import Partition
from trnrt.running.profiler import profile_plan
from trnrt.session import InferenceSession

HOLDERS_KEPT = 4


@dataclass(frozen=True)
class Prediction:
    """A batch on one core, without the host. ``predicted``: microseconds, the headline with its range.

    ``instructions``: of all kernels, unrolled. ``sbuf_peak_bytes``: of one partition, the most of any kernel. ``held``:
    the longest parts of the critical path. ``on_host``: operators of a detector's end that the host computes.
    ``version``: of the code that planned and timed it, as ``code_version`` gives it.
    """

    target: str
    dtype: str
    batch: int
    effort: int
    predicted: Range
    instructions: int
    kernels: int
    sbuf_peak_bytes: int
    held: tuple[Holder, ...]
    version: str
    on_host: tuple[str, ...] = ()

    @property
    def ms_per_item(self) -> float:
        return self.predicted.us / self.batch / 1e3

    @property
    def items_per_second(self) -> float:
        """Of one core, by the headline."""
        return self.batch / self.predicted.us * 1e6

    @property
    def rates(self) -> tuple[float, float]:
        """The lowest and the highest items a second: those of the longest and of the shortest time."""
        return self.batch / self.predicted.most_us * 1e6, self.batch / self.predicted.least_us * 1e6


class Sessions:
    """A model's sessions on the simulator, which share the file as it was read.

    trnrt's own cache is left out: it would grow by gigabytes, and the measurements are kept anyway.
    """

    def __init__(self, path: Path, entry: Entry) -> None:
        self._path, self._entry = path, entry
        self._opened: dict[str, InferenceSession] = {}

    def session(self, target: str, dtype: str, effort: int = 0) -> InferenceSession:
        """The session for a target. Raises its errors for a model that it can't read."""
        if target not in self._opened:
            shapes = self._entry.sizes
            opened = InferenceSession(self._path, target=target, shapes=shapes, backend="simulator", cache=False)
            self._opened = {target: opened}
        opened = self._opened[target]
        return opened.with_options(replace(opened.options, dtype=dtype, effort=effort))


def batches_of(session: InferenceSession, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """The batches that the model can have: those wanted if its batch is open, else its own."""
    batch = session.model.batch
    return wanted if isinstance(batch, str) else (batch or 1,)


def predict(session: InferenceSession, batch: int) -> Prediction:
    """Plan the batch and time the plan. Raises the session's errors for a model that can't be planned."""
    partition = session.partition(batch)
    profiles = [profile for _, profile in profile_parts(partition)]
    hosted = sorted({node.op for part in partition.cpu_parts for node in part.nodes})
    return Prediction(
        target=session.target,
        dtype=session.dtype,
        batch=batch,
        effort=session.options.effort,
        predicted=add_ranges((profile.benchmark for profile in profiles), partition.crossings_us),
        instructions=sum(plan.size.unrolled for plan in partition.plans),
        kernels=len(partition.plans),
        sbuf_peak_bytes=max(profile.sbuf_peak_bytes for profile in profiles),
        held=holders_of(profile.timeline for profile in profiles)[:HOLDERS_KEPT],
        version=code_version(PLANS),
        on_host=tuple(hosted),
    )


def profile_parts(partition: Partition) -> list[tuple[str, Profile]]:
    """The profile of each kernel, with its name."""
    return [(plan.name, profile_plan(plan)) for plan in partition.plans]

"""The place where a model's batches run: the event loop if each is short, else the model's thread.

Handing a batch to the thread and its answers back costs about 0.15 ms of CPU, more than computing a small one, and
Python runs only one of the two threads at a time anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from trnrt.serve.hosting.threads import Jobs
from trnrt.serve.processes.logs import log

QUICK_S = 0.002
"""A model whose largest batch takes no longer runs on the loop: other requests wait that long at most, as for any
handler's work. The digits CNN takes 1.2 ms for 32 rows."""
SLOW_S = 0.05
"""A model that ever keeps the loop for longer returns to its thread."""
_RUNS = 5
_NOTHING = nullcontext()


class LoopOrThread:
    """Takes the batcher's jobs. ``batch_s``: the time of the largest batch; None for a model that needs its thread."""

    def __init__(self, name: str, thread: Jobs, most_rows: int, batch_s: float | None) -> None:
        self._name, self._thread, self._most_rows = name, thread, most_rows
        self.quick = batch_s is not None and batch_s <= QUICK_S
        self._large = 0

    def expecting(self, rows: int) -> AbstractContextManager[None]:
        """A context that spans a request of so many rows; one of several batches keeps everything on the thread."""
        return self._expecting_large() if rows > self._most_rows else _NOTHING

    @contextmanager
    def _expecting_large(self) -> Iterator[None]:
        self._large += 1
        try:
            yield
        finally:
            self._large -= 1

    def submit(self, job: Callable[[], None], waiting: int = 0) -> None:
        """Run a job, now or on the thread. Call it on the event loop.

        ``waiting``: the requests behind it. With more than another batch of them the loop is behind, and the
        thread takes the job, so that the loop can refuse requests meanwhile.
        """
        if self._large or not self.quick or waiting > self._most_rows:
            self._thread.submit(job)
            return
        began = time.thread_time()
        job()
        took = time.thread_time() - began
        if took > SLOW_S:
            self.quick = False
            log(
                "warning", "model_slow", model=self._name, ms=round(took * 1e3, 1), told="it computes on its thread now"
            )


def measure_batch(loaded: Any) -> float | None:
    """CPU seconds of a ``LoadedModel``'s largest batch, or of its smallest one if that is too long already.

    None for a device, for padded lengths, and for a model that compiles when inputs of a new shape come.
    """
    session, buckets = loaded.session, loaded.described.buckets
    if session.backend != "simulator" or session.lengths is not None or not (buckets and loaded.is_static):
        return None
    feeds = dict(loaded.golden.feeds)
    smallest_s = _measure_runs(loaded, feeds)
    if smallest_s > QUICK_S:  # the largest one may take minutes
        return smallest_s
    for name, array in feeds.items():
        if array.ndim and name not in loaded.parameters:
            feeds[name] = np.resize(array, (buckets[-1], *array.shape[1:]))
    return _measure_runs(loaded, feeds)


def _measure_runs(loaded: Any, feeds: Mapping[str, Any]) -> float:
    """CPU seconds of a run, the best of a few, or of one that is slow; seconds of the clock if even the best run takes
    over ``SLOW_S`` of these: it waits for something, and the loop would wait with it."""
    times: list[float] = []
    clock: list[float] = []
    while len(times) < _RUNS and (not times or times[-1] <= SLOW_S):
        began, at = time.thread_time(), time.perf_counter()  # the CPU's: not what others take of a busy machine
        loaded.run(feeds)
        times.append(time.thread_time() - began)
        clock.append(time.perf_counter() - at)
    return min(clock) if min(clock) > SLOW_S else min(times)

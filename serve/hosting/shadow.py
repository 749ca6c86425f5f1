"""onnxruntime also runs a share of the live requests, to measure in production how far the answers differ.

Its cost is limited: one thread of low priority that rests after each run, and a short queue. If the queue is full, the
request is skipped, and counted.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from queue import Empty, Full, Queue
from typing import Any

from numpy.typing import NDArray

from trnrt.serve.hosting.metrics import ModelMetrics
from trnrt.serve.processes.logs import log
from trnrt.session import InferenceSession
from trnrt.validate import Noise, changed_decisions, open_onnxruntime
from trnrt.validate.golden import make_golden

Array = NDArray[Any]
WAITING = 8
MOST_OF_A_CORE = 0.1
"""The largest share of one core's time."""
_NICENESS = 10
_REST_S = 10.0


class Shadow:
    """The shadow of one model, for a ``share`` of its requests. ``offer`` never waits and never fails."""

    def __init__(self, name: str, session: InferenceSession, share: float, metrics: ModelMetrics) -> None:
        self._name, self._session, self.share, self._metrics = name, session, share, metrics
        self._queue: Queue[tuple[Mapping[str, Array], Mapping[str, Array]]] = Queue(WAITING)
        self._stopped = threading.Event()
        self._reference: Any = None
        self._noise = Noise(session, threads=1)
        if share:
            threading.Thread(target=self._work, name=f"shadow {name}", daemon=True).start()

    def offer(self, feeds: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        """Queue an answered request, with all outputs, with the probability ``share``."""
        if random.random() >= self.share:
            return
        try:
            self._queue.put_nowait((feeds, outputs))
        except Full:
            self._metrics.shadow("skipped")

    def stop(self) -> None:
        """Stop after the current run."""
        self._stopped.set()

    def _work(self) -> None:
        with suppress(OSError, AttributeError):  # only Linux has a priority per thread
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while not self._stopped.is_set():
            try:
                feeds, outputs = self._queue.get(timeout=1.0)
            except Empty:
                continue
            start = time.perf_counter()
            self._compare(feeds, outputs)
            del feeds, outputs
            took = time.perf_counter() - start
            self._stopped.wait(min(_REST_S, took * (1 / MOST_OF_A_CORE - 1)))

    def _compare(self, feeds: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        try:
            if self._reference is None:
                self._reference = open_onnxruntime(self._session, threads=1)
            golden = make_golden(self._session, self._reference, feeds, self._noise, measured_rows=0)
            compared = golden.compare(outputs)
            changed = changed_decisions(outputs, golden.expected) or 0
        except Exception as error:  # onnxruntime's errors share no base class, and a shadow must not harm the server
            self._metrics.shadow("failed")
            log("warning", "shadow_failed", model=self._name, error=f"{type(error).__name__}: {error}")
            return
        apart = max((one.max_abs for one in compared), default=0.0)
        passed = all(one.passed for one in compared)
        self._metrics.shadow("agreed" if passed else "drifted", apart, changed)
        if changed or not passed:
            log("warning", "shadow_differs", model=self._name, max_abs=apart, changed_decisions=changed)

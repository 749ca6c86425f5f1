"""``python -m benchmarks.serve.waiting US MODEL ...``: ``trnrt serve`` with sessions that only wait, US us per batch.

To the host, a NeuronCore does just that: a thread of the server asks for a batch, and sleeps without the interpreter
until it is computed. A session of the simulator that takes so little CPU time would run on the event loop; these get a
thread, as a device's do. Only for the models of ``benchmarks.serve.instant``, with the same answers.
"""

from __future__ import annotations

import ctypes
import runpy
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from benchmarks.serve import instant
from trnrt.serve.hosting import inline
from trnrt.session import InferenceSession

Array = NDArray[Any]

_PR_SET_TIMERSLACK = 29  # linux/prctl.h


def exact_sleeps() -> None:
    """Turn off Linux's timer slack for this process, which lets every sleep last 50 us longer to save wake-ups."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # the threads that it starts later inherit it


def main(arguments: list[str]) -> None:
    """Like ``python -m trnrt serve`` with all arguments but the first, but with sessions that wait."""
    seconds = float(arguments[0]) / 1e6

    def run(
        self: InferenceSession, output_names: Sequence[str] | None, feeds: Mapping[str, Array] | None = None
    ) -> list[Array]:
        time.sleep(seconds)
        return instant.run(self, output_names, feeds)

    exact_sleeps()
    InferenceSession.run = run  # type: ignore[method-assign, assignment]
    inline.measure_batch = lambda loaded: None  # the answer for a device
    sys.argv = ["trnrt", "serve", *arguments[1:]]
    runpy.run_module("trnrt", run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Make all parts of a job, one after the other in this process, until they are done or a signal stops it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

from trnrt.predict.job import Opened
from trnrt.predict.output import Output
from trnrt.predict.part import make_part


class StoppedError(KeyboardInterrupt):
    """``signal`` stopped the job. Not an Exception, which code that runs a model may catch."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = number


@dataclass
class Stopping:
    """The state of Ctrl-C and SIGTERM: they stop the job between two batches.

    They stop it at once before the first batch is done, which may take a compilation, and the second time.
    """

    asked: list[int] = field(default_factory=list)
    running: bool = False

    def check(self) -> None:
        """StoppedError after a signal; call this between two batches."""
        self.running = True
        if self.asked:
            raise StoppedError(self.asked[0])

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        self.asked.append(number)
        if not self.running or len(self.asked) > 1:
            raise StoppedError(number)


@contextmanager
def handle_signals() -> Iterator[Stopping]:
    """Handle SIGINT and SIGTERM in this context."""
    state = Stopping()
    if current_thread() is not main_thread():  # only the main thread may have handlers
        yield state
        return
    before: dict[int, Any] = {number: signal.signal(number, state.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield state
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_parts(opened: Opened, output: Output, stop: Stopping, advance: Callable[[int], None]) -> None:
    """Make the missing parts, in order; ``advance`` is called with the rows that are done.

    Raises the errors of ``make_part`` and ``Output.add``, and StoppedError; finished parts are kept.
    """

    def after_batch(rows: int) -> None:
        advance(rows)
        stop.check()

    for number in output.missing:
        output.add(make_part(opened, number, output.workshop, after_batch))

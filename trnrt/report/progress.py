"""Progress on stderr: a spinner or a bar on a terminal, and elsewhere a plain line from time to time for long work.

Logs of a CI run, a batch job or ``2>file`` so show that the work goes on, and how far it is; short work prints nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Event, Thread
from time import monotonic

from trnrt.text import escape_text

FIRST_S, PAUSE_S = 5.0, 10.0
"""Seconds until the first plain line about a piece of work, and between two of them."""
quiet: ContextVar[bool] = ContextVar("quiet", default=False)
"""True if progress and notes are unwanted (``--quiet``)."""


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show a spinner on a terminal; elsewhere lines with the seconds so far."""
    if quiet.get():
        yield
        return
    if not sys.stderr.isatty():
        with _plain_lines(lambda seconds: f"{what}: {_time_text(seconds)} so far"):
            yield
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(escape_text(what))):
        yield


@contextmanager
def counting(what: str, total: int, done: int = 0, unit: str = "rows") -> Iterator[Callable[[int], None]]:
    """Show the progress over ``total`` rows, or another ``unit``, with rate and remaining time: a bar on a terminal.

    ``done`` of them were made before. Yields a function to call with the number of rows just made.
    """
    if quiet.get():
        yield lambda rows: None
        return
    if not sys.stderr.isatty():
        count = _Count(what, total, done, unit)
        with _plain_lines(count.describe):
            yield count.advance
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    bar = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} {task.fields[unit]}, {task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*bar, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(escape_text(what), total=total, completed=done, rate="", unit=unit)

        def advance(rows: int) -> None:
            speed = progress.tasks[0].speed
            progress.update(task, advance=rows, rate=f"{speed:,.0f} {unit}/s" if speed else "")

        yield advance


@contextmanager
def stepping(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """Show which of some named steps is under way.

    Yields a function to call before each step: with the steps that are done, their number, and this one's name.
    """
    if quiet.get():
        yield lambda done, total, step: None
        return
    if not sys.stderr.isatty():
        now = [what]
        with _plain_lines(lambda seconds: f"{now[0]}; {_time_text(seconds)} so far"):
            yield lambda done, total, step: now.__setitem__(0, f"{what}: {done:,} of {total:,} done, now {step}")
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, step: bar.update(
            task, completed=done, total=total, description=escape_text(step)[:40]
        )


@dataclass
class _Count:
    """The rows made so far. ``before``: those that were there at the start."""

    what: str
    total: int
    before: int
    unit: str
    made: int = 0

    def advance(self, rows: int) -> None:
        """Count more rows."""
        self.made += rows

    def describe(self, seconds: float) -> str:
        """The line about the work, which has taken ``seconds``."""
        done = self.before + self.made
        text = f"{self.what}: {done:,} of {self.total:,} {self.unit}"
        if not self.made:
            return f"{text}, {_time_text(seconds)} so far"
        rate = self.made / seconds
        return f"{text}, {rate:,.3g} {self.unit}/s, about {_time_text(max(0, self.total - done) / rate)} left"


@contextmanager
def _plain_lines(describe: Callable[[float], str]) -> Iterator[None]:
    """Print ``describe(seconds so far)`` from another thread while the work lasts: it may compute without a break."""
    ended, stream, start = Event(), sys.stderr, monotonic()

    def print_lines() -> None:
        pause = FIRST_S
        while not ended.wait(pause):
            pause = PAUSE_S
            with suppress(OSError, ValueError):  # nobody reads it any more
                stream.write(f"{escape_text(describe(monotonic() - start))}\n")
                stream.flush()

    thread = Thread(target=print_lines, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _time_text(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min" if whole < 7200 else f"{whole / 3600:.1f} h"

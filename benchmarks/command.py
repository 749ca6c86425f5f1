"""Shared by the benchmarks' command lines: exit codes, flags, and printing a result."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from click.exceptions import Exit

from trnrt.commands.exits import exit_codes
from trnrt.commands.options import Reporting
from trnrt.commands.verbs import Verb, option
from trnrt.report.console import note, render, say
from trnrt.report.documents import Document, as_text
from trnrt.report.files import write_text

if TYPE_CHECKING:
    from rich.console import RenderableType

QuickFlag = Annotated[bool, option("--quick", help="Take only a few measurements.")]


class _Benchmark(Verb):
    """A command line with one verb that reports errors as ``trnrt`` does."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Read the flags."""
        with exit_codes():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run the benchmark."""
        with exit_codes():
            return super().invoke(ctx)


def command_line(function: Callable[..., None]) -> Verb:
    """The command line of a benchmark: the function's parameters are its flags."""
    return _Benchmark(function, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})


def show(reporting: Reporting, document: Document, parts: Callable[[], Sequence[RenderableType]]) -> None:
    """Print the document or, for a terminal, the parts; also write the document to a file if one is named."""
    text = as_text(document)
    say(text if reporting.as_json else render(parts()))
    if reporting.json_out is not None:
        write_text(reporting.json_out, text)


def fail_unless(passed: bool) -> None:
    """Exit with 1 if a bar is missed."""
    if not passed:
        raise Exit(1)


def warn_if_busy() -> None:
    """Warn of busy cores: BLAS threads wait for each other, so a product of two threads may take a whole time slice."""
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
    if load > cores / 2:
        note(f"other programs keep this machine busy (load {load:.1f} on {cores} cores): don't trust two threads")

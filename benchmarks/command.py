"""Shared by the benchmarks' command lines: exit codes, flags, and printing a result."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from trnrt.commands.exits import exit_codes
from trnrt.commands.options import Reporting
from trnrt.report.console import note, render, say
from trnrt.report.documents import Document, as_text
from trnrt.report.files import write_text

if TYPE_CHECKING:
    from rich.console import RenderableType

QuickFlag = Annotated[bool, typer.Option("--quick", help="Take only a few measurements.")]


class _Benchmark(TyperCommand):
    """A command line with one verb that reports errors as ``trnrt`` does."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Read the flags."""
        with exit_codes():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run the benchmark."""
        with exit_codes():
            return super().invoke(ctx)


def command_line(function: Callable[..., None]) -> typer.Typer:
    """The command line of a benchmark: the function's parameters are its flags."""
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.command(cls=_Benchmark)(function)
    return app


def show(reporting: Reporting, document: Document, parts: Callable[[], Sequence[RenderableType]]) -> None:
    """Print the document or, for a terminal, the parts; also write the document to a file if one is named."""
    text = as_text(document)
    say(text if reporting.as_json else render(parts()))
    if reporting.json_out is not None:
        write_text(reporting.json_out, text)


def fail_unless(passed: bool) -> None:
    """Exit with 1 if a bar is missed."""
    if not passed:
        raise typer.Exit(1)


def warn_if_busy() -> None:
    """Warn of busy cores: BLAS threads wait for each other, so a product of two threads may take a whole time slice."""
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
    if load > cores / 2:
        note(f"other programs keep this machine busy (load {load:.1f} on {cores} cores): don't trust two threads")

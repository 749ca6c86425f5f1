"""The command: predicts kernels of the commit 1e68255 with the present timing model and prints the table.

The kernels come from eight networks and the labs' cases. ``--write`` updates the table in the repository. Run it after
every change of the timing model; it takes some minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import trnrt
from benchmarks.baseline.library import Library
from benchmarks.baseline.networks import BY_NAME
from benchmarks.baseline.tables import Row, document, markdown, parts
from benchmarks.baseline.timing import time_case
from trnrt.errors import OptionError, TrnrtError
from trnrt.report.console import complain, render, say
from trnrt.report.documents import as_text

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
JSON, MARKDOWN = FOLDER / "table.json", FOLDER / "table.md"

Item = TypeVar("Item")


def main(arguments: Sequence[str] | None = None) -> int:
    """Time and print; the exit code."""
    asked = _parser().parse_args(arguments)
    try:
        library = Library.read()
        cases = choose(library, asked.names, asked.target)
        if asked.write:
            _check_writing(whole=len(cases) == len(library.cases))
        rows = time_cases(library, cases)
    except TrnrtError as error:
        complain(str(error), error.hint)
        return 2
    made = as_text(document(library, rows))
    if asked.write:
        JSON.write_text(made, encoding="utf-8")
        MARKDOWN.write_text(markdown(rows), encoding="utf-8")
    say(made if asked.json else render(parts(rows)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.baseline", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"only these: labs, {', '.join(BY_NAME)}, or parts of cases' names")
    parser.add_argument("--target", choices=("trn1", "trn2"), help="only this target")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--write", action="store_true", help=f"write {JSON.name} and {MARKDOWN.name}, too")
    return parser


def _check_writing(*, whole: bool) -> None:
    """Raise OptionError unless the whole table would be written, and by this checkout's model."""
    if not whole:
        raise OptionError("--write writes the whole table", hint="leave out the names and --target")
    used = Path(trnrt.__file__).parents[1]
    if used != ROOT:
        raise OptionError(f"--write: the trnrt that is imported is that of {used}", hint=f"set PYTHONPATH={ROOT}")


def choose(library: Library, names: Sequence[str], target: str | None = None) -> list[dict[str, Any]]:
    """The cases with these names, in the library's order; raises OptionError for an unknown name."""
    for name in names:
        if not any(_is_meant(case, name) for case in library.cases):
            raise OptionError(f"there is no case {name!r}", hint=f"there are labs, {', '.join(BY_NAME)}")
    return [
        case
        for case in library.cases
        if target in (None, case["target"]) and (not names or any(_is_meant(case, name) for name in names))
    ]


def _is_meant(case: dict[str, Any], name: str) -> bool:
    return (case["kind"] != "network" and name == "labs") or name in case["name"]


def time_cases(library: Library, cases: Sequence[dict[str, Any]]) -> list[Row]:
    """A row for each case."""
    with library.unpack(), _show_progress(cases) as each:
        return [Row.of(library, case, *time_case(case)) for case in each]


@contextmanager
def _show_progress(cases: Sequence[Item]) -> Iterator[Iterable[Item]]:
    """Yield the cases, with a progress bar on a terminal."""
    if not sys.stderr.isatty():
        yield cases
        return
    from rich.console import Console
    from rich.progress import track

    yield track(cases, "tracing and timing", console=Console(stderr=True), transient=True)

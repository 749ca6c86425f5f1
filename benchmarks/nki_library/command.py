"""The command: AWS's own kernels, with AWS's own tests, on the simulator.

Exits with 1 if a test fails that the list of known failures does not explain.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from benchmarks.nki_library.families import COMMIT, FAMILIES, REPOSITORY
from benchmarks.nki_library.running import Result, chosen, require, run_family, total
from benchmarks.nki_library.source import check_out
from trnrt.errors import TrnrtError
from trnrt.report.console import complain, render, say
from trnrt.report.documents import as_text
from trnrt.report.progress import working

_SCHEMA_VERSION = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch, run, print; the exit code."""
    asked = _parser().parse_args(arguments)
    try:
        families = chosen(asked.families)
        require()
        results = _run(families, asked)
    except TrnrtError as error:
        complain(str(error), error.hint)
        return 2
    say(as_text(document(results)) if asked.json else render(_page(results)))
    return 1 if total(results).unexplained else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nki_library", description=__doc__)
    parser.add_argument("families", nargs="*", help=f"all, or some of {', '.join(FAMILIES)}")
    parser.add_argument("--source", metavar="DIR", help="a clone or a bare mirror of nki-library, instead of GitHub")
    parser.add_argument("-n", "--workers", type=int, default=0, help="parallel processes; 0 runs in one")
    parser.add_argument("-k", dest="select", help="only tests whose names match, as pytest's -k")
    parser.add_argument(
        "--slow", action="store_true", help="run the tests that may need more than 20 GB of memory, too"
    )
    parser.add_argument("--no-capacity", action="store_true", help="let tiles take more SBUF than there is")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _run(families: Sequence[str], asked: argparse.Namespace) -> list[Result]:
    results = []
    with tempfile.TemporaryDirectory(prefix="nki-library-") as name:
        folder = Path(name)
        with working(f"cloning {asked.source or REPOSITORY}"):
            library = check_out(asked.source, folder)
        for family in families:
            with working(f"running {family}"):
                result = run_family(
                    library,
                    family,
                    folder,
                    workers=asked.workers,
                    capacity=not asked.no_capacity,
                    select=asked.select,
                    slow=asked.slow,
                )
                results.append(result)
    return results


def document(results: Sequence[Result]) -> dict[str, Any]:
    """The results as JSON: counts by family, and every failure with its reason, null if unknown."""
    rows = [_counts(result) | {"failures": [asdict(f) for f in result.failures]} for result in results]
    return {"schema_version": _SCHEMA_VERSION, "commit": COMMIT, "families": rows, "total": _counts(total(results))}


def _counts(result: Result) -> dict[str, Any]:
    return {
        "family": result.family,
        "passed": result.passed,
        "failed": result.failed,
        "unexplained": result.unexplained,
        "skipped": result.skipped,
        "seconds": round(result.seconds, 1),
    }


def _page(results: Sequence[Result]) -> list[Table | Text | str]:
    """A line for each family, then the failures by reason."""
    table = Table(box=None, pad_edge=False)
    for heading in ("family", "passed", "failed", "unexplained", "skipped", "seconds"):
        table.add_column(heading, justify="left" if heading == "family" else "right")
    for result in (*results, total(results)):
        style = "red" if result.unexplained else ""
        table.add_row(*(str(value) for value in _counts(result).values()), style=style)
    page: list[Table | Text | str] = [table]
    failures = total(results).failures
    for why in dict.fromkeys(failure.why for failure in failures):
        tests = [failure for failure in failures if failure.why == why]
        page += ["", Text(f"{len(tests)} failed: {why or 'NOT EXPLAINED'}", style="" if why else "bold red")]
        page += [Text(f"  {failure.test}" + ("" if why else f"\n    {failure.message}")) for failure in tests]
    return page

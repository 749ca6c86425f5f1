"""``trnrt nki port``: from the old namespace to today's NKI, source to source; what it can't translate is marked.

``trnrt --help`` imports this module for its flags: it imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnrt.commands.options import Reporting, flag
from trnrt.commands.views import Tracing
from trnrt.errors import OptionError

if TYPE_CHECKING:
    from trnrt.nki.porting import Ported
    from trnrt.nki.porting.comparing import Compared


@dataclass(frozen=True)
class Porting:
    """The place of the ported file, and whether the two files run."""

    diff: bool = flag("Output", "--diff", default=False, help="Print the changes, not the whole file.")
    output: Path | None = flag("Output", "--output", "-o", metavar="FILE", help="Write the ported file.")
    no_run: bool = flag(
        "Comparison",
        "--no-run",
        default=False,
        help="Run nothing. By default both files' kernels run in the simulator, and their numbers are compared.",
    )


def port_script(script: Path, tracing: Tracing, porting: Porting, reporting: Reporting) -> bool:
    """Port a file, compare the numbers, print the result; return whether nothing is left and all numbers agree."""
    from trnrt.commands.results import deliver
    from trnrt.nki.porting import port_source
    from trnrt.report.console import write_error
    from trnrt.report.files import check_writable, write_text

    _check_flags(script, tracing, porting)
    if porting.output is not None:
        check_writable(porting.output)
    old = _read(script)
    ported = port_source(old, str(script), nki=tracing.nki)
    compared = [] if ported.is_new or porting.no_run else _compare(script, ported, tracing)
    if porting.output is not None:
        write_text(porting.output, ported.text)
    document = _document(script, ported, compared)
    summary = _summary(script, ported, compared, ran=not porting.no_run)
    if porting.output is not None and not porting.diff:
        deliver(reporting, document, summary)
    else:
        deliver(reporting, document, _changes(script, old, ported.text) if porting.diff else ported.text)
        write_error(summary.rstrip("\n"))
    return not ported.marks and not ported.refused and all(call.equal for call in compared)


def _check_flags(script: Path, tracing: Tracing, porting: Porting) -> None:
    output = porting.output
    if output is not None and script.exists() and output.exists() and output.samefile(script):
        raise OptionError(f"--output {str(output)!r} is the old file itself", hint="name another file")
    if porting.no_run and tracing.calls:
        raise OptionError("--call has no use with --no-run", hint="leave one of them out")


def _read(script: Path) -> str:
    from trnrt.nki.checking import read_script

    return read_script(script)


def _compare(script: Path, ported: Ported, tracing: Tracing) -> list[Compared]:
    from trnrt.nki.porting.comparing import compare_ported

    return compare_ported(
        script,
        ported.text,
        tracing.calls or [],
        target=tracing.target,
        nki=tracing.nki,
        capacity=not tracing.no_capacity,
    )


def _changes(script: Path, old: str, new: str) -> str:
    """A unified diff: coloured for a terminal."""
    import difflib
    import sys

    from trnrt.report.console import render

    name = str(script)
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), name, f"{name} (ported)", lineterm=""))
    if not sys.stdout.isatty():
        return "".join(f"{line}\n" for line in lines)
    from rich.text import Text

    styles = {"+": "green", "-": "red", "@": "cyan"}
    return render([Text(line, styles.get(line[:1], ""), no_wrap=True, overflow="ignore") for line in lines])


def _summary(script: Path, ported: Ported, compared: list[Compared], *, ran: bool) -> str:
    """The report on a port: the marks that are left, and the comparison of the numbers."""
    from rich.text import Text

    from trnrt.report.console import render
    from trnrt.report.tables import findings_table
    from trnrt.text import count_text, name_text

    name = name_text(str(script))
    if ported.is_new:
        return f"{name} imports nothing of neuronxcc.nki: it is unchanged\n"
    parts: list[Any] = [Text(f"{name}: ported, {count_text(len(ported.marks), 'place')} left", "bold")]
    if ported.marks:
        parts += ["", _marks_table(name, ported)]
    if ported.refused:
        parts += ["", Text("Refused in the ported file", "bold"), findings_table(ported.refused)]
    if ported.notes:
        parts += ["", *[f"{name}:{line}: {text}" for line, text in ported.notes.items()]]
    parts += ["", _compared_table(compared) if compared else _not_compared(ran)]
    return render(parts)


def _marks_table(name: str, ported: Ported) -> Any:
    from trnrt.report.tables import plain_table
    from trnrt.text import escaped_lines

    rows = [(f"{name}:{m.line}", escaped_lines(m.reason), escaped_lines(m.instead)) for m in ported.marks]
    return plain_table(("where", "why it is unchanged", "what to write"), rows)


def _compared_table(compared: list[Compared]) -> Any:
    from rich.text import Text

    from trnrt.report.tables import plain_table
    from trnrt.text import escaped_lines, name_text

    verdicts = {True: Text("equal", "green"), False: Text("FAIL", "bold red")}
    rows = []
    for call in compared:
        found = "-" if call.difference is None else f"{call.difference:.1e}"
        share = "-" if call.ratio is None else f"{call.ratio:.2g}"
        text = f"{name_text(call.kernel)}({name_text(call.arguments)})"
        rows.append((text, found, share, escaped_lines(call.error) if call.error else verdicts[call.equal]))
    return plain_table(
        ("old and ported kernel", "largest difference", "of the tolerance", "numbers"), rows, right=(1, 2)
    )


def _not_compared(ran: bool) -> str:
    if not ran:
        return "The numbers were not compared (--no-run)."
    return "The numbers were not compared: the script calls no kernel. Name a call: --call 'kernel(f32[128,512])'"


def _document(script: Path, ported: Ported, compared: list[Compared]) -> dict[str, Any]:
    from trnrt.report.documents import SCHEMA_VERSION

    calls = [asdict(call) | {"equal": call.equal} for call in compared]
    for call in calls:
        infinite = [key for key in ("difference", "ratio") if call[key] == float("inf")]
        call |= dict.fromkeys(infinite)  # JSON has no infinity; ``equal`` is false
    return {
        "schema_version": SCHEMA_VERSION,
        "file": str(script),
        "is_new": ported.is_new,
        "text": ported.text,
        "left": [asdict(mark) for mark in ported.marks],
        "refused": [asdict(finding) for finding in ported.refused],
        "notes": [{"line": line, "note": text} for line, text in ported.notes.items()],
        "calls": calls,
    }

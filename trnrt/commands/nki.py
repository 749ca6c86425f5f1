"""``trnrt nki run`` and ``trnrt nki check``: run a kernel script on the simulator, or find what is wrong with it."""

from __future__ import annotations

from bdb import BdbQuit
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnrt import __version__
from trnrt.commands.options import Reporting
from trnrt.commands.results import deliver
from trnrt.commands.views import Checking, Tracing
from trnrt.errors import KernelError, OptionError
from trnrt.nki.level import Level, choose_level
from trnrt.report.console import complain, note, render, write_error
from trnrt.report.documents import as_text, check_document
from trnrt.report.files import check_writable, write_text
from trnrt.report.sarif import sarif_document
from trnrt.text import count_text, name_text

if TYPE_CHECKING:
    from trnrt.nki.checking import Report
    from trnrt.nki.machine.program import Program


def run_script(script: Path, arguments: Sequence[str], target: str | None, *, nki: Level | None, capacity: bool) -> int:
    """Run a script that says ``import nki``; return its exit code. ``nki``: the level, None for the default."""
    from trnrt.nki import scripts
    from trnrt.nki.legacy.artefacts import lend_reports
    from trnrt.nki.machine.memory import overflow_notes
    from trnrt.nki.machine.targets import overlay_in_use

    if not script.is_file():
        raise OptionError(f"there is no file {str(script)!r}")
    overlay_in_use()  # a wrong file in TRNRT_TIMING is no error of the script's
    level = choose_level(nki)
    with (
        scripts.environment(script, arguments, target, nki=level, capacity=capacity) as overflowed,
        lend_reports(_report_text),
    ):
        code = _run(script)
    note(*dict.fromkeys(text for program in overflowed for text in overflow_notes(program)))
    return code


def _report_text(programs: Sequence[Program]) -> str:
    """The HTML report on a kernel that ``nki.profile`` of the old namespace ran."""
    from trnrt.nki.profiling import profile_programs
    from trnrt.report.page import report_html

    profile = profile_programs(programs)
    return report_html(profile, f"{profile.kernel} on {profile.target}")


def _run(script: Path) -> int:
    """Run the script, and print its error if it ends with one; return its exit code."""
    from trnrt.nki import scripts

    try:
        scripts.run_main(script)
    except KernelError as error:
        complain(scripts.with_code(error), error.hint)
        return 1
    except SystemExit as error:
        code, message = scripts.exit_code(error)
        if message:
            write_error(message)
        return code
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except BdbQuit:  # the user left the debugger
        return 1
    except BaseException as error:
        write_error(scripts.script_traceback(error))
        return 1
    return 0


def check_script(script: Path, tracing: Tracing, checking: Checking, reporting: Reporting) -> bool:
    """Print the findings in a kernel file; return true if there are none."""
    from trnrt.nki.checking import check

    if checking.sarif is not None:
        check_writable(checking.sarif)
    report = check(
        script, tracing.calls or [], target=tracing.target, nki=tracing.nki, capacity=not tracing.no_capacity
    )
    if checking.sarif is not None:
        write_text(checking.sarif, as_text(sarif_document(report, version=__version__)))
    deliver(reporting, check_document(report), _text(report))
    note(*report.notes)
    return report.clean


def _text(report: Report) -> str:
    from rich.text import Text

    from trnrt.report.tables import calls_table, findings_table

    counts = f"{count_text(len(report.findings), 'finding')}, {count_text(len(report.calls), 'call')} traced"
    parts: list[Any] = [Text(f"{name_text(report.file)} on {report.target}, NKI {report.level}: {counts}", "bold")]
    if report.calls:
        parts += ["", calls_table(report.calls, clean=report.clean)]
    if report.findings:
        parts += ["", findings_table(report.findings)]
    if report.warnings:
        parts += ["", Text(count_text(len(report.warnings), "warning"), "bold"), findings_table(report.warnings)]
    return render(parts)

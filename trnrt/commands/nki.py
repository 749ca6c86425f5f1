"""``trnrt nki``: a kernel script on the simulator, and what is wrong with one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnrt.commands.options import Reporting
from trnrt.errors import KernelError, OptionError
from trnrt.report.console import complain, note, render, say, write_error
from trnrt.report.documents import as_text, check_document
from trnrt.report.files import write_text
from trnrt.text import count_text, name_text

if TYPE_CHECKING:
    from trnrt.nki.checking import Report


def run_script(script: Path, arguments: Sequence[str], target: str | None, *, capacity: bool = True) -> int:
    """Run a script that says ``import nki``; the exit code that it ends with."""
    from trnrt.nki import scripts
    from trnrt.nki.machine.memory import overflow_notes

    if not script.is_file():
        raise OptionError(f"there is no file {str(script)!r}")
    with scripts.environment(script, arguments, target, capacity=capacity) as overflowed:
        code = _run(script)
    for told in dict.fromkeys(told for program in overflowed for told in overflow_notes(program)):
        note(told)
    return code


def _run(script: Path) -> int:
    """Run the script, and print what it ends with; its exit code."""
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
    except BaseException as error:
        write_error(scripts.script_traceback(error))
        return 1
    return 0


def check_script(
    script: Path, calls: Sequence[str], target: str | None, reporting: Reporting, *, capacity: bool = True
) -> bool:
    """Print what is wrong with a kernel file; tell whether nothing is."""
    from trnrt.nki.checking import check

    report = check(script, calls, target=target, capacity=capacity)
    document = as_text(check_document(report))
    say(document if reporting.as_json else _text(report))
    if reporting.json_out is not None:
        write_text(reporting.json_out, document)
    for told in report.notes:
        note(told)
    return report.clean


def _text(report: Report) -> str:
    from rich.text import Text

    from trnrt.report.tables import calls_table, findings_table

    counts = f"{count_text(len(report.findings), 'finding')}, {count_text(len(report.calls), 'call')} traced"
    parts: list[Any] = [Text(f"{name_text(report.file)} on {report.target}: {counts}", "bold")]
    if report.calls:
        parts += ["", calls_table(report.calls)]
    if report.findings:
        parts += ["", findings_table(report.findings)]
    if report.warnings:
        parts += ["", Text(count_text(len(report.warnings), "warning"), "bold"), findings_table(report.warnings)]
    return render(parts)

"""``check``: find what is wrong with a kernel file, without computing any data.

It reads the file for what the NKI compiler refuses. Then it runs the script, traces every kernel call for its shapes
and returns zeros. Instead of the script's calls, it can trace calls given as text (``calls.parse_call``).
"""

from __future__ import annotations

import linecache
import re
import sys
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from inspect import isfunction
from pathlib import Path
from tokenize import open as open_source
from types import CodeType, ModuleType
from typing import Any

import numpy as np

from trnrt.nki import scripts
from trnrt.nki.calls import Call, describe, parse_call
from trnrt.nki.errors import KernelError, KernelMemoryError, OptionError
from trnrt.nki.level import Level, choose_level, default_level
from trnrt.nki.machine.loops import add_counts, count_instructions
from trnrt.nki.machine.memory import overflow_notes
from trnrt.nki.machine.program import Program, Source
from trnrt.nki.machine.targets import get_target
from trnrt.nki.machine.unwritten import unwritten_reads
from trnrt.nki.sim.kernel import Kernel, Simulated, default_target, intercept_calls
from trnrt.nki.sim.subset import check_api, check_source, load_api
from trnrt.nki.sim.subset_api import find_deprecated
from trnrt.nki.sim.subset_source import Finding
from trnrt.nki.tolerating import skip_breakpoints, tolerate_zeros

UNWRITTEN = "unwritten-memory"
_WRITE_IT = "Write it first (nisa.memset, a copy), or use the part that is written: a device has any bytes there"
_CALL_IT = "Make the script run, or name the calls with --call"
_OLD_IMPORT = re.compile(r"^\s*(?:from|import)\s+neuronxcc\b", re.MULTILINE)
_IMPORT = re.compile(r"^\s*(?:from|import)\s+(?:trnrt\.)?nki\b", re.MULTILINE)
_RULE = re.compile(r"^  rule ([\w-]+): (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class CheckedCall:
    """A kernel call and the result of tracing it; the numbers are None if that ended in ``error``.

    ``fits``: False if the call takes more SBUF or PSUM than the device has, which ``capacity=False`` allows. On several
    cores ``instructions`` counts those of all, a device loop's body once, and the bytes (a partition) are those of the
    core that takes most.
    """

    kernel: str
    arguments: str
    instructions: int | None = None
    sbuf_peak_bytes: int | None = None
    psum_peak_bytes: int | None = None
    fits: bool | None = None
    error: str | None = None


@dataclass
class Report:
    """The findings of ``check`` in a file. Equal calls are listed once. ``notes`` say what was not checked, and why.

    ``failures``: one finding for each call that could not be traced, or for the whole script. ``warnings``: lines that
    AWS's compiler may refuse, or names that it deprecates; a file can be clean with them. ``level``: the release of NKI
    that it is checked against.
    """

    file: str
    target: str
    level: Level = field(default_factory=default_level)
    findings: list[Finding] = field(default_factory=list)
    calls: list[CheckedCall] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    failures: list[Finding] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not self.findings


Observer = Callable[[CheckedCall, list[Program]], None]  # gets every traced call with the program of each core


def check(
    script: Path,
    calls: Sequence[str] = (),
    *,
    target: str | None = None,
    nki: Level | str | None = None,
    observer: Observer | None = None,
    capacity: bool = True,
) -> Report:
    """Check a file and the kernel calls of its script; with ``calls`` those calls instead.

    ``nki``: the release of NKI to check against, "0.6" or "0.7"; by default the level that holds (``level``).
    ``observer`` gets each call's programs once; a KernelError that it raises becomes a finding. Without ``capacity`` a
    call may take more SBUF and PSUM than there is; a note then says how much.

    Raises:
        OptionError: if there is no such file, a call can't be read, or the file has no kernel of its name.
    """
    asked = [parse_call(text) for text in calls]
    source = read_script(script)
    with scripts.environment(script, (), target, nki=choose_level(nki), capacity=capacity):
        report = Report(str(script), get_target(target or default_target()).name)
        report.findings = static_findings(source, str(script), level=report.level)
        report.failures = [finding for finding in report.findings if finding.rule == "syntax"]
        if report.failures:
            return report
        if is_old_file(source):
            report.notes.append(
                f"{script.name} is of the old namespace, neuronxcc.nki (Beta 1): its calls are checked by the hardware"
                f"'s limits, its text not by NKI {report.level}, which has no such module; `trnrt nki port` rewrites it"
            )
        report.warnings = find_deprecated(source, str(script), load_api(report.level))
        recorder = _Recorder(report, script, observer)
        with skip_breakpoints(report.notes.append):
            if asked:
                _trace_asked(script, asked, recorder)
            else:
                _run_script(script, recorder)
    for found in (report.findings, report.warnings):
        found.sort(key=lambda finding: (finding.file != report.file, finding.file, finding.line, finding.column))
    return report


def read_script(script: Path) -> str:
    """The text of a script; OptionError if it can't be read."""
    if not script.is_file():
        raise OptionError(f"there is no file {str(script)!r}")
    try:
        with open_source(str(script)) as file:  # in the encoding that the file declares
            return file.read()
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise OptionError(f"can't read {str(script)!r}: {error}") from None


def is_old_file(source: str) -> bool:
    """True if a file imports the old namespace, ``neuronxcc.nki``, and nothing of today's."""
    return _OLD_IMPORT.search(source) is not None and _IMPORT.search(source) is None


def static_findings(
    source: str, name: str, entries: Collection[int] = (), *, level: Level | str | None = None
) -> list[Finding]:
    """The findings of a level's language and API in a file, in order of lines (``entries``: see ``check_source``).

    No level's language binds a file of the old namespace, whose kernels the simulator traces by its own rules.
    """
    at = choose_level(level)
    if is_old_file(source):
        return [finding for finding in check_source(source, name, level=at) if finding.rule == "syntax"]
    found = [*check_source(source, name, entries=entries, level=at), *check_api(source, name, load_api(at))]
    if at is Level.nki_0_6:  # a risk of its parser
        from trnrt.nki.sim.subset_constants import check_constants

        found += check_constants(source, name, entries)
    return sorted(dict.fromkeys(found), key=lambda finding: (finding.line, finding.column, finding.rule))


class _Recorder:
    """Traces each different kernel call once, for a report."""

    def __init__(self, report: Report, script: Path, observer: Observer | None = None) -> None:
        self.report = report
        self._observer = observer
        self.path = str(script.resolve())
        self._refused = {self.path: {finding.line for finding in report.findings}}
        self._seen: dict[tuple[Any, ...], Program | KernelError] = {}
        self._entries: set[tuple[str, int]] = set()  # file and first line of each kernel that was called

    def __call__(self, kernel: Simulated, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Trace an intercepted call; return zeros of the kernel's shapes, or raise the error of the trace."""
        arguments = describe(args, kwargs)
        key = kernel.function, arguments, (kernel.target.name, kernel.cores)
        if key not in self._seen:
            try:
                self._seen[key] = self._trace_call(kernel, args, kwargs)
            except KernelError as error:
                self.report.calls.append(CheckedCall(_name(kernel), arguments, error=str(error)))
                code = kernel.function.__code__
                definition = Source(code.co_filename, code.co_firstlineno, code.co_name)
                self._add(_finding(error, scripts.place_of(error) or self._call_site() or definition))
                self._seen[key] = error
        found = self._seen[key]
        if isinstance(found, KernelError):
            raise found
        return found.call_result([np.zeros(view.shape, view.dtype.numpy) for view in found.outputs])

    def _trace_call(self, kernel: Simulated, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Program:
        # Trace a file that the compiler refuses leniently, to check the rest of it.
        strict = not self._lines_refused(kernel.function.__code__)
        checked = Simulated(kernel.kernel, kernel.target, strict=strict, capacity=kernel.capacity)
        programs = checked.trace(*args, **kwargs)
        uses = [program.memory for program in programs if program.memory is not None]
        self.report.notes += dict.fromkeys(note for program in programs for note in overflow_notes(program))
        self._report_doubts(programs)
        call = CheckedCall(
            _name(kernel),
            describe(args, kwargs),
            add_counts(map(count_instructions, programs)).compiled,
            max(use.sbuf_peak_bytes for use in uses),
            max(use.psum_peak_bytes for use in uses),
            all(use.fits for use in uses),
        )
        if self._observer is not None:
            self._observer(call, programs)
        self.report.calls.append(call)
        return programs[0]

    def _report_doubts(self, programs: list[Program]) -> None:
        """Report reads of unwritten memory, and what the hardware may refuse."""
        for read in unwritten_reads(programs):
            place = read.source
            self._add(Finding(place.file, place.line, 1, UNWRITTEN, str(read), _WRITE_IT), stops=False)
        for doubt in [doubt for program in programs for doubt in program.doubts]:
            place = doubt.source
            warning = Finding(place.file, place.line, 1, doubt.rule.name, doubt.message, doubt.rule.says)
            warning = self._in_report(warning)
            if warning not in self.report.warnings:
                self.report.warnings.append(warning)

    def _in_report(self, finding: Finding) -> Finding:
        """A finding with the script's name as it is in the report."""
        return replace(finding, file=self.report.file if finding.file == self.path else finding.file)

    def _lines_refused(self, code: CodeType) -> set[int]:
        """The lines that the static check refuses in a kernel's file.

        Add them to the report if only a call shows that they are a kernel's: a plain function, or an imported file.
        """
        file, entry = code.co_filename, (code.co_filename, code.co_firstlineno)
        if entry in self._entries:
            return self._refused[file]
        self._entries.add(entry)
        shown = self.report.file if file == self.path else file
        source, level = "".join(linecache.getlines(file)), self.report.level
        found = static_findings(source, shown, [code.co_firstlineno], level=level)
        old = find_deprecated(source, shown, load_api(level))
        self.report.warnings += [warning for warning in old if warning not in self.report.warnings]
        self.report.findings += [finding for finding in found if finding not in self.report.findings]
        self._refused.setdefault(file, set()).update(finding.line for finding in found)
        return self._refused[file]

    def _call_site(self) -> Source | None:
        """The script's line that is running."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename != self.path:
            frame = frame.f_back
        here = frame.f_code.co_filename == self.path
        return Source(self.path, frame.f_lineno, frame.f_code.co_name) if here else None

    def _add(self, finding: Finding, *, stops: bool = True) -> None:
        """Add a finding of a trace to the report, unless its line is refused already. ``stops``: it ended the trace."""
        refused = finding.line in self._refused.get(finding.file, ())
        finding = self._in_report(finding)
        if stops:
            self.report.failures.append(finding)
        if not refused and finding not in self.report.findings:
            self.report.findings.append(finding)


def _name(kernel: Simulated) -> str:
    """A kernel's name as ``parse_call`` reads it, with its cores if there are several."""
    return f"{kernel.function.__name__}{kernel.kernel.brackets}"


def _finding(error: KernelError, place: Source) -> Finding:
    """A KernelError as a finding: its rule, what is wrong, and what to do."""
    text = str(error)
    rule = _RULE.search(text)
    message = text.split("\n  rule ")[0].split("\n  at ")[0]
    instead = error.hint or (rule.group(2) if rule else "")
    name = rule.group(1) if rule else "memory" if isinstance(error, KernelMemoryError) else "kernel"
    return Finding(place.file, place.line, 1, name, message, instead)


def _run_script(script: Path, recorder: _Recorder) -> None:
    report = recorder.report
    with intercept_calls(recorder), tolerate_zeros():
        stopped = ending_error(lambda: scripts.run_main(script))
    if stopped is not None:
        _report_stop(stopped, recorder)
    if not report.calls:
        report.notes.append("the script called no kernel; --call traces one")


def ending_error(run: Callable[[], None]) -> BaseException | None:
    """The error that ended a run of the user's code, or None."""
    try:
        run()
    except (KeyboardInterrupt, BrokenPipeError):
        raise
    except SystemExit as error:
        return error if scripts.exit_code(error)[0] else None
    except BaseException as error:
        return error
    return None


def _report_stop(error: BaseException, recorder: _Recorder) -> None:
    """Report a script that stopped: a failure before its first kernel call. Later it may be due to the zeros."""
    report = recorder.report
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == recorder.path]
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == recorder.path else None
    line = line or (lines[-1] if lines else 1)
    what = f"{type(error).__name__}: {error}".strip().splitlines()[0].removesuffix(":")
    if not report.calls:
        finding = Finding(report.file, line or 1, 1, "script", f"the script stopped: {what}", _CALL_IT)
        report.findings.append(finding)
        report.failures.append(finding)
    elif not isinstance(error, KernelError):
        report.notes.append(f"the script stopped at line {line}, after kernels had returned zeros: {what}")


def _trace_asked(script: Path, asked: Sequence[Call], recorder: _Recorder) -> None:
    """Import the script's module without running its kernels, and trace the given calls."""
    module = ModuleType(script.stem)
    unasked = _Recorder(Report(recorder.report.file, recorder.report.target, recorder.report.level), script)
    with intercept_calls(unasked), tolerate_zeros():
        stopped = ending_error(lambda: scripts.import_module(script, module))
    kernels = [_kernel(module, call, stopped, recorder) for call in asked]
    for kernel, call in zip(kernels, asked, strict=True):
        if kernel is not None:
            with suppress(KernelError):  # it is in the report
                recorder(kernel, call.args, dict(call.kwargs))


def kernel_named(module: ModuleType, call: Call) -> Kernel | None:
    """The kernel of a file that a call names, on its cores or grid; None if there is none of this name.

    Raises:
        OptionError: if there are no such cores.
    """
    value = getattr(module, call.kernel, None)
    value = getattr(value, "kernel", value)  # with the options of `nki.benchmark`, in the old namespace
    if not (isinstance(value, Kernel) or isfunction(value)):
        return None
    kernel = value if isinstance(value, Kernel) else Kernel(value)
    try:
        return kernel if call.cores is None else kernel[call.cores]  # type: ignore[index]
    except KernelError as error:
        raise OptionError(str(error)) from None


def _kernel(module: ModuleType, call: Call, stopped: BaseException | None, recorder: _Recorder) -> Simulated | None:
    """The kernel that a call names; None, with a finding, if the module stopped before its definition."""
    value = kernel_named(module, call)
    if value is not None:
        return Simulated(value, get_target(recorder.report.target))
    if stopped is not None:
        _report_stop(stopped, recorder)
        return None
    names = ", ".join(name for name, value in vars(module).items() if isinstance(value, Kernel))
    raise OptionError(
        f"{recorder.report.file} has no kernel {call.kernel!r}",
        hint=f"it has {names}" if names else "it has no kernels",
    )

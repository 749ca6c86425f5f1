"""``trnrt calibrate``: what self-test reports of a device say about the timing model's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from trnrt import __version__
from trnrt.commands.options import Reporting
from trnrt.commands.results import deliver
from trnrt.errors import ReportError
from trnrt.report.console import note, render
from trnrt.report.files import check_writable, write_text
from trnrt.report.progress import counting
from trnrt.text import count_text

if TYPE_CHECKING:
    from trnrt.calibration.comparing import Compared
    from trnrt.calibration.learning import Learned
    from trnrt.calibration.reports import Report
    from trnrt.nki.machine.overlays import Overlay


def calibrate(files: Sequence[Path], output: Path | None, reporting: Reporting) -> bool:
    """Fit, print the comparison, and write the overlay; return whether the reports decide a number.

    The fit starts from the target's own numbers, not from those in TRNRT_TIMING: an overlay has all that is fitted.

    Raises OptionError for files that are no reports, and ReportError for reports without a device's times.
    """
    from trnrt.nki.machine.overlays import TIMING_VARIABLE, without_overlay

    with without_overlay() as overlay:
        if overlay:
            note(f"{TIMING_VARIABLE}={overlay} is not used here: the fit starts from the target's own numbers")
        return _calibrate(files, output, reporting)


def _calibrate(files: Sequence[Path], output: Path | None, reporting: Reporting) -> bool:
    from trnrt.calibration.comparing import compare
    from trnrt.calibration.learning import LONGEST, Predictions, learn
    from trnrt.calibration.reports import check_same_target, probed_observations, program_of, read_report
    from trnrt.nki.machine.targets import get_target
    from trnrt.report.calibration import calibration_document, calibration_parts

    for path in (output, reporting.json_out):
        if path is not None:
            check_writable(path)
    reports = [read_report(path) for path in files]
    target = check_same_target(reports)
    observations = probed_observations(reports)
    if not observations:
        raise ReportError("no report has a probe's time", hint="run the self-test without --case")
    predictions = Predictions(get_target(target).timing, lambda name: program_of(name, target))
    with counting("fitting", LONGEST * len(observations), unit="cases") as advance:
        learned = learn(observations, predictions, lambda: advance(1))
    rows = compare(reports, predictions, learned)
    overlay = _overlay(target, reports, learned, rows)
    document = calibration_document(target, reports, learned, rows, version=__version__)
    deliver(reporting, document, render(calibration_parts(target, reports, learned, rows)))
    foreign = sum(len(report.foreign) for report in reports)
    if foreign:
        note(f"{count_text(foreign, 'case')} left out: this version of trnrt has others of these names")
    calls = sum(len(report.calls) for report in reports)
    if calls:
        note(f"{count_text(calls, 'time')} left out: each call compiled (route jit); --route neff times the device")
    if overlay is None:
        note("the reports decide no number: no overlay is written" if output else "the reports decide no number")
        return False
    if output is not None:
        from trnrt.nki.machine.overlays import overlay_text

        write_text(output, overlay_text(overlay))
        note(f"use the numbers with --timing {output}")
    return True


def _overlay(target: str, reports: Sequence[Report], learned: Learned, rows: Sequence[Compared]) -> Overlay | None:
    """The decided numbers with where they come from; None if there are none."""
    from trnrt.calibration.comparing import median_errors
    from trnrt.nki.machine.overlays import MeasuredNumber, MeasuredReport, Overlay

    known = [row for row in rows if row.is_known and row.after_us is not None]
    if not learned.decided_numbers or not known:
        return None
    before, after = median_errors(known)
    numbers = tuple(MeasuredNumber(n.name, n.value, n.low, n.high, n.before) for n in learned.decided_numbers)
    sources = tuple(MeasuredReport(report.digest, report.made, report.versions) for report in reports)
    made = datetime.now(UTC).date().isoformat()
    return Overlay(target, made, __version__, before, after or 0.0, sources, numbers, "")

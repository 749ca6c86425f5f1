"""``python -m benchmarks.timing``: compare predictions with published times, or with a device's profile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from benchmarks.command import command_line, fail_unless, show
from trnrt.commands.exits import call
from trnrt.commands.options import JsonFlag, JsonOutFlag, Reporting
from trnrt.commands.verbs import option
from trnrt.errors import OptionError
from trnrt.report.files import check_writable, write_text
from trnrt.report.progress import counting, working

FitFlag = Annotated[bool, option("--fit", help="Fit the free parameters, and leave each time out.")]
LaddersFlag = Annotated[
    bool,
    option("--ladders", help="Rank the steps of each ladder by a fit without it, and keep that; takes minutes."),
]
ProfilesFlag = Annotated[
    list[Path] | None,
    option(
        "--trace",
        metavar="FILE",
        help="Compare a device's profile (the profiler's JSON) with our timeline, event by event; repeatable.",
        show_default=False,
    ),
]
KernelFlag = Annotated[
    str | None,
    option(
        "--kernel",
        metavar="NAME",
        help="The traces' kernel; guessed from their work if left out.",
        show_default=False,
    ),
]
PictureFlag = Annotated[
    Path | None,
    option(
        "--trace-out",
        metavar="FILE",
        help="Write each profile and our timeline as two processes to open in Perfetto.",
        show_default=False,
    ),
]


def compare_times(
    fit: FitFlag = False,
    ladders: LaddersFlag = False,
    trace: ProfilesFlag = None,
    kernel: KernelFlag = None,
    trace_out: PictureFlag = None,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Compare the timing model's predictions with published times; exit 1 if they are too far off."""
    if trace:
        if fit or ladders:
            flag = "--fit" if fit else "--ladders"
            raise OptionError(f"{flag} and --trace are different comparisons: give one of them")
        _compare_traces(Reporting(as_json, json_out), trace, kernel, trace_out)
        return
    if kernel is not None or trace_out is not None:
        raise OptionError("--kernel and --trace-out need a profile: name it with --trace")
    _compare_published(Reporting(as_json, json_out), fit=fit, refit_ladders=ladders)


def _compare_published(reporting: Reporting, *, fit: bool, refit_ladders: bool) -> None:
    """Compare published kernels and instructions; exit 1 unless within the bars, also with authors or ladders left
    out."""
    from benchmarks.timing.calibration import Calibration, shortening_error
    from benchmarks.timing.instructions import compare_instructions
    from benchmarks.timing.ladders import LADDERS, keep_rankings, rank_ladders, read_rankings
    from benchmarks.timing.report import timing_document, timing_parts
    from benchmarks.timing.table import compare
    from trnrt.calibration.fit import Model
    from trnrt.calibration.fit import fit as fit_model

    with working("timing the published kernels"):
        rows, instructions = tuple(compare(short=True)), tuple(compare_instructions())
    model = Model()
    if refit_ladders:
        with counting("fitting without each ladder", len(LADDERS), unit="ladders") as advance:
            keep_rankings(rank_ladders(model, LADDERS, advance))
    found = Calibration(rows, instructions, ladders=read_rankings())
    if fit:
        with working("fitting the free parameters, with and without each author"):
            found = replace(found, fit=fit_model(model), shortening_error=shortening_error())
    show(reporting, timing_document(found), lambda: timing_parts(found))
    fail_unless(found.passed)


def _compare_traces(reporting: Reporting, traces: list[Path], kernel: str | None, picture: Path | None) -> None:
    """Compare profiles of a device with our timelines of the same kernels, event by event."""
    from benchmarks.timing.traces.comparing import compare
    from benchmarks.timing.traces.picture import pairs_text
    from benchmarks.timing.traces.report import traces_document, traces_parts

    for path in (picture, reporting.json_out):
        if path is not None:
            check_writable(path)
    found = []
    for trace in traces:
        with working(f"comparing {trace.name}"):
            found.append(compare(trace, kernel))
    show(reporting, traces_document(found), lambda: traces_parts(found))
    if picture is not None:
        write_text(picture, pairs_text(found))


app = command_line(compare_times)

if __name__ == "__main__":
    call(app)

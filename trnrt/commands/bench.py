"""``trnrt bench``: how fast trnrt is on this machine, against numpy and PyTorch, and whether that is fast enough."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnrt.commands.options import Reporting
from trnrt.report.console import note, render, say, working
from trnrt.report.documents import as_text, bench_document
from trnrt.report.files import check_writable, write_text

if TYPE_CHECKING:
    from trnrt.bench.measuring import Row
    from trnrt.bench.models.table import Row as ModelRow


def bench_simulator(reporting: Reporting, *, quick: bool) -> bool:
    """Measure the simulator; tell whether no bar was missed."""
    from trnrt.bench.networks import measure_networks
    from trnrt.bench.simulator import CASES
    from trnrt.bench.worker import measure

    _warn_if_busy()
    rows: list[Row] = []
    for name in CASES:
        with working(f"measuring {name}"):
            rows += measure(name, quick=quick)
    rows += measure_networks(quick=quick, working=lambda name: working(f"measuring {name}"))
    document = as_text(bench_document("simulator", rows, quick=quick))
    say(document if reporting.as_json else _text(rows))
    if reporting.json_out is not None:
        write_text(reporting.json_out, document)
    return all(row.passed is not False for row in rows)


def bench_serve(reporting: Reporting, *, quick: bool) -> bool:
    """Measure the server under load, a shutdown and a crash; tell whether no bar was missed."""
    from trnrt.bench.serving.cases import CASES, measure, require

    require()
    _warn_if_busy()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in CASES:
            with working(f"measuring {name}"):
                rows += measure(name, Path(folder), quick=quick)
    document = as_text(bench_document("serve", rows, quick=quick))
    say(document if reporting.as_json else _text(rows))
    if reporting.json_out is not None:
        write_text(reporting.json_out, document)
    return all(row.passed is not False for row in rows)


def bench_timing(reporting: Reporting, *, fit: bool) -> bool:
    """Compare the timing model with published times; tell whether it is within the bars, with authors left out, too."""
    from trnrt.bench.timing.calibration import Calibration, shortening_error
    from trnrt.bench.timing.instructions import compare_instructions
    from trnrt.bench.timing.table import compare
    from trnrt.calibration.fit import Model
    from trnrt.calibration.fit import fit as fitted
    from trnrt.report.calibration import timing_document, timing_parts

    with working("timing the published kernels"):
        rows, instructions = tuple(compare(short=True)), tuple(compare_instructions())
    found = Calibration(rows, instructions)
    if fit:
        with working("fitting the free parameters, with and without each author"):
            found = Calibration(rows, instructions, fitted(Model()), shortening_error())
    document = as_text(timing_document(found))
    say(document if reporting.as_json else render(timing_parts(found)))
    if reporting.json_out is not None:
        write_text(reporting.json_out, document)
    return found.passed


def bench_traces(reporting: Reporting, traces: list[Path], *, kernel: str | None, picture: Path | None) -> None:
    """Compare profiles of a device with our timelines of the same kernels, event by event."""
    from trnrt.bench.timing.traces.comparing import compare
    from trnrt.report.trace_pairs import pairs_text
    from trnrt.report.traces import traces_document, traces_parts

    for path in (picture, reporting.json_out):
        if path is not None:
            check_writable(path)
    found = []
    for trace in traces:
        with working(f"comparing {trace.name}"):
            found.append(compare(trace, kernel))
    document = as_text(traces_document(found))
    say(document if reporting.as_json else render(traces_parts(found)))
    if reporting.json_out is not None:
        write_text(reporting.json_out, document)
    if picture is not None:
        write_text(picture, pairs_text(found))


def bench_labs(reporting: Reporting, *, check: bool) -> bool:
    """Predict the labs' cases (with ``check``: run them, too); tell whether no bar is missed."""
    from trnrt.bench.labs.cases import row
    from trnrt.bench.labs.checking import check as checked_numbers
    from trnrt.bench.labs.table import CASES
    from trnrt.report.labs import labs_document, labs_parts

    rows, checked = [], []
    for case in CASES:
        with working(f"predicting {case.name} on {case.target}"):
            rows.append(row(case))
        if check:
            with working(f"checking {case.name} on {case.target}"):
                checked.append(checked_numbers(case))
    document = labs_document(rows, checked if check else None)
    text = as_text(document)
    say(text if reporting.as_json else render(labs_parts(rows, checked if check else None)))
    if reporting.json_out is not None:
        write_text(reporting.json_out, text)
    return bool(document["passed"])


def bench_kernels(reporting: Reporting, *, target: str, trials: int) -> None:
    """Show how near the kernels come to the hardware's limit over random shapes."""
    from trnrt.bench.shapes.families import FAMILIES, measure
    from trnrt.report.labs import shares_document, shares_table

    shares = []
    for family in FAMILIES:
        with working(f"predicting {family.name} in {family.dtype}"):
            shares.append(measure(family, target, trials))
    document = as_text(shares_document(shares))
    say(document if reporting.as_json else render([shares_table(shares)]))
    if reporting.json_out is not None:
        write_text(reporting.json_out, document)


def bench_models(reporting: Reporting, *, target: str, only: list[str]) -> bool:
    """Predict whole networks (``only`` those named, else all); tell whether no bar is missed."""
    from trnrt.bench.models.table import Model, named
    from trnrt.report.models import models_document, models_parts

    rows: list[ModelRow] = []
    for network in named(only):
        with working(f"predicting {network.name} on {target}"):
            rows += Model(network).rows(target)
    document = models_document(rows)
    text = as_text(document)
    say(text if reporting.as_json else render(models_parts(rows)))
    if reporting.json_out is not None:
        write_text(reporting.json_out, text)
    return bool(document["passed"])


def _warn_if_busy() -> None:
    """BLAS threads wait for each other: on cores that others use, a product of two threads takes a time slice."""
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
    if load > cores / 2:
        note(f"other programs keep this machine busy (load {load:.1f} on {cores} cores): don't trust two threads")


def _text(rows: list[Row]) -> str:
    from trnrt.report.tables import bench_table

    parts: list[Any] = [bench_table(rows)]
    return render(parts)

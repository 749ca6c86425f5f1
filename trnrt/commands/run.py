"""``trnrt run``: predictions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnrt.commands.drawing import Chosen, Drawn, choose_drawing, draw_finding, drawn_parts, note_drawable
from trnrt.commands.opening import (
    Feeding,
    batch_text,
    check_rows,
    feed,
    note_backend,
    open_session,
    prediction_text,
    run_notes,
    writing_errors,
)
from trnrt.commands.options import Reporting
from trnrt.commands.records import Drawing, SessionOptions, Showing
from trnrt.commands.results import deliver
from trnrt.report.console import note, render
from trnrt.report.documents import run_document
from trnrt.report.files import write_arrays
from trnrt.report.progress import working
from trnrt.report.top import Top, best_classes, choose_output, labels_of, looked_up_labels
from trnrt.text import quote

if TYPE_CHECKING:
    import numpy.typing as npt

    from trnrt.inputs.matching import Inputs
    from trnrt.session import InferenceSession


@dataclass(frozen=True)
class _Result:
    """A run's outputs by name, and the milliseconds it took, compiling included."""

    outputs: Mapping[str, npt.NDArray[Any]]
    top: Top | None
    drawn: Drawn | None
    rows: int
    wall_ms: float
    notes: list[str]


def run(
    model: Path,
    options: SessionOptions,
    feeding: Feeding,
    showing: Showing,
    drawing: Drawing,
    reporting: Reporting,
) -> None:
    """Run the model once, print its outputs, and write the requested files."""
    session = open_session(model, options)
    before = note_backend(session, options)
    check_rows(session, feeding.rows, "--rows")
    # Before the run, which may take long: a model without such an output is refused at once.
    classifier = showing.top and choose_output(session.model.outputs, session.metadata, showing.logits)
    inputs = feed(session, feeding)
    note(*inputs.notes)
    chosen = choose_drawing(session, inputs, drawing)
    result = _run(session, inputs, showing, classifier or None, chosen)
    result = replace(result, notes=[*before, *inputs.notes, *result.notes])
    document = run_document(
        session, result.outputs, result.top, wall_ms=result.wall_ms, full=showing.full, notes=result.notes
    ) | {"drawn": result.drawn and result.drawn.document}
    deliver(reporting, document, _text(session, result))
    if showing.output is not None:
        note(*write_arrays(showing.output, result.outputs))
    if showing.keep is not None:
        with writing_errors(showing.keep):
            files = session.save(showing.keep, partition=session.last_run.partition)
        note(f"kept {', '.join(quote(str(file)) for file in files)}")


def _run(
    session: InferenceSession, inputs: Inputs, showing: Showing, classifier: str | None, chosen: Chosen | None
) -> _Result:
    from trnrt.running.rows import as_matrix, count_rows

    names = [output.name for output in session.model.outputs]
    start = time.perf_counter()
    with working(f"compiling and running on the {session.backend}"):
        outputs = dict(zip(names, map(as_matrix, session.run(None, inputs.feeds)), strict=True))
    wall_ms = (time.perf_counter() - start) * 1000
    notes = run_notes(session)
    labels = labels_of(session.metadata) or looked_up_labels(session.model)
    drawn = None if chosen is None else draw_finding(chosen, outputs, labels)
    notes += note_drawable(session, inputs) if drawn is None else drawn.notes
    note(*notes)
    top = None
    if classifier is not None and showing.top is not None:
        top = best_classes(classifier, outputs[classifier], showing.top, labels=labels, softmax=showing.logits)
    return _Result(outputs, top, drawn, count_rows(session.model, inputs.feeds), wall_ms, notes)


def _text(session: InferenceSession, result: _Result) -> str:
    from rich.text import Text

    from trnrt.report.tables import ROWS_SHOWN, outputs_table, top_table

    parts: list[Any] = [outputs_table(result.outputs), ""]
    if result.top is not None:
        applied = ", softmax applied" if result.top.softmax else ""
        parts += [Text(f"best classes by output {quote(result.top.output)}{applied}"), top_table(result.top)]
        if (rest := len(result.top.rows) - ROWS_SHOWN) > 0:
            parts.append(Text(f"and {rest:,} more rows; --json has all"))
        parts.append("")
    if result.drawn is not None:
        parts += [*drawn_parts(result.drawn), ""]
    parts.append(Text(_last_line(session, result)))
    return render(parts)


def _last_line(session: InferenceSession, result: _Result) -> str:
    where = f"{session.backend}, target {session.target}, {session.dtype}"
    took = f"{batch_text(session, result.rows)} in {result.wall_ms:,.1f} ms on this machine, compiling included"
    return f"{where}: {took}{prediction_text(session)}"

"""``trnrt validate``: trnrt's numbers against onnxruntime's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trnrt.commands.opening import (
    Feeding,
    SessionOptions,
    batch_text,
    check_rows,
    feed,
    fixed_batch,
    open_session,
    prediction_text,
)
from trnrt.commands.options import Reporting
from trnrt.images import ImageOptions
from trnrt.inputs import Inputs
from trnrt.report.console import note, render, say, working
from trnrt.report.documents import as_text, validate_document
from trnrt.report.files import write_text
from trnrt.report.text import counted, shown

if TYPE_CHECKING:
    from trnrt.session import InferenceSession
    from trnrt.validate import ValidationReport

DEFAULT_SAMPLES = 64


@dataclass(frozen=True)
class ValidateRequest:
    """What the user asks of a validation; a tolerance of None is the default of the dtype."""

    files: list[str]
    images: ImageOptions
    samples: int | None
    seed: int
    rtol: float | None
    atol: float | None
    reporting: Reporting


def validate(model: Path, options: SessionOptions, request: ValidateRequest) -> bool:
    """Compare, print how far apart the two are, and tell whether that is within the tolerances."""
    session = open_session(model, options)
    inputs = _inputs(session, request)
    for told in inputs.notes:
        note(told)
    with working(f"running on the {session.backend} and with onnxruntime"):
        from trnrt.validate import validate as compare

        report = compare(session, inputs.feeds, rtol=request.rtol, atol=request.atol)
    for told in session.notes:
        note(told)
    document = validate_document(session, report, [*inputs.notes, *session.notes])
    say(as_text(document) if request.reporting.as_json else _text(session, report))
    if request.reporting.json_out is not None:
        write_text(request.reporting.json_out, as_text(document))
    return report.passed


def _inputs(session: InferenceSession, request: ValidateRequest) -> Inputs:
    check_rows(session, request.samples, "--samples")
    rows = request.samples or fixed_batch(session) or DEFAULT_SAMPLES
    inputs = feed(session, Feeding(request.files, request.images, rows, request.seed))
    if request.files and request.samples is not None:
        feeds = {name: array[: request.samples] if array.ndim else array for name, array in inputs.feeds.items()}
        return Inputs(feeds, inputs.notes)
    return inputs


def _text(session: InferenceSession, report: ValidationReport) -> str:
    from rich.text import Text

    from trnrt.report.tables import comparison_table

    verdict = Text("PASS", "bold green") if report.passed else Text("FAIL", "bold red")
    headline = Text.assemble(verdict, f" {shown(session.name)}: {', '.join(_findings(session, report))}")
    where = f"{session.backend}, target {session.target}, {session.dtype}, against onnxruntime"
    within = f"allowed: |difference| <= {report.atol:g} + {report.rtol:g} * |onnxruntime's|"
    return render([headline, "", comparison_table(report), "", Text(within), Text(where + prediction_text(session))])


def _findings(session: InferenceSession, report: ValidationReport) -> list[str]:
    findings = [batch_text(session, report.samples)]
    if report.changed_decisions is not None:
        findings.append(f"{counted(report.changed_decisions, 'decision')} changed")
    failed = sum(not output.passed for output in report.outputs)
    outputs = counted(len(report.outputs), "output")
    findings.append(f"{failed} of {outputs} beyond the tolerance" if failed else "all outputs within the tolerance")
    return findings

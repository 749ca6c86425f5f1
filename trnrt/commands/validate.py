"""``trnrt validate``: compares trnrt's numbers with onnxruntime's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnrt.commands.measuring import compare_simulator
from trnrt.commands.opening import (
    Feeding,
    batch_text,
    check_rows,
    feed,
    first_rows,
    note_backend,
    open_session,
    prediction_text,
    run_notes,
    writing_errors,
)
from trnrt.commands.options import Reporting
from trnrt.commands.records import IMAGE_FLAGS, Comparing, SessionOptions
from trnrt.commands.results import deliver
from trnrt.commands.sampling import own_data
from trnrt.errors import OptionError
from trnrt.inputs.images import ImageOptions
from trnrt.inputs.matching import Inputs, read_labelled
from trnrt.report.console import note, render
from trnrt.report.documents import validate_document
from trnrt.report.progress import stepping, working
from trnrt.text import count_text, error_text, list_text, name_text, quote

if TYPE_CHECKING:
    import numpy.typing as npt
    from rich.console import RenderableType

    from trnrt.session import InferenceSession
    from trnrt.validate import LayersReport, ValidationReport

DEFAULT_ROWS = 64
LAYERS_ROWS = 4
"""Random rows with --layers: each step runs twice, and its tensors are kept in float32 as well."""


@dataclass(frozen=True)
class Given:
    """The inputs that the user gives: files, or a file with labels; else rows are drawn."""

    files: list[str]
    data: Path | None
    images: ImageOptions
    rows: int | None
    seed: int


def validate(model: Path, options: SessionOptions, given: Given, comparing: Comparing, reporting: Reporting) -> bool:
    """Compare, print the errors, and return whether they are within the tolerances."""
    _check(given, comparing)
    session = open_session(model, options)
    before = note_backend(session, options)
    inputs, labels = _inputs(session, given, LAYERS_ROWS if comparing.layers else DEFAULT_ROWS)
    note(*inputs.notes)
    session = session.fitting(inputs.feeds)
    # Before the whole run, which keeps all tensors.
    layers = _layers(session, inputs, comparing) if comparing.layers else None
    with working(f"running on the {session.backend} and with onnxruntime"):
        from trnrt.validate import validate as compare

        report = compare(
            session,
            inputs.feeds,
            rtol=comparing.rtol,
            atol=comparing.atol,
            labels=labels,
            every_integer=comparing.layers,
        )
    if comparing.float_model is not None:
        report = _add_float_accuracy(report, session, comparing.float_model, inputs, labels)
    layers = layers or report.steps
    simulated = compare_simulator(model, options, session, inputs.feeds) if session.backend == "neuron" else None
    notes = [*run_notes(session), *report.notes, *(layers.notes if layers is not None else ())]
    note(*notes)
    document = validate_document(session, report, [*before, *inputs.notes, *notes], layers)
    if simulated is not None:
        document["simulator_max_abs"] = simulated
    deliver(reporting, document, _text(session, report, layers))
    return report.passed and (layers is None or layers.passed)


def _check(given: Given, comparing: Comparing) -> None:
    """OptionError for flags that contradict each other."""
    if given.data is not None and given.files:
        raise OptionError("--data and --input both give the inputs", hint="leave one of them out")
    if given.data is not None and given.images != ImageOptions():
        raise OptionError(f"{IMAGE_FLAGS} need an image; --data holds arrays", hint="leave them out")
    if comparing.float_model is not None and given.data is None:
        raise OptionError("--float compares accuracies, which need labels", hint="give rows and labels with --data")
    if comparing.bundle is not None and not comparing.layers:
        raise OptionError("--bundle needs --layers", hint="add --layers")
    if comparing.bundle_step is not None and comparing.bundle is None:
        raise OptionError("--bundle-step needs --bundle", hint="add --bundle DIR")


def _inputs(session: InferenceSession, given: Given, drawn: int) -> tuple[Inputs, npt.NDArray[Any] | None]:
    """The rows to compare, by default ``drawn`` random ones, and their labels if there are any."""
    check_rows(session, given.rows, "--rows")
    if given.data is None:
        return feed(session, Feeding(given.files, given.images, given.rows, given.seed, drawn)), None
    inputs, labels = read_labelled(given.data, session.model.inputs)
    if given.data == own_data():
        inputs.notes = [f"--data: the sample's own {count_text(len(labels), 'row')}, with labels"]
    return first_rows(inputs, given.rows), labels[: given.rows]


def _add_float_accuracy(
    report: ValidationReport,
    session: InferenceSession,
    model: Path,
    inputs: Inputs,
    labels: npt.NDArray[Any] | None,
) -> ValidationReport:
    """The report with the accuracy of the float model, which onnxruntime runs."""
    from trnrt.validate.floating import float_accuracy

    assert report.accuracy is not None and labels is not None
    with working(f"running {model} with onnxruntime"):
        found = float_accuracy(session, model, inputs.feeds, labels)
    return replace(report, accuracy=replace(report.accuracy, float_model=found))


def _layers(session: InferenceSession, inputs: Inputs, comparing: Comparing) -> LayersReport:
    from trnrt.validate import BundleRequest, validate_layers

    directory = comparing.bundle
    bundle = None if directory is None else BundleRequest(directory, comparing.bundle_step)
    # A directory that can't be written is refused before an hour's work.
    with writing_errors(directory or Path()):
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
        with stepping("comparing the steps") as progress:
            return validate_layers(session, inputs.feeds, bundle=bundle, progress=progress)


def _text(session: InferenceSession, report: ValidationReport, layers: LayersReport | None) -> str:
    from rich.text import Text

    from trnrt.report.tables import comparison_table, split_table, tolerance_text

    passed = report.passed and (layers is None or layers.passed)
    verdict = Text("PASS", "bold green") if passed else Text("FAIL", "bold red")
    headline = Text.assemble(verdict, f" {name_text(session.name)}: {', '.join(_findings(session, report, layers))}")
    reference = "onnxruntime" if report.integers is None else "the integer meaning"
    where = f"{session.backend}, target {session.target}, {session.dtype}, against {reference}"
    parts: list[RenderableType] = [headline, "", comparison_table(report), ""]
    if any(output.split is not None for output in report.outputs):
        parts += [split_table(report), ""]
    if layers is not None:
        parts += [*_layers_text(layers), ""]
    within = [Text(line) for line in tolerance_text(report, session.dtype)]
    return render([*parts, *within, Text(where + prediction_text(session))])


def _layers_text(layers: LayersReport) -> list[RenderableType]:
    from rich.text import Text

    from trnrt.report.layers import layers_table

    first = layers.first_failure
    compared = [layer for layer in layers.layers if layer.isolated is not None]
    if first is None:
        summary = f"{count_text(len(compared), 'step')} compared one by one: all within what rounding explains"
    else:
        failed = sum(not layer.passed for layer in compared)
        nodes = list_text([quote(name) for name in first.nodes])
        summary = (
            f"{failed} of {count_text(len(compared), 'step')} beyond what rounding explains, the first one: {nodes}"
        )
    bundle = [Text(f"bundle: pytest {name_text(str(path))}") for path in layers.bundle if path.suffix == ".py"]
    return [Text(summary), layers_table(layers), *bundle]


def _findings(session: InferenceSession, report: ValidationReport, layers: LayersReport | None) -> list[str]:
    """The headline: decisions first, where the model makes any, then the error."""
    findings = [batch_text(session, report.samples)]
    if report.changed_decisions is not None:
        findings = [f"{report.changed_decisions:,} of {count_text(report.samples, 'decision')} changed"]
    if report.accuracy is not None:
        both = (f"{100 * share:.2f} %" for share in (report.accuracy.ours, report.accuracy.reference))
        found = report.accuracy.float_model
        also = "" if found is None else f", the float model's {100 * found:.2f} %"
        findings.append("accuracy {}, onnxruntime's {}".format(*both) + also)
    floats = [output.max_abs for output in report.outputs if output.dtype.startswith(("float", "bfloat"))]
    if floats:
        findings.append(f"largest error {error_text(max(floats))}")
    failed = sum(not output.passed for output in report.outputs)
    outputs = count_text(len(report.outputs), "output")
    if not failed:
        findings.append("all outputs within the tolerance")
    elif all(o.passed or (o.split is not None and not o.split.float32_passed) for o in report.outputs):
        findings.append(f"{failed} of {outputs} off in float32, too")
    else:
        findings.append(f"{failed} of {outputs} beyond the tolerance")
    if layers is not None and layers.first_failure is not None:
        findings.append(f"step {quote(layers.first_failure.step)} is wrong")
    return findings

"""``trnrt profile``: a model's predicted latency on the device; runs nothing."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trnrt.commands.against import compare_models, differences_text, read_model, runs_of_model
from trnrt.commands.inspect import rows_to_plan
from trnrt.commands.measuring import attribute_captured, measure_parts, measured_document, measured_text
from trnrt.commands.opening import open_session
from trnrt.commands.options import Reporting
from trnrt.commands.profiling import Files, compare, page_text, prepare, profile_parts, warn
from trnrt.commands.records import SessionOptions
from trnrt.commands.trying import try_others
from trnrt.commands.views import Views
from trnrt.report.captured import attribution_document, attribution_parts
from trnrt.report.console import note, render, say
from trnrt.report.documents import Document, as_text
from trnrt.report.progress import working
from trnrt.text import range_text

if TYPE_CHECKING:
    from trnrt.neuron.measured import Measured
    from trnrt.planner.parts.partition import Partition
    from trnrt.session import InferenceSession


def profile(
    model: Path,
    options: SessionOptions,
    batch: int | None,
    views: Views,
    reporting: Reporting,
    device_profile: Path | None = None,
    against: Path | None = None,
) -> bool:
    """Predict the model's latency, print it, and return whether it is within the baseline's limit.

    ``against``: another run to compare it with.
    """
    baseline = prepare(views, reporting, "model")
    session = open_session(model, options)
    rows = rows_to_plan(session, batch)
    if baseline is not None:
        shown_rows = rows if session.model.batch is not None else None
        same = {"model": session.name, "target": session.target, "dtype": session.dtype, "batch": shown_rows}
        baseline.check_same(**same)
    drawn = views.html is not None
    before = read_model(against, options, rows, drawn=drawn)
    with working("planning"):
        partition = session.partition(rows)
    with working("trying other plans"):
        tried = try_others(session, partition, model, options, rows)
    profiles, document, notes = profile_parts(partition, tried)
    captured = attribute_captured(device_profile, partition, profiles)
    if captured is not None:
        document["device_profile"] = attribution_document(captured)
    measured = _measure_device(session, partition, options)
    if measured:
        document["measured_us"] = measured_document(measured)
    comparisons = compare(baseline, document)
    now = partial(runs_of_model, str(model), partition, profiles, document, drawn=False)
    whole, differences = compare_models(before, now, document, drawn=drawn)
    files = Files()
    files.write_document(reporting, document)
    files.write_views(views, profiles, "part", differences, plans=partition.plans, tried=tried)
    page = _overview(partition, document) + page_text(profiles, comparisons, baseline, tried) + differences_text(whole)
    if measured:
        predicted = {plan.name: found.benchmark for plan, (_, found) in zip(partition.plans, profiles, strict=True)}
        page += measured_text(measured, predicted)
    if captured is not None:
        page += render(["", *attribution_parts(captured)])
    say(as_text(document) if reporting.as_json else page)
    warn([predicted for _, predicted in profiles])
    note(*notes)
    files.close()
    return not any(comparison.regressed for comparison in comparisons)


def _measure_device(session: InferenceSession, partition: Partition, options: SessionOptions) -> dict[str, Measured]:
    """The measured times; empty without a device."""
    if session.backend != "neuron":
        return {}
    return measure_parts(
        session, partition, compiled=options.device is not None and options.device.compiled is not None
    )


def _overview(partition: Partition, document: Document) -> str:
    """The cost of all parts together; "" for a model of one part."""
    from rich.text import Text

    from trnrt.nki.machine.timing import Range
    from trnrt.report.profiles import wide_text
    from trnrt.report.tables import kernels_table, parts_table

    if len(partition.parts) == 1:
        return ""
    whole = Range(*(document[key]["benchmark"] for key in ("low_us", "predicted_us", "high_us")))
    crossings = f", {partition.crossings_us:,.1f} us of it round trips to the CPU" if partition.cpu_parts else ""
    total = f"all parts: {range_text(whole)} predicted{crossings}; the range's ends are the sums of the parts' ends"
    wide = [Text(wide_text(whole), "bold yellow")] if whole.too_wide else []
    table = parts_table(partition) if partition.cpu_parts else kernels_table(partition)
    return render([Text(total, "bold"), *wide, table, Text()])

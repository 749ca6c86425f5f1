"""``trnrt profile``: a model's predicted latency on the device; runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnrt import __version__
from trnrt.commands.inspect import rows_to_plan
from trnrt.commands.measuring import attribute_captured, measure_parts, measured_document, measured_text
from trnrt.commands.opening import open_session
from trnrt.commands.options import Reporting
from trnrt.commands.records import SessionOptions, Views
from trnrt.errors import OptionError, UnsupportedModelError
from trnrt.report.captured import attribution_document, attribution_parts
from trnrt.report.comparing import Baseline, Comparison, read_baseline
from trnrt.report.console import note, render, say, working
from trnrt.report.documents import Document, as_text, parts_profile_document, profile_document
from trnrt.report.files import check_writable, write_or_keep
from trnrt.text import count_text, quote, range_text

if TYPE_CHECKING:
    from trnrt.neuron.measured import Measured
    from trnrt.nki.profiling import Profile
    from trnrt.planner.parts.partition import Partition
    from trnrt.report.against import Difference
    from trnrt.session import InferenceSession

DEFAULT_REGRESS = 2.0
"""Percent."""


def profile(
    model: Path,
    options: SessionOptions,
    batch: int | None,
    views: Views,
    reporting: Reporting,
    device_profile: Path | None = None,
) -> bool:
    """Predict the model's latency, print it, and return whether it is within the baseline's limit."""
    baseline = prepare(views, reporting, "model")
    session = open_session(model, options)
    rows = rows_to_plan(session, batch)
    if baseline is not None:
        shown_rows = rows if session.model.batch is not None else None
        same = {"model": session.name, "target": session.target, "dtype": session.dtype, "batch": shown_rows}
        baseline.check_same(**same)
    with working("planning"):
        partition = session.partition(rows)
    profiles, document, notes = _profile_parts(partition)
    captured = attribute_captured(device_profile, partition, profiles)
    if captured is not None:
        document["device_profile"] = attribution_document(captured)
    measured = _measure_device(session, partition, options)
    if measured:
        document["measured_us"] = measured_document(measured)
    comparisons = compare(baseline, document)
    files = Files()
    files.write_document(reporting, document)
    files.write_views(views, profiles, "part")
    page = _overview(partition, document) + page_text(profiles, comparisons, baseline)
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


def _profile_parts(partition: Partition) -> tuple[list[tuple[str, Profile]], Document, list[str]]:
    """The profile of each part on the device with its name, the document of all, and notes.

    UnsupportedModelError if no part runs on the device.
    """
    from trnrt.planner.parts.partition import DevicePart, fallback_notes
    from trnrt.running.profiler import profile_plan

    device = [part for part in partition.parts if isinstance(part, DevicePart)]
    if not device:
        raise UnsupportedModelError(partition.name, list(partition.blockers))
    with working("tracing and timing the kernel"):
        profiles = {part.name: profile_plan(part.plan) for part in device}
    if len(partition.parts) == 1:
        (predicted,) = profiles.values()
        return [(partition.name, predicted)], profile_document(partition.name, predicted, version=__version__), []
    notes = fallback_notes(partition)
    document = parts_profile_document(partition, profiles, notes, version=__version__)
    return list(profiles.items()), document, notes


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


def prepare(views: Views, reporting: Reporting, kind: str) -> Baseline | None:
    """Before the work: check that the files can be written, and read the baseline, which one of them may overwrite.

    ``kind``: see ``read_baseline``. Raises OptionError for a file that can't be read or written.
    """
    if views.baseline is None and views.max_regress is not None:
        raise OptionError("--max-regress needs --baseline", hint="add --baseline FILE")
    named: dict[Path, str] = {}
    flags = {"--html": views.html, "--trace": views.trace, "--json-out": reporting.json_out}
    for flag, path in flags.items():
        if path is not None:
            check_writable(path)
            other = named.setdefault(path.resolve(), flag)
            if other != flag and not path.is_char_device():
                raise OptionError(f"{other} and {flag} name the same file, {quote(str(path))}", hint="name two files")
    if views.baseline is None:
        return None
    view = named.get(views.baseline.resolve())
    if view in ("--html", "--trace"):
        raise OptionError(f"--baseline and {view} name the same file, {quote(str(views.baseline))}")
    limit = DEFAULT_REGRESS if views.max_regress is None else views.max_regress
    return read_baseline(views.baseline, limit, kind)


def compare(baseline: Baseline | None, document: Document) -> list[Comparison]:
    """Compare with the baseline, if there is one; the result is added to ``document``."""
    if baseline is None:
        return []
    comparisons = baseline.compare(document)
    document["comparison"] = baseline.comparison_document(comparisons)
    if baseline.version != __version__:
        note(f"the baseline is from trnrt {baseline.version}, this is {__version__}: the timing model may differ")
    return comparisons


def page_text(
    profiles: Sequence[tuple[str, Profile]], comparisons: Sequence[Comparison], baseline: Baseline | None
) -> str:
    """All profiles, then the comparison, as text."""
    from trnrt.report.profiles import comparison_parts, profile_parts

    parts: list[Any] = []
    for name, predicted in profiles:
        parts += [*([""] if parts else []), *profile_parts(predicted, name)]
    if baseline is not None and comparisons:
        parts += ["", *comparison_parts(comparisons, str(baseline.path))]
    return render(parts)


def warn(profiles: Sequence[Profile]) -> None:
    """Print notes on how far to trust the predictions."""
    doubts = [f"{p.target}'s model was never compared with a measurement" for p in profiles if not p.compared]
    doubts += [text for p in profiles for text in p.notes]
    note(*dict.fromkeys(doubts))


class Files:
    """The files of a report. One that can't be written goes to a temporary directory; the others are written."""

    def __init__(self) -> None:
        self._problems: list[str] = []

    def write_views(
        self,
        views: Views,
        profiles: Sequence[tuple[str, Profile]],
        noun: str = "call",
        differences: Sequence[Difference] = (),
    ) -> None:
        """Write ``--html`` and ``--trace``; several profiles go into numbered files, and a note names them.

        ``differences``: for each profile that from another run, if there is one.
        """
        for number, (name, predicted) in enumerate(profiles, 1):
            if views.html is not None:
                with working("writing the report"):
                    from trnrt.report.page import report_html

                    difference = differences[number - 1] if differences else None
                    self._write(numbered_path(views.html, number, profiles), report_html(predicted, name, difference))
            if views.trace is not None:
                with working("writing the trace"):
                    from trnrt.report.trace import trace_text

                    self._write(numbered_path(views.trace, number, profiles), trace_text(predicted))
        if len(profiles) > 1:
            for path in filter(None, (views.html, views.trace)):
                first, last = numbered_path(path, 1, profiles), numbered_path(path, len(profiles), profiles)
                note(
                    f"{count_text(len(profiles), noun)}: wrote {quote(str(first))} to {quote(str(last))}, "
                    "in their order"
                )

    def write_document(self, reporting: Reporting, document: Document) -> None:
        """Write ``--json-out``."""
        if reporting.json_out is not None:
            self._write(reporting.json_out, as_text(document))

    def close(self) -> None:
        """Raise OptionError if a file could not be written; it names the file written instead."""
        if self._problems:
            raise OptionError("\n".join(self._problems), hint="move it from there, or name another file")

    def _write(self, path: Path, text: str) -> None:
        problem = write_or_keep(path, text)
        if problem is not None:
            self._problems.append(problem)


def numbered_path(path: Path, number: int, profiles: Sequence[object]) -> Path:
    """The file for one of several profiles, such as report-1.html for the first; a single one keeps its name."""
    return path if len(profiles) == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")

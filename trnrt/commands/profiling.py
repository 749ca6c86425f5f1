"""Shared by ``trnrt profile`` and ``trnrt nki profile``: the baseline, the page, and the files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnrt import __version__
from trnrt.commands.options import Reporting
from trnrt.commands.views import Views
from trnrt.errors import OptionError
from trnrt.report.console import note, render
from trnrt.report.progress import working
from trnrt.text import count_text, quote

if TYPE_CHECKING:
    from trnrt.nki.profiling import Profile
    from trnrt.planner.parts.partition import Partition
    from trnrt.planner.plan import Plan
    from trnrt.report.against import Difference
    from trnrt.report.comparing import Baseline, Comparison
    from trnrt.report.documents import Document
    from trnrt.report.verdict import Tried

DEFAULT_REGRESS = 2.0
"""Percent."""


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
            from trnrt.report.files import check_writable

            check_writable(path)
            other = named.setdefault(path.resolve(), flag)
            if other != flag and not path.is_char_device():
                raise OptionError(f"{other} and {flag} name the same file, {quote(str(path))}", hint="name two files")
    if views.baseline is None:
        return None
    from trnrt.report.comparing import read_baseline

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
    profiles: Sequence[tuple[str, Profile]],
    comparisons: Sequence[Comparison],
    baseline: Baseline | None,
    tried: Sequence[Tried] = (),
) -> str:
    """All profiles, then the comparison, as text. ``tried``: other plans of a single model."""
    from trnrt.report.profiles import comparison_parts, profile_parts

    parts: list[Any] = []
    for name, predicted in profiles:
        parts += [*([""] if parts else []), *profile_parts(predicted, name, tried)]
    if baseline is not None and comparisons:
        parts += ["", *comparison_parts(comparisons, str(baseline.path))]
    return render(parts)


def profile_parts(
    partition: Partition, tried: Sequence[Tried]
) -> tuple[list[tuple[str, Profile]], Document, list[str]]:
    """The profile of each part on the device with its name, the document of all, and notes.

    UnsupportedModelError if no part runs on the device.
    """
    from trnrt.errors import UnsupportedModelError
    from trnrt.planner.parts.partition import DevicePart, fallback_notes
    from trnrt.report.documents import parts_profile_document, profile_document
    from trnrt.running.profiler import profile_plan

    device = [part for part in partition.parts if isinstance(part, DevicePart)]
    if not device:
        raise UnsupportedModelError(partition.name, list(partition.blockers))
    with working("tracing and timing the kernel"):
        profiles = {part.name: profile_plan(part.plan) for part in device}
    if len(partition.parts) == 1:
        (predicted,) = profiles.values()
        return (
            [(partition.name, predicted)],
            profile_document(partition.name, predicted, tried, version=__version__),
            [],
        )
    notes = fallback_notes(partition)
    document = parts_profile_document(partition, profiles, notes, version=__version__)
    return list(profiles.items()), document, notes


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
        plans: Sequence[Plan] = (),
        tried: Sequence[Tried] = (),
    ) -> None:
        """Write ``--html`` and ``--trace``; several profiles go into numbered files, and a note names them.

        ``differences``: for each profile that from another run, if there is one. ``plans``: the models', for their
        fusion graphs. ``tried``: other plans of a single model.
        """
        for number, (name, predicted) in enumerate(profiles, 1):
            if views.html is not None:
                with working("writing the report"):
                    from trnrt.report.page import report_html

                    difference = differences[number - 1] if differences else None
                    plan = plans[number - 1] if plans else None
                    page = report_html(predicted, name, difference, plan, tried)
                    self._write(numbered_path(views.html, number, profiles), page)
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
            from trnrt.report.documents import as_text

            self._write(reporting.json_out, as_text(document))

    def close(self) -> None:
        """Raise OptionError if a file could not be written; it names the file written instead."""
        if self._problems:
            raise OptionError("\n".join(self._problems), hint="move it from there, or name another file")

    def _write(self, path: Path, text: str) -> None:
        from trnrt.report.files import write_or_keep

        problem = write_or_keep(path, text)
        if problem is not None:
            self._problems.append(problem)


def numbered_path(path: Path, number: int, profiles: Sequence[object]) -> Path:
    """The file for one of several profiles, such as report-1.html for the first; a single one keeps its name."""
    return path if len(profiles) == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")

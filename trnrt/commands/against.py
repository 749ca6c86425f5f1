"""``--against`` of ``trnrt profile`` and ``trnrt nki profile``: another run, and the differences from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trnrt.commands.profiling import numbered_path, profile_parts
from trnrt.errors import OptionError
from trnrt.report.console import note, render
from trnrt.report.progress import working
from trnrt.text import count_text, quote

if TYPE_CHECKING:
    from trnrt.commands.records import SessionOptions
    from trnrt.nki.profiling import Profile
    from trnrt.planner.parts.partition import Partition
    from trnrt.report.against import Difference
    from trnrt.report.documents import Document
    from trnrt.report.runs import Run

_TAKES = "--against takes an ONNX file, an HTML report of `trnrt profile`, or a --json-out file"


@dataclass(frozen=True)
class ModelRuns:
    """The run of a model as a whole, and those of its parts: what a page shows. A model in one part is its own part.

    ``page``: the HTML report that it is from, which has one part alone.
    """

    whole: Run
    parts: list[Run]
    page: Path | None = None


def read_runs(against: Path, kind: str, pages: int) -> list[Run] | None:
    """The runs in a ``--json-out`` file, or in as many HTML reports as this run has; None for any other file.

    ``kind``: see ``read_document``.
    """
    if against.suffix == ".json":
        from trnrt.report.comparing import read_document
        from trnrt.report.runs import runs_of_document

        return runs_of_document(str(against), read_document(against, kind, "document"))
    if against.suffix not in (".html", ".htm"):
        return None
    from trnrt.report.page.reading import run_of_page

    return [run_of_page(numbered_path(against, number, range(pages)), kind) for number in range(1, pages + 1)]


def read_model(against: Path | None, options: SessionOptions, rows: int, *, drawn: bool) -> ModelRuns | None:
    """The model of ``--against``: from a document or a report, else another model that is planned for ``rows`` rows.

    ``drawn``: with the timelines that a page draws. None without ``--against``.
    """
    if against is None:
        return None
    if not against.exists():
        raise OptionError(f"--against: there is no file {quote(str(against))}", hint=_TAKES)
    found = read_runs(against, "model", 1)
    if found is None:
        return _profile_other(against, options, rows, drawn=drawn)
    return ModelRuns(found[0], found[1:] or found, None if against.suffix == ".json" else against)


def _profile_other(against: Path, options: SessionOptions, rows: int, *, drawn: bool) -> ModelRuns:
    """Another model with the same options; ``--plan`` and ``--no-fuse`` are the first one's, as is a measurement."""
    from trnrt.commands.members import Backend
    from trnrt.commands.opening import fixed_batch, open_session
    from trnrt.commands.records import Overrides

    session = open_session(against, replace(options, overrides=Overrides(), backend=Backend.SIMULATOR))
    own = fixed_batch(session) or (1 if session.model.batch is None else rows)
    with working(f"planning {against}"):
        partition = session.partition(own)
    profiles, document, _ = profile_parts(partition, ())
    return runs_of_model(str(against), partition, profiles, document, drawn=drawn)


def runs_of_model(
    file: str, partition: Partition, profiles: Sequence[tuple[str, Profile]], document: Document, *, drawn: bool
) -> ModelRuns:
    """The runs of a model that was just profiled. ``drawn``: with what a page draws of it."""
    from trnrt.report.documents import line_documents
    from trnrt.report.page.reading import page_of_plan
    from trnrt.report.runs import run_of_model

    documents = {part["name"]: part for part in document["parts"]} if document["parts"] else None
    parts = []
    for plan, (name, profile) in zip(partition.plans, profiles, strict=True):
        own = (documents[name] if documents else document) | {"lines": line_documents(profile)}
        page = page_of_plan(plan, profile) if drawn else None
        parts.append(run_of_model(name, file, own, page))
    whole = parts[0] if documents is None else run_of_model(partition.name, file, document)
    return ModelRuns(whole, parts)


def compare_models(
    before: ModelRuns | None, after: Callable[[], ModelRuns], document: Document, *, drawn: bool
) -> tuple[list[Difference], list[Difference]]:
    """The difference of the wholes, which is added to ``document``, and one for each page; none without another run.

    ``drawn``: pages are written, so a note says if their parts can't be paired.

    Raises:
        OptionError: if the other run is a report of one of several parts.
    """
    if before is None:
        return [], []
    from trnrt.report.against import compare_runs, pair_runs

    now = after()
    if before.page is not None and len(now.parts) > 1:
        raise OptionError(
            f"--against: {quote(str(before.page))} shows one kernel, and this model has {len(now.parts)}",
            hint="compare with the other run's --json-out file, which has all of them",
        )
    whole = add_differences(document, [compare_runs(before.whole, now.whole)])
    if len(now.parts) == len(before.parts) == 1:
        return whole, whole
    pages = pair_runs(before.parts, now.parts)
    if pages is None and drawn:
        counts = (count_text(len(runs.parts), "kernel") for runs in (before, now))
        note("{} before, {} now: the HTML pages show this run alone".format(*counts))
    return whole, pages or []


def add_differences(document: Document, found: list[Difference]) -> list[Difference]:
    """Add the differences to ``document``, and return them."""
    document["against"] = [difference.document for difference in found]
    return found


def differences_text(differences: Sequence[Difference]) -> str:
    """The differences as text; "" without another run."""
    if not differences:
        return ""
    from trnrt.report.against import difference_parts

    return render(["", *difference_parts(differences)])

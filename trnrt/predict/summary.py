"""The result of a batch prediction, as a JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trnrt.errors import TooManyBadError
from trnrt.predict.job import Opened
from trnrt.predict.output import Output
from trnrt.predict.part import PartDone
from trnrt.report.documents import Document, header
from trnrt.text import count_text

REASONS_SHOWN = 100


@dataclass
class Outcome:
    """A run: the parts and rows that were done before it, its time, its notes to the user.

    ``stopped``: why it ended before everything was done.
    """

    stopped: TooManyBadError | None = None
    parts_kept: int = 0
    rows_kept: int = 0
    seconds: float = 0.0
    notes: Sequence[str] = field(default_factory=list)


def odd_note(parts: Sequence[PartDone]) -> str:
    """A line on the rows with NaN or infinite inputs; "" if there are none."""
    count = sum(part.odd for part in parts)
    first = min((part.first_odd for part in parts if part.first_odd is not None), default=0)
    return f"{count_text(count, 'row')} with NaN or infinite inputs, the first is row {first}" if count else ""


def predict_document(opened: Opened, output: Output, outcome: Outcome) -> Document:
    """``predict``: the directory's contents; ``state`` is "finished", or "too many bad rows".

    ``parts_kept`` were done before this run, which made the other ``rows_run`` rows in ``seconds``. ``first_bad``: the
    first bad rows, with their reasons. ``odd``: rows with NaN or infinite inputs.
    """
    job, parts = opened.job, output.parts
    return header(opened.session) | {
        "directory": job.request.directory,
        "state": "finished" if outcome.stopped is None else "too many bad rows",
        "format": job.request.form,
        "batch": job.batch,
        "rows": job.rows,
        "predicted": sum(part.predicted for part in parts),
        "bad": output.bad,
        "odd": sum(part.odd for part in parts),
        "rows_per_part": job.rows_per_part,
        "parts": job.parts,
        "parts_kept": outcome.parts_kept,
        "rows_run": sum(part.rows for part in parts) - outcome.rows_kept,
        "seconds": outcome.seconds,
        "first_bad": [reason for part in parts for reason in part.reasons][:REASONS_SHOWN],
        "notes": list(outcome.notes),
    }

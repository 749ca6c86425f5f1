"""The result of a batch prediction, as a JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trnrt.errors import TooManyBadError
from trnrt.predict.job import Opened
from trnrt.predict.output import Output
from trnrt.report.documents import Document, header

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


def predict_document(opened: Opened, output: Output, outcome: Outcome) -> Document:
    """``predict``: the directory's contents; ``state`` is "finished", or "too many bad rows".

    ``parts_kept`` were done before this run, which made the other ``rows_run`` rows in ``seconds``. ``first_bad``: the
    first bad rows, with their reasons.
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
        "rows_per_part": job.rows_per_part,
        "parts": job.parts,
        "parts_kept": outcome.parts_kept,
        "rows_run": sum(part.rows for part in parts) - outcome.rows_kept,
        "seconds": outcome.seconds,
        "first_bad": [reason for part in parts for reason in part.reasons][:REASONS_SHOWN],
        "notes": list(outcome.notes),
    }

"""``trnrt compile``: the kernel module and its weights, as files."""

from __future__ import annotations

from pathlib import Path

from trnrt.commands.inspect import rows_to_plan
from trnrt.commands.opening import SessionOptions, batch_text, open_session, writing_into
from trnrt.commands.options import Reporting
from trnrt.report.console import note, say, working
from trnrt.report.documents import as_text, compile_document, part_document
from trnrt.report.files import write_text
from trnrt.report.text import escaped, shown


def compile_model(
    model: Path, options: SessionOptions, directory: Path, batch: int | None, reporting: Reporting
) -> None:
    """Plan the model for ``batch`` rows, and write what runs it into ``directory``."""
    session = open_session(model, options)
    from trnrt.planner.partition import fallback_notes

    rows = rows_to_plan(session, batch)
    with working("planning"), writing_into(directory):
        partition = session.partition_for(rows)
        files = [str(file) for file in session.save(directory, partition=partition)]
    for told in fallback_notes(partition):
        note(told)
    shown_batch = rows if session.model.batch is not None else None
    parts = [part_document(part) for part in partition.parts]
    document = as_text(compile_document(session, shown_batch, parts, files))
    heading = f"{shown(session.name)}: {session.dtype} on {session.target}, for {batch_text(session, rows)}"
    say(document if reporting.as_json else "\n".join([heading, *(f"  {escaped(file)}" for file in files)]))
    if reporting.json_out is not None:
        write_text(reporting.json_out, document)

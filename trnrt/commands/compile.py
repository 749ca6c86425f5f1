"""``trnrt compile``: writes the kernel module and its weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trnrt.commands.inspect import rows_to_plan
from trnrt.commands.opening import batch_text, open_session, writing_errors
from trnrt.commands.options import Backend, Reporting
from trnrt.commands.records import SessionOptions
from trnrt.commands.results import deliver
from trnrt.report.console import note, working
from trnrt.report.documents import compile_document, part_document
from trnrt.text import escape_text, name_text

if TYPE_CHECKING:
    from trnrt.planner.parts.partition import Partition
    from trnrt.session import InferenceSession


def _compile_parts(session: InferenceSession, partition: Partition, directory: Path) -> list[Path]:
    """Compile the model's parts on the device; return the files."""
    from trnrt.cache import KernelCache
    from trnrt.neuron.backend import NeuronBackend

    backend, cache = session.runner, KernelCache()
    assert isinstance(backend, NeuronBackend)
    files = []
    for plan in partition.plans:
        path, source, _ = cache.kernel(plan.name, plan.source)
        files += backend.compile_into(directory, plan, path, source)
    return files


def compile_model(
    model: Path, options: SessionOptions, directory: Path, batch: int | None, reporting: Reporting
) -> None:
    """Plan the model for ``batch`` rows, and write its kernel modules and weights into ``directory``."""
    session = open_session(model, options)
    from trnrt.planner.parts.partition import fallback_notes, size_notes

    rows = rows_to_plan(session, batch)
    with working("planning"), writing_errors(directory):
        partition = session.partition(rows)
        files = [str(file) for file in session.save(directory, partition=partition)]
    if options.backend is Backend.NEURON:
        with working("compiling with AWS's compiler"), writing_errors(directory):
            files += [str(file) for file in _compile_parts(session, partition, directory)]
    note(*fallback_notes(partition), *size_notes(partition, session.options.budget))
    shown_batch = rows if session.model.batch is not None else None
    parts = [part_document(part) for part in partition.parts]
    heading = f"{name_text(session.name)}: {session.dtype} on {session.target}, for {batch_text(session, rows)}"
    text = "\n".join([heading, *(f"  {escape_text(file)}" for file in files)])
    deliver(reporting, compile_document(session, shown_batch, parts, files), text)

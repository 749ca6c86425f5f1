"""``trnrt compile``: writes the kernel module and its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnrt.commands.inspect import rows_to_plan
from trnrt.commands.members import Backend
from trnrt.commands.opening import batch_text, open_session, writing_errors
from trnrt.commands.options import Reporting
from trnrt.commands.records import SessionOptions
from trnrt.commands.results import deliver
from trnrt.errors import InputError, OptionError
from trnrt.report.console import note
from trnrt.report.documents import compile_document, part_document
from trnrt.report.progress import counting, working
from trnrt.running.buckets import check_buckets
from trnrt.text import escape_text, list_text, name_text

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


@dataclass(frozen=True)
class Bundling:
    """The bundle that ``compile`` writes, too: its batch sizes, whether there is one, and whether it is checked."""

    buckets: Sequence[int] | None = None
    bundle: bool = True
    check: bool = True


def compile_model(
    model: Path,
    options: SessionOptions,
    directory: Path,
    batch: int | None,
    bundling: Bundling,
    reporting: Reporting,
) -> None:
    """Plan the model for ``batch`` rows, or each of the buckets; write kernel modules, weights and the bundle.

    Files of several batch sizes are in folders of their own, called by the rows.
    """
    session = open_session(model, options)
    from trnrt.planner.parts.partition import fallback_notes, size_notes

    sizes = _sizes(session, batch, bundling.buckets)
    files: list[str] = []
    parts: list[dict[str, Any]] = []
    for rows in sizes:
        folder = directory if len(sizes) == 1 else directory / str(rows)
        with working(f"planning for {batch_text(session, rows)}"), writing_errors(directory):
            partition = session.partition(rows, cached=bundling.bundle)
            files += [str(file) for file in session.save(folder, partition=partition)]
        if options.backend is Backend.NEURON:
            with working("compiling with AWS's compiler"), writing_errors(directory):
                files += [str(file) for file in _compile_parts(session, partition, folder)]
        note(*fallback_notes(partition), *size_notes(partition, session.options.budget))
        parts += [part_document(part) for part in partition.parts]
    checked = _write_bundle(session, directory, sizes, bundling.check) if bundling.bundle else None
    shown = list(sizes) if session.model.batch is not None else None
    rows_text = f"{list_text(map(str, sizes))} rows" if len(sizes) > 1 else batch_text(session, sizes[0])
    heading = f"{name_text(session.name)}: {session.dtype} on {session.target}, for {rows_text}"
    lines = [heading, *(f"  {escape_text(file)}" for file in files)]
    if checked is not None:
        state = "checked against onnxruntime" if checked else "not checked"
        place = escape_text(str(directory))
        lines.append(f"bundle, {state}: trnrt run {place}, trnrt serve {place}")
    deliver(reporting, compile_document(session, shown, parts, files, checked), "\n".join(lines))


def _sizes(session: InferenceSession, batch: int | None, buckets: Sequence[int] | None) -> tuple[int, ...]:
    """The batch sizes to compile for. OptionError if both flags give some, or the model has no open batch."""
    if buckets is None:
        return (rows_to_plan(session, batch),)
    if batch is not None:
        raise OptionError("--batch and --buckets both give batch sizes", hint="leave --batch out")
    if not isinstance(session.model.batch, str):
        why = "has no batch" if session.model.batch is None else f"has a batch fixed at {session.model.batch}"
        raise OptionError(f"--buckets gives batch sizes, and the model {why}", hint="leave --buckets out")
    return check_buckets(buckets)


def _write_bundle(session: InferenceSession, directory: Path, sizes: tuple[int, ...], check: bool) -> bool:
    """Write the bundle; True if it was checked. BackendError if its numbers are not onnxruntime's."""
    from trnrt.validate.bundling import check_bundle, shapes_of, write_bundle

    with working("writing the bundle"), writing_errors(directory):
        bundle = write_bundle(session, directory, sizes)
    if not check:
        return False
    with counting("checking against onnxruntime", len(shapes_of(bundle)), unit="shapes") as count:
        try:
            check_bundle(bundle, lambda _done: count(1))
        except InputError as error:  # no random input will do
            note(f"the bundle is not checked: {error}" + (f"; {error.hint}" if error.hint else ""))
            return False
    return True

"""``trnrt predict``: batch prediction, offline.

The flags are declared here; the work is in ``trnrt.predict``, imported when the verb is called, so that
``trnrt --help`` imports nothing heavy.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from click.exceptions import Exit

from trnrt.commands.members import Engine
from trnrt.commands.options import BATCH, CacheFlag, LogitsFlag, ModelFile, Reporting, flag
from trnrt.commands.records import Device, Images, Planning
from trnrt.commands.sampling import choose_rows
from trnrt.errors import OptionError, TooManyBadError, TrnrtError
from trnrt.report.console import note, say
from trnrt.report.progress import counting, working
from trnrt.text import count_text, quote

if TYPE_CHECKING:
    from trnrt.predict.job import Opened, Request
    from trnrt.predict.on_ray import Place
    from trnrt.predict.output import MostBad, Output
    from trnrt.predict.summary import Outcome


class Form(StrEnum):
    """The file format of the parts."""

    PARQUET = "parquet"
    NPZ = "npz"


@dataclass(frozen=True)
class Rows:
    """The rows to predict."""

    inputs: list[str] | None = flag(
        "Model and inputs",
        "--input",
        "-i",
        metavar="[NAME=]PATH",
        help="The rows, repeatable: Parquet files or a folder of them, FILE.npz, NAME=FILE.npy, an image folder. "
        "A model with one input needs no NAME=. By default the rows of a --sample.",
        callback=choose_rows,
    )
    id_column: str | None = flag(
        "Model and inputs",
        "--id",
        metavar="COLUMN",
        help="The Parquet column, or .npz array, with the ids. By default row numbers from 0, or images' paths.",
    )
    columns: list[str] | None = flag(
        "Model and inputs",
        "--columns",
        metavar="[INPUT=]COLUMN,...",
        help="Parquet: an input's column, or its columns of one number each; repeatable. By default by name.",
    )
    limit: int | None = flag(
        "Model and inputs", "--limit", min=1, metavar="N", help="Predict the first N rows of the input only."
    )


@dataclass(frozen=True)
class Parts:
    """The parts: what they hold, and how they are made and written."""

    directory: str = flag(
        "Output", "--output", "-o", default=..., writes="directory", metavar="DIR", help="The directory for the parts."
    )
    form: Form = flag("Output", "--format", default=Form.PARQUET, help="The file format of the parts.")
    top: int | None = flag(
        "Output",
        "--top",
        min=1,
        metavar="K",
        help="Also write the best K classes of the output that has one number per class.",
    )
    logits: LogitsFlag = False
    batch: int | None = flag(
        "Planning",
        "--batch",
        min=1,
        metavar="N",
        help=f"{BATCH} By default the model's fixed batch, else 128, or fewer if inputs are large or few.",
    )
    rows_per_part: int | None = flag(
        "Output",
        "--rows-per-part",
        min=1,
        metavar="N",
        help="Rows of a part. By default 16384, or fewer if outputs are large.",
    )
    max_bad: str = flag(
        "Output",
        "--max-bad",
        default="10%",
        metavar="N|SHARE",
        help="The most bad rows to accept, a number or a share as 5%; with more it stops, with exit code 1.",
    )
    overwrite: bool = flag(
        "Output", "--overwrite", default=False, help="Delete an earlier prediction in the directory, and start again."
    )


@dataclass(frozen=True)
class Processes:
    """The processes that make the parts."""

    engine: Engine = flag(
        "Workers", "--engine", default=Engine.LOCAL, help="Make the parts in this process, or in processes of Ray Data."
    )
    replicas: int | None = flag(
        "Workers", "--replicas", min=1, metavar="N", help="With --engine ray: the number of processes. By default 1."
    )
    replica_cpus: float | None = flag(
        "Workers",
        "--replica-cpus",
        min=0.01,
        metavar="N",
        help="With --engine ray: CPUs to reserve for a process. By default 0.5.",
    )
    address: str | None = flag(
        "Workers",
        "--address",
        metavar="ADDRESS",
        help="With --engine ray: a running cluster, as auto or HOST:PORT. By default one is started here.",
    )

    @property
    def place(self) -> Place | None:
        """The place on Ray where the parts are made; None to make them in this process."""
        given = {"--replicas": self.replicas, "--replica-cpus": self.replica_cpus, "--address": self.address}
        if self.engine is Engine.LOCAL:
            if useless := [flag for flag, value in given.items() if value is not None]:
                raise OptionError(f"{useless[0]} needs --engine ray", hint="add --engine ray")
            return None
        from trnrt.predict import clusters

        clusters.require()
        from trnrt.predict.on_ray import Place

        return Place(self.replicas or 1, self.replica_cpus or 0.5, self.address)


def predict_command(
    model: ModelFile,
    rows: Rows,
    parts: Parts,
    planning: Planning,
    device: Device,
    images: Images,
    processes: Processes,
    reporting: Reporting,
    cache: CacheFlag = True,
) -> None:
    """Predict any number of rows into a directory, in parts; after an interruption, the same command continues."""
    if parts.logits and parts.top is None:
        raise OptionError("--logits needs --top", hint="add --top K")
    from trnrt.predict.job import Request
    from trnrt.predict.output import parse_most_bad
    from trnrt.predict.source import Asked

    request = Request(
        str(model),
        parts.directory,
        Asked(tuple(rows.inputs or ()), rows.id_column, tuple(rows.columns or ()), images.options),
        planning.target,
        planning.dtype.value,
        device.backend.value,
        planning.fallback_name,
        tuple(planning.shapes.items()),
        device.options,
        cache,
        parts.form.value,
        parts.top,
        parts.logits,
        parts.batch,
        parts.rows_per_part,
        rows.limit,
        planning.max_instructions,
        planning.calibration,
        planning.narrow.value,
    )
    predict(request, parse_most_bad(parts.max_bad), reporting, processes.place, overwrite=parts.overwrite)


def predict(
    request: Request, most_bad: MostBad, reporting: Reporting, place: Place | None = None, *, overwrite: bool
) -> None:
    """Make the requested prediction, and report it."""
    with working("loading the runtime"):
        from trnrt.predict.job import prepare
        from trnrt.predict.output import open_output
        from trnrt.predict.writing import check_form
        from trnrt.report.files import check_writable

    check_form(request.form)
    if reporting.json_out is not None:
        check_writable(reporting.json_out)
    with working(f"reading {request.model}"):
        opened = prepare(request)
    with closing(opened):
        notes = [f"runs on the {opened.session.backend}: {opened.session.backend_reason}"] * (request.backend == "auto")
        notes += opened.notes
        note(*notes)
        with counting("checking what is there", opened.job.rows) as checked:
            output = open_output(opened.job, most_bad, overwrite=overwrite, checked=checked)
        with closing(output):
            outcome = _run(opened, output, notes, place)
    _report(opened, output, outcome, reporting)


def _run(opened: Opened, output: Output, notes: list[str], place: Place | None) -> Outcome:
    """Make the missing parts; if it stops early, print what is kept."""
    from trnrt.predict.job import check_input
    from trnrt.predict.running import StoppedError, handle_signals, run_parts
    from trnrt.predict.summary import Outcome, odd_note

    more = list(output.notes)
    if output.done:
        what = "resuming" if output.missing else "nothing to do"
        more.append(f"{what}: {len(output.done):,} of {opened.job.parts:,} parts are there")
    note(*more)
    rows = sum(part.rows for part in output.done.values())
    outcome = Outcome(parts_kept=len(output.done), rows_kept=rows, notes=[*notes, *more])
    start = time.perf_counter()
    try:
        output.check_bad()
        if output.missing:
            with handle_signals() as stop, counting("predicting", opened.job.rows, rows) as advance:
                if place is None:
                    run_parts(opened, output, stop, advance)
                else:
                    from trnrt.predict import on_ray

                    on_ray.run_parts(opened, output, place, advance)
            check_input(opened)
        output.finish()
    except StoppedError as error:
        note(f"stopped; {_progress_text(output)}")
        raise Exit(128 + error.signal) from None
    except TooManyBadError as error:
        outcome.stopped = error
    except TrnrtError:
        if output.done and output.missing:
            note(_progress_text(output))
        raise
    outcome.seconds = time.perf_counter() - start
    if found := odd_note(output.parts):
        note(found)
        outcome.notes = [*outcome.notes, found]
    return outcome


def _progress_text(output: Output) -> str:
    return f"{len(output.done):,} of {output.job.parts:,} parts are done and kept: the same command goes on from there"


def _report(opened: Opened, output: Output, outcome: Outcome, reporting: Reporting) -> None:
    from trnrt.predict.summary import predict_document
    from trnrt.report.documents import as_text
    from trnrt.report.files import write_text

    document = predict_document(opened, output, outcome)
    if reporting.as_json:
        say(as_text(document))
    elif outcome.stopped is None:
        say(_text(opened, output, outcome))
    if reporting.json_out is not None:
        write_text(reporting.json_out, as_text(document))
    if outcome.stopped is not None:
        raise outcome.stopped


def _text(opened: Opened, output: Output, outcome: Outcome) -> str:
    from trnrt.predict.part import QUARANTINE

    job, session, bad = opened.job, opened.session, output.bad
    aside = f", {bad:,} set aside, with reasons in {quote(str(output.directory / QUARANTINE))}" if bad else ""
    run = job.rows - outcome.rows_kept
    took = f"; {count_text(run, 'row')} in {outcome.seconds:,.1f} s on this machine, compiling included" if run else ""
    return (
        f"{session.backend}, target {session.target}, {session.dtype}, batches of {job.batch}: "
        f"{count_text(job.rows - bad, 'row')} predicted{aside}; "
        f"{count_text(job.parts, 'part')} in {quote(str(output.directory))}{took}"
    )

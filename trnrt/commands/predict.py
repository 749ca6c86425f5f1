"""``trnrt predict``: batch prediction, offline.

The flags are declared here; the work is in ``trnrt.predict``, imported when the verb is called: ``trnrt --help`` waits
for nothing heavy.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from trnrt.commands.options import (
    CacheFlag,
    Engine,
    LogitsFlag,
    ModelFile,
    Reporting,
    input_flag,
    output_flag,
    planning_flag,
    workers_flag,
)
from trnrt.commands.records import Device, Images, Planning, takes_records
from trnrt.errors import OptionError, TooManyBadError, TrnrtError
from trnrt.report.console import counting, note, say, working

if TYPE_CHECKING:
    from trnrt.predict.job import Opened, Request
    from trnrt.predict.on_ray import Place
    from trnrt.predict.output import MostBad, Output
    from trnrt.predict.summary import Outcome


class Form(StrEnum):
    """What parts are written as."""

    PARQUET = "parquet"
    NPZ = "npz"


PredictInput = Annotated[
    list[str],
    input_flag(
        "--input",
        "-i",
        metavar="[NAME=]PATH",
        help="The rows, repeatable: Parquet files or a folder of them, FILE.npz, NAME=FILE.npy, a folder of pictures. "
        "NAME= may be left out for a model of one input.",
        show_default=False,
    ),
]
DirectoryFlag = Annotated[  # no Path, which would make s3:/BUCKET of s3://BUCKET
    str, output_flag("--output", "-o", metavar="DIR", help="Where the parts are written.", show_default=False)
]
FormFlag = Annotated[Form, output_flag("--format", help="What parts are written as.")]
IdFlag = Annotated[
    str | None,
    input_flag(
        "--id",
        metavar="COLUMN",
        help="The column of a Parquet file, or array of an .npz, with the ids. Without: row numbers, "
        "from 0; of pictures their paths.",
        show_default=False,
    ),
]
ColumnsFlag = Annotated[
    list[str] | None,
    input_flag(
        "--columns",
        metavar="[INPUT=]COLUMN,...",
        help="Parquet: the column of an input, or its columns of one number each; repeatable. Without: by their names.",
        show_default=False,
    ),
]
PartFlag = Annotated[
    int | None,
    output_flag(
        "--rows-per-part",
        min=1,
        metavar="N",
        help="Rows of a part: 16384, or fewer where outputs are large.",
        show_default=False,
    ),
]
RunBatchFlag = Annotated[
    int | None,
    planning_flag(
        "--batch",
        min=1,
        metavar="N",
        help="Rows that are run at once: the model's fixed batch, or 128, or fewer where inputs are large or few.",
        show_default=False,
    ),
]
RowLimitFlag = Annotated[
    int | None,
    input_flag("--limit", min=1, metavar="N", help="Only the first N rows of the input.", show_default=False),
]
MaxBadFlag = Annotated[
    str,
    output_flag(
        "--max-bad",
        metavar="N|SHARE",
        help="Bad rows that are accepted, a number or a share as 5%; with more it stops with exit code 1.",
    ),
]
TopColumnsFlag = Annotated[
    int | None,
    output_flag(
        "--top",
        min=1,
        metavar="K",
        help="Also write the best K classes of the output that holds one number a class.",
        show_default=False,
    ),
]
OverwriteFlag = Annotated[
    bool, output_flag("--overwrite", help="Delete the prediction that is in the directory, and begin anew.")
]

EngineFlag = Annotated[
    Engine, workers_flag("--engine", help="Who makes the parts: this process, or processes of Ray Data.")
]
ReplicasFlag = Annotated[
    int | None,
    workers_flag(
        "--replicas",
        min=1,
        metavar="N",
        help="With --engine ray: processes that make parts. Without: 1.",
        show_default=False,
    ),
]
ReplicaCpusFlag = Annotated[
    float | None,
    workers_flag(
        "--replica-cpus",
        min=0.01,
        metavar="N",
        show_default=False,
        help="With --engine ray: CPUs that are set aside for a process. Without: 0.5.",
    ),
]
AddressFlag = Annotated[
    str | None,
    workers_flag(
        "--address",
        metavar="ADDRESS",
        show_default=False,
        help="With --engine ray: a cluster that runs, as auto or HOST:PORT; none starts one here.",
    ),
]


@dataclass(frozen=True)
class Parts:
    """What the parts hold, and how they are made."""

    form: FormFlag = Form.PARQUET
    top: TopColumnsFlag = None
    logits: LogitsFlag = False
    batch: RunBatchFlag = None
    rows_per_part: PartFlag = None
    max_bad: MaxBadFlag = "10%"


@takes_records
def predict_command(
    model: ModelFile,
    inputs: PredictInput,
    directory: DirectoryFlag,
    parts: Parts,
    planning: Planning,
    device: Device,
    images: Images,
    reporting: Reporting,
    id_column: IdFlag = None,
    columns: ColumnsFlag = None,
    limit: RowLimitFlag = None,
    overwrite: OverwriteFlag = False,
    engine: EngineFlag = Engine.LOCAL,
    replicas: ReplicasFlag = None,
    replica_cpus: ReplicaCpusFlag = None,
    address: AddressFlag = None,
    cache: CacheFlag = True,
) -> None:
    """Predict any number of rows into a directory, in parts; the same command again goes on after an interruption."""
    if parts.logits and parts.top is None:
        raise OptionError("--logits says how to show classes", hint="add --top K")
    from trnrt.predict.job import Request
    from trnrt.predict.output import parse_most_bad
    from trnrt.predict.source import Asked

    request = Request(
        str(model),
        directory,
        Asked(tuple(inputs), id_column, tuple(columns or ()), images.options),
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
        limit,
    )
    place = _place(engine, replicas, replica_cpus, address)
    predict(request, parse_most_bad(parts.max_bad), reporting, place, overwrite=overwrite)


def _place(engine: Engine, replicas: int | None, replica_cpus: float | None, address: str | None) -> Place | None:
    """Where on Ray the parts are made; None where they are made here."""
    given = {"--replicas": replicas, "--replica-cpus": replica_cpus, "--address": address}
    if engine is Engine.LOCAL:
        if meaningless := [flag for flag, value in given.items() if value is not None]:
            raise OptionError(f"{meaningless[0]} has no meaning without --engine ray", hint="say --engine ray, too")
        return None
    from trnrt.predict import clusters

    clusters.require()
    from trnrt.predict.on_ray import Place

    return Place(replicas or 1, replica_cpus or 0.5, address)


def predict(
    request: Request, most_bad: MostBad, reporting: Reporting, place: Place | None = None, *, overwrite: bool
) -> None:
    """Predict what is asked for, and say what came of it."""
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
        for text in notes:
            note(text)
        with counting("checking what is there", opened.job.rows) as checked:
            output = open_output(opened.job, most_bad, overwrite=overwrite, checked=checked)
        with closing(output):
            outcome = _run(opened, output, notes, place)
    _report(opened, output, outcome, reporting)


def _run(opened: Opened, output: Output, notes: list[str], place: Place | None) -> Outcome:
    """Make what is missing; say what stays where it ends before that."""
    from trnrt.predict.job import check_input
    from trnrt.predict.running import StoppedError, handle_signals, run_parts
    from trnrt.predict.summary import Outcome

    told = list(output.notes)
    if output.done:
        what = "resuming" if output.missing else "nothing to do"
        told.append(f"{what}: {len(output.done):,} of {opened.job.parts:,} parts are there")
    for text in told:
        note(text)
    rows = sum(part.rows for part in output.done.values())
    outcome = Outcome(parts_kept=len(output.done), rows_kept=rows, notes=[*notes, *told])
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
        raise typer.Exit(128 + error.signal) from None
    except TooManyBadError as error:
        outcome.stopped = error
    except TrnrtError:
        if output.done and output.missing:
            note(_progress_text(output))
        raise
    outcome.seconds = time.perf_counter() - start
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
    from trnrt.text import count_text, quote

    job, session, bad = opened.job, opened.session, output.bad
    aside = f", {bad:,} set aside, with reasons in {quote(str(output.directory / QUARANTINE))}" if bad else ""
    run = job.rows - outcome.rows_kept
    took = f"; {count_text(run, 'row')} in {outcome.seconds:,.1f} s on this machine, compiling included" if run else ""
    return (
        f"{session.backend}, target {session.target}, {session.dtype}, batches of {job.batch}: "
        f"{count_text(job.rows - bad, 'row')} predicted{aside}; "
        f"{count_text(job.parts, 'part')} in {quote(str(output.directory))}{took}"
    )

"""What a batch prediction is: all that its numbers depend on, as plain values that can be sent to another process.

A job is cut into parts of ``rows_per_part`` consecutive rows of the input. A part depends on the job and on its number,
and on nothing else: whoever makes it, whenever, and after however many failures, it has the same bytes. So every run of
the session has the job's one batch size: within one bucket a row's answer is the same bit for bit whatever stands
beside it (docs/batches.md), and a bad row that is left out changes no other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trnrt.cache.code import code_version
from trnrt.errors import InputError, OptionError, TrnrtError
from trnrt.inputs.drawing import as_numpy
from trnrt.inputs.matching import local_path, split_argument
from trnrt.nki.machine.targets import cache_name, portable_name
from trnrt.planner.sizes import default_shapes
from trnrt.predict.opening import open_source
from trnrt.predict.rows import Array, Wanted
from trnrt.predict.source import Asked, Source
from trnrt.predict.writing import writer_version
from trnrt.report.top import choose_output, labels_of, looked_up_labels
from trnrt.running.buckets import DEFAULT_BUCKETS
from trnrt.running.rows import as_matrix
from trnrt.session import InferenceSession
from trnrt.text import count_text, list_text, name_text, quote

if TYPE_CHECKING:
    from trnrt.backends import DeviceOptions
    from trnrt.importer import ImportedModel, TensorInfo

ROWS_PER_PART = 16384
"""Rows of a part, where their outputs are not too large: a file that is quick to write, and not much work to lose."""
BYTES_PER_PART = 64 << 20
"""Bytes that the outputs of a part may take: they are in memory until it is written."""
BYTES_PER_BATCH = 32 << 20
"""Bytes that the inputs of a batch may take, where nobody says ``--batch``."""
BYTES_PER_READ = 16 << 20
"""Bytes of input that are read at once; two such pieces are in memory."""
READS_PER_PART = 8
"""Pieces at least that a part of many batches is read in."""


@dataclass(frozen=True)
class Request:
    """What the user asks for. ``target`` None: the device that is present, else trn2; ``form``: "parquet" or "npz".

    ``top``: the best classes of each row, beside the outputs. ``batch`` and ``rows_per_part`` None: as fits. ``limit``:
    only the input's first rows.
    """

    model: str
    directory: str
    asked: Asked
    target: str | None = None
    dtype: str = "float32"
    backend: str = "auto"
    fallback: str | None = None
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    device: DeviceOptions | None = None
    cache: bool = True
    form: str = "parquet"
    top: int | None = None
    logits: bool = False
    batch: int | None = None
    rows_per_part: int | None = None
    limit: int | None = None


@dataclass(frozen=True)
class Job:
    """A request, settled: parts 0 to ``parts`` - 1, of ``rows_per_part`` rows each, the last one of the rest.

    Of no rows there is one part, too: who reads it finds its columns.

    ``batch``: rows of every run of the session. ``identity``: (what, its value) of all that the bytes of the parts
    depend on; a directory holds the parts of one identity.
    """

    request: Request
    rows: int
    rows_per_part: int
    batch: int
    identity: tuple[tuple[str, str], ...]

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return max(1, -(-self.rows // self.rows_per_part))

    def span(self, number: int) -> tuple[int, int]:
        """The rows of a part, from and up to."""
        return number * self.rows_per_part, min((number + 1) * self.rows_per_part, self.rows)


@dataclass
class Opened:
    """A job in this process: its session, which was made or compiled nothing yet, and its open input.

    ``step``: rows that are run together, one batch for each of the cores.
    """

    job: Job
    session: InferenceSession
    source: Source
    step: int

    @property
    def block(self) -> int:
        """Rows that are read at once: whole steps, and a fraction of a part: the next are read while these are run."""
        width = sum(_bytes(one, self.source.shapes[one.name]) for one in self.source.wanted)
        rows = min(BYTES_PER_READ // max(width, 1), self.job.rows_per_part // READS_PER_PART)
        return max(1, rows // self.step) * self.step

    @cached_property
    def classifier(self) -> str | None:
        """The output that --top is for."""
        request = self.job.request
        model = self.session.model
        return None if request.top is None else choose_output(model.outputs, self.session.metadata, request.logits)

    @cached_property
    def labels(self) -> list[str]:
        """The names of the classes, where the model has them."""
        return labels_of(self.session.metadata) or looked_up_labels(self.session.model)

    @property
    def notes(self) -> list[str]:
        """What a user should know about how the files are understood, and what the parts will hold."""
        dicts = [output for output in self.session.model.outputs if output.dtype.startswith("seq(map(")]
        return self.source.notes + [
            f"{quote(output.name)} has a number for each of these labels, in this order: "
            f"{list_text([name_text(str(label)) for label in _dict_labels(self.session, output)], 20)}"
            for output in dicts
        ]

    def run(self, feeds: Mapping[str, Array], rows: int) -> dict[str, Array]:
        """The outputs of ``rows`` rows, in whole batches: the last one is filled with copies of its last row.

        Raises what the session does, and OptionError for an output that has no row for each row.
        """
        whole = -(-rows // self.job.batch) * self.job.batch
        missing = whole - rows
        padded = {
            name: np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) if missing else array
            for name, array in feeds.items()
        }
        names = [output.name for output in self.session.model.outputs]
        outputs = dict(zip(names, map(as_matrix, self.session.run(None, padded)), strict=True))
        for name, output in outputs.items():
            if output.shape[:1] != (whole,):
                raise OptionError(  # no InputError, which would say that a row is bad
                    f"output {quote(name)} has the shape {output.shape} for {count_text(whole, 'row')}: it is not one "
                    "answer a row, which batch prediction needs",
                    hint="run it with trnrt run",
                )
        return {name: output[:rows] for name, output in outputs.items()}

    def zeros(self, rows: int) -> dict[str, Array]:
        """Rows of zeros, or of empty texts."""
        return {
            one.name: np.full((rows, *self.source.shapes[one.name]), "" if one.info.dtype == "str" else 0, one.dtype)
            for one in self.source.wanted
        }

    def close(self) -> None:
        """Close the files, and let go of the device."""
        self.source.close()
        self.session.close()


def prepare(request: Request, *, checked: bool = False) -> Opened:
    """Open the model and the input, and settle the job. Nothing is compiled or run.

    Only headers are read, and the stored arrays of an .npz, once, for their CRC-32; not where that was ``checked``.

    Raises:
        InputError: for an input that can't be read, or doesn't fit the model; for a model whose inputs are no rows.
        OptionError: for settings that the model or the input doesn't have.
    """
    directory = local_path(request.directory)
    session = InferenceSession(
        request.model,
        target=request.target,
        dtype=request.dtype,
        backend=request.backend,
        fallback=request.fallback,
        shapes=dict(request.shapes),
        cache=request.cache,
        device=request.device,
    )
    wanted = _wanted_inputs(session, dict(request.shapes))
    _check_outside(request.asked.files, directory, wanted)
    source = open_source(request.asked, wanted, session.metadata)
    rows = source.rows if request.limit is None else min(request.limit, source.rows)
    width = sum(_bytes(one, source.shapes[one.name]) for one in wanted)
    batch = _batch(session, request.batch, rows, width)
    session.buckets = (batch,)
    settled = replace(request, target=portable_name(session.target), backend=session.backend)
    per_part = request.rows_per_part or _rows_per_part(_output_bytes(session, source, batch), batch)
    job = Job(settled, rows, per_part, batch, ())
    opened = Opened(job, session, source, batch * max(1, session.runner.parallel))
    if (reason := _mixing(opened)) is not None:
        _refuse_mixing(session, batch, reason)
        opened.step = 1
    _ = opened.classifier  # whether there is such an output is known already
    opened.job = replace(job, identity=_identity(opened))
    if not checked:
        source.check()
    return opened


def open_job(job: Job) -> Opened:
    """The job in this process. InputError where model or input are not what they were when it was settled."""
    opened = prepare(job.request, checked=True)  # by who settled it; the identity tells whether it is the same file
    if changed := changes(dict(job.identity), dict(opened.job.identity)):
        opened.close()
        raise InputError(f"the job is not what it was: {list_text(changed)}")
    return opened


def check_input(opened: Opened) -> None:
    """InputError where the input files are no longer those that were opened: the parts may have rows of either."""
    now = open_source(opened.job.request.asked, opened.source.wanted, opened.session.metadata)
    now.close()
    if changed := changes(opened.source.identity, now.identity):
        raise InputError(
            f"the input changed while it was read: {list_text(changed)}",
            hint="the parts may have rows of either; let nobody write to the files, and begin anew with --overwrite",
        )


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What is not the same, in words."""
    keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    return [f"{key} {name_text(before.get(key, 'none'))} -> {name_text(now.get(key, 'none'))}" for key in keys]


def _wanted_inputs(session: InferenceSession, shapes: Mapping[str, tuple[int, ...]]) -> list[Wanted]:
    """The inputs, with what the model or --shape says of a row's sizes."""
    model = session.model
    if model.batch is None:
        raise InputError("the model has no batch, so its inputs are no rows", hint="run it with trnrt run")
    if model.parameters:
        raise InputError(
            f"input {quote(model.parameters[0])} says what an operator does (a shape, axes, a count), and is no row",
            hint="export the model with it as a constant",
        )
    strange = [info for info in model.inputs if info.dtype.endswith(")") or not info.shape]
    if strange:
        what = "one value for all rows" if not strange[0].shape and not strange[0].dtype.endswith(")") else "no tensor"
        raise InputError(f"input {quote(strange[0].name)} ({strange[0].dtype}) is {what}", hint="run it with trnrt run")
    if ("" in shapes and len(model.inputs) > 1) or any(shapes.keys() - {"", *(info.name for info in model.inputs)}):
        default_shapes(model, 1, shapes)  # which says what is wrong with the name
    return [Wanted(info, _row_sizes(model, info, shapes), as_numpy(info.dtype)) for info in model.inputs]


def _row_sizes(model: ImportedModel, info: TensorInfo, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int | None, ...]:
    """A row's sizes, as the model or --shape says; None where neither does, and the input files may."""
    said = {name: sizes for name, sizes in shapes.items() if name in ("", info.name)}
    if said:
        return default_shapes(replace(model, inputs=(info,)), 1, said)[info.name][1:]
    return tuple(dim if isinstance(dim, int) else None for dim in info.shape[1:])


def _check_outside(files: Sequence[str], directory: Path, wanted: Sequence[Wanted]) -> None:
    """OptionError where the parts would be written into a folder of the input, and be rows of it the next time."""
    names = {one.name: one.info for one in wanted}
    for argument in files:
        folder = split_argument(argument, names)[1]
        if folder.is_dir() and directory.resolve().is_relative_to(folder.resolve()):
            raise OptionError(
                f"--output {quote(str(directory))} is in the folder of the input, {quote(str(folder))}",
                hint="name a directory outside of it",
            )


def _batch(session: InferenceSession, asked: int | None, rows: int, width: int) -> int:
    """Rows of every run: as asked, or the model's own, or the largest default bucket that is of use."""
    fixed = session.model.batch
    if isinstance(fixed, int):
        if asked not in (None, fixed):
            raise OptionError(f"--batch {asked}, and the model's batch is fixed at {fixed}", hint="leave --batch out")
        return fixed
    if asked is not None:
        return asked
    fitting = [size for size in DEFAULT_BUCKETS if size * width <= BYTES_PER_BATCH] or [DEFAULT_BUCKETS[0]]
    return next((size for size in fitting if size >= rows), fitting[-1])


def _rows_per_part(width: int | None, batch: int) -> int:
    """Whole batches, as many as their outputs allow; one where a row's bytes are not known."""
    rows = batch if width is None else min(ROWS_PER_PART, BYTES_PER_PART // max(width, 1))
    return max(1, rows // batch) * batch


def _output_bytes(session: InferenceSession, source: Source, batch: int) -> int | None:
    """Bytes of a row's outputs; None where a shape is not known before a run."""
    sizes: dict[Any, int] = {}
    for one in source.wanted:
        sizes |= dict(zip(one.info.shape[1:], source.shapes[one.name], strict=True))
    sizes.pop(None, None)  # open dimensions without a name are not one size
    shapes: list[tuple[Any, ...]] = [tuple(sizes.get(d, d) for d in out.shape[1:]) for out in session.model.outputs]
    if not all(isinstance(dim, int) for shape in shapes for dim in shape):
        shapes = _bound_shapes(session, {one.name: (batch, *source.shapes[one.name]) for one in source.wanted})
    if not shapes or not all(isinstance(dim, int) for shape in shapes for dim in shape):
        return None
    return sum(_row_bytes(session, output, shape) for output, shape in zip(session.model.outputs, shapes, strict=True))


def _row_bytes(session: InferenceSession, output: TensorInfo, shape: tuple[int, ...]) -> int:
    if not output.dtype.endswith(")"):
        return math.prod(shape) * as_numpy(output.dtype).itemsize
    return len(_dict_labels(session, output)) * np.dtype(np.float32).itemsize


def _dict_labels(session: InferenceSession, output: TensorInfo) -> list[str | int]:
    """What a list of dicts has in each of them: the labels of the ZipMap that makes it."""
    (node,) = (node for node in session.model.model.graph if output.name in (value.name for value in node.outputs))
    return [
        *node.attributes.get_strings("classlabels_strings", ()),
        *node.attributes.get_ints("classlabels_int64s", ()),
    ]


def _bound_shapes(session: InferenceSession, shapes: Mapping[str, tuple[int, ...]]) -> list[tuple[Any, ...]]:
    """The shapes of a row's outputs as the operators give them; none where that can't be told."""
    try:
        outputs = session.model.bind(shapes).model.graph.outputs
    except TrnrtError:  # which the session tells where it runs
        return []
    found = [output.shape for output in outputs]
    return [] if None in found else [tuple(shape)[1:] for shape in found if shape is not None]


def _bytes(wanted: Wanted, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * wanted.dtype.itemsize


def _mixing(opened: Opened) -> str | None:
    """Why the rows of a batch are not independent; None if they are."""
    batch = opened.session.model.batch
    return opened.session.mixing(opened.zeros(max(2, batch if isinstance(batch, int) else 2)), opened.step)


def _refuse_mixing(session: InferenceSession, batch: int, reason: str) -> None:
    if batch > 1:
        fixed = isinstance(session.model.batch, int)
        raise OptionError(
            f"the rows of a batch are not independent: {reason}; an answer would depend on what else is in its batch",
            hint="export the model with an open batch or a batch of 1" if fixed else "--batch 1 runs each row alone",
        )


def _identity(opened: Opened) -> tuple[tuple[str, str], ...]:
    """All that the bytes of the parts depend on."""
    job, request, asked = opened.job, opened.job.request, opened.job.request.asked
    images = {name: value for name, value in vars(asked.images).items() if value is not None}
    found: dict[str, object] = {
        "model": opened.session.model.digest,
        **opened.source.identity,
        "rows": job.rows,
        "rows per part": job.rows_per_part,
        "batch": job.batch,
        "target": cache_name(opened.session.target),
        "dtype": request.dtype,
        "backend": request.backend,
        "fallback": request.fallback or "none",
        "shapes": ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in opened.source.shapes.items()),
        "format": request.form,
        "top": request.top or "none",
        "logits": request.logits,
        "id": asked.id or "none",
        "columns": "; ".join(asked.columns) or "none",
        "image options": ", ".join(f"{name} {value}" for name, value in images.items()) or "none",
        # All of it: the simulator and what reads the rows count as much as the planner.
        "trnrt": code_version(),
        "pyarrow": writer_version(request.form) or "none",
    }
    return tuple((name, str(value)) for name, value in found.items())

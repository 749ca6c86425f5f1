"""A batch prediction's job: all that its numbers depend on, as plain values that can be sent to another process.

A job is cut into parts of ``rows_per_part`` consecutive rows. A part's bytes depend only on the job and the part's
number, not on the process that makes it, nor on earlier failures. So the session always runs the job's one batch size:
within one bucket a row's answer does not depend on its neighbours, bit for bit (docs/batches.md), and omitting a bad
row changes no other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
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
from trnrt.running.rows import as_matrix, pad_rows
from trnrt.session import InferenceSession
from trnrt.text import count_text, list_text, name_text, quote

if TYPE_CHECKING:
    from trnrt.backends import DeviceOptions
    from trnrt.importer import ImportedModel, TensorInfo
    from trnrt.planner.options import Float8

ROWS_PER_PART = 16384
"""The most rows of a part: a file that is quick to write, and little work to lose."""
BYTES_PER_PART = 64 << 20
"""The most bytes of a part's outputs: they are in memory until it is written."""
BYTES_PER_BATCH = 32 << 20
"""The most bytes of a batch's inputs, without ``--batch``."""
BYTES_PER_READ = 16 << 20
"""Bytes of input that are read at once; two such blocks are in memory."""
READS_PER_PART = 8
"""The fewest blocks that a part of many batches is read in."""


@dataclass(frozen=True)
class Request:
    """The user's settings. ``target``: None is the machine's device, else trn2. ``form``: "parquet" or "npz".

    ``top``: how many of the best classes to write beside the outputs. ``batch``, ``rows_per_part``: None chooses them.
    ``limit``: only the input's first rows. ``max_instructions``: of a kernel; see ``PlanOptions``. ``calibration``: the
    data of an 8-bit dtype; ``narrow``: the layers that have it.
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
    max_instructions: int | None = None
    calibration: Path | None = None
    narrow: str = "faster"


@dataclass(frozen=True)
class Job:
    """A request with everything settled: parts 0 to ``parts`` - 1 of ``rows_per_part`` rows, the last one of the rest.

    An input of no rows has one part, too, which shows the columns.

    ``batch``: rows of every run of the session. ``identity``: (name, value) of all that the parts' bytes depend on; a
    directory holds the parts of one identity.
    """

    request: Request
    rows: int
    rows_per_part: int
    batch: int
    identity: tuple[tuple[str, str], ...]

    @property
    def parts(self) -> int:
        """The number of parts."""
        return max(1, -(-self.rows // self.rows_per_part))

    def span(self, number: int) -> tuple[int, int]:
        """The first row of a part, and the one after its last."""
        return number * self.rows_per_part, min((number + 1) * self.rows_per_part, self.rows)


@dataclass
class Opened:
    """A job in this process: its session, which has compiled nothing yet, and its open input.

    ``step``: rows that run together, one batch for each core.
    """

    job: Job
    session: InferenceSession
    source: Source
    step: int
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The shapes of the outputs' rows, of the outputs that have been computed."""

    @property
    def block(self) -> int:
        """Rows that are read at once: whole steps, and a fraction of a part, as the next are read while these run."""
        rows = min(BYTES_PER_READ // max(self.source.row_bytes, 1), self.job.rows_per_part // READS_PER_PART)
        return max(1, rows // self.step) * self.step

    @cached_property
    def classifier(self) -> str | None:
        """The output that --top is for."""
        request = self.job.request
        model = self.session.model
        return None if request.top is None else choose_output(model.outputs, self.session.metadata, request.logits)

    @cached_property
    def labels(self) -> list[str]:
        """The names of the classes, if the model has them."""
        return labels_of(self.session.metadata) or looked_up_labels(self.session.model)

    @property
    def notes(self) -> list[str]:
        """Notes for the user: how the files are understood, and what the parts will contain."""
        dicts = [output for output in self.session.model.outputs if output.dtype.startswith("seq(map(")]
        return self.source.notes + [
            f"{quote(output.name)} has a number for each of these labels, in this order: "
            f"{list_text([name_text(str(label)) for label in _dict_labels(self.session, output)], 20)}"
            for output in dicts
        ]

    def run(self, feeds: Mapping[str, Array], rows: int) -> dict[str, Array]:
        """The outputs of ``rows`` rows, run in whole batches: the last one is filled with copies of its last row.

        Raises the session's errors, and OptionError for an output without an entry for each row, or with other shapes.
        """
        whole = -(-rows // self.job.batch) * self.job.batch
        found = self.session.run(None, {name: pad_rows(array, whole) for name, array in feeds.items()})
        outputs = {info.name: as_matrix(array) for info, array in zip(self.session.model.outputs, found, strict=True)}
        for name, output in outputs.items():
            if output.shape[:1] != (whole,):
                raise OptionError(  # no InputError, which would say that a row is bad
                    f"output {quote(name)} has the shape {output.shape} for {count_text(whole, 'row')}: batch "
                    "prediction needs one answer for each row",
                    hint="run it with trnrt run",
                )
            self._check_shape(name, output.shape[1:])
        return {name: output[:rows] for name, output in outputs.items()}

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """OptionError for rows of an output that don't fit a table: all need the same shape, and an element."""
        first = self.shapes.setdefault(name, shape)
        if shape != first or 0 in shape:
            raise OptionError(
                f"output {quote(name)} has rows of the shape {shape}{'' if shape == first else f', and of {first}'}: "
                "batch prediction needs rows of one shape that isn't empty",
                hint="run it with trnrt run, a batch at a time",
            )

    def zeros(self, rows: int) -> dict[str, Array]:
        """Rows of zeros, or of empty texts."""
        return {
            one.name: np.full((rows, *self.source.shapes[one.name]), "" if one.info.dtype == "str" else 0, one.dtype)
            for one in self.source.wanted
        }

    def close(self) -> None:
        """Close the files, and release the device."""
        self.source.close()
        self.session.close()


def prepare(request: Request, *, checked: bool = False) -> Opened:
    """Open the model and the input, and settle the job. Nothing is compiled or run.

    Reads headers only and, unless they are ``checked`` already, the stored arrays of an .npz for their CRC-32.

    Raises:
        InputError: if an input can't be read or doesn't fit the model, or the model's inputs have no rows.
        OptionError: for settings that don't fit the model or the input.
    """
    directory = local_path(request.directory)
    session = InferenceSession(
        request.model,
        target=request.target,
        dtype=request.dtype,
        calibration=request.calibration,
        narrow=request.narrow,
        backend=request.backend,
        fallback=request.fallback,
        max_instructions=request.max_instructions,
        shapes=dict(request.shapes),
        cache=request.cache,
        device=request.device,
    )
    wanted = wanted_inputs(session.model, dict(request.shapes))
    _check_outside(request.asked.files, directory, wanted)
    source = open_source(request.asked, wanted, session.metadata)
    rows = source.rows if request.limit is None else min(request.limit, source.rows)
    batch = _choose_batch(session, request.batch, rows, source.row_bytes)
    session.buckets = (batch,)
    settled = replace(request, target=portable_name(session.target), backend=session.backend)
    per_part = request.rows_per_part or _rows_per_part(_output_bytes(session, source, batch), batch)
    job = Job(settled, rows, per_part, batch, ())
    opened = Opened(job, session, source, batch * max(1, session.runner.parallel))
    if (reason := session.mixing(opened.zeros(1), opened.step)) is not None:
        if batch > 1:
            raise _mixing_error(session, reason)
        opened.step = 1
    _ = opened.classifier  # an error here comes before any work
    opened.job = replace(job, identity=_identity(opened))
    if not checked:
        source.check()
    return opened


def open_job(job: Job) -> Opened:
    """Open the job in this process. InputError if the model or the input has changed since the job was settled."""
    opened = prepare(job.request, checked=True)  # when it was settled; the identity shows that it is the same file
    if changed := changes(dict(job.identity), dict(opened.job.identity)):
        opened.close()
        raise InputError(f"the job has changed: {list_text(changed)}")
    return opened


def check_input(opened: Opened) -> None:
    """InputError if the input files have changed since they were opened: the parts may have rows of both versions."""
    now = open_source(opened.job.request.asked, opened.source.wanted, opened.session.metadata)
    now.close()
    if changed := changes(opened.source.identity, now.identity):
        raise InputError(
            f"the input changed while it was read: {list_text(changed)}",
            hint="the parts may mix both versions; start over with --overwrite once nothing writes to the files",
        )


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The entries that differ, in words."""
    keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    return [f"{key} {name_text(before.get(key, 'none'))} -> {name_text(now.get(key, 'none'))}" for key in keys]


def wanted_inputs(model: ImportedModel, shapes: Mapping[str, tuple[int, ...]]) -> list[Wanted]:
    """The inputs, with a row's sizes from the model or --shape; InputError if they have no rows."""
    if model.batch is None:
        raise InputError("the model has no batch, so its inputs have no rows", hint="run it with trnrt run")
    if model.parameters:
        raise InputError(
            f"input {quote(model.parameters[0])} is an operator's setting (a shape, axes, a count), not data with rows",
            hint="export the model with it as a constant",
        )
    for info in model.inputs:
        is_tensor = not info.dtype.endswith(")")
        if not is_tensor or not info.shape:
            what = "one value for all rows" if is_tensor else "no tensor"
            raise InputError(f"input {quote(info.name)} ({info.dtype}) is {what}", hint="run it with trnrt run")
    if ("" in shapes and len(model.inputs) > 1) or any(shapes.keys() - {"", *(info.name for info in model.inputs)}):
        default_shapes(model, 1, shapes)  # raises: no input has the name
    return [Wanted(info, _row_sizes(model, info, shapes), as_numpy(info.dtype)) for info in model.inputs]


def _row_sizes(model: ImportedModel, info: TensorInfo, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int | None, ...]:
    """A row's sizes by the model or --shape; None for those that only the input files can give."""
    given = {name: sizes for name, sizes in shapes.items() if name in ("", info.name)}
    if given:
        return default_shapes(replace(model, inputs=(info,)), 1, given)[info.name][1:]
    return tuple(dim if isinstance(dim, int) else None for dim in info.shape[1:])


def _check_outside(files: Sequence[str], directory: Path, wanted: Sequence[Wanted]) -> None:
    """OptionError if the parts would be in a folder of the input, and so be read as input the next time."""
    names = {one.name: one.info for one in wanted}
    for argument in files:
        folder = split_argument(argument, names)[1]
        if folder.is_dir() and directory.resolve().is_relative_to(folder.resolve()):
            raise OptionError(
                f"--output {quote(str(directory))} is in the folder of the input, {quote(str(folder))}",
                hint="name a directory outside of it",
            )


def _choose_batch(session: InferenceSession, asked: int | None, rows: int, width: int) -> int:
    """Rows of every run: ``asked``, or the model's own, or the largest default bucket that the rows and bytes need."""
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
    """Whole batches, as many as their outputs' bytes allow; one batch if a row's ``width`` is not known."""
    rows = batch if width is None else min(ROWS_PER_PART, BYTES_PER_PART // max(width, 1))
    return max(1, rows // batch) * batch


def _output_bytes(session: InferenceSession, source: Source, batch: int) -> int | None:
    """Bytes of a row's outputs; None if a shape is not known before a run."""
    model = session.model
    sizes: dict[Any, int] = {}
    for one in source.wanted:
        sizes |= dict(zip(one.info.shape[1:], source.shapes[one.name], strict=True))
    sizes.pop(None, None)  # open dimensions without a name may differ
    shapes: list[tuple[Any, ...]] = [tuple(sizes.get(dim, dim) for dim in out.shape[1:]) for out in model.outputs]
    if not _are_known(shapes):
        try:
            bound = model.bind({name: (batch, *shape) for name, shape in source.shapes.items()}).model.graph.outputs
        except TrnrtError:  # the session raises it, too, when it runs
            return None
        shapes = [tuple(value.shape or (None, None))[1:] for value in bound]
    if not _are_known(shapes):
        return None
    return sum(_row_bytes(session, output, shape) for output, shape in zip(model.outputs, shapes, strict=True))


def _are_known(shapes: Sequence[tuple[Any, ...]]) -> bool:
    return all(isinstance(dim, int) for shape in shapes for dim in shape)


def _row_bytes(session: InferenceSession, output: TensorInfo, shape: tuple[int, ...]) -> int:
    if not output.dtype.endswith(")"):
        return math.prod(shape) * as_numpy(output.dtype).itemsize
    return len(_dict_labels(session, output)) * np.dtype(np.float32).itemsize


def _dict_labels(session: InferenceSession, output: TensorInfo) -> list[str | int]:
    """The keys of each dict in a list of dicts: the labels of the ZipMap that makes it."""
    (node,) = (node for node in session.model.model.graph if output.name in (value.name for value in node.outputs))
    return [
        *node.attributes.get_strings("classlabels_strings", ()),
        *node.attributes.get_ints("classlabels_int64s", ()),
    ]


def _mixing_error(session: InferenceSession, reason: str) -> OptionError:
    fixed = isinstance(session.model.batch, int)
    return OptionError(
        f"the rows of a batch are not independent: {reason}; an answer would depend on the other rows of its batch",
        hint="export the model with an open batch or a batch of 1" if fixed else "--batch 1 runs each row alone",
    )


def _digest(float8: Float8) -> str:
    """The part of a job's identity that is in its 8-bit floats, besides the dtype."""
    return sha256(repr((float8.ranges, float8.narrow)).encode()).hexdigest()[:16]


def _identity(opened: Opened) -> tuple[tuple[str, str], ...]:
    """(name, value) of all that the parts' bytes depend on."""
    job, request, asked = opened.job, opened.job.request, opened.job.request.asked
    images = {name: value for name, value in vars(asked.images).items() if value is not None}
    float8 = opened.session.options.float8
    found: dict[str, object] = {
        "model": opened.session.model.digest,
        **opened.source.identity,
        "rows": job.rows,
        "rows per part": job.rows_per_part,
        "batch": job.batch,
        "target": cache_name(opened.session.target),
        "dtype": request.dtype,
        **({} if float8 is None else {"ranges": _digest(float8)}),
        "backend": request.backend,
        "fallback": request.fallback or "none",
        "max instructions": "default" if request.max_instructions is None else request.max_instructions or "none",
        "shapes": ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in opened.source.shapes.items()),
        "format": request.form,
        "top": request.top or "none",
        "logits": request.logits,
        "id": asked.id or "none",
        "columns": "; ".join(asked.columns) or "none",
        "image options": ", ".join(f"{name} {value}" for name, value in images.items()) or "none",
        # All of trnrt's code: the simulator and the readers count as much as the planner.
        "trnrt": code_version(),
        "pyarrow": writer_version(request.form) or "none",
    }
    return tuple((name, str(value)) for name, value in found.items())

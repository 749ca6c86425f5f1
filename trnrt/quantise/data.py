"""Calibration data: some rows of the user's files, spread over all of them, and their labels if there are any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trnrt.errors import InputError
from trnrt.inputs.matching import LABEL_NAMES, LARGEST_INPUT, kind_of, split_argument
from trnrt.predict.arrays import names_in
from trnrt.predict.job import wanted_inputs
from trnrt.predict.opening import open_source
from trnrt.predict.source import Asked, Source
from trnrt.running.rows import pad_rows
from trnrt.text import count_text, list_text, name_text, quote, size_text

if TYPE_CHECKING:
    from trnrt.importer import ImportedModel

Array = NDArray[Any]
BATCH = 32
"""Rows that onnxruntime runs at once: more need more memory, and are no faster on a CPU."""


@dataclass(frozen=True)
class Batch:
    """Rows to run at once: ``rows`` of them count, the others fill a fixed batch."""

    feeds: Mapping[str, Array]
    rows: int


@dataclass(frozen=True)
class Data:
    """Calibration data. ``available``: rows of the files; ``labels``: one for each row of the batches, or None."""

    batches: tuple[Batch, ...]
    available: int
    labels: Array | None = None
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """The rows of all batches."""
        return sum(batch.rows for batch in self.batches)

    def take(self, most: int) -> Data:
        """Whole batches of at least ``most`` rows together, spread over all; or all of them."""
        size = max((batch.rows for batch in self.batches), default=1)
        count = min(len(self.batches), -(-most // size))
        chosen = [len(self.batches) * k // count for k in range(count)]
        starts = np.cumsum([0, *(batch.rows for batch in self.batches)])
        rows = [np.arange(starts[k], starts[k + 1]) for k in chosen]
        labels = None if self.labels is None else self.labels[np.concatenate(rows)]
        return replace(self, batches=tuple(self.batches[k] for k in chosen), labels=labels)


def read_data(model: ImportedModel, asked: Asked, shapes: Mapping[str, tuple[int, ...]], samples: int) -> Data:
    """Read up to ``samples`` rows. ``asked.id`` names the labels; without it an .npz is searched for ``LABEL_NAMES``.

    Raises:
        InputError: for files that can't be read or don't fit the model, or that have no rows.
    """
    wanted = wanted_inputs(model, shapes)
    label = asked.id or _find_label(asked.files, model)
    notes = []
    try:
        source = open_source(replace(asked, id=label), wanted, model.metadata)
    except InputError as error:
        if asked.id is not None or label is None:
            raise
        source = open_source(asked, wanted, model.metadata)
        notes.append(f"{quote(label)} is not used as labels: {error}")
        label = None
    with closing(source):
        source.check()
        rows = min(samples, source.rows)
        if not rows:
            raise InputError("the calibration data has no rows", hint="give a few hundred typical rows")
        if (size := rows * source.row_bytes) > LARGEST_INPUT:
            raise InputError(
                f"{count_text(rows, 'row')} of calibration data need {size_text(size)}; "
                f"the limit is {size_text(LARGEST_INPUT)}",
                hint="use fewer rows: --rows N",
            )
        fixed = model.batch if isinstance(model.batch, int) else None
        batches, labels, bad = _read_batches(source, rows, fixed)
        if bad:
            notes.append(f"{count_text(len(bad), 'row')} set aside: {list_text(bad, 3)}")
        if not batches:
            raise InputError("no row of the calibration data fits the model", hint=f"the first: {bad[0]}")
        notes = [*source.notes, *notes]
    return Data(tuple(batches), source.rows, np.concatenate(labels) if label is not None else None, tuple(notes))


def _find_label(files: Sequence[str], model: ImportedModel) -> str | None:
    """The only array with labels in the only .npz, by its name."""
    names = {info.name: info for info in model.inputs}
    paths = [split_argument(argument, names)[1] for argument in files]
    found = [name for path in paths if _is_archive(path) for name in names_in(path)]
    labels = [name for name in found if name.lower() in LABEL_NAMES and name not in names]
    return labels[0] if len(labels) == 1 else None


def _is_archive(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() == ".npz" and kind_of(path) == "npz"


def _read_batches(source: Source, rows: int, fixed: int | None) -> tuple[list[Batch], list[Array], list[str]]:
    """The batches, their labels, and why rows were set aside."""
    count = -(-rows // (fixed or BATCH))
    batches, labels, bad = list[Batch](), list[Array](), list[str]()
    for k in range(count):
        start = source.rows * k // count
        found = source.read(start, start + rows * (k + 1) // count - rows * k // count)
        bad += [f"row {one.row}: {name_text(one.reason)}" for one in found.bad]
        if len(found.numbers):
            feeds = {name: pad_rows(array, fixed or len(array)) for name, array in found.feeds.items()}
            batches.append(Batch(feeds, len(found.numbers)))
            labels.append(found.ids)
    return batches, labels, bad

"""A model's inputs and outputs: the part of a loaded model that requests are checked against and answers follow."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from trnrt.importer import TensorInfo
from trnrt.nki.machine.timing import Range
from trnrt.serve.http.problems import Problem


@dataclass(frozen=True)
class TensorMeta:
    """An input or output: ``dtype`` is numpy's name for it ("str" for strings), -1 a dimension that varies."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def info(self) -> TensorInfo:
        """The same in the importer's words."""
        return TensorInfo(self.name, self.dtype, tuple(None if size < 0 else size for size in self.shape))


@dataclass(frozen=True)
class Description:
    """A loaded model.

    ``metadata``: the file's own, such as labels and image.layout; ``labels``: the names of the classes, if it has them
    ``buckets``: the rows it is compiled for; () without a batch, or if rows depend on each other: then it compiles
    for each request's shape
    ``predictions``: the device's time by bucket (or for 1 row), where there is a prediction
    ``by_length``: the same by sequence length, for a model with ``--lengths``; ``predictions`` are those of the
    longest
    ``mixing``: why rows of different requests can't share a batch; None if they can
    ``digest``: of the content that was loaded; "" if it is not known
    ``scores``: the kind of each output's numbers, where the graph tells it (``scores``)
    ``max_rows``: the most rows of a request; 0 without a batch, as no rows are counted then
    """

    inputs: tuple[TensorMeta, ...] = ()
    outputs: tuple[TensorMeta, ...] = ()
    metadata: dict[str, str] = field(default_factory=dict)
    labels: list[str] | None = None
    predictions: dict[int, Range] = field(default_factory=dict)
    by_length: dict[int, dict[int, Range]] = field(default_factory=dict)
    buckets: tuple[int, ...] = ()
    batch: int | str | None = None
    mixing: str | None = None
    parameters: tuple[str, ...] = ()
    digest: str = ""
    max_rows: int = 0
    scores: dict[str, str] = field(default_factory=dict)

    @cached_property
    def inputs_by_name(self) -> dict[str, TensorMeta]:
        """The inputs by name."""
        return {meta.name: meta for meta in self.inputs}

    @cached_property
    def outputs_by_name(self) -> dict[str, TensorMeta]:
        """The outputs by name."""
        return {meta.name: meta for meta in self.outputs}

    def check_rows(self, rows: int) -> None:
        """Problem(413) if a request has more rows than the server takes."""
        if 0 < self.max_rows < rows:
            text = f"the request has {rows} rows; the limit is {self.max_rows} (--max-rows)"
            raise Problem(413, f"{text}: send the others in other requests", reason="rows")

    def times(self, length: int) -> dict[int, Range]:
        """The device's time by bucket for sequences that are padded to ``length``; 0 for a model without lengths."""
        return self.by_length.get(length, self.predictions)

    @property
    def named_predictions(self) -> dict[str, Range]:
        """The device's time by bucket as text; ``8x128`` is 8 rows of length 128."""
        if not self.by_length:
            return {str(rows): found for rows, found in self.predictions.items()}
        by_length = self.by_length.items()
        return {f"{rows}x{length}": found for length, times in by_length for rows, found in times.items()}


NOTHING_KNOWN = Description()

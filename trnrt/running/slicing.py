"""Cutting a batch into slices, which is possible only if its rows are independent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trnrt.errors import InputError
from trnrt.importer import ImportedModel
from trnrt.inputs.drawing import Array
from trnrt.running.buckets import Slice, divide, slices_note
from trnrt.running.rows import count_rows
from trnrt.text import count_text


class Slicer:
    """Cuts batches of one model; it checks once per shape whether rows are independent."""

    def __init__(self, model: ImportedModel) -> None:
        self._model = model
        self._mixings: dict[tuple[object, ...], str | None] = {}

    def cut(self, arrays: Mapping[str, Array], buckets: Sequence[int], workers: int) -> tuple[list[Slice], list[str]]:
        """The slices to run the rows in, and notes on them.

        ``workers``: the number of slices that run in parallel. InputError if rows depend on each other and don't fill
        the model's fixed batch.
        """
        batch, rows = self._model.batch, count_rows(self._model, arrays)
        exact = [Slice(0, rows, rows)]
        if batch is None:
            return exact, []
        slices = divide(rows, (batch,) if isinstance(batch, int) else buckets, workers)
        if slices == exact:
            return exact, []
        reason = self.mixing(arrays, max(rows, buckets[-1]))
        if reason is not None and isinstance(batch, int):
            raise InputError(
                f"{count_text(rows, 'row')} for a batch fixed at {batch}, whose rows are not independent: {reason}",
                hint=f"give the model {count_text(batch, 'row')} at a time",
            )
        if reason is not None:
            return exact, [f"compiled for {count_text(rows, 'row')}: the rows are not independent, {reason}"]
        fixed = f"the model's batch is fixed at {batch}" if isinstance(batch, int) else ""
        return slices, [": ".join(part for part in (fixed, slices_note(slices)) if part)]

    def mixing(self, arrays: Mapping[str, Array], most: int) -> str | None:
        """Why rows of a batch with inputs like these may depend on each other; None if they do not.

        ``most``: the most rows of a batch, if it is open.
        """
        from trnrt.importer.rows import batching

        model, batch = self._model, self._model.batch
        if batch == 1:
            return None
        values = {name: arrays[name] for name in model.parameters}
        rest = {name: a.shape[1:] if a.ndim and name not in values else None for name, a in arrays.items()}
        data = [name for name, sizes in rest.items() if sizes is not None]
        # Powers of two, so that few numbers of rows need a check of their own.
        most = batch if isinstance(batch, int) else 1 << (most - 1).bit_length()
        key = (most, *(arrays[name].shape if sizes is None else sizes for name, sizes in rest.items()))

        def bind(count: int) -> Any:
            shapes = {n: arrays[n].shape if sizes is None else (count, *sizes) for n, sizes in rest.items()}
            return model.bind(shapes, values, of_any_size=True).model.graph

        if key not in self._mixings:
            fixed = isinstance(batch, int)
            self._mixings[key] = batching.mixing_at_any(model.model.graph, bind, data, most, fixed=fixed)
        return self._mixings[key]

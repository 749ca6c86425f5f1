"""Outputs for a batch of 0 rows, as in onnxruntime: empty arrays of the right shapes.

Nothing is planned or run. If rows are independent, shapes follow from those for several rows; otherwise shapes are
inferred for 0 rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trnrt.errors import InputError
from trnrt.importer import ImportedModel
from trnrt.inputs.drawing import Array, as_numpy
from trnrt.text import quote, shape_text


def outputs_of_no_rows(model: ImportedModel, arrays: Mapping[str, Array], mixing: str | None) -> dict[str, Any]:
    """The outputs by name. ``mixing``: why rows depend on each other; None if they don't.

    Raises:
        InputError: if an output would not be empty, or its shape is unknown.
    """
    outputs: dict[str, Any] = {}
    for info, shape in zip(model.outputs, _shapes(model, arrays, independent=mixing is None), strict=True):
        if info.dtype.endswith(")"):  # a list of dicts, one per row
            outputs[info.name] = []
            continue
        if shape is None or 0 not in shape:
            made = "an unknown shape" if shape is None else f"the shape {shape_text(shape)}"
            raise InputError(
                f"the batch has 0 rows, and output {quote(info.name)} has {made}: "
                f"the rows are not independent, {mixing}",
                hint="give the model 1 row or more",
            )
        outputs[info.name] = np.empty(shape, as_numpy(info.dtype))
    return outputs


def _shapes(model: ImportedModel, arrays: Mapping[str, Array], *, independent: bool) -> list[tuple[int, ...] | None]:
    """The outputs' shapes; None for an unknown one."""
    from trnrt.importer.binding import shapes_of_no_rows
    from trnrt.importer.values import static_shape

    shapes = {name: array.shape for name, array in arrays.items()}
    values = {name: arrays[name] for name in model.parameters}
    if not independent:
        return shapes_of_no_rows(model, shapes, values)
    rows = model.batch if isinstance(model.batch, int) else 2
    several = {n: shape if n in values or not shape else (rows, *shape[1:]) for n, shape in shapes.items()}
    bound = model.bind(several, values, of_any_size=True).model.graph.outputs
    return [None if shape is None else (0, *shape[1:]) for shape in map(static_shape, bound)]

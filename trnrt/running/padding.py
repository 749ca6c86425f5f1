"""Check that padding changes no output: onnxruntime runs random sequences alone, and padded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trnrt.errors import BackendError, OptionError
from trnrt.importer import ImportedModel
from trnrt.inputs.drawing import Array, as_numpy, draw
from trnrt.planner.sizes import default_shapes
from trnrt.running.lengths import Fitted, Lengths, sequence_lengths
from trnrt.running.reference import open_model, run_session
from trnrt.running.rows import as_matrix
from trnrt.text import one_line, quote, shape_text

TOLERANCE = 1e-4
"""The largest difference that rounding may make, as a share of an output's largest number. onnxruntime may sum a
longer sequence in another order; transformer encoders with random weights differed by 0."""
COARSE = 2e-2
"""The same for models that round to 16 or 8 bits: a sum whose last bit changes may be rounded to the next step."""
_ROWS = 2


def open_lengths(
    model: ImportedModel, file: str | bytes, sizes: Sequence[int], pads: Mapping[str, float] | None = None
) -> Lengths:
    """The lengths of a model, after a check by onnxruntime on random sequences that are half padding.

    ``file``: the model's path or content. OptionError if an output depends on padded places; BackendError if
    onnxruntime can't run the model.
    """
    lengths = sequence_lengths(model, sizes, pads)
    size = next((size for size in lengths.sizes if size > 1), None)
    if size is None:
        return lengths
    drawn = _draw_whole(model, lengths, size)
    short = lengths.resize(drawn, size // 2)
    try:
        reference = open_model(file, threads=1)
        alone, padded = (
            list(map(as_matrix, run_session(reference, feeds))) for feeds in (short, lengths.resize(short, size))
        )
    except Exception as error:  # onnxruntime's errors share no base class
        raise BackendError(
            f"onnxruntime can't run sequences of {size // 2} and {size}, to check that padding changes no output: "
            f"{one_line(str(error))}",
            hint="give lengths that the model takes, or leave --lengths out",
        ) from None
    names = [info.name for info in model.outputs]
    outputs = {n: _cut_axes(n, one, other, size) for n, one, other in zip(names, alone, padded, strict=True)}
    kept = Fitted({}, size // 2, size, outputs).cut(dict(zip(names, padded, strict=True)))
    limit = COARSE if _rounds(model) else TOLERANCE
    for name, one in zip(names, alone, strict=True):
        is_exact = limit == TOLERANCE and one.dtype.kind in "iub"
        _compare(name, one, kept[name], 0 if is_exact else limit, size)
    return replace(lengths, outputs={name: axes for name, axes in outputs.items() if axes})


def _draw_whole(model: ImportedModel, lengths: Lengths, size: int) -> dict[str, Array]:
    """Random inputs in which every place counts: masks are 1."""
    from trnrt.importer.rows.indexing import index_limits

    arrays = draw(model, default_shapes(model, _ROWS, lengths.shapes(model, size)), None, seed=0)
    indices = index_limits(model.model.graph)
    for info in model.inputs:
        is_number = as_numpy(info.dtype).kind in "iub" and info.name not in indices
        if info.name in lengths.inputs and (is_number or "mask" in info.name.lower()):
            arrays[info.name] = np.ones_like(arrays[info.name])
    return arrays


def _cut_axes(name: str, alone: Array, padded: Array, size: int) -> tuple[int, ...]:
    """The axes of an output that are the sequence, by its shapes for half of ``size`` and for ``size``."""
    axes = tuple(axis for axis, pair in enumerate(zip(alone.shape, padded.shape, strict=False)) if pair[0] != pair[1])
    known = all((alone.shape[axis], padded.shape[axis]) == (size // 2, size) for axis in axes)
    if alone.ndim != padded.ndim or not known:
        raise OptionError(
            f"output {quote(name)} is {shape_text(alone.shape)} for sequences of {size // 2} and "
            f"{shape_text(padded.shape)} for {size}: the padding can't be cut off",
            hint="leave --lengths out, and give one length with --shape",
        )
    return axes


def _compare(name: str, alone: Array, padded: Array, limit: float, size: int) -> None:
    """OptionError if an output differs by more than rounding does."""
    if alone.dtype.kind in "OUS":
        apart, most = float(not np.array_equal(alone, padded)), 1.0
    else:
        one, other = alone.astype(np.float64), padded.astype(np.float64)
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        with np.errstate(invalid="ignore"):
            apart = float(np.where(same, 0.0, np.abs(one - other)).max(initial=0.0))
        most = float(np.abs(one[np.isfinite(one)]).max(initial=0.0))
    if apart <= limit * most:
        return
    raise OptionError(
        f"padding changes output {quote(name)}: sequences of {size // 2}, padded to {size}, differ by up to "
        f"{apart:.3g} (largest number: {most:.3g})",
        hint="an encoder needs an attention_mask input, and a mean over its tokens must use it; "
        "or leave --lengths out, and give one length with --shape",
    )


def _rounds(model: ImportedModel) -> bool:
    """True if the model computes in fewer than 32 bits."""
    import onnx_ir as ir  # for sessions with lengths alone

    from trnrt.importer.quantised.rewriting import is_quantised

    graph = model.model.graph
    short = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    values: list[Any] = [*graph.inputs, *graph.initializers.values(), *graph.outputs]
    return is_quantised(graph) or any(value.dtype in short for value in values)

"""Arrays for a model's inputs: checks, and random values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.errors import InputError
from trnrt.importer import ImportedModel, TensorInfo
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.text import quote, shape_text

Array = NDArray[Any]
INTEGERS_BELOW = 10
"""Random integers are below this."""


def as_numpy(dtype: str) -> np.dtype[Any]:
    """The numpy dtype of a tensor of the model; strings are objects."""
    if dtype == "str":
        return np.dtype(object)
    return as_dtype("bfloat16").numpy if dtype == "bfloat16" else np.dtype(dtype)


def as_array(given: Array | Sequence[object] | float | None, info: TensorInfo) -> Array:
    """A value for an input as an array of this machine's byte order.

    A list, or a number of Python that loses nothing, gets the input's dtype. An array with one number becomes a scalar
    if the input is one: onnxruntime takes both.
    """
    if given is None:
        raise InputError(f"input {quote(info.name)} is None", hint=f"give an array of {info.dtype}")
    is_number = (type(given) in (int, float) and "float" in info.dtype) or (type(given) is int and "int" in info.dtype)
    try:
        is_plain = isinstance(given, (list, tuple)) or is_number
        array = np.asarray(given, as_numpy(info.dtype)) if is_plain else np.asarray(given)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"input {quote(info.name)} is no array of {info.dtype}: {error}") from None
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    is_scalar = not info.shape and array.size == 1 and not info.dtype.endswith(")")
    return array.reshape(()) if is_scalar else array


def check_array(array: Array, info: TensorInfo, batch: int | str | None, *, may_be_empty: bool = False) -> None:
    """InputError unless dtype, rank and fixed dimensions fit. Any number of rows fits, even 0 (they run in slices)."""
    expected = as_numpy(info.dtype)
    if array.dtype != expected and not (info.dtype == "str" and array.dtype.kind in "OUS"):
        raise InputError(
            f"input {quote(info.name)} is {array.dtype}; the model wants {info.dtype}",
            hint=_conversion_hint(array, info.dtype),
        )
    shape, wanted = f"input {quote(info.name)} has shape {shape_text(array.shape)}", shape_text(info.shape)
    if array.ndim != len(info.shape):
        raise InputError(
            f"{shape}, of rank {array.ndim}; the model wants {wanted}",
            hint="one row needs its batch dimension, too: array[None]" if array.ndim == len(info.shape) - 1 else None,
        )
    for d, (size, declared) in enumerate(zip(array.shape, info.shape, strict=True)):
        if size == 0 and not may_be_empty and not (d == 0 and batch is not None):
            raise InputError(f"{shape}: dimension {d} is 0, there is nothing to run")
        if isinstance(declared, int) and size != declared and not (d == 0 and isinstance(batch, int)):
            raise InputError(f"{shape}; the model wants {wanted}")


def _conversion_hint(array: Array, dtype: str) -> str:
    """The way from an array to the model's dtype; numpy converts texts to numbers only if they spell some."""
    kind = array.dtype.kind
    holds_texts = kind in "US" or (kind == "O" and any(isinstance(value, str | bytes) for value in array.flat))
    if holds_texts and dtype != "str":
        return f"the model takes numbers ({dtype}): encode texts as its training data was"
    return f'convert it: array.astype("{dtype}")'


def draw(model: ImportedModel, shapes: Mapping[str, tuple[int, ...]], batch: int | None, seed: int) -> dict[str, Array]:
    """A value for each input of these ``shapes``; see ``InferenceSession.random_inputs``."""
    from trnrt.importer.rows.indexing import index_limits

    generator = np.random.default_rng(seed)
    fixed = model.batch if isinstance(model.batch, int) else None
    limits = index_limits(model.model.graph)
    arrays: dict[str, Array] = {}
    for info in model.inputs:
        shape = shapes[info.name] if fixed is None else (batch or fixed, *shapes[info.name][1:])
        if info.dtype == "str":
            raise InputError(
                f"input {quote(info.name)} holds strings, for which no random values can be drawn",
                hint="give it with --input",
            )
        if info.name in model.parameters:
            raise InputError(
                f"input {quote(info.name)} holds an operator's shape, axes or count: no random value will do",
                hint="give it with --input, or export the model with it as a constant",
            )
        kind = as_numpy(info.dtype)
        below = min(INTEGERS_BELOW, limits.get(info.name, INTEGERS_BELOW))
        drawn = generator.integers(0, below, shape) if kind.kind in "iub" else generator.random(shape)
        arrays[info.name] = drawn.astype(kind)
    return arrays


def blank(model: ImportedModel, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Zeros or empty texts for each input of these ``shapes``, where only shapes and types matter.

    InputError for an input that sets what an operator does: zeros would set something else.
    """
    for name in model.parameters:
        raise InputError(
            f"input {quote(name)} holds an operator's shape, axes or count: the plan depends on its value",
            hint="export the model with it as a constant",
        )
    return {
        info.name: np.full(shapes[info.name], "" if info.dtype == "str" else 0, as_numpy(info.dtype))
        for info in model.inputs
    }

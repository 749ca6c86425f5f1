"""Run sequences of any length with a few compiled lengths: pad them to the next one, and cut the outputs back.

The sequence is the dimension that a model's inputs leave open beside the batch: ``input_ids`` [batch, sequence],
``attention_mask`` [batch, sequence]. Padding is right only if no output depends on the padded
places; ``padding`` checks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import index
from typing import Any

import numpy as np

from trnrt.errors import InputError, OptionError
from trnrt.importer import ImportedModel, TensorInfo
from trnrt.inputs.drawing import Array, as_numpy
from trnrt.text import count_text, list_text, names_text, quote, shape_text

Axes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Fitted:
    """Inputs of one ``length``, padded to ``size``; ``outputs`` has the sequence axes of each output.

    Length and size are 0 for inputs of a session without lengths.
    """

    arrays: dict[str, Array]
    length: int = 0
    size: int = 0
    outputs: Axes = field(default_factory=dict)

    def cut(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs without the padded places."""
        if self.length == self.size:
            return dict(outputs)
        return {name: _resize(output, self.outputs.get(name, ()), self.length, 0) for name, output in outputs.items()}

    @property
    def notes(self) -> tuple[str, ...]:
        """A note on the padding, if there is any."""
        padding = count_text(self.size - self.length, "place")
        return () if self.length == self.size else (f"length {self.length} ran as {self.size}, padded with {padding}",)


@dataclass(frozen=True)
class Lengths:
    """The lengths that a model is compiled for, in order.

    ``inputs`` and ``outputs``: the sequence axes of each. ``pads``: the numbers in padded places, by input; 0 if not
    named.
    """

    sizes: tuple[int, ...]
    inputs: Axes
    pads: Mapping[str, float] = field(default_factory=dict)
    outputs: Axes = field(default_factory=dict)

    def fit(self, arrays: Mapping[str, Array]) -> Fitted:
        """The inputs, padded to the smallest length that holds them; InputError if there is none."""
        found = {arrays[name].shape[axis]: name for name, axes in self.inputs.items() for axis in axes}
        if len(found) > 1:
            text = list_text(f"{quote(name)} has {length:,}" for length, name in found.items())
            raise InputError(f"the inputs have different lengths: {text}", hint="pad them to one length")
        (length,) = found
        size = next((size for size in self.sizes if size >= length), None)
        if size is None:
            more = ",".join(map(str, (*self.sizes, 1 << (length - 1).bit_length())))
            raise InputError(
                f"the inputs have the length {length:,}; the largest of the session's lengths is {self.sizes[-1]:,}",
                hint=f"truncate them, or name a larger length: --lengths {more}",
            )
        return Fitted(self.resize(arrays, size), length, size, self.outputs)

    def resize(self, arrays: Mapping[str, Array], length: int) -> dict[str, Array]:
        """The inputs cut or padded to a length."""
        return {
            name: _resize(array, self.inputs.get(name, ()), length, self.pads.get(name, 0))
            for name, array in arrays.items()
        }

    def shapes(self, model: ImportedModel, length: int) -> dict[str, tuple[int, ...]]:
        """The sizes of the model's inputs for a length, as ``InferenceSession(..., shapes=...)`` takes them."""
        first = 0 if model.batch is None else 1
        wanted = (info for info in model.inputs if info.name in self.inputs)
        return {info.name: tuple(d if isinstance(d, int) else length for d in info.shape[first:]) for info in wanted}


def check_lengths(lengths: Iterable[int]) -> tuple[int, ...]:
    """The lengths in order, without duplicates; OptionError unless they are whole numbers of 1 or more."""
    try:
        sizes = tuple(sorted({index(length) for length in lengths}))
    except TypeError:
        raise OptionError(f"lengths {lengths!r} are not whole numbers", hint="give a list, as [32, 64, 128]") from None
    if not sizes or sizes[0] < 1:
        found = f"a length is {sizes[0]}" if sizes else "there are no lengths"
        raise OptionError(found, hint="give lengths of 1 or more, as in --lengths 32,64,128")
    return sizes


def parse_lengths(text: str) -> tuple[int, ...]:
    """``32,64,128`` as lengths. OptionError for anything else."""
    try:
        return check_lengths(int(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"lengths {text!r} are not whole numbers", hint="write --lengths 32,64,128") from None


def parse_pad(text: str) -> tuple[str, float]:
    """``input_ids=1`` as a name and a number. OptionError for anything else."""
    name, _, value = text.rpartition("=")
    try:
        return name, float(value)
    except ValueError:
        raise OptionError(f"pad {text!r} is no input with a number", hint="write --pad input_ids=1") from None


def sequence_lengths(model: ImportedModel, sizes: Iterable[int], pads: Mapping[str, float] | None = None) -> Lengths:
    """The lengths of a model, not checked yet; OptionError if its inputs have no sequence, or a pad fits none."""
    inputs = {info.name: axes for info in model.inputs if (axes := _open_axes(model, info))}
    if not inputs:
        declared = list_text(f"{quote(info.name)} {shape_text(info.shape)}" for info in model.inputs)
        raise OptionError(f"no input of the model has an open length: {declared}", hint="leave --lengths out")
    for info in model.inputs:
        if info.name in inputs and info.dtype == "str":
            raise OptionError(f"input {quote(info.name)} holds texts: they can't be padded", hint="leave --lengths out")
    for name, value in (pads or {}).items():
        if name not in inputs:
            raise OptionError(f"--pad names {quote(name)}, which has no open length", hint=f"use {names_text(inputs)}")
        dtype = next(as_numpy(info.dtype) for info in model.inputs if info.name == name)
        with np.errstate(invalid="ignore"):  # a number outside the type's range becomes another one
            same = float(np.array(value).astype(dtype)) == value
        if dtype.kind in "iub" and not same:
            raise OptionError(f"--pad {name}={value:g}: the input is {dtype}", hint="give a number of this type")
    return Lengths(check_lengths(sizes), inputs, dict(pads or {}))


def has_sequence(model: ImportedModel) -> bool:
    """True if the model's inputs have an open length, and no other open sizes."""
    try:
        sequence_lengths(model, (1,))
    except OptionError:
        return False
    return True


def _open_axes(model: ImportedModel, info: TensorInfo) -> tuple[int, ...]:
    """The axes of an input that are open and not the batch. OptionError for two sizes that may differ: an image's."""
    if info.name in model.parameters:
        return ()
    first = 1 if isinstance(model.batch, str) and info.shape else 0
    axes = tuple(axis for axis, size in enumerate(info.shape) if axis >= first and not isinstance(size, int))
    if len(axes) > 1 and len({info.shape[axis] or axis for axis in axes}) > 1:
        raise OptionError(
            f"input {quote(info.name)} {shape_text(info.shape)} leaves open several sizes, which are no one length",
            hint="give its sizes with --shape",
        )
    return axes


def _resize(array: Any, axes: tuple[int, ...], length: int, pad: float) -> Any:
    """An array cut or padded at the end of these axes."""
    if not axes:
        return array
    kept = array[tuple(slice(length) if axis in axes else slice(None) for axis in range(array.ndim))]
    missing = [(0, length - kept.shape[axis] if axis in axes else 0) for axis in range(array.ndim)]
    return np.pad(kept, missing, constant_values=pad) if any(after for _, after in missing) else kept

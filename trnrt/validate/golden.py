"""The check before a model takes requests: it answers inputs as onnxruntime does, in every bucket."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.cache.places import golden_file
from trnrt.errors import BackendError, InputError, ModelFileError
from trnrt.running.rows import as_matrix
from trnrt.session import InferenceSession
from trnrt.validate import Noise, OutputComparison, Tolerance, compare, default_tolerance, run_onnxruntime

Array = NDArray[Any]
MEASURED_ROWS = 8
"""Golden inputs of up to this many rows are always compared with measured tolerances. Measuring takes time, so
for more rows it is done only if an output exceeds the default tolerances."""


def golden_feeds(session: InferenceSession, model: Path, rows: int) -> dict[str, Array]:
    """Inputs of ``rows`` rows: the golden file's, repeated as needed, or else random ones.

    Raises:
        InputError: if there is no file, and no random value will do for an input
        ModelFileError: if the file can't be read
    """
    path = golden_file(model)
    if path.exists():
        return _resize_rows(session, _read(path), rows)
    try:
        return session.random_inputs(rows)
    except InputError as error:
        arrays = f"put arrays for all inputs into {path.name} beside the model"
        hint = f"name open sizes with --shape, or an encoder's lengths with --lengths, or {arrays}"
        raise InputError(f"no golden input: {error}", hint=hint) from None


@dataclass(frozen=True)
class Golden:
    """An input, onnxruntime's answer by output, and how far another answer may be from it.

    ``default``: tolerances for all elements, tried first; None if the measured ones always count
    ``measured``: measures what rounding does to each element
    """

    feeds: Mapping[str, Array]
    expected: dict[str, Array]
    default: Tolerance | None
    measured: Callable[[], Mapping[str, Tolerance]]

    def compare(self, outputs: Mapping[str, Array]) -> list[OutputComparison]:
        """Each output against onnxruntime's."""
        found = []
        for name, expected in self.expected.items():
            tolerance = self.default or self.measured()[name]
            one = compare(name, outputs[name], expected, tolerance.rtol, tolerance.atol)
            if not one.passed and self.default is not None:  # rounding may change some outputs by more
                measured = self.measured()[name]
                one = compare(name, outputs[name], expected, measured.rtol, measured.atol)
            found.append(one)
        return found

    def check(self, outputs: Mapping[str, Array]) -> None:
        """BackendError if an output is further from onnxruntime's than ``trnrt validate`` allows."""
        for found in self.compare(outputs):
            if not found.passed:
                raise BackendError(
                    f"output {found.name!r} of the golden input is {found.error:.3g} away from onnxruntime's, where "
                    f"{found.tolerance:.3g} is allowed",
                    hint="trnrt validate --layers tells where they part",
                )


def make_golden(
    session: InferenceSession,
    reference: Any,
    feeds: Mapping[str, Array],
    noise: Noise | None = None,
    measured_rows: int = MEASURED_ROWS,
) -> Golden:
    """The input with onnxruntime's answer; ``reference`` is its session. BackendError if it can't run.

    ``noise``: the model's, to measure it once for several inputs. ``measured_rows``: see MEASURED_ROWS.
    """
    try:
        found = map(as_matrix, run_onnxruntime(session, feeds, reference=reference))
    except Exception as error:  # onnxruntime's errors share no base class
        raise BackendError(f"onnxruntime can't run the golden input: {' '.join(str(error).split())}") from None
    expected = dict(zip([info.name for info in session.model.outputs], found, strict=True))
    rows = max((array.shape[0] for array in feeds.values() if array.ndim), default=1)
    model_noise = noise or Noise(session)
    default = default_tolerance(session.dtype) if rows > measured_rows else None
    return Golden(feeds, expected, default, cache(lambda: model_noise.tolerances(feeds, expected)))


def _read(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError) as error:
        raise ModelFileError(f"can't read the golden input {str(path)!r}: {error}") from None


def _resize_rows(session: InferenceSession, feeds: dict[str, Array], rows: int) -> dict[str, Array]:
    """The same inputs with ``rows`` rows; unchanged for a model without a batch."""
    if session.model.batch is None:
        return feeds
    whole = session.model.parameters
    return {
        name: array if name in whole or not array.ndim else np.resize(array, (rows, *array.shape[1:]))
        for name, array in feeds.items()
    }

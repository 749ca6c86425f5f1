"""Before a model takes requests it answers inputs as onnxruntime does, in every bucket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.errors import BackendError, InputError, ModelFileError
from trnrt.session import InferenceSession, as_matrix
from trnrt.validate import compare, default_tolerances, run_onnxruntime

Array = NDArray[Any]
SUFFIX = ".golden.npz"


def golden_file(model: Path) -> Path:
    """Where a model's own golden input stands, if it has one: ``digits.golden.npz`` beside ``digits.onnx``."""
    return model.with_name(model.stem + SUFFIX)


def golden_feeds(session: InferenceSession, model: Path, rows: int) -> dict[str, Array]:
    """Inputs of so many rows: those of the golden file, repeated as needed, or else random ones.

    Raises:
        InputError: where no random value will do for an input, and there is no file.
        ModelFileError: where the file can't be read.
    """
    path = golden_file(model)
    if path.exists():
        return _sized(session, _read(path), rows)
    try:
        return session.random_inputs(rows)
    except InputError as error:
        hint = f"name open sizes with --shape, or put arrays for all inputs into {path.name} beside the model"
        raise InputError(f"no golden input: {error}", hint=hint) from None


@dataclass(frozen=True)
class Golden:
    """An input, what onnxruntime answers (by output), and how far an answer may be away from that."""

    feeds: dict[str, Array]
    expected: dict[str, Array]
    rtol: float
    atol: float

    def check(self, outputs: Mapping[str, Array]) -> None:
        """BackendError where an output is further from onnxruntime's than ``trnrt validate`` allows."""
        for name, expected in self.expected.items():
            found = compare(name, outputs[name], expected, self.rtol, self.atol)
            if not found.passed:
                raise BackendError(
                    f"output {name!r} of the golden input is {found.max_abs:.3g} away from onnxruntime's, beyond rtol "
                    f"{self.rtol:g} and atol {self.atol:g}",
                    hint="trnrt validate --layers tells where they part",
                )


def answered(session: InferenceSession, reference: Any, feeds: dict[str, Array]) -> Golden:
    """The input with onnxruntime's answer; ``reference`` is its session. BackendError where it has none."""
    try:
        expected = map(as_matrix, run_onnxruntime(session, feeds, reference=reference))
    except Exception as error:  # onnxruntime's errors share no base class
        raise BackendError(f"onnxruntime can't run the golden input: {' '.join(str(error).split())}") from None
    names = [info.name for info in session.model.outputs]
    return Golden(feeds, dict(zip(names, expected, strict=True)), *default_tolerances(session.dtype))


def _read(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError) as error:
        raise ModelFileError(f"can't read the golden input {str(path)!r}: {error}") from None


def _sized(session: InferenceSession, feeds: dict[str, Array], rows: int) -> dict[str, Array]:
    """The same inputs with so many rows; a model without a batch takes them as they are."""
    if session.model.batch is None:
        return feeds
    whole = session.model.parameters
    return {
        name: array if name in whole or not array.ndim else np.resize(array, (rows, *array.shape[1:]))
        for name, array in feeds.items()
    }

"""How far an output may be from onnxruntime's: as its noise allows, as the user says, or by defaults for its dtype."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.errors import BackendError, TrnrtError
from trnrt.operators.bounds.rounding import BOTH
from trnrt.running.rows import as_matrix
from trnrt.session import InferenceSession
from trnrt.validate.noise import SAMPLES, allowance, spread, storing_error
from trnrt.validate.running import open_model, run_onnxruntime
from trnrt.validate.shaking import shaken

Array = NDArray[Any]
Outputs = dict[str, Array]
_DEFAULTS = {"float32": (1e-4, 1e-5), "bfloat16": (2e-2, 1e-2), "float16": (2e-2, 1e-2)}


@dataclass(frozen=True)
class Tolerance:
    """``|ours - reference| <= atol + rtol * |reference|``, with one ``atol`` for all elements, or one for each.

    ``noise`` is the standard deviation that rounding has in each element, where it was measured.
    """

    rtol: float
    atol: float | Array
    noise: Array | None = None


def default_tolerances(dtype: str) -> tuple[float, float]:
    """(rtol, atol) for a session dtype: rtol always, atol where no noise is measured, or the user says only rtol."""
    return _DEFAULTS[dtype]


def default_tolerance(dtype: str, rtol: float | None = None, atol: float | None = None) -> Tolerance:
    """The same tolerance for every element: the user's, or the dtype's defaults."""
    default_rtol, default_atol = default_tolerances(dtype)
    return Tolerance(default_rtol if rtol is None else rtol, default_atol if atol is None else atol)


class Noise:
    """The noise of a session's model: what its outputs vary by when all that is computed is rounded at random.

    onnxruntime alone is asked, on the model as it was read: neither the plan nor a rewrite has a part in it.
    """

    def __init__(self, session: InferenceSession, *, threads: int = 0) -> None:
        self._session, self._threads = session, threads
        self._names = [info.name for info in session.model.outputs]
        self._opened: dict[str, Any] = {}

    def tolerances(self, feeds: Mapping[str, Array], reference: Outputs) -> dict[str, Tolerance]:
        """A tolerance for each output: as measured, or the defaults where it can't be, and of what is no float."""
        usual = {name: default_tolerance(self._session.dtype) for name in reference}
        try:
            wide = self._session.dtype == "float32"
            return usual | (self.float32(feeds, reference) if wide else self.both(feeds, reference)[0])
        except BackendError:
            return usual

    def float32(self, feeds: Mapping[str, Array], reference: Outputs) -> dict[str, Tolerance]:
        """A tolerance for each output of floats, of a session in float32."""
        return self._float32(self._samples("float32", feeds, reference), reference)

    def both(self, feeds: Mapping[str, Array], reference: Outputs) -> tuple[dict[str, Tolerance], dict[str, Tolerance]]:
        """The tolerances of the session's own dtype, which is of 16 bits, and those of float32."""
        dtype = self._session.dtype
        wide, short = (self._samples(kind, feeds, reference) for kind in ("float32", dtype))
        float32 = self._float32(wide, reference)
        made = {}
        for name, tolerance in float32.items():
            if name not in short:
                continue
            noise = spread(short[name], np.mean([a.astype(np.float64) for a in wide[name]], axis=0))
            noise = np.hypot(noise, storing_error(reference[name], dtype))
            # Only ours is rounded to 16 bits; in float32 both are.
            made[name] = Tolerance(default_tolerances(dtype)[0], allowance(noise, 1) + tolerance.atol, noise)
        return made, float32

    def _float32(self, samples: dict[str, list[Array]], reference: Outputs) -> dict[str, Tolerance]:
        made = {}
        for name, runs in samples.items():
            noise = spread(runs)
            own = reference[name].dtype.name
            atol = allowance(noise, BOTH) + BOTH * storing_error(reference[name], own)
            made[name] = Tolerance(default_tolerances("float32")[0], atol, noise)
        return made

    def _samples(self, dtype: str, feeds: Mapping[str, Array], reference: Outputs) -> dict[str, list[Array]]:
        """By output: what some runs with random roundings give; nothing of outputs that are no floats.

        Nor of those that are not as long each time, such as the boxes that a detector keeps.
        """
        if dtype not in self._opened:
            self._opened[dtype] = self._open(dtype, feeds)
        opened = self._opened[dtype]
        try:
            runs = [run_onnxruntime(self._session, feeds, reference=opened) for _ in range(SAMPLES)]
        except Exception as error:  # onnxruntime's errors share no base class
            raise _run_error(error) from None
        made = {}
        for name, *column in zip(self._names, *runs, strict=True):
            arrays = [as_matrix(array) for array in column]
            if arrays[0].dtype.kind in "fV" and {array.shape for array in arrays} == {reference[name].shape}:
                made[name] = arrays
        return made

    def _open(self, dtype: str, feeds: Mapping[str, Array]) -> Any:
        model = self._session.model
        try:
            bound = model.bind({name: array.shape for name, array in feeds.items()}, feeds).model
            found = [value for node in bound.graph for value in node.outputs]
        except TrnrtError:  # more rows than the model fixes; what ONNX itself infers is mostly enough
            found = []
        known = {value.name: value.dtype for value in found if value.name and value.dtype is not None}
        try:
            return open_model(shaken(model.model, known, dtype), threads=self._threads)
        except Exception as error:  # onnxruntime's errors share no base class
            raise _run_error(error) from None


def _run_error(error: Exception) -> BackendError:
    return BackendError(f"onnxruntime can't run the model with random roundings: {' '.join(str(error).split())}")

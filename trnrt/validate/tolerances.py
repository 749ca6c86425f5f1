"""Tolerances of outputs against onnxruntime's: from their measured noise, the user, or defaults for the dtype."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.errors import BackendError, TrnrtError
from trnrt.operators.bounds.rounding import BOTH
from trnrt.running.reference import open_model
from trnrt.running.rows import as_matrix
from trnrt.session import InferenceSession
from trnrt.validate.noise import SAMPLES, allowance, spread, storing_error
from trnrt.validate.running import run_onnxruntime
from trnrt.validate.shaking import shake_model

Array = NDArray[Any]
Outputs = dict[str, Array]
_DEFAULTS = {
    "float32": (1e-4, 1e-5),
    "bfloat16": (2e-2, 1e-2),
    "float16": (2e-2, 1e-2),
    # Two roundings of a product's factors, to 4 and 3 significant bits.
    "float8_e4m3": (0.125, 0.125),
    "float8_e5m2": (0.25, 0.25),
}


@dataclass(frozen=True)
class Tolerance:
    """``|ours - reference| <= atol + rtol * |reference|``, with one ``atol`` for all elements, or one for each.

    ``noise``: the standard deviation of rounding in each element, if it was measured.
    """

    rtol: float
    atol: float | Array
    noise: Array | None = None


def default_tolerance(dtype: str, rtol: float | None = None, atol: float | None = None) -> Tolerance:
    """The same tolerance for every element: the user's, or the dtype's defaults."""
    default_rtol, default_atol = _DEFAULTS[dtype]
    return Tolerance(default_rtol if rtol is None else rtol, default_atol if atol is None else atol)


class Noise:
    """The noise of a session's model: how its outputs vary if every computed number is rounded at random.

    It is measured by onnxruntime alone, on the model as it was read, independent of the plan and of rewrites.
    """

    def __init__(self, session: InferenceSession, *, threads: int = 0) -> None:
        self._session, self._threads = session, threads
        self._names = [info.name for info in session.model.outputs]
        self._opened: dict[str, Any] = {}

    def tolerances(self, feeds: Mapping[str, Array], reference: Outputs) -> dict[str, Tolerance]:
        """A tolerance for each output: the measured one, or the default if it is not of floats or can't be measured."""
        usual = {name: default_tolerance(self._session.dtype) for name in reference}
        try:
            return usual | self.measure(feeds, reference)[0]
        except BackendError:
            return usual

    def measure(
        self, feeds: Mapping[str, Array], reference: Outputs
    ) -> tuple[dict[str, Tolerance], dict[str, Tolerance]]:
        """The tolerances of the outputs of floats, in the session's own dtype and in float32."""
        dtype = self._session.dtype
        wide = self._samples("float32", feeds, reference)
        short = {} if dtype == "float32" else self._samples(dtype, feeds, reference)
        float32 = {}
        for name, runs in wide.items():
            noise = spread(runs)
            atol = allowance(noise, BOTH) + BOTH * storing_error(reference[name], reference[name].dtype.name)
            float32[name] = Tolerance(_DEFAULTS["float32"][0], atol, noise)
        own = {}
        for name in [name for name in float32 if name in short]:
            noise = spread(short[name], np.mean([a.astype(np.float64) for a in wide[name]], axis=0))
            noise = np.hypot(noise, storing_error(reference[name], self._session.options.dtype))
            # Only ours is rounded to 16 bits; in float32 both are.
            rtol = _DEFAULTS[self._session.options.dtype][0]
            own[name] = Tolerance(rtol, allowance(noise, 1) + float32[name].atol, noise)
        return float32 if dtype == "float32" else own, float32

    def _samples(self, dtype: str, feeds: Mapping[str, Array], reference: Outputs) -> dict[str, list[Array]]:
        """Output -> its values in some runs with random roundings.

        Only outputs of floats, and of the same shape in every run, which a detector's boxes, for example, are not.
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
        except TrnrtError:  # more rows than the model fixes; ONNX's own inference mostly finds enough
            found = []
        known = {value.name: value.dtype for value in found if value.name and value.dtype is not None}
        try:
            return open_model(shake_model(model.model, known, dtype), threads=self._threads)
        except Exception as error:  # onnxruntime's errors share no base class
            raise _run_error(error) from None


def _run_error(error: Exception) -> BackendError:
    return BackendError(f"onnxruntime can't run the model with random roundings: {' '.join(str(error).split())}")

"""trnrt against onnxruntime on the same inputs: how far apart, and does it change any decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.errors import OptionError
from trnrt.session import InferenceSession

Array = NDArray[Any]
_TOLERANCES = {"float32": (1e-4, 1e-5), "bfloat16": (2e-2, 1e-2), "float16": (2e-2, 1e-2)}


@dataclass(frozen=True)
class OutputComparison:
    """One output: largest absolute and relative error, and the smallest rtol that would pass with the given atol.

    An output passes where ``|ours - reference| <= atol + rtol * |reference|`` everywhere; NaN equals NaN only, and
    infinities are equal only to themselves. Integers and strings must be equal. Errors are infinite where one
    side is not a number and the other is.
    """

    name: str
    max_abs: float
    max_rel: float
    required_rtol: float
    passed: bool
    dtype: str


@dataclass(frozen=True)
class ValidationReport:
    """``changed_decisions`` counts rows whose class differs; None where the model is not a classifier."""

    passed: bool
    samples: int
    changed_decisions: int | None
    outputs: tuple[OutputComparison, ...]
    rtol: float
    atol: float


def default_tolerances(dtype: str) -> tuple[float, float]:
    """(rtol, atol) for a session dtype."""
    return _TOLERANCES[dtype]


def validate(
    session: InferenceSession, feeds: Mapping[str, Array], *, rtol: float | None = None, atol: float | None = None
) -> ValidationReport:
    """Run trnrt and onnxruntime on ``feeds`` and compare every output."""
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not (np.isfinite(value) and value >= 0):
            raise OptionError(f"{name}={value}: a tolerance is a finite number, 0 or more")
    default_rtol, default_atol = default_tolerances(session.dtype)
    rtol = default_rtol if rtol is None else rtol
    atol = default_atol if atol is None else atol
    names = [output.name for output in session.get_outputs()]
    ours = dict(zip(names, session.run(None, feeds), strict=True))
    reference = dict(zip(names, run_onnxruntime(session, feeds), strict=True))
    outputs = tuple(compare(name, ours[name], reference[name], rtol, atol) for name in names)
    return ValidationReport(
        passed=all(output.passed for output in outputs),
        samples=next((a.shape[0] for a in feeds.values() if a.ndim and session.model.batch is not None), 1),
        changed_decisions=changed_decisions(ours, reference),
        outputs=outputs,
        rtol=rtol,
        atol=atol,
    )


def run_onnxruntime(session: InferenceSession, feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs of onnxruntime; a fixed batch is run in slices as the session does."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    reference = onnxruntime.InferenceSession(session.serialized(), options, providers=["CPUExecutionProvider"])
    batch = session.model.batch
    if not isinstance(batch, int):
        outputs: list[Array] = reference.run(None, dict(feeds))
        return outputs
    rows = next(iter(feeds.values())).shape[0]
    parts = []
    for start in range(0, rows, batch):
        part = {n: a[start : start + batch] for n, a in feeds.items()}
        missing = batch - min(batch, rows - start)
        parts.append(reference.run(None, {n: np.concatenate([a, a[-1:].repeat(missing, 0)]) for n, a in part.items()}))
    return [np.concatenate(column)[:rows] for column in zip(*parts, strict=True)]


def compare(name: str, ours: Array, reference: Array, rtol: float, atol: float) -> OutputComparison:
    """One output against its reference."""
    dtype = str(reference.dtype)
    if reference.dtype.kind not in "fV":
        equal = ours.shape == reference.shape and bool(np.all(ours == reference))
        apart = 0.0 if equal else _largest(ours, reference)
        return OutputComparison(name, apart, apart, apart, equal, dtype)
    if ours.shape != reference.shape:
        return OutputComparison(name, np.inf, np.inf, np.inf, False, dtype)
    mine, theirs = ours.astype(np.float64), reference.astype(np.float64)
    same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
    with np.errstate(all="ignore"):
        absolute = _infinite_where_nan(np.where(same, 0.0, np.abs(mine - theirs)))
        relative = _infinite_where_nan(np.where(absolute == 0, 0.0, absolute / np.abs(theirs)))
        needed = _infinite_where_nan(np.where(absolute <= atol, 0.0, (absolute - atol) / np.abs(theirs)))
    max_abs, max_rel, required = (float(x.max(initial=0.0)) for x in (absolute, relative, needed))
    return OutputComparison(name, max_abs, max_rel, required, required <= rtol, dtype)


def _infinite_where_nan(values: Array) -> Array:
    return np.where(np.isnan(values), np.inf, values)


def _largest(ours: Array, reference: Array) -> float:
    """How far apart integers are; infinite for strings and for shapes that differ."""
    if ours.shape != reference.shape or reference.dtype.kind not in "iub":
        return float("inf")
    return float(np.abs(ours.astype(np.float64) - reference.astype(np.float64)).max())


def changed_decisions(ours: Mapping[str, Array], reference: Mapping[str, Array]) -> int | None:
    """Rows in which a class differs: in an integer or string output of one label a row, or in the largest of a
    float output of one number a class. None where the model has neither."""
    changed: Array | None = None
    for name, expected in reference.items():
        found = _decisions(ours[name])
        wanted = _decisions(expected)
        if wanted is None or found is None:
            continue
        differs = found != wanted
        changed = differs if changed is None else changed | differs
    return None if changed is None else int(changed.sum())


def _decisions(output: Array) -> Array | None:
    """The class of each row, or None where the output holds none."""
    if output.dtype.kind not in "fV":
        return output.reshape(-1) if output.ndim == 1 or (output.ndim == 2 and output.shape[1] == 1) else None
    if output.ndim != 2 or output.shape[1] < 2:
        return None
    classes: Array = np.argmax(np.nan_to_num(output.astype(np.float32), nan=-np.inf), axis=1)
    return classes

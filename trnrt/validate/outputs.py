"""trnrt against onnxruntime on the same inputs: how far apart, and does it change any decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.errors import InputError, OptionError
from trnrt.session import InferenceSession, as_matrix, joined_rows

Array = NDArray[Any]
_TOLERANCES = {"float32": (1e-4, 1e-5), "bfloat16": (2e-2, 1e-2), "float16": (2e-2, 1e-2)}


@dataclass(frozen=True)
class Split:
    """What an error of 16 bits is made of: that of the float32 path against onnxruntime, and what rounding adds to it.

    ``float32_passed`` holds the first against float32's own default tolerances: beyond them it is no rounding.
    """

    float32_max_abs: float
    float32_max_rel: float
    float32_passed: bool
    rounding_max_abs: float
    rounding_max_rel: float


@dataclass(frozen=True)
class Accuracy:
    """The share of rows with the right label, by the decisions of one output."""

    output: str
    rows: int
    ours: float
    reference: float


@dataclass(frozen=True)
class OutputComparison:
    """One output: largest absolute and relative error, and the smallest rtol that would pass with the given atol.

    An output passes where ``|ours - reference| <= atol + rtol * |reference|`` everywhere; NaN equals NaN only, and
    infinities are equal only to themselves. Integers and strings must be equal. Errors are infinite where one
    side is not a number and the other is. ``split`` is there for 16 bits, and outputs of floats.
    """

    name: str
    max_abs: float
    max_rel: float
    required_rtol: float
    passed: bool
    dtype: str
    split: Split | None = None


@dataclass(frozen=True)
class ValidationReport:
    """``changed_decisions`` counts rows whose class differs; None where the model is not a classifier.

    ``accuracy`` is None where no labels were given.
    """

    passed: bool
    samples: int
    changed_decisions: int | None
    outputs: tuple[OutputComparison, ...]
    rtol: float
    atol: float
    accuracy: Accuracy | None = None


def default_tolerances(dtype: str) -> tuple[float, float]:
    """(rtol, atol) for a session dtype."""
    return _TOLERANCES[dtype]


def validate(
    session: InferenceSession,
    feeds: Mapping[str, Array],
    *,
    rtol: float | None = None,
    atol: float | None = None,
    labels: Array | None = None,
) -> ValidationReport:
    """Run trnrt and onnxruntime on ``feeds`` and compare every output; with ``labels``, one a row, their accuracy, too.

    A session of 16 bits is run in float32 as well, so that it can be told which part of an error is rounding.
    """
    check_rows(session, feeds)
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not (np.isfinite(value) and value >= 0):
            raise OptionError(f"{name}={value}: a tolerance is a finite number, 0 or more")
    default_rtol, default_atol = default_tolerances(session.dtype)
    rtol = default_rtol if rtol is None else rtol
    atol = default_atol if atol is None else atol
    names = [output.name for output in session.get_outputs()]
    ours = dict(zip(names, map(as_matrix, session.run(None, feeds)), strict=True))
    reference = dict(zip(names, map(as_matrix, run_onnxruntime(session, feeds)), strict=True))
    outputs = tuple(compare(name, ours[name], reference[name], rtol, atol) for name in names)
    if session.dtype != "float32":
        between = dict(zip(names, map(as_matrix, session.in_dtype("float32").run(None, feeds)), strict=True))
        outputs = tuple(replace(o, split=split(ours[o.name], between[o.name], reference[o.name])) for o in outputs)
    return ValidationReport(
        passed=all(output.passed for output in outputs),
        samples=next((a.shape[0] for a in feeds.values() if a.ndim and session.model.batch is not None), 1),
        changed_decisions=changed_decisions(ours, reference),
        outputs=outputs,
        rtol=rtol,
        atol=atol,
        accuracy=None if labels is None else accuracy(ours, reference, labels),
    )


def check_rows(session: InferenceSession, feeds: Mapping[str, Array]) -> None:
    """InputError for a batch of 0 rows: a comparison of nothing would pass whatever the model computes."""
    data = [array for name, array in feeds.items() if np.ndim(array) and name not in session.model.parameters]
    if session.model.batch is not None and any(len(array) == 0 for array in data):
        raise InputError("the batch has 0 rows: there is nothing to compare", hint="give 1 row or more")


def split(ours: Array, between: Array, reference: Array) -> Split | None:
    """The error of ``ours``, a result of 16 bits, by way of the float32 result ``between``; None for no floats."""
    if reference.dtype.kind not in "fV":
        return None
    path = compare("", between, reference, *default_tolerances("float32"))
    rounding = compare("", ours, between, 0, 0)
    return Split(path.max_abs, path.max_rel, path.passed, rounding.max_abs, rounding.max_rel)


def accuracy(ours: Mapping[str, Array], reference: Mapping[str, Array], labels: Array) -> Accuracy:
    """How many rows get their label. An output of labels is asked first, then one of a number a class.

    Raises:
        InputError: if no output holds decisions of the labels' kind, or their numbers differ.
    """
    words = labels.dtype.kind in "OUS"
    for name in sorted(reference, key=lambda name: reference[name].dtype.kind in "fV"):
        found, wanted = _decisions(ours[name]), _decisions(reference[name])
        if found is None or wanted is None or (wanted.dtype.kind in "OUS") != words:
            continue
        if len(wanted) != len(labels):
            raise InputError(f"there are {len(labels)} labels for {len(wanted)} rows")
        shares = [float(np.mean(decided == labels)) for decided in (found, wanted)]
        return Accuracy(name, len(labels), *shares)
    kind = "texts" if words else "numbers"
    raise InputError(f"the labels are {kind}, and no output of the model decides for one of them a row")


def open_onnxruntime(session: InferenceSession, *, threads: int = 0) -> Any:
    """onnxruntime's own session of the same model, on the CPU; 0 threads are as many as it likes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    # It would compute in 8 bits what a model of quantised weights says in floats (MatMulNBits for MatMul: 2 % off).
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    return onnxruntime.InferenceSession(session.serialized(), options, providers=["CPUExecutionProvider"])


def run_onnxruntime(session: InferenceSession, feeds: Mapping[str, Array], *, reference: Any = None) -> list[Array]:
    """The outputs of onnxruntime; a fixed batch is run in slices as the session does.

    ``reference``: what ``open_onnxruntime`` gave, for whoever runs often.
    """
    reference = reference or open_onnxruntime(session)
    batch = session.model.batch
    if not isinstance(batch, int):
        outputs: list[Array] = reference.run(None, dict(feeds))
        return outputs
    whole = {n: a for n, a in feeds.items() if n in session.model.parameters or not a.ndim}
    data = {n: a for n, a in feeds.items() if n not in whole}
    rows = next(iter(data.values())).shape[0]
    parts = []
    for start in range(0, rows, batch):
        part = {n: a[start : start + batch] for n, a in data.items()}
        missing = batch - min(batch, rows - start)
        filled = {n: np.concatenate([a, a[-1:].repeat(missing, 0)]) for n, a in part.items()}
        parts.append(reference.run(None, whole | filled))
    return [joined_rows(column)[:rows] for column in zip(*parts, strict=True)]


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
    # Outputs may differ in their rows: a constant has its own, a detector decides for boxes.
    changed: dict[int, Array] = {}
    for name, expected in reference.items():
        found = _decisions(ours[name])
        wanted = _decisions(expected)
        if wanted is None or found is None or len(found) != len(wanted):
            continue
        changed[len(wanted)] = changed.get(len(wanted), np.zeros(len(wanted), bool)) | (found != wanted)
    return sum(int(rows.sum()) for rows in changed.values()) if changed else None


def _decisions(output: Array) -> Array | None:
    """The class of each row, or None where the output holds none."""
    if output.dtype.kind not in "fV":
        return output.reshape(-1) if output.ndim == 1 or (output.ndim == 2 and output.shape[1] == 1) else None
    if output.ndim != 2 or output.shape[1] < 2:
        return None
    classes: Array = np.argmax(np.nan_to_num(output.astype(np.float32), nan=-np.inf), axis=1)
    return classes

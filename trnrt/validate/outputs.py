"""trnrt against onnxruntime on the same inputs: how far apart, and does it change any decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.errors import BackendError, InputError, OptionError
from trnrt.running.rows import as_matrix
from trnrt.session import InferenceSession
from trnrt.validate.layers import LayersReport, Progress, validate_layers
from trnrt.validate.running import check_rows, run_onnxruntime
from trnrt.validate.tolerances import Noise, Outputs, Tolerance, default_tolerance

Array = NDArray[Any]
SUSPICIOUS = 0.75
"""Errors of 16 bits are about half their noise, root mean square: 0.25 to 0.72 of it in 23 right networks, as the noise
counts every result as rounded, and rounds it twice. From here on the steps decide. Less costs time, not alarms."""
STEP_ROWS = 4
"""Rows that steps are compared on: each of them runs twice, and its bound is computed beside it."""


@dataclass(frozen=True)
class Split:
    """What an error of 16 bits is made of: that of the float32 path against onnxruntime, and what rounding adds to it.

    ``float32_passed`` holds the first against float32's own tolerances: beyond them it is no rounding.
    ``rounding_rms`` compares the second with the noise that the dtype has by the reference: 1 is as expected. None
    where no noise was measured.
    """

    float32_max_abs: float
    float32_max_rel: float
    float32_passed: bool
    rounding_max_abs: float
    rounding_max_rel: float
    rounding_rms: float | None = None


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
    side is not a number and the other is. ``error`` and ``tolerance`` are those of the ``element`` where their ratio is
    the largest, ``noise`` the standard deviation of its rounding where that was measured. ``split`` is there for 16
    bits, and outputs of floats.
    """

    name: str
    max_abs: float
    max_rel: float
    required_rtol: float
    passed: bool
    dtype: str
    split: Split | None = None
    error: float = 0.0
    tolerance: float = 0.0
    element: tuple[int, ...] = ()
    noise: float | None = None


@dataclass(frozen=True)
class ValidationReport:
    """``changed_decisions`` counts rows whose class differs; None where the model is not a classifier.

    ``accuracy`` is None where no labels were given. ``tolerances`` says where they come from: "measured" by the noise
    of each element, "given" by the user, or "default" where onnxruntime can't run the model with noise, and ``notes``
    say why. ``atol`` is the largest one of any element. ``steps`` is there where the outputs of 16 bits left in doubt
    whether their errors are rounding, and the steps had to tell.
    """

    passed: bool
    samples: int
    changed_decisions: int | None
    outputs: tuple[OutputComparison, ...]
    rtol: float
    atol: float
    accuracy: Accuracy | None = None
    tolerances: str = "given"
    notes: tuple[str, ...] = ()
    steps: LayersReport | None = None


@dataclass(frozen=True)
class _Allowed:
    """The tolerances of a run by output: the session's own, and those of its float32 path, which 16 bits have."""

    own: Mapping[str, Tolerance]
    float32: Mapping[str, Tolerance]
    origin: str
    notes: tuple[str, ...] = ()


def validate(
    session: InferenceSession,
    feeds: Mapping[str, Array],
    *,
    rtol: float | None = None,
    atol: float | None = None,
    labels: Array | None = None,
    progress: Progress | None = None,
) -> ValidationReport:
    """Run trnrt and onnxruntime on ``feeds`` and compare every output; with ``labels``, one a row, their accuracy, too.

    Without ``rtol`` and ``atol`` each element's tolerance follows what rounding does to it, by the reference alone. A
    session of 16 bits is run in float32 as well, so that it can be told which part of an error is rounding; where the
    outputs don't tell, the steps are compared, and ``progress`` is called as by ``validate_layers``.
    """
    check_rows(session, feeds)
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not (np.isfinite(value) and value >= 0):
            raise OptionError(f"{name}={value}: a tolerance is a finite number, 0 or more")
    names = [output.name for output in session.get_outputs()]
    ours = dict(zip(names, map(as_matrix, session.run(None, feeds)), strict=True))
    reference = dict(zip(names, map(as_matrix, run_onnxruntime(session, feeds)), strict=True))
    allowed = _choose_tolerances(session, feeds, reference, rtol, atol)
    outputs = tuple(_compare_output(name, ours[name], reference[name], allowed.own[name]) for name in names)
    passed, steps = all(output.passed for output in outputs), None
    if session.dtype != "float32":
        in_float32 = session.with_options(replace(session.options, dtype="float32"))
        between = dict(zip(names, map(as_matrix, in_float32.run(None, feeds)), strict=True))
        outputs = tuple(_with_split(o, ours, between, reference, allowed) for o in outputs)
        if allowed.origin == "measured":
            decided = {o.name: compare("", between[o.name], reference[o.name], 0, 0).passed for o in outputs}
            outputs, steps = _judge_outputs(session, feeds, outputs, decided, progress)
            passed = all(output.passed for output in outputs) and (steps is None or steps.passed)
    return ValidationReport(
        passed=passed,
        samples=next((a.shape[0] for a in feeds.values() if a.ndim and session.model.batch is not None), 1),
        changed_decisions=changed_decisions(ours, reference),
        outputs=outputs,
        rtol=max(tolerance.rtol for tolerance in allowed.own.values()),
        atol=max(float(np.max(tolerance.atol, initial=0.0)) for tolerance in allowed.own.values()),
        accuracy=None if labels is None else accuracy(ours, reference, labels),
        tolerances=allowed.origin,
        notes=allowed.notes,
        steps=steps,
    )


def _choose_tolerances(
    session: InferenceSession, feeds: Mapping[str, Array], reference: Outputs, rtol: float | None, atol: float | None
) -> _Allowed:
    """What the user says, else what is measured, else defaults."""
    usual = {name: default_tolerance(session.dtype, rtol, atol) for name in reference}
    float32 = {name: default_tolerance("float32") for name in reference}
    if rtol is not None or atol is not None:
        return _Allowed(usual, float32, "given")
    try:
        noise = Noise(session)
        if session.dtype == "float32":
            measured = noise.float32(feeds, reference)
            return _Allowed(usual | measured, usual | measured, "measured")
        own, path = noise.both(feeds, reference)
        return _Allowed(usual | own, float32 | path, "measured")
    except BackendError as error:
        return _Allowed(usual, float32, "default", (f"{error}: every output has the same tolerance",))


def _compare_output(name: str, ours: Array, reference: Array, tolerance: Tolerance) -> OutputComparison:
    made = compare(name, ours, reference, tolerance.rtol, tolerance.atol)
    if tolerance.noise is None or not ours.size or ours.shape != reference.shape:
        return made
    return replace(made, noise=float(tolerance.noise[made.element]))


def _with_split(
    output: OutputComparison, ours: Outputs, between: Outputs, reference: Outputs, allowed: _Allowed
) -> OutputComparison:
    name = output.name
    made = split(ours[name], between[name], reference[name], allowed.float32[name], allowed.own[name].noise)
    return replace(output, split=made)


def _judge_outputs(
    session: InferenceSession,
    feeds: Mapping[str, Array],
    outputs: tuple[OutputComparison, ...],
    decided: Mapping[str, bool],
    progress: Progress | None,
) -> tuple[tuple[OutputComparison, ...], LayersReport | None]:
    """The outputs of 16 bits with their verdicts: the float32 path counts, and the steps where it is doubtful.

    ``decided``: of outputs that are no floats, whether float32 gives onnxruntime's. Where it does, and all steps are
    right, a decision was so close that rounding turns it.
    """
    judged = tuple(replace(o, passed=o.passed and (o.split is None or o.split.float32_passed)) for o in outputs)
    larger = any((o.split.rounding_rms or 0.0) > SUSPICIOUS for o in judged if o.split is not None)
    beyond = any(
        not o.passed and (decided.get(o.name, False) if o.split is None else o.split.float32_passed) for o in judged
    )
    if not larger and not beyond:
        return judged, None
    open_batch = isinstance(session.model.batch, str)
    rows = {
        n: a[:STEP_ROWS] if open_batch and a.ndim and n not in session.model.parameters else a for n, a in feeds.items()
    }
    steps = validate_layers(session, rows, progress=progress)
    turned = [o.name for o in judged if o.split is None and decided.get(o.name, False)]
    return tuple(replace(o, passed=True) if o.name in turned and steps.passed else o for o in judged), steps


def split(
    ours: Array, between: Array, reference: Array, allowed: Tolerance | None = None, noise: Array | None = None
) -> Split | None:
    """The error of ``ours``, a result of 16 bits, by way of the float32 result ``between``; None for no floats.

    ``allowed`` is float32's tolerance, ``noise`` that of 16 bits.
    """
    if reference.dtype.kind not in "fV":
        return None
    allowed = allowed or default_tolerance("float32")
    path = compare("", between, reference, allowed.rtol, allowed.atol)
    rounding = compare("", ours, between, 0, 0)
    typical = None if noise is None or ours.shape != between.shape else _typical(ours, between, noise)
    return Split(path.max_abs, path.max_rel, path.passed, rounding.max_abs, rounding.max_rel, typical)


def _typical(ours: Array, between: Array, noise: Array) -> float:
    """The root mean square of errors over their noise."""
    with np.errstate(all="ignore"):
        share = np.abs(ours.astype(np.float64) - between.astype(np.float64)) / noise
    known = np.isfinite(share)
    return float(np.sqrt(np.mean(share[known] ** 2))) if known.any() else 0.0


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


def compare(name: str, ours: Array, reference: Array, rtol: float, atol: float | Array) -> OutputComparison:
    """One output against its reference; ``atol`` for all elements, or one for each."""
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
        tolerance = np.where(np.isfinite(theirs), atol + rtol * np.abs(theirs), 0.0)
        share = np.where(absolute == 0, 0.0, absolute / tolerance)
    max_abs, max_rel, required = (float(x.max(initial=0.0)) for x in (absolute, relative, needed))
    made = OutputComparison(name, max_abs, max_rel, required, required <= rtol, dtype)
    if not share.size:
        return made
    element = tuple(int(i) for i in np.unravel_index(int(share.argmax()), share.shape))
    return replace(made, error=float(absolute[element]), tolerance=float(tolerance[element]), element=element)


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

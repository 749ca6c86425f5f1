"""Compare trnrt's outputs with onnxruntime's on the same inputs: errors, tolerances and changed decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.errors import BackendError, InputError, OptionError
from trnrt.running.rows import as_matrix, count_rows
from trnrt.session import InferenceSession
from trnrt.validate.choices import choose_from, is_same, run_exposed, split_at_choices, tail_feeds
from trnrt.validate.exposing import load
from trnrt.validate.integers import (
    IntegersReport,
    LayerDifference,
    compare_layers,
    compute_truth,
    describe_reference,
    has_integers,
)
from trnrt.validate.layers import LayersReport, Progress, validate_layers
from trnrt.validate.running import check_rows, run_onnxruntime
from trnrt.validate.tolerances import Noise, Outputs, Tolerance, default_tolerance

Array = NDArray[Any]
SUSPICIOUS = 0.75
"""From this share of the noise on, the steps decide. In 23 correct networks the root mean square of errors in 16 bits
is 0.25 to 0.72 of the noise, which rounds every result, and twice. A lower share costs time, not false alarms."""
_CHOSEN = (
    "{names}: the model chooses by the data, and not all as onnxruntime does. Compared with what onnxruntime chooses "
    "from trnrt's own numbers, which are compared with onnxruntime's above it"
)
_OTHER_NUMBERS = (
    "the model chooses by the data; with what it chooses from as outputs, its plan computes other numbers, so the "
    "choice can't be compared alone"
)
STEP_ROWS = 4
"""Rows that steps are compared on: each step runs twice, and its bound is computed."""


@dataclass(frozen=True)
class Split:
    """An error of 16 bits in two parts: of the float32 path against onnxruntime, and of rounding.

    ``float32_passed``: whether the first is within float32's own tolerances; beyond them it is not rounding.
    ``rounding_rms``: the second relative to the dtype's noise by the reference, 1 if as expected; None if no noise was
    measured.
    """

    float32_max_abs: float
    float32_max_rel: float
    float32_passed: bool
    rounding_max_abs: float
    rounding_max_rel: float
    rounding_rms: float | None = None


@dataclass(frozen=True)
class Accuracy:
    """The share of rows with the right label, by the decisions of one output. ``float_model``: that of the model that a
    quantised one was made from, if it is given."""

    output: str
    rows: int
    ours: float
    reference: float
    float_model: float | None = None


@dataclass(frozen=True)
class OutputComparison:
    """One output: its largest absolute and relative error, and the smallest rtol that passes with the given atol.

    An output passes if ``|ours - reference| <= atol + rtol * |reference|`` everywhere; NaN equals only NaN, infinities
    only themselves. Integers and strings must be equal. The error is infinite where only one side is NaN. ``error`` and
    ``tolerance``: at the ``element`` where their ratio is largest; ``noise``: the standard deviation of its rounding,
    if measured. ``split``: for floats in 16 bits.
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
    """``changed_decisions``: rows whose class differs; None if the model is not a classifier.

    ``accuracy``: None without labels. ``tolerances``: "measured" by the noise of each element, "given" by the user, or
    "default" if onnxruntime can't run the model with noise, for the reason in ``notes``. ``atol``: the largest of any
    element. ``steps``: present if the outputs of 16 bits leave open whether their errors are rounding.
    ``integers``: of a quantised model in float32, whose outputs are compared with their integer meaning instead
    ("integers" as ``tolerances``), unless the user gives tolerances.
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
    integers: IntegersReport | None = None


@dataclass(frozen=True)
class _Allowed:
    """The tolerances of a run by output: for the session's dtype, and for its path in float32."""

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
    every_integer: bool = False,
) -> ValidationReport:
    """Run trnrt and onnxruntime on ``feeds`` and compare every output, and their accuracy if there are ``labels``.

    Without ``rtol`` and ``atol``, each element's tolerance is the effect of rounding on it, by the reference alone.
    A session of 16 bits also runs in float32, to separate rounding from other errors. If that is not conclusive, the
    steps are compared, with calls of ``progress`` as in ``validate_layers``. A quantised model is compared with its
    integer meaning; ``every_integer``: each quantised tensor, even if the outputs are equal.
    """
    check_rows(session, feeds)
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not (np.isfinite(value) and value >= 0):
            raise OptionError(f"{name}={value}: a tolerance is a finite number, 0 or more")
    names = [output.name for output in session.get_outputs()]
    ours = dict(zip(names, map(as_matrix, session.run(None, feeds)), strict=True))
    reference = dict(zip(names, map(as_matrix, run_onnxruntime(session, feeds)), strict=True))
    if rtol is None and atol is None and session.dtype == "float32" and has_integers(load(session)):
        return _judge_integers(session, feeds, ours, reference, labels, every_integer)
    report = _judge(session, feeds, ours, reference, rtol, atol, labels, progress)
    usual = default_tolerance(session.dtype)
    near = all(compare(name, ours[name], reference[name], usual.rtol, usual.atol).passed for name in names)
    # A choice that a run with random roundings makes otherwise, too, allows any error there.
    if (report.passed and near) or report.tolerances != "measured":
        return report
    return _judge_choices(session, feeds, report, ours, progress)


def _judge(
    session: InferenceSession,
    feeds: Mapping[str, Array],
    ours: Mapping[str, Array],
    reference: Outputs,
    rtol: float | None = None,
    atol: float | None = None,
    labels: Array | None = None,
    progress: Progress | None = None,
) -> ValidationReport:
    """Compare the outputs ``ours`` with the reference's, element by element."""
    names = list(reference)
    allowed = _choose_tolerances(session, feeds, reference, rtol, atol)
    outputs = tuple(_compare_output(name, ours[name], reference[name], allowed.own[name]) for name in names)
    passed, steps = all(output.passed for output in outputs), None
    if session.dtype != "float32":
        in_float32 = session.with_options(session.options.in_dtype("float32"))
        between = dict(zip(names, map(as_matrix, in_float32.run(None, feeds)), strict=True))
        splits = [split(ours[n], between[n], reference[n], allowed.float32[n], allowed.own[n].noise) for n in names]
        outputs = tuple(replace(output, split=parts) for output, parts in zip(outputs, splits, strict=True))
        if allowed.origin == "measured" and session.options.float8 is None:  # the steps of 8 bits have no bounds
            decided = {o.name: compare("", between[o.name], reference[o.name], 0, 0).passed for o in outputs}
            outputs, steps = _judge_outputs(session, feeds, outputs, decided, progress)
            passed = all(output.passed for output in outputs) and (steps is None or steps.passed)
    return ValidationReport(
        passed=passed,
        samples=count_rows(session.model, feeds),
        changed_decisions=changed_decisions(ours, reference),
        outputs=outputs,
        rtol=max(tolerance.rtol for tolerance in allowed.own.values()),
        atol=max(float(np.max(tolerance.atol, initial=0.0)) for tolerance in allowed.own.values()),
        accuracy=None if labels is None else accuracy(ours, reference, labels),
        tolerances=allowed.origin,
        notes=allowed.notes,
        steps=steps,
    )


def _judge_choices(
    session: InferenceSession,
    feeds: Mapping[str, Array],
    report: ValidationReport,
    ours: Mapping[str, Array],
    progress: Progress | None,
) -> ValidationReport:
    """A report anew, if the model chooses by the data: what it chooses from is compared with onnxruntime's, and
    its outputs with what onnxruntime chooses from the same numbers."""
    choice = split_at_choices(session)
    if choice is None:
        return report
    reference = dict(zip(choice.offered_names, map(as_matrix, run_onnxruntime(choice.front, feeds)), strict=True))
    made = run_exposed(session, choice, feeds, reference)
    if not all(is_same(made[name], ours[name]) for name in choice.chosen):
        return replace(report, notes=(*report.notes, _OTHER_NUMBERS))
    offered = _judge(choice.front, feeds, {name: made[name] for name in reference}, reference, progress=progress)
    wanted = choose_from(choice, feeds, made)
    allowed = _choose_tolerances(choice.tail, tail_feeds(choice, feeds, made), wanted, None, None)
    chosen = tuple(_compare_output(name, made[name], wanted[name], allowed.own[name]) for name in choice.chosen)
    return replace(
        report,
        passed=offered.passed and all(output.passed for output in chosen),
        outputs=(*offered.outputs, *chosen),
        notes=(*report.notes, *offered.notes, _CHOSEN.format(names=", ".join(map(repr, choice.chosen)))),
        steps=offered.steps,
    )


def _judge_integers(
    session: InferenceSession,
    feeds: Mapping[str, Array],
    ours: Mapping[str, Array],
    reference: Mapping[str, Array],
    labels: Array | None,
    every_integer: bool,
) -> ValidationReport:
    """A quantised model: equal to its integer meaning, or every layer is, but at ties, from what it was given."""
    allowed = default_tolerance("float32")
    truth = dict(zip(ours, map(as_matrix, compute_truth(session, feeds)), strict=True))
    outputs = _compare_outputs(ours, truth, allowed)
    compared, layers = 0, tuple[LayerDifference, ...]()
    apart = _count_differences(ours, truth, allowed)
    if every_integer or not all(output.passed for output in outputs):
        compared, layers, descended = compare_layers(session, feeds)
        outputs = _compare_outputs(ours, dict(zip(ours, map(as_matrix, descended), strict=True)), allowed)
    theirs = _count_differences(reference, truth, allowed)
    integers = IntegersReport(compared, layers, apart, theirs, describe_reference())
    return ValidationReport(
        passed=integers.is_correct and all(output.passed for output in outputs),
        samples=count_rows(session.model, feeds),
        changed_decisions=changed_decisions(ours, truth),
        outputs=outputs,
        rtol=allowed.rtol,
        atol=float(np.max(allowed.atol, initial=0.0)),
        accuracy=None if labels is None else accuracy(ours, reference, labels),
        tolerances="integers",
        integers=integers,
    )


def _compare_outputs(
    ours: Mapping[str, Array], truth: Mapping[str, Array], allowed: Tolerance
) -> tuple[OutputComparison, ...]:
    return tuple(compare(name, ours[name], truth[name], allowed.rtol, allowed.atol) for name in ours)


def _count_differences(found: Mapping[str, Array], truth: Mapping[str, Array], allowed: Tolerance) -> int:
    """The elements of outputs that differ beyond rounding."""
    count = 0
    for name, expected in truth.items():
        if expected.dtype.kind in "fV" and found[name].shape == expected.shape:
            mine, wanted = found[name].astype(np.float64), expected.astype(np.float64)
            near = np.isclose(mine, wanted, allowed.rtol, np.asarray(allowed.atol), equal_nan=True)
            count += int((~near).sum())
        else:
            same = found[name].shape == expected.shape
            count += int((found[name] != expected).sum()) if same else expected.size
    return count


def _choose_tolerances(
    session: InferenceSession, feeds: Mapping[str, Array], reference: Outputs, rtol: float | None, atol: float | None
) -> _Allowed:
    """The user's tolerances, else measured ones, else defaults."""
    usual = {name: default_tolerance(session.dtype, rtol, atol) for name in reference}
    float32 = {name: default_tolerance("float32") for name in reference}
    if rtol is not None or atol is not None:
        return _Allowed(usual, float32, "given")
    try:
        own, path = Noise(session).measure(feeds, reference)
        return _Allowed(usual | own, float32 | path, "measured")
    except BackendError as error:
        return _Allowed(usual, float32, "default", (f"{error}: every output has the same tolerance",))


def _compare_output(name: str, ours: Array, reference: Array, tolerance: Tolerance) -> OutputComparison:
    made = compare(name, ours, reference, tolerance.rtol, tolerance.atol)
    if tolerance.noise is None or not ours.size or ours.shape != reference.shape:
        return made
    return replace(made, noise=float(tolerance.noise[made.element]))


def _judge_outputs(
    session: InferenceSession,
    feeds: Mapping[str, Array],
    outputs: tuple[OutputComparison, ...],
    decided: Mapping[str, bool],
    progress: Progress | None,
) -> tuple[tuple[OutputComparison, ...], LayersReport | None]:
    """The outputs of 16 bits with their verdicts, by the float32 path, and in doubt by the steps.

    ``decided``: whether float32 gives onnxruntime's output, for outputs that are not floats. If it does, and all steps
    pass, a decision was so close that rounding changes it.
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
    """Split the error of ``ours``, a result of 16 bits, at the float32 result ``between``; None unless it is of floats.

    ``allowed``: float32's tolerance; ``noise``: of 16 bits.
    """
    if reference.dtype.kind not in "fV":
        return None
    allowed = allowed or default_tolerance("float32")
    path = compare("", between, reference, allowed.rtol, allowed.atol)
    rounding = compare("", ours, between, 0, 0)
    rms = None if noise is None or ours.shape != between.shape else _noise_share(ours, between, noise)
    return Split(path.max_abs, path.max_rel, path.passed, rounding.max_abs, rounding.max_rel, rms)


def _noise_share(ours: Array, between: Array, noise: Array) -> float:
    """The root mean square of errors over their noise."""
    with np.errstate(all="ignore"):
        share = np.abs(ours.astype(np.float64) - between.astype(np.float64)) / noise
    known = np.isfinite(share)
    return float(np.sqrt(np.mean(share[known] ** 2))) if known.any() else 0.0


def accuracy(ours: Mapping[str, Array], reference: Mapping[str, Array], labels: Array) -> Accuracy:
    """The share of rows that get their label, by an output of labels, else by one with a number for each class.

    Raises:
        InputError: if no output has decisions of the labels' kind, or their numbers differ.
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
    raise InputError(f"the labels are {kind}, and no output of the model has one of them for each row")


def compare(name: str, ours: Array, reference: Array, rtol: float, atol: float | Array) -> OutputComparison:
    """Compare an output with its reference. ``atol``: for all elements, or one for each."""
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
    """The largest difference of integers; infinite for strings and different shapes."""
    if ours.shape != reference.shape or reference.dtype.kind not in "iub":
        return float("inf")
    return float(np.abs(ours.astype(np.float64) - reference.astype(np.float64)).max())


def changed_decisions(ours: Mapping[str, Array], reference: Mapping[str, Array]) -> int | None:
    """The rows whose class differs: the label in an integer or string output, or the largest number in a float output
    with one for each class. None if the model has neither."""
    # Outputs may differ in their rows: a constant has its own, a detector has a row for each box.
    changed: dict[int, Array] = {}
    for name, expected in reference.items():
        found, wanted = _decisions(ours[name]), _decisions(expected)
        if wanted is None or found is None or len(found) != len(wanted):
            continue
        changed[len(wanted)] = changed.get(len(wanted), np.zeros(len(wanted), bool)) | (found != wanted)
    return sum(int(rows.sum()) for rows in changed.values()) if changed else None


def _decisions(output: Array) -> Array | None:
    """The class of each row; None if the output has none."""
    if output.dtype.kind not in "fV":
        return output.reshape(-1) if output.ndim == 1 or (output.ndim == 2 and output.shape[1] == 1) else None
    if output.ndim != 2 or output.shape[1] < 2:
        return None
    classes: Array = np.argmax(np.nan_to_num(output.astype(np.float32), nan=-np.inf), axis=1)
    return classes

"""``ai.onnx.ml``: the operators of exported scikit-learn pipelines with scalers, linear models and neural nets."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from trnrt.importer.values import is_used
from trnrt.operators import batch, order, shapes
from trnrt.operators.bounds.case import Case, exact
from trnrt.operators.bounds.rounding import function_bound, operation_bound
from trnrt.operators.linear import linear_step
from trnrt.operators.normalize import divide_by_norm
from trnrt.operators.programs import Program, Term, add_compute, add_program
from trnrt.operators.record import NEVER, Declaration, NotApplicable
from trnrt.operators.reduce import L1, L2, Reduction
from trnrt.operators.rows import ArgmaxStep, add_softmax
from trnrt.planner.lowering.blocked import WRONG
from trnrt.planner.lowering.host import host_function
from trnrt.planner.lowering.walk import Blocked, Lowering, attribute, node_name, operator_name, value_name
from trnrt.planner.plan import Array, HostNode
from trnrt.planner.steps import Operand

# -- errors ------------------------------------------------------------------------------------------


def bound_scaler(case: Case) -> list[Array]:
    """``(x - offset) * scale``: offset and scale are weights."""
    offset, scale = (np.abs(np.float32(case.attribute(name, (0.0,)))) for name in ("offset", "scale"))
    stored = case.rounding.weights
    off = case.e + stored * offset
    size = case.size + (1 + stored) * offset
    return [scale * (off + (2 * operation_bound() + stored) * size)]


def bound_imputer(case: Case) -> list[Array]:
    """Unchanged elements, or a constant."""
    return [case.e]


@exact
def bound_binarizer(case: Case) -> list[Array]:
    """In doubt if an element is closer to the threshold than their errors."""
    threshold = np.float32(case.attribute("threshold", 0.0))
    doubt = case.e + case.rounding.weights * np.abs(threshold)
    return [np.where((doubt > 0) & (np.abs(case.x - threshold) <= doubt), np.float32(1), np.float32(0))]


def bound_normalizer(case: Case) -> list[Array]:
    """Rows over a norm, which is stored as a tensor and off by the norm of the errors at most."""
    kind = case.attribute("norm", "MAX")
    order = {"MAX": np.inf, "L1": 1, "L2": 2}[kind.decode() if isinstance(kind, bytes) else kind]
    off = np.linalg.norm(case.e, ord=order, axis=-1, keepdims=True)
    largest, shown = (np.abs(a).max(axis=-1, keepdims=True) for a in (case.x, case.y))
    size = np.where(shown > 0, largest / shown, np.float32(1))
    share = case.sums(case.x.shape[-1]) + operation_bound() + 2 * case.rounding.weights
    rate = np.divide(off, size - off, out=np.full_like(off, np.inf), where=size > off) + share
    moved = case.e / size
    return [moved + (np.abs(case.y) + moved) * rate]


def bound_regressor(case: Case) -> list[Array]:
    """Sums of products."""
    return [_scores(case, case.y.shape[-1])[1]]


def bound_classifier(case: Case) -> list[Array]:
    """Sums of products, stored as a tensor, and their transformation; labels have no error of their own."""
    labels, made = case.outputs
    assert labels is not None and made is not None
    z, off = _scores(case, len(case.attribute("intercepts", ())) or made.shape[-1])
    off = off + case.rounding.storage_error(np.abs(z) + off)
    kind = case.attribute("post_transform", "NONE")
    kind = kind.decode() if isinstance(kind, bytes) else kind
    if kind == "NONE":
        error = off
    elif kind == "LOGISTIC":
        error = off / 4 + function_bound() + case.rounding.weights  # the slope is 1/4 at most, and 1 - p is near 1
    else:
        spread = z.max(axis=-1, keepdims=True) - z
        within = off + off.max(axis=-1, keepdims=True)
        each = function_bound() + operation_bound() * spread + case.sums(z.shape[-1]) + 2 * case.rounding.weights
        error = made * (np.expm1(within) + np.exp(within) * each)
    return [np.zeros(labels.shape, np.float32), np.broadcast_to(error, made.shape)]


def _scores(case: Case, count: int) -> tuple[Array, Array]:
    """The scores of a linear model with ``count`` rows of coefficients, and their errors."""
    coefficients = np.float32(case.attribute("coefficients", ())).reshape(count, -1).T
    intercepts = np.float32(case.attribute("intercepts", (0.0,)))
    x = case.x.reshape(-1, coefficients.shape[0])
    e, size = case.e.reshape(x.shape), case.size.reshape(x.shape)
    share, weight = case.sums(x.shape[1] + 1), np.abs(coefficients)
    error: Array = (e + (share + (1 + share) * case.rounding.weights) * size) @ weight + share * np.abs(intercepts)
    return x @ coefficients + intercepts, error


_of_ml = partial(
    Declaration, domain="ai.onnx.ml", order=order.keep_order, values=(), folds=NEVER, shapes=shapes.by_onnx
)
_of_rows = partial(_of_ml, batch=batch.by_row)
_ON_HOST = NotApplicable("labels are made on the host: they are the same or not")
_LIST = NotApplicable("it makes a list of dicts, one for each row, and only as a model's output")


def _numbers(node: ir.Node, name: str, columns: int, default: float) -> Array | float:
    """An attribute that is one number, or one for each column."""
    given = np.array(attribute(node, name, ()), np.float32)
    if given.size == 0:
        return default
    if given.size == 1:
        return float(given[0])
    if given.size != columns:
        raise Blocked(f"{name} has {given.size} numbers for {columns} columns", WRONG)
    return given


def _columns(source: Operand) -> int:
    """The length of rows."""
    if not source.shape:
        raise Blocked("a tensor of 0 dimensions; there must be rows", WRONG)
    return source.shape[-1]


def _term(program: Program, numbers: Array | float) -> Term:
    """Numbers as an operand of a program."""
    return numbers if isinstance(numbers, float) else program.source(numbers)


@_of_rows({"Scaler": (1,)}, bound=bound_scaler)
def lower_scaler(lowering: Lowering, node: ir.Node) -> None:
    """``(x - offset) * scale`` of each column."""
    source = lowering.operand(node.inputs[0])
    columns = _columns(source)
    program = Program()
    offset = _term(program, _numbers(node, "offset", columns, 0.0))
    difference = program.apply("subtract", program.source(source), offset)
    program.apply("multiply", difference, _term(program, _numbers(node, "scale", columns, 1.0)))
    add_compute(lowering, node, program)


@_of_rows({"Imputer": (1,)}, bound=bound_imputer)
def lower_imputer(lowering: Lowering, node: ir.Node) -> None:
    """A number for each column in place of missing elements: NaN, or another number that stands for them."""
    if "imputed_value_int64s" in node.attributes:
        raise Blocked("imputed_value_int64s: arithmetic on integers", "export the model with float inputs")
    source = lowering.operand(node.inputs[0])
    program = Program()
    x = program.source(source)
    missing = float(attribute(node, "replaced_value_float", 0.0))
    is_missing = program.apply("is_nan", x) if np.isnan(missing) else program.apply("equal", x, missing)
    imputed = _numbers(node, "imputed_value_floats", _columns(source), 0.0)
    program.apply("where", is_missing, _term(program, imputed), x)
    add_compute(lowering, node, program)


@_of_ml({"Binarizer": (1,)}, batch=batch.elementwise, bound=bound_binarizer)
def lower_binarizer(lowering: Lowering, node: ir.Node) -> None:
    """1 where an element is greater than a threshold, else 0."""
    program = Program()
    x = program.source(lowering.operand(node.inputs[0]))
    program.apply("greater", x, float(attribute(node, "threshold", 0.0)))
    add_compute(lowering, node, program)


_NORMS = {"MAX": Reduction("maximum"), "L1": L1, "L2": L2}


@_of_rows({"Normalizer": (1,)}, bound=bound_normalizer)
def lower_normalizer(lowering: Lowering, node: ir.Node) -> None:
    """Rows divided by their largest element, or by their 1- or 2-norm; a row with the norm 0 stays unchanged."""
    name = attribute(node, "norm", "MAX")
    if name not in _NORMS:
        raise Blocked(f"norm={name!r}; ONNX knows MAX, L1 and L2", WRONG)
    source = lowering.operand(node.inputs[0])
    _columns(source)
    divide_by_norm(lowering, node, source, (len(source.shape) - 1,), _NORMS[name])


def _linear(lowering: Lowering, node: ir.Node, output: str, count: int) -> Operand:
    """Append the matrix product of a linear model, with ``count`` results for each row."""
    source = lowering.operand(node.inputs[0])
    columns = _columns(source)
    if count < 1:
        raise Blocked(f"{count} results for each row", WRONG)
    coefficients = np.array(attribute(node, "coefficients", ()), np.float32)
    if coefficients.size != count * columns:
        raise Blocked(f"{coefficients.size} coefficients for {count} results of {columns} columns", WRONG)
    given = attribute(node, "intercepts", ())
    intercepts = np.array(given, np.float32) if given else np.zeros(count, np.float32)
    if intercepts.size != count:
        raise Blocked(f"{intercepts.size} intercepts for {count} results")
    weight = np.ascontiguousarray(coefficients.reshape(count, columns).T)
    step = linear_step(node, source, output, weight, intercepts)
    lowering.add(step, [node], "a matrix product on the tensor engine")
    return Operand(output, step.shape)


@_of_rows({"LinearRegressor": (1,)}, bound=bound_regressor)
def lower_linear_regressor(lowering: Lowering, node: ir.Node) -> None:
    """A matrix product with a bias."""
    transform = attribute(node, "post_transform", "NONE")
    if transform != "NONE":
        raise Blocked(f"post_transform={transform!r}", "apply it by a node of its own")
    _linear(lowering, node, value_name(node.outputs[0]), int(attribute(node, "targets", 1)))


@_of_rows({"LinearClassifier": (1,)}, bound=bound_classifier)
def lower_linear_classifier(lowering: Lowering, node: ir.Node) -> None:
    """Scores by a matrix product; the host looks up the label of the largest one."""
    label, scores = node.outputs
    lowering.mark_index(label)
    texts, numbers = attribute(node, "classlabels_strings", ()), attribute(node, "classlabels_ints", ())
    labels = np.array(list(texts or numbers), object if texts else np.int64)
    transform = attribute(node, "post_transform", "NONE")
    if transform not in ("NONE", "SOFTMAX", "LOGISTIC"):
        raise Blocked(
            f"post_transform={transform!r}; NONE, SOFTMAX and LOGISTIC are supported", "apply it after the model"
        )
    if len(attribute(node, "intercepts", labels)) != labels.size:
        raise Blocked("one score for two classes", "export the model with a score for each class")
    made = value_name(scores) or lowering.spare_name(f"{node_name(node)}.scores")
    raw = _linear(lowering, node, made if transform == "NONE" else lowering.spare_name(f"{made}.raw"), labels.size)
    if is_used(label):
        _add_label(lowering, node, raw, labels)
    if transform == "LOGISTIC":
        program = Program()
        program.apply("sigmoid", program.source(raw))
        add_program(lowering, node, program, made, raw.shape)
    elif transform == "SOFTMAX":
        name = lowering.spare_name(f"{node_name(node)}.softmax")
        add_softmax(lowering, node, name, raw, made, labels.size)


def _add_label(lowering: Lowering, node: ir.Node, scores: Operand, labels: Array) -> None:
    """Append the search for the largest score, and the host's look-up of its label."""
    label = value_name(node.outputs[0])
    step = ArgmaxStep(
        name=lowering.spare_name(f"{node_name(node)}.argmax"),
        sources=[scores],
        output=lowering.spare_name(f"{label}.index"),
        shape=(scores.shape[0], 1),
        dtype="uint32",
        kernel="argmax",
        last=False,
    )
    lowering.add(step, [node], "the vector engine's search")
    look_up = partial(_look_up_labels, labels=labels)
    lowering.host.append(HostNode(node_name(node), operator_name(node), (step.output,), label, look_up))


@host_function
def _look_up_labels(indices: Array, labels: Array) -> Array:
    return labels[indices.reshape(-1)]


# -- results -------------------------------------------------------------------------------------------


@_of_ml({"ZipMap": (1,)}, batch=_LIST, bound=_ON_HOST)
def lower_zip_map(lowering: Lowering, node: ir.Node) -> None:
    """A list with a dict of labels and scores for each row, as an output of the model only."""
    made = node.outputs[0]
    if made.uses() or not made.is_graph_output():
        raise Blocked("its dicts are read by other nodes", "export the model with options={'zipmap': False}")
    labels = attribute(node, "classlabels_strings", ()) or attribute(node, "classlabels_int64s", ())
    scores = lowering.operand(node.inputs[0])
    if not labels or prod(scores.shape[1:]) != len(labels):
        raise Blocked(f"{len(labels)} labels for rows of {prod(scores.shape[1:])} scores", WRONG)
    zipped = partial(_zip_scores, labels=tuple(labels))
    lowering.host.append(HostNode(node_name(node), operator_name(node), (scores.value,), value_name(made), zipped))
    lowering.mark_list(made)
    lowering.report(node, "host", "gives each row as a dict")


@host_function
def _zip_scores(scores: Array, labels: tuple[Any, ...]) -> Any:
    rows = scores.astype(np.float32).reshape(-1, len(labels)).tolist()
    return [dict(zip(labels, row, strict=True)) for row in rows]

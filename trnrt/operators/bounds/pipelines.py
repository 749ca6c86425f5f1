"""``ai.onnx.ml``: scalers, norms of rows and linear models."""

from __future__ import annotations

import numpy as np

from trnrt.operators.bounds.case import Array, Case, exact
from trnrt.operators.bounds.rounding import of_function, of_operation


def scaler(case: Case) -> list[Array]:
    """``(x - offset) * scale``: offset and scale are weights."""
    offset, scale = (np.abs(np.float32(case.attribute(name, (0.0,)))) for name in ("offset", "scale"))
    stored = case.rounding.weights
    off = case.e + stored * offset
    size = case.size + (1 + stored) * offset
    return [scale * (off + (2 * of_operation() + stored) * size)]


def imputer(case: Case) -> list[Array]:
    """Elements as they are, or a weight."""
    return [case.e]


@exact
def binarizer(case: Case) -> list[Array]:
    """In doubt where an element is closer to the threshold than their errors."""
    threshold = np.float32(case.attribute("threshold", 0.0))
    doubt = case.e + case.rounding.weights * np.abs(threshold)
    return [np.where((doubt > 0) & (np.abs(case.x - threshold) <= doubt), np.float32(1), np.float32(0))]


def normalizer(case: Case) -> list[Array]:
    """Rows over a norm, a tensor of its own, which is off by the norm of the errors at most."""
    kind = case.attribute("norm", "MAX")
    order = {"MAX": np.inf, "L1": 1, "L2": 2}[kind.decode() if isinstance(kind, bytes) else kind]
    off = np.linalg.norm(case.e, ord=order, axis=-1, keepdims=True)
    largest, shown = (np.abs(a).max(axis=-1, keepdims=True) for a in (case.x, case.y))
    size = np.where(shown > 0, largest / shown, np.float32(1))
    share = case.sums(case.x.shape[-1]) + of_operation() + 2 * case.rounding.weights
    rate = np.divide(off, size - off, out=np.full_like(off, np.inf), where=size > off) + share
    moved = case.e / size
    return [moved + (np.abs(case.y) + moved) * rate]


def regressor(case: Case) -> list[Array]:
    """Sums of products."""
    return [_scores(case, case.y.shape[-1])[1]]


def classifier(case: Case) -> list[Array]:
    """Sums of products, which are tensors of their own, and what becomes of them; the labels come of their order."""
    labels, made = case.outputs
    assert labels is not None and made is not None
    z, off = _scores(case, len(case.attribute("intercepts", ())) or made.shape[-1])
    off = off + case.rounding.stored(np.abs(z) + off)
    kind = case.attribute("post_transform", "NONE")
    kind = kind.decode() if isinstance(kind, bytes) else kind
    if kind == "NONE":
        error = off
    elif kind == "LOGISTIC":
        error = off / 4 + of_function() + case.rounding.weights  # the slope is a quarter at most, and 1 - p is near 1
    else:
        spread = z.max(axis=-1, keepdims=True) - z
        within = off + off.max(axis=-1, keepdims=True)
        each = of_function() + of_operation() * spread + case.sums(z.shape[-1]) + 2 * case.rounding.weights
        error = made * (np.expm1(within) + np.exp(within) * each)
    return [np.zeros(labels.shape, np.float32), np.broadcast_to(error, made.shape)]


def _scores(case: Case, count: int) -> tuple[Array, Array]:
    """The products of rows with ``count`` rows of coefficients, and their errors."""
    coefficients = np.float32(case.attribute("coefficients", ())).reshape(count, -1).T
    intercepts = np.float32(case.attribute("intercepts", (0.0,)))
    x = case.x.reshape(-1, coefficients.shape[0])
    e, size = case.e.reshape(x.shape), case.size.reshape(x.shape)
    share, weight = case.sums(x.shape[1] + 1), np.abs(coefficients)
    error: Array = (e + (share + (1 + share) * case.rounding.weights) * size) @ weight + share * np.abs(intercepts)
    return x @ coefficients + intercepts, error

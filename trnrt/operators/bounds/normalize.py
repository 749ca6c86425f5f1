"""Bounds of softmax and normalisations of rows: an element's error depends on its own and those of its row.

With d = x - mean and s = sqrt(variance + epsilon), the result d / s is off by the error of d over s, plus its own size
times the relative error of s. onnxruntime computes some variances as the mean of squares minus the squared mean, which
is off by a bound of sums times the mean of squares (Chan, Golub and LeVeque 1983).
"""

from __future__ import annotations

from math import prod

import numpy as np

from trnrt.operators.bounds.case import Array, Case, Shape
from trnrt.operators.bounds.rounding import function_bound, operation_bound


def softmax(case: Case) -> list[Array]:
    """Relative to the result: the element's error, the largest error of its row, and those of exponentials and sum."""
    axis = int(case.attribute("axis", -1 if case.opset >= 13 else 1)) % max(case.x.ndim, 1)
    axes = (axis,) if case.opset >= 13 else tuple(range(axis, case.x.ndim))
    share = case.sums(prod(case.x.shape[d] for d in axes))
    largest = np.max(case.x, axis=axes, keepdims=True)
    # The exponential of a difference; the rounding of the difference is an error of its argument.
    argument = operation_bound() * np.abs(np.maximum(case.x - largest, np.float32(-1e4)))
    within = case.e + np.max(case.e, axis=axes, keepdims=True)
    if case.op == "LogSoftmax":
        of_logarithm = (function_bound() + share) * np.maximum(np.abs(case.y), 1) + operation_bound() * np.abs(case.x)
        return [within + of_logarithm + 2 * case.rounding.weights]
    # exponentials may be kept in the dtype before they are scaled
    of_each = argument + share + function_bound() + 2 * case.rounding.weights
    return [case.y * (np.expm1(within) + np.exp(within) * of_each)]


def _row_errors(
    case: Case, x: Array, e: Array, axes: Shape, epsilon: float, *, centred: bool = True
) -> tuple[Array, Array]:
    """Normalised elements along ``axes`` and their errors."""
    share = case.sums(prod(x.shape[a] for a in axes))
    mean = np.mean(x, axis=axes, keepdims=True) if centred else np.zeros((), np.float32)
    d = x - mean
    squares = np.mean(x * x, axis=axes, keepdims=True)
    variance = np.mean(d * d, axis=axes, keepdims=True) + np.float32(epsilon)
    d_error = e + (operation_bound() + case.rounding.weights) * (np.abs(d) + 2 * e)
    if centred:
        d_error = d_error + np.mean(e, axis=axes, keepdims=True) + share * np.mean(np.abs(x), axis=axes, keepdims=True)
    spread = np.mean((2 * np.abs(d) + d_error) * d_error, axis=axes, keepdims=True) + share * squares
    rate = 0.5 * spread / variance + operation_bound()
    made = d / np.sqrt(variance)
    error = d_error / np.sqrt(variance)
    return made, error + (np.abs(made) + error) * rate


def _scale_error(case: Case, made: Array, error: Array, shape: Shape, scale: int = 1, bias: int = 2) -> list[Array]:
    """``made * scale + bias`` with coefficients of a shape that broadcasts."""
    factor, shift = case.input(scale), case.input(bias)
    g = np.float32(1) if factor is None else np.abs(factor.reshape(shape))
    b = np.float32(0) if shift is None else np.abs(shift.reshape(shape))
    g_error, b_error = (case.error(k).reshape(shape) if case.error(k).ndim else np.float32(0) for k in (scale, bias))
    rounding = operation_bound() + case.rounding.weights
    size = np.abs(made) + error
    total = g * error + size * g_error + b_error + rounding * ((g + g_error) * size + b + b_error)
    return [np.broadcast_to(total, case.y.shape)]


def layer(case: Case) -> list[Array]:
    """Over all dimensions from the axis on."""
    axis = int(case.attribute("axis", -1)) % case.x.ndim
    axes = tuple(range(axis, case.x.ndim))
    centred = case.op == "LayerNormalization"
    made, error = _row_errors(case, case.x, case.e, axes, float(case.attribute("epsilon", 1e-5)), centred=centred)
    factor = case.input(1)
    shape = factor.shape if factor is not None else case.x.shape[axis:]
    return [*_scale_error(case, made, error, shape), *_statistics(case, axes)]


def _statistics(case: Case, axes: Shape) -> list[Array]:
    """The errors of the rows' means and of 1 / deviation; the latter's relative error is the deviation's."""
    share = case.sums(prod(case.x.shape[a] for a in axes))
    mean = np.mean(case.x, axis=axes, keepdims=True)
    mean_error = np.mean(case.e + share * case.size, axis=axes, keepdims=True)
    d = np.abs(case.x - mean)
    d_error = case.e + mean_error + (operation_bound() + case.rounding.weights) * (d + case.e)
    squares = share * np.mean(case.x * case.x, axis=axes, keepdims=True)
    spread = np.mean((2 * d + d_error) * d_error, axis=axes, keepdims=True) + squares
    variance = np.mean(d * d, axis=axes, keepdims=True) + np.float32(case.attribute("epsilon", 1e-5))
    rate = 0.5 * spread / np.maximum(variance - spread, np.float32(1e-30)) + 2 * operation_bound()
    inverse = rate / np.sqrt(variance)
    return [mean_error, inverse]


def instance(case: Case) -> list[Array]:
    """Over the pixels of a channel."""
    axes = tuple(range(2, case.x.ndim))
    made, error = _row_errors(case, case.x, case.e, axes, float(case.attribute("epsilon", 1e-5)))
    return _scale_error(case, made, error, (-1, *(1,) * len(axes)))


def group(case: Case) -> list[Array]:
    """Over the channels of a group and their pixels."""
    images, channels = case.x.shape[:2]
    groups = int(case.attribute("num_groups", 1))
    shape = (images, groups, -1)
    epsilon = float(case.attribute("epsilon", 1e-5))
    made, error = _row_errors(case, case.x.reshape(shape), case.e.reshape(shape), (2,), epsilon)
    per_channel = (channels, *(1,) * (case.x.ndim - 2))
    return _scale_error(case, made.reshape(case.x.shape), error.reshape(case.x.shape), per_channel)


def centre(case: Case) -> list[Array]:
    """Over any axes; mean and deviation are stored as tensors, in the dtype."""
    axes = tuple(int(a) for a in case.attribute("axes", (0, 2, 3)))
    mean = np.abs(np.mean(case.x, axis=axes, keepdims=True))
    stored = case.rounding.weights * mean
    made, error = _row_errors(case, case.x, case.e + stored, axes, 1e-9)
    return [error + (operation_bound() + 2 * case.rounding.weights) * (np.abs(made) + error)]


def lp(case: Case) -> list[Array]:
    """Over a norm, whose error is at most the norm of the errors."""
    axis, order = int(case.attribute("axis", -1)), int(case.attribute("p", 2))
    share = case.sums(case.x.shape[axis])
    size, off = (np.linalg.norm(a, ord=order, axis=axis, keepdims=True) for a in (case.x, case.e))
    size = np.maximum(size, np.float32(1e-30))
    rate = off / size + share + operation_bound() + 2 * case.rounding.weights
    return [case.e / size + (np.abs(case.y) + case.e / size) * rate]


def batch(case: Case) -> list[Array]:
    """``(x - mean) * factor + bias`` with factor = scale / deviation; a scale and a shift if all are constant."""
    epsilon = np.float32(case.attribute("epsilon", 1e-5))
    shape = (-1, *(1,) * (case.x.ndim - 2))
    scale, bias, mean, variance = (np.asarray(case.inputs[k]).reshape(shape) for k in range(1, 5))
    off = [np.broadcast_to(case.error(k), case.x.shape[1:2]).reshape(shape) for k in range(1, 5)]
    rate, least = 1 / np.sqrt(variance + epsilon), np.maximum(variance - off[3], 0) + epsilon
    factor = np.abs(scale) * rate
    factor_error = off[0] / np.sqrt(least) + np.abs(scale) * (1 / np.sqrt(least) - rate)
    moved = (factor + factor_error) * (case.e + off[2]) + np.abs(case.x - mean) * factor_error + off[1]
    size = (case.size + np.abs(mean)) * (factor + factor_error) + np.abs(bias)
    return [moved + (3 * operation_bound() + 2 * case.rounding.weights) * size]


def local_response(case: Case) -> list[Array]:
    """``x / d**beta``, d being a bias and a mean of squares of neighbours."""
    size, alpha = int(case.attribute("size", 1)), float(case.attribute("alpha", 1e-4))
    beta, bias = float(case.attribute("beta", 0.75)), float(case.attribute("bias", 1.0))
    share = case.sums(size)
    d = bias + alpha / size * _windows(case.x * case.x, size)
    spread = alpha / size * _windows(2 * np.abs(case.x) * case.e + case.e**2, size) + (share + operation_bound()) * d
    rate = abs(beta) * (spread / d + 2 * case.rounding.weights) + function_bound() * (1 + np.abs(np.log(d)))
    error = case.e / d**beta
    return [error + (np.abs(case.y) + error) * rate]


def _windows(x: Array, size: int) -> Array:
    """Sums over ``size`` neighbouring channels."""
    before = (size - 1) // 2
    padded = np.pad(x, [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)])
    return sum((padded[:, k : k + x.shape[1]] for k in range(size)), np.zeros_like(x))

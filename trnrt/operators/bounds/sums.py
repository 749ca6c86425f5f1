"""Bounds of sums of products, of other sums, and of largest elements.

For ``y = sum(a * b)`` with errors e of a: ``|error of y| <= sum(e * |b|) + bound * sum(|a| * |b|)``. So running the
operator itself on ``e + bound * |a|`` and ``|b|`` gives the error of every element.
"""

from __future__ import annotations

from math import prod

import numpy as np

from trnrt.operators.bounds.case import Array, Case, exact
from trnrt.operators.bounds.rounding import SUMS, function_bound, operation_bound


def convolution(case: Case) -> list[Array]:
    """Sums over the channels of a group and the taps of the kernel, and the bias."""
    weight = case.required_input(1)
    groups = int(case.attribute("group", 1))
    transposed = case.op == "ConvTranspose"
    length = (weight.shape[0] // groups if transposed else weight.shape[1]) * prod(weight.shape[2:])
    share, added = _products(case, length), case.input(2)
    bias = [] if added is None else [case.error(2) + share * np.abs(added)]
    return [_factor_errors(case, weight, share, lambda a, b, c: case.first(a, b, *c), bias)]


def gemm(case: Case) -> list[Array]:
    """alpha * A @ B + beta * C."""
    a, b = (_gemm_matrix(case, k) for k in (0, 1))
    share = _products(case, a.shape[1])
    alpha, beta = (abs(float(case.attribute(name, 1.0))) for name in ("alpha", "beta"))
    a_error, b_error = (_gemm_matrix(case, k, error=True) for k in (0, 1))
    size = np.abs(a) + a_error
    error = alpha * ((a_error + share * size) @ (np.abs(b) + b_error) + size @ b_error)
    added = case.input(2)
    if added is not None:
        error = error + beta * (case.error(2) + share * np.abs(added))
    return [error]


def matmul(case: Case) -> list[Array]:
    """A @ B, of matrices or stacks of them."""
    b = case.required_input(1)
    share = _products(case, b.shape[0] if b.ndim == 1 else b.shape[-2])
    error = (case.e + share * case.size) @ (np.abs(b) + case.error(1))
    return [error + case.size @ case.error(1) if np.any(case.error(1)) else error]


def _products(case: Case, length: int) -> float:
    """The bound of sums of products, relative to the sum of magnitudes."""
    return case.sums(length + 1)


def _gemm_matrix(case: Case, position: int, *, error: bool = False) -> Array:
    """A matrix of a Gemm, or its error."""
    found = case.error(position) if error else case.required_input(position)
    return found.T if case.attribute(("transA", "transB")[position], 0) else found


def _factor_errors(case: Case, weight: Array, share: float, run: object, bias: list[Array]) -> Array:
    """The errors that come from both factors of a convolution."""
    assert callable(run)
    error: Array = run(case.e + share * case.size, np.abs(weight) + case.error(1), bias)
    if np.any(case.error(1)):
        nothing = [np.zeros_like(b) for b in bias]
        error = error + run(case.size, np.broadcast_to(case.error(1), weight.shape), nothing)
    return error


def average(case: Case) -> list[Array]:
    """Sums and means: of errors, and of magnitudes."""
    share = case.sums(_terms(case))
    return [case.first(case.e + share * case.size)]


def norm(case: Case) -> list[Array]:
    """The norm of a sum is at most the sum of the norms."""
    error = case.first(case.e)
    # Powers and their sum may be stored in the dtype before the root is taken.
    share = case.sums(_terms(case)) + 2 * case.rounding.weights
    return [error + share * (case.y + error)]


def bound_product(case: Case) -> list[Array]:
    """The product of ``|x| + e`` less that of ``|x|``."""
    share = case.sums(_terms(case))
    most, size = case.first(case.size), np.abs(case.y)
    return [np.maximum(most - size, 0) + share * most]


def log_of_sum(case: Case) -> list[Array]:
    """The relative error of the sum, plus the logarithm's error.

    Exponentials are relative to the largest, so that their errors are those of the differences.
    """
    terms = _terms(case)
    share = case.sums(terms) + function_bound() + 2 * case.rounding.weights
    if case.op == "ReduceLogSumExp":
        spread = np.float32(case.x.max() - case.x.min()) if np.isfinite(case.x).all() else np.float32(200)
        off = 2 * case.e.max(initial=0) + (operation_bound() + case.rounding.weights) * min(spread, np.float32(200))
        return [off + share + function_bound() * np.maximum(np.abs(case.y), 1)]
    total = np.exp(case.y)
    off = (terms * case.e.max(initial=0) + share * terms * np.abs(case.x).max(initial=0)) / np.abs(total)
    return [-np.log1p(-np.minimum(off, np.float32(1))) + function_bound() * np.maximum(np.abs(case.y), 1)]


def squares(case: Case) -> list[Array]:
    """The sum of ``(|x| + e)**2 - x**2``, plus a share of the sum of squares."""
    share, size = case.sums(_terms(case)), np.abs(case.x)
    return [case.first(np.sqrt(2 * size * case.e + case.e**2 + share * case.size**2))]


@exact
def largest(case: Case) -> list[Array]:
    """The maximum moves by the largest error at most."""
    error = case.first(-case.e if case.op == "ReduceMin" else case.e)
    # A window that sees only padding gives the lowest number.
    return [np.where(np.abs(error) > 3e38, 0, np.abs(error))]


@exact
def topk(case: Case) -> list[Array]:
    """Sorted numbers move by the largest error of their row at most. Nothing is known of an index whose number others
    are as close to."""
    axis = int(case.attribute("axis", -1))
    most = case.e.max(axis=axis, keepdims=True)
    numbers, found = np.moveaxis(np.sort(case.x, axis=axis), axis, -1), np.moveaxis(case.y, axis, -1)
    reach = np.broadcast_to(2 * np.moveaxis(most, axis, -1), found.shape)
    close = np.zeros(found.shape, bool)
    for row in np.ndindex(found.shape[:-1]):
        first = np.searchsorted(numbers[row], found[row] - reach[row], "left")
        close[row] = np.searchsorted(numbers[row], found[row] + reach[row], "right") - first > 1
    doubt = np.moveaxis(np.where(close & (reach > 0), np.float32(np.inf), np.float32(0)), -1, axis)
    return [np.broadcast_to(most, case.y.shape), doubt]


def resize(case: Case) -> list[Array]:
    """Copies, or sums whose weights come from float32 coordinates, which are off by a rounding of the size."""
    mode = case.attribute("mode", "nearest")
    if mode in ("nearest", b"nearest"):
        return [case.first(case.e)]
    size = max(*case.x.shape[2:], *case.y.shape[2:], 1)
    # One axis after the other: each axis's weights, and the tensors between two axes, are rounded to the dtype.
    axes = case.x.ndim - 2
    share = case.sums(4**axes) + 2 * size * SUMS + (2 * axes - 1) * case.rounding.weights
    off = case.e + share * case.rounding.magnitude(case.size)
    error = case.first(off)
    if mode in ("cubic", b"cubic"):  # some weights are negative: their magnitudes add up to less than 2 in an axis
        error = np.full(error.shape, 4 * off.max(), np.float32)
    return [error]


def _terms(case: Case) -> int:
    """The number of elements that make one result of a pooling or reduction."""
    window = case.attribute("kernel_shape", None)
    return int(prod(window)) if window else max(1, case.x.size // max(case.y.size, 1))

"""The activation functions of the scalar engine: their numpy meaning on float32, and their valid inputs.

The engine evaluates fitted polynomials; these are the functions that they approximate. Outside of the input range that
the API reference gives, the engine's results are invalid and not documented: the simulator computes the function and
warns. ``sin`` is the exception: the engine's extrapolation is documented, and computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import pi, sqrt

import numpy as np

from trnrt.nki.machine.dtypes import Array

Function = Callable[..., Array]

_HALF, _ONE = np.float32(0.5), np.float32(1)
_SQRT_HALF = np.float32(sqrt(0.5))
_SQRT_2_OVER_PI = np.float32(sqrt(2 / pi))
_TWO_OVER_SQRT_PI = np.float32(2 / sqrt(pi))
_INVERSE_SQRT_2PI = np.float32(1 / sqrt(2 * pi))
_TANH_CUBIC = np.float32(0.044715)  # gelu with tanh
_SIGMOID_SLOPE = np.float32(1.702)  # gelu with sigmoid

# erf(x) = x * P(x^2) / Q(x^2) for |x| <= 3.925, beyond which it is 1 in float32. Fitted to math.erf by reweighted
# least squares on 6,000 Chebyshev nodes; the relative error is below 2e-8.
_ERF_END = np.float32(3.925)
_BLOCK = 8192  # elements whose float64 intermediates stay in the cache
_ERF_P = (
    2.046015076656007e-06,
    0.00028484482583753337,
    0.003772613179183734,
    0.05276949668780019,
    0.19059524233477235,
    1.128379145750309,
)
_ERF_Q = (
    3.8047713047696094e-05,
    0.0011638727352631067,
    0.014983325897229224,
    0.11418333742647241,
    0.5022433659331232,
    1.0,
)


def _horner(coefficients: tuple[float, ...], x: Array) -> Array:
    value: Array = x * coefficients[0]
    value += coefficients[1]
    for coefficient in coefficients[2:]:
        value *= x
        value += coefficient
    return value


def erf(x: Array) -> Array:
    """The error function to 1.5 units in the last place of float32."""
    flat = np.ascontiguousarray(x).reshape(-1)
    result = np.empty_like(flat)
    for start in range(0, flat.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        # At _ERF_END the quotient rounds to 1. In float32 its own rounding would cost 6 units.
        inside = np.clip(flat[part], -_ERF_END, _ERF_END).astype(np.float64)
        square = inside * inside
        inside *= _horner(_ERF_P, square)
        inside /= _horner(_ERF_Q, square)
        result[part] = inside
    return result.reshape(x.shape)


def erf_dx(x: Array) -> Array:
    value: Array = _TWO_OVER_SQRT_PI * np.exp(-x * x)
    return value


def sigmoid(x: Array) -> Array:
    # Where exp overflows to infinity the result is 0, which is right; a form with tanh loses small results.
    return np.reciprocal(_ONE + np.exp(-x))


def relu(x: Array) -> Array:
    return np.maximum(x, np.float32(0))


def prelu(x: Array, slope: Array) -> Array:
    """``x`` if positive, else ``slope * x``."""
    return np.where(x > 0, x, slope * x)


def _saturate(least: float, most: float = np.inf) -> Callable[[Function], Function]:
    """Clip the inputs of the decorated function to a range; outside of it the function is constant in float32.

    Otherwise its terms overflow, and infinity times 0 would be NaN. NaN stays NaN.
    """
    low, high = np.float32(least), np.float32(most)

    def decorate(function: Function) -> Function:
        if high == np.inf:
            return lambda x: function(np.maximum(x, low))
        return lambda x: function(np.clip(x, low, high))

    return decorate


def _normal_cdf(x: Array) -> Array:
    return _HALF * (_ONE + erf(x * _SQRT_HALF))


@_saturate(-20)
def gelu(x: Array) -> Array:
    return x * _normal_cdf(x)


@_saturate(-20, 20)
def gelu_dx(x: Array) -> Array:
    return _normal_cdf(x) + x * _INVERSE_SQRT_2PI * np.exp(-_HALF * x * x)


@_saturate(-20)
def gelu_apprx_tanh(x: Array) -> Array:
    value: Array = _HALF * x * (_ONE + np.tanh(_SQRT_2_OVER_PI * (x + _TANH_CUBIC * x * x * x)))
    return value


@_saturate(-70)
def gelu_apprx_sigmoid(x: Array) -> Array:
    return x * sigmoid(_SIGMOID_SLOPE * x)


@_saturate(-70, 70)
def gelu_apprx_sigmoid_dx(x: Array) -> Array:
    gate = sigmoid(_SIGMOID_SLOPE * x)
    return gate + _SIGMOID_SLOPE * x * gate * (_ONE - gate)


@_saturate(-110)
def silu(x: Array) -> Array:
    return x * sigmoid(x)


@_saturate(-110, 110)
def silu_dx(x: Array) -> Array:
    gate = sigmoid(x)
    return gate + x * gate * (_ONE - gate)


def softplus(x: Array) -> Array:
    return np.maximum(x, np.float32(0)) + np.log1p(np.exp(-np.abs(x)))


@_saturate(-110)
def mish(x: Array) -> Array:
    return x * np.tanh(softplus(x))


def rsqrt(x: Array) -> Array:
    return np.reciprocal(np.sqrt(x))


def sin(x: Array) -> Array:
    """The sine within [-pi, pi]; beyond it, the engine extrapolates the cubic of its last piece: 27.65 at 9."""
    end = np.float32(pi)
    beyond = x - np.copysign(end, x)
    extended = beyond * (beyond * beyond * np.float32(1 / 6) - _ONE)
    return np.where(np.abs(x) <= end, np.sin(x), extended)


@dataclass(frozen=True, slots=True)
class Range:
    """The valid inputs of a function of the scalar engine, both ends included; of |x| with ``magnitude``.

    ``beyond`` describes the results outside of it, here and on the device.
    """

    least: float
    most: float
    shown: str
    magnitude: bool = False
    beyond: str = "the simulator computes the function there, too; the scalar engine's results are invalid"

    def __str__(self) -> str:
        return self.shown

    def outliers(self, x: Array) -> Array | None:
        """The inputs outside of the range; None if there are none. NaN counts as inside: its result is NaN, too."""
        size = np.abs(x) if self.magnitude else x
        least, most = np.float32(self.least), np.float32(self.most)
        if size.min() >= least and size.max() <= most:
            return None
        beyond = x[(size < least) | (size > most)]
        return beyond if beyond.size else None


LOG_RANGE = Range(2.0**-64, 2.0**64, "2**-64 to 2**64")
SIN_RANGE = Range(-pi, pi, "-pi to pi", beyond="the scalar engine, and the simulator with it, extrapolates a cubic")
ARCTAN_RANGE = Range(-pi / 2, pi / 2, "-pi/2 to pi/2")
SQRT_RANGE = Range(2.0**-116, 2.0**118, "2**-116 to 2**118")
RSQRT_RANGE = Range(2.0**-87, 2.0**97, "2**-87 to 2**97")
RECIPROCAL_RANGE = Range(2.0**-42, 2.0**42, "2**-42 to 2**42 of either sign", magnitude=True)

"""Angles of any size. The scalar engine's sine works from -pi to pi: larger angles are reduced to that first. Its arc
tangent works up to pi / 2; arguments are reduced to 1.

``x - k * 2 pi`` takes four steps, each a float32 product that is exact while k has at most 16 bits: up to |x| = 400,000
the angle is right to float32. NaN and infinity give NaN.
"""

from __future__ import annotations

from math import pi

import numpy as np

from trnrt.nki.machine.dtypes import float32, int32, uint8, uint32
from trnrt.nki.machine.operators import OPERATORS
from trnrt.nki.sim import isa
from trnrt.nki.sim.lang.common import cast, require_tile, result_dtype, result_tile, tile
from trnrt.nki.sim.tensor import NkiTensor

__all__ = ["cos", "tan"]

_LARGEST_BELOW_PI = float(np.nextafter(np.float32(pi), np.float32(0)))  # float32(pi) is more than pi
_HALF_PI = float(np.float32(pi / 2))
_HALF_PI_REST = pi / 2 - _HALF_PI


def _parts(value: float) -> tuple[float, ...]:
    """``value`` as a sum of three floats of 8 significant bits and a rest."""
    found = []
    for _ in range(3):
        unit = 2.0 ** (np.floor(np.log2(abs(value))) - 7)
        found.append(float(np.trunc(value / unit) * unit))
        value -= found[-1]
    return (*found, value)


def sin(x: NkiTensor, dtype: object = None) -> NkiTensor:
    """The sine of angles of any size."""
    x = require_tile("sin", x)
    angle, _ = _reduce_angle(x, 2 * pi)
    isa.tensor_scalar(
        angle,
        angle,
        OPERATORS["minimum"],
        _LARGEST_BELOW_PI,
        op1=OPERATORS["maximum"],
        operand1=-_LARGEST_BELOW_PI,
    )
    return _sine("sin", angle, x, dtype)


def cos(x: NkiTensor, dtype: object = None) -> NkiTensor:
    """The cosine of angles of any size: ``sin(pi / 2 - |x|)``."""
    x = require_tile("cos", x)
    return _sine("cos", _complement(_reduce_angle(x, 2 * pi)[0]), x, dtype)


def tan(x: NkiTensor, dtype: object = None) -> NkiTensor:
    """The tangent of angles of any size: sine over cosine within a quarter turn around 0, its negative reciprocal
    where the quarter turns left out are odd in number."""
    x = require_tile("tan", x)
    angle, turns = _reduce_angle(x, pi / 2)
    tangent, cosine, odd = tile(x.shape, float32), tile(x.shape, float32), tile(x.shape, uint32)
    isa.activation(tangent, OPERATORS["sin"], angle)
    isa.activation(cosine, OPERATORS["sin"], _complement(angle))
    isa.reciprocal(cosine, cosine)
    isa.tensor_tensor(tangent, tangent, cosine, OPERATORS["multiply"])
    inverse = cosine
    isa.reciprocal(inverse, tangent)
    isa.tensor_scalar(inverse, inverse, OPERATORS["multiply"], -1.0)
    isa.tensor_scalar(odd, turns, OPERATORS["bitwise_and"], 1)
    isa.tensor_copy_predicated(tangent, inverse, odd)
    return cast(tangent, result_dtype("tan", dtype, x.dtype))


def arctan(x: NkiTensor, dtype: object = None) -> NkiTensor:
    """The angle whose tangent is ``x``: beyond 1 it is pi / 2 less that of ``1 / |x|``, with the sign of x."""
    x = require_tile("arctan", x)
    size, inverse, large = tile(x.shape, float32), tile(x.shape, float32), tile(x.shape, uint8)
    isa.activation(size, OPERATORS["abs"], x)
    isa.tensor_scalar(large, size, OPERATORS["greater"], 1.0)
    isa.reciprocal(inverse, size)
    isa.tensor_copy_predicated(size, inverse, large)
    angle, rest, sign = tile(x.shape, float32), tile(x.shape, float32), tile(x.shape, float32)
    isa.activation(angle, OPERATORS["arctan"], size)
    isa.tensor_scalar(rest, angle, OPERATORS["subtract"], _HALF_PI, reverse0=True)
    isa.tensor_copy_predicated(angle, rest, large)
    isa.activation(sign, OPERATORS["sign"], x)
    dst = result_tile("arctan", x, dtype)
    isa.tensor_tensor(dst, angle, sign, OPERATORS["multiply"])
    return dst


def _reduce_angle(x: NkiTensor, period: float) -> tuple[NkiTensor, NkiTensor]:
    """``x`` less the nearest multiple of ``period`` as a float32 tile, and that multiple as an int32 tile."""
    periods, angle = tile(x.shape, int32), tile(x.shape, float32)
    isa.tensor_scalar(periods, x, OPERATORS["multiply"], 1 / period)
    rest = x
    for part in _parts(period):
        isa.scalar_tensor_tensor(angle, periods, OPERATORS["multiply"], -part, OPERATORS["add"], rest)
        rest = angle
    # 0 * x adds 0, or NaN if x is NaN or infinite.
    isa.scalar_tensor_tensor(angle, x, OPERATORS["multiply"], 0.0, OPERATORS["add"], angle)
    return angle, periods


def _complement(angle: NkiTensor) -> NkiTensor:
    """``pi / 2 - |angle|``, exact near 0: pi / 2 in two parts."""
    away, dst = tile(angle.shape, float32), tile(angle.shape, float32)
    isa.tensor_scalar(away, angle, OPERATORS["abs"], 0.0, op1=OPERATORS["multiply"], operand1=-1.0)
    isa.tensor_scalar(dst, away, OPERATORS["add"], _HALF_PI, op1=OPERATORS["add"], operand1=_HALF_PI_REST)
    return dst


def _sine(what: str, angle: NkiTensor, x: NkiTensor, dtype: object) -> NkiTensor:
    dst = result_tile(what, x, dtype)
    isa.activation(dst, OPERATORS["sin"], angle)
    return dst

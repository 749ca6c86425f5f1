"""floor, ceil and trunc, which no engine has: a conversion to int32 rounds to nearest, comparisons correct it.

From 2^23 on every float32 is an integer: those, infinities and NaN pass through.
"""

from __future__ import annotations

from trnrt.nki.machine.dtypes import float32, int32, uint8
from trnrt.nki.machine.operators import OPERATORS
from trnrt.nki.sim import isa
from trnrt.nki.sim.lang.common import cast, copy_tile, require_tile, result_dtype, tile
from trnrt.nki.sim.tensor import NkiTensor

__all__ = ["ceil", "floor", "trunc"]

_ALL_INTEGERS = float(2**23)


def floor(x: NkiTensor, dtype: object = None) -> NkiTensor:
    """The largest integers that are at most ``x``."""
    return _round("floor", x, dtype)


def ceil(x: NkiTensor, dtype: object = None) -> NkiTensor:
    """The smallest integers that are at least ``x``."""
    return _round("ceil", x, dtype)


def trunc(x: NkiTensor, dtype: object = None) -> NkiTensor:
    """``x`` without its fraction."""
    return _round("trunc", x, dtype)


def nearest(x: NkiTensor) -> NkiTensor:
    """The nearest integers, of two that are equally near the even one, as float32; up to 2^31."""
    return copy_tile(copy_tile(x, int32), float32)


def _round(what: str, x: NkiTensor, dtype: object) -> NkiTensor:
    x = require_tile(what, x)
    wanted = result_dtype(what, dtype, x.dtype)
    if not x.dtype.is_float:
        return copy_tile(x, wanted)
    given = copy_tile(x, float32)
    rounded = {"floor": _round_down, "ceil": _round_up, "trunc": _truncate}[what](given)
    has_fraction = tile(x.shape, uint8)
    isa.tensor_scalar(has_fraction, given, OPERATORS["abs"], 0.0, op1=OPERATORS["less"], operand1=_ALL_INTEGERS)
    isa.tensor_copy_predicated(given, rounded, has_fraction)
    return cast(given, wanted)


def _correct(x: NkiTensor, too_far: str, correction: str) -> NkiTensor:
    """The nearest integers, one less or more where comparing them with ``x`` finds them too far."""
    rounded, beyond = nearest(x), tile(x.shape, float32)
    isa.tensor_tensor(beyond, rounded, x, OPERATORS[too_far])
    isa.tensor_tensor(rounded, rounded, beyond, OPERATORS[correction])
    return rounded


def _round_down(x: NkiTensor) -> NkiTensor:
    return _correct(x, "greater", "subtract")


def _round_up(x: NkiTensor) -> NkiTensor:
    return _correct(x, "less", "add")


def _truncate(x: NkiTensor) -> NkiTensor:
    """Round toward zero."""
    down, up, negative = _round_down(x), _round_up(x), tile(x.shape, uint8)
    isa.tensor_scalar(negative, x, OPERATORS["less"], 0.0)
    isa.tensor_copy_predicated(down, up, negative)
    return down

"""Rules of selections, iota and match and replace, each broken once."""

from __future__ import annotations

from typing import Any

from rule_cases import case
from simulating import tile, zeros

from trnrt.nki import nisa, nl

LEAST = -3.4028235e38


def range_arguments() -> dict[str, Any]:
    """Legal arguments of range_select."""
    bounds = {"bound0": zeros(8, 1), "bound1": zeros(8, 1)}
    return {"dst": tile(8, 4), "on_true_tile": zeros(8, 4), "comp_op0": nl.greater, "comp_op1": nl.less, **bounds}


@case("range-comparison", "comp_op1=nl.not_equal", "nl.equal or nl.less or")
def _(broken: bool) -> None:
    args = range_arguments() | {"comp_op1": nl.not_equal if broken else nl.equal}
    nisa.range_select(**args)  # here


@case("range-dtype", "on_true_tile is int16", "must be float32, tfloat32, bfloat16")
def _(broken: bool) -> None:
    args = range_arguments() | {"on_true_tile": zeros(8, 4, dtype=nl.int16 if broken else nl.bfloat16)}
    nisa.range_select(**args)  # here


@case("range-fill", "on_false_value is -inf", "must be -3.4028234663852886e+38")
def _(broken: bool) -> None:
    nisa.range_select(**range_arguments(), on_false_value=float("-inf") if broken else LEAST)  # here


@case("range-indices", "range_start=16777214 gives indices up to 16777217", "the limit is 16777216")
def _(broken: bool) -> None:
    nisa.range_select(**range_arguments(), range_start=(1 << 24) - (2 if broken else 3))  # here


@case("selected-dtype", "on_true is int32", "int8, int16, uint8, uint16 or bool")
def _(broken: bool) -> None:
    on_true, predicate = zeros(8, 4, dtype=nl.int32 if broken else nl.int16), zeros(8, 4, dtype=nl.uint8)
    nisa.select_reduce(tile(8, 4), predicate, on_true, 0.0)  # here


@case("selecting-dtype", "predicate is uint32", "int8, uint8, int16 or uint16")
def _(broken: bool) -> None:
    predicate = zeros(8, 4, dtype=nl.uint32 if broken else nl.uint16)
    nisa.select_reduce(tile(8, 4), predicate, zeros(8, 4), 0.0)  # here


@case("reduced-dtype", "reduce_res is int32", "must be float32, tfloat32, bfloat16")
def _(broken: bool) -> None:
    result, command = tile(8, 1, dtype=nl.int32 if broken else nl.bfloat16), nisa.reduce_cmd.reset_reduce
    nisa.select_reduce(tile(8, 4), zeros(8, 4, dtype=nl.uint8), zeros(8, 4), 0.0, result, command)  # here


@case("pattern-form", "[1, 0]", "num of [1, 0] must be at least 1")
def _(broken: bool) -> None:
    nisa.iota(tile(8, 4, dtype=nl.int32), [[1, 0 if broken else 4]])  # here


@case("pattern-size", "has 8 values, dst 4 elements")
def _(broken: bool) -> None:
    nisa.iota(tile(8, 4, dtype=nl.int32), [[1, 2], [1, 4 if broken else 2]])  # here


@case("iota-fit", "dst is uint8, the values go from 0 to 256", "take a wider dtype")
def _(broken: bool) -> None:
    nisa.iota(tile(8, 2, dtype=nl.uint8), [[256 if broken else 255, 2]])  # here


@case("pattern-integers", "offset is 0.5", "must be an int32")
def _(broken: bool) -> None:
    offset: Any = 0.5 if broken else -(1 << 31)
    nisa.iota(tile(8, 4, dtype=nl.int32), [[1, 4]], offset)  # here


@case("affine-comparison", "cmp_op=nl.add", "not a comparison")
def _(broken: bool) -> None:
    nisa.affine_select(tile(8, 4), [[1, 4]], 1, zeros(8, 4), 0.0, nl.add if broken else nl.less)  # here


@case("match-size", "vals holds 7 elements", "must hold 8")
def _(broken: bool) -> None:
    nisa.nc_match_replace8(tile(8, 16), zeros(8, 16), zeros(8, 7 if broken else 8), 0.0)  # here


@case("match-dtype", "dst_idx is int32", "uint16 or uint32")
def _(broken: bool) -> None:
    indices = tile(8, 8, dtype=nl.int32 if broken else nl.uint16)
    nisa.nc_match_replace8(tile(8, 16), zeros(8, 16), zeros(8, 8), 0.0, indices)  # here

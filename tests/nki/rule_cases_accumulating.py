"""Rules of the accumulating instructions, each broken once."""

from __future__ import annotations

from typing import Any

from rule_cases import case
from simulating import tile, zeros

from trnrt.nki import nisa, nl


@case("from-v3", "trn1 has a NeuronCore-v2", "v3", target="trn1")
def _(broken: bool) -> None:
    x, low, high = zeros(8, 4), zeros(8, 1), zeros(8, 1)
    if broken:
        nisa.range_select(tile(8, 4), x, nl.greater_equal, nl.less, low, high)  # here


@case("from-v4", "trn2 has a NeuronCore-v3", "v4")
def _(broken: bool) -> None:
    if broken:
        nisa.exponential(tile(8, 4), zeros(8, 4))  # here


@case("reduce-command", "reduce_cmd=reduce_cmd.idle", "reset_reduce or reduce or load_reduce")
def _(broken: bool) -> None:
    command = nisa.reduce_cmd.idle if broken else nisa.reduce_cmd.reset_reduce
    nisa.tensor_scalar_reduce(tile(8, 4), zeros(8, 4), nl.add, 1.0, nl.add, tile(8, 1), reduce_cmd=command)  # here


@case("accumulated-operator", "reduce_op=nl.subtract", "nl.add or nl.multiply or nl.maximum or nl.minimum")
def _(broken: bool) -> None:
    op = nl.subtract if broken else nl.minimum
    nisa.tensor_scalar_reduce(tile(8, 4), zeros(8, 4), nl.add, 1.0, op, tile(8, 1))  # here


@case("loaded-value", "reduce_init is None", "reduce_cmd.load_reduce needs it")
def _(broken: bool) -> None:
    options: dict[str, Any] = {"reduce_cmd": nisa.reduce_cmd.load_reduce, "reduce_init": None if broken else 1.0}
    nisa.tensor_scalar_reduce(tile(8, 4), zeros(8, 4), nl.add, 1.0, nl.add, tile(8, 1), **options)  # here


@case("float32-columns", "imm0 is bfloat16", "must be float32")
def _(broken: bool) -> None:
    imm0 = zeros(8, 1, dtype=nl.bfloat16 if broken else nl.float32)
    nisa.tensor_scalar_cumulative(tile(8, 4), zeros(8, 4), nl.add, nl.add, imm0)  # here


@case("reduce-reverse", "reverse0=True", "must be False")
def _(broken: bool) -> None:
    nisa.tensor_scalar_reduce(tile(8, 4), zeros(8, 4), nl.add, 1.0, nl.add, tile(8, 1), reverse0=broken)  # here


@case("cumulative-dtypes", "src is int32", "must be float32, bfloat16")
def _(broken: bool) -> None:
    src = zeros(8, 4, dtype=nl.int32 if broken else nl.int16)
    nisa.tensor_scalar_cumulative(tile(8, 4), src, nl.add, nl.add, 1.0)  # here


@case("exponential-dtypes", "src is tfloat32", "must be float8_e4m3", target="trn3")
def _(broken: bool) -> None:
    nisa.exponential(tile(8, 4), zeros(8, 4, dtype=nl.tfloat32 if broken else nl.uint32))  # here


@case("exponential-dimensions", "src has 5 dimensions", "the limit is 4", target="trn3")
def _(broken: bool) -> None:
    shape = (8, 1, 2, 1, 2) if broken else (8, 2, 1, 2)
    nisa.exponential(tile(8, 4), zeros(*shape))  # here


@case("activate2-operators", "op0=nl.add, op1=nl.multiply", "(multiply, add)", target="trn3")
def _(broken: bool) -> None:
    ops = (nl.add, nl.multiply) if broken else (nl.multiply, nl.add)
    nisa.activate2(tile(8, 4), nl.gelu, zeros(8, 4), 1.0, 2.0, *ops)  # here


@case("activate2-function", "op=nl.maximum", "not an activation function", target="trn3")
def _(broken: bool) -> None:
    op = nl.maximum if broken else nl.prelu
    nisa.activate2(tile(8, 4), op, zeros(8, 4), 1.0, 2.0, nl.multiply, nl.add, 0.1)  # here


@case("activate2-reverse", "reverse1=True", "op1 is nl.bypass", target="trn3")
def _(broken: bool) -> None:
    op1 = nl.bypass if broken else nl.subtract
    nisa.activate2(tile(8, 4), nl.gelu, zeros(8, 4), 1.0, 2.0, nl.multiply, op1, reverse1=True)  # here


@case("activate2-immediates", "imm0 is float32, imm1 bfloat16", "must be equal", target="trn3")
def _(broken: bool) -> None:
    imm0, imm1 = zeros(8, 1), zeros(8, 1, dtype=nl.bfloat16 if broken else nl.float32)
    nisa.activate2(tile(8, 4), nl.gelu, zeros(8, 4), imm0, imm1, nl.multiply, nl.add)  # here

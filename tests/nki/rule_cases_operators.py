"""Rules of operators, each broken once."""

from __future__ import annotations

from rule_cases import case
from simulating import tile, zeros

from trnrt.nki import nisa, nl


@case("arithmetic-operator", "op0=nl.bitwise_and", "must be an arithmetic one")
def _(broken: bool) -> None:
    dst, x, one = tile(8, 4, dtype=nl.int8), zeros(8, 4, dtype=nl.int8), tile(8, 1)
    op = nl.bitwise_and if broken else nl.multiply
    nisa.tensor_scalar_reduce(dst, x, op, 3, nl.add, one)  # here


@case("operator-generation", "op=nl.abs_max", "trn2", "NeuronCore-v4")
def _(broken: bool) -> None:
    op = nl.abs_max if broken else nl.maximum
    nisa.tensor_tensor(tile(8, 4), zeros(8, 4), zeros(8, 4), op)  # here


@case("bitvec-dtypes", "dst is float32", "must be an integer dtype")
def _(broken: bool) -> None:
    dst, x = tile(8, 4, dtype=nl.float32 if broken else nl.int32), zeros(8, 4, dtype=nl.int32)
    nisa.tensor_tensor(dst, x, x, nl.bitwise_or)  # here


@case("bitvec-sign", "data1 is int8", "32 bits", "sign")
def _(broken: bool) -> None:
    dst, x = tile(8, 4, dtype=nl.int32), zeros(8, 4, dtype=nl.int8 if broken else nl.uint8)
    nisa.tensor_tensor(dst, x, x, nl.bitwise_or)  # here


@case("one-kind-of-operator", "op0=nl.bitwise_and, op1=nl.add")
def _(broken: bool) -> None:
    dst, x = tile(8, 4, dtype=nl.int32), zeros(8, 4, dtype=nl.int32)
    op1 = nl.add if broken else nl.left_shift
    nisa.tensor_scalar(dst, x, nl.bitwise_and, 7, op1=op1, operand1=1)  # here


@case("bitvec-engine", "engine=scalar", "must be vector", target="trn3")
def _(broken: bool) -> None:
    dst, x = tile(8, 4, dtype=nl.int32), zeros(8, 4, dtype=nl.int32)
    engine = nisa.engine.scalar if broken else nisa.engine.vector
    nisa.tensor_scalar(dst, x, nl.bitwise_and, 7, engine=engine)  # here


@case("bitvec-negate", "negate=True", "op=nl.bitwise_or")
def _(broken: bool) -> None:
    dst, x = tile(8, 1, dtype=nl.int32), zeros(8, 4, dtype=nl.int32)
    nisa.tensor_reduce(dst, nl.bitwise_or, x, 1, negate=broken)  # here


@case("power-engine", "engine=vector with op=nl.power", "must be gpsimd")
def _(broken: bool) -> None:
    engine = nisa.engine.vector if broken else nisa.engine.gpsimd
    nisa.tensor_tensor(tile(8, 4), zeros(8, 4), zeros(8, 4), nl.power, engine)  # here


@case("scan-operators", "op1=nl.abs", "two inputs")
def _(broken: bool) -> None:
    op1 = nl.abs if broken else nl.add
    nisa.tensor_tensor_scan(tile(8, 4), zeros(8, 4), zeros(8, 4), 0.0, nl.multiply, op1)  # here


@case("reciprocal-bias", "op=nl.reciprocal", "on trn1 it must be None", target="trn1")
def _(broken: bool) -> None:
    bias = zeros(8, 1) if broken else None
    nisa.activation(tile(8, 4), nl.reciprocal, zeros(8, 4), bias)  # here

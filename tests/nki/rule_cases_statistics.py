"""Rules of statistics and reductions across partitions, each broken once."""

from __future__ import annotations

from rule_cases import case
from simulating import tile, zeros

from trnrt.nki import nisa, nl


@case("statistics-size", "data holds 513 elements", "the limit is 512")
def _(broken: bool) -> None:
    nisa.bn_stats(tile(8, 6), zeros(8, 513 if broken else 512))  # here


@case("aggregated-size", "data holds 8 elements", "multiple of 3")
def _(broken: bool) -> None:
    nisa.bn_aggr(tile(8, 2), zeros(8, 8 if broken else 9))  # here


@case("partition-reduce-operator", "op=nl.minimum", "nl.add or nl.average or nl.maximum")
def _(broken: bool) -> None:
    nisa.tensor_partition_reduce(tile(1, 4), nl.minimum if broken else nl.average, zeros(8, 4))  # here


@case("partition-reduce-size", "dst is 8 x 4", "leaves 1 x 4")
def _(broken: bool) -> None:
    nisa.tensor_partition_reduce(tile(8 if broken else 1, 4), nl.add, zeros(8, 4))  # here


@case("sequence-shape", "dst holds 8 elements", "must hold 16")
def _(broken: bool) -> None:
    nisa.sequence_bounds(tile(1, 1 if broken else 2, 8), zeros(1, 8))  # here


@case("sequence-dtype", "dst is int16", "must be float32 or int32")
def _(broken: bool) -> None:
    nisa.sequence_bounds(tile(1, 2, 8, dtype=nl.int16 if broken else nl.int32), zeros(1, 8))  # here

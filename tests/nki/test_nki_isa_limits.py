"""The limits of the accumulating, statistical and selecting instructions, from both sides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from simulating import tile, traced, zeros

from trnrt.errors import KernelError
from trnrt.nki import nisa, nl

COMMANDS = {
    "tensor_scalar_reduce": ("reset_reduce", "reduce", "load_reduce"),
    "tensor_scalar_cumulative": ("reset_reduce", "reduce", "load_reduce"),
    "exponential": ("idle", "reset_reduce", "reduce", "load_reduce"),
    "range_select": ("idle", "reset", "reset_reduce", "reduce"),
    "select_reduce": ("idle", "reset_reduce", "reduce"),
    "activate2": ("idle", "reset", "reset_reduce", "reduce"),
}
REDUCTIONS = {
    "tensor_scalar_reduce": ("reduce_op", ("add", "multiply", "maximum", "minimum")),
    "tensor_scalar_cumulative": ("op1", ("add", "subtract", "multiply", "maximum", "minimum")),
    "range_select": ("reduce_op", ("maximum",)),
    "select_reduce": ("reduce_op", ("maximum",)),
    "activate2": ("reduce_op", ("add", "maximum", "minimum", "abs_max", "abs_min")),
}
BINARY = (
    "add",
    "subtract",
    "multiply",
    "maximum",
    "minimum",
    "abs_max",
    "abs_min",
    "logical_and",
    "power",
    "bitwise_or",
)


def call(function: str, **options: Any) -> None:
    """A function of nisa on 8 x 4 tiles, legal unless ``options`` make it illegal."""
    dst, x = {"dst": tile(8, 4)}, zeros(8, 4)
    legal: dict[str, dict[str, Any]] = {
        "tensor_scalar_reduce": {"data": x, "op0": nl.add, "operand0": 1.0, "reduce_op": nl.add},
        "tensor_scalar_cumulative": {"src": x, "op0": nl.add, "op1": nl.add, "imm0": 1.0},
        "tensor_tensor_scan": {"data0": x, "data1": x, "initial": 0.0, "op0": nl.add, "op1": nl.add},
        "exponential": {"src": x},
        "activate2": {"op": nl.exp, "data": x, "imm0": 1.0, "imm1": 0.0, "op0": nl.multiply, "op1": nl.add},
        "range_select": {
            "on_true_tile": x,
            "comp_op0": nl.greater,
            "comp_op1": nl.less,
            "bound0": zeros(8, 1),
            "bound1": zeros(8, 1),
        },
        "select_reduce": {"predicate": zeros(8, 4, dtype=nl.uint8), "on_true": x, "on_false": 0.0},
    }
    getattr(nisa, function)(**(dst | legal[function] | options))


def refused(body: Callable[[], object], words: str, target: str = "trn3") -> None:
    with pytest.raises(KernelError, match=words):
        traced(body, target=target)


@pytest.mark.parametrize("function", COMMANDS)
@pytest.mark.parametrize("command", list(nisa.reduce_cmd), ids=lambda command: command.name)
def test_what_registers_can_be_told(function: str, command: nisa.reduce_cmd) -> None:
    options: dict[str, Any] = {"reduce_cmd": command}
    if command is nisa.reduce_cmd.load_reduce and function in ("tensor_scalar_reduce", "exponential"):
        options["reduce_init"] = 2.0
    if command is nisa.reduce_cmd.load_reduce and function == "tensor_scalar_cumulative":
        options["imm1"] = 2.0
    if function == "activate2":
        options["reduce_op"] = nl.add
    if command.name in COMMANDS[function]:
        traced(lambda: call(function, **options), target="trn3")
    else:
        refused(lambda: call(function, **options), f"reduce_cmd={command!r}; it must be")


@pytest.mark.parametrize("function", REDUCTIONS)
@pytest.mark.parametrize("op", BINARY)
def test_what_reduces(function: str, op: str) -> None:
    arg, legal = REDUCTIONS[function]
    options = {arg: getattr(nl, op), "reduce_cmd": nisa.reduce_cmd.reset_reduce}
    if op in legal:
        traced(lambda: call(function, **options), target="trn3")
    else:
        refused(lambda: call(function, **options), f"{arg}=nl.{op}")


def test_loading_needs_a_value_and_only_loading_has_one() -> None:
    load, reset = nisa.reduce_cmd.load_reduce, nisa.reduce_cmd.reset_reduce
    traced(lambda: call("tensor_scalar_reduce", reduce_cmd=load, reduce_init=zeros(8, 1)))
    refused(lambda: call("tensor_scalar_reduce", reduce_cmd=load), "reduce_init is None")
    refused(lambda: call("tensor_scalar_reduce", reduce_init=0.0), "reduce_init is 0.0 with reduce_cmd")
    refused(lambda: call("tensor_scalar_cumulative", reduce_cmd=load), "imm1 is None")
    traced(lambda: call("tensor_scalar_cumulative", imm1=1.0))
    traced(lambda: call("exponential", reduce_cmd=reset, reduce_init=0.0), target="trn3")
    refused(lambda: call("exponential", reduce_cmd=reset, reduce_init=zeros(8, 1)), "reduce_init is .* only")
    refused(lambda: call("activate2", reduce_cmd=reset), "reduce_op=None; it must be nl.add or")


@pytest.mark.parametrize(("function", "arg"), [("tensor_scalar_reduce", "operand0"), ("exponential", "max_value")])
def test_columns(function: str, arg: str) -> None:
    traced(lambda: call(function, **{arg: zeros(8, 1)}), target="trn3")
    refused(lambda: call(function, **{arg: zeros(8, 2)}), f"{arg} holds 2 elements")
    refused(lambda: call(function, **{arg: zeros(4, 1)}), f"{arg} spans 4 partitions")
    refused(lambda: call(function, **{arg: zeros(8, 1, dtype=nl.bfloat16)}), f"{arg} is bfloat16")


@pytest.mark.parametrize(
    "function", ["tensor_scalar_reduce", "exponential", "activate2", "range_select", "select_reduce"]
)
def test_reductions_go_to_a_column(function: str) -> None:
    options: dict[str, Any] = {"reduce_cmd": nisa.reduce_cmd.reset_reduce}
    options |= {"reduce_op": nl.maximum} if function == "activate2" else {}
    traced(lambda: call(function, reduce_res=tile(8, 1, dtype=nl.bfloat16), **options), target="trn3")
    refused(lambda: call(function, reduce_res=tile(8, 2), **options), "reduce_res holds 2 elements a partition")
    refused(lambda: call(function, reduce_res=tile(4, 1), **options), "reduce_res spans 4 partitions")


def test_unary_operators_take_no_operand() -> None:
    traced(lambda: call("tensor_scalar_reduce", op0=nl.abs, operand0=None))
    traced(lambda: call("tensor_scalar_reduce", op0=nl.abs, operand0=0))
    refused(lambda: call("tensor_scalar_reduce", op0=nl.abs), "operand0 is 1.0; it must be None or 0")
    refused(lambda: call("tensor_scalar_reduce", operand0=None), "operand0 is None; op0=nl.add needs one")


@pytest.mark.parametrize("op", ["abs_max", "abs_min", "square", "relu"])
def test_operators_of_trn3(op: str) -> None:
    operand = 0.0 if op in ("square", "relu") else 2.0
    for target in ("trn1", "trn2"):
        refused(lambda: call("tensor_scalar_reduce", op0=getattr(nl, op), operand0=operand), f"op0=nl.{op}", target)
    traced(lambda: call("tensor_scalar_reduce", op0=getattr(nl, op), operand0=operand), target="trn3")


@pytest.mark.parametrize("function", ["exponential", "activate2"])
@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_instructions_of_trn3(function: str, target: str) -> None:
    refused(lambda: call(function), f"{target} has a NeuronCore", target)


@pytest.mark.parametrize("op", ["abs", "bitwise_or", "invert", "copy"])
def test_scans_take_arithmetic_operators_of_two_inputs(op: str) -> None:
    for arg in ("op0", "op1"):
        refused(lambda arg=arg: call("tensor_tensor_scan", **{arg: getattr(nl, op)}), f"{arg}=nl.{op} is not")  # type: ignore[misc]


def test_range_select_keeps_to_its_range() -> None:
    traced(lambda: call("range_select", range_start=-4))
    refused(lambda: call("range_select", range_start=1.0), "range_start is 1.0; it must be an integer")
    refused(lambda: call("range_select", range_start=-(1 << 24) - 1), "the limit is 16777216")
    refused(lambda: call("range_select", on_false_value=0.0), "on_false_value is 0.0; it must be")
    refused(lambda: call("range_select", on_false_value=zeros(8, 1)), "on_false_value is .* view")
    refused(lambda: call("range_select", comp_op0=nl.add), "comp_op0=nl.add")
    refused(lambda: call("range_select", bound0=0.0), "bound0 is a float; it must be a tensor")
    refused(lambda: call("range_select", bound1=zeros(8, 1, dtype=nl.int32)), "bound1 is int32; it must be float32")


def test_sizes_of_statistics() -> None:
    traced(lambda: nisa.bn_stats(tile(8, 2, 3), zeros(8, 4, 128)))
    refused(lambda: nisa.bn_stats(tile(8, 5), zeros(8, 16)), "dst holds 5 elements a partition; it must hold 6")
    refused(lambda: nisa.bn_stats(tile(4, 6), zeros(8, 16)), "data spans 8 partitions, dst 4")
    refused(lambda: nisa.bn_aggr(tile(8, 6), zeros(8, 6)), "dst holds 6 elements a partition; it must hold 2")
    refused(lambda: nisa.sequence_bounds(tile(2, 8), zeros(2, 4)), "spans 2 partitions; it must span 1")
    refused(lambda: nisa.tensor_partition_reduce(tile(1, 3), nl.add, zeros(8, 4)), "dst is 1 x 3")


def test_bits_across_partitions_are_integers() -> None:
    refused(lambda: nisa.tensor_partition_reduce(tile(1, 4), nl.bitwise_or, zeros(8, 4)), "dst is float32; nl.bitwise")


def test_numbers_for_bitvec_operators() -> None:
    def shift(places: Any) -> None:
        nisa.tensor_scalar(tile(8, 4, dtype=nl.int32), zeros(8, 4, dtype=nl.int32), nl.right_shift, places)

    for legal in (3, 3.0, -1, (1 << 32) - 1, zeros):
        traced(lambda legal=legal: shift(zeros(8, 1, dtype=nl.uint32) if legal is zeros else legal))
    refused(lambda: shift(1.5), "operand0 is 1.5; nl.right_shift works on bit patterns")
    refused(lambda: shift(1 << 32), "operand0 is 4294967296")
    refused(lambda: shift(zeros(8, 1)), "operand0 is float32; nl.right_shift works on bit patterns")


def test_bitvec_engines() -> None:
    def body(engine: nisa.engine) -> Callable[[], object]:
        return lambda: nisa.tensor_scalar(
            tile(8, 4, dtype=nl.int32), zeros(8, 4, dtype=nl.int32), nl.bitwise_or, 1, engine=engine
        )

    traced(body(nisa.engine.vector))
    refused(body(nisa.engine.gpsimd), "engine=gpsimd")


def test_sizes_of_matches() -> None:
    def body(size: int = 16, dst: int = 16, vals: tuple[int, ...] = (8,), places: int = 8) -> Callable[[], object]:
        def replace() -> None:
            indices = tile(4, places, dtype=nl.uint32)
            nisa.nc_match_replace8(tile(4, dst), zeros(4, size), zeros(4, *vals), 0.0, indices)

        return replace

    traced(body(16384, 16384))
    traced(body(1, 1))
    traced(body(vals=(2, 4)))
    refused(body(16385, 16385), "data holds 16385 elements a partition; the limit is 16384")
    refused(body(16, 15), "dst holds 15 elements a partition; it must hold 16")
    refused(body(places=16), "dst_idx holds 16 elements")
    refused(body(vals=(2, 2, 2)), "vals has 4 dimensions; the limit is 3")

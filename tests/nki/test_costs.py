"""``Operation.cycles``: the documented formulas, the published measurements, and what takes none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from simulating import TARGETS, tile, traced

from trnrt.nki import nisa, nl
from trnrt.nki.machine import costs
from trnrt.nki.machine.program import Engine, Instruction
from trnrt.nki.machine.targets import get_target
from trnrt.nki.sim.instructions import OPERATIONS

SEQUENCER = {"loop_begin", "loop_end", "register_move", "register_load", "register_store", "core_barrier"}
SEQUENCER |= {"scalar_load", "scalar_store", "scalar_arithmetic"}
MODELLED = {  # in timing/
    *("nc_matmul", "dma_copy", "dma_transpose", "dma_compute", "sendrecv"),
    *("device_print", "capture", "print"),
}

Body = Callable[[], Any]
HALF, FULL = nl.bfloat16, nl.float32
P = 32


def last(body: Body, target: str = "trn2") -> Instruction:
    """The last instruction of a body."""
    return traced(body, target=target).instructions[-1]


def cost(body: Body, target: str = "trn2") -> float:
    instruction = last(body, target)
    return instruction.operation.cycles(instruction, get_target(target))


def sbuf(n: int = 512, dtype: object = FULL) -> nl.NkiTensor:
    return tile(P, n, dtype=dtype)


def psum(n: int = 512, dtype: object = FULL) -> nl.NkiTensor:
    return tile(P, n, dtype=dtype, buffer=nl.psum)


def strided(n: int, step: int, dtype: object = FULL) -> nl.NkiTensor:
    return tile(P, n * step, dtype=dtype)[:, ::step]


def copy(src: Callable[[], nl.NkiTensor], dst: Callable[[], nl.NkiTensor], engine: Any = nisa.engine.vector) -> Body:
    return lambda: nisa.tensor_copy(dst=dst(), src=src(), engine=engine)


def scale(src: Callable[[], nl.NkiTensor], dst: Callable[[], nl.NkiTensor], by: Callable[[], Any], **more: Any) -> Body:
    return lambda: nisa.tensor_scalar(dst=dst(), data=src(), op0=nl.multiply, operand0=by(), **more)


def add(one: Callable[[], nl.NkiTensor], other: Callable[[], nl.NkiTensor], dst: Any = sbuf, op: Any = nl.add) -> Body:
    return lambda: nisa.tensor_tensor(dst=dst(), data1=one(), data2=other(), op=op, engine=nisa.engine.vector)


def half() -> nl.NkiTensor:
    return sbuf(dtype=HALF)


def half_psum() -> nl.NkiTensor:
    return psum(dtype=HALF)


def half_strided() -> nl.NkiTensor:
    return strided(512, 2, HALF)


def column() -> nl.NkiTensor:
    return sbuf(1)


def number() -> float:
    return 2.0


VECTOR_RATES = [
    # (source, destination, cycles of tensor_copy on trn1, trn2, trn3)
    (sbuf, sbuf, (512, 256, 256)),  # measured
    (psum, sbuf, (512, 512, 512)),  # measured
    (sbuf, psum, (512, 512, 512)),
    (half, half, (512, 128, 128)),
    (half, half_strided, (512, 256, 256)),
    (half_psum, half, (512, 256, 256)),
    (half, half_psum, (512, 256, 256)),
    (half_psum, half_strided, (512, 512, 512)),
    (half_psum, half_psum, (512, 512, 512)),
    (half, sbuf, (512, 256, 256)),
    (half_psum, sbuf, (512, 512, 512)),
    (lambda: strided(512, 2), sbuf, (512, 512, 512)),
    (lambda: sbuf(dtype=nl.int32), lambda: sbuf(dtype=nl.int32), (512, 512, 512)),
]


@pytest.mark.parametrize("number_of_target", range(3))
@pytest.mark.parametrize(("src", "dst", "cycles"), VECTOR_RATES)
def test_the_vector_engines_modes(src: Any, dst: Any, cycles: tuple[int, ...], number_of_target: int) -> None:
    target = TARGETS[number_of_target]
    assert cost(copy(src, dst), target) == cycles[number_of_target]
    assert cost(scale(src, dst, number), target) == cycles[number_of_target]


@pytest.mark.parametrize("target", TARGETS)
def test_a_column_operand_is_read_first(target: str) -> None:
    plain = cost(scale(sbuf, sbuf, number), target)
    assert cost(scale(sbuf, sbuf, column), target) == plain + costs.COLUMN_CYCLES
    assert cost(scale(sbuf, sbuf, column, op1=nl.add, operand1=1.0), target) == plain + costs.COLUMN_CYCLES
    both = scale(sbuf, sbuf, number, op1=nl.add, operand1=1.0)
    assert cost(both, target) == plain  # one operator costs as much as two


@pytest.mark.parametrize(
    ("src", "target", "cycles"),
    [(sbuf, "trn2", 512), (half, "trn2", 512), (sbuf, "trn3", 512), (half, "trn3", 256), (half_psum, "trn3", 256)],
)
def test_the_scalar_engine_takes_a_cycle_an_element(src: Any, target: str, cycles: int) -> None:
    dst = half if src in (half, half_psum) else sbuf
    assert cost(copy(src, dst, nisa.engine.scalar), target) == cycles
    assert cost(lambda: nisa.activation(dst=dst(), op=nl.exp, data=src()), target) == 512  # whatever the dtype
    if target == "trn3":
        assert cost(scale(src, dst, column, engine=nisa.engine.scalar), target) == cycles


@pytest.mark.parametrize(
    ("one", "other", "dst", "op", "cycles"),
    [
        (sbuf, sbuf, sbuf, nl.add, (1024, 512, 512)),  # measured
        (sbuf, psum, sbuf, nl.add, (512, 512, 512)),
        (psum, sbuf, sbuf, nl.add, (512, 512, 512)),
        (half, half, half, nl.add, (512, 256, 256)),
        (half, half, half, nl.maximum, (1024, 256, 256)),
        (half, half, sbuf, nl.add, (1024, 512, 512)),
        (half_strided, half, half, nl.add, (1024, 256, 256)),
        (half_psum, half, half, nl.add, (512, 512, 512)),
    ],
)
def test_tensor_tensor(one: Any, other: Any, dst: Any, op: Any, cycles: tuple[int, ...]) -> None:
    body = add(one, other, dst, op)
    assert tuple(cost(body, target) for target in TARGETS) == cycles


def test_wide_strides_halve_the_pace_of_trn1_only() -> None:
    """Over 16 bytes: 5 float32, 9 of 16 bits."""
    for dtype, fits in ((FULL, 4), (HALF, 8)):
        near, far = (copy(partial(strided, 64, step, dtype), partial(sbuf, 64, dtype)) for step in (fits, fits + 1))
        assert (cost(near, "trn1"), cost(far, "trn1")) == (64, 128)
        assert cost(near, "trn2") == cost(far, "trn2")
    into = copy(lambda: sbuf(64), lambda: strided(64, 5))
    assert cost(into, "trn1") == 128
    from_psum = copy(lambda: tile(P, 320, buffer=nl.psum)[:, ::5], lambda: sbuf(64))
    assert cost(from_psum, "trn1") == 128
    two = add(lambda: strided(64, 5), lambda: sbuf(64), lambda: sbuf(64))
    assert cost(two, "trn1") == 2 * 2 * 64


def test_a_dimension_of_one_has_no_stride() -> None:
    """The innermost dimension that has a second element counts."""
    far = copy(lambda: tile(P, 64, 5)[:, :, 0:1], lambda: tile(P, 64, 1))
    assert cost(far, "trn1") == 128
    inner = copy(lambda: tile(P, 64, 8)[:, :, 0:4], lambda: tile(P, 64, 4))
    assert cost(inner, "trn1") == 256
    assert cost(copy(lambda: tile(P, 64, 1), lambda: tile(P, 64, 1))) == 32  # contiguous


def act(**options: Any) -> Body:
    return lambda: nisa.activation(dst=sbuf(), op=nl.exp, data=sbuf(), **options)


def stt(op0: Any, op1: Any, n: int = 512, dtype: object = HALF) -> Body:
    return lambda: nisa.scalar_tensor_tensor(
        dst=sbuf(n), data=sbuf(n, dtype), op0=op0, operand0=1.0, op1=op1, operand1=sbuf(n, dtype)
    )


def reduce(op: Any, src: Any, out: object) -> Body:
    return lambda: nisa.tensor_reduce(dst=sbuf(1, out), op=op, data=src(), axis=1)


def chosen(predicate: Any, src: Any) -> Body:
    return lambda: nisa.tensor_copy_predicated(dst=sbuf(), src=src(), predicate=predicate())


def mask(buffer: Any = nl.sbuf) -> nl.NkiTensor:
    return tile(P, 512, dtype=nl.uint8, buffer=buffer)


def selected(**options: Any) -> Body:
    return lambda: nisa.select_reduce(dst=sbuf(), predicate=mask(), on_true=sbuf(), on_false=0.0, **options)


def mapped(n: int, **options: Any) -> Body:
    return lambda: nisa.tensor_scalar_reduce(
        dst=sbuf(n), data=sbuf(n), op0=nl.add, operand0=1.0, reduce_op=nl.add, **options
    )


def ranged() -> None:
    nisa.range_select(
        dst=sbuf(),
        on_true_tile=sbuf(),
        comp_op0=nl.greater,
        comp_op1=nl.less,
        bound0=sbuf(1),
        bound1=sbuf(1),
        reduce_res=sbuf(1),
    )


def gathered(count: int, each: int, dtype: object) -> Body:
    def body() -> None:
        out = tile(P, count * each, dtype=dtype)
        index = tile(P, count // 16, dtype=nl.uint16)
        nisa.local_gather(dst=out, src_buffer=tile(P, 512, dtype=dtype), index=index, num_elem_per_idx=each)

    return body


DOCUMENTED: dict[str, tuple[Body, float]] = {
    "activation": (act(), 512),
    "activation with operands": (lambda: act(bias=column(), scale=column())(), 512),
    "activation_reduce": (
        lambda: nisa.activation_reduce(dst=sbuf(), op=nl.exp, data=sbuf(), reduce_op=nl.add, reduce_res=sbuf(1)),
        512 + 64,
    ),
    "activation_reduce, small": (
        lambda: nisa.activation_reduce(dst=sbuf(8), op=nl.exp, data=sbuf(8), reduce_op=nl.add, reduce_res=sbuf(1)),
        64 + 64,
    ),
    "tensor_scalar_reduce": (lambda: mapped(512, reduce_res=sbuf(1))(), 512 + 64),
    "tensor_scalar_reduce, small": (lambda: mapped(8, reduce_res=sbuf(1))(), 64 + 64),
    "tensor_scalar_reduce into registers": (mapped(512), 512),
    "tensor_tensor_scan": (
        lambda: nisa.tensor_tensor_scan(
            dst=sbuf(), data0=sbuf(), data1=sbuf(), initial=0.0, op0=nl.multiply, op1=nl.add
        ),
        1024,
    ),
    "scalar_tensor_tensor, bfloat16 - s, * bfloat16": (stt(nl.subtract, nl.multiply), 512),
    "scalar_tensor_tensor, odd": (stt(nl.subtract, nl.multiply, n=511), 1022),
    "scalar_tensor_tensor, operators": (stt(nl.multiply, nl.add), 1024),
    "scalar_tensor_tensor, float32": (stt(nl.subtract, nl.multiply, dtype=FULL), 1024),
    "tensor_reduce": (reduce(nl.add, sbuf, FULL), 512),
    "tensor_reduce, bfloat16": (reduce(nl.maximum, half, HALF), 256),
    "tensor_reduce, bfloat16 into float32": (reduce(nl.add, half, FULL), 512),
    "tensor_reduce, other operator": (reduce(nl.minimum, half, HALF), 512),
    "tensor_copy_predicated": (chosen(mask, sbuf), 1024),
    "tensor_copy_predicated, src in PSUM": (chosen(mask, psum), 512),
    "tensor_copy_predicated, predicate in PSUM": (chosen(lambda: mask(nl.psum), sbuf), 512),
    "tensor_copy_predicated, number": (chosen(mask, lambda: 1.0), 512),
    "select_reduce": (selected(), 1024),
    "select_reduce with a result": (
        lambda: selected(reduce_cmd=nisa.reduce_cmd.reset_reduce, reduce_res=sbuf(1))(),
        1024 + 64,
    ),
    "range_select": (ranged, 512),
    "bn_stats": (lambda: nisa.bn_stats(dst=sbuf(6), data=sbuf()), 512),
    "bn_aggr": (lambda: nisa.bn_aggr(dst=sbuf(2), data=sbuf(24)), 13 * 8),
    "max8": (lambda: nisa.max8(dst=sbuf(8), src=sbuf()), 512),
    "nc_find_index8": (
        lambda: nisa.nc_find_index8(dst=sbuf(8, nl.uint32), data=sbuf(), vals=sbuf(8)),
        512,
    ),
    "nc_match_replace8": (lambda: nisa.nc_match_replace8(dst=sbuf(), data=sbuf(), vals=sbuf(8), imm=0.0), 512),
    "nc_stream_shuffle": (lambda: nisa.nc_stream_shuffle(dst=sbuf(), src=sbuf(), shuffle_mask=[0] * 32), 512),
    "dropout": (lambda: nisa.dropout(dst=sbuf(), data=sbuf(), prob=0.5), 512),
    "memset": (lambda: nisa.memset(dst=half(), value=1.0, engine=nisa.engine.vector), 512),
    "memset to zero": (lambda: nisa.memset(dst=half(), value=0, engine=nisa.engine.vector), 256),
    "memset to zero, float32": (lambda: nisa.memset(dst=sbuf(), value=0, engine=nisa.engine.vector), 512),
    "memset, gpsimd": (lambda: nisa.memset(dst=half(), value=0, engine=nisa.engine.gpsimd), 150 + 512),
    "reciprocal, small": (lambda: nisa.reciprocal(dst=sbuf(4), data=sbuf(4)), 21),
    "reciprocal": (lambda: nisa.reciprocal(dst=sbuf(), data=sbuf()), 512 + 64),
    "nc_transpose": (
        lambda: nisa.nc_transpose(dst=tile(32, 32), data=tile(32, 32), engine=nisa.engine.vector),
        64,
    ),
    "nc_transpose, tensor engine": (
        lambda: nisa.nc_transpose(dst=tile(64, P, buffer=nl.psum), data=sbuf(64), engine=nisa.engine.tensor),
        0,  # the tensor engine's model says it
    ),
    "iota": (lambda: nisa.iota(dst=sbuf(dtype=nl.int32), pattern=[[1, 512]]), 150 + 512),
    "affine_select": (
        lambda: nisa.affine_select(
            dst=sbuf(), pattern=[[1, 512]], channel_multiplier=1, on_true_tile=sbuf(), on_false_value=0.0
        ),
        150 + 512,
    ),
    "tensor_copy, gpsimd": (copy(sbuf, sbuf, nisa.engine.gpsimd), 150 + 512),
    "tensor_scalar, gpsimd": (
        lambda: nisa.tensor_scalar(dst=sbuf(), data=sbuf(), op0=nl.rsqrt, operand0=0.0, engine=nisa.engine.gpsimd),
        150 + 512,
    ),
    "tensor_tensor, gpsimd": (
        lambda: nisa.tensor_tensor(dst=sbuf(), data1=sbuf(), data2=sbuf(), op=nl.power),
        150 + 2 * 512,
    ),
    "local_gather": (gathered(64, 1, FULL), 150 + 64 * (28 + 4) / 4),
    "local_gather, 16 bits": (gathered(64, 4, HALF), 150 + 256 * (28 + 16) / 16 / 2),
    "topk": (
        lambda: nisa.topk(val_dst=sbuf(8, HALF), idx_dst=sbuf(8, nl.uint32), src=sbuf(4, HALF), n=64),
        4 * 64 + 8,
    ),
    "rng": (lambda: nisa.rng(dst=sbuf(dtype=nl.uint32)), 512),
}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_documented_formulas(name: str) -> None:
    body, cycles = DOCUMENTED[name]
    assert cost(body) == cycles


@pytest.mark.parametrize(
    ("body", "cycles"),
    [
        (lambda: nisa.exponential(dst=sbuf(), src=sbuf()), 128),
        (
            lambda: nisa.exponential(
                dst=sbuf(), src=sbuf(), reduce_res=sbuf(1), reduce_cmd=nisa.reduce_cmd.reset_reduce
            ),
            128 + 64,
        ),
        (lambda: nisa.rng(dst=sbuf(dtype=nl.uint32)), 128),
        (lambda: nisa.rand2(dst=sbuf(), min=0.0, max=1.0), 128),
    ],
)
def test_trn3_computes_four_elements_a_cycle(body: Body, cycles: float) -> None:
    assert cost(body, "trn3") == cycles


def moved_by_a_tile() -> None:
    at = tile(1, 1, dtype=nl.uint32)
    nisa.memset(dst=at, value=0)
    nisa.tensor_copy(
        dst=tile(P, 64), src=tile(P, 512).ap([[512, P], [1, 64]], scalar_offset=at), engine=nisa.vector_engine
    )


def test_a_run_time_address_takes_600_cycles() -> None:
    assert cost(moved_by_a_tile) == 600


# Nanoseconds from an instruction's start to its end, as public profiles show: trnrt/calibration/measurements.json.
TENSOR_TENSOR = (64, 512, 2000)
MEASURED: dict[str, tuple[Body, str, float]] = {
    **{
        f"tensor_tensor {n}, {target}": (
            add(partial(sbuf, n), partial(sbuf, n), partial(sbuf, n)),
            target,
            fixed + slope * n,
        )
        for target, fixed, slope in (("trn1", 213.5, 1.8035), ("trn2", 158.3, 1 / 0.96))
        for n in TENSOR_TENSOR
    },
    "activation Copy from PSUM": (
        lambda: nisa.activation(dst=sbuf(), op=nl.copy, data=psum()),
        "trn2",
        158.3 + 512 / 1.2,
    ),
    "activation Exp": (act(), "trn2", 280 + 512 / 1.2),
    "activation Exp of 4096": (
        lambda: nisa.activation(dst=tile(4, 4096, dtype=HALF), op=nl.exp, data=tile(4, 4096, dtype=HALF)),
        "trn2",
        3707,
    ),
    "activation of 1": (lambda: nisa.activation(dst=column(), op=nl.copy, data=column()), "trn1", 159),
    "vector copy from PSUM": (copy(psum, sbuf), "trn2", 157 + 512 / 0.96),
    "vector copy in SBUF": (copy(sbuf, sbuf), "trn2", 428.5),
    "tensor_reduce in SBUF": (reduce(nl.add, sbuf, FULL), "trn2", 685),
    "tensor_reduce from PSUM": (reduce(nl.add, psum, FULL), "trn2", 680),
    "tensor_reduce, tiny": (lambda: nisa.tensor_reduce(dst=column(), op=nl.add, data=sbuf(2), axis=1), "trn2", 156),
    "tensor_scalar in SBUF": (scale(sbuf, sbuf, column), "trn2", 481),
    "tensor_scalar from PSUM": (scale(lambda: psum(128), lambda: sbuf(128), column), "trn2", 349.5),
    "reciprocal of 4": (lambda: nisa.reciprocal(dst=sbuf(4), data=sbuf(4)), "trn2", 178),
    "reciprocal of 8": (lambda: nisa.reciprocal(dst=sbuf(8), data=sbuf(8)), "trn2", 202),
}


def predicted_ns(instruction: Instruction, name: str) -> float:
    """Start to end: the latency, and the cycles."""
    target = get_target(name)
    engine = target.timing.scalar if instruction.engine is Engine.scalar else target.timing.vector
    exponential = instruction.operation.name == "activation" and instruction["op"].name == "exp"
    function = target.timing.function_latency_ns if exponential else 0
    return engine.latency_ns + function + instruction.operation.cycles(instruction, target) / engine.clock_ghz


@pytest.mark.parametrize("name", MEASURED)
def test_measurements(name: str) -> None:
    body, target, measured = MEASURED[name]
    off = predicted_ns(last(body, target), target) / measured - 1
    assert abs(off) <= 0.1


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_takes_no_cycles_of_a_data_path(name: str) -> None:
    operation = OPERATIONS[name]
    assert (operation.cycles is costs.sequencer_only) == (name in SEQUENCER)
    assert (operation.cycles is costs.no_own_cycles) == (name in MODELLED)
    if name in MODELLED:
        assert operation.engines[0] in (Engine.dma, Engine.tensor)


def test_the_lists_name_operations() -> None:
    assert set(OPERATIONS) >= SEQUENCER | MODELLED

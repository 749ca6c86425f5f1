"""Where each rule ends: the last legal value, the first illegal one, and what a rule must not refuse."""

from __future__ import annotations

from typing import Any

import pytest
from simulating import Kernel, Tensor, load, spec, tile, traced, zeros

from trnrt.errors import KernelError
from trnrt.nki import nisa, nl


def matmul(n: int = 6, dtypes: tuple[nl.DType, nl.DType] = (nl.float32, nl.float32)) -> tuple[Tensor, Tensor]:
    """Operands of a product of 4 x n."""
    return zeros(8, 4, dtype=dtypes[0]), zeros(8, n, dtype=dtypes[1])


def refused(body: Kernel, words: str, *arguments: object, target: str = "trn2") -> None:
    with pytest.raises(KernelError, match=words):
        traced(body, *arguments, target=target)


# Spans of partitions from each start: arch guide, start_partition.
@pytest.mark.parametrize(
    ("start", "most"), [(0, 128), (16, 0), (31, 0), (32, 32), (48, 0), (64, 64), (65, 0), (96, 32), (127, 0)]
)
def test_start_partition_spans(start: int, most: int) -> None:
    def at(span: int) -> Kernel:
        return lambda: nisa.memset(dst=tile(128, 2)[start : start + span], value=0.0)

    if most:
        traced(at(most))
    if most + 1 <= 128 - start:
        refused(at(most + 1), "start-partition")


def test_start_partition_counts_from_the_address() -> None:
    traced(lambda: nisa.memset(dst=tile(32, 2, address=(64, 0))[0:32], value=0.0))
    refused(lambda: nisa.memset(dst=tile(64, 2, address=(32, 0)), value=0.0), "spans 64 partitions from partition 32")
    refused(lambda: nisa.memset(dst=tile(32, 2, address=(32, 0))[16:32], value=0.0), "starts at partition 48")


def test_dma_starts_anywhere_and_steps() -> None:
    def body(a: Tensor) -> None:
        x = tile(128, 4)
        nisa.dma_copy(dst=x[17:50], src=a[0:33])
        nisa.dma_copy(dst=x[0:128:2], src=a[0:64])

    traced(body, spec(128, 4))


def test_dma_takes_strides_and_sizes_that_engines_do_not() -> None:
    def body(a: Tensor) -> None:
        nisa.dma_copy(dst=tile(2, 70000, dtype=nl.uint8), src=a)

    traced(body, spec(2, 70000, dtype="uint8"))


@pytest.mark.parametrize(
    ("shape", "view", "legal"),
    [
        ((2, 65535), (2, 65535), True),
        ((2, 65536), (2, 65536), False),
        ((2, 65534), (2, 2, 32767), True),
        ((2, 65536), (2, 2, 32768), False),
        ((2, 65535), (2, 1, 65535), True),
    ],
)
def test_sixteen_bit_patterns(shape: tuple[int, ...], view: tuple[int, ...], legal: bool) -> None:
    def body() -> None:
        nisa.memset(dst=tile(*shape, dtype=nl.uint8).reshape(view), value=0)

    if legal:
        traced(body)
    else:
        refused(body, "pattern-range")


def test_a_repeated_element_counts_as_often_as_it_is_read() -> None:
    def body() -> None:
        column = zeros(2, 1, dtype=nl.uint8).broadcast(1, 70000)
        nisa.tensor_copy(dst=tile(2, 4, 17500, dtype=nl.uint8), src=column)

    refused(body, "src has a free dimension of 70000 elements; the limit is 65535")


def test_a_stride_of_minus_32768_is_the_last_one() -> None:
    def body(stride: int) -> Kernel:
        def reverse() -> None:
            x = tile(2, 40000, dtype=nl.uint8)
            nisa.memset(dst=x.ap([[40000, 2], [-stride, 2]], offset=stride), value=0)

        return reverse

    traced(body(32768))
    refused(body(32769), "a stride of -32769 elements")


# Which memories may meet: the two inputs of tensor_tensor, scalar_tensor_tensor and tensor_copy_predicated can't both
# be in PSUM; all operands of tensor_scalar and activation can.
def test_two_psum_inputs_of_scalar_tensor_tensor() -> None:
    def body(second: nl.MemoryRegion, column: nl.MemoryRegion) -> None:
        x, y = zeros(8, 4, buffer=nl.psum), zeros(8, 4, buffer=second)
        operand = zeros(8, 1, buffer=column)
        nisa.scalar_tensor_tensor(dst=tile(8, 4), data=x, op0=nl.add, operand0=operand, op1=nl.add, operand1=y)

    traced(lambda: body(nl.sbuf, nl.psum))
    refused(lambda: body(nl.psum, nl.sbuf), "data and operand1 are both in psum")


def test_two_psum_inputs_of_tensor_copy_predicated() -> None:
    def body(src: nl.MemoryRegion, predicate: nl.MemoryRegion) -> None:
        x, chosen = zeros(8, 4, buffer=src), zeros(8, 4, dtype=nl.uint8, buffer=predicate)
        nisa.tensor_copy_predicated(dst=zeros(8, 4, buffer=nl.psum), src=x, predicate=chosen)

    traced(lambda: body(nl.psum, nl.sbuf))
    traced(lambda: body(nl.sbuf, nl.psum))
    refused(lambda: body(nl.psum, nl.psum), "src and predicate are both in psum")


def test_all_of_tensor_scalar_may_be_in_psum() -> None:
    def body() -> None:
        x, one, other = zeros(8, 4, buffer=nl.psum), zeros(8, 1, buffer=nl.psum), zeros(8, 1, buffer=nl.psum)
        nisa.tensor_scalar(dst=x, data=x, op0=nl.add, operand0=one, op1=nl.multiply, operand1=other)

    traced(body)


def test_all_of_activation_may_be_in_psum() -> None:
    def body() -> None:
        x, one, other = zeros(8, 4, buffer=nl.psum), zeros(8, 1, buffer=nl.psum), zeros(8, 1, buffer=nl.psum)
        result, command = tile(8, 1, buffer=nl.psum), nisa.reduce_cmd.reset_reduce
        nisa.activation(x, nl.relu, x, one, other, nl.add, result, command)

    traced(body)


def test_tensor_reduce_takes_psum() -> None:
    def body() -> None:
        dst = tile(8, 1, buffer=nl.psum)
        nisa.tensor_reduce(dst=dst, op=nl.add, data=zeros(8, 4, buffer=nl.psum), axis=1)

    traced(body)


def test_axes_of_tensor_reduce() -> None:
    def body(axis: Any, left: int) -> Kernel:
        return lambda: nisa.tensor_reduce(dst=tile(8, left), op=nl.add, data=zeros(8, 2, 3, 4), axis=axis)

    for axis, left in [(3, 6), (-1, 6), ((2, 3), 2), ([3, 2], 2), ((1, 2, 3), 1), ((-1, -2, -3), 1)]:
        traced(body(axis, left))
    for axis in (0, 1, (1, 3), (0, 1, 2, 3), (), (3, 3)):
        refused(body(axis, 6), "trailing-axes")


# Operands of tensor_scalar: nki.isa tensor_scalar.
def test_operands_of_tensor_scalar() -> None:
    def body(**options: Any) -> Kernel:
        arguments = {"op0": nl.add, "operand0": 1.0, **options}
        return lambda: nisa.tensor_scalar(dst=tile(8, 4), data=zeros(8, 4), **arguments)

    traced(body(op0=nl.abs, operand0=None))
    traced(body(op1=nl.rsqrt, operand1=None))
    traced(body(op1=nl.rsqrt, operand1=0))
    refused(body(operand0=None), "operand0 is None; op0=nl.add needs one")
    refused(body(op1=nl.add), "operand1 is None; op1=nl.add needs one")
    refused(body(operand1=1.0), "operand1 is 1.0 but op1 is None")
    refused(body(op1=nl.rsqrt, operand1=2.0), "operand1 is 2.0; it must be None or 0")


def test_operands_of_scalar_tensor_tensor() -> None:
    def body(operand0: Any = 1.0, other: tuple[int, ...] = (8, 4), **operators: Any) -> Kernel:
        arguments = {"op0": nl.add, "op1": nl.multiply, **operators}

        def call() -> None:
            column = zeros(8, 1, dtype=operand0) if isinstance(operand0, nl.DType) else operand0
            nisa.scalar_tensor_tensor(
                dst=tile(8, 4), data=zeros(8, 4), operand0=column, operand1=zeros(*other), **arguments
            )

        return call

    traced(body(nl.int32))
    traced(body(nl.bfloat16))
    traced(body(0.0, op0=nl.abs))
    refused(body(other=(8, 1)), "operand1 holds 1 elements a partition, dst 4")
    refused(body(op1=nl.abs), "op1=nl.abs does not take two inputs")
    refused(body(2.0, op0=nl.abs), "operand0 is 2.0; it must be None or 0")


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_forms_of_tensor_scalar_on_the_scalar_engine(target: str) -> None:
    def body(op0: Any, op1: Any = None, engine: nisa.engine = nisa.engine.scalar) -> Kernel:
        operand1 = None if op1 is None else 2.0
        return lambda: nisa.tensor_scalar(tile(8, 4), zeros(8, 4), op0, 1.0, False, op1, operand1, False, engine)

    for form in ((nl.multiply, nl.add), (nl.multiply,), (nl.add,)):
        traced(body(*form), target=target)
    for other in ((nl.add, nl.multiply), (nl.subtract,), (nl.maximum,)):
        if target == "trn3":
            traced(body(*other), target=target)
        else:
            refused(body(*other), f"scalar engine of {target}", target=target)
    refused(body(nl.add, engine=nisa.engine.gpsimd), "it does nl.rsqrt only", target=target)


@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_a_bias_may_be_a_number(target: str) -> None:
    traced(lambda: nisa.activation(tile(8, 4), nl.copy, zeros(8, 4), bias=1.0), target=target)


@pytest.mark.parametrize("dtype", [nl.float32, nl.bfloat16, nl.float16, nl.float8_e5m2, nl.int32, nl.uint8, nl.bool_])
def test_a_bias_tile_is_of_almost_any_dtype(dtype: nl.DType) -> None:
    traced(lambda: nisa.activation(tile(8, 4), nl.copy, zeros(8, 4), bias=zeros(8, 1, dtype=dtype)), target="trn1")


def test_reduce_commands() -> None:
    def body(command: nisa.reduce_cmd, op: Any = nl.add) -> Kernel:
        return lambda: nisa.activation(tile(8, 4), nl.copy, zeros(8, 4), reduce_op=op, reduce_cmd=command)

    for command in (nisa.reduce_cmd.idle, nisa.reduce_cmd.reset, nisa.reduce_cmd.reduce, nisa.reduce_cmd.reset_reduce):
        traced(body(command))
    traced(body(nisa.reduce_cmd.reset, None))
    refused(body(nisa.reduce_cmd.load_reduce), "reduce_cmd=reduce_cmd.load_reduce; it must be idle, reset")
    refused(body(nisa.reduce_cmd.reduce, None), "reduce_op=None with reduce_cmd=reduce_cmd.reduce")


# nc_matmul on trn3: nki.isa nc_matmul, Tile size and Data types.
@pytest.mark.parametrize(
    ("target", "dtype", "columns", "words"),
    [
        ("trn3", nl.float32, 4096, None),
        ("trn3", nl.bfloat16, 8192, None),
        ("trn2", nl.bfloat16, 512, "dst is bfloat16; on trn2 it must be float32"),
        ("trn1", nl.float32, 512, None),
        ("trn3", nl.float16, 512, "dst is float16; on trn3 it must be float32 or bfloat16"),
    ],
)
def test_the_widest_matmul(target: str, dtype: nl.DType, columns: int, words: str | None) -> None:
    def body() -> None:
        w, x = matmul(n=columns, dtypes=(nl.bfloat16, nl.bfloat16))
        nisa.nc_matmul(dst=tile(4, columns, dtype=dtype, buffer=nl.psum), stationary=w, moving=x)

    if words is None:
        traced(body, target=target)
    else:
        refused(body, words, target=target)


def test_one_column_more_than_all_of_psum_is_too_wide() -> None:
    def body() -> None:
        w, x = matmul(n=4097)
        nisa.nc_matmul(dst=tile(4, 4096, buffer=nl.psum), stationary=w, moving=x)

    refused(body, "moving has 4097 columns; the limit on trn3 is 4096", target="trn3")


def test_formats_of_float8() -> None:
    def body(one: nl.DType, other: nl.DType) -> Kernel:
        def call() -> None:
            w, x = matmul(dtypes=(one, other))
            nisa.nc_matmul(dst=tile(4, 6, buffer=nl.psum), stationary=w, moving=x)

        return call

    traced(body(nl.float8_e4m3, nl.float8_e5m2))
    traced(body(nl.float8_e4m3fn, nl.float8_e5m2), target="trn3")
    refused(body(nl.float8_e4m3fn, nl.float8_e5m2), "stationary is float8_e4m3fn; on trn2 it must be one of")
    refused(body(nl.float8_e4m3, nl.float8_e4m3fn), "the two formats can't be mixed", target="trn3")


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("accumulate", [True, None])
def test_accumulating_on_a_memset(target: str, value: float, accumulate: bool | None) -> None:
    """trn3 does it; elsewhere None may find zeros, which to overwrite or to add to is the same."""

    def body() -> None:
        w, x = matmul()
        dst = tile(4, 6, buffer=nl.psum)
        nisa.memset(dst=dst, value=value)
        nisa.nc_matmul(dst=dst, stationary=w, moving=x, accumulate=accumulate)

    if target == "trn3" or (value == 0 and accumulate is None):
        traced(body, target=target)
    else:
        refused(body, f"accumulates on a dst that another instruction wrote; on {target}", target=target)


def test_accumulating_on_a_half_written_tile() -> None:
    def body(accumulate: bool | None) -> Kernel:
        def call() -> None:
            w, x = matmul()
            dst = tile(4, 12, buffer=nl.psum)
            nisa.nc_matmul(dst=dst[:, 0:6], stationary=w, moving=x)
            nisa.nc_matmul(dst=dst[:, 3:9], stationary=w, moving=x, accumulate=accumulate)

        return call

    traced(body(None))
    traced(body(False))
    refused(body(True), "accumulate=True on a dst that nothing has written")


def test_a_matmul_may_end_where_its_bank_does() -> None:
    def body(start: int, columns: int, step: int = 1) -> Kernel:
        def call() -> None:
            w, x = matmul(n=columns)
            dst = tile(4, 1536, buffer=nl.psum)[:, start : start + columns * step : step]
            nisa.nc_matmul(dst=dst, stationary=w, moving=x)

        return call

    traced(body(512, 512))
    traced(body(1000, 24))
    refused(body(1000, 25), "dst covers bytes 4000 to 4099 of a partition; it must stay in one bank of 2048")
    refused(body(0, 257, 2), "psum-bank")


# Transposes: nki.isa nc_transpose.
def test_the_vector_engine_transposes_between_any_memories() -> None:
    def body(data: nl.MemoryRegion, dst: nl.MemoryRegion) -> Kernel:
        return lambda: nisa.nc_transpose(tile(16, 32, buffer=dst), zeros(32, 16, buffer=data), nisa.engine.vector)

    for data in (nl.sbuf, nl.psum):
        for dst in (nl.sbuf, nl.psum):
            traced(body(data, dst))


def test_an_unnamed_engine_transposes_where_it_can() -> None:
    def body(rows: int, data: nl.MemoryRegion, dst: nl.MemoryRegion) -> None:
        nisa.nc_transpose(dst=tile(16, rows, buffer=dst), data=zeros(rows, 16, buffer=data))

    small = traced(lambda: body(32, nl.sbuf, nl.sbuf))
    assert small.instructions[-1].engine is nisa.engine.vector
    assert traced(lambda: body(32, nl.sbuf, nl.psum)).instructions[-1].engine is nisa.engine.tensor
    refused(lambda: body(33, nl.sbuf, nl.sbuf), "dst is in sbuf; it must be in psum")


@pytest.mark.parametrize("dtype", [nl.bfloat16, nl.float16, nl.float8_e5m2, nl.int32, nl.uint8])
def test_a_transpose_writes_its_dtype_to_psum(dtype: nl.DType) -> None:
    def body() -> None:
        nisa.nc_transpose(dst=tile(16, 128, dtype=dtype, buffer=nl.psum), data=zeros(128, 16, dtype=dtype))

    traced(body)


def test_a_transpose_stays_in_its_bank() -> None:
    def body() -> None:
        dst = tile(128, 600, buffer=nl.psum)[:, 472:600]
        nisa.nc_transpose(dst=dst, data=zeros(128, 128))

    refused(body, "dst covers bytes 1888 to 2399")


def test_engines() -> None:
    """Which engine an unnamed one means, and which can't run an instruction."""

    def body() -> None:
        x = zeros(8, 4)
        zeros(8, 4, buffer=nl.psum)  # which gpsimd does not reach
        nisa.tensor_copy(dst=tile(8, 4), src=x)
        nisa.activation(dst=tile(8, 4), op=nl.copy, data=x)
        nisa.dma_copy(dst=tile(8, 4), src=x)

    engines = [instruction.engine.name for instruction in traced(body).instructions]
    assert engines == ["gpsimd", "vector", "vector", "scalar", "dma"]
    refused(
        lambda: nisa.memset(dst=tile(8, 4), value=0.0, engine=nisa.engine.scalar),
        "memset can't run on the scalar engine, only on gpsimd, vector",
    )


def test_dma_options() -> None:
    def body(**options: Any) -> Kernel:
        return lambda a: nisa.dma_copy(dst=tile(8, 4), src=a, **options)

    traced(body(dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.scalar), spec(8, 4))
    traced(body(dge_mode=nisa.dge_mode.none, oob_mode=nisa.oob_mode.skip), spec(8, 4))
    refused(body(engine=nisa.engine.sync), "engine=sync with dge_mode=dge_mode.unknown", spec(8, 4))
    refused(body(priority=0), "priority=0; trn2 has no priorities", spec(8, 4))
    refused(body(priority="high"), "priority='high'; it must be 0, 1, 2 or 3", spec(8, 4), target="trn3")


def test_addresses() -> None:
    refused(lambda: tile(8, 4, address=(0, 212990)), "ends at byte 213006; SBUF has 212992 usable bytes")
    refused(lambda: tile(8, 4, address=(0, -32)), "tile-address")
    refused(lambda: tile(8, 4, address=(-1, 0)), "tile-address")
    refused(lambda: tile(8, 4, buffer=nl.shared_hbm, address=(0, 0)), "only on-chip tensors have one")
    traced(lambda: load(tile(8, 4, buffer=nl.shared_hbm)))

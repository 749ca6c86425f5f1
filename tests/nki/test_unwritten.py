"""Reads of memory that nothing wrote: each is found with its line, its tile and how much of it; no other is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from rule_cases import HERE
from simulating import Tensor, give, load, run, spec, tile, zeros

from trnrt.nki import nisa, nl, simulate
from trnrt.nki.machine.unwritten import unwritten_reads
from trnrt.nki.sim.instructions import OPERATIONS
from trnrt.nki.sim.kernel import Simulated

Body = Callable[..., Tensor]
X = (128, 16)


def found(body: Body, *arguments: Any, cores: int = 1) -> list[str]:
    """What is said of a kernel, each with the number of its line in front."""
    kernel = simulate(body, "trn3")
    kernel = kernel[cores] if cores > 1 else kernel
    assert isinstance(kernel, Simulated)
    return [f"{read.source.line}: {read}" for read in unwritten_reads(kernel.trace(*arguments))]


def line(body: Body) -> int:
    """The number of the line that ends in ``# here``."""
    lines, first = inspect.getsourcelines(body)
    (at,) = [number for number, text in enumerate(lines, first) if text.rstrip().endswith(HERE)]
    return at


def hbm(*shape: int, name: str = "out") -> Tensor:
    return nl.ndarray(shape, nl.float32, nl.shared_hbm, name=name)


@dataclass(frozen=True)
class Case:
    """A kernel of one argument, and what is found at its line ``# here``."""

    body: Body
    says: tuple[str, ...]


BAD: list[Case] = []


def bad(*says: str) -> Callable[[Body], Body]:
    def register(body: Body) -> Body:
        BAD.append(Case(body, says))
        return body

    return register


@bad(
    "the kernel returns out [128x16] float32: nothing has written any of the 2048 elements, indices [0 to 127, 0 to 15]"
)
def nothing_is_returned(x: Tensor) -> Tensor:
    return nl.ndarray(X, nl.float32, nl.shared_hbm, name="out")  # here


@bad("the kernel returns out", "1024 of 2048 elements, indices [64 to 127, 0 to 15]")
def half_is_returned(x: Tensor) -> Tensor:
    out = nl.ndarray(X, nl.float32, nl.shared_hbm, name="out")  # here
    nisa.dma_copy(out[:64], x[:64])
    return out


@bad("dma_copy reads src, t [128x16] float32", "any of the 2048 elements, partitions 0 to 127, columns 0 to 15")
def a_tile_is_copied(x: Tensor) -> Tensor:
    t, out = tile(*X, name="t"), hbm(*X)
    nisa.dma_copy(out, t)  # here
    return out


@bad("tensor_tensor reads data2, t [128x16]", "any of the 512 elements, partitions 0 to 31")
def a_part_is_read_that_nothing_wrote(x: Tensor) -> Tensor:
    t, sum_sb = tile(*X, name="t"), load(x)
    nisa.memset(t[32:64], 0.0)
    nisa.tensor_tensor(sum_sb[:32], sum_sb[:32], t[:32], nl.add)  # here
    return give(sum_sb)


@bad(
    "dma_copy reads src, t [128x16]",
    "nothing has written 128 of 2048 elements, partitions 0 to 127, columns 15",
    "128 of 2048 elements of out that the caller gets depend on them",
)
def a_column_is_forgotten(x: Tensor) -> Tensor:
    t, out = tile(*X, name="t"), hbm(*X)
    nisa.dma_copy(t[:, :15], x[:, :15])
    nisa.dma_copy(out, t)  # here
    return out


@bad("tensor_reduce reads data, t [128x16]", "16 of 2048 elements, partitions 127", "1 of 128 elements of a tensor")
def a_row_is_reduced(x: Tensor) -> Tensor:
    t, sum_sb = tile(*X, name="t"), tile(128, 1)
    nisa.dma_copy(t[:127], x[:127])
    nisa.tensor_reduce(sum_sb, nl.add, t, axis=1)  # here
    return give(sum_sb)


@bad(
    "nc_matmul reads moving, t [128x16]",
    "nothing has written 512 of 2048 elements, partitions 96 to 127",
    "2048 of 2048",
)
def a_product_runs_over_it(x: Tensor) -> Tensor:
    t, y = tile(*X, name="t"), tile(128, 16, buffer=nl.psum)
    nisa.dma_copy(t[:96], x[:96])
    nisa.nc_matmul(y, zeros(128, 128), t)  # here
    return give(y)


@bad("activation reads bias, t [128x1]", "32 of 128 elements", "512 of 4096 elements of out")
def it_goes_through_many_hands(x: Tensor) -> Tensor:
    t, a, out = tile(128, 1, name="t"), load(x), hbm(2, *X)
    nisa.memset(t[:96], 1.0)
    nisa.activation(a, nl.exp, a, bias=t)  # here
    turned = tile(16, 128, buffer=nl.psum)
    nisa.nc_transpose(turned, a)
    b = nl.copy(turned)
    y = tile(128, 16, buffer=nl.psum)
    nisa.nc_matmul(y, b, zeros(16, 16))
    nisa.dma_copy(out[0], x)
    nisa.dma_copy(out[1], nl.copy(y))
    return out


@bad("dma_copy reads an index, t [1x1] int32", "any of the 1 elements")
def an_index_is_not_written(x: Tensor) -> Tensor:
    t, row = tile(1, 1, dtype=nl.int32, name="t"), tile(1, 16)
    nisa.dma_copy(row, x.ap([[16, 1], [1, 16]], scalar_offset=t))  # here
    return give(row)


@bad(
    "dma_copy reads src, b [128x16] float32",
    "its address is also that of a [128x16] float32",
    "whose bytes may be there",
)
def a_pinned_tile_lies_over_a_dead_one(x: Tensor) -> Tensor:
    a, b, out = tile(*X, address=(0, 0), name="a"), tile(*X, address=(0, 32), name="b"), hbm(2, *X)
    nisa.dma_copy(a, x)
    nisa.dma_copy(out[0], a)
    nisa.dma_copy(out[1], b)  # here
    return out


@bad("tensor_copy reads src, t [128x16]", "any of the 2048 elements")
def a_loop_reads_what_nothing_writes(x: Tensor) -> Tensor:
    t, y = tile(*X, name="t"), tile(*X)
    for _ in nl.dynamic_range(4):
        nisa.tensor_copy(y, t)  # here
    return give(y)


@bad("tensor_copy reads src, t [128x16]")
def psum_is_not_zero_before_anything_writes_it(x: Tensor) -> Tensor:
    t, y = tile(*X, buffer=nl.psum, name="t"), tile(*X)
    nisa.tensor_copy(y, t)  # here
    return give(y)


@bad("nc_stream_shuffle reads src, t [32x16]", "any of the 512 elements")
def nothing_is_shuffled(x: Tensor) -> Tensor:
    t, y = tile(32, 16, name="t"), zeros(32, 16)
    nisa.nc_stream_shuffle(y, t, list(range(32)))  # here
    return give(y)


@bad(
    "tensor_copy reads src, t [128x16]",
    "nothing has written 1024 of 2048 elements, partitions 0 to 127, columns 8 to 15",
)
def only_half_of_the_bits_are_written(x: Tensor) -> Tensor:
    t, y = tile(*X, name="t"), tile(*X)
    nisa.memset(t.view(nl.bfloat16)[:, :16], 0.0)
    nisa.tensor_copy(y, t)  # here
    return give(y)


@bad("dma_copy reads src, t [128x16]", "2032 of 2048 elements of x that the caller gets")
def an_argument_is_written_with_it(x: Tensor) -> Tensor:
    t, out = tile(*X, name="t"), hbm(*X)
    nisa.dma_copy(t[:1], x[:1])
    y = tile(*X)
    nisa.dma_copy(y, t)  # here
    nisa.dma_copy(x, y)
    nisa.dma_copy(out, zeros(*X))
    return out


@pytest.mark.usefixtures("level_0_6")
@pytest.mark.parametrize("case", BAD, ids=lambda case: case.body.__name__)
def test_what_is_found(case: Case) -> None:
    (said,) = found(case.body, spec(*X))
    for part in (f"{line(case.body)}: ", *case.says, "(allocated at "):
        assert part in said


GOOD: list[Body] = []


def good(body: Body) -> Body:
    GOOD.append(body)
    return body


@good
def rows_beside_the_last_ones_are_computed_and_left(x: Tensor) -> Tensor:
    t, y, out = tile(*X), tile(*X), hbm(100, 16)
    nisa.dma_copy(t[:100], x[:100])
    nisa.activation(y, nl.exp, t)
    nisa.tensor_scalar(y, y, nl.multiply, 2.0)
    nisa.dma_copy(out, y[:100])
    return out


@good
def columns_are_summed_that_hold_something(x: Tensor) -> Tensor:
    t, total = tile(*X), tile(128, 1)
    nisa.dma_copy(t[:, :8], x[:, :8])
    y = nl.copy(t)
    nisa.tensor_reduce(total, nl.add, y[:, :8], axis=1)
    return give(total)


@good
def it_is_overwritten_later(x: Tensor) -> Tensor:
    t, y = tile(*X), tile(*X)
    nisa.dma_copy(t[:64], x[:64])
    nisa.tensor_copy(y, t)
    nisa.dma_copy(y[64:], x[64:])
    return give(y)


@good
def a_tile_is_written_in_pieces(x: Tensor) -> Tensor:
    t = tile(128, 4, 4)
    for i in range(4):
        for j in range(4):
            nisa.dma_copy(t[:, i, j : j + 1], x[:, 4 * i + j : 4 * i + j + 1])
    return give(t)


@good
def steps_interleave(x: Tensor) -> Tensor:
    t = tile(*X)
    nisa.dma_copy(t[:, 0:16:2], x[:, :8])
    nisa.dma_copy(t[:, 1:16:2], x[:, 8:])
    return give(t)


@good
def a_round_of_a_loop_reads_what_the_one_before_wrote(x: Tensor) -> Tensor:
    t, y, out = tile(*X), tile(*X), hbm(*X)
    for _ in nl.dynamic_range(4):
        nisa.tensor_copy(y, t)
        nisa.dma_copy(t, x)
    nisa.dma_copy(out, y)
    return out


@good
def a_loop_runs_no_time(x: Tensor) -> Tensor:
    t, y = tile(*X), load(x)
    for _ in nl.dynamic_range(0):
        nisa.tensor_copy(y, t)
    return give(y)


@good
def a_loop_writes_at_its_counter(x: Tensor) -> Tensor:
    out = hbm(4, *X)
    t = load(x)
    for i in nl.dynamic_range(4):
        nisa.dma_copy(out.select(0, i), t)
    return out


@good
def a_loop_fills_a_tile_that_is_read_after_it(x: Tensor) -> Tensor:
    t, y = tile(*X), load(x)
    for i in nl.dynamic_range(16):
        nisa.tensor_copy(t.select(1, i), y.select(1, i))
    return give(t)


@good
def rows_are_scattered(x: Tensor) -> Tensor:
    out, where = hbm(*X), nl.copy(nl.zeros((128, 1), nl.int32, nl.sbuf))
    nisa.dma_copy(out.vector_select(0, where), load(x))
    return out


@good
def indices_choose_rows_of_a_tensor_that_is_partly_written(x: Tensor) -> Tensor:
    kept = nl.ndarray((256, 16), nl.float32, nl.private_hbm)
    nisa.dma_copy(kept[:128], x)
    where, rows = nl.zeros((128, 1), nl.int32, nl.sbuf), tile(*X)
    nisa.dma_copy(rows, kept.vector_select(0, where))
    return give(rows)


@good
def a_predicate_chooses(x: Tensor) -> Tensor:
    dst, src = tile(*X), tile(*X)
    nisa.memset(src[:64], 0.0)
    nisa.tensor_copy_predicated(dst, src, nl.zeros(X, nl.uint8, nl.sbuf))
    return give(dst)


@good
def a_pattern_chooses(x: Tensor) -> Tensor:
    dst, src = tile(*X), tile(*X)
    nisa.dma_copy(src[:64], x[:64])
    nisa.affine_select(dst, [[1, 16]], -1, src, 0.0)
    return give(dst)


@good
def products_overwrite_first(x: Tensor) -> Tensor:
    y, a = tile(16, 16, buffer=nl.psum), load(x)
    for _ in range(3):
        nisa.nc_matmul(y, a, a)
    return give(y)


@good
def rows_beyond_a_product_stay_out_of_it(x: Tensor) -> Tensor:
    a, y = tile(*X), tile(16, 16, buffer=nl.psum)
    nisa.dma_copy(a[:64], x[:64])
    b = nl.copy(a)
    nisa.nc_matmul(y, b[:64], b[:64])
    return give(y)


@good
def bits_are_written_as_another_type(x: Tensor) -> Tensor:
    t = tile(*X)
    nisa.memset(t.view(nl.bfloat16), 0.0)
    return give(t)


@good
def memory_is_printed(x: Tensor) -> Tensor:
    nl.device_print("t", tile(*X))
    return give(load(x))


@good
def an_argument_is_returned(x: Tensor) -> Tensor:
    return x


@good
def zeros_are_read(x: Tensor) -> Tensor:
    return give(nl.zeros(X, nl.float32, nl.sbuf))


@good
def a_pinned_tile_takes_the_place_of_a_dead_one(x: Tensor) -> Tensor:
    a, b, out = tile(*X, address=(0, 0)), tile(*X, address=(0, 0)), hbm(2, *X)
    nisa.dma_copy(a, x)
    nisa.dma_copy(out[0], a)
    nisa.dma_copy(b, x)
    nisa.dma_copy(out[1], b)
    return out


@pytest.mark.usefixtures("level_0_6")
@pytest.mark.parametrize("body", GOOD, ids=lambda body: body.__name__)
def test_what_is_not_found(body: Body) -> None:
    assert found(body, spec(*X)) == []


def halves(x: Tensor) -> Tensor:
    out = hbm(2, *X)
    nisa.dma_copy(out[nl.program_id(0)], load(x))
    return out


def received(x: Tensor) -> Tensor:
    core = nl.program_id(0)
    mine, theirs, out = load(x), tile(*X), hbm(2, *X)
    nisa.sendrecv(src=mine, dst=theirs, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
    nisa.dma_copy(out[core], theirs)
    return out


def crossed(x: Tensor) -> Tensor:
    core = nl.program_id(0)
    kept, out = hbm(2, *X, name="kept"), hbm(2, *X)
    nisa.dma_copy(kept[core], load(x))
    nisa.core_barrier(kept, (0, 1))
    nisa.dma_copy(out[core], kept[1 - core])
    return out


@pytest.mark.parametrize("body", [halves, received, crossed])
def test_what_the_other_core_writes(body: Body) -> None:
    assert found(body, spec(*X), cores=2) == []


def test_a_half_that_no_core_writes() -> None:
    def body(x: Tensor) -> Tensor:
        out = hbm(3, *X)
        nisa.dma_copy(out[nl.program_id(0)], load(x))
        return out

    (said,) = found(body, spec(*X), cores=2)
    assert (
        "the kernel returns out [3x128x16] float32: nothing has written 2048 of 6144 elements, indices [2, 0 to" in said
    )


def test_a_line_in_a_loop_of_python_is_said_once() -> None:
    def body(x: Tensor) -> Tensor:
        out, t = hbm(4, *X), tile(*X)
        for i in range(4):
            nisa.dma_copy(out[i], t)
        return out

    assert len(found(body, spec(*X))) == 1


@pytest.mark.usefixtures("level_0_6")
def test_the_simulator_reads_nan_where_this_says_so() -> None:
    """Of the kernels above, run: what is found gives NaN, what is not found gives none, but where only a run knows."""
    x = np.ones(X, np.float32)
    silent = {an_index_is_not_written, an_argument_is_written_with_it}
    for case in BAD:
        if case.body not in silent:
            assert np.isnan(run(case.body, x, target="trn3")).any(), case.body.__name__
    left = {a_predicate_chooses, a_round_of_a_loop_reads_what_the_one_before_wrote, rows_are_scattered}
    for body in GOOD:
        if body not in left:
            assert not np.isnan(run(body, x, target="trn3")).any(), body.__name__


def test_arguments_of_masks_and_indices_are_reads() -> None:
    for operation in OPERATIONS.values():
        assert operation.partly | operation.indexed <= set(operation.reads)
        assert not operation.partly & operation.indexed

"""Copies that are left out or merged: the same values to the bit, where it is allowed, and nowhere else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from simulating import drawn, tile
from test_timing_freedom import freely, violations
from test_timing_path import spent

from trnrt.calibration import attention, convolutions, kernels
from trnrt.nki import Spec, nisa, nl, trace
from trnrt.nki.machine.execute import Executor
from trnrt.nki.machine.program import MemoryRegion, Program
from trnrt.nki.machine.timing import predict, schedule
from trnrt.nki.machine.timing.issues import Issues
from trnrt.nki.machine.timing.list_scheduling import ListSchedule
from trnrt.nki.machine.timing.rewriting import rewrite_copies

VECTOR, SCALAR, GPSIMD = nisa.engine.vector, nisa.engine.scalar, nisa.engine.gpsimd
X = Spec((64, 64), "bfloat16")
Body = Callable[[nl.NkiTensor, nl.NkiTensor], None]  # of a tile of SBUF with x, and of HBM that is returned


def programmed(body: Body, target: str = "trn2", dtype: Any = nl.float32) -> Program:
    """The program of a body that gets (64, 64) in SBUF and stores what it makes, (8, 64, 64), in HBM."""

    def kernel(x: nl.NkiTensor) -> nl.NkiTensor:
        x_sb = tile(64, 64, dtype=nl.bfloat16)
        nisa.dma_copy(dst=x_sb, src=x)
        out = nl.ndarray((8, 64, 64), dtype, nl.shared_hbm)
        body(x_sb, out)
        return out

    return trace(kernel, X, target=target)


def removed(program: Program) -> int:
    """How many instructions are gone, after a look at the rest: what they compute, and that they can be timed."""
    found = rewrite_copies(program)
    if found is None:
        return 0
    x = drawn(64, 64, dtype="bfloat16")
    for one, other in zip(Executor(program).run([x]), Executor(found).run([x]), strict=True):
        np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))
    timeline = freely(found)
    if len(found.instructions) < 20:  # it looks at every byte
        assert violations(timeline) == []
    spent(timeline)
    return len(program.instructions) - len(found.instructions)


def product(x_sb: nl.NkiTensor, columns: int = 64) -> nl.NkiTensor:
    """x.T @ x in PSUM."""
    psum = tile(64, columns, buffer=nl.psum)
    nisa.nc_matmul(dst=psum, stationary=x_sb, moving=x_sb[:, 0:columns])
    return psum


def store(out: nl.NkiTensor, place: int, data: nl.NkiTensor) -> None:
    """Put twice the data into HBM, by way of a tile that the vector engine makes."""
    doubled = tile(*data.shape, dtype=out.dtype)
    nisa.tensor_scalar(dst=doubled, data=data, op0=nl.multiply, operand0=2.0, engine=VECTOR)
    nisa.dma_copy(dst=out[place, :, 0 : data.shape[1]], src=doubled)


# What is left out.
def copied(x_sb: nl.NkiTensor, dtype: Any = nl.float32, engine: Any = VECTOR) -> nl.NkiTensor:
    copy = tile(64, 64, dtype=dtype)
    psum = product(x_sb)
    if engine is SCALAR:
        nisa.activation(dst=copy, op=nl.copy, data=psum)
    else:
        nisa.tensor_copy(dst=copy, src=psum, engine=engine)
    return copy


@pytest.mark.parametrize("engine", [VECTOR, SCALAR])
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_a_copy_that_the_vector_engine_reads_is_left_out(engine: Any, target: str) -> None:
    traced = programmed(lambda x_sb, out: store(out, 0, copied(x_sb, engine=engine)), target)
    assert removed(traced) == 1
    found = rewrite_copies(traced)
    assert found is not None
    (scaled,) = [one for one in found.instructions if one.operation.name == "tensor_scalar"]
    assert scaled["data"].buffer is MemoryRegion.psum


def test_a_copy_that_widens_is_left_out_and_one_that_rounds_is_not() -> None:
    def turned(x_sb: nl.NkiTensor, out: nl.NkiTensor) -> None:
        psum = tile(64, 64, dtype=nl.bfloat16, buffer=nl.psum)
        nisa.nc_transpose(dst=psum, data=x_sb)
        wide = tile(64, 64)
        nisa.tensor_copy(dst=wide, src=psum)
        store(out, 0, wide)

    assert removed(programmed(turned)) == 1
    assert removed(programmed(lambda x_sb, out: store(out, 0, copied(x_sb, nl.bfloat16)))) == 0


def parts_and_readers(x_sb: nl.NkiTensor, out: nl.NkiTensor) -> None:
    """A tile that two copies fill, from the middle of two others; what reads it takes parts of one copy each."""
    held = tile(64, 64)
    for half in range(2):
        psum = product(x_sb)
        nisa.tensor_copy(dst=held[:, half * 32 : half * 32 + 32], src=psum[:, 16:48])
    store(out, 0, held[:, 0:32])
    store(out, 1, held[:, 36:60:2])
    store(out, 2, held[:, 32:64].reshape((64, 4, 8)).permute((0, 2, 1))[:, :, 1])


def test_parts_of_a_tile_are_left_out_together() -> None:
    assert removed(programmed(parts_and_readers)) == 2


def test_a_read_across_two_copies_keeps_both() -> None:
    def body(x_sb: nl.NkiTensor, out: nl.NkiTensor) -> None:
        parts_and_readers(x_sb, out)
        held = tile(64, 64)
        for half in range(2):
            psum = product(x_sb)
            nisa.tensor_copy(dst=held[:, half * 32 : half * 32 + 32], src=psum[:, 16:48])
        store(out, 3, held)

    assert removed(programmed(body)) == 2


def keeps_stored(x_sb: nl.NkiTensor, out: nl.NkiTensor) -> None:
    nisa.dma_copy(dst=out[0], src=copied(x_sb))


def keeps_multiplied(x_sb: nl.NkiTensor, out: nl.NkiTensor) -> None:
    held = copied(x_sb)
    psum = tile(64, 64, buffer=nl.psum)
    nisa.nc_matmul(dst=psum, stationary=held, moving=held)
    store(out, 0, psum)


def keeps_written_again(x_sb: nl.NkiTensor, out: nl.NkiTensor) -> None:
    held = copied(x_sb)
    nisa.memset(dst=held[:, 0:8], value=1)
    store(out, 0, held)


def keeps_source_written_again(x_sb: nl.NkiTensor, out: nl.NkiTensor) -> None:
    psum, held = product(x_sb), tile(64, 64)
    nisa.tensor_copy(dst=held, src=psum)
    nisa.memset(dst=psum, value=1)
    store(out, 0, held)


def keeps_changed(x_sb: nl.NkiTensor, out: nl.NkiTensor) -> None:
    held = tile(64, 64)
    nisa.activation(dst=held, op=nl.copy, data=product(x_sb), scale=3.0)
    store(out, 0, held)


def keeps_pinned(x_sb: nl.NkiTensor, out: nl.NkiTensor) -> None:
    with nl.no_reorder():
        held = copied(x_sb)
    store(out, 0, held)


def keeps_for_pinned(x_sb: nl.NkiTensor, out: nl.NkiTensor) -> None:
    held = copied(x_sb)
    with nl.no_reorder():
        store(out, 0, held)


def keeps_asked_for(x_sb: nl.NkiTensor, out: nl.NkiTensor) -> None:
    psum, held = product(x_sb), tile(64, 64)
    copy = nisa.tensor_copy(dst=held, src=psum)
    nisa.memset(dst=tile(64, 8), value=0, engine=GPSIMD).depends_on(copy)
    store(out, 0, held)


def keeps_of_a_loop(x_sb: nl.NkiTensor, out: nl.NkiTensor) -> None:
    held = tile(64, 64)
    for _ in nl.dynamic_range(2):
        nisa.tensor_copy(dst=held, src=product(x_sb))
    store(out, 0, held)


def keeps_where_psum_is_full(x_sb: nl.NkiTensor, out: nl.NkiTensor) -> None:
    """The readers come after products that fill all eight banks."""
    held = copied(x_sb)
    banks = [tile(64, 512, buffer=nl.psum) for _ in range(8)]
    for bank in banks:
        for part in range(8):
            nisa.nc_matmul(dst=bank[:, part * 64 : part * 64 + 64], stationary=x_sb, moving=x_sb)
    for place, bank in enumerate(banks[1:]):
        nisa.nc_matmul(dst=banks[0][:, 0:64], stationary=x_sb, moving=x_sb)
        store(out, place, bank[:, 0:64])
    store(out, 7, held)


KEPT = [value for name, value in list(globals().items()) if name.startswith("keeps_")]


@pytest.mark.usefixtures("level_0_6")
@pytest.mark.parametrize("body", KEPT, ids=lambda body: body.__name__)
def test_a_copy_is_kept(body: Body) -> None:
    assert removed(programmed(body)) == 0


def test_a_full_psum_keeps_no_other_copy() -> None:
    def body(x_sb: nl.NkiTensor, out: nl.NkiTensor) -> None:
        keeps_where_psum_is_full(x_sb, out)
        store(out, 6, copied(x_sb))

    assert removed(programmed(body)) == 1


@pytest.mark.usefixtures("level_0_6")
def test_a_copy_within_an_iteration_is_left_out() -> None:
    def body(x_sb: nl.NkiTensor, out: nl.NkiTensor) -> None:
        for _ in nl.dynamic_range(2):
            store(out, 0, copied(x_sb))

    traced = programmed(body)
    found = rewrite_copies(traced)
    assert found is not None
    assert len(traced.instructions) - len(found.instructions) == 1
    assert schedule(found).duration < schedule(traced).duration


# What is merged.
def turned(x_sb: nl.NkiTensor, count: int, between: Callable[[], None] = lambda: None) -> list[nl.NkiTensor]:
    """Transposes of x, each copied to a tile of its own."""
    tiles = []
    for number in range(count):
        if number:
            between()
        psum = tile(64, 64, dtype=nl.bfloat16, buffer=nl.psum)
        nisa.nc_transpose(dst=psum, data=x_sb)
        tiles.append(tile(64, 64, dtype=nl.bfloat16))
        nisa.tensor_copy(dst=tiles[-1], src=psum)
    return tiles


def multiply(tiles: list[nl.NkiTensor], out: nl.NkiTensor) -> None:
    for place, one in enumerate(tiles[:8]):
        psum = tile(64, 64, buffer=nl.psum)
        nisa.nc_matmul(dst=psum, stationary=one, moving=tiles[-1])
        store(out, place, psum)


@pytest.mark.parametrize(("count", "gone"), [(1, 0), (2, 1), (4, 3), (16, 15), (18, 16)])
def test_copies_that_follow_each_other_are_merged_up_to_a_bank(count: int, gone: int) -> None:
    """A bank holds 16 of these tiles: 64 columns of 2 bytes, 2 KiB."""
    assert removed(programmed(lambda x_sb, out: multiply(turned(x_sb, count), out))) == gone


def test_other_work_of_the_engine_is_in_between() -> None:
    def work() -> None:
        nisa.memset(dst=tile(64, 8), value=0, engine=VECTOR)

    def of_another() -> None:
        nisa.memset(dst=tile(64, 8), value=0, engine=GPSIMD)

    assert removed(programmed(lambda x_sb, out: multiply(turned(x_sb, 4, work), out))) == 0
    assert removed(programmed(lambda x_sb, out: multiply(turned(x_sb, 4, of_another), out))) == 3


def test_what_is_used_before_the_last_is_copied_is_not_merged() -> None:
    def body(x_sb: nl.NkiTensor, out: nl.NkiTensor) -> None:
        (first,) = turned(x_sb, 1)
        nisa.nc_matmul(dst=tile(64, 64, buffer=nl.psum), stationary=first, moving=x_sb)
        multiply([first, *turned(x_sb, 2)], out)

    assert removed(programmed(body)) == 1


@pytest.mark.parametrize("region", ["copies", "readers"])
def test_no_reorder_keeps_copies_apart(region: str) -> None:
    def body(x_sb: nl.NkiTensor, out: nl.NkiTensor) -> None:
        if region == "readers":
            tiles = turned(x_sb, 4)
            with nl.no_reorder():
                multiply(tiles, out)
        else:
            with nl.no_reorder():
                tiles = turned(x_sb, 4)
            multiply(tiles, out)

    assert removed(programmed(body)) == 0


# Whole kernels.
@pytest.mark.parametrize(("fused", "left_out"), [(True, 4), (False, 0)])
def test_attention_loses_the_copies_that_its_profile_lacks(fused: bool, left_out: int) -> None:
    """20 copies of transposes become 5 in both, and those of the scores are gone where nothing stores them."""
    kernel = attention.attention_fused if fused else attention.attention_unfused
    traced = trace(kernel, *(Spec((128, 512), "float32"),) * 3, target="trn2")
    found = rewrite_copies(traced)
    assert found is not None
    copies = [Counter(one.operation.name for one in program.instructions)["tensor_copy"] for program in (traced, found)]
    assert copies[0] - copies[1] == 15 + left_out
    inputs = [drawn(128, 512, seed=seed) for seed in range(3)]
    for one, other in zip(Executor(traced).run(inputs), Executor(found).run(inputs), strict=True):
        np.testing.assert_array_equal(one, other)
    if fused:
        copied_less, reordered = (ListSchedule(Issues(program)).run() for program in (found, traced))
        assert predict(traced).timeline.duration == copied_less.duration < reordered.duration


def test_a_convolution_computes_the_same() -> None:
    image, weights, bias = Spec((128, 6, 34), "float32"), Spec((128, 128, 3, 3), "float32"), Spec((128, 1), "float32")
    traced = trace(convolutions.convolve_rows, image, weights, bias, target="trn2")
    found = rewrite_copies(traced)
    assert found is not None
    inputs = [drawn(*spec.shape, seed=seed) for seed, spec in enumerate((image, weights, bias))]
    for one, other in zip(Executor(traced).run(inputs), Executor(found).run(inputs), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_program_itself_stays_as_it_is() -> None:
    traced = trace(attention.attention_fused, *(Spec((128, 512), "float32"),) * 3, target="trn2")
    before = [(storage.index, storage.shape, storage.address) for storage in traced.storages]
    instructions = list(traced.instructions)
    line = schedule(traced)
    predict(traced)
    assert [(storage.index, storage.shape, storage.address) for storage in traced.storages] == before
    assert traced.instructions == instructions
    assert schedule(traced) == line


def test_there_is_nothing_to_do() -> None:
    traced = trace(kernels.silu, Spec((128, 7168), "bfloat16"), target="trn2")
    assert rewrite_copies(traced) is None
    both = predict(traced)
    assert both.compiled is both.issues


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["product", "turn", "copy", "widen", "scale", "exp", "fill", "store"]),
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    min_size=6,
    max_size=30,
)


@settings(max_examples=80, phases=[Phase.generate])
@given(STEPS, st.sampled_from(["trn1", "trn2"]))
def test_any_kernel_computes_the_same(steps: list[Any], target: str) -> None:
    def body(x_sb: nl.NkiTensor, out: nl.NkiTensor) -> None:
        psum, sbuf = [product(x_sb) for _ in range(3)], [tile(64, 64) for _ in range(3)]
        for one in sbuf:
            nisa.memset(dst=one, value=1)
        narrow, filled = [x_sb] * 3, set[int]()
        for number, (kind, to, of, part) in enumerate(steps):
            columns = slice(part * 16, part * 16 + 32)
            if kind == "product":
                psum[to] = tile(64, 64, buffer=nl.psum) if number % 3 or to in filled else psum[to]
                filled.discard(to)
                nisa.nc_matmul(dst=psum[to], stationary=narrow[of], moving=narrow[to])
            elif kind == "turn":
                turned_psum, narrow[to] = (tile(64, 64, dtype=nl.bfloat16, buffer=b) for b in (nl.psum, nl.sbuf))
                nisa.nc_transpose(dst=turned_psum, data=narrow[of])
                nisa.tensor_copy(dst=narrow[to], src=turned_psum, engine=VECTOR)
            elif kind == "copy":
                sbuf[to] = tile(64, 64)
                nisa.tensor_copy(dst=sbuf[to], src=psum[of], engine=VECTOR)
            elif kind == "widen":
                sbuf[to] = tile(64, 64) if number % 2 else sbuf[to]
                nisa.activation(dst=sbuf[to][:, columns], op=nl.copy, data=psum[of][:, 8:40])
                nisa.memset(dst=sbuf[to][:, 0:16], value=1) if part else None
            elif kind == "scale":
                nisa.tensor_scalar(dst=sbuf[to][:, columns], data=sbuf[of][:, 0:32], op0=nl.add, operand0=1.0)
            elif kind == "exp":
                nisa.activation(dst=sbuf[to], op=nl.sigmoid, data=sbuf[of])
            elif kind == "fill":
                nisa.memset(dst=psum[to][:, columns], value=2, engine=VECTOR)
                filled.add(to)
            else:
                store(out, part, sbuf[of])
        for place in range(3):
            store(out, 3 + place, sbuf[place])

    removed(programmed(body, target))

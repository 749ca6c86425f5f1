"""Convolutions of large images with few channels, computed in strips of rows, against numpy's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from calling import DTYPES, LOWEST, TARGETS, Kernel, Tensor, call, channels_to_hbm, check, hbm, sbuf_channels
from convolutions import Conv, Pool, arrays
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_budgets import peak

from trnrt.kernels.conv.convolving import Pooling
from trnrt.kernels.conv.packing import ConvShape
from trnrt.kernels.conv.strip_plans import LEAST_PIXELS, MOST_CHANNELS, Strips, strips_of
from trnrt.kernels.conv.strips import convolve_strips
from trnrt.nki import Spec, nisa, trace
from trnrt.nki.machine.program import Program
from trnrt.planner.steps import WORKING_BYTES

POOL = Pool((3, 3), (2, 2), (1, 1, 1, 1))
NO_PADS = (0, 0, 0, 0)
TABLE = {
    "7x7 by 2, pooled": Conv((2, 3, 133, 131), 64, (7, 7), (2, 2), (3, 3, 3, 3), act="relu", pool=POOL),
    "7x7 by 2, pooled without padding": Conv((1, 3, 139, 137), 50, (7, 7), (2, 2), NO_PADS, pool=Pool((3, 3))),
    "7x7 by 2, pairs of columns": Conv((2, 3, 134, 132), 64, (7, 7), (2, 2), (3, 3, 3, 3), act="relu", pool=POOL),
    "3x3 by 2, pairs of columns": Conv((1, 3, 132, 134), 32, stride=(2, 2), pads=(1, 1, 1, 1), act="relu"),
    "7x7 by 4, columns in fours": Conv((1, 3, 133, 132), 60, (7, 7), (4, 4), (2, 2, 3, 3), pool=POOL),
    "3x3": Conv((1, 3, 91, 94), 64, act="relu"),
    "3x3, 33 outputs": Conv((2, 3, 90, 93), 33, act="tanh"),
    "3x3 by 2, four strips": Conv((1, 3, 131, 133), 32, stride=(2, 2), pads=(0, 1, 1, 0), pool=Pool((3, 3))),
    "3x3 by 2, 20 outputs": Conv((2, 3, 130, 131), 20, stride=(2, 2), pads=NO_PADS, act="relu", pool=POOL),
    "11x11 by 4, one strip": Conv((1, 3, 299, 290), 96, (11, 11), (4, 4), NO_PADS, act="relu", target="trn1"),
    "one strip, padded and pooled": Conv((2, 3, 100, 90), 70, (5, 5), (2, 2), (2, 2, 2, 2), pool=POOL),
    "all partitions, a batch": Conv((3, 8, 97, 94), 64, (8, 3), pads=(4, 1, 3, 1), act="relu", pool=Pool((2, 2))),
    "averages": Conv((1, 3, 92, 92), 64, act="sigmoid", pool=Pool((2, 2), (2, 2), op="average")),
    "one channel, dilated": Conv((1, 1, 101, 87), 40, (3, 5), (1, 1), (2, 4, 2, 4), (2, 2), pool=Pool((1, 3), (1, 2))),
    "no column sees all": Conv((1, 2, 91, 92), 48, (3, 2), pads=(1, 30, 1, 30)),
    "dilated pool with gaps": Conv((1, 4, 91, 97), 64, pool=Pool((2, 2), (3, 3), (1, 0, 2, 1), (2, 3))),
    "rows of 512": Conv((1, 3, 17, 512), 64, pads=(1, 1, 1, 1)),
    "pooled results do not fill the strips": Conv((1, 3, 91, 91), 30, act="relu", pool=Pool((4, 4), (4, 4))),
}


def body(conv: Conv, columns: int = 0) -> Kernel:
    """The kernel; ``columns``: how many of them stand on partitions, 0 as planned."""

    def kernel(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        dst = (sbuf_channels if conv.places[1] else hbm)(conv.result, x.dtype)
        shape, pooling = described(conv)
        plan = strips_of(dst, x, w, shape, pooling)
        assert plan is not None, "not computed in strips"
        convolve_strips(replace(plan, columns=columns or plan.columns), w, b, conv.act)
        return channels_to_hbm(dst, conv.outputs) if conv.places[1] else dst

    return kernel


def described(conv: Conv) -> tuple[ConvShape, Pooling]:
    pool = conv.pool or Pool((1, 1), (1, 1))
    shape = ConvShape(conv.images[1], conv.size, conv.kernel, conv.stride, conv.pads[:2], conv.dilation)
    return shape, Pooling(pool.op, pool.kernel, pool.stride, pool.pads[:2], pool.dilation)


def traced(conv: Conv, dtype: str, kernel: Kernel) -> Program:
    w = (conv.images[1], 1, conv.kernel[0] * conv.kernel[1], conv.outputs)
    specs = [Spec(conv.images, dtype), Spec(w, dtype), Spec((conv.outputs, 1), "float32")]
    return trace(kernel, *specs, target=conv.target)


def planned(conv: Conv, dtype: str = "bfloat16") -> tuple[int, int]:
    """(strips, kernel columns on partitions of their own) of a convolution; (0, 0) where it is not computed so."""
    plans: list[Strips | None] = []

    def kernel(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        dst = hbm(conv.result, x.dtype)
        plans.append(strips_of(dst, x, w, *described(conv)))
        return dst

    traced(conv, dtype, kernel)
    plan = plans[0]
    return (0, 0) if plan is None else (plan.count, plan.columns)


def run(conv: Conv, dtype: str, columns: int = 0, seed: int = 0) -> None:
    """Compare with numpy."""
    x, w, b = arrays(conv, dtype, seed)
    magnitude = float(conv.sums(np.abs(x), np.abs(w)).max() + np.abs(b).max())
    got = call(body(conv, columns), x, *conv.prepared(w, b), target=conv.target)
    check(got, conv.expected(x, w, b, LOWEST[dtype]), magnitude, conv.length, dtype)


@pytest.mark.parametrize("place", [0, 1], ids=["hbm", "sbuf"])
@pytest.mark.parametrize("name", TABLE)
def test_every_place(name: str, place: int) -> None:
    run(replace(TABLE[name], places=(0, place)), "float32")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_targets_and_dtypes(target: str, dtype: str) -> None:
    run(replace(TABLE["7x7 by 2, pooled"], target=target), dtype)


@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("name", ["7x7 by 2, pooled", "3x3", "3x3, 33 outputs", "11x11 by 4, one strip"])
def test_columns_on_partitions(name: str, columns: int) -> None:
    run(TABLE[name], "float32", columns)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 2, 4])
@pytest.mark.parametrize(
    "name", ["7x7 by 2, pairs of columns", "3x3 by 2, pairs of columns", "7x7 by 4, columns in fours"]
)
def test_columns_that_the_image_has_together(name: str, columns: int, dtype: str) -> None:
    conv = TABLE[name]
    strips, _ = planned(conv)
    if strips * conv.kernel[0] * conv.images[1] * columns <= 128:
        run(conv, dtype, columns)


def test_pairs_of_columns_need_no_padded_image() -> None:
    assert planned(TABLE["7x7 by 2, pairs of columns"]) == (2, 2)


@st.composite
def convolutions(draw: st.DrawFn) -> Conv:
    small = st.integers(1, 3)
    rows, cols = draw(st.integers(85, 100)), draw(st.integers(97, 110))
    kernel = (draw(st.integers(1, 7)), draw(st.integers(1, 7)))
    pads = draw(st.tuples(*[st.integers(0, 3)] * 4))
    conv = Conv(
        (draw(st.integers(1, 2)), draw(st.integers(1, 4)), rows, cols),
        draw(st.sampled_from([5, 32, 40, 64, 96, 128])),
        kernel,
        (draw(small), draw(small)),
        pads,
        (draw(st.integers(1, 2)), draw(st.integers(1, 2))),
        draw(st.sampled_from(["none", "relu"])),
        places=(0, draw(st.integers(0, 1))),
        target=draw(st.sampled_from(TARGETS)),
    )
    if draw(st.booleans()):
        window = (draw(small), draw(small))
        top, left = draw(st.integers(0, window[0] - 1)), draw(st.integers(0, window[1] - 1))
        conv = replace(conv, pool=Pool(window, (draw(small), draw(small)), (top, left, 0, 0)))
    return conv


@settings(max_examples=60)
@given(conv=convolutions(), dtype=st.sampled_from(DTYPES))
def test_any_convolution(conv: Conv, dtype: str) -> None:
    assume(planned(conv, dtype)[0] > 0)
    run(conv, dtype)


FIRST = Conv((1, 3, 224, 224), 64, (7, 7), (2, 2), (3, 3, 3, 3), act="relu", pool=POOL, target="trn1")


@pytest.mark.parametrize(
    ("conv", "strips"),
    [
        (FIRST, 2),
        (replace(FIRST, outputs=65), 1),
        (replace(FIRST, outputs=32), 4),
        (replace(FIRST, outputs=129, pool=None), 0),
        (replace(FIRST, images=(1, 19, 224, 224), pool=None), 0),
        (replace(FIRST, images=(1, 10, 224, 224)), 1),
        (replace(FIRST, images=(8, 3, LEAST_PIXELS // 64 - 1, 64)), 0),
        (replace(FIRST, images=(1, 3, 64, 1100), pool=None), 0),
        (replace(FIRST, kernel=(1, 1), pads=NO_PADS), 0),
        (replace(FIRST, images=(1, MOST_CHANNELS, 224, 224), target="trn2"), 2),
        (replace(FIRST, images=(1, MOST_CHANNELS + 1, 224, 224), target="trn2"), 0),
    ],
)
def test_what_is_computed_in_strips(conv: Conv, strips: int) -> None:
    assert planned(conv)[0] == strips


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["7x7 by 2", "3x3", "3x3, four strips"])
def test_working_memory(name: str, dtype: str) -> None:
    conv = {
        "7x7 by 2": replace(FIRST, images=(2, 3, 224, 224)),
        "3x3": replace(FIRST, kernel=(3, 3), stride=(1, 1), pads=(1, 1, 1, 1), pool=None),
        "3x3, four strips": replace(FIRST, outputs=32, kernel=(3, 3), pads=(1, 1, 1, 1)),
    }[name]
    assert peak(traced(conv, dtype, body(conv))) <= WORKING_BYTES


def test_a_strip_is_half_of_the_products() -> None:
    """The columns that the tensor engine takes in: half the results, and pooling's shared row, for 7 products each."""
    program = traced(FIRST, "bfloat16", body(FIRST, 1))
    columns = sum(i["dst"].free_size for i in program.instructions if i.operation.name == "nc_matmul")
    assert 6 * 57 * 112 < columns <= 7 * 57 * 112


def test_two_engines_trigger_the_first_image() -> None:
    """A trigger takes as long as a small transfer. The last band is the sync engine's, as are the loads behind it."""
    conv = replace(FIRST, places=(0, 1), target="trn2")
    program = traced(conv, "bfloat16", body(conv))
    loads = [i for i in program.instructions if i.operation.name == "dma_copy" and i["dst"].storage.on_chip]
    by_scalar = [i.args.get("engine") is nisa.engine.scalar for i in loads]
    assert len(loads) / 3 < sum(by_scalar) <= len(loads) / 2
    assert not any(by_scalar[-2:])


def test_all_dma_engines_load_the_image() -> None:
    """Each serves eight partitions: pairs of columns are three apart, from the first partition to the last."""
    program = traced(replace(FIRST, target="trn2"), "bfloat16", body(FIRST))
    loads = [i["dst"] for i in program.instructions if i.operation.name == "dma_copy" and i["dst"].storage.on_chip]
    pairs = [dst for dst in loads if dst.shape[0] == 42]
    assert {dst.strides[0] // dst.partition_elements for dst in pairs} == {3}
    assert {dst.first_partition for dst in pairs} == {0, 1}

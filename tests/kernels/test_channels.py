"""Channels between tiles and HBM: any runs of any sources, and which way they take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calling import DTYPES, TARGETS, Array, Tensor, call, channels_in_sbuf, channels_to_hbm, drawn, hbm
from calling import sbuf_channels as tile
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.errors import KernelError
from trnrt.kernels.channels import ENGINE_ELEMENTS, SHARED, move_channels
from trnrt.nki import Spec, nisa, nl, trace

Run = tuple[int, int, int, int, int, int]
Shape = tuple[int, int, int, int]


def moved(shape: Shape, srcs: list[Array], runs: tuple[Run, ...], on_chip: tuple[bool, ...], **options: Any) -> Array:
    """What move_channels gives over zeros; ``on_chip`` says of dst and then each source whether it is in SBUF."""

    def body(*given: Tensor) -> Tensor:
        placed = [channels_in_sbuf(src) if held else src for src, held in zip(given, on_chip[1:], strict=True)]
        if not on_chip[0]:
            result = hbm(shape, given[0].dtype)
            zeros = nl.ndarray((1, *shape), given[0].dtype, nl.sbuf)
            nisa.memset(dst=zeros, value=0.0)
            nisa.dma_copy(dst=result.reshape((1, *shape)), src=zeros)
            move_channels(result, tuple(placed), runs)
            return result
        dst = tile(shape, given[0].dtype)
        nisa.memset(dst=dst, value=0.0)
        move_channels(dst, tuple(placed), runs)
        return channels_to_hbm(dst, shape[1])

    return call(body, *srcs, **options)


def expected(shape: Shape, srcs: list[Array], runs: tuple[Run, ...]) -> Array:
    """One run after the other."""
    result = np.zeros(shape)
    for source, first, step, put, put_step, count in runs:
        taken = srcs[source][:, first : first + (count - 1) * step + 1 : step]
        result[:, put : put + (count - 1) * put_step + 1 : put_step] = taken
    return result


@st.composite
def cases(draw: Any) -> tuple[Shape, list[Shape], tuple[Run, ...]]:
    """Runs one after the other in dst, with gaps, of sources that have what the runs take."""
    n, h, w = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    runs, sources, put = [], [], 0
    for number in range(draw(st.integers(1, 3))):
        count = draw(st.one_of(st.integers(1, 40), st.sampled_from([32, 64, 96, 128, 160, 200])))
        step, put_step = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        first = draw(st.one_of(st.integers(0, 40), st.sampled_from([32, 64, 96, 128])))
        put += draw(st.one_of(st.just(0), st.integers(0, 9)))
        runs.append((number, first, step, put, put_step, count))
        put += (count - 1) * put_step + 1
        sources.append((n, first + (count - 1) * step + 1 + draw(st.integers(0, 3)), h, w))
    return (n, put + draw(st.integers(0, 3)), h, w), sources, tuple(runs)


@given(case=cases(), places=st.lists(st.booleans(), min_size=4, max_size=4), target=st.sampled_from(TARGETS))
@settings(max_examples=60)
def test_any_runs(case: tuple[Shape, list[Shape], tuple[Run, ...]], places: list[bool], target: str) -> None:
    shape, sources, runs = case
    on_chip = tuple(places[: len(sources) + 1])
    if not any(on_chip):
        on_chip = (True, *on_chip[1:])
    srcs = [drawn(size, number) for number, size in enumerate(sources)]
    np.testing.assert_array_equal(moved(shape, srcs, runs, on_chip, target=target), expected(shape, srcs, runs))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_images_side_by_side(dtype: str, target: str) -> None:
    srcs = [drawn((2, c, 3, 5), c, dtype) for c in (64, 130, 96)]
    runs = ((0, 0, 1, 0, 1, 64), (1, 0, 1, 64, 1, 130), (2, 0, 1, 194, 1, 96))
    got = moved((2, 290, 3, 5), srcs, runs, (True, True, True, False), target=target)
    np.testing.assert_array_equal(got, np.concatenate([src.astype(np.float64) for src in srcs], axis=1))


def test_channels_are_shuffled() -> None:
    src = drawn((1, 136, 4, 4), 0)
    runs = tuple((0, group * 34, 1, group, 4, 34) for group in range(4))
    got = moved((1, 136, 4, 4), [src], runs, (True, True))
    np.testing.assert_array_equal(got, src.reshape(1, 4, 34, 4, 4).swapaxes(1, 2).reshape(src.shape))


def instructions(channels: int, run: Run, pixels: int, on_chip: bool = True) -> list[str]:
    """The instructions that move one run of a tile, or of HBM, to a tile of 256 channels."""

    def body(src: Tensor) -> Tensor:
        source = tile((1, channels, 1, pixels), src.dtype) if on_chip else src
        if on_chip:
            nisa.memset(dst=source, value=1.0)
        dst = tile((1, 256, 1, pixels), src.dtype)
        move_channels(dst, (source,), (run,))
        return channels_to_hbm(dst, 256)

    program = trace(body, Spec((1, channels, 1, pixels), "float32"))
    return [i.operation.name for i in program.instructions if i.operation.name != "memset"][:-2]


@pytest.mark.parametrize(
    ("run", "pixels", "taken"),
    [
        ((0, 0, 1, 0, 1, 128), SHARED - 1, ["tensor_copy"]),
        ((0, 0, 1, 0, 1, 128), ENGINE_ELEMENTS, ["tensor_copy", "activation"]),
        ((0, 0, 1, 128, 1, 128), ENGINE_ELEMENTS, ["tensor_copy", "activation"]),
        ((0, 1, 1, 0, 1, 127), 9, ["affine_select", "nc_matmul", "tensor_copy"]),
        ((0, 0, 1, 0, 1, 17), 9, ["tensor_copy"]),
        ((0, 0, 1, 64, 1, 128), 9, ["tensor_copy"] * 2),
        ((0, 0, 1, 32, 1, 96), 9, ["tensor_copy"] * 3),
        ((0, 0, 1, 32, 1, 96), ENGINE_ELEMENTS // 2, ["dma_copy"]),
        ((0, 0, 1, 16, 1, 32), 9, ["dma_copy"]),
        ((0, 0, 2, 0, 1, 64), 9, ["affine_select", "nc_matmul", "tensor_copy"]),
        ((0, 0, 2, 0, 2, 64), 9, ["dma_copy"]),
        ((0, 0, 1, 0, 2, 128), 9, ["dma_copy"] * 2),
    ],
)
def test_the_way_it_takes(run: Run, pixels: int, taken: list[str]) -> None:
    assert instructions(128, run, pixels) == taken


def test_from_hbm_by_dma() -> None:
    assert instructions(128, (0, 0, 1, 0, 1, 128), 9, False) == ["dma_copy"]


def test_what_it_refuses() -> None:
    with pytest.raises(KernelError, match="all tensors are in HBM"):
        moved((1, 4, 1, 1), [drawn((1, 4, 1, 1), 0)], ((0, 0, 1, 0, 1, 4),), (False, False))
    with pytest.raises(KernelError, match="must be at least 1"):
        moved((1, 4, 1, 1), [drawn((1, 4, 1, 1), 0)], ((0, 3, -1, 0, 1, 4),), (True, True))

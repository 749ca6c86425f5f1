"""``nki.language``: tensors with contents, and random numbers."""

from __future__ import annotations

import numpy as np
import pytest
from simulating import NUMPY, TARGETS, Tensor, drawn, give, load, run, same

from trnrt.errors import KernelError
from trnrt.nki import nisa, nl, trace

Buffer = nl.MemoryRegion
REGIONS = (nl.sbuf, nl.psum, nl.private_hbm, nl.shared_hbm)


def returned(tensor: Tensor) -> Tensor:
    """What a kernel can return of any tensor."""
    return give(tensor) if tensor.on_chip else give(load(tensor))


@pytest.mark.parametrize("buffer", REGIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3", "int32", "uint8"])
def test_constants(dtype: str, buffer: Buffer) -> None:
    def kernel() -> tuple[Tensor, Tensor, Tensor]:
        wanted = getattr(nl, dtype)
        made = (
            nl.zeros((64, 10), wanted, buffer),
            nl.ones((64, 10), wanted, buffer),
            nl.full((64, 10), 3, wanted, buffer),
        )
        assert {(tensor.buffer, tensor.dtype, tensor.shape) for tensor in made} == {(buffer, wanted, (64, 10))}
        return returned(made[0]), returned(made[1]), returned(made[2])

    for got, value in zip(run(kernel), (0, 1, 3), strict=True):
        same(got, np.full((64, 10), value, NUMPY[dtype]))


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5, 7), (1000, 301), (129, 2048), (2, 128, 3000)])
def test_a_tensor_of_hbm_is_filled_whatever_its_shape(shape: tuple[int, ...]) -> None:
    got = run(lambda: nl.full(shape, 2.5, dtype=nl.float32, buffer=nl.shared_hbm))
    same(got, np.full(shape, 2.5, np.float32))


def test_names_and_defaults() -> None:
    def kernel(x: Tensor) -> Tensor:
        tile = nl.zeros((4, 4), nl.float32, name="accumulator")
        assert (tile.name, tile.buffer) == ("accumulator", nl.sbuf)
        assert nl.empty_like(x).buffer == nl.shared_hbm
        assert nl.empty_like(tile, dtype=nl.int32, buffer=nl.psum, name="n").dtype == nl.int32
        assert nl.empty_like(nl.ndarray((4, 8), nl.float16, nl.psum)).buffer == nl.psum
        like = nl.zeros_like(nl.ndarray((4, 8), nl.float16, nl.psum))
        assert (like.shape, like.dtype, like.buffer) == ((4, 8), nl.float16, nl.sbuf)
        assert nl.zeros_like(tile, dtype=nl.float32, buffer=nl.psum).buffer == nl.psum
        return give(nl.zeros_like(x, nl.float32))

    same(run(kernel, drawn(4, 4, dtype="int32")), np.zeros((4, 4), np.float32))


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (lambda: nl.zeros((129, 1), nl.float32), "nl.zeros: shape (129, 1) spans 129 partitions"),
        (lambda: nl.zeros((8,), nl.float32), "on chip the least is 2"),
        (lambda: nl.ones((8, 0), nl.float32), "must hold positive integers"),
        (
            lambda: nl.full((8, 8), "one", nl.float32),  # type: ignore[arg-type]
            "fill_value is a str",
        ),
        (lambda: nl.zeros((8, 8), "complex64"), "nl.zeros: the NeuronCore has no dtype 'complex64'"),
        (lambda: nl.ndarray((8, 8), nl.float8_e4m3fn_x4), "a dtype of MX matrix products"),
        (lambda: nl.ndarray((8, 8), nl.float4_e2m1fn_x4), "leaves out"),
        (lambda: nl.zeros((8, 8), nl.float8_e8m0fnu), "leaves out"),
        (
            lambda: nl.zeros_like(3),  # type: ignore[arg-type]
            "nl.zeros_like: x is a int; it must be a tensor",
        ),
        (lambda: nl.random_seed(42), "a [1, 1] tile: nl.random_seed(nl.full((1, 1), 42"),
    ],
)
def test_what_can_not_be_made(body: object, complaint: str) -> None:
    with pytest.raises(KernelError) as error:
        trace(body)  # type: ignore[arg-type]
    assert complaint in str(error.value)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum, nl.shared_hbm])
def test_random_numbers(buffer: Buffer, target: str) -> None:
    got = run(lambda: returned(nl.rand((128, 512), dtype=nl.float32, buffer=buffer)), target=target)
    assert got.min() >= 0
    assert got.max() <= 1
    assert abs(got.mean() - 0.5) < 0.01
    assert abs(got.var() - 1 / 12) < 0.01
    assert len(np.unique(got)) > 30_000


@pytest.mark.parametrize("target", TARGETS)
def test_a_seed_gives_the_same_numbers_again(target: str) -> None:
    """The reference's example, but for numbers of two different seeds."""

    def kernel(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one, other = load(first), load(second)
        nl.random_seed(one)
        a = nl.rand((128, 64), dtype=nl.float32)
        nl.random_seed(one)
        b = nl.rand((128, 64), dtype=nl.float32)
        nl.random_seed(other)
        return give(a), give(b), give(nl.rand((128, 64), dtype=nl.float32))

    a, b, c = run(kernel, np.array([[42]], np.int32), np.array([[43]], np.int32), target=target)
    same(a, b)
    assert (a != c).any()


def test_ndarray_is_not_written() -> None:
    def kernel() -> Tensor:
        tile = nl.ndarray((4, 4), nl.float32)
        nisa.memset(tile[0:1], 1.0)
        return give(tile)

    got = run(kernel)
    assert np.all(got[0] == 1)
    assert np.isnan(got[1:]).all()

"""Random numbers: their bits, ranges and distribution, and the states of the generators."""

from __future__ import annotations

import numpy as np
import pytest
from simulating import NUMPY, Array, drawn, give, load, run, same, tile

from trnrt.nki import nisa, nl, simulate
from trnrt.nki.sim.instructions import random

ENGINES = {"vector": nisa.engine.vector, "gpsimd": nisa.engine.gpsimd}


def bits(shape: tuple[int, ...] = (128, 512), dtype: str = "uint32", engine: str = "vector") -> Array:
    def kernel() -> nl.NkiTensor:
        dst = tile(*shape, dtype=dtype)
        nisa.rng(dst=dst, engine=ENGINES[engine])
        return give(dst)

    result: Array = run(kernel)
    return result


def xorwow(state: Array, count: int) -> list[int]:
    """The reference's generator, a step at a time: x, y, z, w, v, d."""
    x, y, z, w, v, d = (int(word) for word in state)
    found, whole = [], 0xFFFFFFFF
    for _ in range(count):
        t = x ^ (x >> 2)
        x, y, z, w = y, z, w, v
        v = (v ^ (v << 4) ^ t ^ (t << 1)) & whole
        d = (d + 362437) & whole
        found.append((v + d) & whole)
    return found


@pytest.mark.parametrize("count", [1, 4, 5, 6, 23])
def test_numbers_are_xorwow_s(count: int) -> None:
    states = random.seed_states(9, 3, 6)
    first = states.copy()
    numbers = random.draw(states, count)
    again = random.draw(states, 7)
    for lane in range(3):
        expected = xorwow(first[lane], count + 7)
        assert numbers[:, lane].tolist() + again[:, lane].tolist() == expected


@pytest.mark.parametrize("engine", ENGINES)
def test_every_bit_is_random(engine: str) -> None:
    drawn_bits = bits(engine=engine)
    assert drawn_bits.dtype == np.uint32
    for bit in range(32):
        assert abs((drawn_bits >> np.uint32(bit) & 1).mean() - 0.5) < 0.01
    numbers = drawn_bits / 2.0**32
    assert abs(np.corrcoef(numbers[:, 1:].ravel(), numbers[:, :-1].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(numbers[1:].ravel(), numbers[:-1].ravel())[0, 1]) < 0.02


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32"])
def test_narrow_integers_get_the_low_bits(dtype: str) -> None:
    whole = bits((16, 24))
    assert (bits((16, 24), dtype) == whole.astype(NUMPY[dtype])).all()


def test_a_call_begins_anew_and_instructions_go_on() -> None:
    def kernel() -> tuple[nl.NkiTensor, nl.NkiTensor]:
        first, second = tile(8, 16, dtype=nl.uint32), tile(8, 16, dtype=nl.uint32)
        nisa.rng(first)
        nisa.rng(second)
        return give(first), give(second)

    simulated = simulate(kernel)
    one, other = simulated()
    assert not (one == other).any()
    again = simulated()
    same(again[0], one)
    same(again[1], other)


def test_a_seed_gives_its_sequence() -> None:
    def kernel(seeds: nl.NkiTensor) -> tuple[nl.NkiTensor, ...]:
        tiles = load(seeds)
        found = []
        for i in range(3):
            nisa.set_rng_seed(tiles[0:1, i : i + 1])
            dst = tile(128, 8, dtype=nl.uint32)
            nisa.rng(dst)
            found.append(give(dst))
        return tuple(found)

    a, b, c = run(kernel, np.array([[42, -7, 42]], np.int32))
    same(a, c)
    assert not (a == b).any()
    floats = run(kernel, np.array([[1.5, 2.5, 1.5]], np.float32))
    same(floats[0], floats[2])


def test_lanes_are_partitions() -> None:
    """What partitions 32 to 63 draw does not move the states of the others."""

    def kernel() -> tuple[nl.NkiTensor, nl.NkiTensor]:
        part, whole = tile(64, 4, dtype=nl.uint32), tile(128, 4, dtype=nl.uint32)
        nisa.memset(part, 0)
        nisa.rng(part[32:64], engine=nisa.engine.gpsimd)
        nisa.rng(whole, engine=nisa.engine.gpsimd)
        return give(part), give(whole)

    part, whole = run(kernel)
    sequence = bits((128, 8), engine="gpsimd")
    same(part[32:], sequence[32:64, :4])
    same(whole[:32], sequence[:32, :4])
    same(whole[32:64], sequence[32:64, 4:])
    same(whole[64:], sequence[64:, :4])


@pytest.mark.parametrize(("engine", "words", "target"), [("gpsimd", 6, "trn2"), ("vector", 24, "trn3")])
def test_states_can_be_saved_and_restored(engine: str, words: int, target: str) -> None:
    on = ENGINES[engine]

    def kernel(seeds: nl.NkiTensor) -> tuple[nl.NkiTensor, ...]:
        nisa.rand_set_state(load(seeds), engine=on)
        first, state, second, third = (tile(128, n, dtype=nl.uint32) for n in (9, words, 10, 10))
        nisa.rng(first, engine=on)
        nisa.rand_get_state(state, engine=on)
        nisa.rng(second, engine=on)
        nisa.rand_set_state(state, engine=on)
        nisa.rng(third, engine=on)
        return give(first), give(second), give(third)

    seeds = drawn(128, words, dtype="uint32")
    first, second, third = run(kernel, seeds, target=target)
    same(second, third)
    count = words // 6
    turns = [xorwow(seeds[5, 6 * g : 6 * g + 6], 9) for g in range(count)]
    assert first[5].tolist() == [turns[i % count][i // count] for i in range(9)]


def test_a_state_that_was_set_is_the_one_that_is_read() -> None:
    def kernel(seeds: nl.NkiTensor) -> nl.NkiTensor:
        nisa.rand_set_state(load(seeds))
        state = tile(128, 6, dtype=nl.uint32)
        nisa.rand_get_state(state)
        return give(state)

    seeds = drawn(128, 6, dtype="uint32")
    same(run(kernel, seeds), seeds)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2", "int16"])
def test_rand2_is_uniform_between_its_bounds(dtype: str) -> None:
    def kernel() -> nl.NkiTensor:
        dst = tile(128, 400, dtype=dtype)
        nisa.rand2(dst=dst, min=-2.0, max=6.0)
        return give(dst)

    got = run(kernel, target="trn3").astype(np.float64)
    assert got.min() >= -2
    assert got.max() <= 6
    assert abs(got.mean() - 2) < 0.1
    assert abs(got.std() - 8 / 12**0.5) < 0.1


def test_rand2_takes_bounds_for_each_partition() -> None:
    def kernel(low: nl.NkiTensor, high: nl.NkiTensor) -> nl.NkiTensor:
        dst = tile(128, 100)
        nisa.rand2(dst=dst, min=load(low), max=load(high))
        return give(dst)

    low = np.arange(128, dtype=np.float32)[:, None]
    got = run(kernel, low, low + 1, target="trn3")
    assert ((got >= low) & (got <= low + 1)).all()
    assert abs((got - low).mean() - 0.5) < 0.02


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
@pytest.mark.parametrize("prob", [0.0, 0.2, 1.0])
def test_dropout_keeps_or_zeroes(dtype: str, prob: float) -> None:
    """Nothing is scaled; a probability of 1 drops all, of 0 none."""

    def kernel(x: nl.NkiTensor) -> nl.NkiTensor:
        dst = tile(*x.shape, dtype=x.dtype)
        nisa.dropout(dst=dst, data=load(x), prob=prob)
        return give(dst)

    x = drawn(128, 512, dtype=dtype)
    x[x == 0] = 1
    got = run(kernel, x)
    dropped = got == 0
    assert abs(dropped.mean() - prob) < 0.01
    same(got, np.where(dropped, x.dtype.type(0), x).astype(x.dtype))


def test_dropout_with_a_probability_for_each_partition() -> None:
    def kernel(x: nl.NkiTensor, prob: nl.NkiTensor) -> nl.NkiTensor:
        dst = tile(128, 16, 32)
        nisa.dropout(dst, load(x), load(prob))
        return give(dst)

    prob = np.linspace(0, 1, 128, dtype=np.float32)[:, None]
    got = run(kernel, np.ones((128, 16, 32), np.float32), prob)
    assert np.abs((got == 0).mean(axis=(1, 2)) - prob[:, 0]).max() < 0.1


def test_loops_on_the_device_go_on_drawing() -> None:
    def kernel() -> nl.NkiTensor:
        out = nl.ndarray((3, 8, 4), nl.uint32, nl.shared_hbm)

        def body(i: nisa.VirtualRegister) -> None:
            dst = tile(8, 4, dtype=nl.uint32)
            nisa.rng(dst)
            nisa.dma_copy(dst=out.select(0, i), src=dst)

        nl.fori_loop(0, 3, body)
        return out

    got = run(kernel)
    expected = bits((8, 12)).reshape(8, 3, 4).transpose(1, 0, 2)
    same(got, np.ascontiguousarray(expected))

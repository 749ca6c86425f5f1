"""Where tiles live: reuse by liveness, capacity, PSUM banks, and addresses that the kernel gives."""

from __future__ import annotations

import inspect
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulating import Kernel, Tensor, tile, traced, zeros

from trnrt.errors import KernelMemoryError
from trnrt.nki import nisa, nl
from trnrt.nki.machine.lifetimes import find_lifetimes
from trnrt.nki.machine.memory import allocate
from trnrt.nki.machine.program import MemoryUse, Program, Storage
from trnrt.nki.machine.targets import get_target

USABLE = {"trn1": 176 * 1024, "trn2": 208 * 1024, "trn3": 240 * 1024}


def use(*tiles: Tensor) -> None:
    """Instructions that touch the tiles, each twice, so that all live at once."""
    for one in (*tiles, *tiles):
        nisa.memset(dst=one[:, 0:1], value=0.0)


def placed(body: Kernel, target: str = "trn2") -> tuple[list[int], MemoryUse]:
    """The byte addresses of the tiles of a body, in the order of their allocation."""
    program = traced(body, target=target)
    return [s.address[1] for s in program.storages if s.address is not None], allocate(program)


def refused(body: Kernel, target: str = "trn2") -> str:
    with pytest.raises(KernelMemoryError) as error:
        traced(body, target=target)
    return str(error.value)


def check_no_overlap(program: Program) -> None:
    """No two tiles that live at once share a byte, none leaves its memory or straddles banks needlessly."""
    spans, target = find_lifetimes(program), program.target
    tiles = [s for s in program.storages if s.address is not None and s.index in spans]
    for one, other in combinations(tiles, 2):
        together = spans[one.index][0] <= spans[other.index][1] and spans[other.index][0] <= spans[one.index][1]
        if one.buffer is other.buffer and together:
            assert apart(one, other), f"{one} at {one.address}, {other} at {other.address}"
    for one in tiles:
        assert one.address is not None
        start, end = one.address[1], one.address[1] + one.partition_bytes
        assert start >= 0
        if one.buffer is nl.psum:
            assert end <= target.psum_bytes
            bank = target.psum_bank_bytes
            assert start % bank == 0 if one.partition_bytes > bank else start // bank == (end - 1) // bank
        else:
            assert end <= target.sbuf_usable_bytes


def apart(one: Storage, other: Storage) -> bool:
    assert one.address is not None and other.address is not None
    ends = [s.address[1] + s.partition_bytes for s in (one, other) if s.address is not None]
    return ends[0] <= other.address[1] or ends[1] <= one.address[1]


def test_memory_is_used_again() -> None:
    def body() -> None:
        for _ in range(100):
            use(tile(128, 40000))

    addresses, peak = placed(body)
    assert set(addresses) == {0}
    assert peak == MemoryUse(160000, 0)


def test_a_tile_lives_to_its_last_use() -> None:
    def body() -> None:
        kept, brief = tile(128, 20000), tile(128, 30000)
        use(kept, brief)
        after = tile(128, 31000)
        use(after, kept)

    addresses, peak = placed(body)
    assert addresses == [0, 80000, 80000]
    assert peak.sbuf_peak_bytes == 204000


def test_what_an_instruction_reads_and_writes_lives_at_once() -> None:
    def body() -> None:
        x, y = zeros(128, 8), tile(128, 8)
        nisa.tensor_copy(dst=y, src=x)

    assert placed(body)[0] == [0, 32]


def test_the_lowest_gap_is_taken() -> None:
    def body() -> None:
        a, b, c = tile(128, 4800), tile(128, 9600), tile(128, 14400)
        use(a, b, c)
        use(tile(128, 9000), a, c)
        use(tile(128, 19800), a, c)

    assert placed(body)[0] == [0, 19200, 57600, 19200, 115200]


def test_tiles_that_nothing_touches_have_no_address() -> None:
    def body() -> None:
        for _ in range(10):
            tile(128, 50000)
        use(tile(128, 8))

    assert placed(body)[0] == [0]


@pytest.mark.parametrize("target", USABLE)
def test_capacity_is_the_target_s(target: str) -> None:
    def body(last: int) -> Kernel:
        def fill() -> None:
            tiles = [tile(128, 1024 * 4, name=f"t{i}") for i in range(USABLE[target] // 16384 - 1)]
            use(*tiles, tile(128, last))
            use(*tiles)

        return fill

    tile_bytes = USABLE[target] - (USABLE[target] // 16384 - 1) * 16384
    assert get_target(target).sbuf_usable_bytes == USABLE[target]
    assert placed(body(tile_bytes // 4), target)[1].sbuf_peak_bytes == USABLE[target]
    assert f"of {USABLE[target]} are free" in refused(body(tile_bytes // 4 + 1), target)


def test_overflow_lists_the_tiles_that_live() -> None:
    def body() -> None:
        use(tile(128, 10000, name="gone"))
        small, large = tile(128, 1000, name="small"), tile(64, 50000, name="large")
        use(small, large, tile(128, 3000, name="too_much"))

    message = refused(body)
    assert "SBUF is full: too_much [128x3000] float32 (" in message
    assert "needs 12000 bytes a partition; 8992 of 212992 are free" in message
    assert "alive at that point (2 tiles, bytes a partition):" in message
    largest = message.index("  200000 bytes at   4000: large [64x50000] float32 (")
    assert largest < message.index("    4000 bytes at      0: small [128x1000] float32 (")
    assert "gone" not in message


def test_overflow_names_the_source_lines_of_tiles() -> None:
    def body() -> None:
        first = nl.ndarray((128, 30000), nl.float32)
        second = nl.ndarray((128, 30000), nl.float32)
        use(first, second)

    message, line = refused(body), inspect.getsourcelines(body)[1]
    assert f"tile [128x30000] float32 ({__file__}:{line + 2} in body) needs 120000 bytes" in message
    assert f"120000 bytes at      0: tile [128x30000] float32 ({__file__}:{line + 1} in body)" in message


def test_a_long_list_is_cut() -> None:
    def body() -> None:
        tiles = [tile(128, 50000 - i) if i == 0 else tile(128, 64) for i in range(40)]
        use(*tiles)
        use(*tiles, tile(128, 1000))

    assert "and 20 smaller ones, 5120 bytes together" in refused(body)


# PSUM.
def test_psum_tiles_take_turns_on_the_banks() -> None:
    def body() -> None:
        for _ in range(10):
            use(tile(128, 128, buffer=nl.psum))

    assert [address // 2048 for address in placed(body)[0]] == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]


def test_psum_tiles_do_not_straddle_banks() -> None:
    def body() -> None:
        tiles = [tile(128, 300, buffer=nl.psum) for _ in range(8)]
        small = [tile(128, 200, buffer=nl.psum) for _ in range(8)]
        use(*tiles, *small)

    program = traced(body)
    check_no_overlap(program)
    assert allocate(program).psum_peak_bytes == 16000
    assert "PSUM is full" in refused(lambda: use(*(tile(128, 300, buffer=nl.psum) for _ in range(9))))


def test_large_psum_tiles_start_at_a_bank() -> None:
    """A matmul into the first 512 columns of one must find them in one bank."""

    def body() -> None:
        use(tile(128, 1024, buffer=nl.psum), tile(128, 8, buffer=nl.psum), tile(128, 1024, buffer=nl.psum))

    assert placed(body)[0] == [0, 4096, 6144]


def test_rotation_does_not_waste_what_a_large_tile_needs() -> None:
    """Small tiles in turn leave no two banks side by side; packed, all fit."""

    def body() -> None:
        small = [tile(128, 16, buffer=nl.psum) for _ in range(4)]
        gone = [tile(128, 512, buffer=nl.psum) for _ in range(4)]
        use(*small, *gone)
        use(*small, tile(128, 512 * 6, buffer=nl.psum))

    program = traced(body)
    check_no_overlap(program)
    assert allocate(program).psum_peak_bytes == 4 * 64 + 6 * 2048


def test_fragments_are_packed() -> None:
    """First fit leaves two gaps of 40 KiB; a tile of 80 KiB that fits the sum of them is no reason to refuse."""

    def body() -> None:
        tiles = [tile(128, 10240) for _ in range(5)]
        use(*tiles)
        use(tiles[1], tiles[3])
        use(tile(128, 20480 + 2048), tiles[1], tiles[3])

    program = traced(body)
    check_no_overlap(program)
    assert allocate(program).sbuf_peak_bytes == 5 * 40960


def test_what_can_t_fit_is_refused_before_packing() -> None:
    def body() -> None:
        tiles = [tile(128, 10240) for _ in range(5)]
        use(*tiles)
        use(tiles[1], tiles[3])
        use(tile(128, 40000), tiles[1], tiles[3])

    assert "needs 160000 bytes a partition; 131072 of 212992 are free" in refused(body)


# Addresses that the kernel gives.
def test_addresses_are_kept_and_worked_around() -> None:
    def body() -> None:
        fixed = tile(128, 1000, address=(0, 1024))
        before, beside = tile(128, 256), tile(128, 300)
        use(before, beside, fixed)

    assert placed(body)[0] == [1024, 0, 5024]


def test_addresses_of_tiles_that_come_later_are_left_free() -> None:
    def body() -> None:
        long, brief = tile(128, 100), tile(128, 100)
        use(long)
        use(brief)
        use(tile(128, 100, address=(0, 0)), long)

    addresses, _ = placed(body)
    assert addresses == [416, 0, 0]


def test_the_same_address_one_after_the_other() -> None:
    def body() -> None:
        for _ in range(3):
            x, y = tile(128, 100, address=(0, 512)), tile(128, 100, buffer=nl.psum, address=(0, 4096))
            use(x, y)

    addresses, peak = placed(body)
    assert addresses == [512, 4096] * 3
    assert peak == MemoryUse(400, 400)


def test_the_same_bytes_on_other_partitions() -> None:
    def body() -> None:
        use(tile(64, 100, address=(0, 0)), tile(64, 100, address=(64, 0)))

    addresses, peak = placed(body)
    assert addresses == [0, 0]
    assert peak.sbuf_peak_bytes == 400


def test_two_live_tiles_at_one_address_are_explained() -> None:
    def body() -> None:
        one = nl.ndarray((128, 64), nl.float32, name="one", address=(0, 0))
        two = nl.ndarray((128, 64), nl.float32, name="two", address=(0, 128))
        use(one, two)
        use(one)

    message, line = refused(body), inspect.getsourcelines(body)[1]
    assert "two live tiles share SBUF bytes 128 to 256 of a partition:" in message
    assert f"one [128x64] float32 ({__file__}:{line + 1} in body) at address (0, 0)" in message
    assert f"two [128x64] float32 ({__file__}:{line + 2} in body) at address (0, 128)" in message
    assert "writing one destroys the other; give them addresses that do not overlap" in message


def test_one_instruction_does_not_read_and_write_the_same_bytes_as_two_tiles() -> None:
    def body() -> None:
        one = zeros(128, 64, name="one", address=(0, 0))
        nisa.tensor_copy(dst=tile(128, 64, dtype=nl.bfloat16, name="two", address=(0, 0)), src=one)

    assert "two live tiles share SBUF bytes 0 to 128 of a partition" in refused(body)


def test_overflow_counts_fixed_tiles() -> None:
    def body() -> None:
        use(tile(128, 30000, name="fixed", address=(0, 40960)), tile(128, 30000, name="free"))

    message = refused(body)
    assert "120000 bytes at  40960: fixed" in message
    assert "needs 120000 bytes a partition; 92992 of 212992 are free" in message


SIZES = st.integers(1, 30000)


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[bool, int, int | None, int, int]]:
    """Tiles as (in PSUM, elements, fixed address, first and last use)."""
    tiles = []
    for _ in range(draw(st.integers(1, 25))):
        psum, first = draw(st.booleans()), draw(st.integers(0, 30))
        size = draw(st.integers(1, 1500 if psum else 20000))
        fixed = draw(st.one_of(st.none(), st.none(), st.integers(0, 7).map(lambda n: n * 2048)))
        tiles.append((psum, size, fixed, first, first + draw(st.integers(0, 10))))
    return tiles


@settings(max_examples=300)
@given(lives())
def test_no_two_live_tiles_ever_share_a_byte(tiles: list[tuple[bool, int, int | None, int, int]]) -> None:
    def body() -> None:
        made = [
            tile(128, size, buffer=nl.psum if psum else nl.sbuf, address=None if fixed is None else (0, fixed))
            for psum, size, fixed, _, _ in tiles
            if fixed is None or not psum or fixed + size * 4 <= 16384
        ]
        for step in range(45):
            for one, (*_, first, last) in zip(made, tiles, strict=False):
                if step in (first, last):
                    use(one)

    try:
        program = traced(body)
    except KernelMemoryError as error:
        assert "is full" in str(error) or "live tiles share" in str(error)
    else:
        check_no_overlap(program)


def test_many_tiles() -> None:
    """Thousands of live tiles, so that a quadratic walk would be felt."""

    def body() -> None:
        waiting: list[Tensor] = []
        for _ in range(6000):
            waiting.append(tile(128, 1))
            use(waiting[-1])
            if len(waiting) > 2000:
                use(waiting.pop(0))

    addresses, peak = placed(body)
    assert max(addresses) == 5999 * 32  # each its own place: they fit
    assert peak.sbuf_peak_bytes == 2001 * 4

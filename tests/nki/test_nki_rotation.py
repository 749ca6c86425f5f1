"""How many places the tiles of an allocation in a loop take turns on."""

from __future__ import annotations

from time import process_time

from simulating import tile, traced

from trnrt.nki import nisa, nl, trace
from trnrt.nki.machine.dtypes import float32
from trnrt.nki.machine.lifetimes import find_lifetimes
from trnrt.nki.machine.program import MemoryRegion, Source, Storage
from trnrt.nki.machine.rotation import rotate
from trnrt.nki.machine.targets import get_target

USABLE = 208 * 1024
DEPTH = get_target("trn2").timing.places


def touched(*tiles: nl.NkiTensor) -> None:
    for one in tiles:
        nisa.memset(dst=one[:, 0:1], value=0.0)


def addresses(body: object) -> list[int]:
    program = traced(body)  # type: ignore[arg-type]
    return [s.address[1] for s in program.storages if s.address is not None]


def test_tiles_of_a_loop_rotate() -> None:
    def body() -> None:
        for _ in range(20):
            touched(tile(128, 8))

    assert addresses(body) == [i % DEPTH * 32 for i in range(20)]


def test_a_list_of_tiles_that_live_at_once_rotates_as_a_whole() -> None:
    def body() -> None:
        for _ in range(20):
            several = [tile(128, 8) for _ in range(3)]
            touched(*several)
            touched(*several)

    assert addresses(body) == [i % (3 * DEPTH) * 32 for i in range(60)]


def test_less_memory_means_fewer_places() -> None:
    def body() -> None:
        for _ in range(10):
            touched(tile(128, USABLE // 4 // 3 - 8))

    assert len(set(addresses(body))) == 3


def test_every_pool_has_two_places_before_one_has_three() -> None:
    def body() -> None:
        for _ in range(10):
            small, large = tile(128, USABLE // 4 // 16), tile(128, USABLE // 4 // 4)
            touched(small, large)
            touched(small, large)

    found = addresses(body)
    assert (len(set(found[0::2])), len(set(found[1::2]))) == (4, 3)  # of 16ths: 4 + 3 * 4


def test_each_time_round_a_whole_kernel_has_places_of_its_own() -> None:
    """Where the small tiles would have no second places beside the large ones: they rotate as if it were alone."""

    def found(times: int) -> list[int]:
        def kernel() -> nl.NkiTensor:
            for _ in range(times):
                first = tile(128, USABLE // 4 * 7 // 16)
                for _ in range(6):
                    touched(first, tile(128, USABLE // 4 // 16))
                second = tile(128, USABLE // 4 * 7 // 16)
                for _ in range(6):
                    touched(second, tile(128, USABLE // 4 // 16))
            return nl.ndarray((1,), nl.float32, nl.shared_hbm)

        return [s.address[1] for s in trace(kernel, target="trn2").storages if s.address is not None]

    once, twice = found(1), found(2)
    assert len(set(once[1:7])) == len(set(once[8:])) == 6
    assert twice == once + once


def test_where_pools_do_not_fit_tiles_are_placed_as_they_fit() -> None:
    """The tiles of each helper's line leave gaps that only its own next ones could use."""

    def body() -> None:
        first, second = tile(128, 20000), tile(128, 30000)
        touched(first, second)
        touched(first, second)
        third = tile(128, 28000)
        touched(third, first)
        touched(third, tile(128, 20000), tile(128, 1000))
        touched(third)

    assert max(addresses(body)) < USABLE


def test_a_pool_s_memory_is_used_again_after_its_last_tile() -> None:
    def body() -> None:
        for _ in range(3):
            touched(tile(128, 15000))
        for _ in range(3):
            touched(tile(128, 16000))

    found = addresses(body)
    assert found[:3] == [0, 60000, 120000]
    assert found[3:] == [0, 64000, 128000]


def test_pools_share_no_addresses_where_there_is_room() -> None:
    def body() -> None:
        for _ in range(3):
            touched(tile(128, 1000))
        for _ in range(3):
            touched(tile(128, 2000))

    assert addresses(body) == [0, 4000, 8000, 12000, 20000, 28000]


def test_two_calls_of_a_helper_are_two_pools() -> None:
    """A pool is of one line of the kernel, too: one helper makes weights that stay and tiles that go."""

    def kernel() -> nl.NkiTensor:
        kept = tile(128, 100)
        touched(kept)
        for _ in range(3 * DEPTH):
            touched(tile(128, 100), kept)
        out = nl.ndarray((128, 100), nl.float32, nl.shared_hbm)
        nisa.dma_copy(dst=out, src=kept)
        return out

    found = [s.address[1] for s in trace(kernel).storages if s.address is not None]
    assert found[0] not in found[1:]
    assert len(set(found[1:])) == DEPTH


def test_an_address_of_the_kernel_s_own_turns_rotation_off() -> None:
    def body() -> None:
        touched(tile(128, 8, address=(0, 4096)))
        for _ in range(5):
            touched(tile(128, 8))

    assert set(addresses(body)) == {4096, 0}


def test_tiles_of_a_place_do_not_live_at_once() -> None:
    def body() -> None:
        live: list[nl.NkiTensor] = []
        for i in range(200):
            live.append(tile(128, 8 + 8 * (i % 3)))
            touched(live[-1])
            if i % 7 == 0:
                touched(live.pop(0))

    program = traced(body)
    spans = find_lifetimes(program)
    tiles: list[Storage] = [s for s in program.storages if s.address is not None]
    for one in tiles:
        for other in tiles:
            if one.index < other.index and spans[one.index][1] >= spans[other.index][0]:
                assert one.address is not None and other.address is not None
                first, second = one.address[1], other.address[1]
                assert first + one.partition_bytes <= second or second + other.partition_bytes <= first


def test_many_pools_that_fill_the_memory_are_divided_quickly() -> None:
    """A long model has many allocations, of which few live at once."""
    tiles = [
        Storage(i, (128, 8000), float32, MemoryRegion.sbuf, "", Source("kernel.py", i // 4, "kernel"), line=i // 4)
        for i in range(8000)
    ]
    began = process_time()
    assert rotate(tiles, {i: (2 * i, 2 * i + 3) for i in range(8000)}, USABLE, DEPTH)
    assert process_time() - began < 15  # it took 26 s when each was compared with all before it


def test_pools_take_places_in_another_order_where_gaps_are_too_small() -> None:
    """In the order of first tiles the second lies in the middle of what the third needs."""
    sizes, spans = (40, 20, 60), {0: (0, 3), 1: (0, 9), 2: (5, 9)}
    tiles = [
        Storage(i, (128, 80 * size), float32, MemoryRegion.sbuf, "", Source("kernel.py", i, "kernel"), line=i)
        for i, size in enumerate(sizes)
    ]
    assert rotate(tiles, spans, 100 * 320, DEPTH)
    places = [tile.address[1] // 320 if tile.address else -1 for tile in tiles]
    assert places == [0, 60, 0]
    assert not rotate(tiles, spans, 79 * 320, DEPTH)


def test_of_many_pools_each_has_second_places() -> None:
    """However many there are: to ask for one after the other would end before the last ones had theirs."""
    pools, capacity = 300, 100 * 320
    tiles = [
        Storage(i, (128, 80 * 50), float32, MemoryRegion.sbuf, "", Source("kernel.py", i // 4, "kernel"), line=i // 4)
        for i in range(4 * pools)
    ]
    assert rotate(tiles, {i: (i, i) for i in range(4 * pools)}, capacity, DEPTH)
    for pool in range(pools):
        assert len({tile.address for tile in tiles[4 * pool : 4 * pool + 4]}) == 2


def test_large_tiles_of_a_loop_keep_no_places_where_memory_is_too_small() -> None:
    """Two lines of a loop whose tiles do not live at once share addresses; the small tiles beside them still rotate."""

    def body() -> None:
        for _ in range(4):
            first = tile(128, USABLE // 4 * 2 // 3)
            touched(first, first)
            second = tile(128, USABLE // 4 * 2 // 3)
            touched(second, second)
            small = tile(128, 8)
            touched(small)

    found = addresses(body)
    large = USABLE // 4 * 2 // 3 * 4
    assert all(abs(a - b) < large for a, b in zip(found[0::3], found[1::3], strict=True))
    assert len(set(found[2::3])) == 4

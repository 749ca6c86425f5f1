"""Hazards against a count byte by byte: nothing starts before the memory that it touches may be touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from time import process_time
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from random_programs import ACTIONS, run
from simulating import tile

from trnrt.nki import Spec, nisa, nki, nl, profile, trace
from trnrt.nki.machine.program import MemoryRegion, Program, Storage, View
from trnrt.nki.machine.timing import Timeline, schedule
from trnrt.nki.machine.timing.issues import ENGINES

HBM, SBUF = "hbm", "sbuf"


def timed(body: Callable[..., Any], *specs: Spec, target: str = "trn2") -> Timeline:
    """The timeline of a kernel's body, which returns nothing."""

    def kernel(*arguments: Any) -> nl.NkiTensor:
        body(*arguments)
        return nl.ndarray((1, 1), nl.float32, nl.shared_hbm)

    return schedule(trace(kernel, *specs, target=target))


def places(storage: Storage, byte: int) -> tuple[object, ...]:
    """Where a byte of a storage lies: on chip storages share addresses."""
    if not storage.on_chip:
        return (storage.index, byte)
    assert storage.address is not None
    partition, within = divmod(byte, storage.partition_bytes)
    return (storage.buffer, storage.address[0] + partition, storage.address[1] + within)


def touched(view: View) -> Iterator[tuple[object, ...]]:
    size = view.dtype.itemsize
    for index in product(*(range(count) for count in view.shape)):
        element = view.offset + sum(i * s for i, s in zip(index, view.strides, strict=True))
        for byte in range(element * size, (element + 1) * size, 2):
            yield places(view.storage, byte)


@dataclass
class Use:
    writer: int
    readers: list[int]


def dependencies(program: Program) -> set[tuple[int, int, bool]]:
    """(earlier, later, whether the earlier one only reads) of all pairs that touch a byte, later ones by the last."""
    uses: dict[tuple[object, ...], Use] = {}
    found = set()
    for number, instruction in enumerate(program.instructions):
        for place in {place for view in instruction.reads() for place in touched(view)}:
            use = uses.setdefault(place, Use(-1, []))
            found.add((use.writer, number, False))
            use.readers.append(number)
        for place in {place for view in instruction.writes() for place in touched(view)}:
            use = uses.get(place, Use(-1, []))
            found.add((use.writer, number, False))
            found.update((reader, number, True) for reader in use.readers)
            uses[place] = Use(number, [])
    return {(earlier, later, reads) for earlier, later, reads in found if -1 < earlier != later}


def violations(timeline: Timeline) -> list[str]:
    """The dependencies that the timeline does not keep."""
    begins = list(timeline.start)
    for transfer in timeline.transfers:
        begins[transfer.issue] = transfer.triggered
    wrong = []
    for earlier, later, reads in sorted(dependencies(timeline.program)):
        in_order = timeline.lane[earlier] == timeline.lane[later] < len(ENGINES)
        free = timeline.start[earlier] if reads and in_order else timeline.end[earlier]
        if begins[later] < free:
            names = [timeline.program.instructions[i].operation.name for i in (earlier, later)]
            wrong.append(f"{later} {names[1]} begins at {begins[later]}, before {earlier} {names[0]} ends at {free}")
    return wrong


@settings(max_examples=60, phases=[Phase.generate])
@given(ACTIONS, st.sampled_from(["trn1", "trn2"]))
def test_nothing_starts_before_what_it_depends_on(actions: list[Any], target: str) -> None:
    assert violations(timed(lambda: run(actions, target), target=target)) == []


def test_a_tile_waits_for_those_that_live_at_other_partitions_of_its_bytes_no_longer() -> None:
    """The first tile is used after the second took the same bytes of other partitions; the third waits for that use."""

    def body() -> None:
        first = tile(32, 64, address=(0, 0))
        nisa.memset(dst=first, value=0, engine=nisa.engine.vector)
        second = tile(32, 64, address=(32, 0))
        nisa.memset(dst=second, value=0, engine=nisa.engine.vector)
        nisa.activation(dst=tile(32, 64, address=(0, 1024)), op=nl.exp, data=first)
        third = tile(32, 64, address=(0, 0))
        nisa.memset(dst=third, value=0, engine=nisa.engine.vector)
        nisa.tensor_copy(dst=tile(32, 64, address=(32, 1024)), src=second, engine=nisa.engine.vector)

    assert violations(timed(body)) == []


@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_a_load_waits_for_the_store_of_what_it_overwrites(target: str) -> None:
    """On trn1 both are in one queue, whose loads run ahead of its stores; a slow one is before this store."""

    def body(x: nl.NkiTensor) -> None:
        out, held = nl.ndarray((2, 16, 8), nl.float32, nl.private_hbm), tile(16, 8)
        slow = tile(16, 64)
        nisa.memset(dst=held, value=0, engine=nisa.engine.vector)
        for _ in range(60):
            nisa.memset(dst=slow, value=0, engine=nisa.engine.gpsimd)
        nisa.dma_copy(dst=nl.ndarray((16, 64), nl.float32, nl.private_hbm), src=slow)
        nisa.dma_copy(dst=out[0], src=held)
        nisa.dma_copy(dst=held, src=x)

    assert violations(timed(body, Spec((16, 8), "float32"), target=target)) == []


def test_a_wait_for_two_transfers_of_a_queue_ends_with_the_later() -> None:
    """The first is on one DMA engine, the second, on another, is done long before."""

    def body(x: nl.NkiTensor) -> None:
        held = tile(16, 4096)
        nisa.dma_copy(dst=held[0:8], src=x[0:8])
        nisa.dma_copy(dst=held[8:16, 0:8], src=x[8:16, 0:8])
        nisa.tensor_copy(dst=tile(16, 4), src=held[:, 0:4])

    assert violations(timed(body, Spec((16, 4096), "float32"))) == []


@pytest.mark.usefixtures("level_0_6")
def test_an_iteration_waits_for_what_its_own_producer_made() -> None:
    def body() -> None:
        for _ in nl.dynamic_range(3):
            first = nisa.memset(dst=tile(128, 512), value=0, engine=nisa.engine.gpsimd)
            second = nisa.memset(dst=tile(128, 8), value=0, engine=nisa.engine.vector)
            second.depends_on(first)

    timeline = timed(body)
    for issue in range(0, 6, 2):
        assert timeline.start[issue + 1] > timeline.end[issue]


def test_the_tensor_engine_can_wait_for_the_other_core() -> None:
    @nki.jit
    def kernel() -> nl.NkiTensor:
        data = nl.ndarray((128, 1), nl.float32, nl.shared_hbm)
        nisa.core_barrier(data, (0, 1), engine=nisa.engine.tensor)
        return data

    assert profile(kernel, target="trn2", cores=2).instructions == 2


def test_an_address_in_a_register_waits_for_the_register() -> None:
    def body(x: nl.NkiTensor, rows: nl.NkiTensor) -> None:
        held = tile(1, 1, dtype=nl.int32)
        nisa.dma_copy(dst=held, src=rows)
        row = nisa.register_alloc(0)
        nisa.register_load(row, held)
        nisa.dma_copy(dst=tile(1, 8), src=x.select(0, row).expand_dim(0))
        nisa.tensor_copy(dst=tile(1, 1, dtype=nl.int32), src=held)  # so that its address is not given away

    timeline = timed(body, Spec((16, 8), "float32"), Spec((1, 1), "int32"))
    assert timeline.transfers[-1].triggered > timeline.end[2]


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.private_hbm])
def test_many_small_parts_of_one_tensor_take_no_longer_each(buffer: MemoryRegion) -> None:
    """The parts of a column each reach from the tensor's begin to its end."""

    def body() -> None:
        tensor, column = tile(128, 4, 4000, buffer=buffer), tile(128, 4)
        for i in range(4000):
            if buffer is nl.sbuf:
                nisa.memset(dst=tensor[:, :, i], value=0)
            else:
                nisa.dma_copy(dst=tensor[:, :, i], src=column)

    began = process_time()
    timed(body)
    assert process_time() - began < 5  # it took 15 s when each part was compared with all


def test_what_is_spread_over_the_dma_engines_is_a_packet_each_at_least() -> None:
    def body(x: nl.NkiTensor) -> None:
        nisa.dma_copy(dst=nl.ndarray(x.shape, x.dtype, nl.private_hbm), src=x)

    (transfer,) = timed(body, Spec((512, 64), "float32")).transfers
    assert transfer.packets == transfer.engines == 16


def test_an_engine_s_busy_time_counts_each_moment_once() -> None:
    """The gpsimd engine makes descriptors while its last instruction is still in the pipeline."""

    def body(x: nl.NkiTensor) -> None:
        for _ in range(8):
            nisa.memset(dst=tile(128, 1), value=0, engine=nisa.engine.gpsimd)
            nisa.dma_copy(dst=tile(128, 1), src=x, dge_mode=nisa.dge_mode.swdge)

    timeline = timed(body, Spec((128, 1), "float32"))
    gpsimd = ENGINES.index("gpsimd")
    spans = [(timeline.start[i], timeline.end[i]) for i, lane in enumerate(timeline.lane) if lane == gpsimd]
    spans += [(transfer.triggered, transfer.trigger_end) for transfer in timeline.transfers]
    busy = until = 0
    for begin, end in sorted(spans):
        busy, until = busy + max(0, end - max(begin, until)), max(until, end)
    assert timeline.busy["gpsimd"] == busy

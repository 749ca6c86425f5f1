"""The share table's clocks, and that every part of the server has one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.serve import samples, shares
from benchmarks.serve.shares import OTHER, Clocks


class Clock:
    """A clock that is set by hand; reading it takes ``cost``."""

    def __init__(self, cost: int = 0) -> None:
        self.time, self.cost = 0, cost

    def __call__(self) -> int:
        self.time += self.cost
        return self.time

    def work(self, nanoseconds: int) -> None:
        self.time += nanoseconds


@pytest.mark.parametrize("cost", [0, 7])
def test_a_parts_time_is_without_the_parts_inside(cost: int) -> None:
    clock = Clock(cost)
    clocks = Clocks(clock)

    def inner() -> str:
        clock.work(100)
        return "done"

    def outer() -> str:
        clock.work(10)
        found: str = clocks.wrap("inner", inner)()
        clock.work(1)
        return found

    clocks.reset()
    clock.work(5)
    assert clocks.wrap("outer", outer)() == "done"
    clock.work(2)
    clocks.stop()
    assert clocks.spent == {"inner": 100, "outer": 11, OTHER: 7}


def test_a_part_that_fails_has_ended() -> None:
    clock = Clock()
    clocks = Clocks(clock)

    def failing() -> None:
        clock.work(3)
        raise KeyError("x")

    clocks.reset()
    with pytest.raises(KeyError):
        clocks.wrap("part", failing)()
    clock.work(4)
    clocks.stop()
    assert clocks.spent == {"part": 3, OTHER: 4}


def test_coroutines_that_take_turns_have_the_time_of_their_steps() -> None:
    clock = Clock()
    clocks = Clocks(clock)

    async def wait(part: str, nanoseconds: int) -> str:
        clock.work(nanoseconds)
        await asyncio.sleep(0)
        clock.work(nanoseconds)
        return part

    async def both() -> list[str]:
        clocks.reset()
        made = [clocks.wrap(part, wait)(part, nanoseconds) for part, nanoseconds in (("a", 1), ("b", 10))]
        return list(await asyncio.gather(*made))

    assert asyncio.run(both()) == ["a", "b"]
    assert (clocks.spent["a"], clocks.spent["b"]) == (2, 20)


def test_a_cancelled_coroutine_hears_of_it() -> None:
    heard: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    async def cancel() -> None:
        clocks = Clocks(Clock())
        task = asyncio.create_task(clocks.wrap("part", wait)())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert clocks.running == [OTHER]

    asyncio.run(cancel())
    assert heard == ["cancelled"]


def test_every_part_of_a_server_has_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "CLIENTS", (2,))
    rows = shares.measure_shares(samples.digits(tmp_path), tmp_path / "cache", 4)
    found = {row.case.rpartition(", ")[2]: row.value for row in rows[1:]}
    assert set(found) == {*shares.parts(), OTHER}
    assert all(value for value in found.values()) and rows[0].value

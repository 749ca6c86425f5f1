"""Pictures are decoded on a thread of their own, and no longer than somebody waits for them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from engines import PATIENCE_S
from serving import run
from test_uploads import DIGITS, picture

from trnrt.inputs.decoding import NamedPicture
from trnrt.inputs.images import ImageOptions, read_images
from trnrt.serve.hosting.description import Description, TensorMeta
from trnrt.serve.http import pictures
from trnrt.serve.http.predicting import Sent
from trnrt.serve.processes.worker import make_loop

IMAGE = Description(
    inputs=(TensorMeta("image", "float32", (-1, 1, 8, 8)),),
    outputs=(),
    metadata=DIGITS,
    labels=None,
    predictions={},
    batch="N",
)


async def read(count: int) -> Sent:
    return await pictures.read_pictures([("a.png", picture())] * count, IMAGE, 1 << 20, ImageOptions())


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, Callable[[], int]]]:
    """Pictures that take until the event; and how many have begun."""
    go, begun = threading.Event(), []
    original = NamedPicture.check_pixels

    def check(self: Any, most: int) -> None:
        begun.append(self)
        assert go.wait(PATIENCE_S)
        original(self, most)

    monkeypatch.setattr(NamedPicture, "check_pixels", check)
    yield go, lambda: len(begun)
    go.set()


def test_other_work_does_not_wait_behind_pictures(slow: tuple[threading.Event, Callable[[], int]]) -> None:
    """They took all threads of the loop: large JSON, ``load`` and SIGHUP waited for hours."""
    go, _ = slow

    async def work() -> None:
        sent = [asyncio.create_task(read(1)) for _ in range(40)]
        await asyncio.sleep(0)
        assert await asyncio.wait_for(asyncio.to_thread(int, "7"), PATIENCE_S / 2) == 7
        go.set()
        assert [each.feeds["image"].shape for each in await asyncio.gather(*sent)] == [(1, 1, 8, 8)] * 40

    run(work())


def test_pictures_that_nobody_waits_for_are_dropped(
    slow: tuple[threading.Event, Callable[[], int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    go, begun = slow
    decoded = []

    def count(paths: Any, *arguments: Any, **options: Any) -> Any:
        check = options.pop("check")

        def each() -> None:
            check()
            decoded.append(1)

        return read_images(paths, *arguments, check=each, **options)

    monkeypatch.setattr("trnrt.serve.http.predicting.read_images", count)

    async def work() -> None:
        first, second = asyncio.create_task(read(1)), asyncio.create_task(read(1))
        while not begun():
            await asyncio.sleep(0.001)
        first.cancel(), second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        go.set()
        assert (await read(3)).feeds["image"].shape == (3, 1, 8, 8)

    run(work())
    assert begun() == 1 + 3, "the second one began, though nobody waited"
    assert len(decoded) == 3, "the first one went on, though nobody waited"


def test_the_end_of_the_loop_does_not_wait_for_its_threads() -> None:
    """SIGTERM used to wait for whatever a thread still did."""
    go = threading.Event()

    async def work() -> None:
        task = asyncio.create_task(asyncio.to_thread(go.wait, PATIENCE_S))
        await asyncio.sleep(0.01)
        task.cancel()

    began = time.monotonic()
    try:
        with asyncio.Runner(loop_factory=make_loop) as runner:
            runner.run(work())
        assert time.monotonic() - began < PATIENCE_S / 2
    finally:
        go.set()

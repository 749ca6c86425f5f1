"""A run of a program limits numpy's BLAS to one thread, and only while it lasts."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Barrier, Thread
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from trnrt.nki import nisa, nki, nl, simulate
from trnrt.nki.blas import THREAD_VARIABLES, keep_one_blas_thread, one_blas_thread
from trnrt.nki.machine.execute import Executor


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process whose BLAS has two threads, which no variable has set."""
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with threadpool_limits(2, "blas"):
        assert blas_threads() == {2}
        yield


def copy(a: Any) -> Any:
    """A copy; with two cores both write it."""
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=a)
    nisa.dma_copy(dst=out, src=tile)
    return out


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(("setting", "expected"), [(None, {1}), ("OPENBLAS_NUM_THREADS", {2})])
def test_a_run_has_one_thread_unless_the_environment_sets_them(
    two_threads: None, monkeypatch: pytest.MonkeyPatch, setting: str | None, expected: set[int], cores: int
) -> None:
    if setting is not None:
        monkeypatch.setenv(setting, "2")
    seen: list[set[int]] = []
    run_segment = Executor.run_segment

    def note_threads(self: Executor, segment: int) -> None:
        seen.append(blas_threads())
        run_segment(self, segment)

    monkeypatch.setattr(Executor, "run_segment", note_threads)
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert np.array_equal(simulate(nki.jit(copy)[cores], target="trn2")(data), data)
    assert seen == [expected] * cores
    assert blas_threads() == {2}


def test_the_threads_return_after_an_error(two_threads: None) -> None:
    with pytest.raises(ZeroDivisionError), one_blas_thread():
        _ = 1 // 0
    assert blas_threads() == {2}


def test_runs_at_once_restore_the_threads(two_threads: None) -> None:
    """Another thread begins within a run, and ends after it."""
    inside, left = Barrier(2), Barrier(2)

    def run_longer() -> None:
        with one_blas_thread():
            inside.wait(10)
            left.wait(10)

    longer = Thread(target=run_longer)
    with one_blas_thread():
        longer.start()
        inside.wait(10)
        assert blas_threads() == {1}
    left.wait(10)
    longer.join()
    assert blas_threads() == {2}


def test_a_server_keeps_one_thread(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment says, and also after a run."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    keep_one_blas_thread()
    assert blas_threads() == {1}
    with one_blas_thread():
        assert blas_threads() == {1}
    assert blas_threads() == {1}

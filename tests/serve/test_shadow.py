"""The shadow: it finds drift and changed decisions, costs what it may, and harms nobody."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from engines import CANCELLING, FIXED, PATIENCE_S, loaded, numbers, run, save

from trnrt.serve.hosting import shadow
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.shadow import Shadow
from trnrt.session import InferenceSession

CLASSES = "(float[N,3] x) => (float[N,3] y) { y = Softmax(x) }"


def count(metrics: Metrics, name: str) -> float:
    """A metric's value by what its line begins with; 0 where it is not there."""
    lines = metrics.render()[0].decode().splitlines()
    return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name)), 0.0)


def outcome(metrics: Metrics, kind: str) -> float:
    return count(metrics, f'trnrt_shadow_runs_total{{model="m",outcome="{kind}",version="1"}}')


def until(metrics: Metrics, total: int, seconds: float = PATIENCE_S) -> None:
    """Wait until so many were run or failed."""
    end = time.monotonic() + seconds
    while sum(outcome(metrics, kind) for kind in ("agreed", "drifted", "failed")) < total:
        assert time.monotonic() < end, metrics.render()[0].decode()
        time.sleep(0.01)


@pytest.fixture
def made(tmp_path: Path) -> Any:
    """A shadow of a classifier, its session and its metrics."""
    session = InferenceSession(str(save(tmp_path, "classes", CLASSES)))
    metrics = Metrics()
    shadow = Shadow("m", session, 1.0, metrics.model("m"))
    yield shadow, session, metrics
    shadow.stop()


def test_rounding_is_no_drift(tmp_path: Path) -> None:
    session = InferenceSession(str(save(tmp_path, "cancelling", CANCELLING)))
    metrics = Metrics()
    shadow = Shadow("m", session, 1.0, metrics.model("m"))
    x = np.full((2, 4), 0.3, np.float32)
    right = session.run(None, {"x": x})[0]
    for total, by, kind in [(1, 1e-3, "agreed"), (2, 1.0, "drifted")]:
        shadow.offer({"x": x}, {"y": right + np.float32(by)})
        until(metrics, total)
        assert outcome(metrics, kind) == 1
    shadow.stop()


def test_drift_and_changed_decisions_are_counted(made: Any) -> None:
    shadow, session, metrics = made
    x = numbers(5, 3)
    right = session.run(None, {"x": x})[0]
    shadow.offer({"x": x}, {"y": right})
    until(metrics, 1)
    assert outcome(metrics, "agreed") == 1
    shadow.offer({"x": x}, {"y": right + np.float32(0.01)})
    until(metrics, 2)
    turned = right.copy()
    turned[:2] = turned[:2, ::-1]
    shadow.offer({"x": x}, {"y": turned})
    until(metrics, 3)
    assert outcome(metrics, "drifted") == 2
    changed = int((turned.argmax(1) != right.argmax(1)).sum())
    assert changed > 0 and count(metrics, "trnrt_shadow_changed_decisions_total") == changed
    assert count(metrics, "trnrt_shadow_abs_error_count") == 3


def test_what_onnxruntime_refuses_is_counted_and_the_next_one_is_run(made: Any) -> None:
    shadow, session, metrics = made
    shadow.offer({"z": numbers(1, 3)}, {"y": numbers(1, 3)})
    until(metrics, 1)
    x = numbers(1, 3)
    shadow.offer({"x": x}, {"y": session.run(None, {"x": x})[0]})
    until(metrics, 2)
    assert outcome(metrics, "failed") == 1 and outcome(metrics, "agreed") == 1


def test_a_full_queue_skips_and_offers_never_wait(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waited would wait for good: nothing is compared before all have been offered."""
    made_shadow, _, metrics = made
    go = Event()
    monkeypatch.setattr(made_shadow, "_compare", lambda _feeds, _outputs: go.wait(PATIENCE_S))
    x = numbers(1, 3)
    for _ in range(100):
        made_shadow.offer({"x": x}, {"y": x})
    go.set()
    assert outcome(metrics, "skipped") >= 100 - shadow.WAITING - 2


def test_it_rests_after_each_run(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made_shadow = made[0]
    rests: list[float] = []
    monkeypatch.setattr(made_shadow, "_compare", lambda _feeds, _outputs: time.sleep(0.02))
    monkeypatch.setattr(made_shadow._stopped, "wait", lambda seconds: rests.append(seconds))
    made_shadow.offer({}, {})
    end = time.monotonic() + PATIENCE_S
    while not rests and time.monotonic() < end:
        time.sleep(0.01)
    assert rests[0] >= 0.02 * (1 / shadow.MOST_OF_A_CORE - 1)


def test_a_share_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    session = InferenceSession(str(save(tmp_path, "classes", CLASSES)))
    few = Shadow("m", session, 0.25, metrics.model("m"))
    offered: list[object] = []
    monkeypatch.setattr(few._queue, "put_nowait", offered.append)
    for _ in range(4000):
        few.offer({}, {})
    few.stop()
    assert 800 < len(offered) < 1200


def test_live_requests_are_shadowed_with_all_outputs_and_padded_batches(tmp_path: Path) -> None:
    metrics = Metrics()

    async def work() -> None:
        from trnrt.serve.hosting.models import ServedModel
        from trnrt.serve.settings import ServeSettings

        model = ServedModel("m", save(tmp_path, "fixed", FIXED), ServeSettings(shadow=1.0), metrics)
        assert await model.load() is None
        await model.infer({"x": numbers(3, 3)}, ["y"])
        await asyncio.to_thread(until, metrics, 1)
        await model.unload()

    run(work())
    assert outcome(metrics, "agreed") == 1


def test_without_it_nothing_is_shadowed(tmp_path: Path) -> None:
    async def work() -> None:
        model = await loaded(save(tmp_path, "classes", CLASSES))
        assert f"shadow {model.name}" not in [thread.name for thread in threading.enumerate()]

    run(work())

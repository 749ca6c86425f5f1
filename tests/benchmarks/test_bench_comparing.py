"""``trnrt plan`` against a server: the comparison sends what it says, waits for quiet, and tells what it saw."""

from __future__ import annotations

import json
import math
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from engines import PATIENCE_S

from benchmarks.serve import arrivals, comparing, quiet
from benchmarks.serve.arrivals import Stream
from benchmarks.serve.comparing import Compared, Figures, Point, Run
from benchmarks.serve.hosting import SHAPES
from benchmarks.serve.samples import zeros
from benchmarks.serve.servers import serving
from trnrt.capacity.assumptions import Host

HOST = Host(300.0, 200.0, 450.0, 500.0, 1000.0, 4000.0, comparing.NO_LINK)
DEVICE_US = 3_000.0


@pytest.fixture
def point() -> Point:
    worker = comparing.served((1, 8, 8), DEVICE_US).worker(32, 1, HOST)
    return Point(DEVICE_US, (1, 8, 8), 0.1, 100.0, worker)


def test_a_server_with_a_device_that_waits_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: Point
) -> None:
    monkeypatch.setattr(comparing, "SECONDS", 0.0)  # 200 requests: there are never fewer
    model = zeros(tmp_path, point.shape)
    waiting = ("benchmarks.serve.waiting", f"{DEVICE_US:g}")
    folder = tmp_path / "cache"
    with serving([str(model)], folder, module=waiting, ready_s=PATIENCE_S, stop_s=PATIENCE_S) as server:
        found = comparing.run(server, point, HOST, seed=1)
        with pytest.raises(RuntimeError, match="ended with"):
            comparing._send_stream(Stream(server.port, "nobody", (1, 8, 8), False, 1000.0, 2, 0, 2))
    # However slow the machine is, a batch lasts as long as the device, and the model knows no more than that.
    assert DEVICE_US <= found.device_us <= found.measured.p99_us
    assert DEVICE_US < found.replayed.p50_us <= found.replayed.p99_us
    assert 1 <= found.measured.batch <= 32 and 1 <= found.replayed.batch <= 32
    assert 10 < found.measured.cpu_us < 1e5
    assert found.late_us >= 0


def test_arrivals_are_a_poisson_stream_of_their_seed() -> None:
    stream = Stream(1, "m", (1,), False, 250.0, 20_000, 3)
    gaps = np.diff(stream.moments)
    assert gaps.mean() == pytest.approx(1 / 250, rel=0.03)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)
    assert np.array_equal(stream.moments, Stream(1, "m", (1,), False, 250.0, 20_000, 3).moments)
    assert Stream(**json.loads(arrivals.as_json(stream))).rate == 250


def test_every_point_is_below_what_the_plan_says_a_worker_carries() -> None:
    found = list(comparing.points(HOST))
    assert len(found) == 2 * len(comparing.DEVICE_US) * len(comparing.SHARES)
    assert all(0 < point.rate <= 0.8 * 0.7 * point.worker.saturation * 1.0001 for point in found)
    assert {point.binary for point in found} == {True, False}
    slow = next(point for point in found if point.device_us == 10_000)
    assert comparing.planned(slow, HOST).p50_us > 10_000


def test_what_others_disturbed_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "_LOOK_S", 0.0)
    monkeypatch.setattr(quiet, "_AGAIN_S", 0.0)
    busy = iter(
        [0.0, 0.1, 0.0, 2.0, 0.0, 1.0, 0.0, 0.2, 0.0, 0.1]
    )  # quiet, then not; not quiet; quiet, and so it stays

    def now(*pids: int) -> quiet.Clock:
        value = next(busy)
        return quiet.Clock(1.0 if value else 0.0, value, 0.0)

    monkeypatch.setattr(quiet.Clock, "now", now)
    tries = iter(["disturbed", "good"])
    found = quiet.undisturbed(lambda: next(tries), math.inf)
    assert found == quiet.Undisturbed("good", 0.1, 1)


def test_what_was_thrown_away_is_counted_where_it_never_was_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "_LOOK_S", 0.0)
    busy = iter([0.0, 0.1, 0.0, 2.0])

    def now(*pids: int) -> quiet.Clock:
        value = next(busy)
        return quiet.Clock(1.0 if value else 0.0, value, 0.0)

    monkeypatch.setattr(quiet.Clock, "now", now)
    found = quiet.undisturbed(lambda: "disturbed", time.monotonic())
    assert found.result is None and found.thrown_away == 1


def test_where_it_never_is_quiet_there_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "MOST_OTHERS", -1.0)
    monkeypatch.setattr(quiet, "_LOOK_S", 0.01)
    found = quiet.undisturbed(lambda: pytest.fail("measured"), time.monotonic())
    assert found.result is None and found.thrown_away == 0
    monkeypatch.setattr(comparing, "_host", lambda deadline: None)
    assert comparing.main(["0"]) == 1


def test_own_work_is_no_disturbance() -> None:
    before = quiet.Clock.now()
    sum(range(3_000_000))
    later = quiet.Clock.now()
    assert later.own >= before.own and later.busy >= before.busy
    assert quiet.Clock(0.0, 10.0, 5.0).others(quiet.Clock(2.0, 13.0, 7.0)) == 0.5
    assert quiet.Clock(0.0, 10.0, 5.0).others(quiet.Clock(2.0, 10.0, 5.5)) == 0


def test_the_lines_say_what_was_measured_and_what_was_thrown_away(point: Point) -> None:
    figures = [Figures(p50, p99, 1.5, 420.0, 100.0) for p50, p99 in ((3500.0, 5000.0), (3600.0, 7000.0))]
    runs = [Run(one, figures[0], 12.0, 3010.0) for one in figures]
    told = list(comparing.lines(Compared(point, runs, [0.1, 0.2], 4), HOST))
    assert "measured" in told[0] and "5.00 - 7.00" in told[0] and "2 runs, 4 thrown away" in told[0]
    assert "replayed" in told[1] and "planned" in told[2]
    (line,) = comparing.lines(Compared(point, [], [], 3), HOST)
    assert line.endswith("never undisturbed; 3 runs thrown away")
    (line,) = comparing.lines(Compared(point, [], []), HOST)
    assert line.endswith("no time was left for it")


def test_it_ends_when_it_was_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: Point) -> None:
    """With what it has until then; the servers are started and warm."""
    seen: list[int] = []
    figures = Figures(1.0, 2.0, 1.0, 1.0)

    def run(server: object, point: Point, host: Host, seed: int) -> Run:
        seen.append(seed)
        return Run(figures, figures, 0.0, 0.0)

    one = replace(point, shape=SHAPES[0], device_us=comparing.DEVICE_US[0])
    server = SimpleNamespace(process=SimpleNamespace(pid=1))
    monkeypatch.setattr(comparing, "points", lambda host: [one])
    monkeypatch.setattr(comparing, "_waiting", lambda *given: nullcontext(server))
    monkeypatch.setattr(comparing, "run", run)
    (found,) = comparing.compared(HOST, tmp_path, time.monotonic())
    assert found.runs == [] and seen == [0]

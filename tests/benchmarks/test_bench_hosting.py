"""What the host spends on a request: the measurement behind ``trnrt/capacity/assumptions.toml`` works."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from engines import PATIENCE_S

from benchmarks.serve import hosting
from benchmarks.serve.comparing import NO_LINK
from benchmarks.serve.quiet import cpu_seconds
from benchmarks.serve.samples import zeros
from benchmarks.serve.servers import serving
from trnrt.capacity.assumptions import Host


def test_cpu_time_of_requests_is_measured_and_wrong_answers_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "SECONDS", 0.2)
    monkeypatch.setattr(hosting, "SETTLED_S", 0.05)
    monkeypatch.setattr(hosting, "REQUESTS", 300)  # of which a server's clock has some ticks, however slow it gets on
    model = zeros(tmp_path, (1, 8, 8))
    before = cpu_seconds(os.getpid())
    instant: tuple[str, ...] = ("benchmarks.serve.instant",)
    with serving([str(model)], tmp_path / "cache", module=instant, ready_s=PATIENCE_S, stop_s=PATIENCE_S) as server:
        for binary in (False, True):
            found = hosting.spent(server, model.stem, (1, 8, 8), 4, binary=binary)
            assert found.requests >= 300 and 10 < found.microseconds < 1e5
            assert 256 < found.body < 1000
        monkeypatch.setattr(hosting, "REQUESTS", 2)
        paused = hosting.spent(server, model.stem, (1, 8, 8), 1, binary=False, pause=0.05)
        assert paused.pause == 0.05 and 2 <= paused.requests <= 0.2 / 0.05 + 1
        with pytest.raises(RuntimeError, match="404"):
            hosting.spent(server, "nobody", (1, 8, 8), 1, binary=False)
    assert cpu_seconds(os.getpid()) > before


def test_what_was_measured_becomes_what_is_assumed() -> None:
    size = 3 * 224 * 224 * 4 / 1e6
    share = 1 - math.exp(-1)  # after the time in which it cools down
    small = [500.0, 300.0, 450.0, 250.0]
    took = [*small, 450 + 400 * size, 250 + 700 * size, 500 + 900 * share, 500 + 900.0]
    found = [
        hosting.Spent(1, kind.binary, kind.clients, us, 1, kind.pause)
        for kind, us in zip(hosting.KINDS, took, strict=True)
    ]
    assert hosting.told(found) == pytest.approx(
        {
            "request_us": 300,
            "batch_us": 200,
            "read_us_per_mb": 400,
            "merge_us_per_mb": 300,
            "cold_us": 900,
            "cooling_us": 1e6 * hosting.PAUSES[0],
        }
    )
    assert Host(**hosting.told(found), link=NO_LINK).cold_us == 900
    never = [replace(one, microseconds=500.0) for one in found]
    assert hosting.told(never)["cold_us"] == 1 and hosting.told(never)["cooling_us"] > 0

"""What the host spends on a request: the measurement behind ``trnrt/capacity/assumptions.toml`` works."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trnrt.bench.serving import hosting
from trnrt.bench.serving.quiet import cpu_seconds
from trnrt.bench.serving.samples import zeros
from trnrt.bench.serving.servers import serving


def test_cpu_time_of_requests_is_measured_and_wrong_answers_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "SECONDS", 0.2)
    monkeypatch.setattr(hosting, "SETTLED_S", 0.05)
    model = zeros(tmp_path, (1, 8, 8))
    before = cpu_seconds(os.getpid())
    with serving([str(model)], tmp_path / "cache", module=("trnrt.bench.serving.instant",)) as server:
        for binary in (False, True):
            found = hosting.spent(server, model.stem, (1, 8, 8), 4, binary=binary)
            assert found.requests > 4 and 10 < found.microseconds < 1e5
            assert 256 < found.body < 1000
        with pytest.raises(RuntimeError, match="404"):
            hosting.spent(server, "nobody", (1, 8, 8), 1, binary=False)
    assert cpu_seconds(os.getpid()) > before

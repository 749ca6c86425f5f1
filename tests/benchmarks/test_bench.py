"""The benchmarks: that their kernels compute what they are compared with, and what is reported. Nothing is timed."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.measuring import Row, in_turns, ratio
from benchmarks.simulator import cases as simulator
from benchmarks.simulator import kernels, networks, worker
from benchmarks.simulator.__main__ import app
from benchmarks.simulator.fused import conv_kernel, prepared
from trnrt.nki import simulate, trace

SMALL = replace(
    simulator.QUICK,
    rounds=2,
    slow_rounds=1,
    step_rounds=2,
    compiled_size=128,
    matmul_size=512,
    conv_images=(1, 4, 4),
    fused_conv=(8, 6),
)
RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def convolved(padded: Any, weights: Any) -> Any:
    """A 3x3 convolution: padded (C, H + 2, W + 2), weights (C, 9, O)."""
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    return np.einsum("chwt,cto->ohw", windows.reshape(*windows.shape[:3], 9), weights, optimize=True)


def test_tiled_matmul() -> None:
    lhs_t, rhs = normal(256, 128), normal(256, 512)
    assert np.allclose(simulate(kernels.tiled_matmul)(lhs_t, rhs), lhs_t.T @ rhs, rtol=1e-4, atol=1e-4)


def test_conv_by_rows_has_the_issues_size() -> None:
    images, weights = normal(128, 2, 6, 5), normal(128, 9, 128)
    expected = np.stack([convolved(images[:, n], weights) for n in range(2)], axis=1)
    assert np.allclose(simulate(kernels.conv_by_rows)(images, weights), np.maximum(expected, 0), rtol=1e-3, atol=1e-3)
    assert len(trace(kernels.conv_by_rows, normal(128, 4, 34, 18), weights).instructions) == 1549


def test_small_steps_do_what_numpy_does() -> None:
    a, b, weights = normal(128, 64), normal(128, 64), normal(128, 128) / 128
    ours = simulate(kernels.small_steps)(a, b, weights, 3)
    assert np.allclose(ours, simulator.numpy_small_steps(a, b, weights, 3), rtol=1e-5, atol=1e-5)
    assert len(trace(kernels.small_steps, a, b, weights, 3).instructions) == 8 * 3 + 3


@pytest.mark.parametrize(("channels", "outputs"), [(8, 16), (256, 128)])
def test_fused_conv(channels: int, outputs: int) -> None:
    image, weights, bias = normal(1, channels, 6, 7), normal(outputs, channels, 3, 3), normal(outputs)
    padded = np.pad(image[0], ((0, 0), (1, 1), (1, 1)))
    expected = convolved(padded, weights.reshape(outputs, channels, 9).transpose(1, 2, 0)) + bias[:, None, None]
    ours = simulate(conv_kernel)(image, *prepared(weights, bias))
    assert np.allclose(ours[0], expected, rtol=1e-3, atol=1e-3)


def test_the_compiled_kernel_is_large_enough() -> None:
    size = simulator.Effort().compiled_size // 128
    assert size * (simulator.Effort().compiled_size // 64) * (3 * size + 2) >= 25_000


@pytest.mark.parametrize("name", simulator.CASES)
def test_every_case_gives_rows(name: str) -> None:
    rows = simulator.CASES[name].run(SMALL)
    for row in rows:
        assert row.unit and row.note
        assert row.value is None or row.value == row.value
    assert any(row.bar is not None for row in rows)


def test_without_pytorch_the_row_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "find_spec", lambda name: None)
    (row,) = simulator.fused_conv(SMALL)
    assert (row.value, row.passed, row.note) == (None, None, "PyTorch is not installed")


def test_bars() -> None:
    assert Row("a", 1.0, "x", 1.0).passed is True
    assert Row("a", 1.1, "x", 1.0).passed is False
    assert Row("a", 1.1, "x", 1.0, at_least=True).passed is True
    assert Row("a", 0.9, "x", 1.0, at_least=True).passed is False
    assert Row("a", 1.0, "x").passed is None


def test_functions_run_in_turns() -> None:
    calls: list[str] = []
    taken = in_turns([partial(calls.append, "a"), partial(calls.append, "b")], 3)
    assert "".join(calls) == "ab" + "abbaab"
    assert [len(times) for times in taken] == [3, 3]
    value, ours, theirs = ratio(lambda: None, lambda: None, 3)
    assert value > 0 and ours > 0 and theirs > 0


def test_a_case_can_be_measured_in_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [Row("case", 1.0, "x", 2.0, note="n"), Row("other", None, "y")]
    monkeypatch.setitem(simulator.CASES, "fake", simulator.Case(lambda effort: rows, 1))
    worker.main(["fake", "--quick"])
    assert [Row(**row) for row in json.loads(capsys.readouterr().out)] == rows


def test_a_case_sets_its_threads_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], env: dict[str, str], **_: object) -> SimpleNamespace:
        rows = [asdict(Row(command[-2], float(env["OPENBLAS_NUM_THREADS"]), command[-1]))]
        return SimpleNamespace(stdout=json.dumps(rows))

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setitem(simulator.CASES, "fake", simulator.Case(lambda effort: [], 2))
    assert worker.measure("fake", quick=True) == [Row("fake", 2.0, "--quick")]


@pytest.mark.parametrize(("value", "code"), [(1.0, 0), (3.0, 1), (None, 0)])
def test_the_verb(monkeypatch: pytest.MonkeyPatch, value: float | None, code: int) -> None:
    for name in list(simulator.CASES)[1:]:
        monkeypatch.delitem(simulator.CASES, name)
    row = Row("the case", value, "x", 2.0, note="how")
    monkeypatch.setattr(networks, "measure_networks", lambda **_: [])
    monkeypatch.setattr(worker, "measure", lambda name, quick: [row])
    result = CliRunner().invoke(app, ["--quick", "--json"], catch_exceptions=False)
    assert result.exit_code == code
    document = json.loads(result.stdout)
    assert document["quick"] is True
    assert document["rows"] == [
        {"case": "the case", "value": value, "unit": "x", "bar": 2.0, "at_least": False, "note": "how"}
        | {"passed": None if value is None else value <= 2}
    ]
    table = CliRunner().invoke(app, catch_exceptions=False).stdout
    assert ("the case" in table and {0: "pass", 1: "MISS"}[code] in table) or value is None

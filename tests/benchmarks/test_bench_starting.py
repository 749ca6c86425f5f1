"""The CPU time of short commands: what is compared with what, and one real measurement."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.starting import cpu

FAKE = {
    cpu.BARE: 20.0,
    cpu.NUMPY: 120.0,
    cpu.SIMULATOR: 200.0,
    cpu.ONNXRUNTIME: 170.0,
    cpu.SESSION: 260.0,
    cpu.ANSWER: 520.0,
    cpu.ONNXRUNTIMES_ANSWER: 220.0,
    cpu.ADDITION: 300.0,
}


def test_the_imports_are_compared_without_pythons_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def took(command: cpu.Command, checkout: Path) -> float:
        return FAKE[command] * (2.5 if checkout == tmp_path else 1)

    monkeypatch.setattr(cpu, "cpu_ms", took)
    imported, session, answer, profiled, compared = cpu.measure(3, tmp_path)
    assert (imported.value, imported.passed) == (1.8, True)
    assert (session.value, session.passed) == (1.6, True)
    assert (answer.value, answer.passed) == (2.5, None)
    assert (profiled.value, profiled.passed) == (300, None)
    assert (compared.value, compared.passed) == (0.4, True)
    assert len(cpu.measure(1)) == 4


def test_the_addition_is_profiled() -> None:
    bare, profiled = cpu.cpu_ms(cpu.BARE), cpu.cpu_ms(cpu.ADDITION)
    assert 0 < bare < profiled

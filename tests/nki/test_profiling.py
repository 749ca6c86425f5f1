"""Profiles: counts and shares of a timeline, and its time by step."""

from __future__ import annotations

import pytest
from simulating import doubled, tile

from trnrt.nki import Spec, nisa, nki, nl, profile, trace
from trnrt.nki.machine.program import Instruction, Program
from trnrt.nki.profiling import Step, profile_programs

US = 1_000_000


@nki.jit
def product(stationary: nl.NkiTensor, moving: nl.NkiTensor) -> nl.NkiTensor:
    """stationary.T @ moving of one tile."""
    out = nl.ndarray((128, 512), nl.float32, nl.shared_hbm)
    first, second = tile(128, 128, dtype=stationary.dtype), tile(128, 512, dtype=moving.dtype)
    nisa.dma_copy(dst=first, src=stationary)
    nisa.dma_copy(dst=second, src=moving)
    total, made = tile(128, 512, buffer=nl.psum), tile(128, 512)
    nisa.nc_matmul(dst=total, stationary=first, moving=second)
    nisa.tensor_copy(dst=made, src=total)
    nisa.dma_copy(dst=out, src=made)
    return out


OPERANDS = (Spec((128, 128), "bfloat16"), Spec((128, 512), "bfloat16"))


def test_a_profile_counts() -> None:
    found = profile(product, *OPERANDS, target="trn2")
    assert found.flops == 2 * 128 * 128 * 512
    assert found.dtype == "bfloat16"
    assert found.hbm_read_bytes == 128 * 128 * 2 + 128 * 512 * 2
    assert found.hbm_write_bytes == 128 * 512 * 4
    assert found.hbm_bytes == found.hbm_read_bytes + found.hbm_write_bytes
    assert (found.dma_transfer_count, found.instructions) == (3, 5)
    assert found.sbuf_peak_bytes >= 128 * 2 + 512 * 2
    assert found.psum_peak_bytes == 2048
    assert found.mfu == pytest.approx(found.flops / 79e12 / (found.benchmark_us / 1e6))
    assert found.mbu == pytest.approx(found.hbm_bytes / 375e9 / (found.benchmark_us / 1e6))
    assert found.profiler_us - found.benchmark_us == pytest.approx(6.7)
    assert found.roofline.attainable_tflops == pytest.approx(found.roofline.intensity * 0.375)


def test_a_profile_is_read_as_its_json() -> None:
    found = profile(product, *OPERANDS, target="trn2")
    assert found.predicted_us.benchmark == found["predicted_us"]["benchmark"] == found.benchmark_us
    assert found.predicted_us["profiler"] == found.profiler_us
    assert found["engines"]["tensor"]["busy_us"] == found.engines["tensor"].busy_us > 0
    assert found["steps"][0]["bound"] == found.steps[0].bound
    assert found["schema_version"] == 1
    with pytest.raises(KeyError, match="colour"):
        found["colour"]


def test_the_steps_add_up() -> None:
    found = profile(product, *OPERANDS, target="trn2")
    assert sum(step.time_us for step in found.steps) == pytest.approx(found.timeline.duration / US)
    assert sum(step.share for step in found.steps) == pytest.approx(1)
    assert sum(step.hbm_bytes for step in found.steps) == found.hbm_bytes
    assert found.steps[0].bound == "DMA latency"


def test_steps_are_the_ones_given() -> None:
    program: Program = trace(product, *OPERANDS)
    lines = sorted({instruction.line for instruction in program.instructions})
    steps = [Step("loads", ("a", "b"), (lines[0], lines[1])), Step("rest", (), (lines[2], lines[-2]))]
    found = profile_programs([program], steps=steps, dtype="float32", batch=3)
    assert [step.name for step in found.steps] == ["loads", "rest", "(outside of all steps)"]
    assert found.steps[0].nodes == ("a", "b")
    assert (found.dtype, found.batch) == ("float32", 3)


def test_arrays_are_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Instruction) -> None:
        raise AssertionError("a profile executes nothing")

    monkeypatch.setattr("trnrt.nki.machine.execute.Executor.__init__", refuse)
    import numpy as np

    zero = np.broadcast_to(np.float32(0), (128, 512))
    assert profile(doubled, zero, target="trn1").benchmark_us > 0


def test_two_cores_are_timed_each() -> None:
    found = profile(product[2], *OPERANDS, target="trn2")
    assert len(found.cores) == 2
    assert found.dma_transfer_count == 6
    assert found.notes == ()


def test_trn3_was_never_compared() -> None:
    assert not profile(product, *OPERANDS, target="trn3").compared
    assert profile(product, *OPERANDS, target="trn1").compared


@pytest.mark.parametrize(("columns", "bound"), [(16384, "DMA bandwidth"), (8, "DMA latency")])
def test_what_bounds_a_copy(columns: int, bound: str) -> None:
    steps = profile(doubled, Spec((128 * 4, columns), "float32"), target="trn2").steps
    assert max(steps, key=lambda step: step.time_us).bound == bound

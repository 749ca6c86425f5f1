"""The bench of the courses' harnesses, with a course, a solution and a repository of samples made here."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import ROOT
from benchmarks.courses.harnesses import RUNS, Run, keep_last_product, set_constant
from benchmarks.courses.report import courses_document, courses_page, courses_parts
from benchmarks.courses.repositories import Repository, bring
from benchmarks.courses.samples import running
from benchmarks.courses.samples.cases import SAMPLES, Pairs, Sample, sample, upsample
from benchmarks.courses.working import run_harness
from trnrt.errors import OptionError
from trnrt.report.console import render

COURSE, SOLVED = Repository("we/course", "0" * 40), Repository("we/solved", "1" * 40)
STARTER = "import neuronxcc.nki as nki\n\n@nki.jit\ndef kernel(x):\n    raise RuntimeError('your code here')\n"
KERNEL = """import neuronxcc.nki as nki
import neuronxcc.nki.language as nl

FACTOR = 2

@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.multiply(nl.load(x), FACTOR))
    return out
"""
HARNESS = """import numpy as np
import neuronxcc.nki as nki
from kernels import kernel
x = np.random.rand(128, 16).astype(np.float32)
print("Correct?", np.allclose(nki.baremetal(kernel)(x), 2 * x))
timed = nki.benchmark(kernel, save_neff_name="k.neff")
timed(x)
print(f"Execution Time: {timed.benchmark_result.nc_latency.get_latency_percentile(99)} us")
"""
GOOD = Run(
    "good",
    COURSE,
    "part",
    "harness.py",
    (),
    (r"Correct\? True",),
    solution=(SOLVED, ("part/kernels.py",)),
    limits=(1000.0,),
    files=("k.neff",),
)


@pytest.fixture
def trees(tmp_path: Path) -> dict[Repository, Path]:
    for name, kernels in (("course", STARTER), ("solved", KERNEL)):
        (tmp_path / name / "part").mkdir(parents=True)
        (tmp_path / name / "part" / "kernels.py").write_text(kernels)
    (tmp_path / "course" / "part" / "harness.py").write_text(HARNESS)
    return {COURSE: bring(COURSE, tmp_path, tmp_path), SOLVED: bring(SOLVED, tmp_path, tmp_path)}


def test_a_solution_passes_and_the_starter_does_not(trees: dict[Repository, Path], tmp_path: Path) -> None:
    good = run_harness(GOOD, trees, tmp_path, sys.executable)
    assert good.is_good, good.problems
    assert len(good.times_us) == 1
    bad = run_harness(replace(GOOD, name="starter", solution=None), trees, tmp_path, sys.executable)
    assert any("exits with 1" in problem for problem in bad.problems)
    assert any("no file k.neff" in problem for problem in bad.problems)
    change = ("part/kernels.py", "another factor", set_constant("FACTOR", 3))
    wrong = run_harness(replace(GOOD, name="wrong", changes=(change,)), trees, tmp_path, sys.executable)
    assert wrong.problems == ("its output does not say 'Correct\\\\? True'",)
    assert (trees[SOLVED] / "part" / "kernels.py").read_text() == KERNEL
    document = courses_document([good, bad], [])
    assert [one["passed"] for one in document["harnesses"]] == [True, False]
    assert not document["passed"]
    assert "as it must be" in render(courses_parts([good, bad], []))
    nothing = replace(GOOD, name="nothing", changes=(("part/kernels.py", "no sum", keep_last_product),))
    with pytest.raises(OptionError, match=r"nothing to change in part/kernels\.py: no sum"):
        run_harness(nothing, trees, tmp_path, sys.executable)


def test_a_missing_copy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"has no folder we\+course or course"):
        bring(COURSE, tmp_path, tmp_path)


def test_the_page_is_generated() -> None:
    document = json.loads((ROOT / "benchmarks" / "courses" / "results.json").read_text(encoding="utf-8"))
    page = ROOT / "docs" / "courses.md"
    if os.environ.get("UPDATE_DOCS"):
        page.write_text(courses_page(document), encoding="utf-8")
    assert page.read_text(encoding="utf-8") == courses_page(document)
    assert [one["name"] for one in document["harnesses"]] == [run.name for run in RUNS]
    assert all(one["passed"] for one in document["harnesses"])
    assert document["agreeing_kernels"] >= 0.9 * document["public_kernels"]


def test_runs_have_names_of_their_own() -> None:
    assert len({run.name for run in RUNS}) == len(RUNS)


def test_samples_agree_or_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "DRIVERS", ())
    chosen: dict[tuple[str, str], Sample] = {}
    monkeypatch.setattr("benchmarks.courses.samples.running.SAMPLES", chosen)
    (tmp_path / "one.py").write_text(KERNEL.replace("FACTOR)", "float(FACTOR))"))
    (tmp_path / "private.py").write_text("import neuronxcc.nki._private.api as api\n@nki.jit\ndef f(): pass\n")
    (tmp_path / "beside.py").write_text("from private import f\n\ng = nki_jit(f)\n")

    def drive(kernel: object, rng: np.random.Generator) -> Pairs:
        x = rng.random((8, 4), np.float32)
        yield kernel(x), 2 * x  # type: ignore[operator]

    def disagree(kernel: object, rng: np.random.Generator) -> Pairs:
        x = rng.random((8, 4), np.float32)
        yield kernel(x), 3 * x  # type: ignore[operator]

    def compare_nothing(kernel: object, rng: np.random.Generator) -> Pairs:
        return []

    before = dict(SAMPLES)
    try:
        for name, driver in (("one.py", compare_nothing), ("one.py", disagree), ("one.py", drive)):
            SAMPLES.clear()
            sample(name, "kernel")(driver)
            chosen.clear()
            chosen.update(SAMPLES)
            beside, good, private = running.run_samples(tmp_path)
            assert good.agrees is (driver is drive), good.problem
    finally:
        SAMPLES.clear()
        SAMPLES.update(before)
    for one in (beside, private):
        assert (one.public, one.problem) == (False, "imports neuronxcc.nki._private.api")
    assert good.difference == 0
    assert courses_document([], [good, private])["public_kernels"] == 1


def test_a_comparison_names_the_first_difference() -> None:
    found, wanted = np.zeros((2, 3)), np.zeros((2, 3))
    assert running.compare(found, wanted, 0, 0) == (0.0, "")
    wanted[1, 2] = 5
    assert running.compare(found, wanted, 0.1, 0.1) == (5.0, "1 of 6 numbers differ, first at (1, 2): 0 in place of 5")
    assert "shape (2, 3), the reference (3, 2)" in running.compare(found, wanted.T, 0, 0)[1]
    assert "differ" in running.compare(np.full(3, np.nan), np.zeros(3), 1, 1)[1]


def test_upsampling_is_linear_between_centres() -> None:
    np.testing.assert_allclose(upsample(np.array([0.0, 4.0]), 0), [0, 1, 3, 4])

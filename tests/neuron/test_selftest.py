"""The self-test itself: what it covers, what becomes of a case that fails in any way, and its report."""

from __future__ import annotations

import ast
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from commanding import trnrt
from fake_neuron.installing_fake import versions

from trnrt.neuron.selftest import running, suite, worker
from trnrt.neuron.selftest.cases import DIRECT, HERE, SAMPLES, SMALL, Direct, Small
from trnrt.neuron.selftest.suite import Outcome, Suite, Worker, environment, run_suite
from trnrt.neuron.selftest.table import CASES, PROBED
from trnrt.nki.machine.targets import get_target, target_names
from trnrt.report.console import render
from trnrt.report.selftest import selftest_document, selftest_parts

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels"


def documented_kernels() -> set[tuple[str, str]]:
    """(file, function) of every kernel: what has a numpy meaning in its docstring."""
    found = set()
    for path in KERNELS.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and "numpy:" in (ast.get_docstring(node) or ""):
                found.add((path.stem, node.name))
    return found


@pytest.fixture
def called() -> Iterator[set[tuple[str, str]]]:
    """(file, function) of every function of the kernels that is called meanwhile."""
    found: set[tuple[str, str]] = set()

    def noted(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and "/kernels/" in frame.f_code.co_filename:
            found.add((Path(frame.f_code.co_filename).stem, frame.f_code.co_name))

    before = sys.getprofile()
    sys.setprofile(noted)
    yield found
    sys.setprofile(before)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case is timed once."""
    monkeypatch.setattr(running, "SECONDS", 0.0)


def test_every_kernel_is_run_and_every_case_passes(called: set[tuple[str, str]]) -> None:
    results = {name: running.run_case(case, "simulator", "trn2") for name, case in CASES.items()}
    assert [name for name, result in results.items() if not result.passed] == []
    for result in results.values():
        assert result.low_us and result.predicted_us and result.high_us
        assert 0 < result.low_us <= result.predicted_us < result.high_us
    assert len(documented_kernels()) > 40
    assert documented_kernels() - called == set()


@pytest.mark.parametrize("target", ["trn1", "trn3"])
def test_every_case_passes_on_other_targets(target: str) -> None:
    names = [name for name, case in CASES.items() if get_target(target).generation >= case.since]
    assert [name for name in names if not running.run_case(CASES[name], "simulator", target).passed] == []


def test_the_table() -> None:
    assert len(CASES) == len(SMALL) + len(DIRECT) + len(PROBED) + len(SAMPLES)
    assert {sample.file for sample in SAMPLES} == {"digits_ffnn.onnx", "digits_cnn.onnx"}
    assert {case.dtype for case in SMALL} >= {"float32", "bfloat16", "float16"}
    generations = {get_target(name).generation for name in target_names()}
    assert {case.since for case in CASES.values()} < generations
    for name in ("digits_ffnn.onnx", "digits_cnn.onnx", "digits_test.npz"):
        assert (HERE / name).resolve() == ROOT / "models" / name


@pytest.mark.neuron
@pytest.mark.parametrize("name", CASES)
def test_on_the_device(name: str) -> None:
    """The same as ``trnrt doctor --self-test``, one test a case."""
    from trnrt.neuron.device import device_target, neuron_device

    target = device_target() or "trn2"
    if neuron_device() is None or get_target(target).generation < CASES[name].since:
        pytest.skip("there is no Neuron device, or its target does not have this")
    result = running.run_case(CASES[name], "neuron", target)
    assert result.passed, result


def wrong() -> Direct:
    return Direct("wrong", "add_vectors", ((40,), (40,)), np.subtract)


def test_wrong_numbers_fail() -> None:
    result = running.run_case(wrong(), "simulator", "trn2")
    assert not result.passed and result.max_abs and result.max_abs > 0.1


def test_a_result_of_nan_fails() -> None:
    case = Direct("nan", "add_vectors", ((40,), (40,)), lambda a, b: np.full(40, np.nan))
    assert not running.run_case(case, "simulator", "trn2").passed


def test_another_backend_than_asked_for_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        """A session that fell back."""

        backend = "simulator"

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    monkeypatch.setattr("trnrt.session.InferenceSession", Fake)
    with pytest.raises(RuntimeError, match="simulator was taken instead of neuron"):
        running.run_case(SMALL[0], "neuron", "trn2")


def test_errors_are_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CASES, "broken", Small("broken", "y = Det(x)", (2, 2), ()))
    document, outputs = worker.outcome("broken", "simulator", "trn2")
    assert document["state"] == "error" and outputs == []
    assert "Det" in document["summary"] and "UnsupportedModelError" in document["detail"]
    monkeypatch.setitem(CASES, "wrong", wrong())
    assert worker.outcome("wrong", "simulator", "trn2")[0]["state"] == "failed"


# ---- the processes


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that does what a case's name says."""
    program = """
import json, os, pathlib, subprocess, sys, time
folder = pathlib.Path(sys.argv[1])
print("the compiler says something", flush=True)
for line in sys.stdin:
    name = line.strip()
    if name == "crash": os._exit(7)
    if name == "hang": time.sleep(60)
    child = subprocess.Popen(["sleep", "60"]).pid if name == "child" else None
    (folder / f"{name}.json.tmp").write_text(json.dumps({"state": "passed", "pid": os.getpid(), "child": child}))
    (folder / f"{name}.json.tmp").rename(folder / f"{name}.json")
"""

    def command(backend: str, target: str, folder: Path) -> list[str]:
        return [sys.executable, "-c", program, str(folder)]

    monkeypatch.setattr(suite, "command", command)


@pytest.mark.usefixtures("stub")
def test_a_crash_and_a_hang_end_one_case(tmp_path: Path) -> None:
    process = Worker("simulator", "trn2", tmp_path, limit_s=120.0)
    try:
        first, second = process.run("a"), process.run("b")
        crashed = process.run("crash")
        process.limit_s = 0.5
        hung = process.run("hang")
        process.limit_s = 120.0
        last = process.run("c")
    finally:
        process.close()
    assert first["pid"] == second["pid"] != last["pid"]
    assert (crashed["state"], crashed["summary"]) == ("crashed", "the process ended with 7")
    assert "the compiler says something" in crashed["detail"]
    assert hung["state"] == "timeout" and "0.5 s" in hung["summary"]
    assert last["state"] == "passed"


def test_the_environment_of_a_worker() -> None:
    before = {"TRNRT_NKI": "simulator", "HOME": "/x"}
    device = environment(before, "neuron", "trn3")
    assert "TRNRT_NKI" not in device and device["HOME"] == "/x"
    assert device["NEURON_LOGICAL_NC_CONFIG"] == "1" and device["NEURON_PLATFORM_TARGET_OVERRIDE"] == "trn3"
    assert environment({"NEURON_RT_VISIBLE_CORES": "3"}, "neuron", "trn2")["NEURON_RT_VISIBLE_CORES"] == "3"
    assert environment({}, "simulator", "trn2")["TRNRT_NKI"] == "simulator"


def test_a_real_worker_skips_what_the_target_lacks() -> None:
    told: list[str] = []
    names = ["linear", "matmul_double_row", "net_predict"]
    made = run_suite("simulator", "trn1", names, told.append)
    assert told == names
    assert [outcome.state for outcome in made.outcomes] == ["passed", "skipped", "passed"]
    assert made.has_passed and made.seconds > 0
    assert all(outcome.measured_us is None for outcome in made.outcomes)


@pytest.mark.usefixtures("stub")
def test_what_a_worker_started_ends_with_it(tmp_path: Path) -> None:
    """A hung compiler would keep its memory, and its core."""
    process = Worker("simulator", "trn2", tmp_path, limit_s=120.0)
    try:
        child = process.run("child")["child"]
        process.limit_s = 0.2
        assert process.run("hang")["state"] == "timeout"
    finally:
        process.close()
    deadline = time.monotonic() + 120
    while alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether there is a process of this number that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:  # gone, maybe between the two halves of reading it
        return False


def test_an_interrupted_run_keeps_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str, *rest: Any) -> Outcome:
        if name == "add":
            raise KeyboardInterrupt
        return outcome(name, "passed", 20.0)

    monkeypatch.setattr(suite, "_outcome", interrupted)
    path = tmp_path / "report.json"
    chosen = ("--case", "linear", "--case", "add", "--case", "conv")
    ran = trnrt("doctor", "--self-test", "--backend", "simulator", "--json-out", path, *chosen)
    report = json.loads(path.read_text(encoding="utf-8"))
    assert ran.code == 130 and "interrupted before its end" in ran.out
    assert (report["interrupted"], report["passed"], len(report["cases"])) == (True, False, 1)


# ---- the report


def outcome(name: str, state: str, measured: float | None = None) -> Outcome:
    document: dict[str, Any] = {"state": state, "summary": "" if state == "passed" else "why\nmore", "max_abs": 1e-7}
    if measured is not None:
        document["wall_us"] = {"least": measured - 1, "median": measured, "most": measured + 1, "runs": 3.0}
    return Outcome(name, document, {"state": "passed", "predicted_us": 10.0, "low_us": 9.0, "high_us": 12.0}, 2e-7)


def test_report_of_a_device() -> None:
    made = Suite(
        "neuron", "trn2", 3.0, [outcome("a", "passed", 25.0), outcome("b", "timeout"), outcome("c", "skipped")]
    )
    text = render(selftest_parts(made))
    document = selftest_document(made, {"usable": True}, text, version="1")
    assert not made.has_passed and text.startswith(
        "FAIL self-test on the neuron, target trn2, in 3 s\n3 cases: 1 passed"
    )
    assert "b: why" in text and max(map(len, text.splitlines())) <= 80 and "\x1b" not in text
    assert document["counts"] == {"passed": 1, "timeout": 1, "skipped": 1}
    assert document["text"] == text.splitlines()
    first = document["cases"][0]
    assert (first["predicted_us"], first["measured_us"], first["ratio"]) == (10.0, 25.0, 2.5)
    assert (first["low_us"], first["high_us"]) == (9.0, 12.0)
    assert document["cases"][1]["ratio"] is None
    assert json.loads(json.dumps(document))["schema_version"] == 1


def test_the_verb_on_the_simulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = ("--case", "linear", "--case", "add", "--case", "digits_cnn_1")
    ran = trnrt("doctor", "--self-test", "--backend", "simulator", *chosen)
    report = json.loads((tmp_path / "trnrt-self-test.json").read_text(encoding="utf-8"))
    assert (ran.code, report["passed"], report["kind"]) == (0, True, "self-test")
    assert ran.out.startswith("PASS self-test on the simulator, target trn2")
    assert [case["name"] for case in report["cases"]] == ["linear", "add", "digits_cnn_1"]
    assert "the simulator's own report is trnrt-self-test.json" in ran.err
    assert report["text"] == ran.out.splitlines() and report["doctor"]["machine"]["python"]


def test_a_failure_is_exit_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Suite("simulator", "trn2", 1.0, [outcome("a", "failed")])
    monkeypatch.setattr("trnrt.neuron.selftest.suite.run_suite", lambda *arguments, **options: made)
    path = tmp_path / "report.json"
    ran = trnrt("doctor", "--self-test", "--backend", "simulator", "--json", "--json-out", path)
    assert (ran.code, ran.document["passed"]) == (1, False)
    assert path.read_text(encoding="utf-8") == ran.out


def test_without_a_device_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trnrt.neuron.device import neuron_device

    if neuron_device() is not None:
        pytest.skip("this machine has a device")
    monkeypatch.chdir(tmp_path)
    ran = trnrt("doctor", "--self-test")
    assert (ran.code, ran.out) == (2, "")
    assert (
        "the self-test needs a device" in ran.err and "no /dev/neuron*" in ran.err and "--backend simulator" in ran.err
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--case", "linear"), "--target and --case need --self-test"),
        (("--self-test", "--case", "nothing"), "the self-test has no case 'nothing'"),
        (("--self-test", "--case", "descriptors"), "did you mean descriptors_of_4_4 or"),
        (("--self-test", "--backend", "simulator", "--json-out", "/nowhere/x.json"), "can't write"),
    ],
)
def test_requests_that_are_wrong(arguments: tuple[str, ...], told: str) -> None:
    ran = trnrt("doctor", *arguments)
    assert (ran.code, ran.out) == (2, "") and told in ran.err


def test_only_what_lets_no_case_run_keeps_the_self_test_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that the doctor calls wrong does not: it may be right, and is in the report."""
    from trnrt.neuron.device import OWN_PACKAGES, Package
    from trnrt.neuron.doctor.machine import Machine

    packages = {name: Package(name, version) for name, version in versions().items()}
    packages |= {name: Package(name, "2.9") for name in OWN_PACKAGES}
    machine = Machine(python="3.14.1", packages=packages, devices=("/dev/neuron0",), instance="trn3.xlarge")
    asked: list[tuple[str, str]] = []

    def ran(backend: str, target: str, *rest: Any, **options: Any) -> Suite:
        asked.append((backend, target))
        return Suite(backend, target, 1.0, [outcome("a", "passed", 20.0)])

    monkeypatch.setattr("trnrt.neuron.selftest.suite.run_suite", ran)
    monkeypatch.setattr("trnrt.neuron.doctor.machine.look", lambda: machine)
    done = trnrt("doctor", "--self-test", "--json-out", tmp_path / "report.json")
    assert (done.code, asked) == (0, [("neuron", "trn3")])
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    states = {finding["name"]: finding["state"] for finding in report["doctor"]["findings"]}
    assert states["python"] == "wrong" and report["doctor"]["usable"] is True
    monkeypatch.setattr("trnrt.neuron.doctor.machine.look", lambda: replace(machine, seam="TRNRT_NKI=simulator is set"))
    assert trnrt("doctor", "--self-test").code == 2

"""The self-test on a machine with a device, by each route, on the fakes: numbers, and which clock timed them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanding import trnrt
from fake_neuron import Faults, Hardware, fake_nki
from fake_neuron.installing_fake import a_route, an_instance
from worker_machine import machine_text, make_python

from trnrt.calibration.reports import probed_observations, read_report
from trnrt.errors import DeviceError, KernelError, ReportError
from trnrt.neuron.routes import neff
from trnrt.neuron.selftest import running, suite
from trnrt.neuron.selftest.cases import DIRECT, Direct
from trnrt.neuron.selftest.modules import plan_case
from trnrt.neuron.selftest.table import CASES, PROBED
from trnrt.neuron.worker.client import Benchmark, LoadedNeff
from trnrt.nki import trace

CLOCKS = {"neff": "device", "trace": "host", "torchneuron": "host", "jit": "call"}
SHORT = ("add_rows", "matmul_double_row", "net_predict", "products_512_64", "bounce_software_8", "linear")

# AWS's package, as far as the seam can tell: modules of its own, and kernels that the simulator does not know.
AWS = {
    **fake_nki.SOURCES,
    "__init__": """
from trnrt.nki.sim.kernel import Kernel as _Simulated
class Kernel:
    def __init__(self, function):
        self.function = self.__wrapped__ = function
    def __call__(self, *args):
        return _Simulated(self.function)(*args)
def jit(fn=None, **kwargs):
    return Kernel(fn)
""",
}
# A worker of the self-test on such a machine. Where AWS's nki is installed, the simulator's process must not get it.
WORKER = """
import os, pathlib, sys, tempfile
import pytest
import trnrt.nki
from fake_neuron import Hardware
from fake_neuron.installing_fake import ROUTE_VERSIONS, install, versions
from trnrt.neuron.selftest import running, worker
route, backend, target, folder = sys.argv[1:]
running.SECONDS = 0.0
assert trnrt.nki.USES_AWS == (backend == "neuron")
if backend == "neuron":
    assert trnrt.nki.nl.AWS
    python = os.environ.get("TRNRT_NRTPY_PYTHON")
    made = pathlib.Path(tempfile.mkdtemp(dir=folder))
    install(pytest.MonkeyPatch(), made, Hardware(), versions() if route == "trace" else ROUTE_VERSIONS[route])
    os.environ["TRNRT_ROUTE"] = route
    if python:
        os.environ["TRNRT_NRTPY_PYTHON"] = python
worker.main(backend, target, pathlib.Path(folder))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_python(tmp_path_factory.mktemp("nrtpy"))


@pytest.fixture(scope="module")
def simulated() -> dict[str, running.Result]:
    """Each case on the simulator, before a fake is in its place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "SECONDS", 0.0)
        return {name: running.run_case(CASES[name], "simulator", "trn2") for name in SHORT}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "SECONDS", 0.0)
    monkeypatch.setattr(running, "RUNS", 8)


@pytest.fixture(params=[*CLOCKS])
def route(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def machine(route: str, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hardware]:
    """A trn2 instance with what the route needs."""
    with ExitStack() as stack:
        made = an_instance(monkeypatch, tmp_path, "fake torch") if route == "trace" else None
        hardware = stack.enter_context(made or a_route(monkeypatch, tmp_path, route))
        monkeypatch.setenv("TRNRT_ROUTE", route)
        if route == "neff":
            monkeypatch.setenv("TRNRT_NRTPY_PYTHON", str(python))
            monkeypatch.setenv("FAKE_NRTPY", str(tmp_path))
        (tmp_path / "machine.json").write_text(machine_text("trn2", int(route == "jit")), encoding="utf-8")
        monkeypatch.setattr(neff, "_workers", {})
        yield hardware
        for worker in neff._workers.values():
            worker.close()


@pytest.mark.parametrize("name", SHORT)
def test_a_case_is_compiled_once_and_timed_by_the_routes_clock(
    name: str, route: str, simulated: dict[str, running.Result], machine: Hardware
) -> None:
    taken = "jit" if name == "matmul_double_row" and route in running.BY_TENSORS else route
    if taken != route and route == "torchneuron":
        pytest.skip("its fake knows no call on arrays")
    result, expected = running.run_case(CASES[name], "neuron", "trn2"), simulated[name]
    assert result.passed, result
    assert (result.route, result.clock) == (taken, CLOCKS[taken])
    assert (expected.route, expected.clock) == ("", "host")
    assert result.wall_us["runs"] == (8 if route == "neff" else 1)
    assert 0 < result.wall_us["least"] <= result.wall_us["median"]
    assert result.predicted_us is None and result.moved_bytes == expected.moved_bytes > 0
    for ours, theirs in zip(result.outputs, expected.outputs, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    if route in ("torchneuron", "jit") and isinstance(CASES[name], Direct):
        assert machine.compiled == [f"self_test_{name}"], "also by jit, whose first call is the one that is timed"


@pytest.mark.parametrize("route", ["jit"], indirect=True)
def test_every_kernel_and_probe_passes_as_a_module(machine: Hardware) -> None:
    names = [case.name for case in (*DIRECT, *PROBED)]
    assert [name for name in names if not running.run_case(CASES[name], "neuron", "trn2").passed] == []
    assert machine.compiled == [f"self_test_{name}" for name in names]


@pytest.mark.parametrize("route", ["neff"], indirect=True)
def test_a_device_without_times_is_timed_by_the_host(machine: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: LoadedNeff, **options: Any) -> Benchmark:
        raise DeviceError("RuntimeError: no device execution events were captured", usable=True)

    monkeypatch.setattr(LoadedNeff, "benchmark", fail)
    result = running.run_case(CASES["add"], "neuron", "trn2")
    assert result.passed and result.clock == "host" and result.wall_us["runs"] == 1
    assert result.detail == "timed by the host's clock: RuntimeError: no device execution events were captured"
    several = Benchmark(1.0, 1.0, 1.0, 0.0, 16, 5, (1.0,) * 16)
    monkeypatch.setattr(LoadedNeff, "benchmark", lambda self, **options: several)
    result = running.run_case(CASES["add"], "neuron", "trn2")
    assert result.passed and result.clock == "host" and "16 events in 8 runs" in result.detail


@pytest.mark.parametrize("route", ["neff"], indirect=True)
def test_the_devices_times_are_nrtpys_in_microseconds(machine: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def timed(self: LoadedNeff, **options: Any) -> Benchmark:
        asked.append(options)
        return Benchmark(0.0, 0.0, 0.0, 0.0, 8, 5, tuple(0.001 * (k + 1) for k in range(8)))

    monkeypatch.setattr(LoadedNeff, "benchmark", timed)
    result = running.run_case(CASES["add"], "neuron", "trn2")
    assert asked == [{"warmup": 5, "iterations": 8, "mode": "device"}]
    assert result.clock == "device" and result.wall_us["median"] == pytest.approx(4.5)
    assert (result.wall_us["least"], result.wall_us["most"]) == pytest.approx((1, 8))


@pytest.mark.parametrize("route", ["jit", "torchneuron", "trace"], indirect=True)
def test_a_compiler_that_refuses_is_the_cases_error(machine: Hardware) -> None:
    machine.faults = Faults(compiling="NCC_EVRF001: operator is not supported")
    with pytest.raises(KernelError, match="NCC_EVRF001"):
        running.run_case(CASES["add"], "neuron", "trn2")


def test_a_case_as_a_module() -> None:
    for name in ("products_512_64", "net_predict", "layout_rows", "add_naive", "transpose_by_dma"):
        case = CASES[name]
        assert isinstance(case, Direct)
        arrays = case.arrays()
        plan = plan_case(case, "trn2", case.expected(*(array.astype(np.float64) for array in arrays)))
        module: dict[str, Any] = {}
        exec(plan.source, module)
        program = trace(module[plan.entry], *arrays, target="trn2")
        (result,) = plan.results
        assert [(out.shape, out.dtype.name) for out in program.outputs] == [(result.shape, result.dtype)]
        assert len(program.instructions) == len(
            trace(case.find_kernel(), *arrays, *case.options, target="trn2").instructions
        )


def test_each_result_has_the_dtype_of_the_table() -> None:
    for case in CASES.values():
        if isinstance(case, Direct):
            (output,) = trace(case.find_kernel(), *case.arrays(), *case.options, target="trn3").outputs
            assert output.dtype.name == case.result_dtype, case.name


@pytest.mark.parametrize("route", ["neff", "trace", "jit"], indirect=True)
def test_the_whole_self_test_compares_device_and_simulator(
    route: str, machine: Hardware, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command, where AWS's nki is installed: each worker has the nki of its own backend."""
    package = tmp_path / "site" / "nki"
    package.mkdir(exist_ok=True)
    for name, text in (AWS if route == "trace" else fake_nki.SOURCES).items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.setenv(fake_nki.MACHINE, str(tmp_path / "machine.json"))

    def command(backend: str, target: str, folder: Path) -> list[str]:
        return [sys.executable, "-c", WORKER, route, backend, target, str(folder)]

    monkeypatch.setattr(suite, "command", command)
    report = tmp_path / "report.json"
    names = ("additions_64_32", "additions_64_256", "net_predict", "linear", "digits_ffnn_1")
    chosen = [part for name in names for part in ("--case", name)]
    ran = trnrt("doctor", "--self-test", "--backend", "neuron", "--json-out", report, *chosen)
    document = json.loads(report.read_text(encoding="utf-8"))
    assert ran.code == 0, (ran.out, ran.err, document)
    for case in document["cases"]:
        assert (case["state"], case["route"], case["off_simulator"]) == ("passed", route, 0)
        assert case["measured"]["clock"] == CLOCKS[route] and case["predicted_us"] > 0
        assert (case["measured_us"] is None) == (case["ratio"] is None) == (route == "jit")
    assert f"(route {route})" in ran.out and "5 times by " in ran.out
    check_calibration(route, report)


def check_calibration(route: str, report: Path) -> None:
    """The numbers that `trnrt calibrate` learns from it."""
    if route == "jit":
        with pytest.raises(ReportError, match="each hold a compilation"):
            read_report(report)
        assert trnrt("calibrate", report).code == 1
        return
    if route == "neff":
        read = probed_observations([read_report(report)])
        assert [(one.case, one.clock) for one in read] == [
            ("additions_64_32", "device"),
            ("additions_64_256", "device"),
        ]

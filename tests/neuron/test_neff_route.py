"""The route neff: AWS's compiler in a process with the fake nki, and NEFFs in a worker with the fake nrtpy."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_neuron import Hardware, fake_nki
from fake_neuron.installing_fake import a_route
from worker_machine import machine_text, make_python

import trnrt
from trnrt.backends import DeviceOptions
from trnrt.cache import KernelCache
from trnrt.errors import BackendError, DeviceError, KernelError
from trnrt.neuron import cores
from trnrt.neuron.backend import NeuronBackend
from trnrt.neuron.routes import compiling, neff

ROOT = Path(__file__).parents[2]
CNN = ROOT / "models" / "digits_cnn.onnx"
FFNN = ROOT / "models" / "digits_ffnn.onnx"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python environment with the fake nrtpy."""
    return make_python(tmp_path_factory.mktemp("nrtpy"))


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hardware]:
    """An instance with AWS's nki and its compiler, whose process has no device, and no worker."""
    with a_route(monkeypatch, tmp_path, "neff") as hardware:
        monkeypatch.setenv("TRNRT_ROUTE", "neff")
        yield hardware


@pytest.fixture
def machine(builder: Hardware, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hardware]:
    """The same with a worker's Python."""
    monkeypatch.setenv("TRNRT_NRTPY_PYTHON", str(python))
    monkeypatch.setenv("FAKE_NRTPY", str(tmp_path))
    (tmp_path / "machine.json").write_text(machine_text("trn2"), encoding="utf-8")
    monkeypatch.setattr(neff, "_workers", {})
    yield builder
    for worker in neff._workers.values():
        worker.close()


def opened(model: Path = FFNN, **options: Any) -> trnrt.InferenceSession:
    return trnrt.InferenceSession(model, backend="neuron", **options)


def compiled_into(folder: Path, session: trnrt.InferenceSession) -> list[Path]:
    plan = session.plan(1)
    path, source, _ = KernelCache().kernel(plan.name, plan.source)
    assert isinstance(session.runner, NeuronBackend)
    return session.runner.compile_into(folder, plan, path, source)


@pytest.mark.parametrize("model", [FFNN, CNN], ids=["ffnn", "cnn"])
def test_a_worker_runs_what_the_compiler_left(model: Path, machine: Hardware, tmp_path: Path) -> None:
    session = opened(model)
    assert session.backend_reason == "asked for, route neff"
    feeds = session.random_inputs(2)
    expected = trnrt.InferenceSession(model, backend="simulator").run(None, feeds)
    for ours, theirs in zip(session.run(None, feeds), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    (record,) = (tmp_path / "cache" / "neuron").glob("*.json")
    before = record.stat().st_mtime_ns
    opened(model).run(None, feeds)
    assert record.stat().st_mtime_ns == before, "compiled once"
    assert len(neff._workers) == 1 and machine.ran_on == [], "one worker, and nothing ran in this process"


def test_slices_run_in_a_worker_for_each_core(machine: Hardware) -> None:
    session = opened(device=DeviceOptions(cores=2))
    feeds = session.random_inputs(4)
    expected = trnrt.InferenceSession(FFNN, backend="simulator", buckets=[2]).run(None, feeds)
    np.testing.assert_array_equal(session.run(None, feeds)[0], expected[0])
    assert [worker.core for worker in neff._workers.values()] == [0, 1]
    assert os.environ[cores.VISIBLE] == "0-1"


def test_it_is_compiled_here_and_run_where_no_package_of_aws_is(
    builder: Hardware, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "compiled"
    written = compiled_into(folder, opened(device=DeviceOptions(compile_only=True)))
    assert [path.suffix for path in written] == [".neff", ".json"]
    made = json.loads(written[1].read_bytes())["made"]
    assert (made["route"], made["weights"], made["versions"]["nki"]) == ("neff", "", "0.7.0")
    for path in (tmp_path / "site").iterdir():
        path.rename(tmp_path / path.name)  # AWS's packages are gone
    (tmp_path / "machine.json").write_text(machine_text("trn2"), encoding="utf-8")
    monkeypatch.setattr("trnrt.nki.USES_AWS", False)
    monkeypatch.setattr(neff, "_workers", {})
    monkeypatch.setenv("TRNRT_NRTPY_PYTHON", str(python))
    monkeypatch.setenv("FAKE_NRTPY", str(tmp_path))
    with pytest.raises(BackendError, match="nki: not installed"):
        opened()
    session = opened(device=DeviceOptions(compiled=folder))
    feeds = session.random_inputs(1)
    expected = trnrt.InferenceSession(FFNN, backend="simulator").run(None, feeds)
    np.testing.assert_array_equal(session.run(None, feeds)[0], expected[0])
    session.close()
    with pytest.raises(BackendError, match="another kernel module"):
        session.run(None, session.random_inputs(2))
    for worker in neff._workers.values():
        worker.close()


def test_the_worker_has_the_core_that_was_leased(machine: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cores.VISIBLE, "3-4")
    session = opened()
    session.run(None, session.random_inputs(1))
    assert [worker.core for worker in neff._workers.values()] == [3]


def test_it_is_compiled_again_in_a_folder_that_has_files_and_beside_the_simulator(
    builder: Hardware, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler wants an empty folder, and its process AWS's nki, whatever this one has."""
    monkeypatch.setenv("TRNRT_NKI", "simulator")
    for _ in range(2):
        compiled_into(tmp_path / "compiled", opened(device=DeviceOptions(compile_only=True)))


def test_a_compiler_that_refuses_is_a_kernel_error(builder: Hardware, tmp_path: Path) -> None:
    text = machine_text("trn2").replace('"compiling": ""', '"compiling": "NCC_EVRF001: operator is not supported"')
    (tmp_path / "machine.json").write_text(text, encoding="utf-8")
    session = opened(device=DeviceOptions(compile_only=True))
    with pytest.raises(KernelError, match=r"refused .* for trn2: .*NCCError: NCC_EVRF001") as caught:
        compiled_into(tmp_path / "compiled", session)
    assert str(tmp_path / "compiled") in str(caught.value.hint)
    assert not list((tmp_path / "compiled").glob("*.neff"))


def test_a_compiler_that_can_not_be_imported_is_no_fault_of_the_kernel(builder: Hardware, tmp_path: Path) -> None:
    (tmp_path / "site" / "nki" / "__init__.py").write_text("import neuronxcc_is_missing\n", encoding="utf-8")
    for name in ("language", "isa"):
        (tmp_path / "site" / "nki" / f"{name}.py").write_text("", encoding="utf-8")
    session = opened(device=DeviceOptions(compile_only=True))
    with pytest.raises(BackendError, match="AWS's nki is not what the kernels get") as caught:
        compiled_into(tmp_path / "compiled", session)
    assert "trnrt doctor" in str(caught.value.hint)


def test_a_process_that_dies_is_told(builder: Hardware, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = fake_nki.SOURCES["__init__"] + "import os\nos.write(2, b'Segmentation fault')\nos._exit(139)\n"
    (tmp_path / "site" / "nki" / "__init__.py").write_text(text, encoding="utf-8")
    session = opened(device=DeviceOptions(compile_only=True))
    with pytest.raises(KernelError, match="Segmentation fault"):
        compiled_into(tmp_path / "compiled", session)


def test_a_run_after_compiling_that_hangs_is_ended(
    builder: Hardware, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The NEFF is there already, and nobody needs the run's result."""
    monkeypatch.setattr(compiling, "RUN_S", 0.3)
    package = tmp_path / "site" / "nki" / "__init__.py"
    package.write_text(package.read_text() + "import atexit, time\natexit.register(time.sleep, 600)\n")
    session = opened(device=DeviceOptions(compile_only=True))
    assert compiled_into(tmp_path / "compiled", session)[0].stat().st_size > 0


def test_a_neff_of_another_target_is_refused_by_the_runtime(machine: Hardware, tmp_path: Path) -> None:
    session = opened()
    (tmp_path / "machine.json").write_text(machine_text("trn3"), encoding="utf-8")
    with pytest.raises(BackendError):
        session.run(None, session.random_inputs(1))


def test_a_worker_that_hangs_is_ended_and_the_core_is_free(machine: Hardware, tmp_path: Path) -> None:
    session = opened(device=DeviceOptions(timeout_s=1.0))
    feeds = session.random_inputs(1)
    expected = session.run(None, feeds)[0]
    (file,) = (tmp_path / "cache" / "neuron").glob("*.neff")
    (loaded,) = next(iter(session._programs.loaded.values())).plans
    (worker,) = neff._workers.values()
    os.kill(worker.pid, 19)  # SIGSTOP
    with pytest.raises(DeviceError, match="hang") as caught:
        loaded.run(feeds)
    assert caught.value.usable and not worker.is_alive and file.exists()
    session.close()
    np.testing.assert_array_equal(session.run(None, feeds)[0], expected)
    assert [w.is_alive for w in neff._workers.values()] == [True]


def test_parameters_are_read_without_running_the_module() -> None:
    source = b"import nothing\n\n\ndef other(a):\n    pass\n\n\ndef kernel(x, w_0):\n    pass\n"
    assert neff.parameters_of(source, "kernel") == ["x", "w_0"]

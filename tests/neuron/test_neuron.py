"""The NeuronCore backend on the fake SDK: numbers, artefacts, settings, cores."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fake_neuron import Faults, Hardware
from fake_neuron.fake_torch_neuronx import State
from fake_neuron.installing_fake import TORCHES, an_instance, be_instance, install, versions

import trnrt
from trnrt.backends import DeviceOptions
from trnrt.errors import BackendError
from trnrt.neuron import artefacts
from trnrt.neuron import backend as neuron
from trnrt.neuron.routes.neff import NeffRoute
from trnrt.neuron.routes.trace import TraceRoute

# PyTorch 2.13 calls torch.jit deprecated; 2.9, which torch-neuronx is for, has nothing else.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.* is deprecated:DeprecationWarning")

MODELS = Path(__file__).parents[2] / "models"
CNN = MODELS / "digits_cnn.onnx"
FFNN = MODELS / "digits_ffnn.onnx"


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(params=TORCHES)
def machine(request: pytest.FixtureRequest, tmp_path: Path, patch: pytest.MonkeyPatch) -> Iterator[Hardware]:
    with an_instance(patch, tmp_path, request.param) as hardware:
        yield hardware


def become(hardware: Hardware, patch: pytest.MonkeyPatch, folder: Path, target: str, devices: int = 1) -> None:
    """Another instance with the same packages."""
    hardware.target, hardware.devices, hardware.visible = target, devices, None
    be_instance(patch, folder / "elsewhere", f"{target}.xlarge", devices)
    patch.setattr("trnrt.neuron.cores._Process.lease", None)


def opened(model: Path = CNN, **options: Any) -> trnrt.InferenceSession:
    return trnrt.InferenceSession(model, backend="neuron", **options)


@pytest.mark.parametrize("model", [CNN, FFNN], ids=["cnn", "ffnn"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_device_runs_what_the_simulator_runs(model: Path, dtype: str, machine: Hardware) -> None:
    session = opened(model, dtype=dtype)
    simulator = trnrt.InferenceSession(model, dtype=dtype, backend="simulator")
    feeds = session.random_inputs(4)
    np.testing.assert_array_equal(session.run(None, feeds)[0], simulator.run(None, feeds)[0])
    session.run(None, feeds)
    assert machine.ran_on == [0, 0]
    assert machine.weight_copies == 0, "the weights are on the device, once"


def test_unsigned_results_may_come_as_other_integers(machine: Hardware) -> None:
    session = opened(FFNN)
    feeds = session.random_inputs(3)
    expected = session.run(["label"], feeds)[0]
    machine.faults = Faults(wide_integers=True)
    np.testing.assert_array_equal(session.run(["label"], feeds)[0], expected)


def test_auto_takes_the_device_and_says_so(machine: Hardware) -> None:
    session = trnrt.InferenceSession(CNN)
    assert (session.backend, session.target) == ("neuron", "trn2")
    assert session.backend_reason == "/dev/neuron0 is here, route trace"


def test_auto_says_why_a_device_is_not_taken(machine: Hardware, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("trnrt.nki.USES_AWS", False)
    patch.setenv("TRNRT_NKI", "simulator")
    session = trnrt.InferenceSession(CNN)
    assert session.backend == "simulator" and "TRNRT_NKI=simulator is set" in session.backend_reason


def test_what_is_missing_is_told_at_once(tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    old = {**versions(), "torch-neuronx": "2.10.0", "neuronx-cc": "2.9.1"}
    del old["nki"]
    install(patch, tmp_path, Hardware(devices=0), old)
    patch.setenv("TRNRT_ROUTE", "trace")
    with pytest.raises(BackendError) as caught:
        opened()
    said = str(caught.value)
    assert caught.value.exit_code == 2
    for part in ("no /dev/neuron", "nki: not installed", "torch-neuronx: 2.10.0", "<2.10)", "neuronx-cc: 2.9.1"):
        assert part in said
    assert "pip install" in str(caught.value.hint)


def test_a_model_is_compiled_once(machine: Hardware) -> None:
    for _ in range(2):
        session = opened()
        session.run(None, session.random_inputs(1))
        session.close()
    assert machine.compiled == ["digits_cnn"]
    session = opened(cache=False)
    session.run(None, session.random_inputs(1))
    assert len(machine.compiled) == 2


def test_without_a_device_it_is_compiled_and_elsewhere_it_runs(
    machine: Hardware, patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    become(machine, patch, tmp_path, "trn2", devices=0)
    folder = tmp_path / "compiled"
    builder = opened(target="trn2", device=DeviceOptions(compile_only=True))
    written = compiled_into(folder, builder)
    assert [path.suffix for path in written] == [".pt", ".json"]
    assert machine.visible is None, "the runtime was not started"
    with pytest.raises(BackendError, match="to compile, not to run"):
        builder.run(None, builder.random_inputs(1))
    patch.setattr("trnrt.neuron.device.ROOT", tmp_path)
    machine.devices = 1
    session = opened(device=DeviceOptions(compiled=folder))
    feeds = session.random_inputs(1)
    expected = trnrt.InferenceSession(CNN, backend="simulator").run(None, feeds)[0]
    np.testing.assert_array_equal(session.run(None, feeds)[0], expected)
    assert len(machine.compiled) == 1
    with pytest.raises(BackendError, match="another kernel module"):
        session.run(None, session.random_inputs(2))


def compiled_into(folder: Path, session: trnrt.InferenceSession) -> list[Path]:
    from trnrt.cache import KernelCache

    plan = session.plan(1)
    path, source, _ = KernelCache().kernel(plan.name, plan.source)
    assert isinstance(session.runner, neuron.NeuronBackend)
    folder.mkdir()
    return session.runner.compile_into(folder, plan, path, source)


MISFITS = [
    ({"target": "trn1"}, "compiled for trn1, and trn2 is wanted"),
    ({"lnc": 2}, "compiled for 2 physical cores"),
    ({"route": "neff"}, "by the route neff, and trace is used"),
    ({"frontend": "parser"}, "NKI_COMPILER_FRONTEND='parser', and it is 'tracer' here"),
    ({"settings": {"NEURON_CC_FLAGS": "-O1"}}, "NEURON_CC_FLAGS='-O1', and it is '' here"),
    ({"versions": {"neuronx-cc": "2.26.0"}}, "with neuronx-cc 2.26.0, and 2.27"),
    ({"kernel": "0"}, "another kernel module"),
    ({"weights": "0"}, "other weights"),
]


@pytest.mark.parametrize(("change", "reason"), MISFITS)
def test_what_does_not_fit_is_refused_with_the_reason(
    change: dict[str, Any], reason: str, machine: Hardware, tmp_path: Path
) -> None:
    folder = tmp_path / "compiled"
    (_, note) = compiled_into(folder, opened(device=DeviceOptions(compile_only=True)))
    document = json.loads(note.read_text())
    for name, value in change.items():
        document["made"][name] = {**document["made"][name], **value} if isinstance(value, dict) else value
    note.write_text(json.dumps(document))
    session = opened(device=DeviceOptions(compiled=folder))
    with pytest.raises(BackendError, match=reason):
        session.run(None, session.random_inputs(1))


def test_a_changed_artefact_is_not_loaded(machine: Hardware, tmp_path: Path) -> None:
    folder = tmp_path / "compiled"
    (module, note) = compiled_into(folder, opened(device=DeviceOptions(compile_only=True)))
    module.write_bytes(module.read_bytes() + b" ")
    session = opened(device=DeviceOptions(compiled=folder))
    with pytest.raises(BackendError, match="changed after it was made"):
        session.run(None, session.random_inputs(1))
    note.write_text("{}")
    with pytest.raises(BackendError, match="can't be read"):
        session.run(None, session.random_inputs(1))
    module.unlink()
    note.unlink()
    with pytest.raises(BackendError, match=r"there is no digits_cnn_neuron\.json"):
        session.run(None, session.random_inputs(1))


def test_a_damaged_one_in_the_cache_is_made_anew(machine: Hardware, tmp_path: Path) -> None:
    feeds = opened().random_inputs(1)
    opened().run(None, feeds)
    (module,) = (tmp_path / "cache" / "neuron").glob("*.pt")
    module.write_bytes(b"")
    opened().run(None, feeds)
    assert len(machine.compiled) == 2


def test_what_is_kept_says_what_it_is_good_for(machine: Hardware) -> None:
    plan = opened().plan(1)
    made = artefacts.describe_made(plan, b"", 1, TraceRoute())
    assert (made.target, made.lnc, made.versions) == ("trn2", 1, versions())
    assert artefacts.misfit(made, made) == ""


KEYS: list[tuple[str, Any]] = [
    ("NEURON_CC_FLAGS", "-O1"),
    ("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", "1"),
    ("NKI_LNC1_SHARED_HBM", "1"),
    ("NKI_PREFETCH_RING_SIZE", "2"),
    ("XLA_DOWNCAST_BF16", "1"),
    ("XLA_USE_BF16", "1"),
    ("NKI_COMPILER_FRONTEND", "parser"),
    ("kernels", b"changed"),
    ("weights", None),
    ("source", b"other"),
    ("lnc", 2),
    ("route", NeffRoute(DeviceOptions())),
    ("versions", {"nki": "0.6.1"}),
]


@pytest.mark.parametrize(("what", "value"), KEYS, ids=[what for what, _ in KEYS])
def test_all_that_can_change_an_artefact_is_in_its_key(
    what: str, value: Any, machine: Hardware, patch: pytest.MonkeyPatch
) -> None:
    plan, source, lnc, route = opened().plan(1), b"source", 1, TraceRoute()
    before = artefacts.describe_made(plan, source, lnc, route)
    if what == "kernels":
        patch.setattr(artefacts, "_kernels_digest", lambda: value)
    elif what == "versions":
        patch.setattr(artefacts, "installed_versions", lambda: versions() | value)
    elif what == "weights":
        first, *rest = plan.weights.items()
        plan = replace(plan, weights={first[0]: first[1] + first[1].dtype.type(1), **dict(rest)})
    elif what not in ("source", "lnc", "route"):
        patch.setenv(what, value)
    source, lnc = value if what == "source" else source, value if what == "lnc" else lnc
    after = artefacts.describe_made(plan, source, lnc, value if what == "route" else route)
    assert before.key != after.key and artefacts.misfit(before, after)


def test_another_target_is_refused_for_running_and_allowed_for_compiling(machine: Hardware, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="target trn1 was asked for, and this machine's device is trn2"):
        opened(target="trn1")
    builder = opened(target="trn1", device=DeviceOptions(compile_only=True))
    compiled_into(tmp_path / "compiled", builder)
    assert os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] == "trn1"
    session = trnrt.InferenceSession(CNN, target="trn1")
    assert session.backend == "simulator" and "device is trn2" in session.backend_reason


def test_trn1_has_no_logical_cores(machine: Hardware, patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    become(machine, patch, tmp_path, "trn1")
    with pytest.raises(BackendError, match="LNC is always 1"):
        opened(device=DeviceOptions(lnc=2))
    session = opened(device=DeviceOptions(allow_unsupported=True))
    session.run(None, session.random_inputs(1))
    assert (session.target, machine.visible) == ("trn1", (0,))


def test_the_logical_configuration_is_one_everywhere(machine: Hardware, patch: pytest.MonkeyPatch) -> None:
    session = opened(device=DeviceOptions(lnc=2))
    feeds = session.random_inputs(2)
    alone, shared = (
        trnrt.InferenceSession(CNN, backend="simulator", device=DeviceOptions(lnc=lnc)).run(None, feeds)[0]
        for lnc in (1, 2)
    )
    found = session.run(None, feeds)[0]
    np.testing.assert_array_equal(found, shared)
    # A core computes one row: BLAS may add its products in another order than those of two.
    np.testing.assert_allclose(found, alone, rtol=1e-5, atol=1e-6)
    assert (os.environ["NEURON_LOGICAL_NC_CONFIG"], machine.lnc) == ("2", 2)
    assert session.last_run.plan is not None and session.last_run.plan.cores == 2
    with pytest.raises(BackendError, match=r"--lnc 1 was asked for, and NEURON_LOGICAL_NC_CONFIG=2 is set"):
        opened(device=DeviceOptions(lnc=1))
    patch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    with pytest.raises(BackendError, match="which the runtime keeps until the process ends"):
        opened().run(None, feeds)
    patch.setenv("NEURON_LOGICAL_NC_CONFIG", "4")
    with pytest.raises(BackendError, match="is neither 1 nor 2"):
        opened()


def test_slices_of_a_batch_run_on_all_cores(machine: Hardware) -> None:
    machine.faults = Faults(gathering=threading.Barrier(4))  # each run waits until all four are running
    session = opened(device=DeviceOptions(cores=4))
    feeds = session.random_inputs(7)
    outputs = session.run(None, feeds)
    assert machine.visible == (0, 1, 2, 3)
    assert sorted(machine.ran_on) == [0, 1, 2, 3]
    assert session.last_run.notes == ("7 rows ran in 4 slices of 2, the last one padded with 1 row",)
    expected = trnrt.InferenceSession(CNN, backend="simulator", buckets=[2]).run(None, feeds)
    np.testing.assert_array_equal(outputs[0], expected[0])


def test_models_share_the_cores_of_the_process(machine: Hardware) -> None:
    first = opened(device=DeviceOptions(cores=2))
    first.run(None, first.random_inputs(2))
    machine.ran_on.clear()
    sessions = [opened(model) for model in (CNN, FFNN)]
    for session in sessions:
        session.run(None, session.random_inputs(1))
    assert machine.ran_on == [0, 1], "each goes where the fewest are"
    with pytest.raises(BackendError, match=r"this process has 2 NeuronCores .* 3 of 1 were asked for"):
        more = opened(device=DeviceOptions(cores=3))
        more.run(None, more.random_inputs(1))


def test_models_may_be_loaded_from_several_threads(machine: Hardware) -> None:
    """Placing is for one thread at a time, says the reference; the fake takes its time for it."""
    sessions = [opened(CNN), opened(FFNN)]
    for session in sessions:
        session.run(None, session.random_inputs(1))
        session.close()
    threads = [threading.Thread(target=session.run, args=(None, session.random_inputs(1))) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(machine.ran_on) == 4


def test_the_compiled_kernel_is_found_by_either_name(tmp_path: Path) -> None:
    """The SDK's pages contradict each other."""
    assert TraceRoute().find_neff(tmp_path / "none.pt") is None
    file, work = tmp_path / "model.pt", tmp_path / "model_neuronx-cc"
    (work / "model").mkdir(parents=True)
    (work / "model" / "MODULE_1234.neff").touch()
    assert TraceRoute().find_neff(file) == work / "model" / "MODULE_1234.neff"
    (work / "other.neff").touch()
    assert TraceRoute().find_neff(file) is None
    (work / "graph.neff").touch()
    assert TraceRoute().find_neff(file) == work / "graph.neff"


def test_the_state_of_the_fake_is_the_tests_own(machine: Hardware) -> None:
    assert State.hardware is machine
    assert onnx.load(CNN).graph.name

"""The NeuronCore backend on the fake SDK: numbers, artefacts, settings, cores, and everything that goes wrong."""

from __future__ import annotations

import gc
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fake_neuron import REFERENCE, Faults, Hardware
from fake_neuron.documented import VIOLATIONS
from fake_neuron.fake_torch_neuronx import State
from fake_neuron.installing_fake import be_instance, install, versions

import trnrt
from trnrt.backends import DeviceOptions, artefacts, neuron
from trnrt.errors import BackendError, DeviceError, KernelError
from trnrt.nki import nki, nl
from trnrt.validate import validate

# PyTorch 2.13 calls torch.jit deprecated; 2.9, which torch-neuronx is for, has nothing else.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.* is deprecated:DeprecationWarning")

MODELS = Path(__file__).parents[2] / "models"
CNN = MODELS / "digits_cnn.onnx"
FFNN = MODELS / "digits_ffnn.onnx"


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(params=["fake torch", "torch"])
def machine(request: pytest.FixtureRequest, tmp_path: Path, patch: pytest.MonkeyPatch) -> Iterator[Hardware]:
    """A trn2 instance with one device; nothing may be done on it that the reference does not allow.

    With PyTorch itself where it is installed, and with the fake of it, which knows what the reference says.
    """
    real = request.param == "torch"
    if real:
        pytest.importorskip("torch", reason="PyTorch is not installed")
    patch.setenv("TRNRT_CACHE", str(tmp_path / "cache"))
    hardware = Hardware()
    VIOLATIONS.clear()
    install(patch, tmp_path, hardware, versions(), real_torch=real)
    yield hardware
    if hardware.faults.hanging is not None:
        hardware.faults.hanging.set()
    assert VIOLATIONS == []


def become(hardware: Hardware, patch: pytest.MonkeyPatch, folder: Path, target: str, devices: int = 1) -> None:
    """Another instance with the same packages."""
    hardware.target, hardware.devices, hardware.visible = target, devices, None
    be_instance(patch, folder / "elsewhere", f"{target}.xlarge", devices)
    patch.setattr("trnrt.backends.cores._Process.lease", None)


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
    assert session.backend_reason == "/dev/neuron0 is here"


def test_auto_says_why_a_device_is_not_taken(machine: Hardware, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("trnrt.nki.USES_AWS", False)
    patch.setenv("TRNRT_NKI", "simulator")
    session = trnrt.InferenceSession(CNN)
    assert session.backend == "simulator" and "TRNRT_NKI=simulator is set" in session.backend_reason


def test_what_is_missing_is_told_at_once(tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    old = {**versions(), "torch-neuronx": "2.10.0", "neuronx-cc": "2.9.1"}
    del old["nki"]
    install(patch, tmp_path, Hardware(devices=0), old)
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
    patch.setattr("trnrt.backends.device.ROOT", tmp_path)
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

    plan = session.plan_for(1)
    path, source, _ = KernelCache().kernel(plan.name, plan.source)
    assert isinstance(session.runner, neuron.NeuronBackend)
    folder.mkdir()
    return session.runner.compile_into(folder, plan, path, source)


MISFITS = [
    ({"target": "trn1"}, "compiled for trn1, and trn2 is wanted"),
    ({"lnc": 2}, "compiled for 2 physical cores"),
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
    plan = opened().plan_for(1)
    made = artefacts.made_from(plan, b"", 1)
    assert artefacts.describe(made) == {"target": "trn2", "lnc": 1, "versions": versions()}
    assert artefacts.misfit(made, made) == ""


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
    session = opened()
    session.run(None, session.random_inputs(1))
    assert (session.target, machine.visible) == ("trn1", (0,))


def test_the_logical_configuration_is_one_everywhere(machine: Hardware, patch: pytest.MonkeyPatch) -> None:
    session = opened(device=DeviceOptions(lnc=2))
    feeds = session.random_inputs(2)
    expected = trnrt.InferenceSession(CNN, backend="simulator").run(None, feeds)[0]
    np.testing.assert_array_equal(session.run(None, feeds)[0], expected)
    assert (os.environ["NEURON_LOGICAL_NC_CONFIG"], machine.lnc) == ("2", 2)
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
    assert session.notes == ["7 rows ran in 4 slices of 2, the last one padded with 1 row"]
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


def test_cores_that_another_process_has_are_told(machine: Hardware) -> None:
    from trnrt.backends.cores import lease_cores

    other = lease_cores(range(8), 8)
    session = opened()
    with pytest.raises(BackendError, match=f"0 of 8 NeuronCores are free.*held by process {os.getpid()}"):
        session.run(None, session.random_inputs(1))
    assert machine.visible is None
    other.release()
    machine.taken = frozenset({0})
    with pytest.raises(DeviceError, match="another process has the NeuronCore") as caught:
        session.run(None, session.random_inputs(1))
    assert caught.value.usable and "neuron-ls" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("The PyTorch Neuron Runtime could not be initialized.", "the runtime did not start"),
        ("... Logical Neuron Core(s) not available - Requested:1 Available:0", "another process has the NeuronCore"),
    ],
)
def test_a_runtime_that_does_not_start_is_no_fault_of_the_module(said: str, told: str, machine: Hardware) -> None:
    """It starts when the first model is compiled; what it says is from people's reports."""
    machine.faults = Faults(compiling=said)
    session = opened()
    with pytest.raises(DeviceError, match=f"compiling it for trn2: {told}: .*{re.escape(said)}") as caught:
        session.run(None, session.random_inputs(1))
    assert caught.value.usable and "NEURON_RT_VISIBLE_CORES" in str(caught.value.hint)


def test_a_run_that_made_nans_leaves_the_model_open(machine: Hardware) -> None:
    session = opened()
    feeds = session.random_inputs(1)
    expected = session.run(None, feeds)[0]
    machine.faults = Faults(running=RAISED)
    with pytest.raises(BackendError, match=r"the run made NaNs \(NRT_EXEC_COMPLETED_WITH_NUM_ERR, 1003\)") as caught:
        session.run(None, feeds)
    assert not isinstance(caught.value, DeviceError)
    (loaded,) = next(iter(session._compiled.values())).plans
    machine.faults = Faults()
    np.testing.assert_array_equal(next(iter(loaded.run(feeds).values())), expected)


def test_a_compiler_that_refuses_is_a_kernel_error(machine: Hardware, tmp_path: Path) -> None:
    machine.faults = Faults(compiling="NCC_EVRF001: operator is not supported\n" + "x " * 2000 + "at line 7")
    session = opened()
    with pytest.raises(KernelError, match=r"refused digits_cnn for trn2: RuntimeError: .*at line 7$") as caught:
        session.run(None, session.random_inputs(1))
    assert caught.value.exit_code == 1 and len(str(caught.value)) < 1000
    assert str(tmp_path / "cache" / "neuron") in str(caught.value.hint)
    machine.faults = Faults()
    session.run(None, session.random_inputs(1))


RAISED = str(REFERENCE["statuses"]["raised"]["text"])
"""What torch-neuronx raises after a run that made NaNs; a status is told by its number alone."""


def raised(status: int) -> str:
    """The same with another status; no page has its words."""
    return re.sub("status=.*", f"status={status} message=Of It", RAISED)


RUNTIME = [
    (raised(5), r"the core did not finish in time \(NRT_TIMEOUT, 5\)", False),
    (raised(101), "the core can't go on", False),
    (raised(1006), "an indirect access left its tensor", True),
    (raised(77), "status=77", True),
    ("Failure: NRT_EXEC_BAD_INPUT in nrt_execute()", "not what the model was compiled for", True),
    ("status NRT_EXEC_HW_ERR_NC_UE(1202)", "the core's own memory has an error", False),
    ("something nobody documented", "something nobody documented", True),
]


@pytest.mark.parametrize(("said", "told", "usable"), RUNTIME)
def test_an_error_in_mid_flight_closes_the_model(said: str, told: str, usable: bool, machine: Hardware) -> None:
    session = opened()
    feeds = session.random_inputs(1)
    expected = session.run(None, feeds)[0]
    machine.faults = Faults(running=said)
    with pytest.raises(DeviceError, match="running it on core 0") as caught:
        session.run(None, feeds)
    assert re.search(told, str(caught.value)) and said in str(caught.value)
    assert caught.value.usable is usable and caught.value.hint
    assert neuron._models_on == {0: 0}, "its place is given back"
    machine.faults = Faults()
    np.testing.assert_array_equal(session.run(None, feeds)[0], expected)  # loaded anew, not compiled
    assert len(machine.compiled) == 1


def test_a_session_that_nobody_has_any_more_frees_its_place(machine: Hardware) -> None:
    session = opened()
    session.run(None, session.random_inputs(1))
    assert neuron._models_on == {0: 1}
    del session
    gc.collect()
    assert neuron._models_on == {0: 0}


def test_a_closed_kernel_says_why(machine: Hardware) -> None:
    session = opened()
    feeds = session.random_inputs(1)
    session.run(None, feeds)
    (loaded,) = next(iter(session._compiled.values())).plans
    machine.faults = Faults(running="NRT_TIMEOUT(5)")
    with pytest.raises(DeviceError, match="the core did not finish in time"):
        loaded.run(feeds)
    machine.faults = Faults()
    with pytest.raises(DeviceError, match=r"digits_cnn is closed: digits_cnn: running it on core 0: the core did not"):
        loaded.run(feeds)
    session.close()
    assert neuron._models_on == {0: 0}, "once"


def test_a_run_that_meets_a_close_is_no_hang(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever asks after the thread was told to end has an answer at once, and the core is not lost."""
    monkeypatch.setattr(neuron, "_on_core", lambda artefact, core: lambda *inputs: [])
    copy = neuron._Copy("model", tmp_path / "model.pt", 0)
    copy.close()
    with pytest.raises(DeviceError, match="it was closed") as caught:
        copy.run([], timeout_s=600)
    assert caught.value.usable and not neuron._hung


def test_packages_that_are_missing_are_no_fault_of_the_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing() -> None:
        raise BackendError("torch_neuronx can't be imported", hint="trnrt doctor looks for the cause")

    monkeypatch.setattr(neuron, "_imported", missing)
    with pytest.raises(BackendError, match="can't be imported") as caught:
        neuron._Copy("model", tmp_path / "model.pt", 0)
    assert not isinstance(caught.value, DeviceError) and "trnrt doctor" in str(caught.value.hint)


def test_what_can_not_be_loaded_gives_its_place_back(machine: Hardware) -> None:
    machine.faults = Faults(loading="NRT_RESOURCE: out of device memory")
    session = opened(device=DeviceOptions(cores=2))
    with pytest.raises(DeviceError, match="compiling it for trn2: no memory of the device"):
        session.run(None, session.random_inputs(1))
    machine.faults = Faults()
    session.run(None, session.random_inputs(1))
    machine.faults = Faults(loading="NRT_RESOURCE: out of device memory")
    with pytest.raises(DeviceError, match="loading it on core 0: no memory of the device"):
        opened().run(None, session.random_inputs(1))
    machine.faults = Faults(loading="NRT_LOAD_NOT_ENOUGH_NC: requested 2, available 1")
    with pytest.raises(DeviceError, match="the compiled model needs more cores than there are") as caught:
        opened().run(None, session.random_inputs(1))
    assert caught.value.hint == "ask for more cores"
    assert neuron._models_on == {0: 1, 1: 1}


def test_a_device_that_hangs_is_left_behind(machine: Hardware, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(neuron, "GRACE_S", 0.1)
    session = opened(device=DeviceOptions(timeout_s=0.4, cores=2))
    feeds = session.random_inputs(1)
    session.run(None, feeds)
    assert os.environ["NEURON_RT_EXEC_TIMEOUT"] == "1"
    machine.faults = Faults(hanging=threading.Event())
    with pytest.raises(DeviceError, match=r"no answer after 0.5 s: the device hangs") as caught:
        session.run(None, feeds)
    assert not caught.value.usable
    hung = machine.faults.hanging
    machine.faults = Faults()
    machine.ran_on.clear()
    opened(device=DeviceOptions(cores=1)).run(None, feeds)
    assert machine.ran_on == [0] and neuron._hung == {1}, "the core that hangs is not asked again"
    with pytest.raises(DeviceError, match="1 of the process's 2 cores hang"):
        session.run(None, feeds)
    assert hung is not None
    hung.set()


def test_a_device_that_computes_wrong_is_found(machine: Hardware) -> None:
    session = opened()
    feeds = session.random_inputs(4)
    assert validate(session, feeds).passed
    machine.faults = Faults(wrong=True)
    assert not validate(session, feeds).passed


def test_results_of_another_shape_are_not_the_models(machine: Hardware) -> None:
    machine.faults = Faults(wrong_shape=True)
    session = opened()
    with pytest.raises(DeviceError, match=r"the device returned .*; its plan has"):
        session.run(None, session.random_inputs(1))


def test_the_direct_route_runs_a_kernel_on_arrays(machine: Hardware) -> None:
    def doubled(x: Any) -> Any:
        tile = nl.load(x)
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.add(tile, tile))
        return out

    x = np.ones((4, 3), np.float32)
    (result,) = neuron.run_kernel(nki.jit(doubled), x, target="trn2")
    np.testing.assert_array_equal(result, x + x)
    assert os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] == "trn2"
    assert os.environ["NEURON_RT_VISIBLE_CORES"] == "0"

    def failing(x: Any) -> Any:
        raise RuntimeError("NRT_TIMEOUT")

    with pytest.raises(DeviceError, match="did not finish in time"):
        neuron.run_kernel(failing, x, target="trn2")


def test_the_state_of_the_fake_is_the_tests_own(machine: Hardware) -> None:
    assert State.hardware is machine
    assert onnx.load(CNN).graph.name

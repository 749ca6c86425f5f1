"""The routes to a NeuronCore other than trace, on fakes made from the pages; and how one is chosen."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanding import trnrt as run_verb
from fake_neuron import Faults, Hardware, NotDocumented
from fake_neuron import fake_torch as torch
from fake_neuron.documented import VIOLATIONS
from fake_neuron.fake_nki import check_variables
from fake_neuron.installing_fake import ROUTE_VERSIONS, a_route, an_instance, be_instance

import trnrt
from trnrt.backends import DeviceOptions
from trnrt.errors import BackendError, DeviceError, KernelError
from trnrt.neuron import backend as neuron
from trnrt.neuron.device import look_for_device
from trnrt.neuron.releases import load_releases
from trnrt.neuron.routes.choosing import Use, choose_route
from trnrt.neuron.routes.jit import call_kernel
from trnrt.nki import nki, nl
from trnrt.serve.hosting.devices import on_device
from trnrt.serve.settings import ServeSettings

CNN = Path(__file__).parents[2] / "models" / "digits_cnn.onnx"
FFNN = Path(__file__).parents[2] / "models" / "digits_ffnn.onnx"
OLD = {"nki": "0.6.0", "neuronx-cc": "2.27.5334.0"}


@pytest.fixture(params=["jit", "torchneuron"])
def route(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def machine(route: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hardware]:
    with a_route(monkeypatch, tmp_path, route) as hardware:
        yield hardware


def opened(model: Path = CNN, **options: Any) -> trnrt.InferenceSession:
    return trnrt.InferenceSession(model, backend="neuron", **options)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_each_route_runs_what_the_simulator_runs(dtype: str, route: str, machine: Hardware) -> None:
    session = opened(FFNN, dtype=dtype)
    assert session.backend_reason == f"asked for, route {route}"
    feeds = session.random_inputs(3)
    expected = trnrt.InferenceSession(FFNN, dtype=dtype, backend="simulator").run(None, feeds)
    for _ in range(2):
        for ours, theirs in zip(session.run(None, feeds), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert machine.ran_on == [0, 0]
    assert len(machine.compiled) == (2 if route == "jit" else 1), "jit compiles at each call"
    assert os.environ["NEURON_LOGICAL_NC_CONFIG"] == "1" and "NKI_COMPILER_FRONTEND" not in os.environ


def test_a_model_of_images_runs(machine: Hardware) -> None:
    session = opened()
    feeds = session.random_inputs(2)
    expected = trnrt.InferenceSession(CNN, backend="simulator").run(None, feeds)[0]
    np.testing.assert_array_equal(session.run(None, feeds)[0], expected)


def test_a_kernel_of_two_cores_is_launched_on_two(machine: Hardware) -> None:
    session = opened(FFNN, device=DeviceOptions(lnc=2))
    session.run(None, session.random_inputs(1))
    assert (machine.lnc, os.environ["NEURON_LOGICAL_NC_CONFIG"]) == (2, "2")


def test_two_cores_divide_a_batch(machine: Hardware) -> None:
    session = opened(device=DeviceOptions(lnc=2))
    feeds = session.random_inputs(64)
    expected = trnrt.InferenceSession(CNN, backend="simulator", effort=1, device=DeviceOptions(lnc=2))
    np.testing.assert_array_equal(session.run(None, feeds)[0], expected.run(None, feeds)[0])
    assert session.last_run.plan is not None and session.last_run.plan.cores == 2


def test_a_process_has_one_core_and_keeps_no_file(route: str, machine: Hardware, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=f"--cores 2: the route {route} uses 1") as caught:
        opened(device=DeviceOptions(cores=2))
    assert "--route neff or trace" in str(caught.value.hint)
    with pytest.raises(BackendError, match=f"route: the route {route} keeps no compiled kernels"):
        opened(device=DeviceOptions(compile_only=True, route=route))
    opened().run(None, opened().random_inputs(1))
    assert not (tmp_path / "cache" / "neuron").exists()


def test_a_route_that_compiles_at_each_call_neither_serves_nor_measures(route: str, machine: Hardware) -> None:
    settings = ServeSettings(models=[FFNN], backend="neuron")
    if route != "jit":
        assert on_device(settings)
        return
    with pytest.raises(BackendError, match="the route jit compiles at each call: it can't serve"):
        on_device(settings)
    outcome = run_verb("profile", FFNN, "--backend", "neuron")
    assert outcome.code == 2 and "its times say nothing about the device" in outcome.err
    assert machine.compiled == []


@pytest.mark.parametrize("said", ["NCC_EVRF001: operator is not supported", "the compiler ended with -9"])
def test_a_compiler_that_refuses_is_a_kernel_error(said: str, machine: Hardware) -> None:
    """Known by its code, or by the class alone."""
    machine.faults = Faults(compiling=said)
    session = opened()
    with pytest.raises(KernelError, match=f"refused digits_cnn for trn2: NCCError: {said}"):
        session.run(None, session.random_inputs(1))


def test_a_runtime_that_fails_is_a_device_error(machine: Hardware) -> None:
    machine.faults = Faults(running="NRT Error NRT_EXEC_OOB(1006): Failed to execute model")
    session = opened()
    with pytest.raises(DeviceError, match="an indirect access left its tensor"):
        session.run(None, session.random_inputs(1))


def test_a_run_that_hangs_is_left_behind(machine: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    """These routes compile while they run, so the limit is far; a hang is found all the same."""
    monkeypatch.setattr(neuron, "COMPILING_S", 0.2)
    monkeypatch.setattr(neuron, "GRACE_S", 0.1)
    machine.faults = Faults(hanging=threading.Event())
    session = opened(FFNN)
    with pytest.raises(DeviceError, match="the device hangs"):
        session.run(None, session.random_inputs(1))


@pytest.mark.parametrize("frontend", [None, "parser", "tracer"])
def test_nki_0_6_traces_unless_the_user_wants_it_to_parse(
    frontend: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_route(monkeypatch, tmp_path, "jit", OLD):
        if frontend is not None:
            monkeypatch.setenv("NKI_COMPILER_FRONTEND", frontend)
        session = opened(FFNN)
        session.run(None, session.random_inputs(1))
        assert os.environ["NKI_COMPILER_FRONTEND"] == (frontend or "tracer")


def test_a_frontend_that_no_page_names_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with a_route(monkeypatch, tmp_path, "jit", OLD):
        monkeypatch.setenv("NKI_COMPILER_FRONTEND", "custom")
        with pytest.raises(BackendError, match=r"for NKI 0\.6\.0 the pages name tracer, parser"):
            opened()
        session = trnrt.InferenceSession(FFNN)
        assert session.backend == "simulator" and "NKI_COMPILER_FRONTEND=custom" in session.backend_reason


def doubled(x: Any) -> Any:
    tile = nl.load(x)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.add(tile, tile))
    return out


def test_lists_are_no_arguments_of_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with a_route(monkeypatch, tmp_path, "jit") as hardware:
        x = np.ones((4, 3), np.float32)
        neuron.set_environment("trn2", lnc=1)
        with pytest.raises(BackendError, match="argument 1 of the kernel is a list") as caught:
            call_kernel(nki.jit(doubled), x, [x])
        assert "tuple" in str(caught.value.hint) and hardware.compiled == []
        (result,) = call_kernel(nki.jit(doubled), x)
        np.testing.assert_array_equal(result, x + x)


# ---- what the fakes refuse

ONE = np.ones(1, np.float32)


def forget(name: str) -> str | None:
    return os.environ.pop(name, None)


def undocumented_calls() -> dict[str, Any]:
    """By the route of the fake: what is wrong, and the call."""
    kernel = nki.jit(doubled)
    return {
        "jit a list": lambda: kernel([ONE]),
        "jit no array": lambda: kernel(1),
        "jit no target": lambda: (forget("NEURON_PLATFORM_TARGET_OVERRIDE"), kernel(ONE)),
        "jit an unknown frontend": lambda: (os.environ.update(NKI_COMPILER_FRONTEND="trace"), kernel(ONE)),
        "jit an unknown variable": lambda: (os.environ.update(NKI_ARTIFACT_DIR="/x"), kernel(ONE)),
        "jit no degree": lambda: (forget("NEURON_LOGICAL_NC_CONFIG"), kernel(ONE)),
        "jit the compiler's degree": lambda: (os.environ.update(NEURON_CC_FLAGS="--lnc=2"), kernel(ONE)),
        "jit a folder too late": lambda: (os.environ.update(NKI_ARTIFACTS_DIR="/x"), kernel(ONE)),
        "torchneuron arrays": lambda: kernel(ONE),
        "torchneuron tensors of the CPU": lambda: kernel(torch.from_numpy(ONE)),
        "torchneuron another device": lambda: torch.from_numpy(ONE).to("xla"),
        "torchneuron a device by keyword": lambda: torch.from_numpy(ONE).to(device="neuron"),
        "torchneuron an array of the device": lambda: torch.from_numpy(ONE).to("neuron").numpy(),
        "torchneuron trace": lambda: __import__("torch_neuronx").trace(None, None),
        "torchneuron no target": lambda: (
            forget("NEURON_PLATFORM_TARGET_OVERRIDE"),
            kernel(torch.from_numpy(ONE).to("neuron")),
        ),
    }


@pytest.mark.parametrize("what", undocumented_calls())
def test_the_fakes_refuse_what_no_page_allows(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with a_route(monkeypatch, tmp_path, what.partition(" ")[0]):
        for name in ("NKI_ARTIFACT_DIR", "NKI_ARTIFACTS_DIR", "NEURON_CC_FLAGS"):
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        os.environ.update(NEURON_PLATFORM_TARGET_OVERRIDE="trn2", NEURON_LOGICAL_NC_CONFIG="1")
        check_variables()
        with pytest.raises(NotDocumented):
            undocumented_calls()[what]()
        VIOLATIONS.clear()


def test_another_degree_than_the_variables_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with a_route(monkeypatch, tmp_path, "jit"):
        monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
        monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
        with pytest.raises(KernelError, match="NCC_EVRF066"):
            nki.jit(doubled)[2](ONE)


# ---- the choice


@pytest.mark.parametrize("route", ["jit", "neff", "torchneuron"])
def test_the_route_is_the_first_that_lacks_nothing(route: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with a_route(monkeypatch, tmp_path, route):
        chosen = choose_route(look_for_device(), load_releases(), Use())
        assert chosen.name == ("jit" if route == "neff" else route) and chosen.missing[chosen.name] == ()
        compiling = choose_route(look_for_device(), load_releases(), Use(running=False))
        assert compiling.name == "neff", "it keeps a file, and needs no worker for that"
        asked = choose_route(look_for_device(), load_releases(), Use("trace"))
        assert (asked.name, asked.reason) == ("trace", "asked for") and asked.missing["trace"]


def test_a_route_may_be_asked_for_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with an_instance(monkeypatch, tmp_path, "fake torch"):
        assert opened().backend_reason == "asked for, route trace"
        monkeypatch.setenv("TRNRT_ROUTE", "torchneuron")
        with pytest.raises(BackendError, match=r"nki: 0\.6\.0 \(wanted: >=0.7, <0.8\)"):
            opened()
        assert opened(device=DeviceOptions(route="trace")).backend_reason == "asked for, route trace"
        monkeypatch.setenv("TRNRT_ROUTE", "xla")
        with pytest.raises(BackendError, match="route: unknown route 'xla'"):
            opened()


def test_devices_that_nki_does_not_support_are_refused_unless_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_route(monkeypatch, tmp_path, "jit") as hardware:
        hardware.target = "trn1"
        be_instance(monkeypatch, tmp_path / "elsewhere", "trn1.2xlarge", 1)
        with pytest.raises(BackendError, match=r"supported: trn1\.2xlarge") as caught:
            opened(FFNN)
        assert "--allow-unsupported-device" in str(caught.value.hint)
        assert trnrt.InferenceSession(FFNN).backend == "simulator"
        for allowed in (DeviceOptions(allow_unsupported=True), None):
            session = opened(FFNN, device=allowed)
            session.run(None, session.random_inputs(1))
            monkeypatch.setenv("TRNRT_ALLOW_UNSUPPORTED_DEVICE", "1")
        assert hardware.ran_on == [0, 0]


def test_every_route_has_versions_for_the_fake() -> None:
    assert {*ROUTE_VERSIONS, "trace"} == {needs.name for needs in load_releases().routes}

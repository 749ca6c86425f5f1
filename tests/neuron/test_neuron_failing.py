"""What goes wrong on a NeuronCore, on the fake SDK: who is told what, and what is closed, left alone or freed."""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import numpy as np
import pytest
from fake_neuron import REFERENCE, Faults, Hardware
from fake_neuron.installing_fake import TORCHES, an_instance

import trnrt
from trnrt.backends import DeviceOptions
from trnrt.errors import BackendError, DeviceError, KernelError
from trnrt.neuron import backend as neuron
from trnrt.neuron import cores
from trnrt.neuron.routes import Job
from trnrt.neuron.routes.trace import TraceRoute
from trnrt.validate import validate

# PyTorch 2.13 calls torch.jit deprecated; 2.9, which torch-neuronx is for, has nothing else.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.* is deprecated:DeprecationWarning")

CNN = Path(__file__).parents[2] / "models" / "digits_cnn.onnx"


RAISED = str(REFERENCE["statuses"]["raised"]["text"])
"""What torch-neuronx raises after a run that made NaNs; a status is told by its number alone."""


def raised(status: int) -> str:
    """The same with another status; no page has its words."""
    return re.sub("status=.*", f"status={status} message=Of It", RAISED)


@pytest.fixture(params=TORCHES)
def machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hardware]:
    with an_instance(monkeypatch, tmp_path, request.param) as hardware:
        yield hardware


def opened(**options: Any) -> trnrt.InferenceSession:
    return trnrt.InferenceSession(CNN, backend="neuron", **options)


def test_cores_that_another_process_has_are_told(machine: Hardware) -> None:
    from trnrt.neuron.cores import lease_cores

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
    (loaded,) = next(iter(session._programs.loaded.values())).plans
    machine.faults = Faults()
    np.testing.assert_array_equal(next(iter(loaded.run(feeds).values())), expected)


def test_a_compiler_that_refuses_is_a_kernel_error(machine: Hardware, tmp_path: Path) -> None:
    machine.faults = Faults(compiling="NCC_EVRF001: operator is not supported\n" + "x " * 2000 + "at line 7")
    session = opened()
    with pytest.raises(
        KernelError, match=r"refused digits_cnn for trn2: RuntimeError: .*at line 7(\nhint: .*)?$"
    ) as caught:
        session.run(None, session.random_inputs(1))
    assert caught.value.exit_code == 1 and len(str(caught.value)) < 1000
    assert str(tmp_path / "cache" / "neuron") in str(caught.value.hint)
    machine.faults = Faults()
    session.run(None, session.random_inputs(1))


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
    (loaded,) = next(iter(session._programs.loaded.values())).plans
    machine.faults = Faults(running="NRT_TIMEOUT(5)")
    with pytest.raises(DeviceError, match="the core did not finish in time"):
        loaded.run(feeds)
    machine.faults = Faults()
    with pytest.raises(DeviceError, match=r"digits_cnn is closed: digits_cnn: running it on core 0: the core did not"):
        loaded.run(feeds)
    session.close()
    assert neuron._models_on == {0: 0}, "once"


class Echo:
    """A program that gives its inputs back."""

    def run(self, inputs: Any) -> list[Any]:
        return list(inputs)

    def time_runs(self, count: int) -> None:
        """It has no clock."""

    def close(self) -> None:
        """Nothing is loaded."""


def test_a_run_that_meets_a_close_is_no_hang() -> None:
    """Whoever asks after the thread was told to end has an answer at once, and the core is not lost."""
    copy = neuron._Copy("model", lambda: Echo(), 0)
    neuron._close([copy])
    with pytest.raises(DeviceError, match="it was closed") as caught:
        copy.run([], timeout_s=600)
    assert caught.value.usable and not neuron._hung


def test_what_an_interrupted_run_gives_is_nobody_elses_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends the waiting, and not the run."""

    class Interrupted(SimpleQueue[Any]):
        def get(self, *arguments: Any, **keywords: Any) -> Any:
            raise KeyboardInterrupt

    copy = neuron._Copy("model", lambda: Echo(), 0)
    first, second = np.zeros(1), np.ones(1)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(neuron, "SimpleQueue", Interrupted)
        copy.run([first], timeout_s=600)
    assert copy.run([second], timeout_s=600)[0] is second
    neuron._close([copy])


def test_a_fork_can_not_use_what_its_parent_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other thread of the parent is in it: nobody would answer, and the device would seem to hang."""
    copy = neuron._Copy("model", lambda: Echo(), 0)
    own, copy._thread = copy._thread, threading.Thread()
    with pytest.raises(BackendError, match="before this process was forked") as caught:
        copy.run([], timeout_s=600)
    assert not isinstance(caught.value, DeviceError) and "spawn" in str(caught.value.hint)
    monkeypatch.setattr(neuron, "GRACE_S", 600.0)
    copy.wait(600.0)
    copy._thread = own
    neuron._close([copy])


class Module:
    """A loaded model. Its last reference unloads it: ``unloaded`` has the thread that did, which waits for ``go``."""

    def __init__(self, unloaded: list[str], go: threading.Event) -> None:
        self.unloaded, self.go = unloaded, go

    def run(self, inputs: Any) -> Any:
        raise RuntimeError(f"NRT_FAILURE {self.go}")

    def time_runs(self, count: int) -> None:
        """It has no clock."""

    def close(self) -> None:
        """Nothing: the last reference does it."""

    def __del__(self) -> None:
        self.unloaded.append(threading.current_thread().name)
        self.go.wait()


@pytest.mark.parametrize("hangs", [False, True], ids=["unloads", "hangs"])
def test_a_model_is_unloaded_by_its_own_thread(hangs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever holds it when it is closed, an error that somebody keeps among them; and a hang there holds nobody."""
    unloaded, go = list[str](), threading.Event()
    copy = neuron._Copy("model", lambda: Module(unloaded, go), 0)
    with pytest.raises(DeviceError) as caught:
        copy.run([], timeout_s=600)
    assert isinstance(caught.value.__cause__, RuntimeError) and unloaded == []
    if hangs:
        monkeypatch.setattr(neuron, "GRACE_S", 0.01)
    else:
        go.set()
    neuron._close([copy])
    go.set()
    copy._thread.join()
    assert unloaded == ["model on core 0"]


def test_a_session_that_fails_in_two_threads_is_closed_once(machine: Hardware) -> None:
    class Raced(dict[Any, Any]):
        """The last one is taken by somebody else between a look and the taking."""

        def __bool__(self) -> bool:
            return True

    session = opened()
    session._programs.loaded = Raced()
    session.close()


def test_two_cores_that_fail_at_the_same_time_close_each_copy_once() -> None:
    class Raced(list[Any]):
        """The last one is taken by somebody else between a look and the taking."""

        def __bool__(self) -> bool:
            return True

    neuron._close(Raced())


def test_packages_that_are_missing_are_no_fault_of_the_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch_neuronx", None)
    with pytest.raises(BackendError, match="can't be imported") as caught:
        neuron._Copy("model", lambda: TraceRoute().load(cast(Job, None), tmp_path / "model.pt", 0), 0)
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


def test_a_device_that_hangs_is_left_behind(machine: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neuron, "GRACE_S", 600.0)
    session = opened(device=DeviceOptions(timeout_s=0.4, cores=2))
    feeds = session.random_inputs(1)
    session.run(None, feeds)
    monkeypatch.setattr(neuron, "GRACE_S", 0.1)
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


@pytest.mark.parametrize(("status", "next_core"), [(1202, 1), (4, 0)], ids=["lost", "full"])
def test_whoever_comes_after_a_lost_core_gets_another(
    status: int, next_core: int, machine: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened()
    feeds = session.random_inputs(1)
    session.run(None, feeds)
    machine.faults = Faults(running=raised(status))
    with pytest.raises(DeviceError):
        session.run(None, feeds)
    machine.faults = Faults()
    lease = cores._Process.lease
    assert lease is not None and lease.cores == (0,)
    lease.release()  # as when its process ends
    monkeypatch.setattr(cores._Process, "lease", None)
    monkeypatch.delenv(cores.VISIBLE)
    machine.visible = None
    opened().run(None, feeds)
    assert os.environ[cores.VISIBLE] == str(next_core)


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

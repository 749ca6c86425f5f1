"""Failures of a NEFF worker: it never leaves a hung or dead process, and each error names the way out."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from worker_machine import FAKES, Machine, X, Y

from trnrt.errors import BackendError, DeviceError
from trnrt.neuron.worker import client, starting
from trnrt.neuron.worker.client import LoadedNeff, NeffWorker

FLOATS = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def worker(machine: Machine) -> Iterator[NeffWorker]:
    with machine.start() as started:
        yield started


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C's signal acts as in a terminal: jobs in the background, and what they start, ignore it."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


def is_gone(pid: int, seconds: float = 5.0) -> bool:
    """True once a process has ended and was reaped, within a time."""
    until = time.monotonic() + seconds
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def run_once(worker: NeffWorker, path: Path, timeout_s: float = 30) -> None:
    """Load a NEFF that doubles, and check its result."""
    [result] = worker.load(path, [X], [Y], {}).run([FLOATS], timeout_s)
    np.testing.assert_array_equal(result, 2 * FLOATS)


# The start.


@pytest.mark.parametrize("name", ["missing", "folder", "text"])
def test_a_python_that_can_not_be_started(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("not a program")
    (tmp_path / "text").chmod(0o700)
    with pytest.raises(BackendError, match=rf"Python {tmp_path / name} can't be started: ") as caught:
        NeffWorker(tmp_path / name, 0)
    assert caught.value.hint == "name the Python of an environment that has nrtpy"


@pytest.mark.parametrize(
    ("package", "source", "message", "hint"),
    [
        ("none", "", "No module named 'nrtpy'", "pip install nrtpy --extra-index-url=https://pip.repos.neuron"),
        ("numpy", "raise ModuleNotFoundError(\"No module named 'numpy'\", name='numpy')", "'numpy'", "install numpy"),
        ("nrtpy", "raise ImportError('libnrt.so.1: cannot open shared object file')", "libnrt", "aws-neuronx-runtime"),
        ("nrtpy", "class SpikeModel: pass", "has no NrtpyModel: it is not the nrtpy wheel", "can't share an env"),
        ("nrtpy", "raise ValueError('odd')", "ValueError: odd", "Python 3.11 to 3.14"),
    ],
)
def test_an_environment_that_lacks_something(
    machine: Machine, package: str, source: str, message: str, hint: str
) -> None:
    folder = machine.folder / "packages"
    folder.mkdir()
    (folder / f"{package}.py").write_text(source)
    path = f"{folder}:{FAKES}" if package == "numpy" else str(folder)
    with pytest.raises(BackendError, match=message) as caught:
        machine.start(PYTHONPATH=path)
    assert hint in (caught.value.hint or "")
    assert f"Python {sys.version.split()[0]}" in str(caught.value)


def test_a_python_that_hangs(machine: Machine) -> None:
    (machine.folder / "nrtpy.py").write_text("import time; time.sleep(60)")
    begin = time.monotonic()
    with pytest.raises(BackendError, match=r"did not start within 0\.5 s"):
        NeffWorker(Path(sys.executable), 0, environment={"PYTHONPATH": str(machine.folder)}, start_timeout_s=0.5)
    assert time.monotonic() - begin < 10


def test_a_python_that_ends_at_once(machine: Machine) -> None:
    (machine.folder / "nrtpy.py").write_text("import os; print('why it ends', flush=True); os._exit(7)")
    with pytest.raises(BackendError, match=r"(?s)ended by itself, with exit status 7; its last lines:\n  why it ends"):
        machine.start(PYTHONPATH=str(machine.folder))


# Loading.


def test_a_neff_that_is_missing(machine: Machine, worker: NeffWorker) -> None:
    with pytest.raises(BackendError, match="there is no NEFF"):
        worker.load(machine.folder / "missing.neff", [X], [Y], {})


@pytest.mark.parametrize("fault", ["target", "damaged"])
def test_a_neff_that_the_runtime_can_not_load(machine: Machine, worker: NeffWorker, fault: str) -> None:
    path = machine.double(target="trn1")
    if fault == "damaged":
        path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(BackendError, match=r"loading it on core 0: .*NRT_FAILURE.*ERROR NRT:fake load model") as caught:
        worker.load(path, [X], [Y], {})
    assert not isinstance(caught.value, DeviceError)
    assert "compiled for another target" in (caught.value.hint or "")
    run_once(worker, machine.double())


def test_a_variable_that_no_page_has(machine: Machine) -> None:
    """The fake refuses it; so tests would find one that we misspell."""
    with machine.start(NEURON_RT_EXEC_TIMEOUTS="1") as worker, pytest.raises(DeviceError, match="no page has"):
        worker.load(machine.double(), [X], [Y], {})


# Running.


def test_a_run_that_hangs_frees_the_core(machine: Machine, worker: NeffWorker) -> None:
    neff = worker.load(machine.double(sleep=60), [X], [Y], {})
    begin = time.monotonic()
    with pytest.raises(DeviceError, match=r"running it on core 0: no answer after 0\.3 s: the device hangs") as caught:
        neff.run([FLOATS], timeout_s=0.3)
    assert caught.value.usable and time.monotonic() - begin < 10
    assert is_gone(worker.pid) and not worker.is_alive
    with pytest.raises(DeviceError, match="the NEFF worker was ended because it hung"):
        neff.run([FLOATS], timeout_s=30)
    with machine.start() as other:
        run_once(other, machine.double())


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT])
def test_a_crash_is_seen_at_once(machine: Machine, worker: NeffWorker, number: signal.Signals) -> None:
    neff = worker.load(machine.double(signal=number, print="NRT: the last words"), [X], [Y], {})
    begin = time.monotonic()
    with pytest.raises(DeviceError, match=rf"(?s)ended by itself, by {number.name}.*the last words") as caught:
        neff.run([FLOATS], timeout_s=60)
    assert caught.value.usable and time.monotonic() - begin < 10
    assert is_gone(worker.pid)
    with machine.start() as other:
        run_once(other, machine.double())


def test_a_worker_that_ends_while_idle_is_reaped(machine: Machine, worker: NeffWorker) -> None:
    neff = worker.load(machine.double(), [X], [Y], {})
    os.kill(worker.pid, signal.SIGKILL)
    assert is_gone(worker.pid) and not worker.is_alive
    with pytest.raises(DeviceError, match="ended by itself, by SIGKILL"):
        neff.run([FLOATS], timeout_s=30)


@pytest.mark.parametrize(
    ("status", "number", "usable", "alive"),
    [
        ("NRT_EXEC_OOB", 1006, True, True),
        ("NRT_QUEUE_FULL", 7, True, True),
        ("NRT_EXEC_UNIT_UNRECOVERABLE", 101, True, False),
        ("NRT_TIMEOUT", 5, True, False),
        ("NRT_EXEC_HW_ERR_NC_UE", 1202, False, False),
    ],
)
def test_a_status_of_the_runtime(
    machine: Machine, worker: NeffWorker, status: str, number: int, usable: bool, alive: bool
) -> None:
    """A worker whose runtime can't go on is ended; only a failure of the hardware ends this process, too."""
    neff = worker.load(machine.double(status=status, number=number), [X], [Y], {})
    with pytest.raises(
        DeviceError, match=rf"\({status}, {number}\): NrtError: NRT Error {status}\({number}\)"
    ) as caught:
        neff.run([FLOATS], timeout_s=30)
    assert (caught.value.usable, worker.is_alive) == (usable, alive)
    assert alive or "process" not in (caught.value.hint or "")
    if alive:
        run_once(worker, machine.double())


def test_nans_cost_no_model(machine: Machine, worker: NeffWorker) -> None:
    neff = worker.load(machine.double(status="NRT_EXEC_COMPLETED_WITH_NUM_ERR", number=1003), [X], [Y], {})
    with pytest.raises(BackendError, match="the run made NaNs") as caught:
        neff.run([FLOATS], timeout_s=30)
    assert not isinstance(caught.value, DeviceError) and worker.is_alive


# Ends.


def test_a_worker_that_can_not_be_killed(machine: Machine, worker: NeffWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may hang in the driver, where no signal reaches it: then the core is not free."""
    neff = worker.load(machine.double(sleep=60), [X], [Y], {})
    with monkeypatch.context() as patched:
        patched.setattr(worker._process, "kill", lambda: None)
        patched.setattr(worker._process, "stdin", None)  # closing it would end the worker, too
        patched.setattr(starting, "STOP_S", 0.2)
        with pytest.raises(
            DeviceError, match=rf"no answer after 0\.2 s, and process {worker.pid} can't be killed"
        ) as caught:
            neff.run([FLOATS], timeout_s=0.2)
    assert not caught.value.usable
    os.kill(worker.pid, signal.SIGKILL)
    assert is_gone(worker.pid)
    assert worker._process.stdin is not None
    worker._process.stdin.close()


def test_closing_in_the_middle_of_a_run(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits a while for the run, and then ends it."""
    monkeypatch.setattr(client, "STOP_S", 0.3)
    started, errors = machine.folder / "started", list[DeviceError]()
    worker = machine.start()
    neff = worker.load(machine.double(sleep=60, started=str(started)), [X], [Y], {})

    def run() -> None:
        with pytest.raises(DeviceError) as caught:
            neff.run([FLOATS], timeout_s=60)
        errors.append(caught.value)

    thread = threading.Thread(target=run)
    thread.start()
    while not started.exists():
        time.sleep(0.01)
    begin = time.monotonic()
    worker.close()
    thread.join()
    assert time.monotonic() - begin < 10 and is_gone(worker.pid)
    assert "the NEFF worker was closed" in str(errors[0])


def test_closing_ends_the_process(machine: Machine) -> None:
    worker = machine.start()
    neff = worker.load(machine.double(), [X], [Y], {})
    assert not (machine.folder / "reset").exists()
    worker.close()
    worker.close()
    assert is_gone(worker.pid) and (machine.folder / "reset").exists()  # the runtime was closed before it ended
    with pytest.raises(DeviceError, match="the NEFF worker was closed"):
        neff.run([FLOATS], timeout_s=30)
    neff.close()


def test_a_dropped_worker_ends(machine: Machine) -> None:
    worker = machine.start()
    pid = worker.pid
    del worker
    gc.collect()
    assert is_gone(pid)


def test_ctrl_c_is_the_parents(interruptible: None, machine: Machine, worker: NeffWorker) -> None:
    """The terminal's signal does not reach the worker, and the worker ignores it."""
    assert os.getpgid(worker.pid) != os.getpgid(0) and os.getsid(worker.pid) != os.getsid(0)
    started = machine.folder / "started"
    neff = worker.load(machine.double(sleep=0.3, started=str(started)), [X], [Y], {})
    threading.Thread(target=interrupt_when, args=(started, worker.pid)).start()
    np.testing.assert_array_equal(neff.run([FLOATS], timeout_s=30)[0], 2 * FLOATS)


def interrupt_when(started: Path, pid: int) -> None:
    """Send Ctrl-C's signal to a process once a file exists."""
    while not started.exists():
        time.sleep(0.01)
    os.kill(pid, signal.SIGINT)


def test_ctrl_c_in_a_run_ends_the_worker(interruptible: None, machine: Machine, worker: NeffWorker) -> None:
    """Else the answer to the interrupted run would be taken for the next one's."""
    started = machine.folder / "started"
    neff = worker.load(machine.double(sleep=60, started=str(started)), [X], [Y], {})
    threading.Thread(target=interrupt_when, args=(started, os.getpid())).start()
    with pytest.raises(KeyboardInterrupt):
        neff.run([FLOATS], timeout_s=60)
    assert is_gone(worker.pid)
    with pytest.raises(DeviceError, match="was ended by KeyboardInterrupt"):
        neff.run([FLOATS], timeout_s=30)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_fork_leaves_the_worker_to_its_parent(machine: Machine, worker: NeffWorker) -> None:
    neff = worker.load(machine.double(), [X], [Y], {})
    child = os.fork()
    if child == 0:
        os._exit(_use_in_fork(worker, neff))
    assert os.waitpid(child, 0)[1] == 0
    run_once(worker, machine.double())
    np.testing.assert_array_equal(neff.run([FLOATS], timeout_s=30)[0], 2 * FLOATS)


def _use_in_fork(worker: NeffWorker, neff: LoadedNeff) -> int:
    """0 if a run is refused in this fork, and closing does nothing."""
    try:
        neff.run([FLOATS], timeout_s=5)
    except DeviceError as error:
        worker.close()
        return 0 if "forked" in str(error) else 1
    return 2


PARENT = """
import sys, threading, time
from pathlib import Path
import numpy as np
sys.path[:0] = sys.argv[2:]
from worker_machine import Machine, X, Y
machine = Machine(Path(sys.argv[1]))
worker = machine.start()
started = machine.folder / "started"
neff = worker.load(machine.double(sleep=60, started=str(started)), [X], [Y], {})
if started.with_name("run").exists():
    threading.Thread(target=neff.run, args=([np.zeros((2, 3), np.float32)], 60), daemon=True).start()
    while not started.exists():
        time.sleep(0.01)
print(worker.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("running", [True, False])
def test_a_worker_ends_with_its_parent(tmp_path: Path, running: bool) -> None:
    """Even in the middle of a run, and if the parent is killed."""
    if running:
        (tmp_path / "run").touch()
    shared = Path(__file__).parents[1] / "shared"
    command = [sys.executable, "-c", PARENT, str(tmp_path), str(shared)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        parent.kill()
    until = time.monotonic() + 5
    while (status := process_state(pid)) not in ("gone", "Z"):  # nobody may reap it in a container without an init
        assert time.monotonic() < until, status
        time.sleep(0.01)


def process_state(pid: int) -> str:
    """A process's state by the system, "Z" for a zombie; "gone" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0]
    except OSError:
        return "gone"

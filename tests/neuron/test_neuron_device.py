"""What is found out about a machine, its cores and its packages; and the fake's own strictness."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_neuron import REFERENCE, Hardware, NotDocumented
from fake_neuron import fake_torch as torch
from fake_neuron import fake_torch_neuronx as torch_neuronx
from fake_neuron.documented import ROUTES, SIGNATURES
from fake_neuron.hardware import compiler_flags, contiguous
from fake_neuron.installing_fake import be_instance, install, versions

from trnrt.errors import BackendError
from trnrt.neuron import cores
from trnrt.neuron.cores import (
    AVOIDED_S,
    VISIBLE,
    device_cores,
    failed_cores,
    known_cores,
    lease_cores,
    lease_for_process,
    lease_for_worker,
    note_failure,
    parse_cores,
)
from trnrt.neuron.device import logical_config
from trnrt.neuron.failures import STATUSES, device_error
from trnrt.neuron.releases import load_releases
from trnrt.neuron.requirements import Asked, findings

HOLD = """
import sys, pathlib, signal
from trnrt.neuron.cores import lease_cores
lease = lease_cores(range(4), 1, pathlib.Path(sys.argv[1]))
print(*lease.cores, flush=True)
signal.pause()
"""

FORK = """
import os, sys, pathlib
from trnrt.neuron import cores
from trnrt.errors import BackendError
folder = pathlib.Path(sys.argv[1])
lease = cores._Process.lease = cores.lease_cores(range(1), 1, folder)
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]) or not lease.is_held or cores.leased_cores(folder) != (0,))
assert cores._Process.lease is None and not lease.is_held
try:
    cores.lease_cores(range(1), 1, folder)
except BackendError as error:
    os._exit(str(os.getppid()) not in str(error))
os._exit(2)
"""


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process that has leased nothing, on a machine where nobody has."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(cores._Process, "lease", None)
    monkeypatch.setenv(VISIBLE, "")  # so that it is absent again afterwards
    monkeypatch.delenv(VISIBLE)
    return tmp_path


def test_no_core_is_leased_twice_and_several_are_in_a_row(tmp_path: Path) -> None:
    first = lease_cores(range(4), 2, tmp_path)
    second = lease_cores(range(4), 1, tmp_path)
    assert (first.cores, second.cores) == ((0, 1), (2,))
    with pytest.raises(
        BackendError, match=f"1 of 4 NeuronCores are free.*2 in a row are needed.*process {os.getpid()}"
    ):
        lease_cores(range(4), 2, tmp_path)
    first.release()
    assert lease_cores([0, 1, 3], 2, tmp_path).cores == (0, 1)
    assert not first.is_held and second.is_held


def test_cores_that_are_not_in_a_row_are_no_lease(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="2 of 2 NeuronCores are free, and 2 in a row are needed"):
        lease_cores([0, 2], 2, tmp_path)


def test_a_core_that_failed_comes_last_for_a_while(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = alone / "trnrt-cores"
    monkeypatch.setenv(VISIBLE, "0-3")
    lease = lease_for_process(2)
    assert lease.cores == (0, 1)
    for number in (1, 0, 5):
        note_failure(number)
    assert failed_cores().keys() == {0, 1}, "it has no fifth"
    lease.release()
    now = time.time()
    for core, ago in ((0, 5), (1, AVOIDED_S / 2)):
        os.utime(folder / f"failed-{core}", (now - ago, now - ago))
    leases = [lease_cores(range(4), 1) for _ in range(4)]
    assert [lease.cores for lease in leases] == [(2,), (3,), (1,), (0,)], "the longest ago first"
    for lease in leases:
        lease.release()
    assert lease_cores(range(4), 1, lnc=2).cores == (1,), "of logical core 0, both halves failed"
    os.utime(folder / "failed-0", (now - AVOIDED_S - 60,) * 2)
    (folder / "failed-x").touch()
    assert failed_cores().keys() == {1} and lease_cores(range(4), 1).cores == (0,)


def test_logical_cores_lock_the_physical_ones(tmp_path: Path) -> None:
    lease = lease_cores(range(4), 1, tmp_path, lnc=2)
    assert lease.cores == (0,)
    assert lease_cores(range(8), 1, tmp_path).cores == (2,)
    assert lease_cores(range(4), 1, tmp_path, lnc=2).cores == (2,), "of logical core 1, the first half is taken"


def test_a_killed_process_gives_its_core_back(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "0\n"
        assert lease_cores(range(4), 1, tmp_path).cores == (1,)
        with pytest.raises(BackendError, match=str(holder.pid)):
            lease_cores([0], 1, tmp_path)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        if holder.stdout is not None:
            holder.stdout.close()
    assert lease_cores(range(1), 1, tmp_path).cores == (0,)


def test_a_fork_has_no_lease_and_its_parent_keeps_it(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORK, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_user_may_lock_in_the_folder_and_no_link_is_followed(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    lease_cores([0], 1, folder).release()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    (folder / "core-1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        lease_cores([1], 1, folder)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(("text", "known"), [("3", [3]), ("0-2", [0, 1, 2]), ("0,4-5", [0, 4, 5])])
def test_visible_cores_are_read(text: str, known: list[int]) -> None:
    assert parse_cores(text) == known


@pytest.mark.parametrize("text", ["x", "3-1", "0-", "0-99999999", "-1", ""])
def test_what_names_no_cores_is_told(text: str) -> None:
    with pytest.raises(BackendError, match=VISIBLE):
        parse_cores(text)


def test_a_process_has_one_lease_and_shows_the_runtime_no_more(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "4-7")
    lease = lease_for_process(2)
    assert (lease.cores, os.environ[VISIBLE]) == ((4, 5), "4-5")
    assert lease_for_process(1) is lease
    with pytest.raises(BackendError, match="this process has 2 NeuronCores"):
        lease_for_process(3)
    with pytest.raises(BackendError, match="0 of 2 NeuronCores are free") as caught:
        lease_cores(known_cores())  # as another process would, that this one started
    assert f"{VISIBLE}=4-5 allows no others" in str(caught.value.hint)
    with pytest.raises(BackendError, match="of 1 physical cores each"):
        lease_for_process(1, lnc=2)
    lease.release()
    monkeypatch.setenv(VISIBLE, "6")
    assert lease_for_process().cores == (6,)


def test_the_cores_that_a_process_was_given_are_honoured(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ray gives them: a list of numbers, or nothing where none were asked for."""
    install(monkeypatch, tmp_path, Hardware(), versions())
    monkeypatch.setenv(VISIBLE, "5,6")
    assert lease_for_worker().cores == (5,) and os.environ[VISIBLE] == "5"
    monkeypatch.setenv(VISIBLE, "5,6")
    assert lease_for_process(1).cores == (5,), "it is among them"
    monkeypatch.setenv(VISIBLE, "6")
    with pytest.raises(BackendError, match=r"took NeuronCore 5, and NEURON_RT_VISIBLE_CORES now says '6'"):
        lease_for_process(1)
    monkeypatch.setattr(cores._Process, "lease", None)
    monkeypatch.setenv(VISIBLE, "7,8")
    with pytest.raises(BackendError, match="names a missing core: this machine has 8, of 1 physical cores each"):
        lease_for_process(1)
    monkeypatch.setenv(VISIBLE, "")
    with pytest.raises(BackendError, match="given no NeuronCore"):
        lease_for_process(1)
    (finding,) = findings(Asked())
    assert "given no NeuronCore" in finding.text and findings(Asked(running=False)) == []


def test_a_container_may_have_some_of_the_devices(alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the environment counts those of the whole machine, and only the runtime can say which are there."""
    install(monkeypatch, tmp_path, Hardware(), versions())
    monkeypatch.setattr(cores, "neuron_devices", lambda: ["/dev/neuron3"])
    monkeypatch.setenv(VISIBLE, "25")
    assert lease_for_worker().cores == (25,) and os.environ[VISIBLE] == "25"


def test_what_ray_sets_is_read(alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = pytest.importorskip("ray._private.accelerators.neuron").NeuronAcceleratorManager
    install(monkeypatch, tmp_path, Hardware(), versions())
    manager.set_current_process_visible_accelerator_ids(["2", "3"])
    assert lease_for_process(2).cores == (2, 3)


def test_what_a_worker_leased_is_its_processes(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "4-6")
    worker = lease_for_worker()
    assert (worker.cores, os.environ[VISIBLE]) == ((4,), "4")
    assert lease_for_process() is worker


def test_the_machines_cores_are_numbered_by_the_logical_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path, Hardware(devices=2), versions())
    assert device_cores() == list(range(16))
    assert device_cores(2) == list(range(8))


@pytest.mark.parametrize("name", [*versions()][:3])
def test_a_package_that_is_missing_is_a_finding(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = versions()
    del packages[name]
    install(monkeypatch, tmp_path, Hardware(), packages)
    (finding,) = findings(Asked("trn2", route="trace"))
    assert finding.text.startswith(f"{name}: not installed") and "pip install" in finding.mend


def test_nothing_is_found_on_a_good_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path, Hardware(), versions())
    assert findings(Asked()) == findings(Asked("trn2", 1)) == findings(Asked("trn1", running=False)) == []
    be_instance(monkeypatch, tmp_path, "t3.micro", 1)
    (finding,) = findings(Asked())
    assert "is unknown" in finding.found and "--target" in finding.mend
    assert findings(Asked("trn2")) == []


def test_the_versions_needed_are_those_of_the_newest_release() -> None:
    packages = REFERENCE["releases"]["packages"]
    found = {needed.name: needed for needed in load_releases().route("trace").packages()}
    assert packages["2.32.0"]["nki"][0].startswith(found["nki"].at_least)
    assert packages["2.32.0"]["neuronx-cc"][0].startswith(found["neuronx-cc"].at_least)
    assert packages["2.31.1"]["torch-neuronx"][0].startswith(found["torch-neuronx"].at_least)
    assert "torch-neuronx" not in packages["2.32.0"]


def test_lnc_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEURON_LOGICAL_NC_CONFIG", raising=False)
    assert (logical_config(), logical_config(2)) == (1, 2)
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "2")
    assert logical_config() == 2


def test_every_status_that_an_execution_may_have_is_explained() -> None:
    documented = REFERENCE["statuses"]["values"]
    assert {name: status.number for name, status in STATUSES.items()}.items() <= documented.items()
    # Success, a queue's and a collective's own, and the network of several machines are met by no kernel of ours.
    assert documented.keys() - STATUSES.keys() == {
        "NRT_SUCCESS",
        "NRT_QUEUE_EMPTY",
        "NRT_COLL_PENDING",
        "NRT_NETWORK_PROXY_FAILURE",
    }


SCRIPT = (
    "The following operation failed in the TorchScript interpreter.\n"
    "Traceback of TorchScript (most recent call last):\n"
    "/x/torch/_ops.py(1279): __call__\n/x/module.py(10): forward\nRuntimeError: {}"
)


@pytest.mark.parametrize("after", ["", "\n\nAt:\n  /x/y.py(8): f\n" + "  /x/module.py(1789): _call_impl\n" * 40 + "\n"])
def test_what_a_script_says_is_told_without_its_stack(after: str) -> None:
    """As PyTorch 2.13 words it."""
    found = device_error("running it", RuntimeError(SCRIPT.format("status NRT_TIMEOUT(5)") + after))
    assert str(found) == "running it: the core did not finish in time (NRT_TIMEOUT, 5): status NRT_TIMEOUT(5)"
    taken = SCRIPT.format("nrt_allocate_neuron_cores NeuronCore(s) not available - Requested:1") + after
    assert "another process has the NeuronCore: nrt_allocate" in str(device_error("loading it", RuntimeError(taken)))


def test_a_status_is_found_in_a_long_message() -> None:
    found = device_error("running it", RuntimeError("NRT_RESOURCE: " + "x " * 1000))
    assert "no memory of the device" in str(found) and len(str(found)) < 800


def test_the_reference_says_where_each_fact_is_from() -> None:
    assert len(SIGNATURES) > 20
    assert all(entry["source"]["path"] and entry["source"]["line"] for entry in REFERENCE["functions"])
    assert str(SIGNATURES["torch_neuronx.move_trace_to_device"]) == "(trace, device_id)"


FAKE = Path(__file__).parents[1] / "shared" / "fake_neuron"


def test_every_rule_of_the_fake_has_a_page_or_is_called_ours() -> None:
    """And none is recorded that the fake has not: named where it raises, or where it does what the rule says."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in FAKE.glob("*.py"))
    named = set(re.findall(r'NotDocumented\(\s*"([^"]+)"', text)) | set(
        re.findall(r"rule: (\w[\w. ]+)(?:;|$)", text, re.MULTILINE)
    )
    assert named == REFERENCE["rules"].keys() | ROUTES["rules"].keys()
    assert text.count("NotDocumented(") == len(re.findall(r'NotDocumented\(\s*"', text)) + 1, "but for the class itself"
    for rule in REFERENCE["rules"].values():
        assert rule.get("ours") is True or (rule["source"]["path"] and rule["source"]["line"])
    for rule in ROUTES["rules"].values():
        assert rule.get("ours") is True or (rule["source"]["page"] and rule["source"]["version"])


def test_what_is_refused_says_by_which_page() -> None:
    with pytest.raises(NotDocumented, match=r"among those that the process sees; .*core-placement.rst:53\)$"):
        Hardware(target="trn1").place(2)


def module_of(weight: Any) -> Any:
    class Kernel(torch.Module):
        def forward(self, *inputs: Any) -> Any:
            return inputs[0]

    module = Kernel()
    module.register_parameter("w", torch.Parameter(weight, requires_grad=False))
    return module


ONE = np.ones(1, np.float32)
UNDOCUMENTED: list[tuple[str, Callable[[], Any]]] = [
    ("an argument by position", lambda: torch_neuronx.trace(torch.Module(), (), {})),
    ("an unknown argument", lambda: torch_neuronx.trace(torch.Module(), (), device=0)),
    ("no target for the CPU", lambda: torch_neuronx.trace(torch.Module(), (), cpu_backend=True)),
    ("arrays for tensors", lambda: torch_neuronx.trace(torch.Module(), (ONE,))),
    ("no kernel in it", lambda: torch_neuronx.trace(module_of(torch.from_numpy(ONE)), (torch.from_numpy(ONE),))),
    ("an unknown flag", lambda: compiler_flags(["--target", "trn2", "--fast"])),
    ("an unknown target", lambda: compiler_flags("--target trn9")),
    ("a value without a flag", lambda: compiler_flags(["trn2"])),
    ("numbers for flags", lambda: compiler_flags(["--lnc", 1])),
    ("a gap in the cores", lambda: contiguous("0,2")),
    ("saving what was not traced", lambda: torch_neuronx.save(torch.Module(), "file")),
    ("mapping a Neuron module", lambda: torch_neuronx.load("file", map_location="cpu")),
    ("moving what was not traced", lambda: torch_neuronx.move_trace_to_device(torch.Module(), 0)),
    ("a core that is not there", lambda: Hardware(target="trn1").place(2)),
    ("a forced array", lambda: torch.from_numpy(ONE).numpy(force=True)),
    ("a positional force", lambda: torch.from_numpy(ONE).numpy(True)),
    ("a view of another size", lambda: torch.from_numpy(ONE).view(torch.DTYPES["int16"])),
    ("a parameter of an array", lambda: torch.Parameter(ONE)),
    ("a parameter that is none", lambda: torch.Module().register_parameter("w", torch.from_numpy(ONE))),
    ("an array that is read-only", lambda: torch.from_numpy(np.broadcast_to(ONE, (2, 1)))),
]


@pytest.mark.parametrize(("what", "call"), UNDOCUMENTED, ids=[what for what, _ in UNDOCUMENTED])
def test_the_fake_refuses_what_the_reference_does_not_allow(
    what: str, call: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path, Hardware(), versions())
    with pytest.raises(NotDocumented):
        call()


@pytest.mark.parametrize("real", [False, True], ids=["fake", "torch"])
def test_the_fake_raises_what_pytorch_raises(real: bool) -> None:
    module = pytest.importorskip("torch", reason="PyTorch is not installed") if real else torch
    bfloat16 = module.bfloat16 if real else torch.DTYPES["bfloat16"]
    with pytest.raises(TypeError):
        module.from_numpy(np.ones(1, device_dtype()))
    with pytest.raises(TypeError):
        module.from_numpy(np.ones(1, np.int16)).view(bfloat16).numpy()
    with pytest.raises(ValueError, match="negative"):
        module.from_numpy(np.ones(2, np.int16)[::-1])
    with pytest.raises(RuntimeError, match="require gradients"):
        module.nn.Parameter(module.from_numpy(np.ones(1, np.int32)))


def device_dtype() -> Any:
    from trnrt.nki.machine.dtypes import as_dtype

    return as_dtype("bfloat16").numpy

"""The verbs with ``--backend neuron``, on the fake SDK; in this process, and in one that has AWS's `nki`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commanding import trnrt
from fake_neuron import Faults, Hardware
from fake_neuron.installing_fake import fake_machine, versions

ROOT = Path(__file__).parents[2]
CNN = str(ROOT / "models" / "digits_cnn.onnx")
FFNN = str(ROOT / "models" / "digits_ffnn.onnx")

# AWS's package, as far as the seam can tell: modules of its own, and kernels that the simulator does not know.
AWS = {
    "__init__": """
from trnrt.nki.sim.kernel import Kernel as _Simulated
class Kernel:
    def __init__(self, function, cores=1):
        self.function, self.cores = function, cores
    def __getitem__(self, cores):
        return Kernel(self.function, cores)
    def __call__(self, *args):
        return _Simulated(self.function, self.cores)(*args)
def jit(fn=None, **kwargs):
    return Kernel(fn)
""",
    "language": "from trnrt.nki.sim import language as _it\n"
    "globals().update((n, getattr(_it, n)) for n in dir(_it))\nAWS = True\n",
    "isa": "from trnrt.nki.sim import isa as _it\n"
    "globals().update((n, getattr(_it, n)) for n in dir(_it))\nAWS = True\n",
}
PROCESS = """
import sys, pathlib, pytest
from fake_neuron import Hardware
from fake_neuron.documented import VIOLATIONS
from fake_neuron.installing_fake import install, versions
import trnrt.nki
assert trnrt.nki.USES_AWS and trnrt.nki.nl.AWS
install(pytest.MonkeyPatch(), pathlib.Path(sys.argv.pop(1)), Hardware(), versions())
from trnrt.cli import app
app(standalone_mode=False)
assert trnrt.nki.nl.AWS and not VIOLATIONS
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hardware]:
    """A trn2 instance."""
    monkeypatch.setenv("TRNRT_CACHE", str(tmp_path / "cache"))
    with fake_machine(monkeypatch, tmp_path) as hardware:
        yield hardware


def test_run_says_where_and_why(machine: Hardware) -> None:
    outcome = trnrt("run", CNN)
    assert outcome.code == 0
    assert "note: runs on the neuron: /dev/neuron0 is here" in outcome.err
    assert "neuron, target trn2, float32" in outcome.out
    assert "runs on" not in trnrt("run", CNN, "--backend", "simulator").err
    assert machine.ran_on == [0]


def test_without_a_device_run_says_so() -> None:
    assert "note: runs on the simulator: no NeuronCore on this machine\n" in trnrt("run", CNN).err
    outcome = trnrt("run", CNN, "--backend", "neuron")
    assert (outcome.code, outcome.out) == (2, "")
    assert "the neuron backend can't run: device: there is no /dev/neuron*" in outcome.err
    assert "nki: not installed" in outcome.err and "without one, --backend simulator" in outcome.err


def test_compile_needs_no_device_and_run_takes_what_it_made(machine: Hardware, tmp_path: Path) -> None:
    (tmp_path / "dev" / "neuron0").unlink()
    folder = tmp_path / "out"
    outcome = trnrt("compile", CNN, "-o", folder, "--backend", "neuron", "--target", "trn2", "--json")
    assert outcome.code == 0, outcome.err
    names = {Path(file).name for file in outcome.document["files"]}
    assert {"digits_cnn.py", "digits_cnn.pt", "digits_cnn_neuron.json"} <= names
    assert json.loads((folder / "digits_cnn_neuron.json").read_text())["made"]["versions"] == versions()
    assert machine.visible is None and machine.compiled == ["digits_cnn"]
    (tmp_path / "dev" / "neuron0").touch()
    assert trnrt("run", CNN, "--compiled", folder).code == 0
    assert (machine.compiled, machine.ran_on) == (["digits_cnn"], [0])
    outcome = trnrt("run", CNN, "--compiled", folder, "--dtype", "bfloat16")
    assert outcome.code == 2 and "does not fit: it was compiled from another kernel module" in outcome.err


def test_compile_without_aws_s_packages_is_refused(tmp_path: Path) -> None:
    outcome = trnrt("compile", CNN, "-o", tmp_path, "--backend", "neuron")
    assert outcome.code == 2 and "the neuron backend can't compile: nki: not installed" in outcome.err
    assert "/dev/neuron" not in outcome.err and not list(tmp_path.glob("*.pt"))


def test_validate_compares_with_the_simulator_too(machine: Hardware) -> None:
    outcome = trnrt("validate", FFNN, "--backend", "neuron", "--rows", "4", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.document["simulator_max_abs"] == {"probabilities": 0.0, "label": 0.0}
    assert "'probabilities': the device and the simulator differ by at most 0" in outcome.err
    machine.faults = Faults(wrong=True)
    outcome = trnrt("validate", FFNN, "--backend", "neuron", "--rows", "4", "--json")
    assert outcome.code == 1 and outcome.document["simulator_max_abs"]["probabilities"] == pytest.approx(1)


def test_profile_shows_measured_beside_predicted(machine: Hardware) -> None:
    outcome = trnrt("profile", CNN, "--backend", "neuron")
    assert outcome.code == 0, outcome.err
    assert "digits_cnn measured: " in outcome.out and "predicted for the device alone: " in outcome.out
    assert "neuron-explorer capture" in outcome.err and "graph.neff" in outcome.err
    document = trnrt("profile", CNN, "--backend", "neuron", "--json").document
    times = document["measured_us"]["digits_cnn"]
    assert times["runs"] == 100 and 0 < times["least_us"] <= times["median_us"] <= times["p99_us"]
    assert len(machine.compiled) == 1 and len(machine.ran_on) == 220
    assert "measured_us" not in trnrt("profile", CNN, "--json").document


def test_a_device_that_fails_is_an_error_and_no_result(machine: Hardware) -> None:
    machine.faults = Faults(running="NRT_EXEC_HW_ERR_HBM_UE(1201)")
    outcome = trnrt("run", CNN)
    assert (outcome.code, outcome.out) == (2, "")
    assert "the device's memory has an error (NRT_EXEC_HW_ERR_HBM_UE, 1201)" in outcome.err and "hint:" in outcome.err


def test_lnc_must_be_the_environments(machine: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "2")
    outcome = trnrt("run", CNN, "--backend", "neuron", "--lnc", "1")
    assert outcome.code == 2 and "unset NEURON_LOGICAL_NC_CONFIG" in outcome.err
    assert trnrt("run", CNN).code == 0 and machine.lnc == 2
    assert trnrt("run", CNN, "--lnc", "3").code == 2


def test_the_cache_counts_and_clears_what_was_compiled(machine: Hardware, tmp_path: Path) -> None:
    from trnrt.cache.entries import USAGE
    from trnrt.cache.plans import PlanCache

    assert trnrt("run", CNN).code == 0
    entries = PlanCache(tmp_path / "cache").entries
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.name != USAGE]
    assert any(path.name == "graph.neff" for path in kept)
    assert entries.size() == sum(path.stat().st_size for path in kept)
    assert entries.clear() > 0 and entries.size() == 0
    assert list((tmp_path / "cache" / "neuron").iterdir()) == []


def in_a_process(folder: Path, *arguments: str) -> Any:
    """The JSON that a verb prints where `nki` is not the simulator."""
    package = folder / "path" / "nki"
    package.mkdir(parents=True)
    for name, text in AWS.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    paths = (package.parent, ROOT / "tests" / "shared", ROOT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "TRNRT_CACHE": str(folder / "cache")}
    environment.pop("TRNRT_NKI", None)
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, str(folder), *arguments], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_simulator_works_beside_aws_s_package(tmp_path: Path) -> None:
    """The device runs kernels with AWS's `nki`, and in the same process the simulator runs and times its own."""
    document = in_a_process(tmp_path, "validate", CNN, "--backend", "neuron", "--rows", "2", "--json")
    assert document["backend"] == "neuron" and document["passed"]
    assert document["simulator_max_abs"] == {"logits": 0.0}


def test_predictions_are_the_same_beside_aws_s_package(tmp_path: Path) -> None:
    document = in_a_process(tmp_path, "profile", CNN, "--backend", "neuron", "--json")
    assert document["measured_us"]["digits_cnn"]["runs"] == 100
    assert document["predicted_us"] == trnrt("profile", CNN, "--json").document["predicted_us"]

"""``trnrt doctor``: each rule on machines that break it and one that doesn't, the facts, and what the verb prints."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commanding import trnrt
from fake_neuron.installing_fake import be_instance

from trnrt.commands import host
from trnrt.neuron.device import Package, WorkerPython, look_for_device
from trnrt.neuron.doctor import STATES, Diagnosis, diagnose
from trnrt.neuron.doctor.machine import Listed, Machine, look
from trnrt.neuron.doctor.rules import table
from trnrt.neuron.releases import load_releases, numbers
from trnrt.neuron.requirements import Asked, findings
from trnrt.neuron.routes import ROUTES
from trnrt.nki.machine import targets
from trnrt.report.console import render
from trnrt.report.doctor import WIDTH, doctor_document, doctor_parts

DATA = Path(__file__).parents[2] / "trnrt" / "neuron" / "releases.json"
CNN = Path(__file__).parents[2] / "models" / "digits_cnn.onnx"
VERSIONS = {
    "nki": "0.6.0",
    "neuronx-cc": "2.27.5334.0+abc",
    "torch-neuronx": "2.9.0.2.15.32035",
    "torch": "2.9.0+cpu",
    "numpy": "2.3.1",
    "onnx": "1.22",
    "onnx_ir": "1.1",
    "onnxruntime": "1.22",
    "ml_dtypes": "0.5",
}
SYSTEM = {
    "aws-neuronx-dkms": "2.30.2.0",
    "aws-neuronx-runtime-lib": "2.34.10.0-1234",
    "aws-neuronx-collectives": "2.34.10.0",
    "aws-neuronx-tools": "2.32.28.0",
}
GOOD = Machine(
    python="3.12.3",
    packages={name: Package(name, version) for name, version in VERSIONS.items()},
    system=SYSTEM,
    devices=("/dev/neuron0",),
    driver="2.30.2.0",
    instance="trn2.3xlarge",
    neuron_ls="/opt/aws/neuron/bin/neuron-ls",
    listed=(Listed(0, 8, 1),),
    settings={"NEURON_LOGICAL_NC_CONFIG": "1"},
    cache="/home/me/.cache/trnrt",
)
LAPTOP = Machine(
    python="3.12.3",
    packages={n: Package(n, VERSIONS[n]) for n in ("numpy", "onnx", "onnx_ir", "onnxruntime", "ml_dtypes")},
)


def judged(machine: Machine) -> Diagnosis:
    return diagnose(machine, load_releases(), table())


def package(name: str, version: str, placeholder: bool = False) -> Machine:
    return replace(GOOD, packages={**GOOD.packages, name: Package(name, version, placeholder)})


def system(name: str, version: str) -> Machine:
    return replace(GOOD, system={**SYSTEM, name: version})


def setting(name: str, value: str) -> Machine:
    return replace(GOOD, settings={**GOOD.settings, name: value})


def by_trace(machine: Machine) -> Machine:
    return replace(machine, settings={**machine.settings, "TRNRT_ROUTE": "trace"})


def with_worker(*names: str, problem: str = "") -> Machine:
    """A machine whose route is neff, with these packages in the worker's Python."""
    found = {name: Package(name, "2.35.30.0") for name in names}
    return replace(setting("TRNRT_ROUTE", "neff"), worker=WorkerPython("3.12.3", found, problem))


def without(*names: str) -> Machine:
    return replace(GOOD, packages={n: p for n, p in GOOD.packages.items() if n not in names})


NEWER = replace(
    GOOD,
    system={
        "aws-neuronx-dkms": "2.31.7.0",
        "aws-neuronx-runtime-lib": "2.35.30.0",
        "aws-neuronx-collectives": "2.35.43.0",
        "aws-neuronx-tools": "2.33.38.0",
    },
    driver="2.31.7.0",
    packages={**GOOD.packages, "nki": Package("nki", "0.7.0"), "neuronx-cc": Package("neuronx-cc", "2.28.7631.0")},
)
"""All of SDK 2.33.0, but for torch-neuronx, which it takes from 2.31: no route uses that with nki 0.7."""
LATEST = replace(
    NEWER,
    system={**NEWER.system, "aws-neuronx-dkms": "2.32.1.0", "aws-neuronx-tools": "2.34.1.0"},
    packages={**NEWER.packages, "nki": Package("nki", "0.8.0"), "neuronx-cc": Package("neuronx-cc", "2.29.1")},
)
ALLOWED = {"TRNRT_ALLOW_UNSUPPORTED_DEVICE": "1", "NEURON_LOGICAL_NC_CONFIG": "1"}
USED = Listed(0, 8, 1, ("4711 python",))
TRN1 = replace(GOOD, instance="trn1.2xlarge", listed=(Listed(0, 2, None),))
UNSET = replace(GOOD, settings={})

# machine, rule, its state, what the finding says, and what is said to mend it
CASES: list[tuple[Machine, str, str, str, str]] = [
    (without("onnx_ir"), "simulator", "missing", "onnx_ir", "pip install onnx_ir"),
    (replace(GOOD, cache_error=("wrong", "others may write", "chmod 700 x")), "cache", "wrong", "others", "chmod 700"),
    (replace(GOOD, cache_error=("warning", "full", "free")), "cache", "warning", "full", "free"),
    (replace(GOOD, devices=()), "device", "missing", "no /dev/neuron* (trn2.3xlarge)", "aws-neuronx-dkms=2.30.2.0"),
    (LAPTOP, "device", "missing", "no /dev/neuron*", "docs/neuron.md"),
    (replace(GOOD, closed=("/dev/neuron0",)), "device", "wrong", "this user may not open /dev/neuron0", "-aG neuron"),
    (TRN1, "supported", "wrong", "nki/get-started/setup-env.rst", "--allow-unsupported-device"),
    (replace(TRN1, settings=ALLOWED), "supported", "warning", "release-notes/2.32.0.rst", "--self-test"),
    (setting("TRNRT_ROUTE", "xla"), "route", "wrong", "unknown route 'xla'", "routes are neff, trace"),
    (setting("TRNRT_ROUTE", "neff"), "nrtpy", "missing", "TRNRT_NRTPY_PYTHON is not set", "nrtpy==2.35.30"),
    (with_worker(problem="TRNRT_NRTPY_PYTHON=/x: no"), "nrtpy", "wrong", "=/x: no", "python3.12 -m venv"),
    (with_worker("nki", "nrtpy", "numpy"), "nrtpy", "wrong", "claim the same names", "python3.12 -m venv"),
    (with_worker("nrtpy"), "nrtpy", "missing", "no numpy", "numpy"),
    (with_worker("numpy"), "nrtpy", "missing", "not installed", "nrtpy=="),
    (setting("NKI_COMPILER_FRONTEND", "custom"), "frontend", "wrong", "for NKI 0.6.0", "tracer, parser"),
    (replace(NEWER, settings={"NKI_ARTIFACTS_DIR": "/x"}), "kernels", "wrong", "an empty folder", "unset NKI_ART"),
    (replace(GOOD, instance=None), "instance", "warning", "is unknown", "--target trn2"),
    (replace(GOOD, instance=None), "device", "missing", "is unknown", "say --target"),
    (replace(GOOD, driver=None), "driver", "warning", "/sys/module/neuron/version", ""),
    (replace(GOOD, driver=None, devices=()), "driver", "missing", "no driver is loaded", "sudo modprobe neuron"),
    (replace(GOOD, driver=None, devices=(), system={}), "driver", "missing", "no driver", "apt-get install"),
    (replace(GOOD, driver="2.29.0.0"), "driver", "warning", "2.29.0.0 is loaded, 2.30.2.0", "rmmod neuron"),
    (
        replace(GOOD, driver="2.29.0.0", system={**SYSTEM, "aws-neuronx-dkms": "2.29.0.0"}),
        *("driver", "wrong", "SDK 2.31.1, the runtime", "aws-neuronx-dkms=2.30.2.0"),
    ),
    (system("aws-neuronx-tools", "2.20.1.0"), "aws-neuronx-tools", "warning", "2.20.1.0", "=2.32.28.0"),
    (LATEST, "aws-neuronx-dkms", "warning", "2.32.1.0", "else sudo apt-get install --allow-downgrades"),
    (LATEST, "aws-neuronx-tools", "warning", "2.34.1.0", "'aws-neuronx-tools=2.33.38.0*'"),
    (LATEST, "nki", "warning", "0.8.0", "nki==0.7.0"),
    (by_trace(NEWER), "nki", "wrong", "0.7.0", "nki==0.6.0"),
    (system("aws-neuronx-runtime-lib", "2.32.31.0"), "driver", "wrong", "does not start", "runtime-lib=2.34.10.0"),
    (replace(GOOD, system={}), "aws-neuronx-runtime-lib", "missing", "not installed", "2.34.10.0"),
    (replace(GOOD, python="3.10.2"), "python", "wrong", "3.10.2", "python3.12"),
    (replace(GOOD, python="3.14.0"), "python", "wrong", "3.14.0", "python3.12"),
    (without("nki"), "nki", "missing", "not installed", "nki==0.6.0 neuronx-cc==2.27.5334.0"),
    (package("nki", "0.0.1", True), "nki", "wrong", "PyPI's empty placeholder", "pip uninstall -y nki && "),
    (package("neuronx-cc", "1.0.post1", True), "neuronx-cc", "wrong", "placeholder", "pip uninstall -y neuronx-cc"),
    (package("nki", "0.5.0"), "nki", "wrong", "0.5.0", "nki==0.6.0"),
    (package("nki", "0.7.0"), "together", "wrong", "nki 0.7.0 of SDK 2.33.0", "nki==0.7.0 neuronx-cc==2.28"),
    (by_trace(package("torch-neuronx", "2.14.3.0")), "torch-neuronx", "wrong", "TorchNeuron", "neuronx==2.9.0.2.15"),
    (by_trace(package("torch-neuronx", "2.8.0")), "torch-neuronx", "wrong", "2.8.0", "torch-neuronx==2.9.0.2.15.32035"),
    (by_trace(package("torch", "2.13.0")), "torch", "wrong", "2.13.0", "torch-neuronx=="),
    (package("numpy", "2.4.6"), "numpy", "warning", "2.4.6", "numpy==2.3.*"),
    (package("neuronx-cc", "2.26.6360.0"), "together", "wrong", "SDK 2.31.1", "neuronx-cc==2.27.5334.0"),
    (package("nrtpy", "2.34.10"), "together", "wrong", "nrtpy 2.34.10 claim", "pip uninstall -y nrtpy nki && pip"),
    (package("neuronx-cc", "2.27.1.0"), "together", "warning", "SDK unknown", "neuronx-cc==2.27.5334.0"),
    (setting("NEURON_LOGICAL_NC_CONFIG", "2"), "lnc", "warning", "NEURON_LOGICAL_NC_CONFIG is 2", "CONFIG=1"),
    (setting("NEURON_LOGICAL_NC_CONFIG", "4"), "lnc", "wrong", "=4", "export NEURON_LOGICAL_NC_CONFIG=1"),
    (setting("NEURON_CC_FLAGS", "-O1 --lnc=2"), "lnc", "wrong", "--lnc=2", "NEURON_CC_FLAGS"),
    (setting("NEURON_CC_FLAGS", "--logical-nc-config 2"), "lnc", "wrong", "must agree", "NEURON_CC_FLAGS"),
    (replace(UNSET, lnc_file="2"), "lnc", "warning", "/opt/aws/neuron/logical_nc_config says 2", "export"),
    (replace(UNSET, listed_lnc=2), "lnc", "warning", "neuron-ls says 2", "export"),
    (replace(UNSET, listed=()), "lnc", "warning", "the default is 2", "export"),
    (replace(TRN1, settings={"NEURON_LOGICAL_NC_CONFIG": "2"}), "lnc", "wrong", "trn1 has no", "export"),
    (setting("NEURON_PLATFORM_TARGET_OVERRIDE", "trn9"), "target", "warning", "trn9", "unset NEURON_PLATFORM"),
    (setting("NEURON_PLATFORM_TARGET_OVERRIDE", "gen4"), "target", "warning", "the device is a trn2", "unset"),
    (setting("NEURON_CC_FLAGS", "--auto-cast=all"), "settings", "warning", "rounds float32", "unset NEURON_CC_FLAGS"),
    (setting("XLA_USE_BF16", "1"), "settings", "warning", "bfloat16", "unset XLA_USE_BF16"),
    (setting("NEURON_RT_VIRTUAL_CORE_SIZE", "2"), "settings", "warning", "an older name", "unset NEURON_RT_VIRTUAL"),
    (setting("NEURON_RT_VISIBLE_CORES", "all"), "visible", "wrong", "names no cores", "it is as 0-3"),
    (setting("NEURON_RT_VISIBLE_CORES", ""), "visible", "wrong", "given no NeuronCore", "unset NEURON_RT_VISIBLE"),
    (setting("NEURON_RT_NUM_CORES", "all"), "settings", "warning", "no number", "unset NEURON_RT_NUM_CORES"),
    (setting("NEURON_RT_ALLOW_LEGACY_NEFF", "TRUE"), "settings", "warning", "another device", "unset"),
    (replace(GOOD, listed=(), neuron_ls=None), "cores", "warning", "neuron-ls is missing", "aws-neuronx-tools"),
    (replace(GOOD, listed=()), "cores", "warning", "--json-output lists nothing; from SDK 2.34", "run neuron-ls"),
    (replace(GOOD, listed=(USED,), leased=(3,)), "cores", "warning", "4711 python; leased by trnrt: 3", "kill 4711"),
    (replace(GOOD, failed=(3, 5)), "cores", "ok", "failed in the last 10 minutes: 3, 5 (physical)", ""),
    (setting("NKI_SIMULATOR", "1"), "kernels", "wrong", "simulate the kernels on the CPU", "unset NKI_SIMULATOR"),
    (replace(GOOD, seam="TRNRT_NKI=simulator is set"), "kernels", "wrong", "don't get it", "unset TRNRT_NKI"),
    (replace(GOOD, seam="no modules"), "kernels", "wrong", "no modules", "pip install"),
]  # fmt: skip

HARMLESS = [
    setting("NEURON_CC_FLAGS", "--auto-cast=none --lnc=1"),
    setting("NEURON_RT_VISIBLE_CORES", "0-3,8"),
    setting("NEURON_RT_ALLOW_LEGACY_NEFF", "FALSE"),
    setting("NKI_SIMULATOR", "0"),
    setting("NEURON_PLATFORM_TARGET_OVERRIDE", "gen3"),
    replace(GOOD, listed=(USED, Listed(1, 8, 1))),
    replace(UNSET, lnc_file="1"),
    system("aws-neuronx-dkms", "2.30.2.0"),
]


def test_a_good_machine() -> None:
    diagnosis = judged(GOOD)
    assert [finding for finding in diagnosis.findings if finding.state != "ok"] == []
    assert (diagnosis.backend, diagnosis.usable("neuron"), diagnosis.usable("simulator")) == ("neuron", True, True)
    assert "/dev/neuron0" in diagnosis.reason


@pytest.mark.parametrize("machine", HARMLESS)
def test_what_is_no_trouble(machine: Machine) -> None:
    assert [finding for finding in judged(machine).findings if finding.state != "ok"] == []


@pytest.mark.parametrize(("machine", "rule", "state", "found", "mend"), CASES)
def test_each_finding(machine: Machine, rule: str, state: str, found: str, mend: str) -> None:
    finding = judged(machine).finding(rule)
    assert finding.state == state
    assert found in finding.found and mend in finding.mend


def test_every_rule_has_a_case() -> None:
    names = [rule.name for rule in table()]
    assert len(names) == len(set(names))
    assert set(names) - {case[1] for case in CASES} <= {"aws-neuronx-dkms", "aws-neuronx-collectives"}
    assert {case[2] for case in CASES} | {"ok"} == set(STATES)


@pytest.mark.parametrize(("machine", "rule", "state", "found", "mend"), CASES)
def test_what_keeps_the_device_from_running(machine: Machine, rule: str, state: str, found: str, mend: str) -> None:
    """A needed thing that is missing or wrong does; a warning never does."""
    needed = {r.name for r in table() if "neuron" in r.needed_by}
    diagnosis = judged(machine)
    assert (rule in diagnosis.blocking["neuron"]) == (rule in needed and state in ("missing", "wrong"))
    if rule in diagnosis.blocking["neuron"]:
        assert not diagnosis.usable("neuron") and diagnosis.backend != "neuron"


def test_a_release_that_came_later_is_known_and_keeps_nobody_from_trying() -> None:
    found = judged(NEWER)
    assert found.usable("neuron") and found.backend == "neuron"
    assert found.finding("driver").state == found.finding("together").state == "ok"
    assert found.finding("together").found.count("of SDK 2.33.0") == 2


def test_a_laptop_runs_the_simulator() -> None:
    diagnosis = judged(LAPTOP)
    assert (diagnosis.backend, diagnosis.reason) == ("simulator", "no Neuron device on this machine")
    assert diagnosis.usable("auto") and diagnosis.usable("simulator") and not diagnosis.usable("neuron")
    assert judged(replace(LAPTOP, packages={})).usable("auto") is False


def test_the_data_says_where_each_version_is_from() -> None:
    releases = load_releases()
    rows = [row for needs in releases.routes for row in (needs.python, *needs.packages(), *needs.worker)]
    for wanted in (*rows, *releases.packages, *releases.system):
        assert wanted.sources and set(wanted.sources) <= set(releases.sources), wanted.name
        assert numbers(wanted.at_least) < numbers(wanted.below)
        assert not wanted.install or wanted.state(wanted.install.replace("*", "0")) == "ok"
    assert tuple(needs.name for needs in releases.routes) == ROUTES
    for needs in releases.routes:
        pinned = {p.name: p.install for p in needs.packages()}
        has = releases.releases[needs.sdk]
        assert {name: pinned[name] for name in ("nki", "neuronx-cc")} == {n: has[n] for n in ("nki", "neuronx-cc")}
        assert all(p.state(has[p.name]) == "ok" for p in releases.system)
    (torch_neuronx,) = (p for p in releases.route("trace").packages() if p.name == "torch-neuronx")
    assert torch_neuronx.install == releases.releases["2.31.1"]["torch-neuronx"]
    assert set(json.loads(DATA.read_text())["driver_needs_runtime"]["sources"]) <= set(releases.sources)


def test_the_extra_of_the_package_and_the_data_agree() -> None:
    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(pyproject)["project"]["optional-dependencies"]
    for extra, route in (("neuron", "neff"), ("neuron", "jit"), ("neuron-trace", "trace")):
        wanted = [p for p in load_releases().route(route).packages() if p.name != "torch"]
        assert sorted(f"{p.name}>={p.at_least},<{p.below}" for p in wanted) == sorted(extras[extra])


@pytest.mark.parametrize(
    ("version", "expected"), [("2.9.0.2.15+abc", (2, 9, 0, 2, 15)), ("0.6", (0, 6)), ("", ()), ("x1", ())]
)
def test_numbers(version: str, expected: tuple[int, ...]) -> None:
    assert numbers(version) == expected


def test_the_backend_refuses_with_the_doctors_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One table: what blocks in the one is what the other's error says, for every machine of the cases."""
    for machine in {id(case[0]): case[0] for case in CASES}.values():
        found = findings(Asked(), machine)
        blocking = [name for name in judged(machine).blocking["neuron"] if name not in ("simulator", "cache")]
        assert sorted(finding.name for finding in found) == sorted(blocking)
        assert all(judged(machine).finding(finding.name) == finding for finding in found)
    be_instance(monkeypatch, tmp_path, "trn2.3xlarge", 0)
    outcome = trnrt("run", CNN, "--backend", "neuron")
    said = trnrt("doctor", "--backend", "neuron", "--json")
    assert (outcome.code, said.code) == (2, 1)
    for finding in said.document["findings"]:
        if finding["name"] in said.document["blocking"]["neuron"]:
            assert f"{finding['name']}: {finding['found']}" in outcome.err and finding["mend"] in outcome.err


# ---- the facts

# As the SDK's guide to neuron-ls shows its JSON (tools/neuron-sys-tools/neuron-ls.rst, 2.32), values made up.
LISTING = [
    {
        "neuron_device": 0,
        "bdf": "cc:00.0",
        "nc_count": 4,
        "logical_neuroncore_config": 2,
        "memory_size": 1,
        "neuroncore_ids": [0, 1, 2, 3],
        "neuron_processes": [{"pid": 12, "command": "serve --token secret", "neuron_runtime_version": "2.0.0"}],
    },
    {"neuron_device": 1, "nc_count": 4, "memory_size": 1, "neuron_processes": None},
]


def instance(root: Path) -> Path:
    """The files of a machine with two devices."""
    for path, text in {
        "dev/neuron0": "",
        "dev/neuron1": "",
        "dev/neuron10": "",
        "dev/neuron2": "",
        "sys/module/neuron/version": "2.30.2.0\n",
        "sys/devices/virtual/dmi/id/product_name": "trn2.48xlarge\n",
        "opt/aws/neuron/logical_nc_config": "NEURON_LOGICAL_NC_CONFIG=1\n",
        "opt/aws/neuron/bin/neuron-ls": "#!/bin/sh\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    (root / "opt/aws/neuron/bin/neuron-ls").chmod(0o755)
    return root


def test_look_reads_a_machine(tmp_path: Path) -> None:
    def run(command: Sequence[str]) -> str | None:
        if command[0] == "dpkg-query":
            return "aws-neuronx-dkms 2.30.2.0\naws-neuronx-tools \nother 1\n"
        assert command == [str(tmp_path / "opt/aws/neuron/bin/neuron-ls"), "--json-output"]
        return json.dumps(LISTING)

    environ = {"PATH": "", "NEURON_RT_NUM_CORES": "1", "HOME": "/x", "TRNRT_NKI": "auto", "TRNRT_TOKEN": "secret"}
    machine = look(instance(tmp_path), environ, run)
    assert machine.devices == ("/dev/neuron0", "/dev/neuron1", "/dev/neuron2", "/dev/neuron10")
    assert (machine.driver, machine.instance, machine.target) == ("2.30.2.0", "trn2.48xlarge", "trn2")
    assert machine.system == {"aws-neuronx-dkms": "2.30.2.0"}
    assert machine.listed == (Listed(0, 4, 2, ("12 serve",)), Listed(1, 4, None))
    assert machine.settings == {"NEURON_RT_NUM_CORES": "1", "TRNRT_NKI": "auto"}
    assert machine.lnc_file == "1"
    assert machine.packages["numpy"].version == metadata.version("numpy") and not machine.packages["numpy"].placeholder


@pytest.mark.parametrize("said", [None, "", "no json", "{}", "[1]", '[{"nc_count": 2}]', '"text"'])
def test_what_neuron_ls_says_may_be_anything(tmp_path: Path, said: str | None) -> None:
    assert look(instance(tmp_path), {"PATH": ""}, lambda command: said).listed == ()


def test_rpm_where_there_is_no_dpkg(tmp_path: Path) -> None:
    def run(command: Sequence[str]) -> str | None:
        return (
            "aws-neuronx-dkms 2.30.2.0\npackage aws-neuronx-tools is not installed\n" if command[0] == "rpm" else None
        )

    assert look(tmp_path, {"PATH": ""}, run).system == {"aws-neuronx-dkms": "2.30.2.0"}


def test_placeholders_are_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution of one file, as the three that AWS has on PyPI; with more in it, it is the real one."""
    info = tmp_path / "nki-0.0.1.dist-info"
    info.mkdir()
    (tmp_path / "nki").mkdir()
    for name in ("__init__.py", "isa.py"):
        (tmp_path / "nki" / name).touch()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nki\nVersion: 0.0.1\n", encoding="utf-8")
    record = "nki/__init__.py,,\nnki-0.0.1.dist-info/METADATA,,\nnki-0.0.1.dist-info/RECORD,,\n"
    (info / "RECORD").write_text(record, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert look(tmp_path, {}, lambda command: None).packages["nki"] == Package("nki", "0.0.1", True)
    (info / "RECORD").write_text(f"nki/isa.py,,\n{record}", encoding="utf-8")
    assert look(tmp_path, {}, lambda command: None).packages["nki"] == Package("nki", "0.0.1", False)


def test_leases_of_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / "trnrt-cores"
    folder.mkdir()
    for name in ("core-0", "core-3", "choosing"):
        (folder / name).touch()
    with (folder / "core-3").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert look(tmp_path, {}, lambda command: None).leased == (3,)
    assert look(tmp_path, {}, lambda command: None).leased == ()


def test_an_unsafe_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    monkeypatch.setenv("TRNRT_CACHE", str(cache))
    error = look(tmp_path, {}, lambda command: None).cache_error
    assert error is not None and error[0] == "wrong" and error[2] == f"chmod 700 {cache}"


# ---- the verb


@pytest.fixture
def laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trnrt.neuron.doctor.machine.look", lambda: LAPTOP)


@pytest.mark.usefixtures("laptop")
@pytest.mark.parametrize(
    ("arguments", "code"), [((), 0), (("--backend", "simulator"), 0), (("--backend", "neuron"), 1)]
)
def test_exit_codes(arguments: tuple[str, ...], code: int, tmp_path: Path) -> None:
    outcome = trnrt("doctor", *arguments, "--json", "--json-out", tmp_path / "doctor.json")
    assert outcome.code == code and outcome.document["usable"] is (code == 0)
    assert (tmp_path / "doctor.json").read_text(encoding="utf-8") == outcome.out
    names = [finding["name"] for finding in outcome.document["findings"]]
    assert names == [rule.name for rule in table()]
    assert {"device", "nki"} <= set(outcome.document["blocking"]["neuron"])


def test_the_verb_on_this_very_machine() -> None:
    outcome = trnrt("doctor", "--json")
    assert (outcome.code, outcome.document["backend"] in ("simulator", "neuron")) == (0, True)


@pytest.mark.parametrize("machine", [GOOD, LAPTOP, TRN1, package("nki", "0.0.1", True)])
@pytest.mark.parametrize("asked", ["auto", "neuron"])
def test_80_columns_and_no_colour(machine: Machine, asked: str) -> None:
    """Only commands are longer: they are there to be copied."""
    text = render(doctor_parts(judged(machine), asked))
    findings = [finding for finding in judged(machine).findings if finding.state != "ok" and finding.mend]
    commands = {f"      {finding.mend}" for finding in findings}
    lines = set(text.splitlines())
    assert commands <= lines and "\x1b" not in text
    assert max(map(len, lines - commands)) <= WIDTH


def test_what_a_machine_calls_itself_reaches_no_terminal() -> None:
    text = render(doctor_parts(judged(replace(GOOD, instance="trn2\x1b[31m [bold]x")), "neuron"))
    assert "\x1b" not in text and "[bold]x" in re.sub(r"\s+", " ", text)


def test_document_is_json() -> None:
    document: dict[str, Any] = doctor_document(judged(GOOD), load_releases(), "neuron", version="1")
    assert json.loads(json.dumps(document))["usable"] is True
    assert document["schema_version"] == 1 and document["machine"]["packages"]["nki"] == "0.6.0"


def test_device_files_that_this_user_may_not_open_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dev").mkdir()
    for number in range(2):
        (tmp_path / "dev" / f"neuron{number}").touch()
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path).name != "neuron1")  # root may open any file
    facts = look_for_device(tmp_path, {})
    assert facts.devices == ("/dev/neuron0", "/dev/neuron1") and facts.closed == ("/dev/neuron1",)


def test_a_wrong_timing_file_stops_no_diagnosis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRNRT_TIMING", "/nonexistent/timing.toml")
    outcome = trnrt("doctor", "--backend", "simulator")
    assert outcome.code == 0 and "would be used: simulator" in outcome.out
    assert "TRNRT_TIMING: can't read the timing in '/nonexistent/timing.toml'" in outcome.err


def test_a_route_that_lacks_something_is_a_warning() -> None:
    finding = judged(LAPTOP).finding("route")
    assert finding.state == "warning" and "nrtpy (TRNRT_NRTPY_PYTHON is not set)" in finding.found
    assert judged(GOOD).finding("route").state == "ok"


def test_a_user_s_target_takes_no_alias_of_the_one_that_it_is_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "_given", {})
    (tmp_path / "own9.toml").write_text('name = "own9"\nlike = "trn2"\n', encoding="utf-8")
    targets.get_target(tmp_path / "own9.toml")
    assert judged(setting("NEURON_PLATFORM_TARGET_OVERRIDE", "gen3")).finding("target").state == "ok"


def test_a_full_disk_is_no_place_for_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRNRT_CACHE", str(tmp_path))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1 << 40))
    assert host._measure_cache().state == "ok"
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    found = host._measure_cache()
    assert found.state == "warning" and "1.0 MiB free" in found.found and "TRNRT_CACHE" in found.mend

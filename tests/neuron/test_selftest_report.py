"""The self-test's report: anonymous, with all that a calibration needs; its probes, and NKI's frontends."""

from __future__ import annotations

import getpass
import json
import socket
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trnrt.calibration.reports import report_of
from trnrt.neuron.device import look_for_device
from trnrt.neuron.releases import load_releases
from trnrt.neuron.routes.choosing import judge_worker
from trnrt.neuron.selftest import running, suite
from trnrt.neuron.selftest.anonymity import anonymous, private_names
from trnrt.neuron.selftest.describing import describe_case, time_by_place
from trnrt.neuron.selftest.probing import PROBES
from trnrt.neuron.selftest.suite import TRIED, Outcome, Suite, environment, run_suite
from trnrt.neuron.selftest.table import CASES, PROBED
from trnrt.nki import profile
from trnrt.nki.machine.targets import get_target
from trnrt.report.console import render
from trnrt.report.selftest import selftest_document, selftest_parts


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "SECONDS", 0.0)


# ---- anonymous


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('File "/home/ada/trnrt/neuron/backend.py", line 3, in run', 'File "…/backend.py", line 3, in run'),
        ("can't open /mnt/fsx/secret project/x.bin", "can't open …/secret project/x.bin"),
        ("/dev/neuron0 and /opt/aws/neuron/bin/neuron-ls", "/dev/neuron0 and /opt/aws/neuron/bin/neuron-ls"),
        ("on i-0123456789abcdef0 in vpc-01234567", "on i-… in vpc-…"),
        ("ip-10-0-12-7.ec2.internal at 10.0.12.7", "ip-… at …"),
        ("arn:aws:iam::123456789012:role/me", "arn:…"),
        ("ada@example.com, 02:42:ac:11:00:02", "…, …"),
        ("nki 0.7.0, 3/4 of 12/16 bytes, a/b", "nki 0.7.0, 3/4 of 12/16 bytes, a/b"),
        ("--cache_dir=/data/ada/cache/x", "--cache_dir=…/x"),
        ("lovelace.local says lovelace", "… says …"),
    ],
)
def test_texts(text: str, expected: str) -> None:
    assert anonymous(text, ("lovelace.local", "lovelace")) == expected


def test_all_of_a_document_is_searched() -> None:
    document = {"/home/ada/x": [{"a": ("ada", 3, None, True)}], "b": 1.5}
    assert anonymous(document, ("ada",)) == {"…/x": [{"a": ["…", 3, None, True]}], "b": 1.5}


def test_a_report_names_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "analytical-engine.example")
    monkeypatch.setattr(getpass, "getuser", lambda: "lovelace")
    monkeypatch.setattr(Path, "home", lambda: Path("/efs/people/countess"))
    monkeypatch.chdir(tmp_path)
    secret = (
        f"/efs/people/countess/x.py, {tmp_path}/y, lovelace@analytical-engine.example, i-0123456789abcdef0, 10.1.2.3"
    )
    document = {"state": "crashed", "summary": secret, "detail": f"Traceback\n  {secret}"}
    simulated = {"state": "passed", "predicted_us": 1.0, "low_us": 1.0, "high_us": 2.0}
    made = Suite("neuron", "trn2", 1.0, [Outcome("add", document, simulated)])
    machine = {"instance": "trn2.48xlarge", "settings": {"NEURON_CC_FLAGS": f"--cache={tmp_path}/c"}}
    listed = [{"number": 0, "cores": 8, "lnc": None, "users": ("4711 analysis",)}]
    doctor = {"machine": {**machine, "listed": listed}, "findings": [{"found": secret}]}
    text = json.dumps(selftest_document(made, doctor, render(selftest_parts(made)), version="1"), ensure_ascii=False)
    hidden = ("analytical", "lovelace", "countess", str(tmp_path), tmp_path.name, "0123456789abcdef0", "10.1.2.3")
    assert [word for word in (*hidden, "4711", "analysis") if word in text] == []
    assert "trn2.48xlarge" in text and "Traceback" in text
    assert {"analytical-engine.example", "lovelace", "/efs/people/countess"} < set(private_names())


@pytest.mark.parametrize("place", ["/efs/of the countess/nrtpy/bin/python", "venvs/countess/bin/python"])
def test_a_wrong_worker_python_is_not_named(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRNRT_NRTPY_PYTHON", place)
    facts = look_for_device(tmp_path)
    assert facts.worker is not None and place in facts.worker.problem
    finding = judge_worker(facts, load_releases())
    made = Suite("neuron", "trn2", 1.0, [Outcome("add", {"state": "passed"}, {"state": "passed"})])
    doctor = {"findings": [asdict(finding)], "machine": {"python": "3.12.3"}}
    document = selftest_document(made, doctor, finding.found, version="1")
    text = json.dumps(document, ensure_ascii=False)
    assert "countess" not in text and "TRNRT_NRTPY_PYTHON=…: " in text
    assert document["doctor"]["machine"] == {"python": "3.12.3"}
    monkeypatch.setenv("TRNRT_NRTPY_PYTHON", "python")
    assert "python" not in private_names()


# ---- what a calibration needs


def test_a_report_has_what_a_calibration_reads() -> None:
    name = "additions_64_32"
    measured = running.run_case(CASES[name], "simulator", "trn2")
    simulated: dict[str, Any] = {"state": "passed", "low_us": measured.low_us, "high_us": measured.high_us}
    simulated |= {"predicted_us": measured.predicted_us, "path_us": measured.path_us}
    simulated |= {"moved_bytes": measured.moved_bytes}
    wall = running.distribution([10.0, 12.0, 11.0, 13.0, 30.0])
    made = Suite("neuron", "trn2", 1.0, [Outcome(name, {"state": "passed", "wall_us": wall}, simulated)])
    document = selftest_document(made, {}, "", version="1")
    (case,) = document["cases"]
    assert case["measured"] == {"least": 10, "lower": 11, "median": 12, "upper": 13, "most": 30, "runs": 5} | {
        "clock": "host"
    }
    assert case["ran"] == {
        "kernel": "probes.repeat_additions",
        "shapes": [[128, 2048]],
        "dtype": "float32",
        "options": [32, 64],
        "repeats": 32,
    }
    assert case["moved_bytes"] == 2 * 128 * 2048 * 4
    assert sum(case["path_us"].values()) == pytest.approx(case["predicted_us"], abs=0.02)
    (read,) = report_of(json.loads(json.dumps(document)), "digest", "report.json").cases
    assert (read.us, read.clock) == (12, "host") and read.error_us == pytest.approx(1.2533 * 2 / 1.349 / 5**0.5)


def test_a_model_is_described_and_has_a_path() -> None:
    result = running.run_case(CASES["digits_cnn_1"], "simulator", "trn2")
    assert result.predicted_us is not None and result.moved_bytes == 64 * 4 + 10 * 4
    assert sum(result.path_us.values()) == pytest.approx(result.predicted_us, abs=0.02)
    assert describe_case(CASES["digits_cnn_1"]) == {"model": "digits_cnn.onnx", "rows": 1, "dtype": "float32"}
    assert describe_case(CASES["linear"])["weights"] == {"w": [20, 7], "b": [7]}
    descriptions = [json.dumps(describe_case(case)) for case in CASES.values()]
    assert len(set(descriptions)) > len(CASES) - 8  # a few are of the same shapes


def test_the_calls_of_a_probe_differ_in_repeats_alone() -> None:
    for probe in PROBES:
        cases = probe.cases()
        assert len(cases) >= 2 and len({case.shapes for case in cases}) == 1
        assert len({case.options[1:] for case in cases}) == 1
        assert [case.options[0] for case in cases] == sorted(set(probe.repeats))
    assert len({probe.name for probe in PROBES}) == len(PROBES)


def test_a_probes_difference_is_what_it_decides() -> None:
    """Most of what more repeats take is spent on the place that the probe names."""
    for probe in PROBES:
        if probe.decides in ("tensor", "vector", "scalar", "gpsimd") and probe.name != "turns":
            spent = [path_of(case.name) for case in probe.cases()]
            more = {place: us - spent[0].get(place, 0.0) for place, us in spent[-1].items()}
            assert max(more, key=more.__getitem__) == probe.decides, (probe.name, more)


def path_of(name: str) -> dict[str, float]:
    case = next(case for case in PROBED if case.name == name)
    return time_by_place(profile(case.find_kernel(), *case.arrays(), *case.options, target="trn2").timeline)


# ---- frontends


STUB = """
import json, os, pathlib, sys
import numpy as np
folder, backend = pathlib.Path(sys.argv[1]), sys.argv[2]
frontend = os.environ.get("NKI_COMPILER_FRONTEND", "")
for line in sys.stdin:
    name = line.strip()
    state = "error" if (frontend, name) == ("parser", "matmul") else "passed"
    np.savez(folder / f"{name}.npz", np.full(3, 0.5 if frontend == "tracer" else 0.0))
    document = {"state": state, "summary": frontend, "wall_us": None}
    (folder / f"{name}.json.tmp").write_text(json.dumps(document))
    (folder / f"{name}.json.tmp").rename(folder / f"{name}.json")
"""


def test_each_frontend_compiles_some_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    def command(backend: str, target: str, folder: Path) -> list[str]:
        return [sys.executable, "-c", STUB, str(folder), backend]

    monkeypatch.setattr(suite, "command", command)
    monkeypatch.delenv("NKI_COMPILER_FRONTEND", raising=False)
    names = ["add", "matmul", "linear"]
    made = run_suite("neuron", "trn2", names, lambda name: None, frontends=("tracer", "parser"))
    found: list[tuple[Any, ...]] = [(one.frontend, one.name, one.state, one.off_simulator) for one in made.tried]
    assert found == [
        ("tracer", "add", "passed", 0.5),
        ("tracer", "matmul", "passed", 0.5),
        ("parser", "add", "passed", 0.0),
        ("parser", "matmul", "error", 0.0),
    ]
    assert [outcome.state for outcome in made.outcomes] == ["passed"] * 3 and made.has_passed
    assert "matmul with NKI's frontend parser: error" in render(selftest_parts(made))
    document = selftest_document(made, {}, "", version="1")
    assert document["frontends"][0]["frontend"] == "tracer"
    assert set(TRIED) <= set(CASES) and min(CASES[name].since for name in TRIED) <= get_target("trn1").generation


def test_the_frontend_is_set_for_the_device_alone() -> None:
    assert environment({}, "neuron", "trn2", "tracer")["NKI_COMPILER_FRONTEND"] == "tracer"
    assert "NKI_COMPILER_FRONTEND" not in environment({}, "neuron", "trn2")
    kept = environment({"NKI_COMPILER_FRONTEND": "parser"}, "neuron", "trn2")
    assert kept["NKI_COMPILER_FRONTEND"] == "parser"


def test_the_marks_of_a_distribution() -> None:
    marks = running.distribution(list(np.arange(101.0)))
    assert marks == {"least": 0, "lower": 25, "median": 50, "upper": 75, "most": 100, "runs": 101}

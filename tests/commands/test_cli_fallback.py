"""``--fallback`` on the command line: who runs, what is told, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from commanding import trnrt
from planning import modelled, onnxruntimes

from trnrt.planner.parts.crossing import host_link

MODELS = Path(__file__).parents[2] / "models"
FFNN = str(MODELS / "digits_ffnn.onnx")
FALLBACK = ("--fallback", "onnxruntime")

PART_KEYS = {
    "name",
    "place",
    "nodes",
    "reasons",
    "inputs",
    "outputs",
    "instructions",
    "to_host_bytes",
    "to_device_bytes",
    "crossing_us",
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A model with a node in its middle that no kernel does, and a name that a terminal would obey."""
    proto = modelled("(float[N,4] x) => (float[N,4] y) { a = Relu(x)  b = Hardmax(a)  y = Sigmoid(b) }")
    proto.graph.node[1].name = "hard\n\x1b[31m[max]"
    path = tmp_path / "middle.onnx"
    onnx.save(proto, path)
    return str(path)


@pytest.mark.parametrize("verb", ["run", "validate", "inspect", "compile", "profile"])
def test_without_it_the_model_is_refused(model: str, verb: str, tmp_path: Path) -> None:
    where = ["-o", str(tmp_path / "out")] if verb == "compile" else []
    for flags in ([], ["--fallback", "none"]):
        outcome = trnrt(verb, model, *where, *flags)
        assert outcome.code == 1
        assert "Hardmax" in outcome.out + outcome.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", ["run", "validate", "inspect", "compile", "profile"])
def test_with_it_each_node_on_the_cpu_is_told_with_its_reason_and_cost(model: str, verb: str, tmp_path: Path) -> None:
    where = ["-o", str(tmp_path / "out")] if verb == "compile" else []
    outcome = trnrt(verb, model, *where, *FALLBACK)
    assert outcome.code == 0
    told = outcome.out + outcome.err
    assert r"Hardmax 'hard\n\x1b[31m[max]' runs on the CPU: " in "".join(told.splitlines())
    assert "round trip 40." in " ".join(told.split())
    assert "assumptions" in told
    assert "\x1b" not in told


def test_another_fallback_is_refused(model: str) -> None:
    outcome = trnrt("run", model, "--fallback", "tensorflow")
    assert (outcome.code, outcome.out) == (2, "")
    assert "onnxruntime" in outcome.err


def test_run_gives_onnxruntimes_numbers_and_the_parts(model: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((1, 4)).astype(np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    outcome = trnrt("run", model, *FALLBACK, "-i", tmp_path / "in.npz", "--json", "--keep", tmp_path / "kept")
    document = outcome.document
    expected = onnxruntimes(onnx.load(model), {"x": x})[0]
    np.testing.assert_allclose(document["outputs"]["y"]["data"], expected, rtol=1e-5)
    parts = document["parts"]
    assert all(part.keys() == PART_KEYS for part in parts)
    assert [part["place"] for part in parts] == ["core", "cpu", "core"]
    assert [part["inputs"] for part in parts] == [["x"], ["a"], ["b"]]
    assert list(parts[1]["reasons"]) == parts[1]["nodes"]
    assert (parts[1]["to_host_bytes"], parts[1]["to_device_bytes"]) == (16, 16)
    assert parts[0]["crossing_us"] is None
    assert document["predicted_us"] > parts[1]["crossing_us"] > 2 * host_link("trn2").latency_us
    assert sorted(path.suffix for path in (tmp_path / "kept").iterdir()).count(".onnx") == 1
    text = trnrt("run", model, *FALLBACK)
    assert "of round trips to the CPU but not the CPU's own time" in " ".join(text.out.split())


def test_a_supported_model_has_one_part_and_no_notes(tmp_path: Path) -> None:
    plain, other = (trnrt("run", FFNN, *flags, "--no-cache", "--json") for flags in ((), FALLBACK))
    assert plain.document["predicted_us"] == other.document["predicted_us"]
    assert plain.document["notes"] == other.document["notes"]
    assert [part["place"] for part in other.document["parts"]] == ["core"]
    assert trnrt("inspect", FFNN).out == trnrt("inspect", FFNN, *FALLBACK).out
    assert trnrt("profile", FFNN, "--json").out == trnrt("profile", FFNN, *FALLBACK, "--json").out


def test_validate_compares_the_whole(model: str) -> None:
    outcome = trnrt("validate", model, *FALLBACK, "--json")
    document = outcome.document
    assert (outcome.code, document["passed"], document["samples"]) == (0, True, 64)
    assert len(document["parts"]) == 3
    assert any("runs on the CPU" in note for note in document["notes"])


def test_inspect_shows_the_refusal_and_the_partition(model: str) -> None:
    outcome = trnrt("inspect", model, *FALLBACK)
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert "not on the NeuronCore:" in lines
    table = lines.index(next(line for line in lines if line.startswith("part ")))
    assert [line.split()[:2] for line in lines[table + 1 : table + 4]] == [
        ["middle_part1", "core"],
        ["middle_part2", "cpu"],
        ["middle_part3", "core"],
    ]
    assert lines[table + 2].split()[2:] == ["1", "16", "16", "40.0"]
    document = trnrt("inspect", model, *FALLBACK, "--json").document
    assert document["supported"] is False
    assert [node["place"] for node in document["nodes"]] == ["core", "cpu", "core"]
    assert [blocker["op"] for blocker in document["blockers"]] == ["Hardmax"]
    assert [part["place"] for part in document["parts"]] == ["core", "cpu", "core"]
    refused = trnrt("inspect", model, "--json").document
    assert refused["parts"] == []


def test_compile_writes_every_part(model: str, tmp_path: Path) -> None:
    outcome = trnrt("compile", model, *FALLBACK, "-o", tmp_path / "out", "--json", "--no-bundle")
    document = outcome.document
    assert sorted(document["files"]) == sorted(str(path) for path in (tmp_path / "out").iterdir())
    assert [Path(file).suffix for file in document["files"]] == [
        ".py",
        ".npz",
        ".json",
        ".onnx",
        ".py",
        ".npz",
        ".json",
    ]
    assert [part["place"] for part in document["parts"]] == ["core", "cpu", "core"]


def test_profile_adds_the_parts_and_the_round_trips(model: str, tmp_path: Path) -> None:
    baseline = tmp_path / "base.json"
    outcome = trnrt("profile", model, *FALLBACK, "--json", "--json-out", baseline)
    document = outcome.document
    device = [part for part in document["parts"] if part["place"] == "core"]
    for key in ("low_us", "predicted_us", "high_us"):
        for clock in ("benchmark", "profiler"):
            times = sum(part[key][clock] for part in device)
            assert document[key][clock] == pytest.approx(times + document["crossings_us"])
    assert [step["name"] for step in document["steps"]][1] == "round trip of middle_part2"
    assert trnrt("profile", model, *FALLBACK, "--baseline", baseline).code == 0
    faster = json.loads(baseline.read_text())
    faster["predicted_us"]["benchmark"] *= 0.5
    baseline.write_text(json.dumps(faster))
    assert trnrt("profile", model, *FALLBACK, "--baseline", baseline).code == 1
    text = trnrt("profile", model, *FALLBACK, "--html", tmp_path / "r.html")
    low, us, high = (document[key]["benchmark"] for key in ("low_us", "predicted_us", "high_us"))
    assert low < us < high
    assert text.out.startswith(f"all parts: {us:,.1f} us ({low:,.1f} to {high:,.1f}) predicted, 40.0 us of it")
    assert "the range's ends are the sums of the parts' ends" in text.out
    assert "2 parts: wrote" in text.err
    assert sorted(path.name for path in tmp_path.glob("*.html")) == ["r-1.html", "r-2.html"]


def test_a_model_that_is_all_the_cpus(tmp_path: Path) -> None:
    path = tmp_path / "cpu.onnx"
    onnx.save(modelled("(float[2,4] x) => (float[2,4] y) { y = Hardmax(x) }"), path)
    run = trnrt("run", path, *FALLBACK, "--json")
    assert run.code == 0
    assert run.document["predicted_us"] is None
    assert "predicted for" not in trnrt("run", path, *FALLBACK).out
    assert trnrt("inspect", path, *FALLBACK).code == 0
    refused = trnrt("profile", path, *FALLBACK)  # there is nothing whose latency could be told
    assert (refused.code, refused.out) == (1, "")
    assert "Hardmax" in refused.err

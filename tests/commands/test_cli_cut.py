"""``trnrt cut``, and the ways out that ``inspect`` prints for a model that can't run."""

from __future__ import annotations

import shlex
from pathlib import Path

import onnx
import pytest
from commanding import trnrt
from planning import modelled

REFUSED = "(float[2,3] x) => (float[2,3] y) { a = Relu(x)  b = Hardmax(a)  y = Exp(b) }"


@pytest.fixture
def refused(tmp_path: Path) -> Path:
    """A model with a node in the middle that no kernel computes, in a folder whose name needs quoting."""
    path = tmp_path / "a folder" / "model.onnx"
    path.parent.mkdir()
    onnx.save(modelled(REFUSED, {}), path)
    return path


def test_the_printed_commands_work(refused: Path) -> None:
    outcome = trnrt("inspect", refused)
    assert outcome.code == 1
    commands = [line.strip() for line in outcome.out.splitlines() if line.startswith("  trnrt ")]
    cut, fallback = (shlex.split(command)[1:] for command in commands)
    assert trnrt(*cut).code == 0
    assert trnrt("validate", refused.with_name("model_cut.onnx")).code == 0
    assert trnrt(*fallback).code == 0
    ways = trnrt("inspect", refused, "--json").document["ways_out"]
    assert ways["cut"] == {"outputs": ["a"], "kept": 1, "nodes": 3}
    assert ways["fallback"]["on_cpu"] == 1 and ways["fallback"]["crossings_us"] > 0


OPEN = "(float[N,C,6] x) => (float[N,C,6] y) { a = Relu(x)  b = Hardmax(a)  y = Exp(b) }"


def test_the_printed_commands_keep_the_flags(tmp_path: Path) -> None:
    """Without them, the model would be planned in another way, or not at all."""
    path = tmp_path / "open.onnx"
    onnx.save(modelled(OPEN, {}), path)
    flags = ["--shape", "x=5x6", "--dtype", "bfloat16", "--target", "trn1", "--batch", "3", "--max-instructions", "900"]
    printed = [line.strip() for line in trnrt("inspect", path, *flags).out.splitlines() if line.startswith("  trnrt ")]
    cut, fallback = (shlex.split(command)[1:] for command in printed)
    assert trnrt(*cut).code == 0
    document = trnrt(*fallback, "--json").document
    assert (document["dtype"], document["target"], document["batch"]) == ("bfloat16", "trn1", 3)
    assert document["parts"] and trnrt("inspect", path, "--fallback", "onnxruntime").code == 2
    assert trnrt("inspect", path.with_name("open_cut.onnx"), *flags).code == 0


def test_an_end_on_the_cpu_has_no_round_trip(tmp_path: Path) -> None:
    """The kernel's outputs cross to the host without the fallback, too; and so do its inputs."""
    path = tmp_path / "end.onnx"
    onnx.save(modelled("(float[2,3] x) => (float[2,3] y) { a = Relu(x)  y = Hardmax(a) }", {}), path)
    outcome = trnrt("inspect", path)
    assert "1 of 2 nodes on the CPU: no round trip; the CPU's own time is not predicted" in outcome.out
    assert trnrt("inspect", path, "--json").document["ways_out"]["fallback"]["crossings_us"] == 0
    onnx.save(modelled("(float[2,3] x) => (float[2,3] y) { a = Hardmax(x)  y = Relu(a) }", {}), path)
    profile = trnrt("profile", path, "--fallback", "onnxruntime", "--json").document
    alone = modelled("(float[2,3] a) => (float[2,3] y) { y = Relu(a) }", {})
    onnx.save(alone, tmp_path / "alone.onnx")
    assert profile["predicted_us"] == trnrt("profile", tmp_path / "alone.onnx", "--json").document["predicted_us"]


def test_the_usage_line_names_what_must_be_given() -> None:
    assert "Usage: trnrt cut [OPTIONS] MODEL --outputs NAME... -o OUT.onnx" in trnrt("cut", "--help").out


def test_printed_commands_take_no_name_for_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = modelled(REFUSED, {})
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "-o"
    onnx.save(model, "-m.onnx")
    commands = [line for line in trnrt("inspect", "--", "-m.onnx").out.splitlines() if line.startswith("  trnrt ")]
    assert len(commands) == 2
    for command in commands:
        assert trnrt(*shlex.split(command)[1:]).code == 0
    assert [output.name for output in onnx.load("-m_cut.onnx").graph.output] == ["-o"]


def test_inputs_and_constants_are_no_outputs(refused: Path, tmp_path: Path) -> None:
    wrong = trnrt("cut", refused, "--outputs", "x", "-o", tmp_path / "out.onnx")
    assert wrong.code == 2 and "no computed tensor is called 'x'" in wrong.err


def test_cut_says_what_it_wrote(refused: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    document = trnrt("cut", refused, "--outputs", "a", "--outputs", "b", "-o", out, "--json").document
    assert document["nodes"] == {"kept": 2, "of": 3} and document["bytes"] == out.stat().st_size
    assert [tensor["name"] for tensor in document["outputs"]] == ["a", "b"]
    assert "2 of 3 nodes of model" in trnrt("cut", refused, "--outputs", "a", "b", "-o", out).out
    onnx.checker.check_model(onnx.load(out), full_check=True)


def test_mistakes(refused: Path, tmp_path: Path) -> None:
    wrong = trnrt("cut", refused, "--outputs", "aa", "-o", tmp_path / "out.onnx")
    assert wrong.code == 2 and "no computed tensor is called 'aa'" in wrong.err and "did you mean 'a'?" in wrong.err
    assert not (tmp_path / "out.onnx").exists()
    before = refused.read_bytes()
    same = trnrt("cut", refused, "--outputs", "a", "-o", refused)
    assert same.code == 2 and "is the model itself" in same.err and refused.read_bytes() == before
    assert trnrt("cut", refused, "--outputs", "a", "-o", tmp_path / "no" / "out.onnx").code == 2

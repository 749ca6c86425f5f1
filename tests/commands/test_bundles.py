"""Bundles: ``trnrt compile -o DIR``, and what starts from DIR: ``run``, ``serve`` and the session."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from commanding import save_model, trnrt
from onnx import helper, numpy_helper

from trnrt.cache.places import MANIFEST, is_bundle
from trnrt.errors import BackendError, ModelFileError
from trnrt.running.bundles import read_bundle
from trnrt.session import InferenceSession
from trnrt.validate import bundling
from trnrt.validate.bundling import check_bundle, read_golden, run_golden, write_bundle

MODELS = Path(__file__).parents[2] / "models"
CNN = MODELS / "digits_cnn.onnx"


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the digits CNN for 1, 2 and 8 rows, in bfloat16."""
    folder = tmp_path_factory.mktemp("bundle") / "cnn"
    outcome = trnrt("compile", CNN, "-o", folder, "--buckets", "1,2,8", "--dtype", "bfloat16", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.document["bundle"] == {"checked": True} and outcome.document["buckets"] == [1, 2, 8]
    assert all(Path(file).is_file() for file in outcome.document["files"])
    return folder


@pytest.fixture
def copy(cnn: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return shutil.copytree(cnn, tmp_path / "copy")


def opened(folder: Path, tmp_path: Path, **options: Any) -> InferenceSession:
    return InferenceSession(folder, backend="simulator", cache_dir=tmp_path / "cache", **options)


def forbid_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: Any) -> None:
        raise AssertionError("it was planned")

    monkeypatch.setattr("trnrt.planner.parts.partitioning.make_partition", refuse)


def test_a_bundle_runs_without_planning_and_as_the_model_does(
    cnn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with np.load(MODELS / "digits_test.npz") as held:
        rows = held["image"][:11]
    (expected,) = InferenceSession(CNN, backend="simulator", dtype="bfloat16", buckets=(1, 2, 8)).run(
        None, {"image": rows}
    )
    forbid_planning(monkeypatch)
    session = opened(cnn, tmp_path)
    assert (session.dtype, session.buckets, session.target) == ("bfloat16", (1, 2, 8), "trn2")
    assert np.array_equal(session.run(None, {"image": rows})[0], expected)
    assert session.last_run.cache_notes == ()


def test_a_user_who_may_only_read_it_can_run_it(copy: Path, tmp_path: Path) -> None:
    modes = {path.stat().st_mode & 0o777 for path in copy.rglob("*")}
    assert all(mode & 0o044 == 0o044 for mode in modes)
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    opened(copy, tmp_path).run(None, {"image": np.zeros((2, 1, 8, 8), np.float32)})
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == before


def test_verbs_take_a_bundle(cnn: Path) -> None:
    run = trnrt("run", cnn, "--input", MODELS / "digits_test.npz", "--json")
    assert run.code == 0 and run.document["dtype"] == "bfloat16"
    validated = trnrt("validate", cnn)
    assert validated.code == 0 and validated.out.startswith("PASS digits_cnn")
    assert trnrt("profile", cnn).out.startswith("digits_cnn: bfloat16 on trn2, 1 row")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--dtype", "float32"], "compiled with dtype 'bfloat16', not 'float32'"),
        (["--target", "trn1"], "compiled with target 'trn2', not 'trn1'"),
        (["--buckets", "4"], "compiled with buckets (1, 2, 8), not (4,)"),
        (["--lengths", "4"], "compiled with lengths None, not (4,)"),
        (["--effort", "0"], "compiled with effort 1, not 0"),
        (["--max-instructions", "5000"], "compiled with max_instructions None, not 5000"),
    ],
)
def test_flags_that_contradict_a_bundle(cnn: Path, options: list[str], told: str) -> None:
    outcome = trnrt("run", cnn, *options)
    assert outcome.code == 2 and told in outcome.err and "compile the model again" in outcome.err


def test_the_same_flags_are_no_contradiction(cnn: Path) -> None:
    assert trnrt("run", cnn, "--dtype", "bfloat16", "--target", "trn2", "--buckets", "1,2,8").code == 0


def test_another_model_in_its_place(copy: Path, tmp_path: Path) -> None:
    (copy / "model" / "digits_cnn.onnx").write_bytes((MODELS / "digits_ffnn.onnx").read_bytes())
    with pytest.raises(ModelFileError, match="is not the model that the bundle was made of"):
        opened(copy, tmp_path)


def test_damaged_bundles(copy: Path, tmp_path: Path) -> None:
    manifest = copy / MANIFEST
    document = json.loads(manifest.read_text())
    for damaged in (b"", b"[]", b"{}", json.dumps(document | {"options": {}}).encode()):
        manifest.write_bytes(damaged)
        with pytest.raises(ModelFileError, match="is damaged"):
            opened(copy, tmp_path)
    manifest.write_text(json.dumps(document | {"schema_version": 99}))
    with pytest.raises(ModelFileError, match="of version 99, not 1"):
        opened(copy, tmp_path)
    manifest.write_text(json.dumps(document | {"model": "../../etc/passwd"}))
    with pytest.raises(ModelFileError, match="model/passwd"):
        opened(copy, tmp_path)


def test_a_damaged_array_is_planned_anew_and_stays(copy: Path, tmp_path: Path) -> None:
    array = max((copy / "arrays").iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(array.read_bytes())
    content[-1] ^= 1
    array.write_bytes(content)
    session = opened(copy, tmp_path)
    session.run(None, {"image": np.zeros((1, 1, 8, 8), np.float32)})
    assert "not in the bundle" in session.last_run.cache_notes[0] and array.exists()


def test_a_bundle_that_everybody_may_write_is_refused(copy: Path, tmp_path: Path) -> None:
    (plan, *_) = (copy / "plans").iterdir()
    plan.chmod(0o666)
    with pytest.raises(ModelFileError, match="every user may write to"):
        opened(copy, tmp_path)


def test_another_version_plans_anew_and_checks_anew(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fastapi")
    from trnrt.serve.hosting.proving import Prover

    monkeypatch.setattr("trnrt.cache.plans.code_version", lambda _rooms: "0.0.1+other")
    monkeypatch.setattr("trnrt.running.bundles.code_version", lambda _rooms: "0.0.1+other")
    session = opened(copy, tmp_path)
    assert session.bundle is not None and not session.bundle.is_current
    prover = Prover(session, session.bundle.model)
    for rows in (1, 2):
        prover.prove(rows, 0)
        assert session.last_run.programs, "it ran"
        assert "not in the bundle" in session.last_run.cache_notes[0]
        assert session.last_run.cache_notes[0].endswith("-> 0.0.1+other")


def test_external_data_and_a_golden_input_come_along(tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.arange(4000, dtype=np.float32).reshape(4, 1000), "w")
    model = Path(
        save_model(tmp_path / "m.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], ["N", 4], ["N", 1000])
    )
    (tmp_path / "below").mkdir()
    proto = onnx.load(model)
    proto.graph.initializer.append(weights)
    onnx.save_model(proto, model, save_as_external_data=True, location="below/m.data", size_threshold=0)
    np.savez(tmp_path / "m.golden.npz", x=np.ones((1, 4), np.float32))
    session = InferenceSession(model, backend="simulator", cache_dir=tmp_path / "cache")
    bundle = check_bundle(write_bundle(session, tmp_path / "out", (1,)))
    assert (tmp_path / "out" / "model" / "below" / "m.data").stat().st_size == 16000
    moved = (tmp_path / "out").rename(tmp_path / "moved")
    model.unlink()
    opened_again = opened(moved, tmp_path)
    golden = read_golden(opened_again, read_bundle(moved) or bundle, (1, 0), lambda: pytest.fail("measured again"))
    assert golden is not None and np.array_equal(golden.feeds["x"], np.ones((1, 4)))
    golden.check(run_golden(opened_again, golden.feeds))
    with pytest.raises(BackendError, match="away from onnxruntime's"):
        golden.check({"y": np.zeros((1, 1000), np.float32)})


def test_a_wrong_answer_makes_no_checked_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = InferenceSession(CNN, backend="simulator", cache_dir=tmp_path / "cache")
    bundle = write_bundle(session, tmp_path / "out", (1,))
    monkeypatch.setattr(bundling, "run_golden", lambda *_: {"logits": np.zeros((1, 10), np.float32)})
    with pytest.raises(BackendError, match="away from onnxruntime's"):
        check_bundle(bundle)
    found = read_bundle(tmp_path / "out")
    assert found is not None and not found.checked


def test_flags_of_compile(tmp_path: Path) -> None:
    out = tmp_path / "out"
    plain = trnrt("compile", CNN, "-o", out, "--no-bundle", "--json")
    assert plain.document["bundle"] is None and not is_bundle(out) and len(list(out.iterdir())) == 3
    unchecked = trnrt("compile", CNN, "-o", out, "--no-check")
    assert "bundle, not checked: trnrt run" in unchecked.out
    both = trnrt("compile", CNN, "-o", out, "--batch", "2", "--buckets", "1,2")
    assert both.code == 2 and "--batch and --buckets" in both.err
    fixed = save_model(tmp_path / "fixed.onnx", [helper.make_node("Relu", ["x"], ["y"])], [2, 5], [2, 5])
    refused = trnrt("compile", fixed, "-o", out, "--buckets", "1,2")
    assert refused.code == 2 and "a batch fixed at 2" in refused.err
    assert trnrt("compile", fixed, "-o", tmp_path / "fixed").code == 0


def test_a_killed_writer_leaves_no_bundle(cnn: Path, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = InferenceSession(CNN, backend="simulator")

    def fail(*_arguments: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(InferenceSession, "keep_plan", fail)
    with pytest.raises(KeyboardInterrupt):
        write_bundle(session, copy, (1,))
    assert not is_bundle(copy)


def test_lengths_are_kept(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    model = save_model(tmp_path / "seq.onnx", nodes, ["N", "length", 3], ["N", "length", 3])
    outcome = trnrt("compile", model, "-o", tmp_path / "out", "--buckets", "1,2", "--lengths", "4,8")
    assert outcome.code == 0, outcome.err
    session = opened(tmp_path / "out", tmp_path)
    assert session.lengths is not None and session.lengths.sizes == (4, 8)
    x = np.arange(-9, 9, dtype=np.float32).reshape(1, 6, 3)
    assert np.array_equal(session.run(None, {"x": x})[0], np.maximum(x, 0))
    assert session.last_run.cache_notes == ()
    assert sorted(path.name for path in (tmp_path / "out" / "golden").iterdir()) == [
        "1x4.npz",
        "1x8.npz",
        "2x4.npz",
        "2x8.npz",
    ]


def test_own_targets_come_along(tmp_path: Path) -> None:
    own = tmp_path / "bundled9.toml"
    own.write_text('name = "bundled9"\nlike = "trn2"\n')
    outcome = trnrt("compile", CNN, "-o", tmp_path / "out", "--target", own)
    assert outcome.code == 0, outcome.err
    own.unlink()
    assert opened(tmp_path / "out", tmp_path).target == "bundled9"

"""Overriding the planner on the command line: ``--no-fuse``, ``--save-plan`` and ``--plan``, and ``inspect --why``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from commanding import Outcome, trnrt
from planning import drawn, modelled

from trnrt.commands import overriding
from trnrt.nki.machine.targets import data_digest
from trnrt.planner.saving import planfile

CNN = Path(__file__).parents[2] / "models" / "digits_cnn.onnx"
CONV, RELU, POOL = "node_conv2d_1", "node_relu_1", "node_max_pool2d_1"
Edit = Callable[[dict[str, Any]], Any]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRNRT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def block(tmp_path: Path) -> str:
    """A residual block whose second convolution is prefetched, and a matrix product."""
    graph = """(float[N,3,24,24] image) => (float[N,5] y) {
        [c1] c = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(image, w1)  [r1] r = Relu(c)
        [c2] f = Conv<kernel_shape=[1,1]>(r, w2)  [a2] g = Add(f, r)  [r2] h = Relu(g)
        [gap] i = GlobalAveragePool(h)  [flat] j = Flatten(i)  [fc] y = Gemm<transB=1>(j, wg, bg) }"""
    constants = {"w1": drawn(32, 3, 3, 3), "w2": drawn(32, 32, 1, 1), "wg": drawn(5, 32), "bg": drawn(5)}
    path = tmp_path / "block.onnx"
    onnx.save(modelled(graph, constants), path)
    return str(path)


def saved(model: str | Path, path: Path, *flags: str) -> dict[str, Any]:
    """The plan of a model, which is then in ``path``."""
    outcome = trnrt("inspect", model, "--no-tiles", "--save-plan", path, *flags)
    assert (outcome.code, outcome.err) == (0, "")
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def edited(model: str | Path, path: Path, edit: Edit) -> Path:
    """A plan's file after ``edit``."""
    document = saved(model, path)
    edit(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def step(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [one for one in document["steps"] if one.get("step", one.get("name")) == name]
    assert isinstance(found, dict)
    return found


def split(name: str, *parts: list[str]) -> Edit:
    """Makes several steps of one, as a person would: copies of it with other nodes."""

    def edit(document: dict[str, Any]) -> None:
        whole = step(document, name)
        at = document["steps"].index(whole)
        document["steps"][at : at + 1] = [
            {"step": nodes[0], "nodes": nodes, **({"weights": whole["weights"]} if number == 0 else {})}
            for number, nodes in enumerate(parts)
        ]

    return edit


def inspected(model: str | Path, *flags: str | Path) -> dict[str, Any]:
    outcome = trnrt("inspect", model, "--no-tiles", "--json", *flags)
    assert outcome.code == 0, outcome.err
    document: dict[str, Any] = outcome.document
    return document


# ---- --no-fuse


def test_every_verb_takes_no_fuse(tmp_path: Path) -> None:
    flags = ("--no-fuse", RELU, "--no-fuse", POOL)
    steps = {tuple(one["nodes"]) for one in inspected(CNN, *flags)["steps"]}
    assert {(CONV,), (RELU,), (POOL,)} <= steps
    assert "compiled (not" not in trnrt("run", CNN).err
    again = trnrt("run", CNN, *flags)
    assert f'compiled (not in the cache): choices no_fuse [] -> ["{POOL}", "{RELU}"]' in again.err and again.code == 0
    assert trnrt("validate", CNN, "--rows", "4", *flags).code == 0
    layers = trnrt("validate", CNN, "--layers", "--json", *flags).document["layers"]
    assert layers["passed"] and {RELU, POOL} <= {layer["step"] for layer in layers["steps"]}
    profiled = trnrt("profile", CNN, "--json", *flags).document
    assert {RELU, POOL} <= {one["name"] for one in profiled["steps"]}
    assert trnrt("compile", CNN, "-o", tmp_path / "made", *flags).code == 0
    assert f"# Relu {RELU} " in (tmp_path / "made" / "digits_cnn.py").read_text()


def test_inspect_says_that_it_was_asked_for() -> None:
    lines = trnrt("inspect", CNN, "--no-tiles", "--no-fuse", RELU).out.splitlines()
    line = next(line for line in lines if line.startswith(f"{RELU} "))
    assert f"is not fused into Conv '{CONV}': it was asked for" in line


@pytest.mark.parametrize("verb", ["run", "validate", "inspect", "profile"])
def test_a_node_that_is_not_there(verb: str) -> None:
    outcome = trnrt(verb, CNN, "--no-fuse", "node_rely_1")
    assert outcome.code == 2 and outcome.out == ""
    wanted = f"error: no_fuse: no node of the model is called 'node_rely_1'\nhint: did you mean '{RELU}'? there are "
    assert wanted in outcome.err


# ---- --save-plan and --plan


def test_a_saved_plan_says_where_everything_is(block: str, tmp_path: Path) -> None:
    document = saved(block, tmp_path / "p.json", "--target", "trn1", "--dtype", "bfloat16", "--batch", "2")
    assert [document.pop(key) for key in ("schema_version", "model", "target", "dtype", "batch")] == [
        *(1, "block", "trn1", "bfloat16", 2)
    ]
    assert [document.pop(key) for key in ("rows", "sweeps", "share", "timing")] == [None, [], None, data_digest("trn1")]
    assert list(document) == ["steps"]
    keys = {"step", "kernel", "nodes", "output", "place", "why", "weights", "options"}
    assert all(set(one) == keys for one in document["steps"])
    second = step(document, "c2")
    assert second["nodes"] == ["c2", "a2", "r2"] and (second["output"], second["place"]) == ("h", "sbuf")
    assert {one["weights"] for one in document["steps"]} == {"prefetched", "own", "none"}
    assert step(document, "fc")["why"] == "an output of the model"


def test_a_plan_of_other_timing_data_is_noted(block: str, tmp_path: Path) -> None:
    document = saved(block, tmp_path / "p.json")
    assert "timing data" not in trnrt("inspect", block, "--plan", tmp_path / "p.json").err
    (tmp_path / "p.json").write_text(json.dumps(document | {"timing": "another"}))
    outcome = trnrt("inspect", block, "--plan", tmp_path / "p.json")
    assert outcome.code == 0 and "was found with other timing data of trn2" in outcome.err


def test_sweeps_and_passes_are_as_edited(block: str, tmp_path: Path) -> None:
    document = saved(block, tmp_path / "p.json", "--batch", "4")
    for change, line in (
        ({"sweeps": [["c1", "c2", 2]]}, "for first in range(0, 4, 2):"),
        ({"rows": 2}, "for row in range(0, 4, 2):"),
    ):
        (tmp_path / "p.json").write_text(json.dumps(document | change))
        outcome = trnrt("compile", block, "--batch", "4", "--plan", tmp_path / "p.json", "-o", tmp_path / "out")
        assert outcome.code == 0 and line in (tmp_path / "out" / "block.py").read_text()


@pytest.mark.parametrize("flags", [(), ("--no-fuse", "r2"), ("--no-fuse", "a2", "--target", "trn1")])
def test_an_unedited_file_changes_nothing(block: str, tmp_path: Path, flags: tuple[str, ...]) -> None:
    saved(block, tmp_path / "p.json", *flags)
    target = flags[2:]
    before, after = inspected(block, *flags), inspected(block, "--plan", tmp_path / "p.json", *target)
    assert after == before
    outcome = trnrt("run", block, "--plan", tmp_path / "p.json", *target)
    assert outcome.code == 0
    assert saved(block, tmp_path / "q.json", "--plan", str(tmp_path / "p.json"), *target) == json.loads(
        (tmp_path / "p.json").read_text()
    )


def test_place_and_weights_are_as_edited(block: str, tmp_path: Path) -> None:
    def edit(document: dict[str, Any]) -> None:
        step(document, "c2").update(place="hbm", weights="own")

    path = edited(block, tmp_path / "p.json", edit)
    before, after = step(inspected(block), "c2"), step(inspected(block, "--plan", path), "c2")
    assert (before["place"], before["weights"]) == ("sbuf", "prefetched")
    assert [after[key] for key in ("place", "reason", "weights", "weights_reason")] == [
        *("hbm", "it was asked for", "own", "it was asked for")
    ]
    outcome = trnrt("validate", block, "--rows", "3", "--plan", path)
    assert outcome.code == 0, outcome.err


@pytest.mark.parametrize(
    "parts", [[["c2", "a2"], ["r2"]], [["c2"], ["a2", "r2"]], [["c2"], ["a2"], ["r2"]]], ids=["r2", "a2", "both"]
)
def test_a_step_that_was_split_stays_split(block: str, tmp_path: Path, parts: list[list[str]]) -> None:
    path = edited(block, tmp_path / "p.json", split("c2", *parts))
    assert parts == [
        one["nodes"] for one in inspected(block, "--plan", path)["steps"] if set(one["nodes"]) & {"c2", "a2", "r2"}
    ]
    assert trnrt("validate", block, "--rows", "3", "--plan", path, "--no-fuse", "r1").code == 0


def test_the_flag_and_the_file_add_up(block: str, tmp_path: Path) -> None:
    path = edited(block, tmp_path / "p.json", split("c2", ["c2", "a2"], ["r2"]))
    nodes = [one["nodes"] for one in inspected(block, "--plan", path, "--no-fuse", "r1")["steps"]]
    assert ["c1"] in nodes and ["r1"] in nodes and ["r2"] in nodes


def test_a_plan_holds_for_other_batches(block: str, tmp_path: Path) -> None:
    path = edited(block, tmp_path / "p.json", lambda document: step(document, "c1").update(place="hbm"))
    assert step(inspected(block, "--plan", path, "--batch", "4"), "c1")["place"] == "hbm"
    assert trnrt("run", block, "--plan", path, "--rows", "3").code == 0


def test_what_follows_from_an_edit_is_told(tmp_path: Path) -> None:
    """Element-wise steps want all they read in one memory: one tensor in HBM takes the others along."""
    graph = """(float[1,3,8,8] x) => (float[1,8,6,6] y) {
        [c1] a = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w1)  [c2] b = Conv<kernel_shape=[1,1]>(a, w2)
        [mul] c = Mul(a, b)  [sig] d = Sigmoid(c)  [c3] y = Conv<kernel_shape=[3,3]>(d, w3) }"""
    onnx.save(
        modelled(graph, {"w1": drawn(8, 3, 3, 3), "w2": drawn(8, 8, 1, 1), "w3": drawn(8, 8, 3, 3)}),
        tmp_path / "m.onnx",
    )
    path = edited(tmp_path / "m.onnx", tmp_path / "p.json", lambda document: step(document, "c2").update(place="hbm"))
    outcome = trnrt("run", tmp_path / "m.onnx", "--plan", path)
    assert outcome.code == 0
    why = "step mul wants source and result in one memory"
    told = [f"""note: step '{name}': place "hbm", not "sbuf": {why}""" for name in ("c1", "mul")]
    assert [line for line in outcome.err.splitlines() if "place" in line] == told
    moved = weighed(tmp_path / "m.onnx", "c2")["result in HBM"]
    assert moved["reason"] == "written to HBM and read from there; a, d then in HBM, too"


def test_steps_of_one_node_are_told_apart_by_their_names(tmp_path: Path) -> None:
    graph = """(float[2,8,6,6] x) => (float[2,8,3,3] y) { [c1] a = Conv<kernel_shape=[1,1]>(x, w)
        [lp] b = LpPool<kernel_shape=[2,2], strides=[2,2], p=3>(a)  [c2] y = Conv<kernel_shape=[1,1]>(b, w) }"""
    path = tmp_path / "m.onnx"
    onnx.save(modelled(graph, {"w": drawn(8, 8, 1, 1)}), path)
    of_pool = [one["name"] for one in inspected(path)["steps"] if one["nodes"] == ["lp"]]
    assert len(of_pool) == 3
    document = saved(path, tmp_path / "p.json")
    assert step(document, of_pool[0])["place"] == "sbuf"
    step(document, of_pool[0])["place"] = "hbm"
    document["steps"].reverse()
    (tmp_path / "p.json").write_text(json.dumps(document))
    after = inspected(path, "--plan", tmp_path / "p.json")["steps"]
    assert [one["name"] for one in after if one["reason"] == "it was asked for"] == of_pool[:1]


def joined(document: dict[str, Any]) -> None:
    step(document, "c1")["nodes"] += step(document, "gap")["nodes"]
    document["steps"].remove(step(document, "gap"))


# What somebody may ask for -> what is wrong with it.
IMPOSSIBLE: dict[str, tuple[Edit, str]] = {
    "an output in SBUF": (
        lambda d: step(d, "fc").update(place="sbuf"),
        """place "sbuf" can't be for step 'fc': an output of the model""",
    ),
    "weights that the kernel arranges": (
        lambda d: step(d, "c1").update(weights="prefetched"),
        """weights "prefetched" can't be for step 'c1': the kernel arranges them""",
    ),
    "no weights": (
        lambda d: step(d, "gap").update(weights="own"),
        """step 'gap' has weights "own", and in the plan none""",
    ),
    "weights all the same": (
        lambda d: step(d, "c2").update(weights="none"),
        """weights "none", and in the plan prefetched""",
    ),
    "joined": (joined, "step 'c1' can't be 'c1', 'r1', 'gap': 'gap' is computed in step 'gap'"),
    "split where nothing is": (split("c2", ["c2", "r2"], ["a2"]), "can't be 'c2', 'r2': 'r2' is computed in step"),
    "a node twice": (lambda d: step(d, "fc").update(nodes=["fc", "fc"]), "step 'fc' can't be 'fc', 'fc'"),
    "no nodes": (lambda d: d["steps"].append({"step": "z", "nodes": []}), "step 'z' has no nodes"),
    "a step that is lost": (lambda d: d["steps"].remove(step(d, "gap")), "no step for node 'gap'"),
    "a node of another model": (lambda d: step(d, "gap").update(nodes=["gaq"]), "no node in a step is called 'gaq'"),
    "another model": (lambda d: d.update(model="other"), "is a plan for model 'other'; this is model 'block'"),
    "another target": (lambda d: d.update(target="trn1"), "is a plan for target 'trn1'; this is target 'trn2'"),
    "another dtype": (lambda d: d.update(dtype="float16"), "is a plan for dtype 'float16'"),
    "no batch": (lambda d: d.update(batch=None), "is a plan for batch 'none'"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_cant_be_is_refused(block: str, tmp_path: Path, name: str) -> None:
    edit, message = IMPOSSIBLE[name]
    path = edited(block, tmp_path / "p.json", edit)
    for verb in ("inspect", "run"):
        outcome = trnrt(verb, block, "--plan", path)
        assert (outcome.code, outcome.out) == (2, "")
        assert message in outcome.err and "\nhint: " in outcome.err
        assert outcome.err.count("\n") == 2


VALID = {"schema_version": 1, "model": "block", "target": "trn2", "dtype": "float32", "batch": 1}
ENTRY = {"step": "c1", "nodes": ["c1"]}

# Files that no plan is written as -> what is wrong with them.
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "Expecting value"),
    "cut off": (b'{"schema_version": 1, "model": "g', "Unterminated string"),
    "bytes": (bytes(range(256)), "can't use the plan"),
    "nested": (b"[" * 200_000, "nested too deeply"),
    "a list": (b"[1, 2]", "it is no JSON object"),
    "a large number": (b'{"schema_version": ' + b"9" * 10_000 + b"}", "can't use the plan"),
    "another schema": (json.dumps(VALID | {"schema_version": 2}).encode(), "schema_version 2; this trnrt reads 1"),
    "true for one": (json.dumps(VALID | {"schema_version": True}).encode(), "schema_version True"),
    "no model": (json.dumps(VALID | {"model": None}).encode(), "model of the plan is no text"),
    "a huge batch": (json.dumps(VALID | {"batch": 10**9}).encode(), "batch is 1000000000; it is null, or 1 to 4096"),
    "a broken batch": (json.dumps(VALID | {"batch": float("nan")}).encode(), "batch is nan"),
    "no rows": (json.dumps(VALID | {"steps": [], "rows": 0}).encode(), "rows is 0; it is null, or 1 to 4096 rows"),
    "a large share": (json.dumps(VALID | {"steps": [], "share": 1.5}).encode(), "share is 1.5; it is null, or between"),
    "a sweep": (json.dumps(VALID | {"steps": [], "sweeps": [["c1", "c1", True]]}).encode(), "sweeps is no list of"),
    "timing": (json.dumps(VALID | {"steps": [], "timing": 7}).encode(), "timing of the plan is no text"),
    "no steps": (json.dumps(VALID).encode(), "steps is no list of up to"),
    "an empty list": (json.dumps(VALID | {"steps": []}).encode(), "the file has no step for node 'c1'"),
    "steps by name": (json.dumps(VALID | {"steps": {"c1": ENTRY}}).encode(), "steps is no list"),
    "a step that is none": (json.dumps(VALID | {"steps": [ENTRY, 7]}).encode(), "step number 2 is no object"),
    "a step without a name": (json.dumps(VALID | {"steps": [{"nodes": []}]}).encode(), "step of step number 1 is no"),
    "nodes that are none": (json.dumps(VALID | {"steps": [ENTRY | {"nodes": [[]]}]}).encode(), "has no list of nodes"),
    "a place": (json.dumps(VALID | {"steps": [ENTRY | {"place": "psum"}]}).encode(), "is not sbuf or hbm"),
    "code": (
        json.dumps(VALID | {"steps": [ENTRY | {"weights": "__import__('os')"}]}).encode(),
        "weights of step 'c1' is not prefetched or own or none",
    ),
    "control characters": (
        json.dumps(VALID | {"steps": [{"step": "\x1b[2J\ud800", "nodes": ["\x1b[2J\ud800"]}]}).encode(),
        r"no node in a step is called '\x1b[2J\ud800'",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_is_no_plan(block: str, tmp_path: Path, name: str) -> None:
    content, message = HOSTILE[name]
    (tmp_path / "p.json").write_bytes(content)
    outcome = trnrt("inspect", block, "--plan", tmp_path / "p.json")
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err and "\x1b" not in outcome.err


def test_files_that_cant_be_read_or_are_too_large(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no such file" in trnrt("run", block, "--plan", tmp_path / "none.json").err.lower()
    assert "directory" in trnrt("run", block, "--plan", tmp_path).err
    path = edited(block, tmp_path / "p.json", lambda document: None)
    monkeypatch.setattr(planfile, "MOST_STEPS", 3)
    assert "steps is no list of up to 3 steps" in trnrt("run", block, "--plan", path).err
    monkeypatch.setattr(overriding, "LARGEST_PLAN", 100)
    outcome = trnrt("run", block, "--plan", path)
    assert outcome.code == 2 and "it is too large" in outcome.err


def test_a_model_without_steps(tmp_path: Path) -> None:
    onnx.save(modelled("(float[N,2,3] x) => (float[N,6] y) { y = Flatten(x) }"), tmp_path / "m.onnx")
    assert saved(tmp_path / "m.onnx", tmp_path / "p.json")["steps"] == []
    assert trnrt("run", tmp_path / "m.onnx", "--plan", tmp_path / "p.json").code == 0
    outcome = trnrt("inspect", tmp_path / "m.onnx", "--why", "y")
    assert outcome.code == 2 and "there are none" in outcome.err


def test_a_plan_that_cant_be_written(block: str, tmp_path: Path) -> None:
    outcome = trnrt("inspect", block, "--save-plan", tmp_path / "none" / "p.json")
    assert (outcome.code, outcome.out) == (2, "") and "can't write" in outcome.err


@pytest.mark.parametrize("flag", ["--why", "--save-plan"])
def test_other_stages_have_no_plan(block: str, flag: str, tmp_path: Path) -> None:
    outcome = trnrt("inspect", block, "--stage", "imported", flag, tmp_path / "c1")
    assert outcome.code == 2 and f"{flag} needs the plan" in outcome.err


# ---- --why


def weighed(model: str | Path, name: str, *flags: str | Path) -> dict[str, dict[str, Any]]:
    """The candidates by what they are."""
    outcome = trnrt("inspect", model, "--why", name, "--json", *flags)
    assert outcome.code == 0, outcome.err
    return {one["what"]: one for one in outcome.document["candidates"]}


def profiled(model: str | Path, *flags: str | Path) -> float:
    us: float = trnrt("profile", model, "--json", *flags).document["predicted_us"]["benchmark"]
    return us


def test_each_candidate_has_the_time_that_profile_predicts(block: str, tmp_path: Path) -> None:
    found = weighed(block, "c2")
    assert list(found) == [
        "as planned",
        "Add a2 not fused",
        "Relu r2 not fused",
        "result in HBM",
        "weights loaded by itself",
    ]
    assert [one["chosen"] for one in found.values()] == [True, False, False, False, False]
    plain = profiled(block)
    assert found["as planned"]["predicted_us"] == plain and found["as planned"]["difference_us"] == 0
    assert found["Add a2 not fused"]["predicted_us"] == profiled(block, "--no-fuse", "a2") != plain
    for what, change in (("result in HBM", {"place": "hbm"}), ("weights loaded by itself", {"weights": "own"})):
        document = saved(block, tmp_path / "p.json")
        step(document, "c2").update(change)
        path = tmp_path / "p.json"
        path.write_text(json.dumps(document))
        assert found[what]["predicted_us"] == profiled(block, "--plan", path) >= plain
        assert found[what]["difference_us"] == pytest.approx(found[what]["predicted_us"] - plain)


def test_the_table_marks_what_is_chosen_and_says_how_to_ask(block: str) -> None:
    outcome = trnrt("inspect", block, "--why", "a2")  # a node of step c2
    lines = outcome.out.splitlines()
    assert lines[0] == "step c2 (conv2d) of block: float32 on trn2, 1 row"
    assert lines[1] == "computes c2, a2, r2; its result h is in SBUF; weights: prefetched"
    marked = [line for line in lines if line.startswith("*  ")]
    assert len(marked) == 1 and marked[0].split()[1:3] == ["as", "planned"]
    (line,) = [line for line in lines if line.lstrip().startswith("Relu r2 not fused")]
    assert "--no-fuse r2" in line and ("+" in line or "-0." in line)
    assert lines[-1] == "* is planned; times are predicted for the whole model"


def test_what_is_not_possible_has_its_reason(block: str) -> None:
    found = weighed(block, "c1")
    assert not found["weights prefetched"]["possible"] and found["weights prefetched"]["choices"] is None
    assert found["weights prefetched"]["predicted_us"] is None
    assert "the kernel arranges them" in found["weights prefetched"]["reason"]
    assert weighed(block, "fc")["result in SBUF"]["reason"] == "an output of the model"


def test_a_choice_that_changes_nothing(tmp_path: Path) -> None:
    """Of two branches that are merged into their sum, the second starts as the first does: it has nothing before it."""
    graph = "(float[4,6] x) => (float[4,6] y) { [u] a = Exp(x)  [v] b = Tanh(x)  [w] y = Add(a, b) }"
    onnx.save(modelled(graph), tmp_path / "m.onnx")
    found = weighed(tmp_path / "m.onnx", "w")
    assert not found["Exp u not fused"]["possible"]
    assert found["Exp u not fused"]["reason"] == "it changes nothing: the plan stays the same"
    assert found["Add w not fused"]["possible"] and found["Add w not fused"]["steps"] == 3


def test_a_tensor_that_does_not_fit(tmp_path: Path) -> None:
    graph = """(float[1,8,260,260] x) => (float[1,8,260,260] y) {
        [c1] a = Conv<kernel_shape=[1,1]>(x, w)  [c2] y = Conv<kernel_shape=[1,1]>(a, w) }"""
    onnx.save(modelled(graph, {"w": drawn(8, 8, 1, 1)}), tmp_path / "large.onnx")
    path = tmp_path / "large.onnx"
    one = weighed(path, "c1", "--target", "trn1")["result in SBUF"]
    assert one["reason"].startswith("does not fit the ") and "bytes a partition" in one["reason"]
    assert "not possible: does not fit the" in trnrt("inspect", path, "--why", "c1", "--target", "trn1").out
    document = saved(path, tmp_path / "p.json", "--target", "trn1")
    step(document, "c1")["place"] = "sbuf"
    (tmp_path / "p.json").write_text(json.dumps(document))
    outcome = trnrt("run", path, "--target", "trn1", "--plan", tmp_path / "p.json")
    assert outcome.code == 2 and """place "sbuf" can't be for step 'c1': does not fit the""" in outcome.err


def test_what_was_asked_for_can_be_taken_back(block: str, tmp_path: Path) -> None:
    plain = profiled(block)
    found = weighed(block, "c2", "--no-fuse", "r2")
    assert [what for what in found if "fused" in what] == ["Add a2 not fused", "Relu r2 fused"]
    assert found["Relu r2 fused"]["predicted_us"] == plain
    assert weighed(block, "r2", "--no-fuse", "r2")["Relu r2 fused"]["predicted_us"] == plain
    path = edited(block, tmp_path / "p.json", lambda d: step(d, "c2").update(place="hbm"))
    assert weighed(block, "c2", "--plan", path)["result in SBUF"]["predicted_us"] == plain
    path = edited(block, tmp_path / "p.json", lambda d: step(d, "c2").update(weights="own"))
    assert weighed(block, "c2", "--plan", path)["weights prefetched"]["predicted_us"] == plain


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("c3", "--why: no step or node is called 'c3'\nhint: there are c1, c2, gap, fc;"),
        ("flat", "--why: node 'flat' is in no step: "),
        ("\x1b[2J", "--why: no step or node is called '\\x1b[2J'"),
    ],
)
def test_a_step_that_is_not_there(block: str, name: str, message: str) -> None:
    outcome: Outcome = trnrt("inspect", block, "--why", name)
    assert (outcome.code, outcome.out) == (2, "") and message in outcome.err


def test_parts_on_the_cpu_are_not_timed(tmp_path: Path) -> None:
    graph = """(float[2,4,6,6] x) => (float[2,4,6,6] y) {
        [c1] a = Conv<kernel_shape=[1,1]>(x, w)  [r1] b = Relu(a)  [det] d = Det(b)  [un] u = Reshape(d, to)
        [s] e = Add(b, u)  [c2] f = Conv<kernel_shape=[1,1]>(e, w)  [r2] y = Relu(f) }"""
    to = np.array([2, 4, 1, 1], np.int64)
    onnx.save(modelled(graph, {"w": drawn(4, 4, 1, 1), "to": to}), tmp_path / "m.onnx")
    flags = ("--fallback", "onnxruntime")
    outcome = trnrt("inspect", tmp_path / "m.onnx", "--why", "c2", *flags)
    assert outcome.code == 0 and "the CPU's own time is not included (m_part2)" in outcome.out
    found = weighed(tmp_path / "m.onnx", "c2", *flags)
    assert found["as planned"]["predicted_us"] == profiled(tmp_path / "m.onnx", *flags)
    assert found["Relu r2 not fused"]["predicted_us"] == profiled(tmp_path / "m.onnx", *flags, "--no-fuse", "r2")
    outcome = trnrt("inspect", tmp_path / "m.onnx", "--why", "det", *flags)
    assert outcome.code == 2 and "node 'det' is in no step" in outcome.err
    saved(tmp_path / "m.onnx", tmp_path / "p.json", *flags)
    assert trnrt("run", tmp_path / "m.onnx", "--plan", tmp_path / "p.json", *flags).code == 0
